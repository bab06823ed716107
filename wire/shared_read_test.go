package wire

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// All that ask while one read is in progress share the next one, which begins after they have
// asked.
func TestReadIsSharedByThoseThatAskedBeforeItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sharedRead[int32]
		var state, reads atomic.Int32
		ask := func(want int32) {
			go func() {
				v, err := s.do(func() (int32, error) {
					reads.Add(1)
					seen := state.Load()
					time.Sleep(time.Second)
					return seen, nil
				})
				if v != want || err != nil {
					t.Errorf("read %d, %v; want %d", v, err, want)
				}
			}()
		}
		ask(0)
		synctest.Wait() // the read has begun
		state.Store(1)
		for range 100 {
			ask(1)
		}
		time.Sleep(1500 * time.Millisecond)
		if n := reads.Load(); n != 1 {
			t.Errorf("%d reads without a pause", n)
		}
		time.Sleep(10 * time.Second)
		if n := reads.Load(); n != 2 {
			t.Errorf("%d reads for 101 callers, want 2", n)
		}
	})
}
