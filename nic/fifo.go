package nic

// A fifo is a queue of elements that hold their own links: to add or remove one allocates nothing
// and costs the same whatever the length.
type fifo[T any] struct{ first, last *place[T] }

// A place is what an element needs to be in one fifo.
type place[T any] struct {
	of         *T
	prev, next *place[T]
	queued     bool
}

func (f *fifo[T]) empty() bool { return f.first == nil }

// push adds p at the end.
func (f *fifo[T]) push(p *place[T]) {
	p.prev, p.next, p.queued = f.last, nil, true
	if f.last == nil {
		f.first = p
	} else {
		f.last.next = p
	}
	f.last = p
}

// pushFirst adds p at the front.
func (f *fifo[T]) pushFirst(p *place[T]) {
	p.prev, p.next, p.queued = nil, f.first, true
	if f.first == nil {
		f.last = p
	} else {
		f.first.prev = p
	}
	f.first = p
}

// remove removes p if it is queued.
func (f *fifo[T]) remove(p *place[T]) {
	if !p.queued {
		return
	}
	if p.prev == nil {
		f.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		f.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.prev, p.next, p.queued = nil, nil, false
}

// pop removes the first element, which must exist, and returns it.
func (f *fifo[T]) pop() *T {
	p := f.first
	f.remove(p)
	return p.of
}
