package check

import (
	"maps"
	"slices"
	"testing"
	"time"

	"softroce/capture"
	"softroce/packet"
)

// Opcodes of RC and UD, as the fixtures have them.
const (
	sendFirst  = packet.Opcode(packet.SendFirst)
	sendMiddle = packet.Opcode(packet.SendMiddle)
	sendLast   = packet.Opcode(packet.SendLast)
	sendOnly   = packet.Opcode(packet.SendOnly)
	writeFirst = packet.Opcode(packet.WriteFirst)
	writeOnly  = packet.Opcode(packet.WriteOnly)
	readReq    = packet.Opcode(packet.ReadRequest)
	readMiddle = packet.Opcode(packet.ReadResponseMid)
	readLast   = packet.Opcode(packet.ReadResponseLast)
	readOnly   = packet.Opcode(packet.ReadResponseOnly)
	ack        = packet.Opcode(packet.Acknowledge)
	atomicAck  = packet.Opcode(packet.AtomicAcknowledge)
	fetchAdd   = packet.Opcode(packet.FetchAdd)
	udSend     = packet.Opcode(packet.UD) | packet.SendOnly
	ucMiddle   = packet.Opcode(packet.UC) | packet.SendMiddle
)

// broken returns a capture for each rule, made from a fixture, that breaks this rule and no other.
var broken = []struct {
	rule   Rule
	file   string
	breaks func(t *recording)
}{
	{ruleFrame, "pp-ud", func(t *recording) { t.rs[0].Data = slices.Clone(t.rs[0].Data); t.rs[0].Data[atUDP+5] ^= 4 }},
	{ruleIPChecksum, "pp-ud", func(t *recording) { t.rs[0].Data = slices.Clone(t.rs[0].Data); t.rs[0].Data[atIP+10] ^= 1 }},
	{ruleUDPSum, "pp-ud", func(t *recording) { t.raw(0, func(b []byte) { b[atUDP+6] = 0x12 }) }},
	{ruleAddress, "pp-ud", func(t *recording) { t.raw(0, func(b []byte) { b[atIP+12] = 224 }) }},
	{ruleICRC, "pp-ud", func(t *recording) { t.damage(0) }},
	{ruleICRC, "cm-write-bw-tos", func(t *recording) { t.damage(t.nth(writeOnly, 0)) }},
	{ruleICRC, "cm-rping", func(t *recording) { t.damage(t.nth(readReq, 0)) }},
	{ruleICRC, "vp-rnr-multi", func(t *recording) { t.damage(40) }}, // one that is sent again after an RNR NAK
	{ruleOpcode, "pp-ud", func(t *recording) { t.raw(0, func(b []byte) { b[atBTH] = 0x66 }) }},
	{ruleShort, "pp-ud", func(t *recording) { t.cut(0, packet.BTHLen+4) }},
	{ruleTVer, "pp-ud", func(t *recording) { t.raw(0, func(b []byte) { b[atBTH+1] |= 1 }) }},
	{ruleReserved, "pp-ud", func(t *recording) { t.raw(0, func(b []byte) { b[atBTH+8] |= 0x40 }) }},
	{rulePad, "write-lat-1b", func(t *recording) {
		t.raw(t.nth(writeOnly, 0), func(b []byte) { b[len(b)-packet.ICRCLen-1] = 7 })
	}},
	{ruleLength, "pp-rc-mtu1024", func(t *recording) {
		t.edit(t.nth(sendFirst, 1), func(p *capture.Packet) { p.Payload = p.Payload[:1020] })
	}},
	{rulePayload, "pp-rc-mtu1024", func(t *recording) { t.cut(t.nth(ack, 1), packet.BTHLen+packet.AETHLen+4) }},
	{ruleDMALength, "write-bw-rc", func(t *recording) {
		t.edit(t.nth(writeFirst, 1), func(p *capture.Packet) { p.RETH.Length += 4 })
	}},
	{ruleSyndrome, "pp-rc-mtu1024", func(t *recording) {
		t.edit(t.nth(ack, 1), func(p *capture.Packet) { p.AETH.Syndrome = 0x40 })
	}},
	{ruleSolicited, "pp-rc-mtu1024", func(t *recording) {
		t.edit(t.nth(sendFirst, 1), func(p *capture.Packet) { p.Solicited = true })
	}},
	{rulePKey, "pp-rc-mtu1024", func(t *recording) {
		t.edit(t.nth(ack, 1), func(p *capture.Packet) { p.PKey = 0x8001 })
	}},
	{ruleQPN, "pp-ud", func(t *recording) { t.edit(0, func(p *capture.Packet) { p.DestQP = 0 }) }},
	{ruleQPN, "cm-write-bw-tos", func(t *recording) {
		t.edit(t.nth(writeOnly, 0), func(p *capture.Packet) { p.DestQP = 0 })
	}},
	{ruleTTL, "pp-ud", func(t *recording) { t.raw(0, func(b []byte) { b[atIP+8] = 0 }) }},
	{ruleGSI, "cm-rping", func(t *recording) { t.edit(0, func(p *capture.Packet) { p.DETH.SrcQP = 2 }) }},
	{ruleVCRC, "pp-ud", func(t *recording) {
		t.toInfiniBand(false)
		t.rs[0].Data[len(t.rs[0].Data)-1] ^= 1
	}},
	{ruleLRH, "pp-ud", func(t *recording) {
		editLink(func(a *packet.Addressing, _ *packet.Header) { a.LRH.LVer = 1 })(t, 0)
	}},
	{ruleSMP, "pp-ud", func(t *recording) {
		smp(func(a *packet.Addressing, _ *packet.Header, _ []byte) { a.LRH.VL = 0 })(t, 0)
	}},
	{ruleBECN, "write-lat-2b", func(t *recording) { t.edit(t.nth(writeOnly, 2), func(p *capture.Packet) { p.BECN = true }) }},
	{ruleStray, "write-lat-2b", func(t *recording) { t.edit(t.nth(writeOnly, 2), func(p *capture.Packet) { p.DestQP++ }) }},
	{ruleService, "write-lat-2b", func(t *recording) {
		t.edit(t.nth(writeOnly, 4), func(p *capture.Packet) { p.Opcode |= packet.Opcode(packet.UC) })
	}},
	{rulePSNOrder, "write-lat-2b", func(t *recording) {
		t.edit(t.nth(writeOnly, 4), func(p *capture.Packet) { p.PSN += 1000 })
		t.number()
	}},
	{ruleQKey, "cm-rping", func(t *recording) { t.edit(0, func(p *capture.Packet) { p.DETH.QKey = 1 }) }},
	{ruleCNP, "write-lat-2b", func(t *recording) { t.cnp(t.nth(ack, 1), false) }},
	{ruleCNPPace, "write-lat-2b", func(t *recording) {
		i := t.nth(ack, 1)
		t.cnp(i, true)
		t.cnp(i, true)
	}},

	{ruleSequence, "pp-rc-mtu1024", func(t *recording) {
		t.edit(t.nth(sendLast, 1), func(p *capture.Packet) { p.Opcode = sendOnly })
	}},
	{rulePSNOverlap, "read-bw", func(t *recording) {
		i := t.nth(readReq, 2)
		t.insert(i+1, t.rs[i])
		t.edit(i+1, func(p *capture.Packet) { p.Opcode, p.PSN = sendOnly, p.PSN+1 })
		t.number()
	}},
	{ruleSame, "loss-write-resp", func(t *recording) { // packet 42 retransmits 32
		t.edit(41, func(p *capture.Packet) { p.RETH.VA += 8 })
	}},
	{ruleResendPSN, "loss-write-resp", func(t *recording) { t.drop(39) }}, // packet 40 has the PSN of the NAK 39
	{ruleResendAcked, "loss-write-resp", func(t *recording) {
		t.insert(45, t.rs[28-1])
		t.insert(46, t.rs[29-1])
		t.shift(45, 67*time.Millisecond)
		t.number()
	}},
	{ruleRetryInterval, "write-lat-2b", func(t *recording) {
		i := t.nth(writeOnly, 2)
		t.insert(i+1, t.rs[i])
		t.number()
	}},
	{ruleRNRWait, "vp-rnr", func(t *recording) {
		for i := 1; i < 9; i++ {
			t.shift(t.nth(sendOnly, i), -20*time.Millisecond)
		}
	}},
	{ruleUnanswered, "vp-all-ops", func(t *recording) {
		i := t.nth(ack, 0)
		t.drop(i)
		t.shift(i, time.Minute)
	}},
	{ruleReads, "cm-rping", func(t *recording) { regrant(-1)(t, 1) }},
	{ruleUCRepeat, "pp-uc-mtu1024", func(t *recording) {
		i := t.nth(ucMiddle, 1)
		t.insert(i+1, t.rs[i])
		t.number()
	}},

	{ruleAckUnseen, "pp-rc-mtu1024", func(t *recording) { t.drop(t.nth(sendMiddle, 10)) }},
	{ruleAckOrder, "write-bw-rc", func(t *recording) {
		t.insert(len(t.rs), t.rs[t.nth(ack, 0)])
		t.number()
	}},
	{ruleAnswerKind, "read-lat-5b", func(t *recording) {
		t.edit(t.nth(readOnly, 2), func(p *capture.Packet) { p.Opcode, p.Payload = atomicAck, nil })
	}},
	{ruleMSN, "pp-rc-mtu1024", func(t *recording) { t.edit(t.nth(ack, 2), func(p *capture.Packet) { p.AETH.MSN++ }) }},
	{ruleNAKOnce, "loss-write-resp", func(t *recording) { // packet 39 is the NAK
		t.insert(39, t.rs[38])
		t.number()
	}},
	{ruleNAKCause, "write-lat-2b", func(t *recording) {
		i := t.nth(ack, 9)
		t.insert(i+1, t.rs[i])
		t.edit(i+1, func(p *capture.Packet) { p.AETH.Syndrome, p.PSN = packet.NAKSequence, p.PSN+1 })
		t.number()
	}},
	{ruleRNRTarget, "write-lat-2b", func(t *recording) {
		i := t.nth(ack, 4)
		t.insert(i, t.rs[i])
		t.edit(i, func(p *capture.Packet) { p.AETH.Syndrome, p.AETH.MSN = packet.SyndromeRNR, p.AETH.MSN-1 })
		t.number()
	}},
	{ruleRNROnce, "vp-rnr", func(t *recording) {
		i := t.nth(ack, 2)
		t.insert(i+1, t.rs[i])
		t.number()
	}},
	{ruleAfterFatal, "vp-nak-badwrite", func(t *recording) {
		i := t.nth(ack, 0)
		t.insert(i+1, t.rs[i])
		t.edit(i+1, func(p *capture.Packet) { p.AETH.Syndrome = 0x1f })
		t.number()
	}},
	{ruleReadOpcode, "read-bw", func(t *recording) {
		t.edit(t.nth(readMiddle, 1), func(p *capture.Packet) { p.Opcode, p.AETH.Syndrome = readLast, 0x1f })
	}},
	{ruleReadLength, "read-bw", func(t *recording) {
		t.edit(t.nth(readLast, 1), func(p *capture.Packet) { p.Payload = p.Payload[:len(p.Payload)-4] })
	}},
	{ruleReadOrder, "read-bw", func(t *recording) {
		i := t.nth(readMiddle, 1)
		t.swap(i, i+1)
		t.number()
	}},
	{ruleReplyRepeat, "atomic-faa", func(t *recording) {
		i := t.nth(atomicAck, 1)
		t.insert(i+1, t.rs[i])
		t.number()
	}},
	{ruleAtomicReplay, "loss-atomic", func(t *recording) { // packet 27 answers 18, as 4 answered 2
		t.edit(26, func(p *capture.Packet) { p.OrigData += 8 })
	}},
	{ruleAtomicAlign, "atomic-faa", func(t *recording) {
		t.edit(t.nth(fetchAdd, 1), func(p *capture.Packet) { p.Atomic.VA++ })
	}},
}

