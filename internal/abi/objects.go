package abi

import "softroce/internal/ib"

// HandleRequest names the object of an operation.
type HandleRequest struct {
	Handle uint32
	_      uint32
}

// HandleReply names the object that was created. A handle is only valid on its connection, and
// never 0. OpCreateChannel's reply comes with the channel's event socket; the counters at CQEvents
// tell which completion queue had the event.
type HandleReply struct {
	Handle uint32
	_      uint32
}

// Kinds of registered memory.
const (
	MemoryProcess = 0 // Address, in the process that connected; needs the right to ptrace it
	MemoryMapped  = 1 // a descriptor that can be mapped, from Offset; Address is the client's own mapping of it, or 0
	MemorySelf    = 2 // Address, through a descriptor of the client's /proc/self/mem
	MemoryDMABuf  = 3 // the descriptor of a DMA buffer, or of shared memory instead, from Offset
	MemoryDevice  = 4 // device memory: Address is its handle; from Offset
)

// Why a client does not share the memory that it registers.
const (
	UnsharedUnknown  = 0
	UnsharedDisabled = 1 // its user does not want to
	UnsharedThreads  = 2 // several threads may be using the memory
	UnsharedKind     = 3 // a file, a stack, a heap, or other memory that is not private to the region
	UnsharedFlags    = 4 // its mapping has properties that would be lost
	UnsharedKernel   = 5 // the kernel or a device may be using its pages
	UnsharedLimit    = 6 // the process or the system has a limit that forbids it
	UnsharedRefused  = 7 // the daemon could not map it
)

// RegMRRequest registers memory. A mapped descriptor is sealed against shrinking and, once the
// daemon has mapped it, against holes and further writable mappings (F_SEAL_FUTURE_WRITE). If it
// cannot be sealed or mapped, its memory is accessed through Address instead. OpHoldMemory, with
// the same descriptor, keeps the daemon's mapping for later registrations by this connection; its
// reply is a HandleReply, for OpReleaseMemory. A DMA buffer, or shared memory used as one, may
// shrink: accesses beyond its end fail. Offset and IOVA of a DMA buffer must be congruent modulo
// 4096, and Access is as in ibv_reg_dmabuf_mr. Device memory is zero-based. Neither can be
// reregistered.
type RegMRRequest struct {
	PD       uint32
	Memory   uint32 // Memory…
	Access   uint32 // ibv_access_flags
	Unshared uint32 // Unshared…: why Memory is not MemoryMapped
	IOVA     uint64 // address of the first byte, for work requests and peers
	Length   uint64
	Address  uint64
	Offset   uint64
}

// RegMRReply has the keys, and how the memory is accessed.
type RegMRReply struct {
	Handle uint32
	LKey   uint32
	RKey   uint32
	Memory uint32 // Memory…
}

// ReregMRRequest replaces a registered region and keeps handle and keys; the reply is a RegMRReply.
// After an error the region is unchanged.
type ReregMRRequest struct {
	Handle uint32
	_      uint32
	MR     RegMRRequest
}

// QueryMRReply describes a region.
type QueryMRReply struct {
	LKey   uint32
	RKey   uint32
	IOVA   uint64
	Length uint64
	Access uint32 // ibv_access_flags
	_      uint32
}

// AllocDMRequest allocates device memory; the reply is a HandleReply.
type AllocDMRequest struct {
	Length   uint64
	LogAlign uint32 // the address is a multiple of 2^LogAlign
	_        uint32
}

// QueryDMReply describes device memory.
type QueryDMReply struct {
	Length uint64
}

// DMCopyMax is the most bytes that a message copies to or from device memory.
const DMCopyMax = 15 * 4096

// CopyDMRequest copies Length bytes to device memory, which follow the request, or from it: then
// they are the reply. Offset and Length are multiples of 4.
type CopyDMRequest struct {
	Handle uint32
	Length uint32 // at most DMCopyMax
	Offset uint64
}

// AllocMWRequest allocates a memory window, which a work request binds.
type AllocMWRequest struct {
	PD   uint32
	Type uint32 // ibv_mw_type
}

// AllocMWReply has the R_Key. A bind changes its low 8 bits.
type AllocMWReply struct {
	Handle uint32
	RKey   uint32
}

// OpenXRCDRequest opens an XRC domain; the reply is a HandleReply. With a descriptor it is the
// domain of that file, which every client that has the file open may open; without, a new private
// one.
type OpenXRCDRequest struct {
	Flags uint32 // XRCD…
	_     uint32
}

// Bits of OpenXRCDRequest's Flags.
const (
	XRCDCreate    = 1 << 0 // O_CREAT: create it if there is none
	XRCDExclusive = 1 << 1 // O_EXCL: there must be none
)

// AHAttr is the destination of packets and their header fields: struct ibv_ah_attr.
type AHAttr struct {
	DGID         [16]byte
	FlowLabel    uint32
	DLID         uint16
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	SL           uint8
	SrcPathBits  uint8
	StaticRate   uint8
	IsGlobal     uint8
	PortNum      uint8
	_            [2]byte
}

// CreateAHRequest creates an address handle.
type CreateAHRequest struct {
	PD uint32
	_  uint32
	AH AHAttr
}

// CreateAHReply names the address handle. A client that shares one between several of the program
// with the same attributes enforces the limit.
type CreateAHReply struct {
	Handle uint32
	MaxAH  uint32 // as in DeviceAttr
}

// CreateCQRequest creates a completion queue.
type CreateCQRequest struct {
	Entries uint32
	Channel uint32 // handle, or 0 for none
	Flags   uint32 // CQOwnChannel, CQTimestamps
	_       uint32
}

