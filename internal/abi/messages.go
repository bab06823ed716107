package abi

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
const Version = 5

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

	OpHoldMemory    = 28
	OpReleaseMemory = 29

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

	OpSnapshot      = 64
	OpStartCapture  = 65
	OpQueryCapture  = 66
	OpStopCapture   = 67
	OpGoodbye       = 68 // from the daemon, with tag 0: why it closes the socket
	OpSetPKeys      = 69
	OpOpenTree      = 70 // its reply comes with a directory: sys/class/infiniband… and dev/infiniband, as the kernel has them
	OpSetLink       = 71
	OpAddFaults     = 72
	OpRemoveFault   = 73
	OpFireEvent     = 74
	OpSetCounter    = 75
	OpSetCongestion = 76
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
	OnDemandPaging        uint64 // 1 if memory may be registered for on-demand paging, else 0
}

// QueryPortRequest names a port, from 1.
type QueryPortRequest struct {
	Port uint32
	_    uint32
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
	ActiveSpeedEx uint32 // as ActiveSpeed, which cannot hold XDR
	Rate          uint32 // in 100 Mb/s: ibv_query_port_speed
}

// GIDEntry is an entry of the GID table.
type GIDEntry struct {
	GID    [16]byte
	Index  uint32
	Type   uint32 // ibv_gid_type: 1, RoCE v1, which cannot be used, or 2, RoCE v2
	Netdev [IfNameSize]byte
	VLAN   uint32 // VLAN ID, 0 for none
}

// ClockReply is the current time of the device: ibv_query_rt_values_ex.
type ClockReply struct {
	Clock     uint64 // on the clock of completions' timestamps
	Wallclock uint64 // the same moment on the clock of completions' wall-clock times
}
