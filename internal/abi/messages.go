package abi

import "softroce/internal/ib"

// The control socket is a UNIX seqpacket socket. Each packet is one request or reply: a Header and
// the body of its operation. The client sends requests; the daemon replies to each with the same Op
// and Tag. Descriptors travel with the packet (SCM_RIGHTS), in the order that the description of
// the body gives.
//
// Events arrive through stream sockets. Each event is one byte without meaning; the end of the file
// means that the daemon is gone. No client can make the daemon wait when it sends an event: the two
// ends of a socket pair have an O_NONBLOCK each, unlike those of an eventfd, and no lock of a
// reader is in its way, as it would be in a pipe. Bytes for which the socket has no room follow.
//
// Structs have the layout of C: every field is at a multiple of its size, and padding is explicit.

// Version of the ABI. A client and a daemon must have the same.
const Version = 3

// Sizes of messages, in bytes.
const (
	MaxMessage = 65536 // including the header
	MaxFDs     = 8     // descriptors per message
	NameSize   = 64    // of a device, including the zero byte that ends it
	IfNameSize = 16    // of a network interface, including the zero byte
)

// Header is the start of every message.
type Header struct {
	Version uint16
	Op      uint16 // Op…
	Length  uint32 // of the whole message
	Tag     uint64 // chosen by the client; returned in the reply
	Errno   uint32 // replies: 0, or an errno; then the body is an error text in UTF-8
	FDs     uint32 // descriptors that accompany the message
	_       [8]byte
}

// Operations.
const (
	OpHello       = 1
	OpListDevices = 2
	OpOpenDevice  = 3
	OpQueryDevice = 4
	OpQueryPort   = 5
	OpQueryGIDs   = 6
	OpQueryPKeys  = 7
	OpQueryClock  = 8
	OpJoinDevice  = 9

	OpAllocPD   = 16
	OpDeallocPD = 17
	OpRegMR     = 18
	OpDeregMR   = 19
	OpCreateAH  = 20
	OpDestroyAH = 21
	OpAllocMW   = 22
	OpDeallocMW = 23
	OpOpenXRCD  = 24
	OpCloseXRCD = 25
	OpReregMR   = 26
	OpQueryMR   = 27

	OpAllocDM    = 40
	OpFreeDM     = 41
	OpQueryDM    = 42
	OpCopyToDM   = 43
	OpCopyFromDM = 44

	OpCreateChannel  = 32
	OpDestroyChannel = 33
	OpCreateCQ       = 34
	OpDestroyCQ      = 35
	OpResizeCQ       = 36

	OpCreateQP  = 48
	OpModifyQP  = 49
	OpQueryQP   = 50
	OpDestroyQP = 51

	OpCreateSRQ  = 56
	OpModifySRQ  = 57
	OpQuerySRQ   = 58
	OpDestroySRQ = 59

	OpAttachMcast = 60
	OpDetachMcast = 61

	OpSnapshot     = 64
	OpStartCapture = 65
	OpQueryCapture = 66
	OpStopCapture  = 67
	OpGoodbye      = 68 // from the daemon, with tag 0: why it closes the socket
	OpSetPKeys     = 69
	OpOpenTree     = 70 // its reply comes with a directory: sys/class/infiniband… and dev/infiniband, as the kernel has them
)

// HelloRequest is the first message of a connection. The reply has the daemon's version; if the
// request's differs, the error is EPROTONOSUPPORT.
type HelloRequest struct {
	Comm [16]byte // the program's name, as "softroce show" prints it; ends with a zero byte
}

// HelloReply describes the daemon.
type HelloReply struct {
	PID     uint32 // of the daemon, in its PID namespace
	Devices uint32
	Release [NameSize]byte // text
}

// ListReply is followed by Count elements: DeviceEntry (OpListDevices), GIDEntry (OpQueryGIDs), or
// P_Keys (OpQueryPKeys), a u16 each in the order of their indices.
type ListReply struct {
	Count uint32
	_     uint32
}

// DeviceEntry is a device that can be opened.
type DeviceEntry struct {
	Name      [NameSize]byte
	Netdev    [IfNameSize]byte // empty on a fabric
	NodeGUID  uint64           // the first byte of the GUID is the most significant
	PortState uint32           // ibv_port_state
	_         uint32
}

// OpenDeviceRequest makes the connection a context of the device. An empty name means the daemon's
// first device. A connection opens one device.
type OpenDeviceRequest struct {
	Name [NameSize]byte
}

// Chunk is memory in which several rings are. A reply that says where a ring is comes with the
// descriptor of its chunk, also if the client has it already: it maps a chunk when it sees the
// number for the first time, and needs the mapping as long as it has a ring there.
type Chunk struct {
	Number uint32 // is not used again by the connection
	Size   uint32 // in bytes
}

// OpenDeviceReply comes with four descriptors: the doorbell page, the doorbell eventfd, the chunk
// of the ring of asynchronous events, and its event socket.
type OpenDeviceReply struct {
	Name         [NameSize]byte
	NodeGUID     uint64
	DoorbellSize uint32 // bytes of the doorbell page
	EventSlots   uint32 // slots of the event ring, AsyncEventSize bytes each
	Chunk        Chunk
	EventRing    uint32 // offset in the chunk
	_            uint32
}

// OpJoinDevice joins the connection to an existing context. The request comes with the descriptor
// of the context's doorbell page, which its owner may pass to processes that it trusts. The reply
// is an OpenDeviceReply, with a separate event ring. Both connections then share all objects; the
// joined connection registers its own memory as MemorySelf. When the first connection ends, so do
// those that joined.

