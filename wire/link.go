// Package wire moves RoCEv2 frames: links that end on a network or on another
// emulated NIC, and middleware that wraps a link and is one itself.
package wire

import (
	"errors"
	"net/netip"

	"softroce/packet"
)

// Port is the UDP port of RoCEv2.
const Port = 4791

// ErrClosed is returned by every method of a link that was closed.
var ErrClosed = errors.New("link is closed")

// A Link moves RoCEv2 frames in batches. Its methods are called by one goroutine,
// its NIC's engine; none of them blocks. Times are nanoseconds of one monotonic
// (or simulated) clock.
type Link interface {
	// Send sends the frames in order and returns how many it took: fewer than all
	// where the medium is congested, and the caller offers the rest again. Payload
	// slices are not used after Send returns, except by a fabric between NICs of one
	// engine, see Fabric and TxFrame.Volatile. A frame that cannot be sent at all (no route, too long)
	// counts as taken and is counted as a drop by the link.
	Send(now int64, batch []TxFrame) (n int, err error)

	// Receive fills batch with what has arrived and returns how many; 0 means none.
	// The frames' bytes stay valid until the next call of Receive.
	Receive(now int64, batch []RxFrame) (n int, err error)

	// FD is a file descriptor that polls readable when Receive has something, or
	// -1 where there is none: such a link calls the function given to OnReady.
	FD() int

	// OnReady sets the function that the link calls, from any goroutine, when frames
	// became ready while nobody was receiving. Links with an FD ignore it.
	OnReady(func())

	// NextDeadline says when Receive or Send should be called again at the latest
	// because something is due (a delayed frame); 0 means never.
	NextDeadline() int64

	Capabilities() Capabilities
	Close() error
}

// Capabilities says what a link can do and what it leaves to others.
type Capabilities struct {
	MTU int // largest IP packet in bytes

	// ICRC says that the link computes and checks the ICRC. A fabric does not: its
	// frames never were bytes on a cable.
	ICRC bool

	MaxBatch int // frames in one Send that are worth while

	// SrcPort, if not 0, is the UDP source port of every frame that the link sends,
	// whatever its Path says.
	SrcPort uint16
}

// A Path is where a frame goes and how. It is not changed once a frame refers to
// it: a new address vector or a new neighbour means a new Path.
type Path struct {
	Src, Dst  netip.Addr // both IPv4 or both IPv6 (never IPv4-mapped)
	DstMAC    [6]byte    // the next hop's, set by Interface.Resolve; unused by fabric and udp
	SrcPort   uint16
	TClass    uint8 // traffic class or TOS, ECN bits too
	HopLimit  uint8
	FlowLabel uint32
	VLAN      uint16 // VLAN ID of the tag; 0: there is none
	Priority  uint8  // 0 to 7, in the tag
}

// A TxFrame is a packet and its path. A link may change ID and ICRC.
type TxFrame struct {
	packet.Tx
	Path *Path

	// Flip, if not 0, is one more than the number of a bit, counted from the first of the
	// BTH, that is to be wrong on the wire: inverted after the ICRC was computed.
	Flip uint32

	// Volatile says that the payload is not to be used after Send returned, by a fabric
	// neither: it copies what it would pass by reference.
	Volatile bool

	// CE marks the packet as having met congestion (ECN bits 11), whatever Path says.
	CE bool

	// Dropped is set by a link that took the frame and could not send it.
	Dropped bool

	// Set by the link when it has sent the frame; a capture shows them.
	ID   uint16 // IPv4 Identification
	ICRC uint32 // as computed, before Flip; 0 on a link without ICRC
}

// An RxFrame is a frame as it arrived. Head and Tail together hold BTH to pad,
// without the ICRC; Head holds at least every header, if the frame is that long.
type RxFrame struct {
	Head []byte
	Tail [][]byte // more payload and pad; fabrics only

	Src, Dst  netip.Addr
	SrcPort   uint16
	TClass    uint8
	HopLimit  uint8
	FlowLabel uint32
	ID        uint16
	SrcMAC    [6]byte
	Tagged    bool   // there was an 802.1Q tag
	TCI       uint16 // what it held: priority, DEI and VLAN ID

	// MayFragment says that the IPv4 flag DF is clear, as RoCEv2 senders do not have it.
	// ICRC covers it, so a capture has to show it.
	MayFragment bool

	ICRC    uint32 // as received
	BadICRC bool   // the link checked it and it is wrong
}

// CE reports whether the frame was marked "congestion experienced".
func (f *RxFrame) CE() bool { return f.TClass&3 == 3 }
