package fault

import (
	"testing"

	"softroce/packet"
)

func TestPutWritesOneField(t *testing.T) {
	h := packet.Header{
		BTH:  packet.BTH{Opcode: packet.ReadRequest, PKey: 0xffff, DestQP: 0x11, PSN: 7, AckReq: true},
		RETH: packet.RETH{VA: 0x1122334455667788, RKey: 9, Length: 64},
	}
	for _, c := range []struct {
		op    packet.Opcode
		field Field
		value uint64
		get   func(packet.Header) uint64
	}{
		{packet.ReadRequest, FieldVA, 0x42, func(h packet.Header) uint64 { return h.RETH.VA }},
		{packet.ReadRequest, FieldRKey, 0xfffffff1, func(h packet.Header) uint64 { return uint64(h.RETH.RKey) }},
		{packet.ReadRequest, FieldLength, 1 << 31, func(h packet.Header) uint64 { return uint64(h.RETH.Length) }},
		{packet.ReadRequest, FieldQP, 0xabcdef, func(h packet.Header) uint64 { return uint64(h.DestQP) }},
		{packet.ReadRequest, FieldTVer, 5, func(h packet.Header) uint64 { return uint64(h.TVer) }},
		{packet.Opcode(packet.XRC) | packet.WriteOnlyImm, FieldImm, 77, func(h packet.Header) uint64 { return uint64(h.Imm) }},
		{packet.Opcode(packet.XRC) | packet.CompareSwap, FieldRKey, 77, func(h packet.Header) uint64 { return uint64(h.Atomic.RKey) }},
		{packet.AtomicAcknowledge, FieldMSN, 0x654321, func(h packet.Header) uint64 { return uint64(h.AETH.MSN) }},
		{packet.Acknowledge, FieldSyndrome, 0x60, func(h packet.Header) uint64 { return uint64(h.AETH.Syndrome) }},
	} {
		g := h
		g.Opcode = c.op
		var b [packet.MaxHeaderLen]byte
		n := g.Put(b[:])
		before := b
		if !c.field.Put(b[:n], c.value) {
			t.Errorf("Put: %v has no %v", c.op, c.field)
		}
		var after packet.Header
		after.Parse(b[:n])
		if c.get(after) != c.value {
			t.Errorf("%v %v is %#x, want %#x", c.op, c.field, c.get(after), c.value)
		}
		if !c.field.Put(b[:n], c.get(g)) {
			t.Error("Put of the original value failed")
		}
		if b != before {
			t.Errorf("%v %v: another field changed: %x, was %x", c.op, c.field, b[:n], before[:n])
		}
	}
}
