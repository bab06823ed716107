package daemon

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// TestMoreGoroutinesRunThanProcessors: see addSpareProcs. Each engine may keep a P.
func TestMoreGoroutinesRunThanProcessors(t *testing.T) {
	start(t, Config{})
	one := runtime.GOMAXPROCS(0)
	if one < spareProcs+2 {
		t.Errorf("GOMAXPROCS is %d", one)
	}
	t.Run("another daemon", func(t *testing.T) {
		start(t, Config{Engines: 2})
		if got := runtime.GOMAXPROCS(0); got != one+2 {
			t.Errorf("another daemon with two engines raised GOMAXPROCS from %d to %d", one, got)
		}
	})
	if got := runtime.GOMAXPROCS(0); got != one {
		t.Errorf("a daemon that ended left GOMAXPROCS at %d, before it was %d", got, one)
	}
}

// BenchmarkEngineWakesBesideBusyGoroutines measures how long an engine takes to wake for a control
// operation while goroutines keep every processor busy. It reports the 99th percentile.
func BenchmarkEngineWakesBesideBusyGoroutines(b *testing.B) {
	d, cleanup, err := StartPrivate("test")
	if err != nil {
		b.Fatal(err)
	}
	defer cleanup()
	for d.Engines()[0].Steps == 0 { // until it runs
		time.Sleep(time.Millisecond)
	}
	var end atomic.Bool
	defer end.Store(true)
	for range 4 * runtime.NumCPU() {
		go func() {
			for !end.Load() {
			}
		}()
	}
	var took []time.Duration
	for b.Loop() {
		time.Sleep(time.Millisecond) // it falls asleep
		begin := time.Now()
		d.engines[0].Do(func() { took = append(took, time.Since(begin)) })
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}
