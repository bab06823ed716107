package verbs_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

func TestYieldsThatLetThreadsRunAreMoreFrequent(t *testing.T) {
	const alone, shared, preempted = 500 * time.Nanosecond, 10 * time.Microsecond, time.Millisecond
	n := int32(0)
	for i, c := range []struct {
		took time.Duration
		want int32
	}{{alone, 2}, {alone, 4}, {preempted, 8}, {alone, 16}, {shared, 2}, {shared, 2}, {alone, 4}, {alone, 8}, {alone, 16},
		{alone, 32}, {alone, 64}, {preempted, 128}, {alone, 256}, {alone, 256}, {shared, 2}} {
		if n = verbs.PollsBetween(n, c.took); n != c.want {
			t.Fatalf("%d empty polls after yield %d, want %d", n, i, c.want)
		}
	}
}

// A program may poll or wait: either yields the processor at least once in 257 empty polls.
func TestEmptyPollsYieldTheProcessor(t *testing.T) {
	a, _ := verbstest.Pair(t)
	cq, err := a.CreateCQ(t.Context(), 16, nil)
	if err != nil {
		t.Fatal(err)
	}
	yields := cq.CountYields()
	var wc [1]verbs.WC
	for range 3 * 257 {
		if n, err := cq.Poll(wc[:]); n != 0 || err != nil {
			t.Fatalf("%d completions, %v", n, err)
		}
	}
	if *yields < 3 {
		t.Errorf("%d yields of %d empty polls", *yields, 3*257)
	}
	polled := *yields
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := cq.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
	}
	if *yields < polled+2 {
		t.Errorf("%d yields while Wait found nothing three times", *yields-polled)
	}
}

// With GOMAXPROCS 1, a goroutine that the test starts waits until the test yields.
func TestYieldsRunGoroutinesThatWait(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var y verbs.GoroutineYielder
	now := time.Now()
	y.Yield(now)
	for deadline := now.Add(10 * time.Second); y.MustYield(now); y.Yield(now) { // to what other tests have left
		if time.Now().After(deadline) {
			t.Fatal("yields to other goroutines though none waits")
		}
	}
	for range 100 {
		var ran atomic.Bool
		go ran.Store(true)
		if !y.MustYield(now) && !ran.Load() {
			t.Fatal("does not yield to a goroutine that waits")
		}
		for n := 0; !ran.Load(); n++ {
			if n == 3 { // once in a while the runtime lets the same one run on
				t.Fatal("a goroutine that waits does not run")
			}
			y.Yield(now)
		}
	}
}

// With GOMAXPROCS 1, a timer that is due is noticed when the test yields. It starts a goroutine.
func TestYieldsRunTimers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var y verbs.GoroutineYielder
	now := time.Now()
	y.Yield(now)
	var fired atomic.Bool
	timer := time.AfterFunc(time.Microsecond, func() { fired.Store(true) })
	defer timer.Stop()
	for start := time.Now(); time.Since(start) < 10*time.Microsecond; {
	}
	for n := 0; !fired.Load(); n++ {
		if n == 5 {
			t.Fatal("a timer that is due does not run")
		}
		now = now.Add(verbs.MaxAlone)
		y.Yield(now)
	}
}

func TestEmptyPollsRunGoroutinesThatWait(t *testing.T) {
	a, _ := verbstest.Pair(t)
	cq, err := a.CreateCQ(t.Context(), 16, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var ran atomic.Bool
	go ran.Store(true)
	var wc [1]verbs.WC
	for range 3 * 257 {
		if n, err := cq.Poll(wc[:]); n != 0 || err != nil {
			t.Fatalf("%d completions, %v", n, err)
		}
	}
	if !ran.Load() {
		t.Error("a goroutine that waits does not run")
	}
}
