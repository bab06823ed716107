// Package eventqueue orders events of simulations by time. Each source of events has at most one
// event that is pending. Events of the same time come in the order in which they were set.
//
// Events of the next few microseconds, which are almost all, are in lists, one for each nanosecond,
// and a bitmap says which lists are not empty. So an event costs the same however many there are.
// Later events are in a heap, from which they move to the lists as time passes. A source that sets
// its event to an earlier time, as a NIC does when a packet arrives before a timer ends, leaves its
// place in the heap, where the timer will probably be again.
package eventqueue

import "math/bits"

// horizon is the number of lists: how many nanoseconds are near.
const (
	horizon = 1 << 13
	words   = horizon / 64
)

// A Queue has the pending events.
type Queue struct {
	sources []source
	orders  []uint64 // by source: number of the Set
	timers  []timer  // by source
	now     int64    // time of the last event
	until   int64    // events with times before this are in lists, and others in the heap
	sets    uint64   // number of calls of Set
	near    int      // events in lists
	lists   []list   // by the time modulo horizon
	bitmap  []uint64 // a bit for each list that is not empty
	summary [words / 64]uint64
	far     []int32 // a heap of sources
}

// A source is what each event needs of its source. Four fit in a cache line.
type source struct {
	at         int64 // time of the event; 0: there is none
	next, prev int32 // in the list; none at its ends
}

// A timer is the place of a source in the heap.
type timer struct {
	key   int64 // no later than the event, if that is far
	place int32 // none: it is not there
}

const none = -1

type list struct{ first, last int32 }

// New returns a queue for n sources without events.
func New(n int) *Queue {
	q := &Queue{until: horizon, lists: make([]list, horizon), bitmap: make([]uint64, words)}
	for i := range q.lists {
		q.lists[i] = list{none, none}
	}
	q.Grow(n)
	return q
}

// Grow adds n sources. Sources are numbered from 0.
func (q *Queue) Grow(n int) {
	q.sources, q.orders = append(q.sources, make([]source, n)...), append(q.orders, make([]uint64, n)...)
	for range n {
		q.timers = append(q.timers, timer{place: none})
	}
}

// At returns the time of the event of a source, 0 if there is none.
func (q *Queue) At(i int32) int64 { return q.sources[i].at }

// Set sets the event of a source, in place of the one that is pending. at is above 0, and not
// before the last event that Pop returned.
func (q *Queue) Set(i int32, at int64) {
	s := &q.sources[i]
	if s.at != 0 && s.at < q.until {
		q.unlink(i)
	}
	q.sets++
	s.at, q.orders[i] = at, q.sets
	if at < q.until {
		q.link(i, q.lists[at%horizon].last)
		return
	}
	switch t := &q.timers[i]; {
	case t.place == none:
		t.key, t.place = at, int32(len(q.far))
		q.far = append(q.far, i)
		q.up(t.place)
	case t.key > at:
		t.key = at
		q.up(t.place)
	}
}

// Now returns the time of the last event that Pop returned.
func (q *Queue) Now() int64 { return q.now }

// Next returns the time of the next event, 0 if there is none.
func (q *Queue) Next() int64 {
	if q.near > 0 {
		return q.first()
	}
	for len(q.far) > 0 {
		at, t := q.sources[q.far[0]].at, &q.timers[q.far[0]]
		switch {
		case at == 0:
			q.removeTop()
		case at > t.key:
			t.key = at
			q.down(0)
		default:
			return at
		}
	}
	return 0
}

// Pop removes the next event and returns its source, if it is not after a time.
func (q *Queue) Pop(until int64) (i int32, ok bool) {
	at := q.Next()
	if at == 0 || at > until {
		return 0, false
	}
	q.now = at
	for len(q.far) > 0 && q.timers[q.far[0]].key < at+horizon {
		q.approach()
	}
	q.until = at + horizon
	i = q.lists[at%horizon].first
	q.unlink(i)
	q.sources[i].at = 0
	return i, true
}

