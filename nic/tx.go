package nic

import (
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/wire"
)

const (
	// txBatch is how many frames of one device a step sends at most.
	txBatch = 256

	// turnBudget is how many frames a queue pair sends before the next one has its turn:
	// what one segmented send of a link carries.
	turnBudget = 64

	// txStall is how long a link may take nothing before what waits for it is thrown away:
	// it holds memory that others need, and reliable services send again.
	txStall = 20e6 // ns
)

// txState is what a device has to send: the queue pairs that may have something, in
// the order of their turns, and the frames that they filled.
type txState struct {
	head, tail *QP

	frames   []wire.TxFrame
	copies   []copiedPayload // beside frames
	sent     int             // frames[:sent] were taken by the link
	filled   int             // frames[sent:filled] wait
	turnLeft int             // slots left for the queue pair at work

	stalled   int64 // since when the link has taken nothing, 0 if it does
	discarded uint64
}

func (t *txState) init(d *Device) {
	n := txBatch
	if c := d.link.Capabilities(); c.MaxBatch > 0 {
		n = min(n, c.MaxBatch)
	}
	t.frames, t.copies = make([]wire.TxFrame, n), make([]copiedPayload, n)
}

// kept is the payload of a frame of an unreliable service that the link did not take at once:
// its sender hears that it is sent, and may write to its buffer. The storage stays.
type copiedPayload struct {
	buf []byte
	is  bool
}

// keep copies the payload of such frames, before anybody hears that they are sent.
func (t *txState) copyVolatile() {
	for i := t.sent; i < t.filled; i++ {
		f, k := &t.frames[i], &t.copies[i]
		if !f.Volatile || k.is || len(f.Payload) == 0 {
			continue
		}
		k.buf = k.buf[:0]
		for _, p := range f.Payload {
			k.buf = append(k.buf, p...)
		}
		f.Payload = append(f.Payload[:0], k.buf)
		k.is = true
	}
}

func (t *txState) empty() bool { return t.sent == t.filled }

// activate puts q at the end of the list, if it is not in it.
func (t *txState) activate(q *QP) {
	if q.active {
		return
	}
	q.active, q.next = true, nil
	if t.tail == nil {
		t.head = q
	} else {
		t.tail.next = q
	}
	t.tail = q
}

func (t *txState) pop() *QP {
	q := t.head
	t.head = q.next
	if t.head == nil {
		t.tail = nil
	}
	q.active, q.next = false, nil
	return q
}

// deactivate takes q out of the list, for one that is destroyed.
func (t *txState) deactivate(q *QP) {
	if !q.active {
		return
	}
	var prev *QP
	for p := t.head; p != q; p = p.next {
		prev = p
	}
	if prev == nil {
		t.head = q.next
	} else {
		prev.next = q.next
	}
	if t.tail == q {
		t.tail = prev
	}
	q.active, q.next = false, nil
}

// slot returns the next free frame for q, or nil when its turn is over or the batch full.
func (t *txState) slot(q *QP) *packet.Tx {
	if t.turnLeft == 0 || t.filled == len(t.frames) {
		return nil
	}
	path := q.route()
	if path == nil {
		return nil
	}
	t.turnLeft--
	f := &t.frames[t.filled]
	t.copies[t.filled].is = false
	t.filled++
	f.Path, f.Flip, f.Volatile, f.CE, f.Dropped = path, 0, !q.init.Type.Reliable(), false, false
	f.Len = 0
	return &f.Tx
}

// room returns how many slots are left for the queue pair at work.
func (t *txState) room() int { return min(t.turnLeft, len(t.frames)-t.filled) }

// unfilled takes back the last slot if it was asked for and not used.
func (t *txState) returnUnused() {
	if t.filled > t.sent && t.frames[t.filled-1].Len == 0 {
		t.filled--
	}
}

// transmit gives active queue pairs their turns until the batch is full or nobody gets on.
func (d *Device) transmit() {
	t := &d.tx
	if t.empty() {
		t.sent, t.filled = 0, 0
	}
	d.fillMADs()
	var idle txState // those that wanted to send and could not
	for t.head != nil && t.filled < len(t.frames) {
		q := t.pop()
		before := t.filled
		more := d.transmitTurn(q)
		d.engine.timers.schedule(q)
		switch {
		case more && t.filled > before:
			t.activate(q)
		case more:
			idle.activate(q)
		}
	}
	for idle.head != nil {
		q := idle.pop()
		t.activate(q)
	}
}

// serve is the turn of one queue pair.
func (d *Device) transmitTurn(q *QP) (more bool) {
	d.tx.turnLeft = turnBudget
	posted := q.fetchSends()
	more = q.t.Transmit(d.env(q))
	d.tx.returnUnused()
	q.stateChanged()
	if q.state == ib.QPSErr && !q.recv.shared && q.recv.ring.posted() > 0 {
		more = true // more receives to flush than one call takes
	}
	return more || posted
}

// send offers the link what waits and keeps what it does not take.
func (d *Device) send() (busy bool) {
	t := &d.tx
	if t.empty() {
		return t.head != nil
	}
	n, err := d.link.Send(d.engine.now, t.frames[t.sent:t.filled])
	if err != nil {
		d.linkError = err
	}
	t.sent += n
	switch {
	case n > 0 || t.empty():
		t.stalled = 0
	case t.stalled == 0:
		t.stalled = d.engine.now
	case d.engine.now-t.stalled > txStall:
		t.discarded += uint64(t.filled - t.sent)
		t.sent, t.stalled = t.filled, 0
	}
	t.copyVolatile()
	return true
}
