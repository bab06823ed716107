package check

import (
	"cmp"
	"container/heap"
	"iter"
	"time"

	"softroce/capture"
)

// Bounds on the frames that wait for an earlier one. A clock that goes back by more than
// maxDisorder was set.
const (
	maxDisorder     = 100 * time.Millisecond
	maxWaiting      = 1 << 13
	maxWaitingBytes = 16 << 20
)

// byTime yields the frames of a capture in the order of their timestamps.
func byTime(rs records) records {
	return func() iter.Seq2[capture.Record, error] {
		return func(yield func(capture.Record, error) bool) {
			var w waiting
			for rec, err := range rs() {
				if err != nil {
					if w.release(0, yield) {
						yield(rec, err)
					}
					return
				}
				if w.newest.Sub(rec.Time) > maxDisorder {
					if !w.release(0, yield) {
						return
					}
					w.newest = rec.Time
				}
				if rec.Time.After(w.newest) {
					w.newest = rec.Time
				}
				heap.Push(&w, rec)
				if !w.release(maxWaiting, yield) {
					return
				}
			}
			w.release(0, yield)
		}
	}
}

// A waiting is a heap of frames, the earliest first.
type waiting struct {
	frames []capture.Record
	bytes  int
	newest time.Time
}

// release yields frames until none has to wait, and no more than a number are left. It returns
// false if yield does.
func (w *waiting) release(most int, yield func(capture.Record, error) bool) bool {
	for len(w.frames) > 0 {
		if len(w.frames) <= most && w.bytes <= maxWaitingBytes && w.newest.Sub(w.frames[0].Time) <= maxDisorder {
			return true
		}
		if !yield(heap.Pop(w).(capture.Record), nil) {
			return false
		}
	}
	return true
}

func (w *waiting) Len() int      { return len(w.frames) }
func (w *waiting) Swap(i, k int) { w.frames[i], w.frames[k] = w.frames[k], w.frames[i] }

func (w *waiting) Less(i, k int) bool {
	a, b := &w.frames[i], &w.frames[k]
	return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.No, b.No)) < 0
}

// Push implements heap.Interface.
func (w *waiting) Push(r any) {
	w.frames = append(w.frames, r.(capture.Record))
	w.bytes += len(r.(capture.Record).Data)
}

// Pop implements heap.Interface.
func (w *waiting) Pop() any {
	n := len(w.frames) - 1
	r := w.frames[n]
	w.frames[n] = capture.Record{}
	w.frames = w.frames[:n]
	w.bytes -= len(r.Data)
	return r
}
