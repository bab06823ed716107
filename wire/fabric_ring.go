package wire

import (
	"softroce/packet"
)

// usualTail is how many slices of payload and pad a frame has at the most, if its
// memory is not scattered widely.
const usualTail = 4

// zeros is what pads are made of.
var zeros [4]byte

// A refRing hands frames from a sender to a receiver that one goroutine runs both.
// Headers are copied, because senders use them again; payload is passed by reference.
type refRing struct {
	slots []refSlot // as many as are used at once at the most, up to limit
	limit int
	first int // oldest slot in use
	out   int // slots from first on that the receiver looks at
	n     int // slots in use
}

type refSlot struct {
	head    [packet.MaxHeaderLen]byte
	headLen uint8
	ce, bad bool
	id      uint16
	path    *Path
	srcMAC  [6]byte
	tail    [][]byte // payload and pad
	whole   []byte   // the frame, if it had to be copied
	copied  bool
}

// push queues f and reports whether there was room.
func (r *refRing) push(f *TxFrame, mac [6]byte) bool {
	if r.n == len(r.slots) && !r.grow() {
		return false
	}
	s := r.slot(r.n)
	r.n++
	s.path, s.id, s.ce, s.srcMAC = f.Path, f.ID, f.CE, mac
	s.bad, s.copied = false, false
	if f.Flip != 0 || !payloadStays(f) {
		s.whole, s.bad = appendFrame(s.whole[:0], f)
		s.copied = true
		return true
	}
	s.head, s.headLen = f.Head, f.HeadLen
	s.tail = append(s.tail[:0], f.Payload...)
	if f.Pad != 0 {
		s.tail = append(s.tail, zeros[:f.Pad])
	}
	return true
}

// slot returns the i-th slot in use; the one after the last is free.
func (r *refRing) slot(i int) *refSlot {
	if i += r.first; i >= len(r.slots) {
		i -= len(r.slots)
	}
	return &r.slots[i]
}

// grow doubles the ring. What was received keeps its bytes: they are in the old slots,
// and in storage that the new ones share but do not use before release.
func (r *refRing) grow() bool {
	if r.n >= r.limit {
		return false
	}
	slots := make([]refSlot, min(max(64, 2*len(r.slots)), r.limit))
	tails := make([][]byte, (len(slots)-r.n)*usualTail)
	for i := range slots {
		if i < r.n {
			slots[i] = *r.slot(i)
			continue
		}
		slots[i].tail, tails = tails[:0:usualTail], tails[usualTail:]
	}
	r.slots, r.first = slots, 0
	return true
}

// payloadStays reports whether the payload is sure to be as it is until the receiver
// has seen it. A reliable requester may not touch it before the acknowledgement, and a
// responder's memory is kept for as long; but an unreliable send completes, and gives
// its buffer back to the client, the moment it is sent.
func payloadStays(f *TxFrame) bool {
	s := packet.Opcode(f.Head[0]).Service()
	return (s == packet.RC || s == packet.XRC) && !f.Volatile || len(f.Payload) == 0
}

// receive fills batch; the frames stay in the ring until release.
func (r *refRing) receive(batch []RxFrame) int {
	n := min(len(batch), r.n-r.out)
	for i := range n {
		s := r.slot(r.out)
		r.out++
		p, b := s.path, &batch[i]
		*b = RxFrame{
			Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, TClass: p.TClass, HopLimit: p.HopLimit,
			FlowLabel: p.FlowLabel, ID: s.id, SrcMAC: s.srcMAC, BadICRC: s.bad,
		}
		b.tagAs(p)
		if s.ce {
			b.TClass |= 3
		}
		if s.copied {
			b.Head = s.whole
		} else {
			b.Head, b.Tail = s.head[:s.headLen], s.tail
		}
	}
	return n
}

// release gives up the slots that were received. A ring that is empty starts again
// at its first slot, so that a small load stays in the processor's cache.
func (r *refRing) release() {
	r.n -= r.out
	r.first += r.out
	r.out = 0
	if r.n == 0 {
		r.first = 0
	} else if r.first >= len(r.slots) {
		r.first -= len(r.slots)
	}
}

// waiting returns how many frames receive has still to hand out.
func (r *refRing) waiting() int { return r.n - r.out }

// appendFrame appends the bytes of f from BTH to pad to b, with the bit that f.Flip
// names inverted, and reports whether the frame's ICRC is wrong by that. It covers every
// bit but those of BTH byte 4 (FECN, BECN and reserved), and has 32 of its own.
func appendFrame(b []byte, f *TxFrame) (frame []byte, bad bool) {
	start := len(b)
	b = append(b, f.Head[:f.HeadLen]...)
	for _, p := range f.Payload {
		b = append(b, p...)
	}
	b = append(b, zeros[:f.Pad]...)
	if f.Flip == 0 {
		return b, false
	}
	bit := int(f.Flip - 1)
	if bit < 8*(len(b)-start) {
		b[start+bit/8] ^= 0x80 >> (bit % 8)
		return b, bit/8 != packet.BTHMaskedByte
	}
	return b, bit < 8*(len(b)-start+packet.ICRCLen)
}
