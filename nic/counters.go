package nic

import (
	"softroce/transport"
	"softroce/wire"
)

// Counters is everything that a device counts.
type Counters struct {
	transport.Counters
	Link      wire.LinkCounters // of the link itself, if it counts
	TxStalled uint64            // frames thrown away because the link took nothing for long
}

// Drop is a reason under which packets were thrown away, and how many.
type Drop struct {
	Reason string `json:"reason"`
	Count  uint64 `json:"count"`
}

// Counters returns the present counts.
func (d *Device) Counters() Counters {
	c := Counters{Counters: d.counters, TxStalled: d.tx.discarded}
	if l, ok := d.link.(wire.Counted); ok {
		c.Link = *l.Counters()
	}
	return c
}

// Dropped lists the reasons under which anything was dropped, the link's first.
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

// EngineCounters tells how an engine has spent its time, in nanoseconds. A Stepped engine
// counts its steps alone.
type EngineCounters struct {
	Steps  uint64 `json:"steps"`
	Busy   int64  `json:"busy_ns"`
	Idle   int64  `json:"idle_ns"` // awake, and nothing to do
	Asleep int64  `json:"asleep_ns"`
}

// Counters returns how the engine has spent its time. It may be called from any goroutine.
func (e *Engine) Counters() EngineCounters {
	return EngineCounters{e.steps.Load(), e.busy.Load(), e.idle.Load(), e.asleep.Load()}
}

// BusyShare returns the share of time, from 0 to 1, that was spent on work.
func (c EngineCounters) BusyShare() float64 {
	if all := c.Busy + c.Idle + c.Asleep; all > 0 {
		return float64(c.Busy) / float64(all)
	}
	return 0
}
