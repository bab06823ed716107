package verbs

import "softroce/internal/ib"

// QPType is the type of a queue pair, its transport service: ibv_qp_type.
type QPType uint32

// Queue pair types.
const (
	RC QPType = QPType(ib.QPTypeRC)
	UC QPType = QPType(ib.QPTypeUC)
	UD QPType = QPType(ib.QPTypeUD)

	XRCSend QPType = QPType(ib.QPTypeXRCSend) // XRC initiator: sends to the SRQs of a peer's XRCD
	XRCRecv QPType = QPType(ib.QPTypeXRCRecv) // XRC target: see XRCD.CreateQP
)

func (t QPType) String() string { return ib.QPType(t).String() }

// QPState is the state of a queue pair: ibv_qp_state (IBTA 10.3.1).
type QPState uint32

// Queue pair states.
const (
	QPSReset QPState = QPState(ib.QPSReset)
	QPSInit  QPState = QPState(ib.QPSInit)
	QPSRTR   QPState = QPState(ib.QPSRTR)
	QPSRTS   QPState = QPState(ib.QPSRTS)
	QPSSQD   QPState = QPState(ib.QPSSQD)
	QPSSQE   QPState = QPState(ib.QPSSQE)
	QPSErr   QPState = QPState(ib.QPSErr)
)

func (s QPState) String() string { return ib.QPState(s).String() }

// Access is what a memory region grants, or what a queue pair lets its peer request:
// ibv_access_flags. Local read is always granted.
type Access uint32

// Access rights. Remote write and atomics require AccessLocalWrite.
const (
	AccessLocalWrite   Access = Access(ib.AccessLocalWrite)
	AccessRemoteWrite  Access = Access(ib.AccessRemoteWrite)
	AccessRemoteRead   Access = Access(ib.AccessRemoteRead)
	AccessRemoteAtomic Access = Access(ib.AccessRemoteAtomic)

	AccessMWBind      Access = Access(ib.AccessMWBind)      // memory windows may be bound to the region
	AccessZeroBased   Access = Access(ib.AccessZeroBased)   // peers address the first byte as 0
	AccessFlushGlobal Access = Access(ib.AccessFlushGlobal) // FLUSH for global visibility; ATOMIC WRITE needs AccessRemoteWrite

	AccessRelaxedOrdering Access = Access(ib.AccessRelaxedOrdering) // a hint, ignored
)

// String lists the rights, as "local_write|remote_read".
func (a Access) String() string { return ib.Access(a).String() }

// WROpcode is the operation of a send work request: ibv_wr_opcode.
type WROpcode uint32

// Operations.
const (
	WRRDMAWrite         WROpcode = WROpcode(ib.WRRDMAWrite)
	WRRDMAWriteWithImm  WROpcode = WROpcode(ib.WRRDMAWriteWithImm)
	WRSend              WROpcode = WROpcode(ib.WRSend)
	WRSendWithImm       WROpcode = WROpcode(ib.WRSendWithImm)
	WRRDMARead          WROpcode = WROpcode(ib.WRRDMARead)
	WRAtomicCmpAndSwp   WROpcode = WROpcode(ib.WRAtomicCmpAndSwp)
	WRAtomicFetchAndAdd WROpcode = WROpcode(ib.WRAtomicFetchAndAdd)
	WRLocalInv          WROpcode = WROpcode(ib.WRLocalInv)
	WRBindMW            WROpcode = WROpcode(ib.WRBindMW)
	WRSendWithInv       WROpcode = WROpcode(ib.WRSendWithInv)
	WRFlush             WROpcode = WROpcode(ib.WRFlush)
	WRAtomicWrite       WROpcode = WROpcode(ib.WRAtomicWrite)
)

func (o WROpcode) String() string { return ib.WROpcode(o).String() }

// SendFlags qualify a send work request: ibv_send_flags.
type SendFlags uint32

// Bits of SendFlags.
const (
	SendFence     SendFlags = SendFlags(ib.SendFence)     // start after all earlier READs and atomics are complete; WRLocalInv: after all work requests
	SendSignaled  SendFlags = SendFlags(ib.SendSignaled)  // a successful completion enters the CQ too
	SendSolicited SendFlags = SendFlags(ib.SendSolicited) // the receiver's completion is a solicited event
	SendInline    SendFlags = SendFlags(ib.SendInline)    // the data is SendWR.Inline, copied while posting
)

// WCStatus is the result of a work request: ibv_wc_status.
type WCStatus uint32

// Statuses.
const (
	WCSuccess        WCStatus = WCStatus(ib.WCSuccess)
	WCLocLenErr      WCStatus = WCStatus(ib.WCLocLenErr)
	WCLocQPOpErr     WCStatus = WCStatus(ib.WCLocQPOpErr)
	WCLocEECOpErr    WCStatus = WCStatus(ib.WCLocEECOpErr)
	WCLocProtErr     WCStatus = WCStatus(ib.WCLocProtErr)
	WCWRFlushErr     WCStatus = WCStatus(ib.WCWRFlushErr)
	WCMWBindErr      WCStatus = WCStatus(ib.WCMWBindErr)
	WCBadRespErr     WCStatus = WCStatus(ib.WCBadRespErr)
	WCLocAccessErr   WCStatus = WCStatus(ib.WCLocAccessErr)
	WCRemInvReqErr   WCStatus = WCStatus(ib.WCRemInvReqErr)
	WCRemAccessErr   WCStatus = WCStatus(ib.WCRemAccessErr)
	WCRemOpErr       WCStatus = WCStatus(ib.WCRemOpErr)
	WCRetryExcErr    WCStatus = WCStatus(ib.WCRetryExcErr)
	WCRNRRetryExcErr WCStatus = WCStatus(ib.WCRNRRetryExcErr)
	WCLocRDDViolErr  WCStatus = WCStatus(ib.WCLocRDDViolErr)
	WCRemInvRDReqErr WCStatus = WCStatus(ib.WCRemInvRDReqErr)
	WCRemAbortErr    WCStatus = WCStatus(ib.WCRemAbortErr)
	WCInvEECNErr     WCStatus = WCStatus(ib.WCInvEECNErr)
	WCInvEECStateErr WCStatus = WCStatus(ib.WCInvEECStateErr)
	WCFatalErr       WCStatus = WCStatus(ib.WCFatalErr)
	WCRespTimeoutErr WCStatus = WCStatus(ib.WCRespTimeoutErr)
	WCGeneralErr     WCStatus = WCStatus(ib.WCGeneralErr)
)

