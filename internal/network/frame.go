package network

import "softroce/packet"

// A Frame is a frame in the network, as NICs see it. It fits in a cache line. Its storage is kept
// when it is used again.
type Frame struct {
	Tag  any    // of the user
	Data []byte // of the user

	Size     int32  // bytes, from the destination MAC address to the FCS
	Dst, Src int32  // numbers of NICs
	Hash     uint32 // of the flow: frames of equal hashes take the same path
	Priority uint8  // 0 to 7
	ECT      bool   // ECN-capable
	CE       bool   // marked: congestion experienced

	// Pause says that this is a pause frame of PFC, which concerns Priority and has no Src and Dst.
	// XOff is false if the priority may be sent again.
	Pause, XOff bool
}

// dataSize is how many bytes of Data follow a Frame in memory, in the next cache line.
const dataSize = 64

// Sizes of Ethernet in bytes.
const (
	FCSLen    = 4      // of the frame check sequence
	overhead  = 8 + 12 // preamble and gap
	pauseSize = 64     // a pause frame
)

// SetFlow sets the source and destination of a packet, and the hash of its flow.
func (f *Frame) SetFlow(src, dst int, srcPort uint16) {
	f.Src, f.Dst, f.Hash = int32(src), int32(dst), uint32(srcPort)<<16^uint32(src)<<8^uint32(dst)
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

// An entry is a frame in a queue, or on a cable: a copy of what switches look at, so that they do
// not touch the Frame, of which there are many. Two entries fit in a cache line.
type entry struct {
	frame    *Frame // nil: a pause frame
	arrives  int64  // at the other end of the cable
	from     int32  // index of the port at which it arrived at the switch that holds it, none at a NIC
	dst      int32
	hash     uint32
	size     uint16
	priority uint8
	flags    uint8
}

const none = -1

// Flags of an entry: what the Frame has as a bool.
const (
	flagECT = 1 << iota
	flagCE
	flagPause
	flagXOff
)

func newEntry(f *Frame) entry {
	e := entry{frame: f, from: none, dst: f.Dst, hash: f.Hash, size: uint16(f.Size), priority: f.Priority}
	if f.ECT {
		e.flags |= flagECT
	}
	if f.CE {
		e.flags |= flagCE
	}
	return e
}

func (e *entry) is(flag uint8) bool { return e.flags&flag != 0 }

// asFrame returns the frame, with its mark. A pause frame is one only until the next call.
func (n *Network) asFrame(e *entry) *Frame {
	f := e.frame
	if f == nil {
		f = &n.pauseFrame
		*f = Frame{Size: int32(e.size), Priority: e.priority, Pause: true, XOff: e.is(flagXOff)}
	}
	f.CE = e.is(flagCE)
	return f
}

// A queue is a queue of frames: a ring that grows.
type queue struct {
	slots []entry // a power of two of them, or none
	first uint32  // index in slots
	n     uint32
}

// push adds an entry at the end.
func (q *queue) push(e *entry) {
	if int(q.n) == len(q.slots) {
		q.grow()
	}
	q.slots[(q.first+q.n)&uint32(len(q.slots)-1)] = *e
	q.n++
}

func (q *queue) grow() {
	l := make([]entry, max(2, 2*len(q.slots)))
	for i := range q.n {
		l[i] = *q.at(i)
	}
	q.slots, q.first = l, 0
}

// at returns the entry that i others precede.
func (q *queue) at(i uint32) *entry { return &q.slots[(q.first+i)&uint32(len(q.slots)-1)] }

// head returns the first entry. The queue must not be empty.
func (q *queue) head() *entry { return q.at(0) }

// drop removes the first entry. A queue that is empty begins at its first slot again, which is in
// the processor's cache.
func (q *queue) drop() {
	q.n--
	if q.first++; q.n == 0 || int(q.first) == len(q.slots) {
		q.first = 0
	}
}

// pop removes the first entry and returns it.
func (q *queue) pop() entry {
	e := *q.head()
	q.drop()
	return e
}

// Frame returns an empty frame.
func (n *Network) Frame() *Frame {
	k := len(n.free)
	if k == 0 {
		f := new(struct {
			Frame
			data [dataSize]byte
		})
		f.Data = f.data[:0]
		return &f.Frame
	}
	f := n.free[k-1]
	n.free = n.free[:k-1]
	*f = Frame{Data: f.Data[:0]}
	return f
}

// discard releases a frame that does not arrive.
func (n *Network) discard(e *entry) {
	if e.is(flagPause) {
		return
	}
	if n.onDrop != nil {
		n.onDrop(n.asFrame(e))
	}
	n.Release(e.frame)
}

// Release makes a frame available to Frame.
func (n *Network) Release(f *Frame) {
	f.Tag = nil
	n.free = append(n.free, f)
}
