package check

import "slices"

// A Rule is what a packet can break. Ref is its source: sections of the IBTA specification, volume
// 1; A17 is the annex on RoCEv2.
type Rule struct {
	ID   string `json:"id"`
	Text string `json:"text"`
	Ref  string `json:"ref"`
}

// A Party is the end of a connection that violates a rule. The sender of a datagram is a requester.
type Party string

// Parties.
const (
	PartyRequester Party = "requester"
	PartyResponder Party = "responder"
)

// Rules of a single packet.
var (
	ruleFrame      = Rule{"frame", "the headers before the BTH agree with each other and with the frame", "A17, IBTA 7.7, 8.3"}
	ruleIPChecksum = Rule{"ip-checksum", "the IPv4 header checksum is right", "RFC 791"}
	ruleUDPSum     = Rule{"udp-checksum", "the UDP checksum is zero or right", "A17"}
	ruleAddress    = Rule{"address", "the source address or LID is that of one port; a multicast packet is UD, to QP 0xffffff", "IBTA 4.1.3, 10.5, A17"}
	ruleTTL        = Rule{"ttl", "the TTL or hop limit is not 0", "RFC 1122 3.2.1.7, RFC 8200 3"}
	ruleLRH        = Rule{"lrh", "the link version and the reserved bits of an LRH are 0", "IBTA 7.7"}
	ruleVCRC       = Rule{"vcrc", "the VCRC is that of the packet", "IBTA 7.8.2"}
	ruleICRC       = Rule{"icrc", "the ICRC is that of the packet", "IBTA 7.8.1, A17.3.3"}
	ruleOpcode     = Rule{"opcode", "the opcode is assigned", "IBTA 9.2"}
	ruleShort      = Rule{"short", "the packet holds the headers of its opcode", "IBTA 9.6.1"}
	ruleTVer       = Rule{"tver", "the transport header version is 0", "IBTA 9.2"}
	ruleReserved   = Rule{"reserved", "reserved fields are zero", "IBTA 9.2, 9.3"}
	rulePad        = Rule{"pad", "the payload is padded to a multiple of four with 0 to 3 zero bytes", "IBTA 9.2"}
	ruleLength     = Rule{"length", "the payload of First and Middle is the path MTU, that of Last 1 byte to the path MTU, that of Only at most the path MTU", "IBTA 9.7.4.1, 9.8.2"}
	rulePayload    = Rule{"payload", "an opcode without payload has none, ATOMIC WRITE has 8 bytes", "IBTA 9.2"}
	ruleDMALength  = Rule{"dma-length", "the payloads of a WRITE add up to the length in its RETH, at most 2^31 bytes", "IBTA 9.7.4.1, 9.4.3"}
	ruleSyndrome   = Rule{"syndrome", "the AETH's syndrome is assigned and fits its opcode", "IBTA 9.7.5.2"}
	ruleSolicited  = Rule{"solicited", "only the last packet of a SEND or of a WRITE with immediate has the solicited event bit", "IBTA 9.2"}
	rulePKey       = Rule{"pkey", "both ends of a connection use one valid partition", "IBTA 10.9.3"}
	ruleQPN        = Rule{"qpn", "packets to QP 0, which only InfiniBand has, QP 1 and QP 0xffffff are UD", "IBTA 3.9.5, A17"}
	ruleQKey       = Rule{"qkey", "QP 1 has the Q_Key 0x80010000", "IBTA 10.2.5"}
	ruleGSI        = Rule{"gsi", "a datagram to QP 1 comes from QP 1 and is a MAD of 256 bytes; on InfiniBand, other queue pairs than QP 0 may send one", "IBTA 13.4.2, 13.5.1"}
	ruleSMP        = Rule{"smp", "subnet management MADs have 256 bytes, go from QP 0 to QP 0 and use VL 15; nothing else does", "IBTA 7.6.4, 13.5.1, 14.2"}
	ruleBECN       = Rule{"becn", "a request does not have BECN", "A17"}
	ruleCNP        = Rule{"cnp", "a CNP has BECN, PSN 0, no AckReq and 16 zero bytes", "A17"}
	ruleCNPPace    = Rule{"cnp-pace", "CNPs of one flow keep a minimum interval", "A17"}
)

// Rules of a packet within its connection, for both ends.
var (
	ruleStray   = Rule{"stray", "packets of a connection have the addresses and the destination queue pair of its ends", "IBTA 9.6.1"}
	ruleService = Rule{"service", "packets to a queue pair are of one service", "IBTA 9.6.1"}
)

