package nic

import (
	"sync/atomic"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/internal/sharelock"
	"softroce/transport"
)

// A recvRing is a ring of receive work requests, of a queue pair or an SRQ.
type recvRing struct {
	ring
	ctx           *Context
	consumerIndex uint32 // the engine's consumer index
	maxSGE        int
	doorbellWord  *uint32 // at abi.RecvDoorbell
	limit         int     // SRQ: with fewer posted, one limit event is due; 0: none
	srq           *SRQ
	slice         *Device // of the first queue pair that uses it; nil: none does yet
	mu            sharelock.Mutex
}

// use lets a queue pair of a slice use the ring.
func (r *recvRing) use(d *Device) {
	switch {
	case r.slice == nil:
		r.slice = d
	case r.slice != d:
		r.mu.Share()
	}
}

func newRecvRing(c *Context, mem []byte, slots, maxSGE int) (*recvRing, error) {
	r, err := newRing("receive", mem, slots, abi.RecvSlotSize(maxSGE))
	if err != nil {
		return nil, err
	}
	return &recvRing{ring: r, ctx: c, consumerIndex: r.loadConsumer(), maxSGE: maxSGE, doorbellWord: word(mem, abi.RecvDoorbell)}, nil
}

// posted returns the number of posted work requests.
func (r *recvRing) posted() int {
	p := r.loadProducer()
	n := p - r.consumerIndex
	if n > r.size() {
		r.ctx.breach("receive ring: producer index %d with consumer index %d and %d slots", p, r.consumerIndex, r.size())
		return 0
	}
	return int(n)
}

// next takes the oldest work request. Its slot is read once, and the copy is checked.
func (r *recvRing) next(wr *transport.RecvWR, sges []transport.SGE) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.fatal.Load() != nil || r.posted() == 0 {
		return false
	}
	slot := r.slot(r.consumerIndex)
	var w abi.RecvWQE
	w.Parse(slot)
	n := int(w.NumSGE)
	if n > r.maxSGE || abi.RecvWQESize+n*abi.SGESize > len(slot) {
		r.ctx.breach("receive WQE %d: %d scatter elements, at most %d", r.consumerIndex, n, r.maxSGE)
		return false
	}
	wr.ID = w.WRID
	wr.SGEs = abi.AppendSGEs(sges[:0], slot[abi.RecvWQESize:], n)
	r.consumerIndex++
	r.storeConsumer(r.consumerIndex)
	if r.srq != nil {
		r.srq.checkLimit()
	}
	return true
}

// discard empties the ring of a queue pair that is reset.
func (r *recvRing) discard() {
	r.consumerIndex = r.loadProducer()
	r.storeConsumer(r.consumerIndex)
}

// requestDoorbell tells the client whether to ring the doorbell after posting.
func (r *recvRing) requestDoorbell(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	atomic.StoreUint32(r.doorbellWord, v)
}

// A recvQueue is where a queue pair's responder takes receive work requests from. Its storage is
// separate from the ring's, since an SRQ's ring serves several queue pairs.
type recvQueue struct {
	qp     *QP // that takes them
	ring   *recvRing
	sges   []transport.SGE
	shared bool
	left   uint32 // how many more this call of the transport may take
}

// recvBudget is how many receive work requests one call of the transport takes.
const recvBudget = 64

// Next implements transport.RecvQueue. One call of the transport gets at most recvBudget: a client
// that has posted many, or keeps posting, while its queue pair is flushed must not occupy the
// engine.
func (r *recvQueue) Next(wr *transport.RecvWR) bool {
	if r.left == 0 {
		return false
	}
	r.left--
	if !r.ring.next(wr, r.sges) {
		return false
	}
	wr.Fault = r.qp.fault(r.ring.ctx, ib.WCRecv)
	return true
}

// Len implements transport.RecvQueue.
func (r *recvQueue) Len() int {
	r.ring.mu.Lock()
	defer r.ring.mu.Unlock()
	return r.ring.posted()
}

func (r *recvQueue) Shared() bool { return r.shared }
