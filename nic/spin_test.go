package nic

import (
	"os"
	"path/filepath"
	"testing"
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

// With as many runnable threads as processors the engine keeps its processor, with more it yields.
func TestSpinnerYieldsIfMoreThreadsRunThanProcessors(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "loadavg"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := spinner{limit: 50e3, loadavg: int(file.Fd()), cpus: 2}
	now := int64(1e9)
	for _, c := range []struct {
		line           string
		yield, crowded bool
	}{{"0.20 0.18 0.12 2/80 11206\n", false, false}, {"0.20 0.18 0.12 4/80 11206\n", true, false},
		{"0.20 0.18 0.12 5/80 11206\n", true, true}, {"0.20 0.18 0.12 1/80 11206\n", false, false}} {
		if _, err := file.WriteAt([]byte(c.line), 0); err != nil {
			t.Fatal(err)
		}
		now += overcommitCheck
		if got := s.yield(now); got != c.yield {
			t.Errorf("yield with %q: %v", c.line, got)
		}
		if got := s.maySpin(now); got == c.crowded {
			t.Errorf("polls with %q: %v", c.line, got)
		}
	}
}

// An engine that may poll is awake when a deadline comes: a sleep ends late, by more than a packet
// of a fast link takes.
func TestSpinnerPollsBeforeADeadline(t *testing.T) {
	const now, limit = int64(1e9), int64(50e3)
	for _, c := range []struct {
		name        string
		limit       int64
		noSpinUntil int64
		lateness    int64
		deadline    int64
		poll        bool
		wake        int64
	}{
		{"no deadline", limit, 0, 0, 0, false, 0},
		{"no deadline, late timers", limit, 0, maxLateness, 0, false, 0},
		{"near", limit, 0, 0, now + 2*limit - 1, true, now + 2*limit - 1},
		{"far", limit, 0, 0, now + 1e6, false, now + 1e6 - 2*limit},
		{"near, after a preemption", limit, now + 1, 0, now + 1000, false, now + 1000},
		{"near, after a preemption, late timers", limit, now + 1, 1000, now + 1000, true, now + 1000},
		{"far, after a preemption, late timers", limit, now + 1, 1000, now + 5000, false, now + 4000},
		{"spinning disabled", 0, 0, 0, now + 1000, false, now + 1000},
	} {
		s := spinner{limit: c.limit, loadavg: -1, noSpin: backoff{until: c.noSpinUntil}, lateness: c.lateness}
		if got := s.untilDeadline(now, c.deadline); got != c.poll {
			t.Errorf("%s: polls %t, want %t", c.name, got, c.poll)
		}
		if got := s.wakeBefore(now, c.deadline); got != c.wake {
			t.Errorf("%s: sleeps until %d, want %d", c.name, got, c.wake)
		}
	}
}

func TestSpinnerLearnsTheLatenessOfTimers(t *testing.T) {
	const alarm = int64(1e9)
	s := spinner{limit: 50e3}
	for i := range 2000 {
		late := int64(20e3)
		if i%20 == 0 {
			late = 500e3
		}
		s.noteWake(alarm, alarm+late)
	}
	if s.lateness < 20e3 || s.lateness > 22e3 {
		t.Errorf("lateness %d ns, of 20 µs in 19 sleeps of 20", s.lateness)
	}
	s.noteWake(0, alarm)
	s.noteWake(alarm, alarm-1e3)
	if s.lateness < 20e3 {
		t.Errorf("lateness %d ns after sleeps that no timer ended", s.lateness)
	}
	for range 2000 {
		s.noteWake(alarm, alarm+500e3)
	}
	if s.lateness != maxLateness {
		t.Errorf("lateness %d ns of very late timers, want the limit", s.lateness)
	}
	s = spinner{}
	s.noteWake(alarm, alarm+500e3)
	if s.lateness != 0 {
		t.Errorf("lateness %d ns of an engine that may not poll", s.lateness)
	}
}
