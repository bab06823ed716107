package verbs

import (
	"fmt"
	"net/netip"
	"strings"

	"softroce/internal/ib"
)

// DeviceAttr is the capabilities of a NIC: the fields of ibv_device_attr.
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
	DeviceCapFlagsEx      uint64 // device_cap_flags_ex: DeviceCapFlags and the bits above
	HCACoreClock          uint64 // kHz: the clock of WC.Timestamp; 0: the NIC has none
	TimestampMask         uint64 // completion_timestamp_mask: the valid bits of WC.Timestamp
	MaxDMSize             uint64 // bytes of device memory that a client may allocate
	OnDemandPaging        uint64 // 1 if memory may be registered for on-demand paging, else 0
}

// DeviceInfo describes a NIC that can be opened.
type DeviceInfo struct {
	Name     string
	Netdev   string // network interface; "" on a fabric
	NodeGUID uint64 // the first byte of the GUID is the most significant
	State    PortState
}

// PortAttr is the state of a NIC's only port: the fields of ibv_port_attr that apply to RoCE.
type PortAttr struct {
	State       PortState
	MaxMTU      MTU
	ActiveMTU   MTU
	GIDTblLen   int
	MaxMsgSize  uint32
	PKeyTblLen  int
	ActiveWidth uint8
	ActiveSpeed uint8
	PhysState   uint8
	LinkLayer   uint8 // 2: Ethernet
	CapFlags    uint32

	BadPKeyCntr  uint32 // packets with a wrong P_Key
	QKeyViolCntr uint32 // packets with a wrong Q_Key
}

// GID is a global identifier: an IPv6 address, or ::ffff:a.b.c.d.
type GID [16]byte

// GIDFromAddr returns the RoCEv2 GID of an IP address.
func GIDFromAddr(a netip.Addr) GID { return a.As16() }

// Addr returns the IP address that g stands for; an IPv4-mapped GID gives IPv4.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String writes g as eight groups of four hexadecimal digits, as libibverbs does.
func (g GID) String() string {
	var b strings.Builder
	for i := 0; i < len(g); i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}

// GIDEntry is a row of the GID table.
type GIDEntry struct {
	Index  int
	GID    GID
	Netdev string
	VLAN   int  // VLAN ID, 0 for none
	RoCEv1 bool // a GID of RoCE v1, which only the peer's GIDs of RoCE v1 reach
}

// GlobalRoute is the route of packets: ibv_global_route.
type GlobalRoute struct {
	DGID         GID
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
}

// AHAttr is ibv_ah_attr. RoCE uses the global route alone.
type AHAttr struct {
	GRH        GlobalRoute
	DLID       uint16
	SL         uint8
	StaticRate uint8 // ibv_rate: 0 is no limit, 3 is 10 Gb/s; the NIC paces the packets
	PortNum    uint8 // 0 is 1, the only port
}

// QPCap is the capacity of a queue pair: ibv_qp_cap.
type QPCap struct {
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32 // bytes
}

// QPInitAttr describes a queue pair to create: ibv_qp_init_attr.
type QPInitAttr struct {
	SendCQ   *CQ
	RecvCQ   *CQ
	SRQ      *SRQ  // nil: the queue pair has a receive queue
	Cap      QPCap // at least; QP.Cap has the capacity that was granted
	QPType   QPType
	SQSigAll bool // every send work request is signaled
}

// QPAttr is the attributes of a queue pair: ibv_qp_attr. Modify sets those in its mask.
type QPAttr struct {
	QPState          QPState
	CurQPState       QPState
	PathMTU          MTU
	QKey             uint32
	RQPSN            uint32 // 24 bits
	SQPSN            uint32 // 24 bits
	DestQPNum        uint32
	QPAccessFlags    Access
	Cap              QPCap
	AHAttr           AHAttr
	PKeyIndex        uint16
	EnSQDAsyncNotify bool
	SQDraining       bool
	MaxRdAtomic      uint8 // READs and atomics outstanding as requester
	MaxDestRdAtomic  uint8 // READs and atomics outstanding as responder
	MinRNRTimer      uint8 // code of IBTA 9.7.5.2.8; 12 is 0.64 ms
	PortNum          uint8
	Timeout          uint8  // local ACK timeout 4.096 µs · 2^Timeout; 0 is none
	RetryCnt         uint8  // 0 to 7
	RNRRetry         uint8  // 0 to 7; 7 is unlimited
	RateLimit        uint32 // of what is sent, kb/s; 0 is none
}

// QPAttrMask names fields of QPAttr: ibv_qp_attr_mask.
type QPAttrMask uint32

