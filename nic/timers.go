package nic

import (
	"unsafe"

	"softroce/internal/prefetch"
	"softroce/wire"
)

// scheduleTimer makes sure that q is checked by its deadline. A deadline that moves away, as with
// each acknowledgement, costs nothing until the old time comes.
func (q *QP) scheduleTimer() {
	if at := q.t.NextDeadline(); at != 0 && (q.checkAt == 0 || at < q.checkAt) {
		q.checkAt = at
		q.device.timers.set(q, &q.timer, at)
	}
}

// stallGrace is how late a step may be, in nanoseconds, and still count as on time. A longer delay
// means that the engine did not run.
const stallGrace = 1e6

// overload is how long, in nanoseconds, a link that is never empty may delay timers.
const overload = 100e6

// timerNow returns the time on the clock of the queue pairs' timers. It stands still while the
// engine does not run although it should: a packet that was not sent cannot be answered.
func (e *Engine) timerNow() int64 { return e.now - e.stalled }

// noteStall excludes from the clock of the timers how much later now is than the previous step
// wanted the next one.
func (e *Engine) noteStall(now int64) {
	if e.due != 0 {
		e.stalled += max(0, now-max(e.due, e.now)-stallGrace)
	}
}

// expired handles q's deadline. A peer that does not respond may have a new MAC, so the neighbor
// entry is checked.
func (q *QP) expired() {
	d := q.device
	before := d.counters.LocalACKTimeout
	q.t.Expire(d.env(q))
	q.stateChanged()
	if d.counters.LocalACKTimeout != before && q.path != nil {
		d.iface.ProbeNeighbor(wire.Station{Addr: q.path.Dst, VLAN: q.path.VLAN})
	}
}

// dueAtOnce is how many queue pairs expire takes from the heap at a time, so that their loads
// overlap.
const dueAtOnce = 16

// expire handles the deadlines up to the time before which everything that arrived has been
// received: with a later one, the reply may be among the frames that are not read yet.
func (d *Device) expire() (any bool) {
	until := max(d.drainedAt, d.engine.timerNow()-overload)
	if d.timers.next == 0 || d.timers.next > until {
		return false
	}
	var due [dueAtOnce]*QP
	for {
		n := 0
		for n < len(due) {
			q := d.timers.pop(until)
			if q == nil {
				break
			}
			q.prefetchDue()
			due[n] = q
			n++
		}
		if n == 0 {
			return any
		}
		for _, q := range due[:n] {
			q.t.PrefetchDeadline()
		}
		for _, q := range due[:n] {
			q.checkAt = 0
			any = d.checkDeadline(q, until) || any
		}
	}
}

// prefetchDue starts to load what checkDeadline uses, other than the deadline.
func (q *QP) prefetchDue() {
	prefetch.Lines(unsafe.Pointer(q), 1)
	prefetch.Lines(unsafe.Pointer(&q.turn), 2)
	prefetch.Lines(unsafe.Pointer(&q.init), 1)
}

// checkDeadline handles the deadline of q if it has passed.
func (d *Device) checkDeadline(q *QP, until int64) (expired bool) {
	if q.held() {
		return false // until release
	}
	if at := q.t.NextDeadline(); at != 0 && at <= until {
		expired = true
		q.expired()
		d.tx.activate(q)
	}
	// If it is still due, transmit schedules it again.
	if !q.turn.queued {
		q.scheduleTimer()
	}
	return expired
}
