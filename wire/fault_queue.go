package wire

import "net/netip"

// maxHeld bounds the packets that one direction of a Fault holds at a time.
const maxHeld = 16384

// flow tells packets apart that can overtake one another.
type flow struct {
	peer netip.Addr
	qp   uint32
}

// held is a copy of a packet that waits.
type held[T any] struct {
	frame T
	flow  flow
	seq   uint64     // its place among all packets of its direction
	due   int64      // it does not go before
	by    int        // packets that have still to overtake it
	limit int64      // when it stops to wait for them
	rate  *ruleState // whose queue it stands in, or nil
}

// A holding keeps the packets of one direction that wait, and those that have waited
// and go next.
type holding[T any] struct {
	delayed []held[T] // a heap: earliest first, of equal ones the one that came first
	parked  []held[T] // to be overtaken, in the order in which they came
	ready   []held[T] // from first on
	first   int
	free    []T
}

// idle reports whether nothing is held.
func (h *holding[T]) idle() bool { return h.len() == 0 }

func (h *holding[T]) len() int { return len(h.delayed) + len(h.parked) + len(h.ready) - h.first }

// place puts a packet where it has to wait.
func (h *holding[T]) place(p held[T], now int64) {
	switch {
	case p.by > 0 && now < p.limit:
		h.parked = append(h.parked, p)
	case p.due > now:
		h.push(p)
	default:
		h.ready = append(h.ready, p)
	}
}

// passed tells the parked ones that a packet has gone by.
func (h *holding[T]) passed(f flow, seq uint64, now int64) {
	if len(h.parked) == 0 {
		return
	}
	keep := h.parked[:0]
	for _, p := range h.parked {
		if p.flow == f && p.seq < seq {
			p.by--
		}
		if p.by > 0 {
			keep = append(keep, p)
		} else {
			h.place(p, now)
		}
	}
	h.parked = keep
}

// expire makes ready what has waited long enough.
func (h *holding[T]) expire(now int64) {
	if len(h.parked) > 0 {
		keep := h.parked[:0]
		for _, p := range h.parked {
			if p.limit > now {
				keep = append(keep, p)
			} else {
				h.place(p, now)
			}
		}
		h.parked = keep
	}
	for len(h.delayed) > 0 && h.delayed[0].due <= now {
		h.ready = append(h.ready, h.pop())
	}
}

// next returns when expire has something to do, 0 if never.
func (h *holding[T]) next() (t int64) {
	if len(h.delayed) > 0 {
		t = h.delayed[0].due
	}
	for i := range h.parked {
		t = earlier(t, h.parked[i].limit)
	}
	return t
}

// waiting returns the packets that go next.
func (h *holding[T]) waiting() []held[T] { return h.ready[h.first:] }

// gone removes the first n of waiting.
func (h *holding[T]) gone(n int) {
	for i := range n {
		if r := h.ready[h.first+i].rate; r != nil {
			r.queued--
		}
	}
	h.first += n
	if h.first == len(h.ready) {
		h.ready, h.first = h.ready[:0], 0
	} else if h.first > len(h.ready)/2 {
		h.ready, h.first = append(h.ready[:0], h.ready[h.first:]...), 0
	}
}

func (h *holding[T]) before(i, j int) bool {
	a, b := &h.delayed[i], &h.delayed[j]
	return a.due < b.due || a.due == b.due && a.seq < b.seq
}

func (h *holding[T]) push(p held[T]) {
	h.delayed = append(h.delayed, p)
	for i := len(h.delayed) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.before(i, up) {
			return
		}
		h.delayed[i], h.delayed[up] = h.delayed[up], h.delayed[i]
		i = up
	}
}

func (h *holding[T]) pop() held[T] {
	top, last := h.delayed[0], len(h.delayed)-1
	h.delayed[0] = h.delayed[last]
	h.delayed = h.delayed[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if h.before(c, least) {
				least = c
			}
		}
		if least == i {
			return top
		}
		h.delayed[i], h.delayed[least] = h.delayed[least], h.delayed[i]
		i = least
	}
}
