package nic

import (
	"maps"

	"softroce/transport"
	"softroce/wire"
)

// Counters is what a device counts.
type Counters struct {
	transport.Counters
	Link       wire.LinkCounters // of the link itself, if it counts
	TxStalled  uint64            // frames discarded because the link accepted nothing for too long
	LinkDowned uint64            // how often the port went down

	// Shift is what ShiftCounter has added to values, by the names of internal/metrics.
	Shift map[string]uint64 `json:"-"`
}

// ShiftCounter adds a number, which may be the complement of one, to the value of a counter.
func (d *Device) ShiftCounter(name string, by uint64) {
	shift := maps.Clone(d.counterShift) // others have the old one
	if shift == nil {
		shift = map[string]uint64{}
	}
	shift[name] += by
	d.counterShift = shift
}

// A Drop is a reason why packets were dropped, and their number.
type Drop struct {
	Reason string `json:"reason"`
	Count  uint64 `json:"count"`
}

// Counters returns the current values.
func (d *Device) Counters() Counters {
	c := Counters{Counters: d.counters, LinkDowned: d.linkDowned, Shift: d.counterShift}
	for i, s := range d.slices {
		if i > 0 {
			c.Counters.Add(&s.counters)
		}
		c.TxStalled += s.tx.discarded
		if l, ok := s.link.(wire.Counted); ok {
			c.Link.Add(l.Counters())
		}
	}
	return c
}

// CNPsHandled returns one of the counters, without the time that all of them take.
func (d *Device) CNPsHandled() (n uint64) {
	for _, s := range d.slices {
		n += s.counters.CNPHandled
	}
	return n
}

// Dropped lists the reasons with a count above 0, those of the link first.
func (c *Counters) Dropped() (l []Drop) {
	for r, n := range c.Link.Drops {
		if n > 0 {
			l = append(l, Drop{"link_" + wire.Drop(r).String(), n})
		}
	}
	for r, n := range c.Drops {
		if n > 0 {
			l = append(l, Drop{transport.DropReason(r).String(), n})
		}
	}
	if c.TxStalled > 0 {
		l = append(l, Drop{"tx_stalled", c.TxStalled})
	}
	return l
}

// EngineCounters is how an engine has spent its time, in nanoseconds. A Stepped engine counts steps
// only.
type EngineCounters struct {
	Steps  uint64 `json:"steps"`
	Busy   int64  `json:"busy_ns"`
	Idle   int64  `json:"idle_ns"` // awake without work
	Asleep int64  `json:"asleep_ns"`
}

// Counters returns how the engine has spent its time. It may be called from any goroutine.
func (e *Engine) Counters() EngineCounters {
	return EngineCounters{e.steps.Load(), e.busy.Load(), e.idle.Load(), e.asleep.Load()}
}

// BusyShare returns the share of time spent on work, from 0 to 1.
func (c EngineCounters) BusyShare() float64 {
	if all := c.Busy + c.Idle + c.Asleep; all > 0 {
		return float64(c.Busy) / float64(all)
	}
	return 0
}
