package nic

import (
	"softroce/packet"
	"softroce/transport"
)

// enter lends q's transport what it needs for one call.
func (d *Device) enter(q *QP) *transport.Env {
	d.env.Now = d.engine.now
	q.recv.left = q.recv.ring.size()
	return &d.env
}

// Packet implements transport.Sink.
func (d *Device) Packet(t *transport.QP) *packet.Tx { return d.tx.slot(t.UserData().(*QP)) }

// Room implements transport.Sink.
func (d *Device) Room(*transport.QP) int { return d.tx.room() }

// Complete implements transport.Sink: completions are staged in the CQ, and send slots
// retired.
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
	d.engine.complete(q, cq, c)
}

// Event implements transport.Sink.
func (d *Device) Event(t *transport.QP, ev transport.Event) {
	q := t.UserData().(*QP)
	q.ctx.event(Event{Type: EventType(ev), QP: q})
}

// settle carries out queued writes to memory, and then lets completions be seen: whoever
// sees one finds its data. It runs after each batch of received frames, whose bytes the
// writes may come from, and before frames are sent.
func (e *Engine) settle() {
	e.io.Flush()
	e.io.Failed(e.failed)
	e.release()
	for len(e.overrun) > 0 {
		q := e.overrun[len(e.overrun)-1]
		e.overrun = e.overrun[:len(e.overrun)-1]
		q.overflow()
	}
	e.publish(false)
}

// publish shows clients what is staged, and then tells of it: whoever is woken finds what has
// come to his other queues at the same time. Programs with two queues on one channel count on
// a send's completion before that of the answer to it. Sends of unreliable services are complete when the link
// has their frames, or txState.keep their payload, so what stands in a queue with one
// of them becomes visible at the step's end.
func (e *Engine) publish(late bool) {
	for _, q := range e.dirty {
		if !q.late || late {
			q.show()
		}
	}
	n := 0
	for _, q := range e.dirty {
		if q.late && !late {
			e.dirty[n] = q
			n++
			continue
		}
		q.tell()
	}
	clear(e.dirty[n:])
	e.dirty = e.dirty[:n]
}
