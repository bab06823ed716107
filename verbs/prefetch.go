package verbs

import (
	"sync/atomic"
	"unsafe"

	"softroce/internal/abi"
	"softroce/internal/prefetch"
	"softroce/internal/release"
)

// A successor is the queue pair to which a program posted after another one. A program that posts
// to thousands in turn is likely to do so again in the next round, and by then what a post uses is
// not in the processor's cache. So each post starts to load it for the next two queue pairs: of the
// second one the struct, and of the first one what the struct refers to.
type successor struct {
	qp   atomic.Pointer[QP]
	next uint32 // where the owner's next post writes, an offset in its ring; 0 when it is closed
}

// prefetchSuccessors is called with each post to q, after which the next one writes to offset next
// of the ring.
func (q *QP) prefetchSuccessors(next int) {
	release.Store32(&q.successor.next, uint32(next))
	last := q.ctx.posted.Load()
	if last == q {
		return
	}
	q.ctx.posted.Store(q)
	if last != nil && last.successor.qp.Load() != q {
		last.successor.qp.Store(q)
	}
	first := q.successor.qp.Load()
	if first == nil {
		return
	}
	at := atomic.LoadUint32(&first.successor.next)
	if at == 0 {
		q.successor.qp.CompareAndSwap(first, nil)
		return
	}
	// If the ring was unmapped just now, this does nothing.
	ring := unsafe.Add(unsafe.Pointer(first.sq.produced), -abi.RingProducer)
	prefetch.Lines(unsafe.Add(ring, abi.RingProducer), 1)
	prefetch.Lines(unsafe.Add(ring, abi.RingConsumer), 1)
	prefetch.Lines(unsafe.Add(ring, at), 2) // with a scatter/gather element
	if second := first.successor.qp.Load(); second != nil {
		prefetch.Range(unsafe.Pointer(second), unsafe.Offsetof(second.rq))
	}
}

// leaveSuccession is called when q is closed. What it refers to would otherwise stay in memory as
// long as its predecessor refers to q.
func (q *QP) leaveSuccession() {
	atomic.StoreUint32(&q.successor.next, 0)
	q.ctx.posted.CompareAndSwap(q, nil)
	q.successor.qp.Store(nil)
}
