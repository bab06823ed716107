package wire

import (
	"sync"
	"sync/atomic"

	"softroce/packet"
)

// An rxCopy is a received frame that owns its bytes.
type rxCopy struct {
	RxFrame
	buf []byte
}

// set makes h a copy of f as its receiver sees it.
func (h *rxCopy) set(f *TxFrame, mac [6]byte) {
	var bad bool
	h.buf, bad = appendFrame(h.buf[:0], f)
	p := f.Path
	h.RxFrame = RxFrame{
		Head: h.buf, Network: p.Network,
		Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, TClass: p.TClass, HopLimit: p.HopLimit,
		FlowLabel: p.FlowLabel, ID: f.ID, SrcMAC: mac, BadICRC: bad, Mark: f.Mark,
	}
	h.tagAs(p)
	if f.CE && p.Network == packet.RoCEv2 {
		h.TClass |= 3
	}
}

// An inbox queues frames from links of other owners. Buffers are exchanged: a sender leaves full
// ones and takes empty ones, under one lock per batch.
type inbox struct {
	n atomic.Int32 // length of queue, for reading without the lock

	mu      sync.Mutex
	limit   int
	queue   []*rxCopy
	empty   []*rxCopy
	waiters []waiter // links that found the queue full
	closed  bool
}

// A waiter is a link that is called when an inbox that was full has room.
type waiter interface{ ready() }

// free returns a lower bound of the frames that fit, for the only goroutine that adds frames.
func (in *inbox) free() int { return max(0, in.limit-int(in.n.Load())) }

// put appends as many frames as fit, replaces them in frames by empty buffers or nil, and returns
// how many. wake reports whether the receiver may be asleep. If not all fit, or no more would,
// waits is true and from is called when there is room again. A closed inbox takes all frames and
// discards them.
func (in *inbox) put(from waiter, frames []*rxCopy, more bool) (n int, wake, waits bool) {
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
		in.addWaiter(from)
		waits = true
	}
	return n, wake, waits
}

func (in *inbox) addWaiter(p waiter) {
	for _, w := range in.waiters {
		if w == p {
			return
		}
	}
	in.waiters = append(in.waiters, p)
}

// take exchanges the queue for frames, which are no longer in use, and calls the links that waited
// for room.
func (in *inbox) take(frames []*rxCopy, waiting []waiter) ([]*rxCopy, []waiter) {
	in.mu.Lock()
	in.empty = append(in.empty, frames...)
	queue := in.queue
	in.queue = frames[:0]
	waiting = append(waiting[:0], in.waiters...)
	in.waiters = in.waiters[:0]
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
	waiting := in.waiters
	in.waiters = nil
	in.n.Store(0)
	in.mu.Unlock()
	for _, p := range waiting {
		p.ready()
	}
}

// arrivals are the frames that a link receives from links of other owners.
type arrivals struct {
	inbox     inbox
	taken     []*rxCopy // frames taken from inbox
	delivered int       // number of frames of taken that receive has returned
	waiters   []waiter
}

// pending reports whether frames wait for receive.
func (a *arrivals) pending() bool { return a.delivered < len(a.taken) || a.inbox.n.Load() > 0 }

// receive fills batch. The buffers go back to the inbox together, after all of them were returned
// and are no longer in use.
func (a *arrivals) receive(batch []RxFrame) int {
	if a.delivered == len(a.taken) && (a.delivered > 0 || a.inbox.n.Load() > 0) {
		a.taken, a.waiters = a.inbox.take(a.taken, a.waiters)
		a.delivered = 0
	}
	n := min(len(batch), len(a.taken)-a.delivered)
	for i := range n {
		batch[i] = a.taken[a.delivered].RxFrame
		a.delivered++
	}
	return n
}

// keep replaces the frames that receive has returned.
func (a *arrivals) keep() {
	for i := range a.taken[:a.delivered] {
		a.taken[i] = new(rxCopy)
	}
}

// copies are buffers in which a link copies frames for the inboxes of others.
type copies []*rxCopy

// at returns the i-th buffer.
func (c *copies) at(i int) *rxCopy {
	if i == len(*c) {
		*c = append(*c, nil)
	}
	if (*c)[i] == nil {
		(*c)[i] = new(rxCopy)
	}
	return (*c)[i]
}
