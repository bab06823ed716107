package nic

// A qpHeap orders queue pairs by a time. It keeps their places itself, so that it touches none of
// them: of thousands, most are not in the processor's cache.
type qpHeap struct {
	next int64 // the earliest time, 0 if the heap is empty
	*heapEntries
}

// heapEntries is the part of a qpHeap that a step does not touch unless a time has come. It is nil
// before the first time is set.
type heapEntries struct {
	entries []heapEntry
	places  []int32      // by ticket: 1 + index in entries; 0: it is not there
	unused  []heapTicket // tickets of queue pairs that have left
}

type heapEntry struct {
	at     int64
	qp     *QP
	ticket heapTicket
}

// A heapTicket is the number of a queue pair in a qpHeap, 0 before its first time.
type heapTicket int32

// set adds q, whose ticket is t, or changes its time.
func (h *qpHeap) set(q *QP, t *heapTicket, at int64) {
	if h.heapEntries == nil {
		h.heapEntries = &heapEntries{places: []int32{0}} // ticket 0: none
	}
	if *t == 0 {
		*t = h.newTicket()
	}
	if h.places[*t] == 0 {
		h.entries = append(h.entries, heapEntry{})
		h.places[*t] = int32(len(h.entries))
	}
	h.settle(int(h.places[*t]-1), heapEntry{at, q, *t})
	h.next = h.entries[0].at
}

func (h *heapEntries) newTicket() heapTicket {
	if n := len(h.unused); n > 0 {
		t := h.unused[n-1]
		h.unused = h.unused[:n-1]
		return t
	}
	h.places = append(h.places, 0)
	return heapTicket(len(h.places) - 1)
}

// pop removes and returns a queue pair whose time has come, or returns nil.
func (h *qpHeap) pop(now int64) *QP {
	if h.next == 0 || h.next > now {
		return nil
	}
	q := h.entries[0].qp
	h.remove(0)
	return q
}

// forget removes a queue pair, which may not be there, and its ticket.
func (h *qpHeap) forget(t *heapTicket) {
	if *t == 0 {
		return
	}
	if i := h.places[*t]; i != 0 {
		h.remove(int(i - 1))
	}
	h.unused = append(h.unused, *t)
	*t = 0
}

// remove removes entry i.
func (h *qpHeap) remove(i int) {
	h.places[h.entries[i].ticket] = 0
	end := len(h.entries) - 1
	last := h.entries[end]
	h.entries[end] = heapEntry{}
	h.entries = h.entries[:end]
	h.next = 0
	if i < end {
		h.settle(i, last)
	}
	if end > 0 {
		h.next = h.entries[0].at
	}
}

// settle puts e at index i, which is free, and restores the order of the heap.
func (h *heapEntries) settle(i int, e heapEntry) {
	for i > 0 {
		parent := (i - 1) / 2
		if h.entries[parent].at <= e.at {
			break
		}
		h.put(i, h.entries[parent])
		i = parent
	}
	for {
		child := 2*i + 1
		if child >= len(h.entries) {
			break
		}
		if child+1 < len(h.entries) && h.entries[child+1].at < h.entries[child].at {
			child++
		}
		if e.at <= h.entries[child].at {
			break
		}
		h.put(i, h.entries[child])
		i = child
	}
	h.put(i, e)
}

func (h *heapEntries) put(i int, e heapEntry) {
	h.entries[i] = e
	h.places[e.ticket] = int32(i + 1)
}
