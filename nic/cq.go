package nic

import (
	"cmp"
	"sync/atomic"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/transport"
)

// CQConfig configures a completion queue.
type CQConfig struct {
	Entries int    // slots of the ring, from Device.CQSlots
	Ring    []byte // abi.RingSize(Entries, abi.CQESize) bytes

	// Notify is called on the engine, at the end of a step, for each completion event: a completion
	// arrived for which the client had armed the queue. It must not block or call the engine. May
	// be nil.
	Notify func()

	Timestamps bool // the client reads those of completions
}

// A CQ is a completion queue: a ring whose producer is the engine. The comment of completions
// describes the states of a completion.
type CQ struct {
	ctx     *Context
	id      uint32
	ring    ring
	bytes   int
	onEvent func() // CQConfig.Notify
	armed   *uint32
	events  *uint32

	staged    uint32 // producer index with the completions that are not visible yet
	published uint32 // producer index that the client sees
	consumer  uint32 // as last read from the ring and checked
	listed    bool   // in the list of CQs in which this step has staged something
	afterSend bool   // a completion that releases memory is staged: publish after the links' Send
	solicited bool   // a completion that fires CQArmSolicited is staged
	overrun   bool   // there was no room for a completion: no more are staged
	counted   uint32 // completion events that the ring counts
	notified  uint32 // completion events that onEvent was called for
	users     int    // QPs; one with both queues here counts twice

	late []lateCompletion // in order

	cqSharing
}

// CQSlots returns the slots of a completion queue with at least n entries; EINVAL if n is not
// between 1 and the limit.
func (d *Device) CQSlots(n int) (int, error) { return d.limits.cqSlots(n) }

func (l *Limits) cqSlots(n int) (int, error) {
	if n < 1 || n > l.MaxCQE {
		return 0, errorf(syscall.EINVAL, "CQ of %d entries: must be 1 to %d", n, l.MaxCQE)
	}
	return roundSlots(n), nil
}

// Events returns the number of completion events that the ring counts. It may be called from any
// goroutine when the queue is destroyed.
func (q *CQ) Events() uint32 { return q.counted }

// CreateCQ creates a completion queue; errors are EINVAL, ENOMEM and EOPNOTSUPP.
func (c *Context) CreateCQ(o CQConfig) (*CQ, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	d := c.device
	if o.Timestamps {
		if err := d.require(CapTimestamps, "timestamps"); err != nil {
			return nil, err
		}
	}
	if err := c.checkLimit(kindCQ); err != nil {
		return nil, err
	}
	if _, err := d.granted.cqSlots(o.Entries); err != nil {
		return nil, err
	}
	r, err := newRing("completion", o.Ring, o.Entries, abi.CQESize)
	if err != nil {
		return nil, err
	}
	if err := c.chargeRing(len(o.Ring)); err != nil {
		return nil, err
	}
	first := r.loadProducer()
	q := &CQ{ctx: c, id: d.newID(), ring: r, bytes: len(o.Ring), onEvent: o.Notify, staged: first, published: first, consumer: first,
		armed: word(o.Ring, abi.CQArmed), events: word(o.Ring, abi.CQEvents)}
	c.cqs = append(c.cqs, q)
	c.add(kindCQ, 1)
	return q, nil
}

