package nic_test

import (
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// The wall clock is read once a second, not for each completion.
func TestCompletionTimestampIsTimeOfStep(t *testing.T) {
	const epoch = 1_700_000_000_000_000_000
	w := &testFabric{t: t, now: 1, mem: 1 << 16}
	reads := 0
	drift := int64(0)
	e, err := nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: 1, Wall: func() int64 {
		reads++
		return epoch + w.now + drift
	}})
	check(t, err)
	t.Cleanup(func() { e.Close() })
	w.engine, w.fabric = e, wire.NewFabric()
	a, b := pair(w, 1024)
	var last uint64
	for i := range 200 {
		w.now += 1_000_000
		a.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
		from := w.now
		w.run(100_000)
		c := a.want(uint64(i), ib.WCSuccess, ib.WCRDMAWrite)
		if c.Timestamp <= last || int64(c.Timestamp) <= from || int64(c.Timestamp) > w.now || c.Wallclock != epoch+c.Timestamp {
			t.Fatalf("completion %d at %d, wall %d, between %d and %d", i, c.Timestamp, c.Wallclock, from, w.now)
		}
		last = c.Timestamp
	}
	if reads > 2 {
		t.Errorf("the wall clock was read %d times in 0.2 s", reads)
	}
	drift = 5e9 // the wall clock is set
	w.now += 1e9
	w.step()
	clock, wall, err := a.Device.Clock()
	check(t, err)
	if clock != e.Now() || wall != epoch+clock+drift {
		t.Errorf("clock %d, wall %d", clock, wall)
	}
	if q := a.Device.Query(); q.CoreClock != 1_000_000 || q.TimestampMask != 1<<64-1 {
		t.Errorf("core clock %d kHz, mask %#x", q.CoreClock, q.TimestampMask)
	}
}
