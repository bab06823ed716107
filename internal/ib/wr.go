package ib

import "fmt"

// WROpcode is the operation of a send work request: enum ibv_wr_opcode.
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

// SendOps are the operations that a program posts to a queue pair: enum
// ibv_qp_create_send_ops_flags.
type SendOps uint32

// Operations that a NIC may lack.
const (
	SendOpsAtomicCmpAndSwp   SendOps = 1 << 5
	SendOpsAtomicFetchAndAdd SendOps = 1 << 6
	SendOpsLocalInv          SendOps = 1 << 7
	SendOpsBindMW            SendOps = 1 << 8
	SendOpsSendWithInv       SendOps = 1 << 9
	SendOpsFlush             SendOps = 1 << 11
	SendOpsAtomicWrite       SendOps = 1 << 12
)

var wrOpcodeNames = [...]string{
	WRRDMAWrite: "RDMA_WRITE", WRRDMAWriteWithImm: "RDMA_WRITE_WITH_IMM", WRSend: "SEND", WRSendWithImm: "SEND_WITH_IMM",
	WRRDMARead: "RDMA_READ", WRAtomicCmpAndSwp: "ATOMIC_CMP_AND_SWP", WRAtomicFetchAndAdd: "ATOMIC_FETCH_AND_ADD",
	WRLocalInv: "LOCAL_INV", WRBindMW: "BIND_MW", WRSendWithInv: "SEND_WITH_INV", WRFlush: "FLUSH", WRAtomicWrite: "ATOMIC_WRITE",
}

func (o WROpcode) String() string {
	if int(o) < len(wrOpcodeNames) && wrOpcodeNames[o] != "" {
		return wrOpcodeNames[o]
	}
	return fmt.Sprintf("WROpcode(%d)", uint32(o))
}

// WCOpcode returns the opcode of the completion.
func (o WROpcode) WCOpcode() WCOpcode {
	switch o {
	case WRRDMAWrite, WRRDMAWriteWithImm:
		return WCRDMAWrite
	case WRRDMARead:
		return WCRDMARead
	case WRAtomicCmpAndSwp:
		return WCCompSwap
	case WRAtomicFetchAndAdd:
		return WCFetchAdd
	case WRBindMW:
		return WCBindMW
	case WRLocalInv:
		return WCLocalInv
	case WRFlush:
		return WCFlush
	case WRAtomicWrite:
		return WCAtomicWrite
	}
	return WCSend
}

// SendFlags qualify a send work request: enum ibv_send_flags.
type SendFlags uint32

// Bits of SendFlags.
const (
	SendFence     SendFlags = 1 << 0 // starts when the READs and atomics before it are complete
	SendSignaled  SendFlags = 1 << 1 // a successful completion enters the CQ too
	SendSolicited SendFlags = 1 << 2 // the peer's completion is a solicited event
	SendInline    SendFlags = 1 << 3 // the payload is in the work request
)

// MWType is the type of a memory window: enum ibv_mw_type.
type MWType uint32

// Memory window types. A window of type 2 is of type 2B: it checks queue pair and protection
// domain.
const (
	MWType1 MWType = 1
	MWType2 MWType = 2
)

// FlushPlacement says where FLUSH makes data visible: enum ibv_placement_type.
type FlushPlacement uint8

// Bits of FlushPlacement.
const (
	FlushGlobal     FlushPlacement = 1 << 0 // visible to every observer
	FlushPersistent FlushPlacement = 1 << 1 // survives a power failure
)

// FlushSelectivity says which bytes FLUSH covers: enum ibv_selectivity_level.
type FlushSelectivity uint8

// Values of FlushSelectivity.
const (
	FlushRange FlushSelectivity = 0
	FlushMR    FlushSelectivity = 1
)
