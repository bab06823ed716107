package nic

import (
	"softroce/internal/ib"
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
func (d *Device) Event(t *transport.QP, ev ib.EventType) {
	q := t.UserData().(*QP)
	q.ctx.event(Event{Type: ev, QP: q})
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
	e.show(false)
}

// show shows clients what is staged. Sends of unreliable services are complete when the link
// has their frames, or txState.keep their payload, so what stands in a queue with one
// of them becomes visible at the step's end.
func (e *Engine) show(late bool) {
	for _, q := range e.dirty {
		if !q.late || late {
			q.show()
		}
	}
}

// tell tells clients of what they were shown. It comes last in a step: whoever sleeps until a message comes may take
// the processor from the engine as soon as he is told, and keep it until he has answered; the message's acknowledgement
// has left by then. And he finds what has come to his other queues at the same time: programs with
// two queues on one channel count on a send's completion before that of the answer to it.
func (e *Engine) tell() {
	for _, q := range e.dirty {
		q.tell()
	}
	clear(e.dirty)
	e.dirty = e.dirty[:0]
}
