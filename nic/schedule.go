package nic

import (
	"slices"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// The engine transmits in turns. They go to the clients of a device, then to the queue pairs of
// each client, and are measured in bytes. So a client delays the others by what it sends in one
// turn, however many queue pairs it has, and a step stays short. A READ response is part of the
// turn of the client whose memory it reads.
//
// ACKs, NAKs and the responses of atomics come before the turns: the peer's timer runs until they
// arrive. Only an ACK goes behind a reply with which it is one super-packet.

const (
	// turnBytes is the turn of a client: as much as one segmented send (GSO) of a link carries, in
	// packets of path MTU 4096 with their headers.
	turnBytes = 60 << 10

	// stepBytes is about how much a step transmits at most, on all devices, and how much it
	// receives on each. It suffices for large batches.
	stepBytes = 6 * turnBytes

	// While several clients have turns, a step longer than longStep, in nanoseconds, halves what
	// the next ones may transmit and receive, down to one turn. One shorter than shortStep adds
	// half a turn. A message passes through three or four steps, and should not take longer than
	// 200 µs.
	longStep  = 40e3
	shortStep = 20e3

	// aloneAfter is how long, in nanoseconds, others have not transmitted when a client counts as
	// the only active one. Its steps are long: that costs less.
	aloneAfter = 1e9

	// maxTurn is the longest turn of a queue pair. It is longer than that of its client, which then
	// has none for some rounds. Long turns are cheaper, because the queue pair's memory stays in
	// the processor's cache.
	maxTurn = 4 * turnBytes

	// minTurn is the shortest turn of a queue pair: one frame.
	minTurn = 4 << 10

	// maxWait is how long, in nanoseconds, a queue pair should wait for its turn. Turns become
	// shorter if it waits longer, because many have much to send and the link is slow: a peer must
	// see a part of each READ and WRITE before its timer expires. Timers of 67 ms (code 14) are
	// common.
	maxWait = 16e6

	// frameCost and fetchCost are the number of bytes that can be copied in the time that a frame,
	// and a work request that is fetched or flushed, take besides the copying.
	frameCost = 1024
	fetchCost = 256
)

// A schedule is the place of a client among those of its device, and its queue pairs.
type schedule struct {
	place  place[contextPart]
	ready  fifo[QP]
	credit int  // bytes that it may still send in this turn, negative if it has sent too much
	copied bool // it has sent payload that only the kernel can copy: see copyCost
}

// activate gives q a turn. A client that had nothing to send before is served next.
func (t *txState) activate(q *QP) {
	c := q.part
	if !q.turn.queued {
		q.waits = q.device.engine.now
		c.schedule.ready.push(&q.turn)
	}
	if !c.schedule.place.queued {
		t.clients.pushFirst(&c.schedule.place)
	}
}

// deactivate removes q, which is being destroyed.
func (t *txState) deactivate(q *QP) {
	q.part.schedule.ready.remove(&q.turn)
	t.due.remove(&q.reply)
	t.aside.remove(&q.aside)
	q.device.congestion.forget(q)
}

// remove removes the client, which is being closed.
func (t *txState) remove(p *contextPart) {
	t.clients.remove(&p.schedule.place)
	if e := p.device.engine; e.last == p.ctx {
		e.last = nil
	}
}

// transmit emits acknowledgements, and then what the clients have to send.
func (e *Engine) transmit() {
	for _, d := range e.devices {
		d.tx.rewind()
		if d.tx.pfc {
			d.updatePauses()
		}
		d.fillMADs()
		d.sendCNPs()
		d.acknowledge()
	}
	e.budget = e.stepLimit
	if e.first++; e.first >= len(e.devices) {
		e.first = 0
	}
	e.serve()
}

// noteClient records that a queue pair of c has transmitted in its turn. The contexts of a process
// are one client. One that only acknowledges does not count: nothing of it waits for others.
func (e *Engine) noteClient(c *Context) {
	last := e.last
	if c == last {
		return
	}
	if last != nil && (last.opt.PID != c.opt.PID || c.opt.PID == 0) {
		e.sharedAt = e.now
	}
	e.last = c
}

// alone reports whether at most one client is active.
func (e *Engine) alone() bool { return e.sharedAt == 0 || e.now-e.sharedAt > aloneAfter }

// adaptStep chooses how much steps may transmit and receive by how long the last one took: how long
// a byte takes depends on the link, the memory and the machine.
func (e *Engine) adaptStep(took int64) {
	switch {
	case e.alone():
		e.stepLimit = stepBytes
	case took > longStep:
		e.stepLimit = max(e.stepLimit/2, turnBytes)
	case took < shortStep:
		e.stepLimit = min(e.stepLimit+turnBytes/2, stepBytes)
	}
}

// serve gives the devices their shares of what the step may still transmit.
func (e *Engine) serve() {
	active := 0
	for _, d := range e.devices {
		if d.tx.ready() {
			active++
		}
	}
	if active == 0 {
		return
	}
	for _, part := range [2][]*Device{e.devices[e.first:], e.devices[:e.first]} {
		for _, d := range part {
			if d.tx.ready() {
				e.budget -= d.serve(e.budget / active)
				active--
			}
		}
	}
}

// ready reports whether clients may transmit. They may not while frames wait for the link: replies
// can overtake these, but not what the link has taken.
func (t *txState) ready() bool { return !t.clients.empty() && !t.congested }

// serve lets one queue pair after the other transmit until about budget bytes are emitted or none
// makes progress. It returns how many were emitted.
func (d *Device) serve(budget int) (spent int) {
	t := &d.tx
	t.into = &t.data
	var blocked fifo[QP] // queue pairs that have work and could not send
	for spent < budget && t.free() > 0 && !t.clients.empty() {
		c := &t.clients.first.of.schedule
		if c.ready.empty() {
			t.clients.pop()
			continue
		}
		if c.credit <= 0 {
			c.credit += turnBytes
		}
		if c.credit > 0 {
			q := c.ready.pop()
			prefetchNext(&c.ready, transport.QPSize)
			next := c.ready.first
			if t.alternate = next != nil; t.alternate {
				next.of.prefetchSend()
			}
			if q.held() {
				continue // until release
			}
			if d.mustWait(q) {
				continue // until releasePaced
			}
			by, before, waiting := q.ctx, t.data.filled, len(t.waiting)
			cost, more := d.serveQP(q, budget-spent)
			if t.data.filled > before || len(t.waiting) > waiting {
				d.engine.noteClient(by)
			}
			spent += cost
			c.credit -= cost
			switch {
			case more && t.data.filled > before:
				t.activate(q)
				if q.rest > 0 {
					c.ready.remove(&q.turn)
					c.ready.pushFirst(&q.turn)
				}
			case more && t.meetsPause(q) && !q.flushing():
				t.setAside(q)
			case more && !q.turn.queued: // else it has failed in its turn, and has another one
				blocked.push(&q.turn)
			}
		}
		if c.ready.empty() {
			// The client stays for one round: one that becomes active again and again must not
			// always be the next.
			c.credit = min(c.credit, 0)
		}
		if c.credit <= 0 {
			t.clients.remove(&c.place)
			t.clients.push(&c.place)
		}
	}
	t.alternate = false
	for !blocked.empty() {
		t.activate(blocked.pop())
	}
	return spent
}

// serveQP is the turn of one queue pair.
func (d *Device) serveQP(q *QP, budget int) (cost int, more bool) {
	t := &d.tx
	switch waited := d.engine.now - q.waits; {
	case waited > maxWait:
		t.turn = max(t.turn/2, minTurn)
	case waited < maxWait/4:
		t.turn = min(2*t.turn, maxTurn)
	}
	turn := t.turn
	if q.rest > 0 {
		turn = min(turn, q.rest)
	}
	t.left = min(budget, turn)
	if q.part.schedule.copied {
		t.left /= d.copyCost()
	}
	t.left = q.limit(t.left)
	if t.meetsPause(q) {
		t.left = 0
	}
	fetched := q.sqFetched
	t.prefetchPayload()
	posted := q.fetchSends()
	t.prefetchPayload()
	cost, more = d.transmitTurn(q, posted)
	cost = max(cost+fetchCost*int(q.sqFetched-fetched), frameCost)
	// If the budget has cut the turn short, the rest of it comes first in the next step. Otherwise
	// two queue pairs would have a long and a short turn in each step, and the same ones each time.
	if q.rest = 0; budget < turn {
		q.rest = max(0, turn-cost)
	}
	return cost, more
}

// copyCost returns how many times more a packet is taken to cost if only the kernel can copy its
// payload. It matters if others wait.
func (d *Device) copyCost() int {
	if d.engine.alone() {
		return 1
	}
	return d.tx.copyCost
}

// A waitingTurn is the turn of a queue pair whose packets wait for reads of memory that only the
// kernel can copy.
type waitingTurn struct {
	q       *QP
	packets int  // reserved frames
	cost    int  // what the packets were estimated to cost
	left    int  // bytes left in the turn
	posted  bool // it has more work requests to fetch
}

// transmitTurn lets a queue pair transmit in its turn or the rest of it. posted means that it has
// more work requests to fetch.
func (d *Device) transmitTurn(q *QP, posted bool) (cost int, more bool) {
	t := &d.tx
	left, before := t.left, t.data.filled
	replying := q.t.Replying()
	more = q.t.Transmit(d.env(q))
	t.finish()
	q.sent(t.data.frames[before:t.data.filled])
	switch {
	case replying:
		q.lastReply = t.data.last()
	case t.data.filled == before+1:
		t.putACKBehind(q, before)
	}
	q.stateChanged()
	if q.state == ib.QPSErr && !q.recv.shared && q.recv.ring.posted() > 0 {
		more = true // one call does not flush all receives
	}
	t.prefetchPayload()
	q.scheduleTimer()
	cost = left - t.left + fetchCost*int(recvBudget-q.recv.left)
	if n := q.t.Waiting(); n > 0 {
		q.part.schedule.copied = true
		n = min(n, t.room(q.t.PathMTU()))
		w := waitingTurn{q, n, d.copyCost() * min(t.left, n*packetCost(q.t.PathMTU())), t.left, posted}
		t.waiting = append(t.waiting, w)
		d.engine.waiting++
		t.reserved += n
		return cost + w.cost, false
	}
	return cost, more || posted
}

// putACKBehind moves the ACK of q behind the request at index i if it is just before it, as when a
// program has replied at once. Then both are one super-packet, in which only the last packet may be
// shorter than the others. The peer may get the reply before the completion of what it replies to.
// Programs that wait for events may rely on the other order, so only those that poll are affected.
func (t *txState) putACKBehind(q *QP, i int) {
	b := &t.data
	if !t.joins || i == b.sent || !q.sendCQ.isPolled() || !q.recvCQ.isPolled() {
		return
	}
	ack, request := &b.frames[i-1], &b.frames[i]
	isACK := packet.Opcode(ack.Head[0]).Info().Kind == packet.KindAck && packet.Syndrome(ack.Head[packet.BTHLen]).IsACK()
	if isACK && ack.QPN == q.qpn && ack.Path.Network != packet.RoCEv1 && ack.Len < request.Len {
		b.swap(i-1, i)
		q.lastReply = b.last()
	}
}

// resume continues the turns whose reads are done.
func (d *Device) resume() {
	t := &d.tx
	t.into = &t.data
	n := len(t.waiting)
	d.engine.waiting -= n
	for i := range n {
		w := t.waiting[i]
		t.reserved -= w.packets
		if w.q.held() {
			continue // until release
		}
		t.left = w.left
		cost, more := d.transmitTurn(w.q, w.posted)
		if more {
			t.activate(w.q)
		}
		cost = max(0, cost-w.cost)
		d.engine.budget -= cost
		w.q.part.schedule.credit -= cost
		w.q.rest = max(0, w.q.rest-cost)
	}
	t.waiting = slices.Delete(t.waiting, 0, n)
}

// acknowledge emits the replies of queue pairs that have received requests, unless READ responses
// are among them: then the queue pair gets a turn. While frames wait for a congested link they
// overtake these, except READ responses of the same queue pair.
func (d *Device) acknowledge() {
	t := &d.tx
	if t.due.empty() {
		return
	}
	t.into = &t.data
	reserved := len(t.data.frames) / 2 // for requests and READ responses
	if t.congested || t.backlogged != 0 {
		t.into, reserved = &t.replies, 0
	}
	if t.closed != 0 {
		t.openForReplies()
		defer t.closeToData()
	}
	var rest fifo[QP] // queue pairs whose replies were not all emitted
	for !t.due.empty() && t.free() > reserved {
		q := t.due.pop()
		prefetchNext(&t.due, transport.ResponderSize)
		if next := t.due.first; next != nil {
			next.of.prefetchCredits()
		}
		if q.held() {
			continue // until release
		}
		if t.meetsPause(q) {
			t.setAside(q)
			continue
		}
		if q.t.Reading() || t.into == &t.replies && (q.lastReply > t.data.taken || t.inBacklog(q)) {
			t.activate(q)
			continue
		}
		t.left = turnBytes
		more := q.t.Acknowledge(d.env(q))
		t.finish()
		if t.into == &t.data {
			q.lastReply = t.data.last()
		}
		if more {
			rest.push(&q.reply)
		}
	}
	for !rest.empty() {
		t.due.push(&rest.pop().reply)
	}
}