// ResizeCQ replaces the ring of q by one with the number of slots that Device.CQSlots returned.
// Completions that are not polled move there with their indices, and so does the arming. The client
// must not poll or arm during the call, and then only use the new ring. EINVAL if they do not fit,
// or if q has overrun.
func (c *Context) ResizeCQ(q *CQ, entries int, mem []byte) error {
	if err := c.usable(); err != nil {
		return err
	}
	if q == nil || q.ctx != c {
		return errorf(syscall.ENOENT, "the CQ is not of this context")
	}
	if _, err := c.device.granted.cqSlots(entries); err != nil {
		return err
	}
	r, err := newRing("completion", mem, entries, abi.CQESize)
	if err != nil {
		return err
	}
	c.takePosted() // its completions need room too
	q.publishAll()
	consumer := q.ring.loadConsumer()
	waiting := q.staged - consumer
	switch {
	case q.overrun:
		return errorf(syscall.EINVAL, "CQ has overrun")
	case waiting > q.ring.size():
		q.ctx.breach("CQ ring: consumer index %d with producer index %d and %d slots", consumer, q.staged, q.ring.size())
		return q.ctx.fatal.Load()
	case waiting > r.size():
		return errorf(syscall.EINVAL, "CQ holds %d completions: %d slots are too few", waiting, r.size())
	}
	if err := c.chargeRing(len(mem)); err != nil {
		return err
	}
	c.releaseRing(q.bytes)
	moveSlots(&r, &q.ring, consumer, q.staged)
	r.storeConsumer(consumer)
	r.storeProducer(q.published)
	armed, events := word(mem, abi.CQArmed), word(mem, abi.CQEvents)
	atomic.StoreUint32(armed, atomic.LoadUint32(q.armed))
	atomic.StoreUint32(events, q.counted)
	q.ring, q.bytes, q.consumer, q.armed, q.events = r, len(mem), consumer, armed, events
	return nil
}

// DestroyCQ destroys q; EBUSY while a queue pair uses it.
func (c *Context) DestroyCQ(q *CQ) error {
	if q == nil || q.ctx != c {
		return errorf(syscall.ENOENT, "the CQ is not of this context")
	}
	if q.users > 0 {
		return errorf(syscall.EBUSY, "CQ is in use by %d queues", q.users)
	}
	q.remove()
	return nil
}

func (q *CQ) remove() {
	q.notify(q.ctx.device.engine) // what the ring counts: the client drops as many events from its channel
	c := q.ctx
	q.ctx = nil
	for _, o := range q.outlets {
		o.ctx = nil
	}
	c.releaseRing(q.bytes)
	c.cqs = remove(c.cqs, q)
	c.add(kindCQ, -1)
}

// Entries returns the number of slots.
func (q *CQ) Entries() int { return int(q.ring.size()) }

// stage writes a completion of a queue pair to the next slot, unless a rule of the fault program
// makes it late.
func (q *CQ) stage(e *Engine, qp *QP, c *transport.Completion) {
	q = q.outlet(qp.device)
	if q.ctx == nil || (len(q.late) > 0 || !qp.device.completionFaults.Empty()) && q.isLate(e, qp, c) {
		return
	}
	q.write(e, qp, c)
}

// next takes the next slot, or a pending entry of an outlet.
func (q *CQ) next() *abi.CQE {
	if q.of != nil {
		q.pending = append(q.pending, abi.CQE{})
		return &q.pending[len(q.pending)-1]
	}
	q.staged++
	return abi.In[abi.CQE](q.ring.slot(q.staged - 1))
}

// write writes a completion to the next slot.
func (q *CQ) write(e *Engine, qp *QP, c *transport.Completion) {
	if q.of == nil && (q.overrun || !q.hasRoom(e)) {
		return
	}
	w := q.next()
	*w = abi.CQE{}
	w.WRID, w.Status, w.Opcode = c.WRID, uint32(c.Status), uint32(c.Opcode)
	w.ByteLen, w.Flags = c.ByteLen, uint32(c.Flags)
	w.QPN, w.SrcQP = qp.qpn, c.SrcQP
	w.PKeyIndex, w.SL, w.VLAN = uint16(qp.pkeyIndex), c.SL, c.VLAN
	if qp.device.has(CapTimestamps) {
		w.Timestamp, w.Wallclock = uint64(e.now), uint64(e.wall.at(e.now))
	}
	if c.Flags&ib.WCWithInv != 0 {
		w.Imm = c.Imm // an R_Key: a number in the ABI
	} else {
		w.SetImmediate(c.Imm)
	}
	if c.Status != ib.WCSuccess {
		w.VendorErr = cmp.Or(c.VendorErr, qp.device.identity.VendorErrs[c.Status])
	}
	q.afterSend = q.afterSend || qp.releasesMemory(c)
	// An error counts as solicited (IBTA 11.4.2.2).
	q.solicited = q.solicited || c.Solicited || c.Status != ib.WCSuccess
	if !q.listed {
		q.listed = true
		e.completing = true
		e.completions.staged = append(e.completions.staged, q)
	}
}

