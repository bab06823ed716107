package transport

import (
	"errors"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// Env is what an engine lends a queue pair for the time of one call.
type Env struct {
	Now   int64 // nanoseconds of a monotonic or simulated clock, above 0
	Mem   *mrtable.IO
	Table *mrtable.Table
	Sink  Sink
}

// A Sink takes what a queue pair yields.
type Sink interface {
	// Packet returns a transmit slot, which the queue pair fills before it asks for
	// another, or nil when no more packets can be taken in this step.
	Packet(q *QP) *packet.Tx

	// Room returns how many slots Packet would return now, as far as is known.
	Room(q *QP) int

	// Complete hears of each work request that is done, in order per queue: of
	// every send work request, Signaled or not, so that the owner can free
	// its slot. c is valid during the call.
	Complete(q *QP, c *Completion)

	// Event hears of what verbs calls an asynchronous event.
	Event(q *QP, ev ib.EventType)
}

// A RecvQueue is where a responder takes receive work requests from: the queue
// pair's own receive queue or a shared one.
type RecvQueue interface {
	// Next takes the oldest receive work request. wr.SGEs stay valid until the
	// queue pair has completed it, or calls Next again.
	Next(wr *RecvWR) bool
	Len() int     // posted and not taken
	Shared() bool // a shared receive queue has no end-to-end credits
}

// An SGE is an element of a scatter/gather list.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// A RecvWR is a receive work request.
type RecvWR struct {
	ID   uint64
	SGEs []SGE
}

// A SendWR is a send work request. PostSend copies it whole.
type SendWR struct {
	ID         uint64
	Opcode     ib.WROpcode
	Flags      ib.SendFlags
	Imm        uint32 // immediate data, or the R_Key to invalidate
	RemoteAddr uint64
	RKey       uint32
	CompareAdd uint64
	Swap       uint64
	RemoteQPN  uint32 // UD
	RemoteSRQ  uint32 // XRC: the number of the shared receive queue
	RemoteQKey uint32 // UD; with its highest bit the queue pair's own is sent (IBTA 10.2.5)
	Dest       any    // UD: the address handle, not touched, see QP.Destination; nil: there is no such
	SGEs       []SGE
	Inline     []byte // the payload itself where Flags has Inline
	Bind       Bind   // WRBindMW
	Flush      Flush  // WRFlush
}

// Bind says what a memory window is to grant. The work request's RKey is the window's new key,
// which names it by all but its low 8 bits.
type Bind struct {
	LKey   uint32 // of the region
	Access ib.Access
	Addr   uint64
	Length uint64 // 0 unbinds a window of type 1
}

// Flush says what a FLUSH asks of the bytes at RemoteAddr, as its FETH has it.
type Flush struct {
	Length      uint32
	Placement   uint8 // enum ibv_placement_type
	Selectivity uint8 // enum ibv_selectivity_level
}

// A Completion tells that a work request is done.
type Completion struct {
	WRID      uint64
	Status    ib.WCStatus
	Opcode    ib.WCOpcode
	ByteLen   uint32 // receives and READs
	Imm       uint32 // immediate, or the R_Key that was invalidated
	Flags     ib.WCFlags
	SrcQP     uint32
	Recv      bool      // of the receive queue
	Signaled  bool      // a completion queue entry is due
	Solicited bool      // the message asked for a solicited event
	SL        uint8     // of the packet, as its owner saw it: UD
	VLAN      uint16    // receives: the tag of the last packet, as its owner saw it
	Queue     RecvQueue // XRC: the shared receive queue whose work request this is
}

// A Packet is a received packet, parsed, with its pad cut off.
type RxPacket struct {
	packet.Header
	Payload [][]byte // in order; valid during the call and until Env.Mem is flushed
	Len     int      // bytes of payload
	CE      bool     // congestion experienced
	SL      uint8    // for Completion.SL
	VLAN    uint16   // for Completion.VLAN
	GRH     []byte   // UD: the 40 bytes before the payload; valid for as long as Payload
}

// A Writer says for whom a write to memory is: mrtable.IO.Write has it as its tag, and
// mrtable.IO.Failed gives it back.
type Writer struct {
	QP        *QP
	Requester bool // what a READ or an atomic returned; else what the peer sent
}

// A Role is the end of an XRC connection that a queue pair is.
type Role uint8

// Roles.
const (
	BothRoles Role = iota // every service but XRC
	Initiator             // sends requests and receives nothing (XRC INI)
	Target                // answers requests and sends none (XRC TGT)
)

// A Domain is an XRC domain as one of its target queue pairs sees it.
type XRCDomain interface {
	// Queue finds the shared receive queue of the domain that has a number, and the protection
	// domain in which its requests reach memory; nil: there is none. What it returns is used until the next
	// call.
	Queue(number uint32) (RecvQueue, *mrtable.PD)
}

// Errors of PostSend.
var (
	ErrFull  = errors.New("send queue is full")
	ErrState = errors.New("QP is not in a state for this")
)

// MaxMessage is the longest message of RC and UC (IBTA 9.7.7, DMA length).
const MaxMessage = 1 << 31

// Config is what a queue pair is made of, and keeps for its life.
type Config struct {
	QPN        uint32
	Service    packet.Service
	PD         *mrtable.PD
	SendDepth  int // work requests
	MaxSendSGE int
	MaxInline  int
	Recv       RecvQueue
	PortMTU    int  // UD: what a datagram may carry, in bytes
	SigAll     bool // every send work request gets a CQE (sq_sig_all)
	Counters   *Counters
	Role       Role      // XRC
	Domain     XRCDomain // of an XRC target, which has neither PD nor Recv
	UserData   any       // the owner's; not touched
}
