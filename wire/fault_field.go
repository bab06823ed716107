package wire

import (
	"encoding/binary"

	"softroce/packet"
)

// A HeaderField is a field of BTH or an extended header that a rule can set.
type HeaderField uint8

const (
	FieldOpcode HeaderField = iota
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

// A fieldPlace is where a field lies: bits wide, shifted, in the word of size bytes at
// an offset from its header.
type fieldPlace struct {
	name   string
	header packet.Headers // 0 is the BTH
	at     int
	size   int
	shift  int
	bits   int
}

var fieldPlaces = [numFields]fieldPlace{
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

func (f HeaderField) String() string { return fieldPlaces[f].name }

// wireOrder is the order in which extended headers follow the BTH, with their lengths.
var wireOrder = [...]struct {
	header packet.Headers
	n      int
}{
	{packet.HasXRCETH, packet.XRCETHLen}, {packet.HasDETH, packet.DETHLen}, {packet.HasFETH, packet.FETHLen},
	{packet.HasRETH, packet.RETHLen}, {packet.HasAtomicETH, packet.AtomicETHLen}, {packet.HasAETH, packet.AETHLen},
	{packet.HasAtomicAckETH, packet.AtomicAckETHLen}, {packet.HasImmDt, packet.ImmDtLen}, {packet.HasIETH, packet.IETHLen},
}

// in reports whether packets of an opcode have the field.
func (f HeaderField) in(o packet.Opcode) bool {
	h := fieldPlaces[f].header
	return h == 0 || headerStart(o, h) >= 0
}

// set writes value to the field in head, which begins with the BTH, and reports whether
// head has that field.
func (f HeaderField) set(head []byte, value uint64) bool {
	p := fieldPlaces[f]
	at := p.at
	if len(head) == 0 {
		return false
	}
	if p.header != 0 {
		start := headerStart(packet.Opcode(head[0]), p.header)
		if start < 0 {
			return false
		}
		at += start
	}
	if len(head) < at+p.size {
		return false
	}
	var word [8]byte
	copy(word[8-p.size:], head[at:at+p.size])
	mask := ^uint64(0) >> (64 - p.bits) << p.shift
	w := binary.BigEndian.Uint64(word[:])&^mask | value<<p.shift&mask
	binary.BigEndian.PutUint64(word[:], w)
	copy(head[at:], word[8-p.size:])
	return true
}

// headerStart returns where the first of some extended headers begins in packets of an
// opcode, or -1.
func headerStart(o packet.Opcode, want packet.Headers) int {
	at, has := packet.BTHLen, o.Info().Headers
	for _, h := range wireOrder {
		if has&want&h.header != 0 {
			return at
		}
		if has&h.header != 0 {
			at += h.n
		}
	}
	return -1
}
