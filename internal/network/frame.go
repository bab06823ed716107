package network

import "softroce/packet"

// A Frame is a frame in the network. What the network uses of it fits in a cache line, and the
// whole in two. The storage of Data is kept when the Frame is used again.
type Frame struct {
	next    *Frame
	arrived *Port // at the switch that holds it; nil at a NIC
	arrives int64 // at the other end of the cable

	Size     int    // bytes, from the destination MAC address to the FCS
	Dst, Src int    // numbers of NICs
	Hash     uint32 // of the flow: frames of equal hashes take the same path
	lostTo   int32  // number of the failure
	Priority uint8  // 0 to 7
	ECT      bool   // ECN-capable
	CE       bool   // marked: congestion experienced

	// Pause says that this is a pause frame of PFC, which concerns Priority and has no Src and Dst.
	// XOff is false if the priority may be sent again.
	Pause, XOff bool

	Data []byte    // of the user
	More [1][]byte // of the user
	Tag  any       // of the user
}

// Sizes of Ethernet in bytes.
const (
	FCSLen    = 4      // of the frame check sequence
	overhead  = 8 + 12 // preamble and gap
	pauseSize = 64     // a pause frame
)

// SetFlow sets the source and destination of a packet, and the hash of its flow.
func (f *Frame) SetFlow(src, dst int, srcPort uint16) {
	f.Src, f.Dst, f.Hash = src, dst, uint32(srcPort)<<16^uint32(src)<<8^uint32(dst)
}

// pauseQuanta is the longest pause that a pause frame can request.
const pauseQuanta = 0xffff

// switchMAC is the MAC address of all switches. NICs send no pause frames.
var switchMAC = [6]byte{2}

// PauseFrame returns what a pause frame is on the wire.
func (f *Frame) PauseFrame() packet.Pause {
	p := packet.Pause{SrcMAC: switchMAC, Classes: 1 << f.Priority}
	if f.XOff {
		p.Quanta[f.Priority] = pauseQuanta
	}
	return p
}

// A frameQueue is a queue of frames.
type frameQueue struct {
	first, last *Frame
	bytes       int
}

func (q *frameQueue) push(f *Frame) {
	f.next = nil
	if q.first == nil {
		q.first = f
	} else {
		q.last.next = f
	}
	q.last = f
	q.bytes += f.Size
}

func (q *frameQueue) pop() *Frame {
	f := q.first
	q.first, f.next = f.next, nil
	q.bytes -= f.Size
	return f
}

// Frame returns an empty frame.
func (n *Network) Frame() *Frame {
	f := n.free
	if f == nil {
		return new(Frame)
	}
	n.free = f.next
	*f = Frame{Data: f.Data[:0]}
	return f
}

// discard releases a frame that does not arrive.
func (n *Network) discard(f *Frame) {
	if n.onDrop != nil && !f.Pause {
		n.onDrop(f)
	}
	n.Release(f)
}

// Release makes a frame available to Frame.
func (n *Network) Release(f *Frame) {
	f.More[0], f.Tag = nil, nil
	f.next, n.free = n.free, f
}