// cnp inserts a CNP from the sender of the i-th packet, to the same QP, before it.
func (t *recording) cnp(i int, becn bool) {
	t.insert(i, t.rs[i])
	t.edit(i, func(p *capture.Packet) {
		p.Header = packet.Header{BTH: packet.BTH{Opcode: packet.OpcodeCNP, PKey: p.PKey, DestQP: p.DestQP, BECN: becn}}
		p.Payload = make([]byte, cnpLen)
	})
}

func TestEveryRuleIsReported(t *testing.T) {
	covered := map[string]bool{}
	for _, b := range broken {
		covered[b.rule.ID] = true
		t.Run(b.rule.ID, func(t *testing.T) {
			tp := load(t, b.file)
			if r := tp.judge(); r.Total != 0 {
				t.Fatalf("%s is not whole:\n%v", b.file, r)
			}
			b.breaks(tp)
			r := tp.judge()
			if got := slices.Sorted(maps.Keys(r.ByRule)); !slices.Equal(got, []string{b.rule.ID}) {
				t.Errorf("%v are broken\n%v", got, r)
			}
		})
	}
	for _, r := range Rules() {
		if !covered[r.ID] {
			t.Errorf("no capture breaks %s", r.ID)
		}
	}
}

// A change of a packet without a new ICRC is reported as one wrong ICRC.
func TestChangedPacketHasWrongICRC(t *testing.T) {
	tp := load(t, "pp-ud")
	for at := atBTH; at < len(tp.rs[0].Data); at++ {
		if at == atBTH+4 {
			continue // FECN, BECN and reserved: not covered
		}
		tp.rs[0].Data[at] ^= 0x10
		if r := tp.judge(); r.ByRule["icrc"] != 1 || len(r.ByRule) != 1 {
			t.Fatalf("byte %d: %v", at, r.ByRule)
		}
		tp.rs[0].Data[at] ^= 0x10
	}
}

// The last of four packets overtook the others, which arrived before the responder sent its NAK:
// the NAK has the PSN of the last packet, and nothing follows it. If the others were acknowledged
// before, they cannot have been overtaken.
func TestNAKOfLastPacketMayFollowReordering(t *testing.T) {
	nakOfLast := func(p *capture.Packet) { p.AETH.Syndrome, p.AETH.MSN = packet.NAKSequence, p.AETH.MSN-1 }
	for _, acknowledged := range []bool{false, true} {
		rec := load(t, "pp-rc-mtu1024")
		i := rec.nth(ack, 2)
		last := rec.parse(i).PSN
		rec.edit(i, nakOfLast)
		if acknowledged {
			rec.insert(i, rec.rs[i])
			rec.edit(i, func(p *capture.Packet) { p.AETH.Syndrome, p.PSN = 0x1f, packet.PSNAdd(last, -1) })
		}
		rec.number()
		r := rec.judge()
		noted := slices.ContainsFunc(r.Notes, func(n Note) bool { return n.Kind == noteOvertaken.ID })
		if caused := r.ByRule[ruleNAKCause.ID] == 0; caused == acknowledged || noted == acknowledged {
			t.Errorf("others acknowledged: %v\n%v", acknowledged, r)
		}
	}
}