// Bits of QPAttrMask.
const (
	QPMaskState            QPAttrMask = QPAttrMask(ib.QPMaskState)
	QPMaskCurState         QPAttrMask = QPAttrMask(ib.QPMaskCurState)
	QPMaskEnSQDAsyncNotify QPAttrMask = QPAttrMask(ib.QPMaskEnSQDNotify)
	QPMaskAccessFlags      QPAttrMask = QPAttrMask(ib.QPMaskAccess)
	QPMaskPKeyIndex        QPAttrMask = QPAttrMask(ib.QPMaskPKeyIndex)
	QPMaskPort             QPAttrMask = QPAttrMask(ib.QPMaskPort)
	QPMaskQKey             QPAttrMask = QPAttrMask(ib.QPMaskQKey)
	QPMaskAV               QPAttrMask = QPAttrMask(ib.QPMaskAV)
	QPMaskPathMTU          QPAttrMask = QPAttrMask(ib.QPMaskPathMTU)
	QPMaskTimeout          QPAttrMask = QPAttrMask(ib.QPMaskTimeout)
	QPMaskRetryCnt         QPAttrMask = QPAttrMask(ib.QPMaskRetryCount)
	QPMaskRNRRetry         QPAttrMask = QPAttrMask(ib.QPMaskRNRRetry)
	QPMaskRQPSN            QPAttrMask = QPAttrMask(ib.QPMaskRQPSN)
	QPMaskMaxQPRdAtomic    QPAttrMask = QPAttrMask(ib.QPMaskMaxRDAtomic)
	QPMaskMinRNRTimer      QPAttrMask = QPAttrMask(ib.QPMaskMinRNRTimer)
	QPMaskSQPSN            QPAttrMask = QPAttrMask(ib.QPMaskSQPSN)
	QPMaskMaxDestRdAtomic  QPAttrMask = QPAttrMask(ib.QPMaskMaxDestRDAtomic)
	QPMaskCap              QPAttrMask = QPAttrMask(ib.QPMaskCap)
	QPMaskDestQPN          QPAttrMask = QPAttrMask(ib.QPMaskDestQPN)
	QPMaskRateLimit        QPAttrMask = QPAttrMask(ib.QPMaskRateLimit)
)

// SGE is a range of local memory: ibv_sge. MR.SGE makes one.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a send work request: ibv_send_wr. Opcode decides which fields are used.
type SendWR struct {
	WRID      uint64
	Opcode    WROpcode
	SendFlags SendFlags
	SGList    []SGE  // not kept after PostSend
	Inline    []byte // the data, if SendFlags has SendInline; not kept after PostSend

	BindMW *BindMW // WRBindMW

	FlushLength      uint32         // WRFlush: bytes from RemoteAddr on
	FlushPlacement   FlushPlacement // WRFlush
	FlushSelectivity FlushSelectivity

	RemoteSRQN uint32 // XRC: the peer's SRQ, see SRQ.Number

	Imm            uint32 // …WithImm: the peer receives it in WC.Imm
	InvalidateRKey uint32 // WRSendWithInv, WRLocalInv

	RemoteAddr uint64 // RDMA and atomics
	RKey       uint32

	CompareAdd uint64 // atomics: the operand to compare or to add
	Swap       uint64

	AH         *AH // UD; of the queue pair's PD
	RemoteQPN  uint32
	RemoteQKey uint32 // if its highest bit is set, the queue pair's Q_Key is sent
}

// RecvWR is a receive work request: ibv_recv_wr.
type RecvWR struct {
	WRID   uint64
	SGList []SGE // not kept after PostRecv
}

// WC is a work completion: ibv_wc. If Status is not WCSuccess, only WRID, Status, VendorErr and
// QPNum are valid.
type WC struct {
	WRID            uint64
	Status          WCStatus
	Opcode          WCOpcode
	VendorErr       uint32
	ByteLen         uint32 // received, read or atomic bytes
	Imm             uint32 // valid with WCWithImm
	InvalidatedRKey uint32 // valid with WCWithInv
	QPNum           uint32 // the local queue pair
	SrcQP           uint32 // UD: the sender's queue pair
	WCFlags         WCFlags
	PKeyIndex       uint16
	SLID            uint16
	SL              uint8
	DLIDPathBits    uint8
	CVLAN           uint16 // receives: the VLAN tag (TCI); 0 for none
	Timestamp       uint64 // of the NIC's clock, see DeviceAttr.HCACoreClock and Context.QueryClock
	WallclockNS     uint64 // the same in ns since 1970
}

// AsyncEvent is something that happened to an object or the NIC: ibv_async_event.
type AsyncEvent struct {
	EventType EventType
	QP        *QP // the object that it is about: one of these, or none
	CQ        *CQ
	SRQ       *SRQ
	Port      uint8
}
