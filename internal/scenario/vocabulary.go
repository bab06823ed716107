package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"softroce/internal/ib"
	"softroce/packet"
)

// A vocabulary maps the names that the script uses for a set of values, mostly those of libibverbs,
// to the values.
type vocabulary[T cmp.Ordered] struct {
	kind   string
	values map[string]T
}

func (v vocabulary[T]) parse(w string) (T, error) {
	if x, ok := v.values[w]; ok {
		return x, nil
	}
	var zero T
	return zero, fmt.Errorf("unknown %s %q (have: %s)", v.kind, w, list(slices.Sorted(maps.Keys(v.values))))
}

func (v vocabulary[T]) name(x T) string {
	for _, w := range slices.Sorted(maps.Keys(v.values)) {
		if v.values[w] == x {
			return w
		}
	}
	return fmt.Sprint(x)
}

var qpTypes = vocabulary[ib.QPType]{"queue pair type", map[string]ib.QPType{"RC": ib.QPTypeRC, "UC": ib.QPTypeUC, "UD": ib.QPTypeUD,
	"XRC_INI": ib.QPTypeXRCSend, "XRC_TGT": ib.QPTypeXRCRecv}}

var states = vocabulary[ib.QPState]{"queue pair state", map[string]ib.QPState{
	"RESET": ib.QPSReset, "INIT": ib.QPSInit, "RTR": ib.QPSRTR, "RTS": ib.QPSRTS,
	"SQD": ib.QPSSQD, "SQE": ib.QPSSQE, "ERR": ib.QPSErr,
}}

var statuses = vocabulary[ib.WCStatus]{"completion status", ib.WCStatuses}

func statusName(s ib.WCStatus) string { return statuses.name(s) }

// wcOpcodes are those of enum ibv_wc_opcode, without the prefix IBV_WC.
var wcOpcodes = vocabulary[ib.WCOpcode]{"completion opcode", map[string]ib.WCOpcode{
	"SEND": ib.WCSend, "RDMA_WRITE": ib.WCRDMAWrite, "RDMA_READ": ib.WCRDMARead,
	"COMP_SWAP": ib.WCCompSwap, "FETCH_ADD": ib.WCFetchAdd, "BIND_MW": ib.WCBindMW,
	"LOCAL_INV": ib.WCLocalInv, "RECV": ib.WCRecv, "RECV_RDMA_WITH_IMM": ib.WCRecvRDMAWithImm,
	"FLUSH": ib.WCFlush, "ATOMIC_WRITE": ib.WCAtomicWrite,
}}

// operations are those of enum ibv_wr_opcode, under the names of the script.
var operations = vocabulary[ib.WROpcode]{"operation", map[string]ib.WROpcode{
	"write": ib.WRRDMAWrite, "write_imm": ib.WRRDMAWriteWithImm, "send": ib.WRSend, "send_imm": ib.WRSendWithImm,
	"read": ib.WRRDMARead, "compare_swap": ib.WRAtomicCmpAndSwp, "fetch_add": ib.WRAtomicFetchAndAdd,
	"local_inv": ib.WRLocalInv, "bind_mw": ib.WRBindMW, "send_inv": ib.WRSendWithInv,
	"flush": ib.WRFlush, "atomic_write": ib.WRAtomicWrite,
}}

// eventType returns the event whose String is w.
func eventType(w string) (ib.EventType, error) {
	for t := ib.EventType(0); t <= ib.EventGIDChange; t++ {
		if t.String() == w {
			return t, nil
		}
	}
	return 0, fmt.Errorf("unknown event %q", w)
}

var accessFlags = vocabulary[ib.Access]{"access flag", map[string]ib.Access{
	"none": 0, "local_write": ib.AccessLocalWrite, "remote_write": ib.AccessRemoteWrite, "remote_read": ib.AccessRemoteRead,
	"remote_atomic": ib.AccessRemoteAtomic, "mw_bind": ib.AccessMWBind, "zero_based": ib.AccessZeroBased,
	"flush_global": ib.AccessFlushGlobal, "flush_persistent": ib.AccessFlushPersistent,
	"all": ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic,
}}

func parseAccess(w string) (a ib.Access, err error) {
	for f := range strings.SplitSeq(w, ",") {
		b, err := accessFlags.parse(f)
		if err != nil {
			return 0, err
		}
		a |= b
	}
	return a, nil
}

// nakNames are the NAK codes.
var nakNames = vocabulary[packet.Syndrome]{"NAK", map[string]packet.Syndrome{
	"sequence": packet.NAKSequence, "invalid_request": packet.NAKInvalidRequest, "remote_access": packet.NAKRemoteAccess,
	"remote_operational": packet.NAKRemoteOperational, "invalid_rd": packet.NAKInvalidRD,
}}

// parseSyndrome parses ack, ack:CODE, rnr, rnr:CODE, nak:NAME or a number. any means that the
// credit or timer code does not matter.
func parseSyndrome(w string) (s packet.Syndrome, any bool, err error) {
	class, rest, detailed := strings.Cut(w, ":")
	code := uint64(packet.CreditsUnlimited)
	if detailed && class != "nak" {
		if code, err = strconv.ParseUint(rest, 0, 5); err != nil {
			return 0, false, fmt.Errorf("%q: want a code from 0 to 31 after the colon", w)
		}
	}
	switch class {
	case "ack":
		return packet.SyndromeACK | packet.Syndrome(code), !detailed, nil
	case "rnr":
		if !detailed {
			code = 0
		}
		return packet.SyndromeRNR | packet.Syndrome(code), !detailed, nil
	case "nak":
		s, err = nakNames.parse(rest)
		return s, false, err
	}
	n, err := strconv.ParseUint(w, 0, 8)
	if err != nil {
		return 0, false, fmt.Errorf("unknown syndrome %q: want ack, ack:CREDITS, rnr, rnr:TIMER, nak:NAME or a number", w)
	}
	return packet.Syndrome(n), false, nil
}

// serviceName returns the prefix of the opcodes of a queue pair's transport service.
func serviceName(t ib.QPType) string {
	if t == ib.QPTypeXRCSend || t == ib.QPTypeXRCRecv {
		return "XRC"
	}
	return t.String()
}

// parseOpcode parses the name of an opcode, with or without the prefix of the service, or its
// number.
func parseOpcode(w string, t ib.QPType) (packet.Opcode, error) {
	if n, err := strconv.ParseUint(w, 0, 8); err == nil {
		return packet.Opcode(n), nil
	}
	for o := range 256 {
		in := packet.Opcode(o).Info()
		if in.Valid && (in.Name == w || in.Name == serviceName(t)+"_"+w) {
			return packet.Opcode(o), nil
		}
	}
	return 0, fmt.Errorf("unknown opcode %q of %v", w, t)
}