func (s WCStatus) String() string { return ib.WCStatus(s).String() }

// WCOpcode is the completed operation: ibv_wc_opcode. It is valid only if the status is WCSuccess.
type WCOpcode uint32

// Completed operations.
const (
	WCSend            WCOpcode = WCOpcode(ib.WCSend)
	WCRDMAWrite       WCOpcode = WCOpcode(ib.WCRDMAWrite)
	WCRDMARead        WCOpcode = WCOpcode(ib.WCRDMARead)
	WCCompSwap        WCOpcode = WCOpcode(ib.WCCompSwap)
	WCFetchAdd        WCOpcode = WCOpcode(ib.WCFetchAdd)
	WCBindMW          WCOpcode = WCOpcode(ib.WCBindMW)
	WCLocalInv        WCOpcode = WCOpcode(ib.WCLocalInv)
	WCFlush           WCOpcode = WCOpcode(ib.WCFlush)
	WCAtomicWrite     WCOpcode = WCOpcode(ib.WCAtomicWrite)
	WCRecv            WCOpcode = WCOpcode(ib.WCRecv)
	WCRecvRDMAWithImm WCOpcode = WCOpcode(ib.WCRecvRDMAWithImm)
)

func (o WCOpcode) String() string { return ib.WCOpcode(o).String() }

// WCFlags qualify a completion: ibv_wc_flags.
type WCFlags uint32

// Bits of WCFlags.
const (
	WCWithGRH WCFlags = WCFlags(ib.WCGRH)     // the first 40 bytes of the receive buffer are the GRH
	WCWithImm WCFlags = WCFlags(ib.WCWithImm) // WC.Imm is valid
	WCWithInv WCFlags = WCFlags(ib.WCWithInv) // WC.InvalidatedRKey is valid
)

// MTU is a path MTU code: ibv_mtu.
type MTU uint32

// Path MTUs.
const (
	MTU256  MTU = MTU(ib.MTU256)
	MTU512  MTU = MTU(ib.MTU512)
	MTU1024 MTU = MTU(ib.MTU1024)
	MTU2048 MTU = MTU(ib.MTU2048)
	MTU4096 MTU = MTU(ib.MTU4096)
)

// Bytes returns the MTU in bytes, 0 if m is not valid.
func (m MTU) Bytes() int { return ib.MTU(m).Bytes() }

func (m MTU) String() string { return ib.MTU(m).String() }

// ParseMTU returns the code of a path MTU in bytes, false unless it is one of the five.
func ParseMTU(bytes int) (MTU, bool) {
	m, ok := ib.MTUOf(bytes)
	return MTU(m), ok
}

// PortState is ibv_port_state.
type PortState uint32

// Port states.
const (
	PortNop    PortState = PortState(ib.PortNop)
	PortDown   PortState = PortState(ib.PortDown)
	PortInit   PortState = PortState(ib.PortInit)
	PortArmed  PortState = PortState(ib.PortArmed)
	PortActive PortState = PortState(ib.PortActive)
)

func (s PortState) String() string { return ib.PortState(s).String() }

// EventType is the kind of an asynchronous event: ibv_event_type.
type EventType uint32

// Asynchronous events.
const (
	EventCQErr            EventType = EventType(ib.EventCQErr)
	EventQPFatal          EventType = EventType(ib.EventQPFatal)
	EventQPReqErr         EventType = EventType(ib.EventQPReqErr)
	EventQPAccessErr      EventType = EventType(ib.EventQPAccessErr)
	EventCommEst          EventType = EventType(ib.EventCommEst)
	EventSQDrained        EventType = EventType(ib.EventSQDrained)
	EventPathMig          EventType = EventType(ib.EventPathMig)
	EventPathMigErr       EventType = EventType(ib.EventPathMigErr)
	EventDeviceFatal      EventType = EventType(ib.EventDeviceFatal)
	EventPortActive       EventType = EventType(ib.EventPortActive)
	EventPortErr          EventType = EventType(ib.EventPortErr)
	EventLIDChange        EventType = EventType(ib.EventLIDChange)
	EventPKeyChange       EventType = EventType(ib.EventPKeyChange)
	EventSMChange         EventType = EventType(ib.EventSMChange)
	EventSRQErr           EventType = EventType(ib.EventSRQErr)
	EventSRQLimitReached  EventType = EventType(ib.EventSRQLimitReached)
	EventQPLastWQEReached EventType = EventType(ib.EventQPLastWQEReached)
	EventClientReregister EventType = EventType(ib.EventClientReregister)
	EventGIDChange        EventType = EventType(ib.EventGIDChange)
)

func (t EventType) String() string { return ib.EventType(t).String() }
