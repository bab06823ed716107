package abi

import "softroce/internal/ib"

// The slots of the rings. Each struct is the memory layout of its slot, and C has the same struct.
// The daemon reads a slot that a client writes once, into a copy, and checks the copy. Inline data
// it copies after that.

// SGE is a scatter/gather element: struct ibv_sge.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWQE is the start of a send slot. NumSGE elements of SGE follow it, or with SendInline the
// data. A bind and a FLUSH lay these bytes out as BindWQE and FlushWQE.
type SendWQE struct {
	WRID       uint64
	Opcode     uint32 // ibv_wr_opcode
	Flags      uint32 // ibv_send_flags
	Imm        uint32 // immediate data in network byte order, or the R_Key to invalidate
	NumSGE     uint32 // number of elements, or with SendInline bytes of data
	RemoteAddr uint64
	RKey       uint32
	AHOrSRQ    uint32 // UD: handle of the address handle; XRC: number of the peer's shared receive queue
	CompareAdd uint64
	Swap       uint64
	RemoteQPN  uint32 // UD
	RemoteQKey uint32 // UD
}

// BindWQE is SendWQE of a work request that binds a memory window.
type BindWQE struct {
	WRID   uint64
	Opcode uint32
	Flags  uint32
	_      uint64
	Addr   uint64 // of the window's first byte, as the memory region counts addresses
	RKey   uint32 // the new R_Key: all but its low 8 bits name the window
	_      uint32
	Length uint64
	_      uint64
	LKey   uint32 // of the memory region
	Access uint32 // ibv_access_flags
}

// FlushWQE is SendWQE of a FLUSH.
type FlushWQE struct {
	WRID        uint64
	Opcode      uint32
	Flags       uint32
	_           uint64
	RemoteAddr  uint64
	RKey        uint32
	_           uint32
	Length      uint32
	_           uint32
	_           uint64
	Placement   uint8 // ibv_placement_type
	_           [3]uint8
	Selectivity uint8 // ibv_selectivity_level
	_           [3]uint8
}

// RecvWQE is the start of a receive slot. NumSGE elements of SGE follow it.
type RecvWQE struct {
	WRID   uint64
	NumSGE uint32
	_      uint32
}

// CQE is a slot of a completion queue. Values are those of struct ibv_wc, and of the readers of
// struct ibv_cq_ex. There are no flow tags, and there is no tag matching.
type CQE struct {
	WRID      uint64
	Status    uint32 // ibv_wc_status
	Opcode    uint32 // ibv_wc_opcode
	VendorErr uint32
	ByteLen   uint32
	Imm       uint32 // immediate data in network byte order, or the R_Key that was invalidated
	QPN       uint32
	SrcQP     uint32
	Flags     uint32 // ibv_wc_flags
	PKeyIndex uint16
	SLID      uint16
	SL        uint8
	PathBits  uint8
	VLAN      uint16 // receives: the VLAN tag with its priority (TCI), 0 for none
	Timestamp uint64 // device clock: ns since the daemon's engine started
	Wallclock uint64 // ns since 1970
}

// AsyncEvent is a slot of the ring of asynchronous events. Events that find the ring full wait: see
// EventsWaiting.
type AsyncEvent struct {
	Type   uint32 // ibv_event_type
	Handle uint32 // of the queue pair, completion queue or shared receive queue, or 0
	Port   uint32
	_      uint32
}

// Sizes of the slots' structs, in bytes.
const (
	SGESize        = 16
	SendWQESize    = 64
	RecvWQESize    = 16
	CQESize        = 64
	AsyncEventSize = 16
)

// Bits of SendWQE's Flags: those of ibv_send_flags.
const (
	SendFence     = uint32(ib.SendFence)
	SendSignaled  = uint32(ib.SendSignaled)
	SendSolicited = uint32(ib.SendSolicited)
	SendInline    = uint32(ib.SendInline)
)
