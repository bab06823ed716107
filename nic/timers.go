package nic

import "softroce/wire"

// A timerHeap orders the queue pairs of a device by the time at which they are to be checked. That
// time is at or before the queue pair's deadline. A deadline that moves away, as with each
// acknowledgement, costs nothing until the old time comes.
type timerHeap struct{ qps []timedQP }

// A timedQP is a queue pair and its time, so that the heap does not touch others.
type timedQP struct {
	at int64
	*QP
}

// next returns the earliest time, 0 if the heap is empty.
func (h *timerHeap) next() int64 {
	if len(h.qps) == 0 {
		return 0
	}
	return h.qps[0].at
}

// schedule makes sure that q is checked by its deadline.
func (h *timerHeap) schedule(q *QP) {
	at := q.t.NextDeadline()
	if at == 0 || q.timer >= 0 && h.qps[q.timer].at <= at {
		return
	}
	if q.timer < 0 {
		q.timer = len(h.qps)
		h.qps = append(h.qps, timedQP{at, q})
	}
	h.qps[q.timer].at = at
	h.up(q.timer)
}

// pop returns a queue pair whose time has come, or nil.
func (h *timerHeap) pop(now int64) *QP {
	if len(h.qps) == 0 || h.qps[0].at > now {
		return nil
	}
	q := h.qps[0].QP
	h.remove(q)
	return q
}

func (h *timerHeap) remove(q *QP) {
	i := q.timer
	if i < 0 {
		return
	}
	last := len(h.qps) - 1
	h.swap(i, last)
	h.qps[last] = timedQP{}
	h.qps = h.qps[:last]
	q.timer = -1
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h *timerHeap) less(i, j int) bool { return h.qps[i].at < h.qps[j].at }

func (h *timerHeap) swap(i, j int) {
	h.qps[i], h.qps[j] = h.qps[j], h.qps[i]
	h.qps[i].timer, h.qps[j].timer = i, j
}

func (h *timerHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *timerHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.qps) {
			return
		}
		if child+1 < len(h.qps) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.swap(i, child)
		i = child
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

// expire handles the deadlines that passed before the link was last empty: any later reply may be
// among the frames that are not read yet.
func (d *Device) expire() (any bool) {
	if len(d.timers.qps) == 0 {
		return false
	}
	until := max(d.drainedAt, d.engine.timerNow()-overload)
	for {
		q := d.timers.pop(until)
		if q == nil {
			return any
		}
		if q.held() {
			continue // until release
		}
		if at := q.t.NextDeadline(); at != 0 && at <= until {
			any = true
			q.expired()
			d.tx.activate(q)
		}
		// If it is still due, transmit schedules it again.
		if !q.turn.queued {
			d.timers.schedule(q)
		}
	}
}
