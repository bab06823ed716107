package nic

import (
	"testing"
	"time"
)

func TestRunnableParsesLoadavg(t *testing.T) {
	for line, want := range map[string]int{
		"0.20 0.18 0.12 3/80 11206\n":   3,
		"10.20 9.18 7.12 128/4080 1\n":  128,
		"":                              0,
		"0.20 0.18":                     0,
		"no numbers here x/y at all 12": 0,
	} {
		if got := runnable([]byte(line)); got != want {
			t.Errorf("%q: %d, want %d", line, got, want)
		}
	}
}

func TestPreemptedEngineSpinsLess(t *testing.T) {
	s := spinner{limit: 50e3, loadavg: -1, cpus: 2}
	now := int64(1e9)
	if !s.keepSpinning(now, now-40e3) || s.keepSpinning(now, now-60e3) {
		t.Error("does not poll for 50 µs")
	}
	s.noteIdleStep(now, 100) // the duration of a usual idle step
	if !s.keepSpinning(now, now) {
		t.Error("a short idle step counted as a preemption")
	}
	s.noteIdleStep(now, 4e6)
	if s.keepSpinning(now+9e6, now+9e6) || !s.keepSpinning(now+11e6, now+11e6) {
		t.Error("the first preemption does not disable spinning for 10 ms")
	}
	now += 11e6
	s.noteIdleStep(now, 4e6)
	if s.keepSpinning(now+19e6, now+19e6) || !s.keepSpinning(now+21e6, now+21e6) {
		t.Error("the second preemption does not disable spinning for 20 ms")
	}
	now += 1e9
	s.noteIdleStep(now, 4e6)
	if s.keepSpinning(now+9e6, now+9e6) || !s.keepSpinning(now+11e6, now+11e6) {
		t.Error("a preemption long after does not disable spinning for 10 ms")
	}
}

// A caller of do that polls sees the end of a short function; one that sleeps is woken.
func TestDoWaitsPollingOrAsleep(t *testing.T) {
	for _, poll := range []time.Duration{0, time.Nanosecond, time.Hour} {
		var m mailbox
		m.start()
		work := make(chan struct{}, 1)
		go func() {
			for range work {
				for _, f := range m.take() {
					f()
				}
			}
		}()
		ran := 0
		for range 1000 {
			m.do(func() { ran++ }, func() { work <- struct{}{} }, poll)
		}
		m.stop()
		close(work)
		m.do(func() { ran++ }, nil, poll)
		if ran != 1001 {
			t.Errorf("polling for %v: %d functions ran", poll, ran)
		}
	}
}

func TestWaitsAsleepWithoutProcessorToSpare(t *testing.T) {
	for _, c := range []struct {
		spare      bool
		overcommit bool
		want       time.Duration
	}{{false, false, 0}, {true, false, 50 * time.Microsecond}, {true, true, 0}} {
		s := spinner{limit: 50e3, spare: c.spare}
		s.overcommit.Store(c.overcommit)
		if got := s.waiting(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
