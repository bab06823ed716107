package verbs

import "fmt"

// QPType is the transport service of a queue pair: ibv_qp_type.
type QPType uint32

// Services.
const (
	RC QPType = 2
	UC QPType = 3
	UD QPType = 4

	XRCSend QPType = 9  // XRC initiator: sends to the SRQs of a peer's XRCD
	XRCRecv QPType = 10 // XRC target: see XRCD.CreateQP
)

func (t QPType) String() string {
	return name(t, map[QPType]string{RC: "RC", UC: "UC", UD: "UD", XRCSend: "XRC_SEND", XRCRecv: "XRC_RECV"})
}

// QPState is the state of a queue pair: ibv_qp_state (IBTA 10.3.1).
type QPState uint32

// States.
const (
	QPSReset QPState = iota
	QPSInit
	QPSRTR
	QPSRTS
	QPSSQD
	QPSSQE
	QPSErr
)

func (s QPState) String() string {
	return name(s, map[QPState]string{
		QPSReset: "RESET", QPSInit: "INIT", QPSRTR: "RTR", QPSRTS: "RTS",
		QPSSQD: "SQD", QPSSQE: "SQE", QPSErr: "ERR",
	})
}

// Access is what may be done to a memory region, and through a queue pair:
// ibv_access_flags. Local reads are always allowed.
type Access uint32

// Access rights. Remote writing and atomics need AccessLocalWrite too.
const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3

	AccessMWBind      Access = 1 << 4 // memory windows may be bound to the region
	AccessZeroBased   Access = 1 << 5 // peers address the first byte as 0
	AccessFlushGlobal Access = 1 << 8 // FLUSH for global visibility; ATOMIC WRITE needs AccessRemoteWrite

	AccessRelaxedOrdering Access = 1 << 20 // a hint, which is not needed here
)

// WROpcode is what a send work request does: ibv_wr_opcode.
type WROpcode uint32

// Operations.
const (
	WRRDMAWrite         WROpcode = 0
	WRRDMAWriteWithImm  WROpcode = 1
	WRSend              WROpcode = 2
	WRSendWithImm       WROpcode = 3
	WRRDMARead          WROpcode = 4
	WRAtomicCmpAndSwp   WROpcode = 5
	WRAtomicFetchAndAdd WROpcode = 6
	WRLocalInv          WROpcode = 7
	WRBindMW            WROpcode = 8
	WRSendWithInv       WROpcode = 9
	WRFlush             WROpcode = 14
	WRAtomicWrite       WROpcode = 15
)

func (o WROpcode) String() string {
	return name(o, map[WROpcode]string{
		WRRDMAWrite: "RDMA_WRITE", WRRDMAWriteWithImm: "RDMA_WRITE_WITH_IMM", WRSend: "SEND",
		WRSendWithImm: "SEND_WITH_IMM", WRRDMARead: "RDMA_READ", WRAtomicCmpAndSwp: "ATOMIC_CMP_AND_SWP",
		WRAtomicFetchAndAdd: "ATOMIC_FETCH_AND_ADD", WRLocalInv: "LOCAL_INV", WRBindMW: "BIND_MW", WRSendWithInv: "SEND_WITH_INV",
		WRFlush: "FLUSH", WRAtomicWrite: "ATOMIC_WRITE",
	})
}

// SendFlags qualify a send work request: ibv_send_flags.
type SendFlags uint32

// Flags.
const (
	SendFence     SendFlags = 1 << 0 // start after all earlier READs and atomics have completed; WRLocalInv: after everything
	SendSignaled  SendFlags = 1 << 1 // completes with a WC; errors always do
	SendSolicited SendFlags = 1 << 2 // the receiver's completion is a solicited event
	SendInline    SendFlags = 1 << 3 // the data is SendWR.Inline, copied while posting
)

// WCStatus says how a work request ended: ibv_wc_status.
type WCStatus uint32

// Statuses.
const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
)

var wcStatusNames = [...]string{
	"success", "local length error", "local QP operation error", "local EE context operation error",
	"local protection error", "work request flushed", "memory window bind error", "bad response",
	"local access error", "remote invalid request", "remote access error", "remote operation error",
	"transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation",
	"remote invalid RD request", "remote aborted", "invalid EE context number", "invalid EE context state",
	"fatal error", "response timeout", "general error",
}

func (s WCStatus) String() string {
	if int(s) < len(wcStatusNames) {
		return wcStatusNames[s]
	}
	return fmt.Sprintf("WCStatus(%d)", uint32(s))
}

// WCOpcode says what completed: ibv_wc_opcode. It is not valid where the status is an error.
type WCOpcode uint32

// Completed operations.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCFlush           WCOpcode = 8
	WCAtomicWrite     WCOpcode = 9
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

func (o WCOpcode) String() string {
	return name(o, map[WCOpcode]string{
		WCSend: "SEND", WCRDMAWrite: "RDMA_WRITE", WCRDMARead: "RDMA_READ", WCCompSwap: "COMP_SWAP",
		WCFetchAdd: "FETCH_ADD", WCLocalInv: "LOCAL_INV", WCBindMW: "BIND_MW", WCFlush: "FLUSH", WCAtomicWrite: "ATOMIC_WRITE",
		WCRecv: "RECV", WCRecvRDMAWithImm: "RECV_RDMA_WITH_IMM",
	})
}

// WCFlags qualify a completion: ibv_wc_flags.
type WCFlags uint32

// Flags.
const (
	WCWithGRH WCFlags = 1 << 0 // the first 40 bytes of the receive buffer are the GRH
	WCWithImm WCFlags = 1 << 1 // WC.Imm is valid
	WCWithInv WCFlags = 1 << 3 // WC.InvalidatedRKey is valid
)

// MTU is a path MTU code: ibv_mtu.
type MTU uint32

// Path MTUs.
const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the MTU in bytes, 0 if m is not valid.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string { return fmt.Sprint(m.Bytes()) }

// ParseMTU returns the code of a path MTU in bytes, false unless it is one of the five.
func ParseMTU(bytes int) (MTU, bool) {
	for m := MTU256; m <= MTU4096; m++ {
		if m.Bytes() == bytes {
			return m, true
		}
	}
	return 0, false
}

// PortState is ibv_port_state.
type PortState uint32

// Port states.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
)

func (s PortState) String() string {
	return name(s, map[PortState]string{PortNop: "NOP", PortDown: "DOWN", PortInit: "INIT", PortArmed: "ARMED", PortActive: "ACTIVE"})
}

// EventType is the kind of an asynchronous event: ibv_event_type.
type EventType uint32

// Asynchronous events.
const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
)

var eventNames = [...]string{
	"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR",
	"DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
	"SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE",
}

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("EventType(%d)", uint32(t))
}

func name[T ~uint32](v T, names map[T]string) string {
	if s, ok := names[v]; ok {
		return s
	}
	return fmt.Sprintf("%T(%d)", v, uint32(v))
}