// Rules of a requester.
var (
	rulePSNOrder      = Rule{"psn-order", "new requests have consecutive PSNs", "IBTA 9.7.2"}
	ruleSequence      = Rule{"op-sequence", "a message is an Only, or First, Middles and Last of one operation", "IBTA 9.7.4.1.2, 9.8.2"}
	rulePSNOverlap    = Rule{"psn-overlap", "the PSNs of a READ's response are not used by another request", "IBTA 9.7.2"}
	ruleSame          = Rule{"resend-same", "a retransmitted packet is the same except for AckReq", "IBTA 9.7.6"}
	ruleResendPSN     = Rule{"resend-psn", "the retransmission after a sequence NAK begins at its PSN", "IBTA 9.7.5.2"}
	ruleResendAcked   = Rule{"resend-acked", "a request that a NAK acknowledges is not retransmitted after the retransmission that the NAK asked for", "IBTA 9.7.5.1.2"}
	ruleRetryInterval = Rule{"retry-interval", "without a NAK nothing is retransmitted before the shortest local ACK timeout", "IBTA 9.7.6.1.3"}
	ruleRNRWait       = Rule{"rnr-wait", "after an RNR NAK the requester waits at least as long as its timer code says", "IBTA 9.7.5.2.8"}
	ruleUnanswered    = Rule{"unanswered", "a request that requires a reply is answered or retransmitted", "IBTA 9.7.6"}
	ruleReads         = Rule{"rd-atomic", "a requester has at most as many READs and atomics outstanding as the REP of the connection manager grants", "IBTA 9.7.4.1.4, 12.6.8"}
	ruleUCRepeat      = Rule{"uc-repeat", "UC does not retransmit", "IBTA 9.8.2"}
)

// Rules of a responder.
var (
	ruleAckUnseen    = Rule{"ack-unseen", "an acknowledged PSN was sent", "IBTA 9.7.5.1"}
	ruleAckOrder     = Rule{"ack-order", "the PSNs of ACKs do not decrease", "IBTA 9.7.5.1.2"}
	ruleAnswerKind   = Rule{"answer-kind", "the kind of a response fits its request: READ responses for READ, ATOMIC ACK for an atomic, an empty READ response for FLUSH and ATOMIC WRITE", "IBTA 9.7.5.1"}
	ruleMSN          = Rule{"msn", "the MSN counts the completed messages", "IBTA 9.7.7, C9-148"}
	ruleNAKOnce      = Rule{"nak-once", "a gap causes one sequence NAK", "IBTA 9.7.5.2"}
	ruleNAKCause     = Rule{"nak-cause", "the PSN of a NAK is not acknowledged; that of a sequence NAK is below one that was sent", "IBTA 9.7.5.2"}
	ruleRNRTarget    = Rule{"rnr-target", "an RNR NAK answers a request that consumes a receive or a responder resource", "IBTA 9.7.5.2.8"}
	ruleRNROnce      = Rule{"rnr-once", "a request causes at most one RNR NAK per transmission", "IBTA 9.7.5.2.8"}
	ruleAfterFatal   = Rule{"after-fatal", "after a NAK that ends the connection the responder sends no reply", "IBTA 9.7.5.2"}
	ruleReadOpcode   = Rule{"read-opcode", "READ responses are an Only, or First, Middles and Last", "IBTA 9.7.5.1"}
	ruleReadLength   = Rule{"read-length", "the payload of READ responses is the path MTU, that of the last one the rest of the requested length", "IBTA 9.7.5.1"}
	ruleReadOrder    = Rule{"read-order", "READ responses are in the order of PSNs and of requests", "IBTA 9.5, 9.7.5.1"}
	ruleReplyRepeat  = Rule{"reply-repeat", "a READ or atomic has at most one response per transmission", "IBTA 9.7.5.1"}
	ruleAtomicReplay = Rule{"atomic-replay", "a retransmitted atomic is answered with the stored result", "IBTA 9.7.5.1"}
	ruleAtomicAlign  = Rule{"atomic-align", "an atomic at an address that is not a multiple of 8 is refused", "IBTA 9.4.5"}
)

// Rules returns all rules in the order in which they are applied to a packet.
func Rules() []Rule { return slices.Concat(packetRules(), requesterRules(), responderRules()) }

