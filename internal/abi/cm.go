package abi

// Operations of the connection manager. A connection enables them with OpCMOpen, before or after it
// opens a device, or without one: identifiers are bound to devices by address.
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

// CMMaxPrivateData is the size in bytes of a message's private data. Each kind uses less: REQ 56,
// REP 196, REJ 148, SIDR_REQ 180, SIDR_REP 136.
const CMMaxPrivateData = 256

// CMOpenRequest makes the connection a client of the connection manager, on all devices or on the
// one that is named.
type CMOpenRequest struct {
	Device [NameSize]byte
}

// CMAddr is an IP address and a port.
type CMAddr struct {
	Family uint16   // AF_INET (2), AF_INET6 (10), or 0: none
	Port   uint16   // in host byte order
	Scope  uint32   // index of the interface of a link-local address, or 0
	Addr   [16]byte // IPv4: the first four bytes
}

// CMCreateIDRequest creates an identifier whose events go to a channel; the reply is a HandleReply.
type CMCreateIDRequest struct {
	Channel   uint32
	PortSpace uint32 // rdma_port_space
	QPType    uint32 // ibv_qp_type
	_         uint32
}

// CMBindRequest binds an identifier to a source address and port; the reply is a CMIdentifier.
type CMBindRequest struct {
	ID   uint32
	_    uint32
	Addr CMAddr
}

// CMResolveAddrRequest resolves an address. ADDR_RESOLVED or ADDR_ERROR follows.
type CMResolveAddrRequest struct {
	ID      uint32
	Timeout uint32 // ms
	Src     CMAddr // optional
	Dst     CMAddr
}

// CMListenRequest makes an identifier listen; the reply is a CMIdentifier.
type CMListenRequest struct {
	ID      uint32
	Backlog uint32 // 0: the maximum
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

// CMConnectRequest requests a connection (OpCMConnect) or accepts one (OpCMAccept).
type CMConnectRequest struct {
	ID    uint32
	_     uint32
	Param CMConnParam
}

// CMRejectRequest rejects a connection.
type CMRejectRequest struct {
	ID          uint32
	Reason      uint32 // 0 means 28, consumer defined
	PrivateLen  uint32
	_           uint32
	PrivateData [CMMaxPrivateData]byte
}

// CMInitQPAttrRequest requests the attributes with which a queue pair enters a state.
type CMInitQPAttrRequest struct {
	ID    uint32
	State uint32 // ibv_qp_state
}

// CMInitQPAttrReply has the attributes that Mask names.
type CMInitQPAttrReply struct {
	Mask uint32 // ibv_qp_attr_mask
	_    uint32
	Attr QPAttr
}

// CMIdentifier is what an identifier is bound to, and its path, which is zero until it is resolved.
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
	SL         uint8
	_          [3]uint8
}

// CMSetOptionRequest sets an option of level RDMA_OPTION_ID.
type CMSetOptionRequest struct {
	ID     uint32
	Option uint32
	Value  uint32
	_      uint32
}

// CMMigrateRequest moves an identifier to another event channel of the connection; the reply is a
// CMRemovedReply.
type CMMigrateRequest struct {
	ID      uint32
	Channel uint32
}

// CMRemovedReply is the reply to OpCMDestroyID and OpCMMigrate: how many events were removed from
// the identifier's channel. The client removes as many bytes from the channel's socket.
type CMRemovedReply struct {
	Events uint32
	_      uint32
}

// CMJoinRequest joins a multicast group (OpCMJoin) or leaves it (OpCMLeave).
type CMJoinRequest struct {
	ID     uint32
	_      uint32
	Addr   CMAddr
	Cookie uint64 // chosen by the client; returned in the event
}

// CMEvent is the reply to OpCMGetEvent, which a client sends after reading a byte from the
// channel's socket. EAGAIN: the object of the event was destroyed meanwhile.
type CMEvent struct {
	Type       uint32 // rdma_cm_event_type
	Status     int32  // 0, -errno, or the reason in the message
	ID         uint32 // CONNECT_REQUEST: a new identifier
	Listen     uint32 // CONNECT_REQUEST
	Cookie     uint64 // MULTICAST_JOIN
	IsDatagram uint32 // 1: AH, RemoteQPN and RemoteQKey are valid, and of Param only the private data
	RemoteQPN  uint32
	RemoteQKey uint32
	_          uint32
	AH         AHAttr
	Param      CMConnParam
	Info       CMIdentifier // of ID
}
