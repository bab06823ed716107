package verbs_test

import (
	"context"
	"errors"
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
