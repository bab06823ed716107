package nic

import "time"

// wallSync is how long, in nanoseconds, the offset between the engine's clock and the wall clock is
// assumed to be constant. The wall clock may be set, and is slewed by up to 0.05 %.
const wallSync = 1e9

// A wallclock converts the engine's time to the wall clock's. It reads a clock once per wallSync,
// not for each completion.
type wallclock struct {
	read   func() int64 // nil: the engine's time is the wall clock
	offset int64
	due    int64 // when to read the clock again
}

func wallOf(c *EngineConfig) func() int64 {
	if c.Wall == nil && !c.Stepped {
		return func() int64 { return time.Now().UnixNano() }
	}
	return c.Wall
}

// sync is called at the start of each step.
func (w *wallclock) sync(now int64) {
	if w.read != nil && now >= w.due {
		w.offset, w.due = w.read()-now, now+wallSync
	}
}

// at returns the wall-clock time, in nanoseconds since 1970, of an engine time.
func (w *wallclock) at(now int64) int64 { return now + w.offset }

// Clock returns the current time as completions report it: the engine's clock in nanoseconds, and
// nanoseconds since 1970. EOPNOTSUPP if the device has no timestamps.
func (d *Device) Clock() (clock, wall int64, err error) {
	if err := d.require(CapTimestamps, "clock"); err != nil {
		return 0, 0, err
	}
	now := d.engine.Now()
	d.engine.wall.sync(now)
	return now, d.engine.wall.at(now), nil
}