// CQOwnChannel requests a completion channel for this queue only, which has no handle.
const CQOwnChannel = 1

// CQTimestamps requests timestamps: an error, EOPNOTSUPP, if the NIC has none. They are in the
// completions of every queue of a NIC that has them.
const CQTimestamps = 2

// CreateCQReply comes with the chunk of the ring and then, with CQOwnChannel, the channel's event
// socket.
type CreateCQReply struct {
	Handle  uint32
	Entries uint32 // granted: the slots of the ring, CQESize bytes each
	Chunk   Chunk
	Ring    uint32 // offset in the chunk
	_       uint32
}

// DestroyCQReply is the reply of OpDestroyCQ: with the queue, its ring is gone.
type DestroyCQReply struct {
	Events uint32 // the last value of the word at CQEvents
	_      uint32
}

// ResizeCQRequest changes the number of entries; the reply is a CreateCQReply with a new ring.
// Completions that are not polled are in it, with the same indices. The client must not poll or arm
// the queue between request and reply, and then only use the new ring.
type ResizeCQRequest struct {
	Handle  uint32
	Entries uint32
}

// SRQAttr is struct ibv_srq_attr.
type SRQAttr struct {
	MaxWR    uint32
	MaxSGE   uint32
	SRQLimit uint32 // an event is raised when fewer are posted; 0: none, or it was raised
	_        uint32
}

// CreateSRQRequest creates a shared receive queue.
type CreateSRQRequest struct {
	PD   uint32
	Type uint32 // SRQ…
	XRCD uint32 // SRQXRC, else 0
	CQ   uint32 // SRQXRC: for its completions, else 0
	Attr SRQAttr
}

// Types of shared receive queues: enum ibv_srq_type.
const (
	SRQBasic = uint32(ib.SRQBasic)
	SRQXRC   = uint32(ib.SRQXRC)
)

// SRQReply comes with the chunk of a shared receive queue's ring.
type SRQReply struct {
	Handle   uint32
	Slots    uint32
	SlotSize uint32
	Number   uint32  // SRQXRC: its SRQ number, else 0
	Attr     SRQAttr // granted
	Chunk    Chunk
	Ring     uint32 // offset in the chunk
	_        uint32
}

// ModifySRQRequest changes the attributes in Mask (ibv_srq_attr_mask). The reply is an SRQReply.
// Only if Mask has SRQMaxWR it comes with a descriptor, of the chunk of a new ring: posted work
// requests are in it, with the same indices. The client must not post between request and reply.
type ModifySRQRequest struct {
	Handle uint32
	Mask   uint32
	Attr   SRQAttr
}

// Bits of ModifySRQRequest's Mask: enum ibv_srq_attr_mask.
const (
	SRQMaxWR = uint32(ib.SRQMaskMaxWR)
	SRQLimit = uint32(ib.SRQMaskLimit)
)

// McastRequest attaches a UD queue pair to a multicast group, or detaches it.
type McastRequest struct {
	QP  uint32
	LID uint32 // unused on Ethernet
	GID [16]byte
}

// QPCap are the capacities of a queue pair: struct ibv_qp_cap.
type QPCap struct {
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32
	_             uint32
}

// CreateQPRequest creates a queue pair. An XRC initiator has no RecvCQ and no SRQ; an XRC target
// only has an XRCD.
type CreateQPRequest struct {
	PD      uint32
	SendCQ  uint32
	RecvCQ  uint32
	SRQ     uint32 // 0: none
	Type    uint32 // ibv_qp_type
	SigAll  uint32 // 0 or 1
	XRCD    uint32 // XRC target, else 0
	SendOps uint32 // ibv_qp_create_send_ops_flags that the NIC must have, or 0
	Cap     QPCap
}

// CreateQPReply comes with the chunk of both rings. A queue pair with an SRQ and an XRC initiator
// have no receive ring, and an XRC target has no ring, and no descriptor in this reply.
type CreateQPReply struct {
	Handle       uint32
	QPN          uint32
	Doorbell     uint32 // number of its bit in the doorbell page
	SendSlots    uint32
	SendSlotSize uint32
	RecvSlots    uint32
	RecvSlotSize uint32
	SendRing     uint32 // offset in the chunk
	RecvRing     uint32 // likewise
	_            uint32
	Chunk        Chunk
	Cap          QPCap // granted
}

// QPAttr is struct ibv_qp_attr.
type QPAttr struct {
	State            uint32
	CurState         uint32
	PathMTU          uint32
	PathMigState     uint32
	QKey             uint32
	RQPSN            uint32
	SQPSN            uint32
	DestQPN          uint32
	AccessFlags      uint32
	RateLimit        uint32
	Cap              QPCap
	AH               AHAttr
	AltAH            AHAttr
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	EnSQDAsyncNotify uint8
	SQDraining       uint8
	MaxRdAtomic      uint8
	MaxDestRdAtomic  uint8
	MinRNRTimer      uint8
	PortNum          uint8
	Timeout          uint8
	RetryCnt         uint8
	RNRRetry         uint8
	AltPortNum       uint8
	AltTimeout       uint8
	_                uint8
}

// ModifyQPRequest changes the attributes in Mask (ibv_qp_attr_mask). With a new address vector, the
// reply waits for neighbor resolution.
type ModifyQPRequest struct {
	Handle uint32
	Mask   uint32
	Attr   QPAttr
}

// QueryQPReply has the attributes of a queue pair.
type QueryQPReply struct {
	Attr QPAttr
}
