package abi

// The control socket is a UNIX seqpacket socket: one request or reply to a packet, a
// Header and the body of its operation. The client sends requests; the daemon answers
// each with the same Op and Tag. Descriptors travel with the packet (SCM_RIGHTS), in
// the order that the body's description gives.
//
// Events arrive through pipes. The client has the read end: each event is one byte, of no
// meaning, and the end of the file says that the daemon is gone. An eventfd would be one
// file description for both sides, and a client that takes its O_NONBLOCK away could
// block the daemon; the two ends of a pipe are apart. An event that finds the pipe full
// (65536 events that nobody read) adds no byte.
//
// Structs have the layout that C gives them: every field at a multiple of its size,
// with the padding written out.

// Version of the ABI: a client and a daemon whose versions differ do not talk.
const Version = 2

// Sizes of messages, in bytes.
const (
	MaxMessage = 65536 // whole, header included
	MaxFDs     = 8     // descriptors with one message
	NameSize   = 64    // of a device, with the zero byte that ends it
	IfNameSize = 16    // of a network interface, with the zero byte
)

// Header begins every message.
type Header struct {
	Version uint16
	Op      uint16 // Op…
	Length  uint32 // of the whole message
	Tag     uint64 // the client's; comes back in the reply
	Errno   uint32 // replies: 0, or an errno; then the body is an explanation, UTF-8 text
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

// HelloRequest is the first message of a connection. The reply's version is the
// daemon's; if the request's is another, the error is EPROTONOSUPPORT.
type HelloRequest struct {
	Comm [16]byte // the program's name, for show; ends with a zero byte
}

// HelloReply tells who serves.
type HelloReply struct {
	PID     uint32 // of the daemon, in the daemon's PID namespace
	Devices uint32
	Release [NameSize]byte // text
}

// ListReply is followed by Count of DeviceEntry (OpListDevices), GIDEntry (OpQueryGIDs), or P_Keys, a
// u16 each in the order of their indices (OpQueryPKeys).
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

// OpenDeviceRequest makes the connection a context of the device. An empty name stands
// for the daemon's first device. A connection opens one device.
type OpenDeviceRequest struct {
	Name [NameSize]byte
}

// OpenDeviceReply comes with four descriptors: the doorbell page, the doorbell eventfd,
// the ring of asynchronous events and its event pipe.
type OpenDeviceReply struct {
	Name         [NameSize]byte
	NodeGUID     uint64
	DoorbellSize uint32 // bytes of the doorbell page
	EventSlots   uint32 // slots of the event ring, AsyncEventSize bytes each
}

// OpJoinDevice makes the connection another one to the context of which it brings the doorbell page's
// descriptor, which the one that opened the device may give to whom it trusts. The reply is an
// OpenDeviceReply, with an event ring of its own. From then on both have the same objects; what memory
// the joined connection registers it shows as MemorySelf. When the first connection ends, so do those that joined.

// EventsLost is where the ring of asynchronous events has the number of events that found it full.
const EventsLost = CQArmed // u32 in the header page, written by the daemon

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
	DeviceCapFlagsEx      uint64 // device_cap_flags_ex: DeviceCapFlags and what lies above
	HCACoreClock          uint64 // kHz: the clock of CQETimestamp
	TimestampMask         uint64 // completion_timestamp_mask: the bits of CQETimestamp that count
	MaxDMSize             uint64 // bytes of device memory that the client may have
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

// GIDEntry is a row of the GID table.
type GIDEntry struct {
	GID    [16]byte
	Index  uint32
	Type   uint32 // ibv_gid_type: 2, RoCE v2
	Netdev [IfNameSize]byte
	VLAN   uint32 // VLAN ID, 0 for none
}

// ClockReply is the time of the device: ibv_query_rt_values_ex.
type ClockReply struct {
	Clock     uint64 // as CQETimestamp has it
	Wallclock uint64 // the same moment as CQEWallclock has it
}

// HandleRequest names the object that an operation closes or asks about.
type HandleRequest struct {
	Handle uint32
	_      uint32
}

// HandleReply names the object that was created. A handle belongs to its connection and
// is never 0. OpCreateChannel's reply comes with the channel's event pipe. Which
// completion queue had the event tells its CQEvents.
type HandleReply struct {
	Handle uint32
	_      uint32
}

// Kinds of registered memory.
const (
	MemoryProcess = 0 // Address, in the process that connected; needs the right to ptrace it
	MemoryMapped  = 1 // a descriptor that can be mapped, from Offset on; Address is the client's own mapping of it, or 0
	MemorySelf    = 2 // Address, through a descriptor of the client's own /proc/self/mem
	MemoryDMABuf  = 3 // the descriptor of a DMA buffer, or of shared memory in its place, from Offset on
	MemoryDevice  = 4 // device memory: Address is its handle, from Offset on
)

// RegMRRequest registers memory. Where a mapped descriptor cannot be sealed against
// shrinking, its memory is reached through Address instead. A DMA buffer, and shared memory in its place, may shrink: what it
// has lost is out of reach. Offset and IOVA of a DMA buffer lie at the same place in a page of 4096 bytes, and Access is as
// ibv_reg_dmabuf_mr has it. Device memory is zero-based. Neither can be registered anew.
type RegMRRequest struct {
	PD      uint32
	Memory  uint32 // Memory…
	Access  uint32 // ibv_access_flags
	_       uint32
	IOVA    uint64 // address of the first byte in work requests and for peers
	Length  uint64
	Address uint64
	Offset  uint64
}

// RegMRReply tells the keys, and how the memory is reached.
type RegMRReply struct {
	Handle uint32
	LKey   uint32
	RKey   uint32
	Memory uint32 // Memory…
}

// ReregMRRequest makes a registered region what MR says, with the same handle and keys; the answer is a
// RegMRReply. Where it is refused the region is as it was.
type ReregMRRequest struct {
	Handle uint32
	_      uint32
	MR     RegMRRequest
}

// QueryMRReply tells of a region.
type QueryMRReply struct {
	LKey   uint32
	RKey   uint32
	IOVA   uint64
	Length uint64
	Access uint32 // ibv_access_flags
	_      uint32
}

// AllocDMRequest allocates device memory; the answer is a HandleReply.
type AllocDMRequest struct {
	Length   uint64
	LogAlign uint32 // its address is to be a multiple of 2^LogAlign
	_        uint32
}

// QueryDMReply tells of device memory.
type QueryDMReply struct {
	Length uint64
}

// DMCopyMax is how many bytes one message copies to device memory or from it.
const DMCopyMax = 15 * 4096

// CopyDMRequest copies to device memory the bytes that follow the request, Length in number, or from it: then
// the bytes are the answer. Offset and Length are multiples of 4.
type CopyDMRequest struct {
	Handle uint32
	Length uint32 // DMCopyMax at most
	Offset uint64
}

// AllocMWRequest allocates a memory window, which a work request binds.
type AllocMWRequest struct {
	PD   uint32
	Type uint32 // ibv_mw_type
}

// AllocMWReply tells the key. A bind changes its low 8 bits.
type AllocMWReply struct {
	Handle uint32
	RKey   uint32
}

// OpenXRCDRequest opens an XRC domain; the answer is a HandleReply. With a descriptor it is that
// of the file, which every client may open that has the file open; without, a new one.
type OpenXRCDRequest struct {
	Flags uint32 // XRCD…
	_     uint32
}

// Bits of OpenXRCDRequest's Flags.
const (
	XRCDCreate    = 1 << 0 // O_CREAT: make it if there is none
	XRCDExclusive = 1 << 1 // O_EXCL: there must be none
)

// AHAttr is where packets go and how: struct ibv_ah_attr.
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

// CreateAHRequest creates an address handle; the answer is a HandleReply.
type CreateAHRequest struct {
	PD uint32
	_  uint32
	AH AHAttr
}

// CreateCQRequest creates a completion queue.
type CreateCQRequest struct {
	Entries uint32
	Channel uint32 // handle, or 0 for none
	Flags   uint32 // CQOwnChannel
	_       uint32
}

// CQOwnChannel asks for a completion channel of the queue alone, which has no handle.
const CQOwnChannel = 1

// CreateCQReply comes with the ring (slots of CQESize bytes), then, where CQOwnChannel
// was asked for, the channel's event pipe.
type CreateCQReply struct {
	Handle  uint32
	Entries uint32 // granted; the ring has that many slots
}

// ResizeCQRequest asks for another number of entries; the answer is a CreateCQReply with a new
// ring. What was not polled is in it, with the same indices. From request to answer the
// client neither polls the queue nor arms it, and then forgets the old ring.
type ResizeCQRequest struct {
	Handle  uint32
	Entries uint32
}

// SRQAttr is struct ibv_srq_attr.
type SRQAttr struct {
	MaxWR    uint32
	MaxSGE   uint32
	SRQLimit uint32 // an event is given when fewer are posted; 0: none, or it was given
	_        uint32
}

// CreateSRQRequest creates a shared receive queue.
type CreateSRQRequest struct {
	PD   uint32
	Type uint32 // SRQ…
	XRCD uint32 // SRQXRC, else 0
	CQ   uint32 // SRQXRC: of its completions, else 0
	Attr SRQAttr
}

// Types of shared receive queues: enum ibv_srq_type.
const (
	SRQBasic = 0
	SRQXRC   = 1
)

// SRQReply comes with the ring of a shared receive queue, a receive ring.
type SRQReply struct {
	Handle   uint32
	Slots    uint32
	SlotSize uint32
	Number   uint32  // SRQXRC: what peers call it, else 0
	Attr     SRQAttr // granted
}

// ModifySRQRequest changes the attributes that Mask (ibv_srq_attr_mask) names. The answer is
// an SRQReply; it comes with a new ring where Mask has SRQMaxWR: what is posted is in it, with the same
// indices. From request to answer the client does not post.
type ModifySRQRequest struct {
	Handle uint32
	Mask   uint32
	Attr   SRQAttr
}

// Bits of ModifySRQRequest's Mask: enum ibv_srq_attr_mask.
const (
	SRQMaxWR = 1 << 0
	SRQLimit = 1 << 1
)

// McastRequest attaches a UD queue pair to a multicast group, or ends that.
type McastRequest struct {
	QP  uint32
	LID uint32 // no meaning on Ethernet
	GID [16]byte
}

// QPCap is how much a queue pair holds: struct ibv_qp_cap.
type QPCap struct {
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32
	_             uint32
}

// CreateQPRequest creates a queue pair. One for XRC has no RecvCQ and no SRQ; an XRC target has an XRCD
// and nothing else.
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

// CreateQPReply comes with the rings of the send and of the receive queue; with that of the send
// queue alone where there is an SRQ or XRC, with none for an XRC target.
type CreateQPReply struct {
	Handle       uint32
	QPN          uint32
	Doorbell     uint32 // number of the bit in the doorbell page
	SendSlots    uint32
	SendSlotSize uint32
	RecvSlots    uint32
	RecvSlotSize uint32
	_            uint32
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

// ModifyQPRequest changes the attributes that Mask (ibv_qp_attr_mask) names. The reply
// to a request with a new address vector may take as long as finding the neighbour does.
type ModifyQPRequest struct {
	Handle uint32
	Mask   uint32
	Attr   QPAttr
}

// QueryQPReply tells the attributes of a queue pair.
type QueryQPReply struct {
	Attr QPAttr
}

// SnapshotReply comes with a descriptor of memory that holds Length bytes of JSON: what
// the daemon holds, as "softroce show" prints it. Needs no open device.
type SnapshotReply struct {
	Length uint64
}

// StartCaptureRequest comes with the descriptor that the capture is written to. Needs the
// daemon's own user or root. The capture ends with OpStopCapture or the connection.
type StartCaptureRequest struct {
	Device [NameSize]byte // empty: all
}

// SetPKeysRequest replaces the P_Key table of a device: queue pairs have what is at their index from now on, and
// clients hear PKEY_CHANGE. Needs the daemon's own user or root.
type SetPKeysRequest struct {
	Device [NameSize]byte
	Count  uint32
	_      uint32
	PKeys  [MaxPKeys]uint16 // 0: nothing at this index
}

// MaxPKeys is the most that a P_Key table holds.
const MaxPKeys = 64

// CaptureReply is the state of this connection's capture.
type CaptureReply struct {
	Packets uint64
	Bytes   uint64
	Dropped uint64 // packets that the writer could not keep up with
}
