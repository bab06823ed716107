package fault

import "softroce/packet"

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

// fieldInfos says what the fault language calls a field, which extended headers may contain it (0
// is the BTH), and how many bits it has. Where it lies is known to packet.Header: see set.
var fieldInfos = [numFields]struct {
	name   string
	header packet.Headers
	bits   int
}{
	FieldOpcode:    {"opcode", 0, 8},
	FieldSolicited: {"solicited", 0, 1},
	FieldMigReq:    {"migreq", 0, 1},
	FieldPad:       {"pad", 0, 2},
	FieldTVer:      {"tver", 0, 4},
	FieldPKey:      {"pkey", 0, 16},
	FieldFECN:      {"fecn", 0, 1},
	FieldBECN:      {"becn", 0, 1},
	FieldQP:        {"qp", 0, 24},
	FieldAckReq:    {"ackreq", 0, 1},
	FieldPSN:       {"psn", 0, 24},
	FieldSyndrome:  {"syndrome", packet.HasAETH, 8},
	FieldMSN:       {"msn", packet.HasAETH, 24},
	FieldVA:        {"va", packet.HasRETH | packet.HasAtomicETH, 64},
	FieldRKey:      {"rkey", packet.HasRETH | packet.HasAtomicETH, 32},
	FieldLength:    {"length", packet.HasRETH, 32},
	FieldImm:       {"imm", packet.HasImmDt, 32},
	FieldQKey:      {"qkey", packet.HasDETH, 32},
}

// set sets the field of a parsed header to the low bits of v.
func (f Field) set(h *packet.Header, v uint64) {
	switch f {
	case FieldOpcode:
		h.Opcode = packet.Opcode(v)
	case FieldSolicited:
		h.Solicited = v&1 != 0
	case FieldMigReq:
		h.MigReq = v&1 != 0
	case FieldPad:
		h.Pad = uint8(v)
	case FieldTVer:
		h.TVer = uint8(v)
	case FieldPKey:
		h.PKey = uint16(v)
	case FieldFECN:
		h.FECN = v&1 != 0
	case FieldBECN:
		h.BECN = v&1 != 0
	case FieldQP:
		h.DestQP = uint32(v)
	case FieldAckReq:
		h.AckReq = v&1 != 0
	case FieldPSN:
		h.PSN = uint32(v)
	case FieldSyndrome:
		h.AETH.Syndrome = packet.Syndrome(v)
	case FieldMSN:
		h.AETH.MSN = uint32(v)
	case FieldVA:
		h.RETH.VA, h.Atomic.VA = v, v
	case FieldRKey:
		h.RETH.RKey, h.Atomic.RKey = uint32(v), uint32(v)
	case FieldLength:
		h.RETH.Length = uint32(v)
	case FieldImm:
		h.Imm = uint32(v)
	case FieldQKey:
		h.DETH.QKey = uint32(v)
	}
}

// String returns the name of the field in the fault language.
func (f Field) String() string { return fieldInfos[f].name }

// in reports whether packets of an opcode have the field.
func (f Field) in(o packet.Opcode) bool {
	h := fieldInfos[f].header
	return h == 0 || o.Info().Headers&h != 0
}

// Put writes value to the field in head, which begins with the BTH, and reports whether packets
// with the opcode in head have the field. All other bits of head stay as they are.
func (f Field) Put(head []byte, value uint64) bool {
	if len(head) < packet.BTHLen || !f.in(packet.Opcode(head[0])) {
		return false
	}
	// A Set rule may have replaced the opcode by one with longer headers than head holds.
	var b [packet.MaxHeaderLen]byte
	copy(b[:], head)
	var h packet.Header
	h.Parse(b[:]) // for an unassigned opcode, only the BTH, which then contains the field
	f.set(&h, value)
	n := h.Put(b[:])
	if fieldInfos[f].header == 0 {
		n = packet.BTHLen // a new opcode leaves the extended headers as they are
	}
	copy(head, b[:n])
	return true
}
