package check

// A Rule is what a packet can break. Ref says where it is written: sections of the IBTA
// specification, volume 1, with A17 for the annex on RoCEv2.
type Rule struct {
	ID   string `json:"id"`
	Text string `json:"text"`
	Ref  string `json:"ref"`
}

// Rules of a single packet.
var (
	ruleFrame      = Rule{"frame", "IP and UDP headers agree with each other and with the frame", "A17"}
	ruleIPChecksum = Rule{"ip-checksum", "the IPv4 header checksum is right", "RFC 791"}
	ruleUDPSum     = Rule{"udp-checksum", "the UDP checksum is zero or right", "A17"}
	ruleAddress    = Rule{"address", "the source is one host; a multicast packet is UD, to QP 0xffffff", "IBTA 10.5, A17"}
	ruleICRC       = Rule{"icrc", "the ICRC is that of the packet", "IBTA 7.8.1, A17.3.3"}
	ruleOpcode     = Rule{"opcode", "the opcode is assigned", "IBTA 9.2"}
	ruleShort      = Rule{"short", "the packet holds the headers of its opcode", "IBTA 9.6.1"}
	ruleTVer       = Rule{"tver", "the transport header version is 0", "IBTA 9.2"}
	ruleReserved   = Rule{"reserved", "reserved fields are zero", "IBTA 9.2, 9.3"}
	rulePad        = Rule{"pad", "0 to 3 zero bytes fill the payload up to four, and no others", "IBTA 9.2"}
	ruleLength     = Rule{"length", "First and Middle carry a path MTU, Last 1 byte to a path MTU, Only at most one", "IBTA 9.7.4.1, 9.8.2"}
	rulePayload    = Rule{"payload", "an opcode without payload has none, ATOMIC WRITE has 8 bytes", "IBTA 9.2"}
	ruleDMALength  = Rule{"dma-length", "the payloads of a WRITE add up to the length in its RETH, 2^31 bytes at most", "IBTA 9.7.4.1, 9.4.3"}
	ruleSyndrome   = Rule{"syndrome", "the AETH's syndrome is assigned and fits its opcode", "IBTA 9.7.5.2"}
	ruleSolicited  = Rule{"solicited", "only what ends a SEND or a WRITE with immediate asks for a solicited event", "IBTA 9.2"}
	rulePKey       = Rule{"pkey", "both ends of a connection use one valid partition", "IBTA 10.9.3"}
	ruleQPN        = Rule{"qpn", "QP 0 is not used, QP 1 and QP 0xffffff get UD only", "A17"}
	ruleQKey       = Rule{"qkey", "QP 1 has the Q_Key 0x80010000", "IBTA 10.2.5"}
	ruleCNP        = Rule{"cnp", "a CNP has BECN, PSN 0, no AckReq and 16 zero bytes", "A17"}
	ruleCNPPace    = Rule{"cnp-pace", "CNPs of one flow are paced", "A17"}
)

// Rules of a requester.
var (
	ruleSequence      = Rule{"op-sequence", "a message is an Only, or First, Middles and Last of one operation", "IBTA 9.7.4.1.2, 9.8.2"}
	rulePSNOverlap    = Rule{"psn-overlap", "the PSNs of a READ's responses are its own", "IBTA 9.7.2"}
	ruleSame          = Rule{"resend-same", "a packet that is sent again is the same but for AckReq", "IBTA 9.7.6"}
	ruleResendPSN     = Rule{"resend-psn", "what follows a sequence NAK begins at its PSN", "IBTA 9.7.5.2"}
	ruleResendAcked   = Rule{"resend-acked", "what a NAK has acknowledged is not sent again once the NAK was followed", "IBTA 9.7.5.1.2"}
	ruleRetryInterval = Rule{"retry-interval", "without a NAK nothing is sent again before the shortest timeout", "IBTA 9.7.6.1.3"}
	ruleRNRWait       = Rule{"rnr-wait", "after an RNR NAK the requester waits as long as its timer code says", "IBTA 9.7.5.2.8"}
	ruleUnanswered    = Rule{"unanswered", "a request that asks for an answer gets one, or is sent again", "IBTA 9.7.6"}
	ruleUCRepeat      = Rule{"uc-repeat", "UC sends nothing again", "IBTA 9.8.2"}
)

