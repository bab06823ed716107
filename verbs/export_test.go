package verbs

import "time"

// PollsBetween is pollsBetween.
var PollsBetween = pollsBetween

// CountYields counts how often the queue yields the processor.
func (q *CQ) CountYields() *int {
	n, yield := 0, q.yielder.yield
	q.yielder.yield = func(now time.Time) {
		n++
		yield(now)
	}
	return &n
}

// A GoroutineYielder is a goroutineYielder.
type GoroutineYielder = goroutineYielder

// MustYield is mustYield.
func (y *goroutineYielder) MustYield(now time.Time) bool { return y.mustYield(now) }

// Yield is yield.
func (y *goroutineYielder) Yield(now time.Time) { y.yield(now) }

// MaxAlone is maxAlone.
const MaxAlone = maxAlone

// Successor returns the queue pair whose state a post to q prefetches, nil if none.
func (q *QP) Successor() *QP { return q.successor.qp.Load() }
