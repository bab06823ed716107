package abi

// Operations of the connection manager. A connection that wants it says OpCMOpen, before or after it opens a
// device, or without one: identifiers are bound to devices by their addresses.
const (
	OpCMOpen           = 80
	OpCMCreateChannel  = 81
	OpCMDestroyChannel = 82
	OpCMGetEvent       = 83
	OpCMCreateID       = 84
	OpCMDestroyID      = 85
	OpCMBind           = 86
	OpCMResolveAddr    = 87
	OpCMResolveRoute   = 88
	OpCMListen         = 89
	OpCMConnect        = 90
	OpCMAccept         = 91
	OpCMReject         = 92
	OpCMEstablish      = 93
	OpCMDisconnect     = 94
	OpCMNotify         = 95
	OpCMInitQPAttr     = 96
	OpCMQueryID        = 97
	OpCMSetOption      = 98
	OpCMMigrate        = 99
	OpCMJoin           = 100
	OpCMLeave          = 101
)

// CMMaxPrivateData is the most private data that a message takes, in bytes. Each kind takes less: a request for a
// connection 56, a response 196, a refusal 148, and for datagrams a request 180, a response 136.
const CMMaxPrivateData = 256

// CMOpenRequest makes the connection a client of the connection manager. With the name of a device
// it uses that one alone.
type CMOpenRequest struct {
	Device [NameSize]byte
}

// CMAddr is an IP address and a port.
type CMAddr struct {
	Family uint16   // AF_INET (2), AF_INET6 (10), or 0: none
	Port   uint16   // as a number of this machine, not in network order
	Scope  uint32   // index of the interface of a link-local address, or 0
	Addr   [16]byte // IPv4: the first four bytes
}

// CMCreateIDRequest makes an identifier whose events go to a channel; the answer is a HandleReply.
type CMCreateIDRequest struct {
	Channel   uint32
	PortSpace uint32 // rdma_port_space
	QPType    uint32 // ibv_qp_type
	_         uint32
}

// CMBindRequest binds an identifier to a source address and port; the answer is a CMIdentifier.
type CMBindRequest struct {
	ID   uint32
	_    uint32
	Addr CMAddr
}

// CMResolveAddrRequest finds the way to an address. ADDR_RESOLVED or ADDR_ERROR follows.
type CMResolveAddrRequest struct {
	ID      uint32
	Timeout uint32 // ms
	Src     CMAddr // may be none
	Dst     CMAddr
}

// CMListenRequest makes an identifier a listener; the answer is a CMIdentifier.
type CMListenRequest struct {
	ID      uint32
	Backlog uint32 // 0: as much as there is
}

// CMConnParam is struct rdma_conn_param.
type CMConnParam struct {
	QPN                uint32
	QKey               uint32 // datagrams
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	SRQ                uint8
	PrivateLen         uint16
	ECEVendor          uint32 // enhanced connection establishment: vendor ID, 0 for none
	ECEOptions         uint32
	PrivateData        [CMMaxPrivateData]byte
}

// CMConnectRequest asks for a connection (OpCMConnect) or agrees to one (OpCMAccept).
type CMConnectRequest struct {
	ID    uint32
	_     uint32
	Param CMConnParam
}

// CMRejectRequest refuses a connection.
type CMRejectRequest struct {
	ID          uint32
	Reason      uint32 // 0 stands for 28, consumer defined
	PrivateLen  uint32
	_           uint32
	PrivateData [CMMaxPrivateData]byte
}

// CMInitQPAttrRequest asks what a queue pair needs to go to a state.
type CMInitQPAttrRequest struct {
	ID    uint32
	State uint32 // ibv_qp_state
}

// CMInitQPAttrReply has it: the attributes that Mask names.
type CMInitQPAttrReply struct {
	Mask uint32 // ibv_qp_attr_mask
	_    uint32
	Attr QPAttr
}

// CMIdentifier tells what an identifier is bound to, and where it leads. With an unresolved one, the path is zero.
type CMIdentifier struct {
	Device     [NameSize]byte // empty: none
	Src        CMAddr
	Dst        CMAddr
	PortSpace  uint32
	QPType     uint32
	SGID       [16]byte
	DGID       [16]byte
	FlowLabel  uint32
	PKey       uint16
	MTU        uint8 // ibv_mtu
	PacketLife uint8 // code of 4.096 µs · 2^n
	SGIDIndex  uint8
	HopLimit   uint8
	TClass     uint8
	PortNum    uint8 // 0: bound to no device
	_          uint32
}

// CMSetOptionRequest sets an option of level RDMA_OPTION_ID.
type CMSetOptionRequest struct {
	ID     uint32
	Option uint32
	Value  uint32
	_      uint32
}

// CMMigrateRequest moves an identifier to another event channel of the connection.
type CMMigrateRequest struct {
	ID      uint32
	Channel uint32
}

// CMJoinRequest makes an identifier a member of a multicast group (OpCMJoin), or ends that (OpCMLeave).
type CMJoinRequest struct {
	ID     uint32
	_      uint32
	Addr   CMAddr
	Cookie uint64 // the client's; comes back in the event
}

// CMEvent is the answer to OpCMGetEvent, which is asked when the channel's pipe has a byte; EAGAIN where there is no
// event after all: what it was about is gone.
type CMEvent struct {
	Type       uint32 // rdma_cm_event_type
	Status     int32  // 0, -errno, or what the message says
	ID         uint32 // new with CONNECT_REQUEST
	Listen     uint32 // CONNECT_REQUEST
	Cookie     uint64 // MULTICAST_JOIN
	IsDatagram uint32 // 1: AH, RemoteQPN and RemoteQKey have a meaning, of Param only the private data
	RemoteQPN  uint32
	RemoteQKey uint32
	_          uint32
	AH         AHAttr
	Param      CMConnParam
	Info       CMIdentifier // of ID
}
