package nic

import (
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// The device is the transport's Sink: what a queue pair produces goes to its transmit slots,
// completion queues and context.

// env returns the environment of one call of q's transport.
func (d *Device) env(q *QP) *transport.Env {
	b := d.buffers
	if b.envOf != d {
		b.envOf, b.env.Mem, b.env.Table, b.env.Sink, b.env.Rand = d, d.engine.io, d.table, d, d.engine.random
	}
	b.env.Now = d.engine.timerNow()
	q.recv.left = recvBudget
	return &b.env
}

// Packet implements transport.Sink.
func (d *Device) Packet(t *transport.QP) *packet.Tx { return d.tx.slot(t.UserData().(*QP)) }

// Room implements transport.Sink.
func (d *Device) Room(t *transport.QP) int { return d.tx.room(t.PathMTU()) }

// Last implements transport.Sink.
func (d *Device) Last(t *transport.QP) bool { return d.tx.last(t.PathMTU()) }

// Run implements transport.Sink.
func (d *Device) Run(t *transport.QP) int { return d.run(t.UserData().(*QP)) }

// Discard implements transport.Sink.
func (d *Device) Discard(t *transport.QP, psn, n uint32) {
	d.tx.discardResponses(t.UserData().(*QP).path, t.DestQPN(), psn, n)
}

// Complete implements transport.Sink. The slot of a send becomes free.
func (d *Device) Complete(t *transport.QP, c *transport.Completion) {
	q := t.UserData().(*QP)
	cq := q.sendCQ
	if !c.Recv {
		q.sqDone++
		q.sq.storeConsumer(q.sqDone)
	} else if r, ok := c.Queue.(*recvQueue); ok {
		cq = r.ring.srq.cq
	} else {
		cq = q.recvCQ
	}
	if c.Opcode == ib.WCLocalInv || c.Opcode == ib.WCBindMW || c.Flags&ib.WCWithInv != 0 {
		d.endReferences() // to what the peer could read until now
		if c.Opcode == ib.WCBindMW && c.Status == ib.WCSuccess {
			q.revoke()
		}
	}
	d.engine.complete(q, cq, c)
}

// Event implements transport.Sink.
func (d *Device) Event(t *transport.QP, ev ib.EventType) {
	d.engine.event(t.UserData().(*QP), ev)
}
