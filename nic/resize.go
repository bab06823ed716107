package nic

import (
	"sync/atomic"
	"syscall"

	"softroce/internal/abi"
)

// ResizeCQ gives q another ring, of entries slots as Device.CQSlots gave, and moves what was
// not polled there, with the indices and the arming. The client must not poll or arm
// meanwhile; from now on only the new ring counts. EINVAL where it cannot hold what
// waits, or q has overrun.
func (c *Context) ResizeCQ(q *CQ, entries int, mem []byte) error {
	if err := c.usable(); err != nil {
		return err
	}
	if q == nil || q.ctx != c {
		return refuse(syscall.EINVAL, "no CQ of this context")
	}
	if _, err := c.device.CQSlots(entries); err != nil {
		return err
	}
	r, err := newRing("completion", mem, entries, abi.CQESize)
	if err != nil {
		return err
	}
	consumer := q.ring.loadConsumer()
	waiting := q.staged - consumer
	switch {
	case q.overrun:
		return refuse(syscall.EINVAL, "CQ has overrun")
	case waiting > q.ring.size():
		q.ctx.breach("CQ ring: consumer index %d with producer index %d and %d slots", consumer, q.staged, q.ring.size())
		return q.ctx.broken
	case waiting > r.size():
		return refuse(syscall.EINVAL, "CQ holds %d completions, %d slots do not do", waiting, r.size())
	}
	if err := c.takeRing(len(mem)); err != nil {
		return err
	}
	c.giveRing(q.bytes)
	moveSlots(&r, &q.ring, consumer, q.staged)
	r.storeConsumer(consumer)
	r.storeProducer(q.published)
	armed, events := word(mem, abi.CQArmed), word(mem, abi.CQEvents)
	atomic.StoreUint32(armed, atomic.LoadUint32(q.armed))
	atomic.StoreUint32(events, q.counted)
	q.ring, q.bytes, q.consumer, q.armed, q.events = r, len(mem), consumer, armed, events
	return nil
}

// moveSlots copies the slots from one index up to another; slots are of one size.
func moveSlots(to, from *ring, first, end uint32) {
	for i := first; i != end; i++ {
		copy(to.slot(i), from.slot(i))
	}
}

// resize gives s another ring of maxWR slots.
func (s *SRQ) resize(maxWR int, mem []byte) error {
	c, old := s.ctx, s.ring
	maxSGE := old.maxSGE
	if err := c.device.RoundSRQ(&maxWR, &maxSGE); err != nil {
		return err
	}
	r, err := newRecvRing(c, mem, maxWR, maxSGE)
	if err != nil {
		return err
	}
	waiting := old.posted()
	if c.broken != nil {
		return c.broken
	}
	if waiting > int(r.size()) {
		return refuse(syscall.EINVAL, "SRQ holds %d work requests, %d slots do not do", waiting, r.size())
	}
	if err := c.takeRing(len(mem)); err != nil {
		return err
	}
	c.giveRing(s.bytes)
	end := old.taken + uint32(waiting)
	moveSlots(&r.ring, &old.ring, old.taken, end)
	r.storeProducer(end)
	r.storeConsumer(old.taken)
	// Queue pairs refer to the recvRing, which stays.
	old.ring, old.wanted, s.bytes = r.ring, r.wanted, len(mem)
	return nil
}
