package nic

import (
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/wire"
)

const (
	// txBatch is the most frames that a step sends on one device.
	txBatch = 256

	// turnBudget is how many frames a queue pair sends before the next one has its turn: as many as
	// one segmented send (GSO) of a link carries.
	turnBudget = 64

	// txStall is how long a link may accept no frames before the waiting ones are discarded. They
	// hold memory that others need, and reliable services retransmit.
	txStall = 20e6 // ns
)

// txState is the transmit side of a device: the active queue pairs in the order of their turns, and
// the frames that they have filled.
type txState struct {
	head, tail *QP

	frames   []wire.TxFrame
	copies   []copiedPayload // parallel to frames
	sent     int             // frames[:sent] were accepted by the link
	filled   int             // frames[sent:filled] wait for the link
	limit    int             // most frames that may wait for the link
	turnLeft int             // slots left in the turn of the current queue pair
	waiting  []waitingTurn   // turns that go on when memory has been read
	reserved int             // slots for them

	stalled   int64 // since when the link has accepted nothing, 0 if it does accept
	discarded uint64
}

func (t *txState) init(d *Device) {
	n := txBatch
	if c := d.link.Capabilities(); c.MaxBatch > 0 {
		n = min(n, c.MaxBatch)
	}
	t.frames, t.copies, t.limit = make([]wire.TxFrame, n), make([]copiedPayload, n), n
}

// A copiedPayload is the payload of a waiting frame of UC or UD. Its send completes in this step,
// and then the program may overwrite its buffer. The storage is reused.
type copiedPayload struct {
	buf []byte
	is  bool
}

// copyVolatile copies the payload of waiting frames of UC and UD, before their sends complete.
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

// adjustLimit follows what the link takes: n of the filled frames. In front of a congested link an
// answer would wait for all frames that were filled before it.
func (t *txState) adjustLimit(n int) {
	if n == t.filled {
		t.limit = min(2*t.limit, len(t.frames))
	} else {
		t.limit = min(max(n, turnBudget), len(t.frames))
	}
}

func (t *txState) empty() bool { return t.sent == t.filled }

// activate appends q to the list of active queue pairs, unless it is in it.
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

// deactivate removes q, which is being destroyed, from the list.
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

// slot returns the next free frame for q, or nil if its turn is over or the batch is full.
func (t *txState) slot(q *QP) *packet.Tx {
	if t.room() == 0 {
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

// room returns how many slots are left for the current queue pair.
func (t *txState) room() int { return max(0, min(t.turnLeft, t.limit-t.filled-t.reserved)) }

// returnUnused frees the last slot if it was requested and not filled.
func (t *txState) returnUnused() {
	if t.filled > t.sent && t.frames[t.filled-1].Len == 0 {
		t.filled--
	}
}

// A waitingTurn is the turn of a queue pair whose packets wait for reads of memory that only the
// kernel can copy.
type waitingTurn struct {
	q        *QP
	packets  int // reserved slots
	turnLeft int
	posted   bool // it has more work requests to fetch
}

// transmit gives active queue pairs their turns until the batch is full or none makes progress.
func (d *Device) transmit() {
	t := &d.tx
	if t.empty() {
		t.sent, t.filled = 0, 0
	}
	d.fillMADs()
	var idle txState // queue pairs that have work and could not send
	for t.head != nil && t.filled+t.reserved < t.limit {
		q := t.pop()
		before := t.filled
		t.turnLeft = turnBudget
		posted := q.fetchSends()
		switch more := d.transmitTurn(q, posted); {
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

// transmitTurn is the turn of one queue pair, or the rest of it. posted means that it has more work
// requests to fetch.
func (d *Device) transmitTurn(q *QP, posted bool) (more bool) {
	t := &d.tx
	more = q.t.Transmit(d.env(q))
	t.returnUnused()
	q.stateChanged()
	if q.state == ib.QPSErr && !q.recv.shared && q.recv.ring.posted() > 0 {
		more = true // one call does not flush all receives
	}
	d.timers.schedule(q)
	if n := q.t.Waiting(); n > 0 {
		n = min(n, t.room())
		t.waiting = append(t.waiting, waitingTurn{q, n, t.turnLeft, posted})
		t.reserved += n
		return false
	}
	return more || posted
}

// resume goes on with the turns whose reads are done, and reports whether there were any.
func (d *Device) resume() (any bool) {
	t := &d.tx
	n := len(t.waiting)
	for i := range n {
		w := t.waiting[i]
		t.reserved -= w.packets
		t.turnLeft = w.turnLeft
		if d.transmitTurn(w.q, w.posted) {
			t.activate(w.q)
		}
		any = true
	}
	t.waiting = t.waiting[:copy(t.waiting, t.waiting[n:])]
	return any
}

// send passes the waiting frames to the link, and keeps those that it does not accept.
func (d *Device) send() (busy bool) {
	t := &d.tx
	if t.empty() {
		return t.head != nil
	}
	n, err := d.link.Send(d.engine.now, t.frames[t.sent:t.filled])
	if err != nil {
		d.linkError = err
	}
	if t.sent == 0 {
		t.adjustLimit(n)
	}
	t.sent += n
	switch {
	case n > 0 || t.empty():
		t.stalled = 0
	case t.stalled == 0:
		t.stalled = d.engine.timerNow()
	case d.engine.timerNow()-t.stalled > txStall:
		t.discarded += uint64(t.filled - t.sent)
		t.sent, t.stalled = t.filled, 0
	}
	t.copyVolatile()
	return true
}
