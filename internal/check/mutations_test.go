package check

import (
	"slices"
	"time"

	"softroce/capture"
	"softroce/cm"
	"softroce/internal/ib"
	"softroce/packet"
)

// A mutation makes a capture in which one NIC certainly violates one rule.
type mutation struct {
	name   string
	rule   Rule
	party  Party                       // who violates it; "" for the sender of the packet that is changed
	at     func(s *source, i int) bool // reports whether the i-th packet can be changed
	change func(t *recording, i int)   // changes it, or the packets around it
}

var mutations = []mutation{
	// Rules of a single packet.
	{"UDP length", ruleFrame, "", all(anyPacket), func(t *recording, i int) {
		t.rs[i].Data = slices.Clone(t.rs[i].Data)
		t.rs[i].Data[atUDP+5] ^= 4
	}},
	{"IP checksum", ruleIPChecksum, "", anyPacket, func(t *recording, i int) {
		t.rs[i].Data = slices.Clone(t.rs[i].Data)
		t.rs[i].Data[atIP+11] ^= 1
	}},
	{"UDP checksum", ruleUDPSum, "", anyPacket, rawByte(atUDP+6, func(byte) byte { return 0x12 })},
	{"source is a multicast address", ruleAddress, "", anyPacket, rawByte(atIP+12, func(byte) byte { return 224 })},
	{"a request to a multicast address", ruleAddress, "", all(calm, isRequest), rawByte(atIP+16, func(byte) byte { return 239 })},
	{"TTL 0", ruleTTL, "", anyPacket, rawByte(atIP+8, func(byte) byte { return 0 })},
	{"ICRC", ruleICRC, "", anyPacket, (*recording).damage},
	{"payload without a new ICRC", ruleICRC, "", hasPayload, func(t *recording, i int) {
		t.rs[i].Data = slices.Clone(t.rs[i].Data)
		t.rs[i].Data[len(t.rs[i].Data)-packet.ICRCLen-1] ^= 1
	}},
	{"unassigned opcode", ruleOpcode, "", calm, rawByte(atBTH, func(b byte) byte { return b&0xe0 | 0x1f })},
	{"headers are cut", ruleShort, "", func(s *source, i int) bool { return s.ps[i].Opcode.Info().HeaderLen > packet.BTHLen },
		func(t *recording, i int) { t.cut(i, packet.BTHLen) }},
	{"transport version 1", ruleTVer, "", anyPacket, rawByte(atBTH+1, func(b byte) byte { return b | 1 })},
	{"reserved bits beside AckReq", ruleReserved, "", anyPacket, rawByte(atBTH+8, func(b byte) byte { return b | 0x40 })},
	{"reserved bits beside FECN", ruleReserved, "", anyPacket, rawByte(atBTH+4, func(b byte) byte { return b | 1 })},
	{"reserved bits of XRCETH", ruleReserved, "", func(s *source, i int) bool { return s.ps[i].Opcode.Info().Headers&packet.HasXRCETH != 0 },
		edit(func(p *capture.Packet) { p.XRCResv = 1 })},
	{"pad is not zero", rulePad, "", func(s *source, i int) bool { return s.ps[i].Pad > 0 }, func(t *recording, i int) {
		t.raw(i, func(b []byte) { b[len(b)-packet.ICRCLen-1] = 7 })
	}},
	{"a First or Middle is short", ruleLength, "", all(calm, isRequest, position_(packet.First, packet.Middle)), short(4)},
	{"a First of 700 bytes", ruleLength, "", all(calm, isRequest, position_(packet.First), func(s *source, i int) bool { return len(s.ps[i].Payload) > 700 }),
		edit(func(p *capture.Packet) { p.Payload = p.Payload[:700] })},
	{"a Last is empty", ruleLength, "", all(calm, kind(packet.KindSend), position_(packet.Last)), edit(func(p *capture.Packet) { p.Payload = nil })},
	{"a Last is longer than the path MTU", ruleLength, "", all(calm, kind(packet.KindSend), position_(packet.Last)), edit(func(p *capture.Packet) { p.Payload = make([]byte, 4100) })},
	{"a READ response's Middle is short", ruleLength, "", all(calm, isResponse, position_(packet.First, packet.Middle)), short(4)},
	{"a path MTU of 700", ruleLength, PartyRequester, all(calm, kind(packet.KindSend), position_(packet.First), requestsBefore(0), not(requestsBefore(1)), onlySends), mtu700},
	{"an ACK with payload", rulePayload, "", all(calm, kind(packet.KindAck)), func(t *recording, i int) { t.cut(i, packet.BTHLen+packet.AETHLen+4) }},
	{"length of a RETH", ruleDMALength, "", all(calm, kind(packet.KindWrite), position_(packet.First, packet.Only)), edit(func(p *capture.Packet) { p.RETH.Length += 4 })},
	{"a WRITE's Last is short", ruleDMALength, "", all(calm, kind(packet.KindWrite), position_(packet.Last), func(s *source, i int) bool { return len(s.ps[i].Payload) > 4 }), short(4)},
	{"reserved syndrome", ruleSyndrome, "", all(calm, kind(packet.KindAck)), edit(func(p *capture.Packet) { p.AETH.Syndrome = 0x40 })},
	{"unassigned NAK code", ruleSyndrome, "", all(calm, kind(packet.KindAck)), edit(func(p *capture.Packet) { p.AETH.Syndrome = 0x6f })},
	{"a READ response with a NAK", ruleSyndrome, "", all(calm, isResponse, positive), edit(func(p *capture.Packet) { p.AETH.Syndrome = packet.NAKSequence })},
	{"solicited event", ruleSolicited, "", all(calm, func(s *source, i int) bool {
		in := s.ps[i].Opcode.Info()
		return !(in.Position.EndsMessage() && in.ConsumesRecv)
	}), edit(func(p *capture.Packet) { p.Solicited = true })},
	{"P_Key of one packet", rulePKey, "", calm, edit(func(p *capture.Packet) { p.PKey = 0x8001 })},
	{"P_Key 0", rulePKey, "", anyPacket, edit(func(p *capture.Packet) { p.PKey = 0x8000 })},
	{"P_Key of a direction", rulePKey, "-", all(calm, requestsBefore(0), not(requestsBefore(1))), func(t *recording, i int) {
		p := t.parse(i)
		for k := range t.rs {
			if q := t.parse(k); q.Src == p.Src && q.DestQP == p.DestQP {
				t.edit(k, func(p *capture.Packet) { p.PKey = 0x8001 })
			}
		}
	}},
	{"to QP 0", ruleQPN, "", anyPacket, edit(func(p *capture.Packet) { p.DestQP = 0 })},
	{"a connection's packet to QP 1", ruleQPN, "", calm, edit(func(p *capture.Packet) { p.DestQP = 1 })},
	{"Q_Key of QP 1", ruleQKey, "", toGSI, edit(func(p *capture.Packet) { p.DETH.QKey = 1 })},
	{"source QP of a datagram to QP 1", ruleGSI, "", toGSI, edit(func(p *capture.Packet) { p.DETH.SrcQP = 2 })},
	{"a MAD of 252 bytes", ruleGSI, "", toGSI, short(4)},
	{"VCRC", ruleVCRC, "", calm, func(t *recording, i int) {
		t.toInfiniBand(true)
		t.rs[i].Data[len(t.rs[i].Data)-1] ^= 1
	}},
	{"link version 1", ruleLRH, "", calm, editLink(func(a *packet.Addressing, _ *packet.Header) { a.LRH.LVer = 1 })},
	{"reserved bits of an LRH", ruleLRH, "", calm, editLink(func(a *packet.Addressing, _ *packet.Header) { a.LRH.Reserved5 = 1 })},
	{"source is a multicast LID", ruleAddress, "", calm, editLink(func(a *packet.Addressing, _ *packet.Header) { a.LRH.SLID = 0xc000 })},
	{"a packet to another QP than 0 on VL 15", ruleSMP, "", calm, editLink(func(a *packet.Addressing, _ *packet.Header) { a.LRH.VL = smpVL })},
	{"subnet management on VL 0", ruleSMP, "", service_(packet.UD), smp(func(a *packet.Addressing, _ *packet.Header, _ []byte) { a.LRH.VL = 0 })},
	{"subnet management from QP 1", ruleSMP, "", service_(packet.UD), smp(func(_ *packet.Addressing, h *packet.Header, _ []byte) { h.DETH.SrcQP = 1 })},
	{"another class to QP 0", ruleSMP, "", service_(packet.UD), smp(func(_ *packet.Addressing, _ *packet.Header, mad []byte) { mad[1] = ib.ClassSubnAdm })},
	{"subnet management to QP 1", ruleSMP, "", service_(packet.UD), smp(func(a *packet.Addressing, h *packet.Header, _ []byte) {
		a.LRH.VL, h.DestQP, h.DETH = 0, 1, packet.DETH{QKey: cm.GSIQKey, SrcQP: 1}
	})},
	{"a CNP without BECN", ruleCNP, "", isAck, func(t *recording, i int) { t.cnp(i, false) }},
	{"two CNPs at once", ruleCNPPace, "", isAck, func(t *recording, i int) {
		t.cnp(i, true)
		t.cnp(i, true)
	}},
	{"BECN in a request", ruleBECN, "", all(calm, isRequest), edit(func(p *capture.Packet) { p.BECN = true })},
	{"another service", ruleService, "", all(calm, isRequest, requestsBefore(1), sendOrWrite, service_(packet.RC)), opcode(func(o packet.Opcode) packet.Opcode { return o | packet.Opcode(packet.UC) })},
	{"an ACK of another service", ruleService, "", all(calm, manyReplies(2), service_(packet.RC), kind(packet.KindAck)), opcode(func(o packet.Opcode) packet.Opcode { return o | packet.Opcode(packet.XRC) })},
	{"a datagram to a connected QP", ruleService, "", all(midStream, service_(packet.RC), kind(packet.KindSend), position_(packet.Only)), edit(func(p *capture.Packet) {
		p.Opcode, p.DETH = udSend, packet.DETH{QKey: 0x11111111, SrcQP: 77}
	})},
	{"a request to another QP", ruleStray, "", all(midStream), edit(func(p *capture.Packet) { p.DestQP ^= 0x40000 })},
	{"a reply to another QP", ruleStray, "", all(calm, not(isRequest), repliesBefore(1), repliesAfter(1)), edit(func(p *capture.Packet) { p.DestQP ^= 0x40000 })},
	{"a request from another host", ruleStray, "", midStream, rawByte(atIP+15, func(b byte) byte { return b ^ 0x20 })},
	{"a reply from another host", ruleStray, "", all(calm, not(isRequest), repliesBefore(1), repliesAfter(1)), rawByte(atIP+15, func(b byte) byte { return b ^ 0x20 })},
	{"the source is the destination", ruleStray, "", midStream, func(t *recording, i int) {
		t.raw(i, func(b []byte) { copy(b[atIP+12:atIP+16], b[atIP+16:atIP+20]) })
	}},

	// Rules of a requester.
	{"First to Only", ruleSequence, PartyRequester, all(calm, isRequest, kind(packet.KindSend), position_(packet.First)), operation(packet.SendOnly)},
	{"First to Middle", ruleSequence, PartyRequester, all(midStream, kind(packet.KindSend), position_(packet.First)), operation(packet.SendMiddle)},
	{"Middle to Last", ruleSequence, PartyRequester, all(calm, isRequest, kind(packet.KindSend), position_(packet.Middle)), operation(packet.SendLast)},
	{"Last to Middle", ruleSequence, PartyRequester, all(midStream, kind(packet.KindSend), position_(packet.Last), func(s *source, i int) bool {
		mtu, _ := s.flows[i].PathMTU().Value()
		return len(s.ps[i].Payload) == mtu
	}), operation(packet.SendMiddle)},
	{"Only to Last", ruleSequence, PartyRequester, all(midStream, kind(packet.KindSend), position_(packet.Only), hasPayload), operation(packet.SendLast)},
	{"SEND to WRITE inside a message", ruleSequence, PartyRequester, all(calm, isRequest, kind(packet.KindSend), position_(packet.Middle)), operation(packet.WriteMiddle)},
	{"UC: Middle to Last", ruleSequence, PartyRequester, all(calmUC, kind(packet.KindSend), position_(packet.Middle)), operation(packet.SendLast)},
	{"PSN one up", rulePSNOrder, PartyRequester, all(midStream, not(isRead)), psn(1)},
	{"PSN one down", rulePSNOrder, PartyRequester, all(midStream, not(isRead)), psn(-1)},
	{"PSN 1000 up", rulePSNOrder, PartyRequester, midStream, psn(1000)},
	{"PSN 1000 down", rulePSNOrder, PartyRequester, midStream, psn(-1000)},
	{"PSN far off", rulePSNOrder, PartyRequester, midStream, psn(1 << 22)},
	{"two requests are swapped", rulePSNOrder, PartyRequester, all(midStream, followedBy(isRequest), not(isRead), followedBy(not(isRead))), numbered(swapNext)},
	{"a request is left out", rulePSNOrder, PartyRequester, all(midStream, not(isRead), followedBy(isRequest)), numbered(func(t *recording, i int) { t.drop(i) })},
	{"a request in the PSNs of a READ", rulePSNOverlap, PartyRequester, all(calm, isRead, func(s *source, i int) bool {
		mtu, shown := s.flows[i].PathMTU().Value()
		return shown && int(s.ps[i].RETH.Length) > mtu
	}), again(0, func(p *capture.Packet) {
		p.Opcode, p.PSN = packet.Opcode(p.Opcode.Service())|packet.SendOnly, packet.PSNAdd(p.PSN, 1)
	})},
	{"payload of a retransmission", ruleSame, PartyRequester, all(sentAgain, hasPayload), edit(func(p *capture.Packet) {
		p.Payload = slices.Clone(p.Payload)
		p.Payload[len(p.Payload)/2] ^= 1
	})},
	{"operands of a retransmitted atomic", ruleSame, PartyRequester, all(sentAgain, isAtomic), edit(func(p *capture.Packet) { p.Atomic.SwapAdd++ })},
	{"address of a retransmission", ruleSame, PartyRequester, all(sentAgain, kind(packet.KindWrite), position_(packet.First, packet.Only)), edit(func(p *capture.Packet) { p.RETH.VA += 8 })},
	{"the retransmission after a NAK leaves out its PSN", ruleResendPSN, PartyRequester, all(sentAgain, answersNAK, followedBy(sentAgain), lastTransmission, answered), func(t *recording, i int) { t.drop(i) }},
	{"retransmission of what a NAK acknowledges", ruleResendAcked, PartyRequester, packetOf("loss-write-resp", 45), func(t *recording, i int) {
		t.insert(45, t.rs[28-1])
		t.insert(46, t.rs[29-1])
		t.shift(45, 67*time.Millisecond)
		t.number()
	}},
	{"waits for RNR NAKs are short", ruleRNRWait, PartyRequester, packetOf("vp-rnr", 1), func(t *recording, _ int) {
		for i := 1; i < 9; i++ {
			t.shift(t.nth(sendOnly, i), -20*time.Millisecond)
		}
	}},
	{"retransmission at once", ruleRetryInterval, PartyRequester, all(midStream, sendOrWrite, position_(packet.Only)), again(0, nil)},
	{"UC: retransmission", ruleUCRepeat, PartyRequester, all(calmUC, requestsBefore(4)), again(20*time.Microsecond, nil)},
	{"a READ or atomic without response", ruleUnanswered, PartyRequester, all(calm, kind(packet.KindRead, packet.KindCompareSwap, packet.KindFetchAdd), requestsBefore(1), noACKOfIt, goesOn(3)), removeResponse},

	{"a REP grants one READ less", ruleReads, PartyRequester, grantsReads, regrant(-1)},
	{"a packet of a READ response is not in the capture", ruleUnanswered, PartyRequester, all(calm, isResponse, position_(packet.Middle), repliesBefore(2), repliesAfter(1), goesOn(3)), func(t *recording, i int) { t.drop(i) }},

	// Rules of a responder.
	{"ACK of a PSN that was not sent", ruleAckUnseen, PartyResponder, all(calm, isAck, manyReplies(3)), psn(1000)},
	{"after a REP: the first PSN", rulePSNOrder, PartyRequester, all(calm, isFixture("cm-"), isRequest, not(requestsBefore(1)), requestsAfter(1), answered), psn(5)},
	{"after a REP: the first request is not in the capture", ruleAckUnseen, PartyResponder, all(calm, isFixture("cm-"), isRequest, not(requestsBefore(1)), answered, requestsAfter(1)), func(t *recording, i int) { t.drop(i) }},
	{"after a REP: MSN of the first reply", ruleMSN, PartyResponder, all(calm, isFixture("cm-"), isAck, not(repliesBefore(1))), msn(7)},
	{"PSN of the first ACK", ruleAckUnseen, PartyResponder, all(calm, isAck, not(repliesBefore(1)), manyReplies(4)), psn(1000)},
	{"a request is not in the capture", ruleAckUnseen, PartyResponder, all(midStream, not(isRead), repliesBefore(1), answered), func(t *recording, i int) { t.drop(i) }},
	{"ACK of a PSN before", ruleAckOrder, PartyResponder, all(calm, isAck, repliesBefore(4), repliesAfter(1), previousWithin(3)), psn(-3)},
	{"an ACK is repeated later", ruleAckOrder, PartyResponder, all(calm, isAck, repliesBefore(4), previousAck), func(t *recording, i int) {
		for k := i - 1; k >= 0; k-- {
			if p, q := t.parse(k), t.parse(i); p.Src == q.Src && p.DestQP == q.DestQP && p.Opcode == q.Opcode && p.PSN != q.PSN {
				t.insert(i+1, t.rs[k])
				t.number()
				return
			}
		}
	}},
	{"an ACK for a READ", ruleAnswerKind, PartyResponder, all(calm, isResponse, position_(packet.Only), nothingElseToAck), operation(packet.Acknowledge)},
	{"an ACK for an atomic", ruleAnswerKind, PartyResponder, all(calm, kind(packet.KindAtomicAck), nothingElseToAck), operation(packet.Acknowledge)},
	{"a READ response for an atomic", ruleAnswerKind, PartyResponder, all(calm, kind(packet.KindAtomicAck)), operation(packet.ReadResponseOnly)},
	{"an atomic's response for a READ", ruleAnswerKind, PartyResponder, all(calm, isResponse, position_(packet.Only)), operation(packet.AtomicAcknowledge)},
	{"a READ response for a SEND or WRITE", ruleAnswerKind, PartyResponder, all(calm, isAck), operation(packet.ReadResponseOnly)},
	{"MSN one up", ruleMSN, PartyResponder, all(calm, positive, exactMSN, manyReplies(4)), msn(1)},
	{"MSN one down", ruleMSN, PartyResponder, all(calm, positive, exactMSN, manyReplies(4)), msn(-1)},
	{"MSN far off", ruleMSN, PartyResponder, all(calm, positive, exactMSN, manyReplies(4)), msn(100000)},
	{"MSN of the first reply", ruleMSN, PartyResponder, all(calm, positive, exactMSN, not(repliesBefore(1)), manyReplies(4)), msn(3)},
	{"MSN from here on", ruleMSN, PartyResponder, all(calm, positive, onlyACKs, repliesBefore(3), repliesAfter(3)), func(t *recording, i int) {
		p := t.parse(i)
		for k := i; k < len(t.rs); k++ {
			if q := t.parse(k); q.Src == p.Src && q.DestQP == p.DestQP && q.Opcode.Info().Headers&packet.HasAETH != 0 {
				msn(1)(t, k)
			}
		}
	}},
	{"a sequence NAK again", ruleNAKOnce, PartyResponder, all(syndrome(packet.NAKSequence), noRNR), again(0, nil)},
	{"NAK of an acknowledged PSN", ruleNAKCause, PartyResponder, all(calm, isAck, repliesBefore(2), manyReplies(4)), again(0, func(p *capture.Packet) {
		p.AETH.Syndrome = packet.NAKSequence
	})},
	{"PSN of a sequence NAK one down", ruleNAKCause, PartyResponder, all(syndrome(packet.NAKSequence), noRNR, repliesBefore(1), repliesAfter(1), wholeUntilResend), psn(-1)},
	{"RNR NAK for a WRITE", ruleRNRTarget, PartyResponder, all(calm, isAck, answersWrite), func(t *recording, i int) {
		t.insert(i, t.rs[i])
		t.edit(i, func(p *capture.Packet) {
			p.AETH.Syndrome, p.AETH.MSN = packet.SyndromeRNR|1, packet.PSNAdd(p.AETH.MSN, -1)
		})
		t.number()
	}},
	{"RNR NAK again", ruleRNROnce, PartyResponder, all(rnrNAK, repliesBefore(1)), again(0, nil)},
	{"reply after a fatal NAK", ruleAfterFatal, PartyResponder, all(calm, isAck, repliesAfter(1)), edit(func(p *capture.Packet) {
		p.AETH.Syndrome = packet.NAKRemoteAccess
	})},
	{"READ response: Middle to Last", ruleReadOpcode, PartyResponder, all(calm, isResponse, position_(packet.Middle), repliesBefore(2)), edit(func(p *capture.Packet) {
		p.Opcode, p.AETH.Syndrome = packet.Opcode(p.Opcode.Service())|packet.ReadResponseLast, packet.CreditsUnlimited
	})},
	{"READ response: First to Only", ruleReadOpcode, PartyResponder, all(calm, isResponse, position_(packet.First)), operation(packet.ReadResponseOnly)},
	{"READ response: Last is short", ruleReadLength, PartyResponder, all(calm, isResponse, position_(packet.Last), func(s *source, i int) bool { return len(s.ps[i].Payload) > 4 }), short(4)},
	{"READ response: Only is short", ruleReadLength, PartyResponder, all(calm, isResponse, position_(packet.Only), func(s *source, i int) bool { return len(s.ps[i].Payload) > 4 }), short(4)},
	{"READ responses are swapped", ruleReadOrder, PartyResponder, all(calm, isResponse, position_(packet.Middle), followedBy(all(isResponse, position_(packet.Middle)))), numbered(swapNext)},
	{"a response again", ruleReplyRepeat, PartyResponder, all(calm, kind(packet.KindAtomicAck, packet.KindReadResponse), position_(packet.Only)), again(0, nil)},
	{"another result of a repeated atomic", ruleAtomicReplay, PartyResponder, resultAgain, edit(func(p *capture.Packet) { p.OrigData++ })},
	{"an unaligned atomic", ruleAtomicAlign, PartyResponder, all(calm, isAtomic, answered), edit(func(p *capture.Packet) { p.Atomic.VA++ })},
}
