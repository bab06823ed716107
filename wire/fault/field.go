package fault

import (
	"encoding/binary"

	"softroce/packet"
)

// A Field is a field of the BTH or of an extended header that a rule can set.
type Field uint8

const (
	FieldOpcode Field = iota
	FieldSolicited
	FieldMigReq
	FieldPad
	FieldTVer
	FieldPKey
	FieldFECN
	FieldBECN
	FieldQP
	FieldAckReq
	FieldPSN
	FieldSyndrome
	FieldMSN
	FieldVA
	FieldRKey
	FieldLength
	FieldImm
	FieldQKey
	numFields
)

// A fieldLayout says where a field lies: in a big-endian word of size bytes at an offset from the
// start of its header, bits wide, shifted left by shift.
type fieldLayout struct {
	name   string
	header packet.Headers // 0 is the BTH
	offset int
	size   int
	shift  int
	bits   int
}

var fieldLayouts = [numFields]fieldLayout{
	FieldOpcode:    {"opcode", 0, 0, 1, 0, 8},
	FieldSolicited: {"solicited", 0, 1, 1, 7, 1},
	FieldMigReq:    {"migreq", 0, 1, 1, 6, 1},
	FieldPad:       {"pad", 0, 1, 1, 4, 2},
	FieldTVer:      {"tver", 0, 1, 1, 0, 4},
	FieldPKey:      {"pkey", 0, 2, 2, 0, 16},
	FieldFECN:      {"fecn", 0, 4, 1, 7, 1},
	FieldBECN:      {"becn", 0, 4, 1, 6, 1},
	FieldQP:        {"qp", 0, 4, 4, 0, 24},
	FieldAckReq:    {"ackreq", 0, 8, 1, 7, 1},
	FieldPSN:       {"psn", 0, 8, 4, 0, 24},
	FieldSyndrome:  {"syndrome", packet.HasAETH, 0, 1, 0, 8},
	FieldMSN:       {"msn", packet.HasAETH, 0, 4, 0, 24},
	FieldVA:        {"va", packet.HasRETH | packet.HasAtomicETH, 0, 8, 0, 64},
	FieldRKey:      {"rkey", packet.HasRETH | packet.HasAtomicETH, 8, 4, 0, 32},
	FieldLength:    {"length", packet.HasRETH, 12, 4, 0, 32},
	FieldImm:       {"imm", packet.HasImmDt, 0, 4, 0, 32},
	FieldQKey:      {"qkey", packet.HasDETH, 0, 4, 0, 32},
}

// String returns the name of the field in the fault language.
func (f Field) String() string { return fieldLayouts[f].name }

// headerOrder lists the extended headers in their order behind the BTH, with their lengths.
var headerOrder = [...]struct {
	header packet.Headers
	len    int
}{
	{packet.HasXRCETH, packet.XRCETHLen}, {packet.HasDETH, packet.DETHLen}, {packet.HasFETH, packet.FETHLen},
	{packet.HasRETH, packet.RETHLen}, {packet.HasAtomicETH, packet.AtomicETHLen}, {packet.HasAETH, packet.AETHLen},
	{packet.HasAtomicAckETH, packet.AtomicAckETHLen}, {packet.HasImmDt, packet.ImmDtLen}, {packet.HasIETH, packet.IETHLen},
}

// in reports whether packets of an opcode have the field.
func (f Field) in(o packet.Opcode) bool {
	h := fieldLayouts[f].header
	return h == 0 || headerOffset(o, h) >= 0
}

// Put writes value to the field in head, which begins with the BTH, and reports whether head holds
// the field.
func (f Field) Put(head []byte, value uint64) bool {
	l := fieldLayouts[f]
	at := l.offset
	if len(head) == 0 {
		return false
	}
	if l.header != 0 {
		start := headerOffset(packet.Opcode(head[0]), l.header)
		if start < 0 {
			return false
		}
		at += start
	}
	if len(head) < at+l.size {
		return false
	}
	var word [8]byte
	copy(word[8-l.size:], head[at:at+l.size])
	mask := ^uint64(0) >> (64 - l.bits) << l.shift
	w := binary.BigEndian.Uint64(word[:])&^mask | value<<l.shift&mask
	binary.BigEndian.PutUint64(word[:], w)
	copy(head[at:], word[8-l.size:])
	return true
}

// headerOffset returns the offset from the BTH of the first of some extended headers in packets of
// an opcode, or -1 if they have none of them.
func headerOffset(o packet.Opcode, want packet.Headers) int {
	at, has := packet.BTHLen, o.Info().Headers
	for _, h := range headerOrder {
		if has&want&h.header != 0 {
			return at
		}
		if has&h.header != 0 {
			at += h.len
		}
	}
	return -1
}
