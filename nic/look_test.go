package nic

import (
	"slices"
	"testing"
)

// A sight is what a tick of the watchdog sees.
type sight struct {
	flush uint64
	busy  bool
	does  activity
	user  uint32
}

func TestWatchdogTicks(t *testing.T) {
	sleep, run, wait := sight{1, true, asleep, 7}, sight{1, true, copying, 7}, sight{1, true, waiting, 7}
	for _, c := range []struct {
		name   string
		sights []sight
		want   finding // of the last tick; those before are normal
	}{
		{"first tick of a sleep", []sight{sleep}, normal},
		{"second tick of a sleep", []sight{sleep, sleep}, tooLong},
		{"between two batches of a flush", []sight{{1, false, copying, 0}, sleep}, tooLong},
		{"running for a while", []sight{run, run, run}, normal},
		{"running for long", []sight{run, run, run, run}, tooLong},
		{"falls asleep after running", []sight{run, sleep}, tooLong},
		{"short sleeps of one user", []sight{{1, true, asleep, 7}, {2, true, asleep, 7}, {3, true, asleep, 7}}, tooOften},
		{"short sleeps of different users", []sight{{1, true, asleep, 7}, {2, true, asleep, 8}, {3, true, asleep, 9}}, normal},
		{"waiting for a processor", slices.Repeat([]sight{wait}, 1000), normal},
		{"may wait for a processor", slices.Repeat([]sight{{1, true, unclear, 7}}, ticksUnclear-1), normal},
		{"may wait for its turn for long", slices.Repeat([]sight{{1, true, unclear, 7}}, ticksUnclear), tooLong},
		{"sleeps after waiting", []sight{wait, wait, wait, sleep}, normal},
		{"sleeps between waiting", []sight{sleep, wait, sleep}, tooLong},
		{"flushes that end", []sight{{1, true, copying, 7}, {2, true, copying, 7}, {3, true, copying, 7}, {4, true, copying, 7}}, normal},
	} {
		l := look{blocked: map[uint32]int{}}
		for i, s := range c.sights {
			want := normal
			if i == len(c.sights)-1 {
				want = c.want
			}
			if got := l.tick(s.flush, s.busy, s.does, s.user); got != want {
				t.Errorf("%s: tick %d finds %d, want %d", c.name, i, got, want)
			}
		}
	}
}

func TestWatchdogParksAndForgets(t *testing.T) {
	l := look{blocked: map[uint32]int{}}
	l.tick(1, true, asleep, 7)
	l.tick(2, true, asleep, 7)
	for i := range parkAfter {
		if got := l.tick(3, false, copying, 0); (got == unused) != (i == parkAfter-1) {
			t.Fatalf("idle tick %d finds %d", i, got)
		}
	}
	if got := l.tick(4, true, asleep, 7); got != normal {
		t.Errorf("sleeps of a second ago still count: %d", got)
	}
}
