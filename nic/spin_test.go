package nic

import "testing"

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
