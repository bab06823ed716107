package transport

import (
	"errors"
	"math/rand/v2"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// Env is what the engine provides for the duration of one call.
type Env struct {
	Now   int64 // nanoseconds of a monotonic or simulated clock, greater than 0
	Mem   *mrtable.IO
	Table *mrtable.Table
	Sink  Sink
	Rand  *rand.Rand // shortens doubled local ACK timeouts; nil: they are not shortened

	hdr   packet.Header // of the packet being built
	wc    Completion    // argument of Sink.Complete
	segs  [][]byte      // payload of the packet being built
	piece [1][]byte     // payload of a write
}

// A Sink receives the packets, completions and events of a queue pair.
type Sink interface {
	// Packet returns a transmit slot, which the queue pair fills before it requests the next one.
	// It returns nil if no more packets fit into this step.
	Packet(q *QP) *packet.Tx

	// Room returns an estimate of how many slots Packet can return now.
	Room(q *QP) int

	// Last reports whether the next slot is the last one for some time. A requester then asks for
	// an acknowledgement. It may be wrong.
	Last(q *QP) bool

	// Run reports how many of the next slots may be one run of full packets (packet.Run), none of
	// them the last one as of Last. Less than 2 means that there may be no run.
	Run(q *QP) int

	// Discard drops the READ responses of q that Packet was called for and that have not left, if
	// they have one of n PSNs from psn on.
	Discard(q *QP, psn, n uint32)

	// Complete is called for each finished work request, in order per queue. It is called for every
	// send work request, whether or not it is signaled, so that the owner can free its slot. c is
	// valid during the call only.
	Complete(q *QP, c *Completion)

	// Event reports an asynchronous event of the queue pair.
	Event(q *QP, ev ib.EventType)
}

// A RecvQueue supplies receive work requests: the queue pair's own receive queue or a shared one.
type RecvQueue interface {
	// Next removes the oldest receive work request and reports whether there was one. wr.SGEs stay
	// valid until the queue pair completes the work request or calls Next again.
	Next(wr *RecvWR) bool
	Len() int     // work requests posted and not yet taken by Next
	Shared() bool // a shared receive queue grants no end-to-end credits
}

// An SGE is an element of a scatter/gather list.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// A RecvWR is a receive work request.
type RecvWR struct {
	ID    uint64
	SGEs  []SGE
	Fault Fault
}

// A Fault is an error with which a work request completes that is otherwise right. It is not
// carried out. The zero Fault is none.
type Fault struct {
	Status    ib.WCStatus
	VendorErr uint32 // Completion.VendorErr
}

// A SendWR is a send work request. PostSend copies it, including SGEs and Inline.
type SendWR struct {
	ID         uint64
	Opcode     ib.WROpcode
	Flags      ib.SendFlags
	Imm        uint32 // immediate data, or the R_Key to invalidate
	RemoteAddr uint64
	RKey       uint32
	CompareAdd uint64
	Swap       uint64
	RemoteQPN  uint32 // UD: destination queue pair
	RemoteSRQ  uint32 // XRC: number of the peer's shared receive queue
	RemoteQKey uint32 // UD; with its highest bit set, the QP's own Q_Key is sent (IBTA 10.2.5)
	Dest       any    // UD: the address handle, opaque here, see QP.Destination; nil if it does not exist
	SGEs       []SGE
	Inline     []byte // the payload, if Flags has SendInline
	Bind       Bind   // WRBindMW
	Flush      Flush  // WRFlush
	Fault      Fault
}

// Bind holds the parameters of a memory window bind. SendWR.RKey is the new R_Key: its upper 24
// bits identify the window.
type Bind struct {
	LKey   uint32 // L_Key of the region
	Access ib.Access
	Addr   uint64
	Length uint64 // 0 unbinds a type 1 window
}

// Flush holds the parameters of a FLUSH at SendWR.RemoteAddr, with the values of the FETH.
type Flush struct {
	Length      uint32
	Placement   ib.FlushPlacement
	Selectivity ib.FlushSelectivity
}

// A Completion describes a finished work request.
type Completion struct {
	WRID      uint64
	Status    ib.WCStatus
	VendorErr uint32 // that of a Fault; 0: that of the NIC for the status
	Opcode    ib.WCOpcode
	ByteLen   uint32 // receives, and requests that return data
	Imm       uint32 // immediate data, or the R_Key that was invalidated
	Flags     ib.WCFlags
	SrcQP     uint32
	Recv      bool      // a receive work request
	Signaled  bool      // the completion queue gets an entry
	Solicited bool      // the message requested a solicited event
	SL        uint8     // UD: RxPacket.SL
	VLAN      uint16    // receives: RxPacket.VLAN of the last packet
	Queue     RecvQueue // XRC: the shared receive queue that the work request was posted to
}

// An RxPacket is a received packet: its parsed headers, and the payload without padding.
type RxPacket struct {
	packet.Header
	Payload [][]byte   // pieces in order; valid during the call and until Env.Mem is flushed
	Len     int        // payload bytes
	Run     packet.Run // Payload is that of all its packets
	CE      bool       // congestion experienced
	SL      uint8      // service level, passed on as Completion.SL
	VLAN    uint16     // VLAN tag, passed on as Completion.VLAN
	GRH     []byte     // UD: 40 bytes placed before the payload; valid as long as Payload
}

// A Writer identifies the side of a queue pair that writes to memory. It is the tag of
// mrtable.IO.Write, which mrtable.IO.Failed returns if the write fails.
type Writer struct {
	QP        *QP
	Requester bool // the requester writes a response; otherwise the responder writes a request
}

// Stale reports whether the queue pair was reset since w wrote. The results of those writes no
// longer concern it.
func (w *Writer) Stale() bool { return w != w.QP.reqWriter && w != w.QP.respWriter }

// A Role is the side of an XRC connection that a queue pair implements.
type Role uint8

// Roles.
const (
	BothRoles Role = iota // requester and responder: every service except XRC
	Initiator             // requester only (XRC INI)
	Target                // responder only (XRC TGT)
)

// An XRCDomain is an XRC domain, as its target queue pairs use it.
type XRCDomain interface {
	// Queue returns the domain's shared receive queue with this number and the protection domain in
	// which requests to it access memory, or nil if there is none. The result is used until the
	// next call.
	Queue(number uint32) (RecvQueue, *mrtable.PD)
}

// Errors of PostSend.
var (
	ErrFull  = errors.New("send queue is full")
	ErrState = errors.New("QP state does not allow posting")
)

// MaxMessage is the longest message of RC and UC in bytes (IBTA 9.7.7, DMA length).
const MaxMessage = 1 << 31

// Config holds the properties of a queue pair that are fixed at creation.
type Config struct {
	SendDepth  int // send work requests
	MaxSendSGE int
	MaxReadSGE int // of a READ; 0, or more: MaxSendSGE
	MaxInline  int
	Recv       RecvQueue
	RecvPD     *mrtable.PD // of the shared receive queue Recv; nil: PD
	PortMTU    int         // UD: largest payload of a datagram, in bytes
	Domain     XRCDomain   // of an XRC target, whose PD and Recv are nil

	// What each packet uses is beside the attributes of the queue pair.
	QPN          uint32
	Service      packet.Service
	Role         Role    // XRC only
	SigAll       bool    // every send work request is signaled (sq_sig_all)
	NoInvalidate bool    // neither local invalidation nor SEND with invalidate is executed
	Refused      KindSet // operations that are neither sent nor executed
	PD           *mrtable.PD
	Counters     *Counters
	Pool         *Pool // shared by the queue pairs of an engine; nil: one of its own
	UserData     any   // opaque, returned by QP.UserData
}

// A KindSet is a set of operations.
type KindSet uint32

// With returns s with k added.
func (s KindSet) With(k packet.Kind) KindSet { return s | 1<<k }

// Has reports whether k is in s.
func (s KindSet) Has(k packet.Kind) bool { return s&(1<<k) != 0 }
