package nic

import (
	"slices"
	"sync"

	"softroce/internal/abi"
)

// A cqSharing is what a CQ has for queue pairs of several slices. Each slice then stages its
// completions in an outlet, a CQ without a ring, and publishes those of a step or of a received
// batch together, under the lock of the CQ.
type cqSharing struct {
	slice   *Device    // whose queue pairs alone use the CQ; nil: none does yet
	outlets []*CQ      // by slice; nil: one slice uses the CQ
	mu      sync.Mutex // of a CQ with outlets: guards the ring and its indices

	of      *CQ // of an outlet: the CQ
	pending []abi.CQE
}

// use lets a queue pair of a slice use q.
func (q *CQ) use(d *Device) {
	switch {
	case q.slice == nil:
		q.slice = d
	case q.slice != d && q.outlets == nil:
		q.split()
	}
}

// split gives q outlets. What its slice has staged is published, and so its frames must not refer
// to memory any more.
func (q *CQ) split() {
	e := q.slice.engine
	e.copyPayload()
	q.publish(e)
	for range q.ctx.device.slices {
		q.outlets = append(q.outlets, &CQ{ctx: q.ctx, cqSharing: cqSharing{of: q}})
	}
	own := q.outlets[q.slice.number]
	if own.late, q.late = q.late, nil; len(own.late) > 0 {
		e.lateCQs[slices.Index(e.lateCQs, q)] = own
	}
}

// outlet returns where the queue pairs of a slice stage their completions.
func (q *CQ) outlet(d *Device) *CQ {
	if q.outlets == nil {
		return q
	}
	return q.outlets[d.number]
}

// publishPending makes what is staged in an outlet visible to the client.
func (q *CQ) publishPending(e *Engine) {
	if len(q.pending) == 0 {
		return
	}
	to := q.of
	if to.ctx != nil {
		to.append(e, q.pending, q.solicited)
	}
	q.pending, q.solicited = q.pending[:0], false
}

// append publishes completions, as far as there is room.
func (q *CQ) append(e *Engine, l []abi.CQE, solicited bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range l {
		if q.overrun || !q.hasRoom(e) {
			break
		}
		*q.next() = l[i]
	}
	if q.staged == q.published {
		return
	}
	q.published = q.staged
	q.ring.storeProducer(q.staged)
	q.countEvent(solicited)
	e.lender.news = true
}

// publishAll publishes what the outlets have staged, before a control operation on q.
func (q *CQ) publishAll() {
	if q.outlets == nil {
		return
	}
	q.ctx.device.engine.copyPayload()
	for i, o := range q.outlets {
		o.publishPending(q.ctx.device.slices[i].engine)
	}
}

// slots returns the number of slots of the ring.
func (q *CQ) slots() uint32 {
	if q.of != nil {
		q = q.of
	}
	return q.ring.size()
}

// holdOf returns why the completions of a slice in q wait: not nil while a copy of the client's
// memory takes too long.
func (q *CQ) holdOf(d *Device) *hold {
	if q.ctx == nil {
		return nil
	}
	return q.ctx.parts[d.number].hold
}