// approach removes the first source from the heap, or puts it where it belongs there. Its event
// goes to a list if it is near now.
func (q *Queue) approach() {
	i := q.far[0]
	s := &q.sources[i]
	if s.at >= q.now+horizon {
		q.timers[i].key = s.at
		q.down(0)
		return
	}
	q.removeTop()
	if s.at < q.until { // it is in its list, or there is none
		return
	}
	after := q.lists[s.at%horizon].last
	for after != none && q.orders[after] > q.orders[i] {
		after = q.sources[after].prev
	}
	q.link(i, after)
}

// first returns the time of the first list that is not empty.
func (q *Queue) first() int64 {
	start := uint(q.now % horizon)
	word := start / 64
	if w := q.bitmap[word] >> (start % 64); w != 0 {
		return q.now + int64(bits.TrailingZeros64(w))
	}
	// The words after this one, and at last this one, whose higher bits are 0.
	w := q.nextWord(word + 1)
	slot := w*64 + uint(bits.TrailingZeros64(q.bitmap[w]))
	return q.now + int64((slot-start)%horizon)
}

// nextWord returns the index of the first word from an index that is not 0, beginning again after
// the last. There is one.
func (q *Queue) nextWord(from uint) uint {
	from %= words
	k := from / 64
	if s := q.summary[k] >> (from % 64); s != 0 {
		return from + uint(bits.TrailingZeros64(s))
	}
	for {
		k = (k + 1) % uint(len(q.summary))
		if q.summary[k] != 0 {
			return k*64 + uint(bits.TrailingZeros64(q.summary[k]))
		}
	}
}

// link puts an event in its list, after that of another source.
func (q *Queue) link(i, after int32) {
	s := &q.sources[i]
	slot := uint(s.at % horizon)
	l := &q.lists[slot]
	s.prev, s.next = after, l.first
	if after != none {
		s.next = q.sources[after].next
		q.sources[after].next = i
	} else {
		l.first = i
	}
	if s.next != none {
		q.sources[s.next].prev = i
	} else {
		l.last = i
	}
	q.near++
	q.bitmap[slot/64] |= 1 << (slot % 64)
	q.summary[slot/64/64] |= 1 << (slot / 64 % 64)
}

func (q *Queue) unlink(i int32) {
	s := &q.sources[i]
	slot := uint(s.at % horizon)
	l := &q.lists[slot]
	if s.prev != none {
		q.sources[s.prev].next = s.next
	} else {
		l.first = s.next
	}
	if s.next != none {
		q.sources[s.next].prev = s.prev
	} else {
		l.last = s.prev
	}
	q.near--
	if l.first == none {
		if q.bitmap[slot/64] &^= 1 << (slot % 64); q.bitmap[slot/64] == 0 {
			q.summary[slot/64/64] &^= 1 << (slot / 64 % 64)
		}
	}
}

func (q *Queue) removeTop() {
	q.timers[q.far[0]].place = none
	last := len(q.far) - 1
	moved := q.far[last]
	q.far = q.far[:last]
	if last > 0 {
		q.far[0], q.timers[moved].place = moved, 0
		q.down(0)
	}
}

func (q *Queue) up(place int32) {
	for place > 0 {
		parent := (place - 1) / 2
		if q.timers[q.far[parent]].key <= q.timers[q.far[place]].key {
			return
		}
		q.swap(place, parent)
		place = parent
	}
}

func (q *Queue) down(place int32) {
	for {
		c := 2*place + 1
		if int(c) >= len(q.far) {
			return
		}
		if int(c)+1 < len(q.far) && q.timers[q.far[c+1]].key < q.timers[q.far[c]].key {
			c++
		}
		if q.timers[q.far[place]].key <= q.timers[q.far[c]].key {
			return
		}
		q.swap(place, c)
		place = c
	}
}

func (q *Queue) swap(a, b int32) {
	q.far[a], q.far[b] = q.far[b], q.far[a]
	q.timers[q.far[a]].place, q.timers[q.far[b]].place = a, b
}
