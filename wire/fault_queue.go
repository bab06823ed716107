package wire

import (
	"net/netip"

	"softroce/wire/fault"
)

// A faultFlow identifies packets that can overtake each other: those from or to one peer, to one
// QP.
type faultFlow struct {
	peer netip.Addr
	qp   uint32
}

// A queuedPacket is a copy of a packet that waits to pass.
type queuedPacket[T any] struct {
	frame        T
	flow         faultFlow
	seq          uint64 // number of the packet in its direction
	due          int64  // not to pass before
	reorder      int    // later packets of the flow that still have to pass first
	reorderUntil int64  // when it no longer waits for them
	stalled      int    // ID of the rule that has stalled it until due; 0: none
	rate         *fault.RateQueue
	notes        []*fault.Note // for captures, when the frame is sent
}

// A faultQueue holds the copied packets of one direction. It reuses their buffers.
type faultQueue[T any] struct {
	delayed   []queuedPacket[T] // a heap by due, then seq
	reordered []queuedPacket[T] // that wait to be overtaken, in their order of arrival
	passing   []queuedPacket[T] // to pass next, from first on
	first     int
	free      []T
}

// empty reports whether no packet is queued.
func (q *faultQueue[T]) empty() bool { return q.len() == 0 }

func (q *faultQueue[T]) len() int {
	return len(q.delayed) + len(q.reordered) + len(q.passing) - q.first
}

// add queues a packet for what it waits for first.
func (q *faultQueue[T]) add(p queuedPacket[T], now int64) {
	switch {
	case p.reorder > 0 && now < p.reorderUntil:
		q.reordered = append(q.reordered, p)
	case p.due > now:
		q.push(p)
	default:
		q.passing = append(q.passing, p)
	}
}

// passed notes that packet seq of a flow has passed, for the packets that wait to be overtaken.
func (q *faultQueue[T]) passed(f faultFlow, seq uint64, now int64) {
	if len(q.reordered) == 0 {
		return
	}
	keep := q.reordered[:0]
	for _, p := range q.reordered {
		if p.flow == f && p.seq < seq {
			p.reorder--
		}
		if p.reorder > 0 {
			keep = append(keep, p)
		} else {
			q.add(p, now)
		}
	}
	q.reordered = keep
}

// expire moves the packets whose time has come to those that pass next.
func (q *faultQueue[T]) expire(now int64) {
	if len(q.reordered) > 0 {
		keep := q.reordered[:0]
		for _, p := range q.reordered {
			if p.reorderUntil > now {
				keep = append(keep, p)
			} else {
				q.add(p, now)
			}
		}
		q.reordered = keep
	}
	for len(q.delayed) > 0 && q.delayed[0].due <= now {
		q.passing = append(q.passing, q.pop())
	}
}

// release makes the packets due that a rule has stalled. They pass in the order of their arrival.
func (q *faultQueue[T]) release(rule int, now int64) {
	waiting := q.delayed
	q.delayed = nil
	for _, p := range waiting {
		if p.stalled == rule && rule != 0 {
			p.due = now
		}
		q.push(p)
	}
}

// deadline returns when expire will have something to do; 0 means never.
func (q *faultQueue[T]) deadline() (t int64) {
	if len(q.delayed) > 0 {
		t = q.delayed[0].due
	}
	for i := range q.reordered {
		t = earlier(t, q.reordered[i].reorderUntil)
	}
	return t
}

// ready returns the packets that pass next.
func (q *faultQueue[T]) ready() []queuedPacket[T] { return q.passing[q.first:] }

// remove removes the first n packets of ready.
func (q *faultQueue[T]) remove(n int) {
	for i := range n {
		if r := q.passing[q.first+i].rate; r != nil {
			r.Remove()
		}
	}
	q.first += n
	if q.first == len(q.passing) {
		q.passing, q.first = q.passing[:0], 0
	} else if q.first > len(q.passing)/2 {
		q.passing, q.first = append(q.passing[:0], q.passing[q.first:]...), 0
	}
}

func (q *faultQueue[T]) less(i, j int) bool {
	a, b := &q.delayed[i], &q.delayed[j]
	return a.due < b.due || a.due == b.due && a.seq < b.seq
}

func (q *faultQueue[T]) push(p queuedPacket[T]) {
	q.delayed = append(q.delayed, p)
	for i := len(q.delayed) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.less(i, parent) {
			return
		}
		q.delayed[i], q.delayed[parent] = q.delayed[parent], q.delayed[i]
		i = parent
	}
}

func (q *faultQueue[T]) pop() queuedPacket[T] {
	top, last := q.delayed[0], len(q.delayed)-1
	q.delayed[0] = q.delayed[last]
	q.delayed = q.delayed[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if q.less(c, least) {
				least = c
			}
		}
		if least == i {
			return top
		}
		q.delayed[i], q.delayed[least] = q.delayed[least], q.delayed[i]
		i = least
	}
}