func packetRules() []Rule {
	return []Rule{
		ruleFrame, ruleIPChecksum, ruleUDPSum, ruleAddress, ruleTTL, ruleVCRC, ruleICRC, ruleLRH, ruleOpcode, ruleShort, ruleTVer, ruleReserved,
		rulePad, ruleLength, rulePayload, ruleDMALength, ruleSyndrome, ruleSolicited, rulePKey, ruleQPN, ruleQKey, ruleGSI, ruleSMP,
		ruleBECN, ruleCNP, ruleCNPPace, ruleStray, ruleService,
	}
}

func requesterRules() []Rule {
	return []Rule{
		ruleSequence, rulePSNOrder, rulePSNOverlap, ruleSame, ruleResendPSN, ruleResendAcked, ruleRetryInterval, ruleRNRWait,
		ruleUnanswered, ruleReads, ruleUCRepeat,
	}
}

func responderRules() []Rule {
	return []Rule{
		ruleAckUnseen, ruleAckOrder, ruleAnswerKind, ruleMSN, ruleNAKOnce, ruleNAKCause, ruleRNRTarget, ruleRNROnce,
		ruleAfterFatal, ruleReadOpcode, ruleReadLength, ruleReadOrder, ruleReplyRepeat, ruleAtomicReplay, ruleAtomicAlign,
	}
}

// partyOf returns who violates a rule: that of a single packet its sender.
func partyOf(r Rule, request bool) Party {
	switch {
	case slices.Contains(requesterRules(), r):
		return PartyRequester
	case slices.Contains(responderRules(), r):
		return PartyResponder
	case request:
		return PartyRequester
	}
	return PartyResponder
}

// Kinds of notes. Those that begin with "rxe-" are known deviations of the Linux driver from the
// specification.
var (
	noteCut         = Rule{"cut", "the capture has only a part of the frame: the rest is not judged", ""}
	noteOffload     = Rule{"offload", "the checksum is left to the hardware", ""}
	noteForeign     = Rule{"not-judged", "reliable datagrams, manufacturer opcodes and CNPs of InfiniBand or RoCE v1 are not judged", ""}
	noteMany        = Rule{"too-many", "more flows than can be judged", ""}
	noteNewStream   = Rule{"new-connection", "PSNs far from those before: judged as a new connection", ""}
	noteGap         = Rule{"gap", "requests are missing in the capture", ""}
	noteMayFragment = Rule{"may-fragment", "DF is clear", ""}
	noteSourcePort  = Rule{"source-port", "the UDP source port of the flow changes", ""}
	noteMigReq      = Rule{"migreq-change", "MigReq changes", ""}
	noteBelowNAK    = Rule{"below-nak", "a retransmission begins below the PSN of a sequence NAK, as after a timeout: the NAK was lost after the point of capture", ""}
	noteEarlyRNR    = Rule{"early-rnr", "one of several waits after RNR NAKs is short, as after a timeout: the NAK was lost after the point of capture, or did not stop the timer of the request, as in the Linux driver", ""}
	noteNoAnswer    = Rule{"no-answer", "no reply when the capture ends", ""}
	noteAckReq      = Rule{"ackreq", "AckReq in a packet that is not acknowledged", ""}
	noteOvertaken   = Rule{"nak-of-last", "a sequence NAK for the last packet that was sent, which acknowledges others: they arrived after it, and before the NAK was sent", ""}
	noteRNRNAK      = Rule{"rxe-nak-behind-rnr", "a sequence NAK for the PSN of the RNR NAK before it", ""}
	noteRetry7      = Rule{"rxe-retry-for-ever", "more than 7 retries: retry_cnt 7 is treated as no limit", ""}
	noteReadMiddle  = Rule{"rxe-read-middle", "a READ retransmitted from its middle is answered with the rest of the first response, MIDDLE or LAST", ""}
	noteSendNAK     = Rule{"rxe-send-too-long", "a SEND that is too long is refused with remote operational error instead of invalid request", ""}
	noteGSIAckReq   = Rule{"rxe-gsi-ackreq", "AckReq in a datagram to QP 1", ""}
	noteNoCNP       = Rule{"rxe-no-cnp", "packets marked CE cause no CNP", ""}
)

// notes returns all kinds of notes.
func notes() []Rule {
	return []Rule{
		noteCut, noteOffload, noteForeign, noteMany, noteNewStream, noteGap, noteMayFragment, noteSourcePort, noteMigReq, noteBelowNAK, noteEarlyRNR, noteNoAnswer, noteAckReq, noteOvertaken, noteRNRNAK, noteRetry7, noteReadMiddle, noteSendNAK, noteGSIAckReq, noteNoCNP,
	}
}