// Rules of a responder.
var (
	ruleAckUnseen    = Rule{"ack-unseen", "what is acknowledged was sent", "IBTA 9.7.5.1"}
	ruleAckOrder     = Rule{"ack-order", "the PSNs of ACKs do not go back", "IBTA 9.7.5.1.2"}
	ruleAnswerKind   = Rule{"answer-kind", "READ responses answer a READ, an ATOMIC ACK an atomic, an empty READ response FLUSH and ATOMIC WRITE", "IBTA 9.7.5.1"}
	ruleMSN          = Rule{"msn", "the MSN counts the messages that were completed", "IBTA 9.7.7, C9-148"}
	ruleNAKOnce      = Rule{"nak-once", "a gap draws one sequence NAK", "IBTA 9.7.5.2"}
	ruleNAKCause     = Rule{"nak-cause", "a NAK names a PSN that is not acknowledged; a sequence NAK, one with a later one behind it", "IBTA 9.7.5.2"}
	ruleRNRTarget    = Rule{"rnr-target", "an RNR NAK answers a request that may need a receive or a resource", "IBTA 9.7.5.2.8"}
	ruleRNROnce      = Rule{"rnr-once", "a request draws one RNR NAK each time it comes", "IBTA 9.7.5.2.8"}
	ruleAfterFatal   = Rule{"after-fatal", "after a NAK that ends the connection the responder is silent", "IBTA 9.7.5.2"}
	ruleReadOpcode   = Rule{"read-opcode", "READ responses are an Only, or First, Middles and Last", "IBTA 9.7.5.1"}
	ruleReadLength   = Rule{"read-length", "READ responses carry a path MTU each, the last what is left, together what was asked for", "IBTA 9.7.5.1"}
	ruleReadOrder    = Rule{"read-order", "READ responses come in the order of PSNs and of requests", "IBTA 9.5, 9.7.5.1"}
	ruleReplyRepeat  = Rule{"reply-repeat", "a READ or atomic is answered as often as it was asked", "IBTA 9.7.5.1"}
	ruleAtomicReplay = Rule{"atomic-replay", "a repeated atomic is answered with the stored result", "IBTA 9.7.5.1"}
	ruleAtomicAlign  = Rule{"atomic-align", "an atomic at an address that 8 does not divide is refused", "IBTA 9.4.5"}
)

// Rules returns all rules, in the order of a packet's way through them.
func Rules() []Rule {
	return []Rule{
		ruleFrame, ruleIPChecksum, ruleUDPSum, ruleAddress, ruleICRC, ruleOpcode, ruleShort, ruleTVer, ruleReserved,
		rulePad, ruleLength, rulePayload, ruleDMALength, ruleSyndrome, ruleSolicited, rulePKey, ruleQPN, ruleQKey,
		ruleCNP, ruleCNPPace,
		ruleSequence, rulePSNOverlap, ruleSame, ruleResendPSN, ruleResendAcked, ruleRetryInterval, ruleRNRWait,
		ruleUnanswered, ruleUCRepeat,
		ruleAckUnseen, ruleAckOrder, ruleAnswerKind, ruleMSN, ruleNAKOnce, ruleNAKCause, ruleRNRTarget, ruleRNROnce,
		ruleAfterFatal, ruleReadOpcode, ruleReadLength, ruleReadOrder, ruleReplyRepeat, ruleAtomicReplay, ruleAtomicAlign,
	}
}

// Kinds of notes. Those that begin with "rxe-" are ways of the Linux driver, known
// departures from the specification.
var (
	noteCut         = Rule{"cut", "the capture did not keep the whole frame; not judged", ""}
	noteOffload     = Rule{"offload", "the checksum was left to the hardware", ""}
	noteForeign     = Rule{"not-judged", "reliable datagrams and opcodes of manufacturers are not judged", ""}
	noteMany        = Rule{"too-many", "more flows than are judged", ""}
	noteNewStream   = Rule{"new-connection", "PSNs far from those before: taken for a new connection", ""}
	noteGap         = Rule{"gap", "requests that the capture does not have", ""}
	noteMayFragment = Rule{"may-fragment", "DF is clear", ""}
	noteSourcePort  = Rule{"source-port", "the UDP source port of the flow changes", ""}
	noteMigReq      = Rule{"migreq-change", "MigReq changes", ""}
	noteBelowNAK    = Rule{"below-nak", "resends from before a sequence NAK's PSN, as after a timeout: the NAK was lost behind the capture", ""}
	noteEarlyRNR    = Rule{"early-rnr", "one of several waits after RNR NAKs is short, as after a timeout: the NAK was lost behind the capture, or did not stop the timer of the request, as in the Linux driver", ""}
	noteNoAnswer    = Rule{"no-answer", "not answered when the capture ends", ""}
	noteAckReq      = Rule{"ackreq", "AckReq where nothing acknowledges", ""}
	noteOvertaken   = Rule{"nak-of-last", "a sequence NAK for the last packet that was sent, which acknowledges others: they came after it, and before the NAK left", ""}
	noteRNRNAK      = Rule{"rxe-nak-behind-rnr", "a sequence NAK for the PSN that has just drawn an RNR NAK", ""}
	noteRetry7      = Rule{"rxe-retry-for-ever", "more than 7 retries: retry_cnt 7 is taken for no limit", ""}
	noteReadMiddle  = Rule{"rxe-read-middle", "a READ repeated from its middle is answered as if it were the first one's rest", ""}
	noteSendNAK     = Rule{"rxe-send-too-long", "a SEND is refused as a remote operational error, where one that is too long is an invalid request", ""}
	noteGSIAckReq   = Rule{"rxe-gsi-ackreq", "AckReq in a datagram to QP 1", ""}
	noteNoCNP       = Rule{"rxe-no-cnp", "packets marked as congested draw no CNP", ""}
)

// notes returns all kinds of notes.
func notes() []Rule {
	return []Rule{
		noteCut, noteOffload, noteForeign, noteMany, noteNewStream, noteGap, noteMayFragment, noteSourcePort, noteMigReq, noteBelowNAK, noteEarlyRNR, noteNoAnswer, noteAckReq, noteOvertaken, noteRNRNAK, noteRetry7, noteReadMiddle, noteSendNAK, noteGSIAckReq, noteNoCNP,
	}
}
