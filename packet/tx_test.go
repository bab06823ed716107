package packet

import (
	"bytes"
	"testing"
)

// packetsOf returns the headers of the packets of a run that begins with h.
func packetsOf(h Header, r Run) (heads [][]byte) {
	first := make([]byte, MaxHeaderLen)
	first = first[:h.Put(first)]
	for k := range r.Packets() {
		b := make([]byte, MaxHeaderLen)
		heads = append(heads, b[:r.Header(b, first, k)])
	}
	return heads
}

// A run is extended by the packets that it consists of, and by nothing else: no packet that differs
// in a bit.
func TestRunIsExtendedByItsPackets(t *testing.T) {
	for _, c := range []struct {
		opcode Opcode
		run    Run
		want   Run
	}{
		{WriteFirst, Run{Repeat: 3}, Run{Repeat: 3}},
		{WriteFirst, Run{Repeat: 1, Ends: true}, Run{Repeat: 1, Ends: true}},
		{WriteFirst, Run{Repeat: 15, Ends: true}, Run{Repeat: 15, Ends: true}},
		{WriteMiddle, Run{Repeat: 3}, Run{Repeat: 3}},
		{WriteMiddle, Run{Repeat: 3, Ends: true}, Run{Repeat: 3, Ends: true}},
		{SendMiddle, Run{Repeat: 3}, Run{Repeat: 3}},
		{SendMiddle, Run{Repeat: 3, Ends: true}, Run{Repeat: 2}},
		{SendFirst, Run{Repeat: 3}, Run{}},
		{WriteOnly, Run{Repeat: 3}, Run{}},
		{ReadResponseFirst, Run{Repeat: 3}, Run{}},
		{Opcode(UC) | WriteFirst, Run{Repeat: 3}, Run{}},
	} {
		h := Header{BTH: BTH{Opcode: c.opcode, PKey: DefaultPKey, MigReq: true, DestQP: 0x123456, PSN: PSNMask - 1}}
		heads := packetsOf(h, c.run)
		var r Run
		for _, next := range heads[1:] {
			for bit := range 8 * BTHLen {
				other := bytes.Clone(next)
				other[bit/8] ^= 0x80 >> (bit % 8)
				if before := r; r.Extend(heads[0], other) {
					t.Fatalf("%v %+v is extended by %x", c.opcode, before, other)
				}
			}
			if r.Extend(heads[0], next[:BTHLen-1]) {
				t.Fatalf("%v %+v is extended by a packet without a whole BTH", c.opcode, r)
			}
			r.Extend(heads[0], next)
		}
		if r != c.want {
			t.Errorf("the packets of %v %+v form %+v", c.opcode, c.run, r)
		}
	}
	for name, change := range map[string]func(*BTH){
		"pad":    func(h *BTH) { h.Pad = 1 },
		"AckReq": func(h *BTH) { h.AckReq = true },
	} {
		h := Header{BTH: BTH{Opcode: WriteFirst}}
		change(&h.BTH)
		heads := packetsOf(h, Run{Repeat: 1})
		if r := (Run{}); r.Extend(heads[0], heads[1]) {
			t.Errorf("a run begins with a packet with %s", name)
		}
	}
	if r := (Run{}); r.Extend(nil, make([]byte, BTHLen)) || r.Extend(make([]byte, BTHLen-1), make([]byte, BTHLen)) {
		t.Error("a run begins with a packet without a whole BTH")
	}
}
