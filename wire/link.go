package wire

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// Port is the UDP destination port of RoCEv2.
const Port = 4791

// ErrClosed is returned by all methods of a closed link.
var ErrClosed = errors.New("link is closed")

// ErrUnread is returned by Receive if it stopped before the link was empty. The next call goes on
// there.
var ErrUnread = errors.New("link has more packets than one call reads")

// maxUndelivered is how many batches one Receive reads of which it delivers no packet: it drops,
// delays or passes them on. It does not read until the link is empty, because packets may arrive as
// fast as it does so.
const maxUndelivered = 4

// A Link sends and receives RoCE packets in batches. One goroutine calls its methods, that of its
// NIC's engine. No method blocks. Times are in nanoseconds of one monotonic (or simulated) clock.
type Link interface {
	// Send sends frames in order and returns how many it took: fewer than all if the medium is
	// congested. The caller then offers the rest again. Payload is not accessed after Send returns,
	// except by a fabric between NICs of one engine: see CopyPayload and TxFrame.Volatile. A frame
	// that cannot be sent at all (no route, too long) counts as taken, and as a drop.
	Send(now int64, batch []TxFrame) (n int, err error)

	// CopyPayload makes the link own the payload of all frames that it holds. Afterwards it does
	// not access what it was given by reference. Only links between NICs of one engine hold
	// references.
	CopyPayload()

	// Receive fills batch with frames that have arrived and returns how many. The frames' bytes
	// stay valid until the next call of Receive. After ErrUnread it must be called again before
	// waiting. If it returns neither frames nor an error, nothing is left that had arrived. But a
	// link may leave out what arrived within Capabilities.Lag before now or since a Receive with
	// the same now, unless AppendFDs was called and now is another.
	Receive(now int64, batch []RxFrame) (n int, err error)

	// AppendFDs appends the file descriptors of which one polls readable when Receive has frames,
	// with what to poll for. The owner calls it whenever it is going to wait for frames.
	AppendFDs(fds []unix.PollFd) []unix.PollFd

	// OnReady sets a function that does not block. The link calls it, on any goroutine, when frames
	// arrive at an empty link and no descriptor shows it, when the descriptors have changed, and
	// when Receive is to return an error.
	OnReady(func())

	// NextDeadline returns the time by which Send or Receive must be called because something is
	// due, such as a delayed frame; 0 means never.
	NextDeadline() int64

	Capabilities() Capabilities
	Close() error
}

// A readiness calls the function that OnReady was given.
type readiness struct{ f atomic.Pointer[func()] }

// OnReady implements Link.
func (r *readiness) OnReady(f func()) { r.f.Store(&f) }

func (r *readiness) ready() {
	if f := r.f.Load(); f != nil {
		(*f)()
	}
}

// appendFD appends a descriptor that is readable when there are frames.
func appendFD(fds []unix.PollFd, fd int) []unix.PollFd {
	return append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
}

// Capabilities are the properties of a link.
type Capabilities struct {
	MTU int // largest IP packet in bytes

	// ICRC reports whether the link computes and checks the ICRC. A fabric does not, as its frames
	// are never serialized.
	ICRC bool

	// PayloadUnread reports that the link does not read payload, as that of a simulation whose
	// payload has no contents. A NIC then does not copy that of frames which wait for the link.
	// Captures and fault rules at such a link may read what is not the payload any more.
	PayloadUnread bool

	MaxBatch int // the number of frames in one Send beyond which larger batches do not help

	Lag int64 // in nanoseconds: Receive may leave out frames that arrived less than this before now

	// SrcPort, if not 0, is the UDP source port of all frames that the link sends. It ignores
	// Path.SrcPort.
	SrcPort uint16

	// RoCEv1 reports whether the link carries packets of RoCE v1.
	RoCEv1 bool

	// SuperPackets reports whether Send makes one super-packet of frames of a path if only the last
	// is shorter than the others, and the kernel can segment it.
	SuperPackets bool

	// PFC reports whether the link may be paused for some priorities: see Pauser.
	PFC bool
}

// A Pauser is a link with priority flow control (PFC), or middleware that may wrap one.
type Pauser interface {
	// Paused returns the priorities, a bit for each, of which Send takes no frame before a pause
	// ends. Then the function given to OnReady is called. The priority of a frame is
	// Path.SwitchPriority.
	Paused() uint8
}

