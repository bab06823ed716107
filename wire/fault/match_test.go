package fault

import (
	"strings"
	"testing"

	"softroce/packet"
)

// What a rule cannot change does not count as matched: a packet of RoCE v1 has no ECN bits, and a
// short one lacks the bit that a long one has.
func TestRulesMatchWhatTheyCanChange(t *testing.T) {
	info := func(n packet.Network, length int) *PacketInfo {
		h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle}}
		var b [packet.MaxHeaderLen]byte
		p := &PacketInfo{Direction: Sent, Network: n, Len: length}
		p.Parse(b[:h.Put(b[:])], nil)
		return p
	}
	for _, c := range []struct {
		rule    string
		p       *PacketInfo
		matches bool
	}{
		{"mark", info(packet.RoCEv2, 100), true},
		{"mark", info(packet.RoCEv1, 100), false},
		{"drop", info(packet.RoCEv1, 100), true},
		{"corrupt", info(packet.RoCEv2, 12), true},
		{"corrupt bit 127", info(packet.RoCEv2, 12), true}, // the last one of the ICRC
		{"corrupt bit 128", info(packet.RoCEv2, 12), false},
		{"set va 1", info(packet.RoCEv2, 100), false},
	} {
		program, err := Parse(strings.NewReader(c.rule))
		if err != nil {
			t.Fatal(err)
		}
		e := NewEvaluator(program)
		var v Verdict
		e.Evaluate(1, c.p, &v, 10)
		if n := e.Counters()[0]; (n.Matched == 1 && n.Acted == 1) != c.matches || (n.Matched == 0) == c.matches {
			t.Errorf("%s: %+v of a packet of %d bytes, %v", c.rule, n, c.p.Len, c.p.Network)
		}
	}
}
