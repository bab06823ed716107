package nic

import "time"

// wallSync is how long the offset between the engine's clock and the time of day is taken for constant, in
// nanoseconds: the clock that people set may be set anew, and is slewed by up to 0.05 %.
const wallSync = 1e9

// A wallclock turns the engine's time into the time of day. It looks at a clock once in wallSync, not
// for each completion.
type wallclock struct {
	read   func() int64 // nil: the engine's time is the time of day
	offset int64
	due    int64 // when to look again
}

func wallOf(c *EngineConfig) func() int64 {
	if c.Wall == nil && !c.Stepped {
		return func() int64 { return time.Now().UnixNano() }
	}
	return c.Wall
}

// sync is called with the time of each step.
func (w *wallclock) sync(now int64) {
	if w.read != nil && now >= w.due {
		w.offset, w.due = w.read()-now, now+wallSync
	}
}

// at returns the time of day, in nanoseconds since 1970, at a time of the engine.
func (w *wallclock) at(now int64) int64 { return now + w.offset }

// Clock returns the time as completions have it: on the engine's clock, in nanoseconds, and since 1970.
func (d *Device) Clock() (clock, wall int64) {
	now := d.engine.Now()
	d.engine.wall.sync(now)
	return now, d.engine.wall.at(now)
}
