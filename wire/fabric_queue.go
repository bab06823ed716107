package wire

import (
	"sync"
	"sync/atomic"
)

// A rxCopy is a received frame with bytes of its own.
type rxCopy struct {
	RxFrame
	buf []byte
}

// set makes h the copy of f that its receiver sees.
func (h *rxCopy) set(f *TxFrame, mac [6]byte) {
	var bad bool
	h.buf, bad = appendFrame(h.buf[:0], f)
	p := f.Path
	h.RxFrame = RxFrame{
		Head: h.buf,
		Src:  p.Src, Dst: p.Dst, SrcPort: p.SrcPort, TClass: p.TClass, HopLimit: p.HopLimit,
		FlowLabel: p.FlowLabel, ID: f.ID, SrcMAC: mac, BadICRC: bad,
	}
	h.tagAs(p)
	if f.CE {
		h.TClass |= 3
	}
}

// An inbox takes frames from ports of other owners. Buffers go round: a sender leaves
// full ones and takes empty ones with it, under one lock for a batch.
type inbox struct {
	n atomic.Int32 // frames in queue, to look at without the lock

	mu      sync.Mutex
	limit   int
	queue   []*rxCopy
	empty   []*rxCopy
	waiting []*FabricLink // found the queue full
	closed  bool
}

// room says how many frames fit at the moment; more may, a moment later.
func (in *inbox) room() int { return max(0, in.limit-int(in.n.Load())) }

// put appends as many frames as fit, replaces them by empty ones or nil, and returns
// how many. wake tells whether the receiver may be asleep. Where not all fit, or more
// would not, from is called when there is room again, and waits is true. A closed
// inbox takes everything and keeps nothing.
func (in *inbox) put(from *FabricLink, frames []*rxCopy, more bool) (n int, wake, waits bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return len(frames), false, false
	}
	n = min(len(frames), in.limit-len(in.queue))
	wake = len(in.queue) == 0 && n > 0
	for i := range n {
		in.queue = append(in.queue, frames[i])
		frames[i] = nil
		if k := len(in.empty); k > 0 {
			frames[i] = in.empty[k-1]
			in.empty = in.empty[:k-1]
		}
	}
	in.n.Store(int32(len(in.queue)))
	if n < len(frames) || more && len(in.queue) == in.limit {
		in.wait(from)
		waits = true
	}
	return n, wake, waits
}

func (in *inbox) wait(p *FabricLink) {
	for _, w := range in.waiting {
		if w == p {
			return
		}
	}
	in.waiting = append(in.waiting, p)
}

// take exchanges the queue for frames, which are seen and empty again, and calls
// those who waited for room.
func (in *inbox) take(frames []*rxCopy, waiting []*FabricLink) ([]*rxCopy, []*FabricLink) {
	in.mu.Lock()
	in.empty = append(in.empty, frames...)
	queue := in.queue
	in.queue = frames[:0]
	waiting = append(waiting[:0], in.waiting...)
	in.waiting = in.waiting[:0]
	in.n.Store(0)
	in.mu.Unlock()
	for _, p := range waiting {
		p.ready()
	}
	return queue, waiting
}

func (in *inbox) close() {
	in.mu.Lock()
	in.closed, in.queue, in.empty = true, nil, nil
	waiting := in.waiting
	in.waiting = nil
	in.n.Store(0)
	in.mu.Unlock()
	for _, p := range waiting {
		p.ready()
	}
}
