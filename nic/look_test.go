package nic

import "testing"

// A sight is what a tick of the watchdog sees.
type sight struct {
	flush        uint64
	busy, asleep bool
	user         uint32
}

func TestWatchdogTicks(t *testing.T) {
	asleep, awake := sight{1, true, true, 7}, sight{1, true, false, 7}
	for _, c := range []struct {
		name   string
		sights []sight
		want   finding // of the last tick; those before are normal
	}{
		{"first tick of a sleep", []sight{asleep}, normal},
		{"second tick of a sleep", []sight{asleep, asleep}, tooLong},
		{"between two batches of a flush", []sight{{1, false, false, 0}, asleep}, tooLong},
		{"running for a while", []sight{awake, awake, awake}, normal},
		{"running for long", []sight{awake, awake, awake, awake}, tooLong},
		{"falls asleep after running", []sight{awake, asleep}, tooLong},
		{"short sleeps of one user", []sight{{1, true, true, 7}, {2, true, true, 7}, {3, true, true, 7}}, tooOften},
		{"short sleeps of different users", []sight{{1, true, true, 7}, {2, true, true, 8}, {3, true, true, 9}}, normal},
		{"flushes that end", []sight{{1, true, false, 7}, {2, true, false, 7}, {3, true, false, 7}, {4, true, false, 7}}, normal},
	} {
		l := look{naps: map[uint32]int{}}
		for i, s := range c.sights {
			want := normal
			if i == len(c.sights)-1 {
				want = c.want
			}
			if got := l.tick(s.flush, s.busy, s.asleep, s.user); got != want {
				t.Errorf("%s: tick %d finds %d, want %d", c.name, i, got, want)
			}
		}
	}
}

func TestWatchdogParksAndForgets(t *testing.T) {
	l := look{naps: map[uint32]int{}}
	l.tick(1, true, true, 7)
	l.tick(2, true, true, 7)
	for i := range parkAfter {
		if got := l.tick(3, false, false, 0); (got == unused) != (i == parkAfter-1) {
			t.Fatalf("idle tick %d finds %d", i, got)
		}
	}
	if got := l.tick(4, true, true, 7); got != normal {
		t.Errorf("sleeps of a second ago still count: %d", got)
	}
}
