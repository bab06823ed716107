package wire

import (
	"slices"

	"softroce/packet"
)

// tailCap is the capacity for slices of payload and pad that each slot starts with. It suffices
// unless the payload's memory is widely scattered.
const tailCap = 4

// zeros are the bytes of pads.
var zeros [4]byte

// A frameRing passes frames from a sender to a receiver on the same goroutine. Headers are copied,
// because senders reuse them. Payload is passed by reference.
type frameRing struct {
	slots []ringSlot // grows with use, up to limit
	limit int
	first int       // oldest slot in use
	out   int       // slots, from first on, that receive has returned
	n     int       // slots in use
	owned int       // of them, from first on, that copyPayload has seen
	part  int       // packets of the run in the next slot that receive has returned
	parts []RunPart // of the packets of runs that the last receive has returned
}

type ringSlot struct {
	head    [packet.MaxHeaderLen]byte
	headLen uint8
	ce, bad bool
	id      uint16
	mark    uint64
	path    *Path
	srcMAC  [6]byte
	tail    [][]byte // payload and pad
	whole   []byte   // the frame, if it was copied; or the bytes of tail, if those were
	copied  bool
	owned   bool // tail is in whole
	run     packet.Run
}

// push queues f and reports whether there was room.
func (r *frameRing) push(f *TxFrame, mac [6]byte) bool {
	if r.n == len(r.slots) && !r.grow() {
		return false
	}
	s := r.slot(r.n)
	r.n++
	s.path, s.id, s.ce, s.srcMAC, s.mark = f.Path, f.ID, f.CE, mac, f.Mark
	s.bad, s.copied, s.owned, s.run = false, false, false, f.Run
	stable := payloadIsStable(f)
	if f.Run.Repeat == 0 && (f.Flip != 0 || !stable) {
		s.whole, s.bad = appendFrame(s.whole[:0], f)
		s.copied = true
		return true
	}
	s.head, s.headLen = f.Head, f.HeadLen
	s.tail = append(s.tail[:0], f.Payload...)
	if f.Pad != 0 {
		s.tail = append(s.tail, zeros[:f.Pad])
	}
	if !stable {
		s.own()
	}
	return true
}

// slot returns the i-th slot in use, or the free one behind the last.
func (r *frameRing) slot(i int) *ringSlot {
	if i += r.first; i >= len(r.slots) {
		i -= len(r.slots)
	}
	return &r.slots[i]
}

// grow doubles the ring. Received frames keep their bytes: they are in the old slots, and in
// buffers that the new slots share and do not reuse before release.
func (r *frameRing) grow() bool {
	if r.n >= r.limit {
		return false
	}
	slots := make([]ringSlot, min(max(64, 2*len(r.slots)), r.limit))
	tails := make([][]byte, (len(slots)-r.n)*tailCap)
	for i := range slots {
		if i < r.n {
			slots[i] = *r.slot(i)
			continue
		}
		slots[i].tail, tails = tails[:0:tailCap], tails[tailCap:]
	}
	r.slots, r.first = slots, 0
	return true
}

// payloadIsStable reports whether the payload does not change before the receiver has processed it.
// A program must not change the memory of a reliable request before it is acknowledged, and a
// responder's memory is kept as long. An unreliable send completes as soon as it is sent, and the
// program may then reuse its buffer.
func payloadIsStable(f *TxFrame) bool {
	s := packet.Opcode(f.Head[0]).Service()
	return (s == packet.RC || s == packet.XRC) && !f.Volatile || len(f.Payload) == 0
}

// copyPayload makes the slots own the payload of their frames. The Tail of a frame that receive has
// returned is its slot's, so that it changes too.
func (r *frameRing) copyPayload() {
	for ; r.owned < r.n; r.owned++ {
		if s := r.slot(r.owned); !s.copied && !s.owned {
			s.own()
		}
	}
}

// own makes the slot own the payload of its frame.
func (s *ringSlot) own() {
	n := 0
	for _, t := range s.tail {
		n += len(t)
	}
	s.whole, s.owned = slices.Grow(s.whole[:0], n), true
	for k, t := range s.tail {
		at := len(s.whole)
		s.whole = append(s.whole, t...)
		s.tail[k] = s.whole[at:]
	}
}

// receive fills batch, with the packets of runs unless runs is set. The frames stay in the ring
// until release.
func (r *frameRing) receive(batch []RxFrame, runs bool) (n int) {
	for ; n < len(batch) && r.out < r.n; n++ {
		s := r.slot(r.out)
		p, b := s.path, &batch[n]
		*b = RxFrame{
			Network: p.Network, Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, TClass: p.TClass, HopLimit: p.HopLimit,
			FlowLabel: p.FlowLabel, ID: s.id, SrcMAC: s.srcMAC, BadICRC: s.bad, Mark: s.mark,
		}
		b.tagAs(p)
		if s.ce && p.Network == packet.RoCEv2 {
			b.TClass |= 3
		}
		if s.copied {
			b.Head = s.whole
		} else {
			b.Head, b.Tail = s.head[:s.headLen], s.tail
		}
		if s.run.Repeat > 0 {
			if b.Run = s.run; !runs || r.part > 0 {
				r.divide(s, b)
				continue
			}
		}
		r.out++
	}
	return n
}

// divide replaces b, the run in the next slot to receive, by its next packet.
func (r *frameRing) divide(s *ringSlot, b *RxFrame) {
	if !s.owned {
		s.own() // copyPayload does not know the parts
		b.Tail = s.tail
	}
	r.parts = append(r.parts, RunPart{})
	*b = r.parts[len(r.parts)-1].Packet(b, r.part)
	if r.part++; r.part > int(s.run.Repeat) {
		r.part = 0
		r.out++
	}
}

// release frees the slots of received frames. An empty ring starts again at the first slot, so that
// a small load stays in the processor's cache.
func (r *frameRing) release() {
	r.parts = r.parts[:0]
	r.n -= r.out
	r.owned = max(0, r.owned-r.out)
	r.first += r.out
	r.out = 0
	if r.n == 0 {
		r.first = 0
	} else if r.first >= len(r.slots) {
		r.first -= len(r.slots)
	}
}

// pending returns the number of frames that receive has not returned.
func (r *frameRing) pending() int { return r.n - r.out }

// appendFrame appends the bytes of f from BTH to pad to b, with the bit of f.Flip inverted. It
// reports whether that makes the ICRC wrong. The ICRC covers all bits except those of
// packet.BTHMaskedByte; its own 32 bits follow them.
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