// Paused returns the priorities for which l is paused, as Pauser.Paused does.
func Paused(l Link) uint8 {
	if p, ok := l.(Pauser); ok {
		return p.Paused()
	}
	return 0
}

// A Referrer is a link that may pass payload by reference.
type Referrer interface {
	// HoldsReferences reports whether frames wait for Receive whose payload may be in their
	// sender's memory, unless CopyPayload has copied it.
	HoldsReferences() bool
}

// HoldsReferences does for any link what Referrer does. Of a link that is no Referrer every frame
// that is due may be one.
func HoldsReferences(l Link) bool {
	if r, ok := l.(Referrer); ok {
		return r.HoldsReferences()
	}
	return l.NextDeadline() != 0
}

// A Path is the addressing of a frame. It is immutable once a frame refers to it: a new address
// vector or a new neighbor needs a new Path.
type Path struct {
	Network   packet.Network // RoCEv2 or RoCEv1
	TClass    uint8          // traffic class or TOS, with the ECN bits
	HopLimit  uint8
	Priority  uint8 // 0 to 7, in the tag
	SrcPort   uint16
	VLAN      uint16     // VLAN ID of the tag; 0 means no tag
	Src, Dst  netip.Addr // both IPv4 or both IPv6 (never IPv4-mapped); of RoCE v1: see packet.Addressing
	DstMAC    [6]byte    // MAC of the next hop, set by Interface.Resolve; not used by FabricLink and UDPLink
	FlowLabel uint32
	Rate      int64 // b/s that packets may take; 0: the port's. The NIC keeps it, not the link
}

// SwitchPriority returns the priority that switches give the packets of the path: they trust the
// DSCP, and divide it by 8.
func (p *Path) SwitchPriority() uint8 { return p.TClass >> 5 }

// A TxFrame is a packet to send and its path.
type TxFrame struct {
	packet.Tx
	Path *Path
	QPN  uint32 // of the queue pair that sends it, for fault rules; 0: none

	// Flip, if not 0, is one more than the number of a bit, from the first bit of the BTH, that is
	// inverted after the ICRC was computed.
	Flip uint32

	// Volatile forbids accesses to the payload after Send returns. A fabric copies it instead of
	// passing it by reference.
	Volatile bool

	// CE sets the ECN bits to "congestion experienced" (11), whatever Path has. RoCE v1 has none.
	CE bool

	// More, in the last frame of a batch, tells the link that the sender has more to send: the next
	// batch follows at once.
	More bool

	// Dropped is set by a link that took the frame and could not send it.
	Dropped bool

	// Mark is the number by which notes of captures name the frame: see NoteSink. If it is 0, a
	// CaptureLink sets it while a capture runs.
	Mark uint64

	// Set by the link after sending, for captures.
	ID   uint16 // IPv4 Identification
	ICRC uint32 // as computed, before Flip; 0 on a link without ICRC
}

// An RxFrame is a received packet. Head and Tail together hold BTH to pad, without the ICRC. Head
// holds at least all headers that the packet has.
type RxFrame struct {
	Head []byte
	Tail [][]byte // the rest of payload and pad; only on a fabric

	Network   packet.Network // RoCEv2 or RoCEv1
	Src, Dst  netip.Addr
	SrcPort   uint16
	TClass    uint8
	HopLimit  uint8
	FlowLabel uint32
	ID        uint16
	SrcMAC    [6]byte
	Tagged    bool   // the frame had an 802.1Q tag
	TCI       uint16 // of the tag: priority, DEI and VLAN ID

	// MayFragment reports that the IPv4 flag DF is clear. RoCEv2 senders set DF. The ICRC covers
	// it, so captures need it.
	MayFragment bool

	ICRC    uint32 // as received
	BadICRC bool   // the link checked the ICRC and it is wrong

	// Run is that of the TxFrame. Head are then the headers of the first packet, and Tail is one
	// slice. Only ReceiveRuns returns runs.
	Run packet.Run

	Mark uint64 // that of the TxFrame on a fabric; otherwise a CaptureLink sets it
}

// Len returns the length of the packet from BTH to pad, of a run that of the first one's headers
// and all payload.
func (f *RxFrame) Len() int {
	n := len(f.Head)
	for _, t := range f.Tail {
		n += len(t)
	}
	return n
}

// CE reports whether the ECN bits say "congestion experienced". A GRH has none.
func (f *RxFrame) CE() bool { return f.Network == packet.RoCEv2 && f.TClass&3 == 3 }