// releasesMemory reports whether c releases memory that frames of this step may refer to: the
// buffer of a send of UC or UD, that of a reliable one in error, or what a peer could read through
// a window. Frames of a reliable send that succeeded carry nothing that the peer still accepts.
func (q *QP) releasesMemory(c *transport.Completion) bool {
	if c.Recv {
		return c.Flags&ib.WCWithInv != 0
	}
	return !q.init.Type.Reliable() || c.Status != ib.WCSuccess || c.Opcode == ib.WCLocalInv || c.Opcode == ib.WCBindMW
}

// hasRoom reports whether there is a free slot. It reads the client's consumer index only if the
// ring looks full.
func (q *CQ) hasRoom(e *Engine) bool {
	if q.staged-q.consumer < q.ring.size() {
		return true
	}
	c := q.ring.loadConsumer()
	if q.staged-c > q.ring.size() {
		q.ctx.breach("CQ ring: consumer index %d with producer index %d and %d slots", c, q.staged, q.ring.size())
		return false
	}
	q.consumer = c
	if q.staged-c < q.ring.size() {
		return true
	}
	q.lose(e)
	return false
}

// lose records that there is no room for a completion.
func (q *CQ) lose(e *Engine) {
	if !q.overrun {
		q.overrun = true
		e.completing = true
		e.completions.overrun = append(e.completions.overrun, q)
	}
}

// failed reports whether q has overrun: it takes no more completions.
func (q *CQ) failed() bool { return q != nil && q.overrun }

// isPolled reports whether the program has never had an event of q. It does not know that of a
// queue which several engines share.
func (q *CQ) isPolled() bool { return q == nil || q.of == nil && q.outlets == nil && q.counted == 0 }

// publish makes what is staged visible to the client, and counts a completion event if the client
// has armed the queue for it.
func (q *CQ) publish(e *Engine) {
	switch {
	case q.of != nil:
		q.publishPending(e)
		return
	case q.outlets != nil:
		return // its outlets do
	}
	if q.ctx == nil || q.staged == q.published {
		return
	}
	q.published = q.staged
	q.ring.storeProducer(q.staged)
	if !e.stepped { // simulations do not load the line of the lender
		e.lender.news = true
	}
	q.countEvent(q.solicited)
	q.solicited = false
}

// countEvent counts a completion event if the queue is armed for it. The client may write the word
// at any time, so each load may return another value. A client that follows the ABI needs a few
// attempts at most.
func (q *CQ) countEvent(solicited bool) {
	for range 3 {
		a := atomic.LoadUint32(q.armed)
		if a != abi.CQArmNext && !(a == abi.CQArmSolicited && solicited) {
			return
		}
		if atomic.CompareAndSwapUint32(q.armed, a, abi.CQArmNone) {
			q.counted++
			atomic.StoreUint32(q.events, q.counted)
			return
		}
	}
}

// notify calls CQConfig.Notify for each event that was counted since the last call. e calls it.
func (q *CQ) notify(e *Engine) {
	q.listed, q.afterSend = false, false
	if q.of != nil {
		q = q.of
	}
	if q.ctx == nil || q.onEvent == nil {
		return
	}
	if q.outlets != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	for ; q.notified != q.counted; q.notified++ {
		q.onEvent()
		e.lender.news = true
	}
}

// fail reports that q has lost a completion, and fails the queue pairs and SRQs that use it.
func (q *CQ) fail() {
	if q.ctx == nil {
		return
	}
	q.ctx.event(Event{Type: ib.EventCQErr, CQ: q})
	for _, p := range q.ctx.qps {
		if p.sendCQ == q || p.recvCQ == q {
			p.fail(transport.ReasonCQ)
		}
	}
	for _, s := range q.ctx.srqs {
		if s.cq == q { // an SRQ of XRC: requests for it are refused from now on
			s.fail()
		}
	}
}
