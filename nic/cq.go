package nic

import (
	"sync/atomic"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/transport"
)

// CQConfig is what a completion queue is made of.
type CQConfig struct {
	Entries int    // slots of the ring, as Device.CQSlots gave
	Ring    []byte // abi.RingSize(Entries, abi.CQESize) bytes

	// Notify is called on the engine, at the end of its step, where a completion has arrived for which the
	// client had armed the queue. It does not block and does not call back. May be nil.
	Notify func()
}

// A CQ is a completion queue: a ring that the engine produces.
type CQ struct {
	ctx    *Context
	ring   ring
	bytes  int
	notify func()
	armed  *uint32
	events *uint32

	staged    uint32 // producer index with what is not visible yet
	published uint32 // producer index as the client sees it
	consumer  uint32 // as last read and checked
	dirty     bool   // in the engine's list
	late      bool   // a send of an unreliable service is staged: its frames go first
	solicited bool   // staged since the last show: a completion that wakes CQArmSolicited
	overrun   bool   // it had no room: nothing more is put in
	fired     uint32 // completion events given
	told      uint32 // of them, those of which Notify has heard
	users     int    // QPs, each queue of one counting
}

// CQSlots returns the slots of a completion queue for n entries; EINVAL if n is not
// from 1 to the limit.
func (d *Device) CQSlots(n int) (int, error) {
	if n < 1 || n > d.limits.MaxCQE {
		return 0, refuse(syscall.EINVAL, "CQ of %d entries: 1 to %d can be had", n, d.limits.MaxCQE)
	}
	return roundSlots(n), nil
}

// CreateCQ creates a completion queue; errors are EINVAL and ENOMEM.
func (c *Context) CreateCQ(o CQConfig) (*CQ, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	d := c.device
	if err := room("CQ", d.count.cqs, d.limits.MaxCQ, c.count.cqs, c.limits.CQs); err != nil {
		return nil, err
	}
	if _, err := d.CQSlots(o.Entries); err != nil {
		return nil, err
	}
	r, err := newRing("completion", o.Ring, o.Entries, abi.CQESize)
	if err != nil {
		return nil, err
	}
	if err := c.takeRing(len(o.Ring)); err != nil {
		return nil, err
	}
	q := &CQ{ctx: c, ring: r, bytes: len(o.Ring), notify: o.Notify,
		armed: word(o.Ring, abi.CQArmed), events: word(o.Ring, abi.CQEvents)}
	c.cqs = append(c.cqs, q)
	c.count.cqs++
	d.count.cqs++
	return q, nil
}

// DestroyCQ destroys q; EBUSY while a queue pair uses it.
func (c *Context) DestroyCQ(q *CQ) error {
	if q == nil || q.ctx != c {
		return refuse(syscall.EINVAL, "no CQ of this context")
	}
	if q.users > 0 {
		return refuse(syscall.EBUSY, "CQ is in use by %d queues", q.users)
	}
	q.remove()
	return nil
}

func (q *CQ) remove() {
	c := q.ctx
	q.ctx = nil
	c.giveRing(q.bytes)
	c.cqs = without(c.cqs, q)
	c.count.cqs--
	c.device.count.cqs--
}

// Entries returns the number of slots.
func (q *CQ) Entries() int { return int(q.ring.size()) }

// push stages a completion of a queue pair. The client sees it when it is shown.
func (q *CQ) push(e *Engine, qp *QP, c *transport.Completion) {
	if q.ctx == nil || q.overrun || !q.hasRoom(e) {
		return
	}
	w := abi.CQE{
		WRID:      c.WRID,
		Status:    uint32(c.Status),
		Opcode:    uint32(c.Opcode),
		ByteLen:   c.ByteLen,
		QPN:       qp.qpn,
		SrcQP:     c.SrcQP,
		Flags:     uint32(c.Flags),
		PKeyIndex: uint16(qp.pkeyIndex),
		SL:        c.SL,
		VLAN:      c.VLAN,
		Timestamp: uint64(e.now),
		Wallclock: uint64(e.wall.at(e.now)),
	}
	if c.Flags&ib.WCWithInv != 0 {
		w.Imm = c.Imm // an R_Key
	} else {
		w.SetImmediate(c.Imm)
	}
	w.Put(q.ring.slot(q.staged))
	q.staged++
	q.late = q.late || !c.Recv && !qp.init.Type.Reliable()
	// An error counts as solicited: whoever waits must hear of it (IBTA 11.4.2.2).
	q.solicited = q.solicited || c.Solicited || c.Status != ib.WCSuccess
	if !q.dirty {
		q.dirty = true
		e.dirty = append(e.dirty, q)
	}
}

// hasRoom checks the client's consumer index when the ring looks full.
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
	q.overrun = true
	e.overrun = append(e.overrun, q)
	return false
}

// lost reports whether q has overflowed, so that nothing more comes out of it.
func (q *CQ) lost() bool { return q != nil && q.overrun }

// show shows the client what is staged, and gives an event for it if the client has armed the queue. Notify hears of it
// when tell is called.
func (q *CQ) show() {
	if q.ctx == nil || q.staged == q.published {
		return
	}
	q.published = q.staged
	q.ring.storeProducer(q.staged)
	q.fire(q.solicited)
	q.solicited = false
}

// fire gives a completion event if the queue is armed for it. Arming is the client's
// word, so each look at it may find something else; a few are enough for an honest one.
func (q *CQ) fire(solicited bool) {
	for range 3 {
		a := atomic.LoadUint32(q.armed)
		if a != abi.CQArmNext && !(a == abi.CQArmSolicited && solicited) {
			return
		}
		if atomic.CompareAndSwapUint32(q.armed, a, abi.CQArmNone) {
			q.fired++
			atomic.StoreUint32(q.events, q.fired)
			return
		}
	}
}

// tell tells the client of the events that it was given.
func (q *CQ) tell() {
	q.dirty, q.late = false, false
	if q.ctx == nil || q.notify == nil {
		return
	}
	for ; q.told != q.fired; q.told++ {
		q.notify()
	}
}

// overflow tells the client that q lost a completion, and takes down whoever used it.
func (q *CQ) overflow() {
	if q.ctx == nil {
		return
	}
	q.ctx.event(Event{Type: ib.EventCQErr, CQ: q})
	for _, p := range q.ctx.qps {
		if p.sendCQ == q || p.recvCQ == q {
			p.fail()
		}
	}
	for _, s := range q.ctx.srqs {
		if s.cq == q { // an SRQ of XRC: its targets find it no more
			q.ctx.event(Event{Type: ib.EventSRQErr, SRQ: s})
			s.dead = true
			s.stop(func(*QP) bool { return true })
		}
	}
}
