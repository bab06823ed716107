package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"softroce/mrtable"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
)

// A vocabulary is the words of a set of values, as the verbs name them.
type vocabulary[T cmp.Ordered] struct {
	kind   string
	values map[string]T
}

func (v vocabulary[T]) parse(w string) (T, error) {
	if x, ok := v.values[w]; ok {
		return x, nil
	}
	var zero T
	return zero, fmt.Errorf("%q is no %s; there are %s", w, v.kind, list(slices.Sorted(maps.Keys(v.values))))
}

func (v vocabulary[T]) name(x T) string {
	for _, w := range slices.Sorted(maps.Keys(v.values)) {
		if v.values[w] == x {
			return w
		}
	}
	return fmt.Sprint(x)
}

var qpTypes = vocabulary[nic.QPType]{"queue pair type", map[string]nic.QPType{"RC": nic.TypeRC, "UC": nic.TypeUC, "UD": nic.TypeUD,
	"XRC_INI": nic.TypeXRCSend, "XRC_TGT": nic.TypeXRCRecv}}

var states = vocabulary[transport.State]{"queue pair state", map[string]transport.State{
	"RESET": transport.Reset, "INIT": transport.Init, "RTR": transport.RTR, "RTS": transport.RTS,
	"SQD": transport.SQD, "SQE": transport.SQE, "ERR": transport.Error,
}}

// statuses are those of enum ibv_wc_status, without IBV_WC.
var statuses = vocabulary[transport.Status]{"completion status", map[string]transport.Status{
	"SUCCESS": transport.Success, "LOC_LEN_ERR": transport.LocLenErr, "LOC_QP_OP_ERR": transport.LocQPOpErr,
	"LOC_PROT_ERR": transport.LocProtErr, "WR_FLUSH_ERR": transport.WRFlushErr, "MW_BIND_ERR": transport.MWBindErr,
	"BAD_RESP_ERR": transport.BadRespErr, "LOC_ACCESS_ERR": transport.LocAccessErr, "REM_INV_REQ_ERR": transport.RemInvReqErr,
	"REM_ACCESS_ERR": transport.RemAccessErr, "REM_OP_ERR": transport.RemOpErr, "RETRY_EXC_ERR": transport.RetryExcErr,
	"RNR_RETRY_EXC_ERR": transport.RNRRetryExcErr, "REM_ABORT_ERR": transport.RemAbortErr, "FATAL_ERR": transport.FatalErr,
	"RESP_TIMEOUT_ERR": transport.RespTimeoutErr, "GENERAL_ERR": transport.GeneralErr,
}}

func statusName(s transport.Status) string { return statuses.name(s) }

// wcOpcodes are those of enum ibv_wc_opcode, without IBV_WC.
var wcOpcodes = vocabulary[transport.WCOpcode]{"completion opcode", map[string]transport.WCOpcode{
	"SEND": transport.WCSend, "RDMA_WRITE": transport.WCWrite, "RDMA_READ": transport.WCRead,
	"COMP_SWAP": transport.WCCompareSwap, "FETCH_ADD": transport.WCFetchAdd, "BIND_MW": transport.WCBindMW,
	"LOCAL_INV": transport.WCLocalInv, "RECV": transport.WCRecv, "RECV_RDMA_WITH_IMM": transport.WCRecvImm,
	"FLUSH": transport.WCFlush, "ATOMIC_WRITE": transport.WCAtomicWrite,
}}

// operations are those of enum ibv_wr_opcode, in the words of the script.
var operations = vocabulary[transport.WROpcode]{"operation", map[string]transport.WROpcode{
	"write": transport.WRWrite, "write_imm": transport.WRWriteImm, "send": transport.WRSend, "send_imm": transport.WRSendImm,
	"read": transport.WRRead, "compare_swap": transport.WRCompareSwap, "fetch_add": transport.WRFetchAdd,
	"local_inv": transport.WRLocalInv, "bind_mw": transport.WRBindMW, "send_inv": transport.WRSendInv,
	"flush": transport.WRFlush, "atomic_write": transport.WRAtomicWrite,
}}

// eventType finds an event by the name that it prints.
func eventType(w string) (nic.EventType, error) {
	for t := nic.EventType(0); t <= nic.EventGIDChange; t++ {
		if t.String() == w {
			return t, nil
		}
	}
	return 0, fmt.Errorf("%q is no event", w)
}

var accessFlags = vocabulary[mrtable.Access]{"access flag", map[string]mrtable.Access{
	"none": 0, "local_write": mrtable.LocalWrite, "remote_write": mrtable.RemoteWrite, "remote_read": mrtable.RemoteRead,
	"remote_atomic": mrtable.RemoteAtomic, "mw_bind": mrtable.MWBind, "zero_based": mrtable.ZeroBased,
	"flush_global": mrtable.FlushGlobal, "flush_persistent": mrtable.FlushPersistent,
	"all": mrtable.LocalWrite | mrtable.RemoteWrite | mrtable.RemoteRead | mrtable.RemoteAtomic,
}}

func parseAccess(w string) (a mrtable.Access, err error) {
	for f := range strings.SplitSeq(w, ",") {
		b, err := accessFlags.parse(f)
		if err != nil {
			return 0, err
		}
		a |= b
	}
	return a, nil
}

// nakNames are the codes of NAKs.
var nakNames = vocabulary[packet.Syndrome]{"NAK", map[string]packet.Syndrome{
	"sequence": packet.NAKSequence, "invalid_request": packet.NAKInvalidRequest, "remote_access": packet.NAKRemoteAccess,
	"remote_operational": packet.NAKRemoteOperational, "invalid_rd": packet.NAKInvalidRD,
}}

// parseSyndrome reads ack, ack:CODE, rnr:CODE, nak:NAME or a number. any says that any credit or timer code
// is meant.
func parseSyndrome(w string) (s packet.Syndrome, any bool, err error) {
	class, rest, detailed := strings.Cut(w, ":")
	code := uint64(packet.CreditsUnlimited)
	if detailed && class != "nak" {
		if code, err = strconv.ParseUint(rest, 0, 5); err != nil {
			return 0, false, fmt.Errorf("%q: a code from 0 to 31 must follow the colon", w)
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
		return 0, false, fmt.Errorf("%q is no syndrome: ack, ack:CREDITS, rnr, rnr:TIMER, nak:NAME or a number", w)
	}
	return packet.Syndrome(n), false, nil
}

// serviceName is what the opcodes of a queue pair's service begin with.
func serviceName(t nic.QPType) string {
	if t == nic.TypeXRCSend || t == nic.TypeXRCRecv {
		return "XRC"
	}
	return t.String()
}

// parseOpcode reads an opcode's name, to which the service may be missing, or its number.
func parseOpcode(w string, t nic.QPType) (packet.Opcode, error) {
	if n, err := strconv.ParseUint(w, 0, 8); err == nil {
		return packet.Opcode(n), nil
	}
	for o := range 256 {
		in := packet.Opcode(o).Info()
		if in.Valid && (in.Name == w || in.Name == serviceName(t)+"_"+w) {
			return packet.Opcode(o), nil
		}
	}
	return 0, fmt.Errorf("%q is no opcode of %v", w, t)
}
