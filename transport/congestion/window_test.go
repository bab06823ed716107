package congestion

import "testing"

// A window that has lost nothing stays at its largest.
func TestWindowWithoutLosses(t *testing.T) {
	w := NewWindow(512)
	for range 100 {
		w.Acknowledged(64, true)
		w.Acknowledged(64, false)
	}
	if w.Size() != 512 || w.Reduced() {
		t.Errorf("%d packets", w.Size())
	}
}

func TestWindowAfterEvents(t *testing.T) {
	lost := func(flight uint64) func(*Window) { return func(w *Window) { w.Lost(flight) } }
	timedOut := func(flight uint64) func(*Window) { return func(w *Window) { w.TimedOut(flight) } }
	acked := func(n uint64) func(*Window) { return func(w *Window) { w.Acknowledged(n, false) } }
	queued := func(n uint64) func(*Window) { return func(w *Window) { w.Acknowledged(n, true) } }
	for _, c := range []struct {
		name   string
		events []func(*Window)
		want   uint64
	}{
		{"half of what was in flight", []func(*Window){lost(100)}, 50},
		{"half of the window", []func(*Window){lost(512), lost(300)}, 128},
		{"at least two", []func(*Window){lost(1)}, 2},
		{"one for four acknowledged", []func(*Window){lost(100), acked(3), acked(1), acked(8)}, 53},
		{"one in a round trip", []func(*Window){lost(100), queued(49), queued(1)}, 51},
		{"not before a round trip", []func(*Window){lost(100), queued(49)}, 50},
		{"16 after a timeout", []func(*Window){timedOut(512)}, 16},
		{"no more than before the timeout", []func(*Window){lost(10), timedOut(5)}, 5},
		{"doubles after a timeout", []func(*Window){timedOut(512), queued(16), queued(32)}, 64},
		{"doubles up to half of what was in flight", []func(*Window){timedOut(100), acked(16), acked(32)}, 50},
		{"never above the largest", []func(*Window){lost(512), acked(4096)}, 512},
	} {
		w := NewWindow(512)
		for _, e := range c.events {
			e(&w)
		}
		if w.Size() != c.want || w.Reduced() != (c.want < 512) {
			t.Errorf("%s: %d packets, want %d", c.name, w.Size(), c.want)
		}
	}
}

// Two senders that lose packets whenever their windows exceed a queue come to share it evenly.
func TestWindowsConverge(t *testing.T) {
	a, b := NewWindow(512), NewWindow(512)
	b.Lost(20)
	for range 2000 {
		a.Acknowledged(a.Size(), true)
		b.Acknowledged(b.Size(), true)
		if a.Size()+b.Size() > 200 {
			a.Lost(a.Size())
			b.Lost(b.Size())
		}
	}
	if d := int64(a.Size()) - int64(b.Size()); d < -2 || d > 2 {
		t.Errorf("%d and %d packets", a.Size(), b.Size())
	}
}
