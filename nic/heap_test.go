package nic

import (
	"math/rand/v2"
	"testing"
)

// Random operations have the results of a search through all queue pairs.
func TestHeapPopsQueuePairsByTime(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var h qpHeap
	qps := make([]QP, 100)
	times := make([]int64, len(qps)) // 0: not in the heap
	index := map[*QP]int{}
	for i := range qps {
		index[&qps[i]] = i
	}
	for range 20000 {
		i := rnd.IntN(len(qps))
		switch q := &qps[i]; rnd.IntN(4) {
		case 0, 1:
			times[i] = 1 + rnd.Int64N(50) // some are equal
			h.set(q, &q.timer, times[i])
		case 2:
			times[i] = 0
			if h.forget(&q.timer); q.timer != 0 {
				t.Fatal("a queue pair that was forgotten has a ticket")
			}
		case 3:
			now := rnd.Int64N(60)
			first := earliest(times)
			switch q := h.pop(now); {
			case q == nil:
				if first != 0 && first <= now {
					t.Fatalf("nothing at %d, although one is due at %d", now, first)
				}
			default:
				at := &times[index[q]]
				if *at != first || first > now {
					t.Fatalf("at %d a queue pair of %d, want one of %d", now, *at, first)
				}
				*at = 0
			}
		}
		if h.next != earliest(times) {
			t.Fatalf("next is %d, want %d", h.next, earliest(times))
		}
		for i := range qps {
			if at := h.timeOf(qps[i].timer); at != times[i] {
				t.Fatalf("queue pair %d is due at %d, want %d", i, at, times[i])
			}
		}
	}
	if n := len(h.places); n > len(qps)+1 {
		t.Errorf("%d tickets for %d queue pairs", n-1, len(qps))
	}
}

// timeOf returns the time of a queue pair, 0 if it is not in the heap.
func (h *qpHeap) timeOf(t heapTicket) int64 {
	if t == 0 || h.places[t] == 0 {
		return 0
	}
	return h.entries[h.places[t]-1].at
}

// earliest returns the least time that is not 0, or 0.
func earliest(times []int64) (first int64) {
	for _, at := range times {
		if at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// A queue pair that was popped or forgotten is not kept in memory by the heap.
func TestHeapForgetsQueuePairs(t *testing.T) {
	var h qpHeap
	var a, b QP
	h.set(&a, &a.timer, 1)
	h.set(&b, &b.timer, 2)
	h.forget(&b.timer)
	if h.pop(1) != &a || len(h.entries) != 0 || h.next != 0 {
		t.Fatalf("left: %v, next %d", h.entries, h.next)
	}
	for _, e := range h.entries[:cap(h.entries)] {
		if e.qp != nil {
			t.Error("the heap refers to a queue pair that has left it")
		}
	}
}
