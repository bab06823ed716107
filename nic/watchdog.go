package nic

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"softroce/mrtable"
)

// A watchdog notices that the engine's thread does not come out of a batch of copies, and starts
// another one in its place. In the normal case it costs the engine a few atomic operations for each
// batch.
type watchdog struct {
	engine *Engine
	thread atomic.Int32  // ID of the engine's thread
	flush  atomic.Uint64 // number of the Flush in progress, or of the last one
	state  atomic.Uint64 // number of the batch in progress, times two, plus one; even: none
	batch  atomic.Pointer[mrtable.Batch]
	parked atomic.Bool // it waits for wake
	wake   chan struct{}
	taken  atomic.Uint64 // how often the engine was taken from its thread

	number uint64 // of the last batch
}

// A Flush may see one tick of the watchdog. At the second, it loses the engine if its thread sleeps
// in the kernel. A thread that runs, or waits for a processor, would not be helped by another one:
// it has longer, because the kernel may also be slow without sleeping.
const (
	watchdogTick = 5 * time.Millisecond
	ticksAsleep  = 2
	ticksAwake   = 4
)

const (
	// maxNaps is how many ticks within napPeriod ticks may find the engine asleep in the memory of
	// one user, each in another Flush.
	maxNaps   = 3
	napPeriod = 200

	// parkAfter is after how many ticks without a Flush the watchdog waits for the next one.
	parkAfter = 200
)

// run runs b. If another thread has become the engine's meanwhile, run reports the end of b to it
// and ends the goroutine.
func (w *watchdog) run(b *mrtable.Batch) {
	w.number++
	n := w.number<<1 | 1
	w.batch.Store(b)
	w.state.Store(n)
	if w.parked.Load() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	b.Run()
	if !w.state.CompareAndSwap(n, n-1) {
		w.engine.detachedDone(b)
		runtime.Goexit()
	}
}

// watch calls takeOver, until done is closed, for each batch that takes too long.
func (w *watchdog) watch(done <-chan struct{}, takeOver func(*mrtable.Batch)) {
	tick := time.NewTicker(watchdogTick)
	defer tick.Stop()
	seen, ticks, idle := w.flush.Load(), 0, 0
	naps := map[uint32]int{} // by user ID
	for period := 0; ; period++ {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if period%napPeriod == 0 {
			clear(naps)
		}
		now, busy := w.flush.Load(), w.state.Load()&1 != 0
		if now != seen {
			seen, ticks, idle = now, 0, 0
		}
		switch ticks++; {
		case busy:
			asleep := w.asleep()
			if asleep && ticks >= ticksAsleep || ticks >= ticksAwake {
				if b := w.take(seen); b != nil {
					takeOver(b)
				}
			} else if asleep {
				uid := userOf(w.batch.Load())
				if naps[uid]++; naps[uid] == maxNaps {
					w.engine.post(func() { w.engine.noteSlow(uid) })
				}
			}
		case idle < parkAfter:
			idle++
		default:
			tick.Stop()
			w.park(done, seen)
			idle = 0
			tick.Reset(watchdogTick)
		}
	}
}

// park waits for the Flush after the one that was seen.
func (w *watchdog) park(done <-chan struct{}, seen uint64) {
	w.parked.Store(true)
	if w.flush.Load() == seen {
		select {
		case <-done:
		case <-w.wake:
		}
	}
	w.parked.Store(false)
}

// take takes the engine from its thread, if that is still in a batch of a Flush.
func (w *watchdog) take(flush uint64) *mrtable.Batch {
	for {
		n := w.state.Load()
		if n&1 == 0 || w.flush.Load() != flush {
			return nil
		}
		b := w.batch.Load()
		if w.state.CompareAndSwap(n, n-1) {
			w.taken.Add(1)
			return b
		}
	}
}

// asleep reports whether the engine's thread sleeps in the kernel. If it cannot find out, it
// returns true.
func (w *watchdog) asleep() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", w.thread.Load()))
	_, state, ok := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return err != nil || !ok || len(state) == 0 || state[0] != 'R'
}