// EventsWaiting is the offset of the number of events that wait in the daemon because the ring of
// asynchronous events is full. If it is not 0 after a client has taken an event, the client wakes
// the engine as after posting, and the engine moves events to the ring.
const EventsWaiting = CQArmed // u32 in the ring's header, written by the daemon

// DeviceAttr is the reply of OpQueryDevice: the values of struct ibv_device_attr.
type DeviceAttr struct {
	FWVer                 [64]byte // text, ends with a zero byte
	NodeGUID              uint64   // the first byte of the GUID is the most significant
	SysImageGUID          uint64
	MaxMRSize             uint64
	PageSizeCap           uint64
	VendorID              uint32
	VendorPartID          uint32
	HWVer                 uint32
	MaxQP                 uint32
	MaxQPWR               uint32
	DeviceCapFlags        uint32
	MaxSGE                uint32
	MaxSGERd              uint32
	MaxCQ                 uint32
	MaxCQE                uint32
	MaxMR                 uint32
	MaxPD                 uint32
	MaxQPRdAtom           uint32
	MaxEERdAtom           uint32
	MaxResRdAtom          uint32
	MaxQPInitRdAtom       uint32
	MaxEEInitRdAtom       uint32
	AtomicCap             uint32 // ibv_atomic_cap
	MaxEE                 uint32
	MaxRDD                uint32
	MaxMW                 uint32
	MaxRawIPv6QP          uint32
	MaxRawEthyQP          uint32
	MaxMcastGrp           uint32
	MaxMcastQPAttach      uint32
	MaxTotalMcastQPAttach uint32
	MaxAH                 uint32
	MaxFMR                uint32
	MaxMapPerFMR          uint32
	MaxSRQ                uint32
	MaxSRQWR              uint32
	MaxSRQSGE             uint32
	MaxPKeys              uint32
	LocalCAAckDelay       uint32
	PhysPortCnt           uint32
	MaxInlineData         uint32 // bytes in a send work request
	DeviceCapFlagsEx      uint64 // device_cap_flags_ex: DeviceCapFlags and the upper half
	HCACoreClock          uint64 // kHz: the clock of a completion's timestamp
	TimestampMask         uint64 // completion_timestamp_mask: the valid bits of a completion's timestamp
	MaxDMSize             uint64 // bytes of device memory that the client may allocate
}

// PortAttr is the reply of OpQueryPort: the values of struct ibv_port_attr.
type PortAttr struct {
	State         uint32 // ibv_port_state
	MaxMTU        uint32 // ibv_mtu
	ActiveMTU     uint32 // ibv_mtu
	GIDTblLen     uint32
	PortCapFlags  uint32
	MaxMsgSize    uint32
	BadPKeyCntr   uint32
	QKeyViolCntr  uint32
	PKeyTblLen    uint16
	LID           uint16
	SMLID         uint16
	LMC           uint8
	MaxVLNum      uint8
	SMSL          uint8
	SubnetTimeout uint8
	InitTypeReply uint8
	ActiveWidth   uint8
	ActiveSpeed   uint8
	PhysState     uint8
	LinkLayer     uint8 // 2: Ethernet
	Flags         uint8
}

// GIDEntry is an entry of the GID table.
type GIDEntry struct {
	GID    [16]byte
	Index  uint32
	Type   uint32 // ibv_gid_type: 2, RoCE v2
	Netdev [IfNameSize]byte
	VLAN   uint32 // VLAN ID, 0 for none
}

// ClockReply is the current time of the device: ibv_query_rt_values_ex.
type ClockReply struct {
	Clock     uint64 // on the clock of completions' timestamps
	Wallclock uint64 // the same moment on the clock of completions' wall-clock times
}

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

// RegMRRequest registers memory. If a mapped descriptor cannot be sealed against shrinking, its
// memory is accessed through Address instead. A DMA buffer, or shared memory used as one, may
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
	Flags   uint32 // CQOwnChannel
	_       uint32
}

// CQOwnChannel requests a completion channel for this queue only, which has no handle.
const CQOwnChannel = 1

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
	PD     uint32
	SendCQ uint32
	RecvCQ uint32
	SRQ    uint32 // 0: none
	Type   uint32 // ibv_qp_type
	SigAll uint32 // 0 or 1
	XRCD   uint32 // XRC target, else 0
	_      uint32
	Cap    QPCap
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

// SnapshotReply comes with a descriptor of memory that holds Length bytes of JSON: the state of the
// daemon, as "softroce show" prints it. Needs no open device.
type SnapshotReply struct {
	Length uint64
}

// StartCaptureRequest comes with the descriptor to write the capture to. Needs root or the daemon's
// user. The capture ends with OpStopCapture or the connection.
type StartCaptureRequest struct {
	Device [NameSize]byte // empty: all
}

// SetPKeysRequest replaces the P_Key table of a device: queue pairs use the key that is now at
// their index, and clients get PKEY_CHANGE. Needs root or the daemon's user.
type SetPKeysRequest struct {
	Device [NameSize]byte
	Count  uint32
	_      uint32
	PKeys  [MaxPKeys]uint16 // 0: no key at this index
}

// MaxPKeys is the size of the largest P_Key table.
const MaxPKeys = 64

// CaptureReply is the state of this connection's capture.
type CaptureReply struct {
	Packets uint64
	Bytes   uint64
	Dropped uint64 // packets that the writer could not write in time
}
