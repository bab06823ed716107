package nic

import (
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

// At the second tick of the watchdog within one Flush, another thread takes over the engine if the
// engine's sleeps in a system call that copies. If it runs, it has more ticks, because the kernel
// may also be slow without sleeping. A tick that finds it waiting for a processor does not count.
// If it has slept since the last tick, it may have waited for a processor: it has most ticks then.
const (
	watchdogTick = 5 * time.Millisecond
	ticksAsleep  = 2
	ticksAwake   = 4
	ticksUnclear = 16
)

const (
	// maxBlocked is how many ticks within blockedPeriod ticks may find the engine blocked while it
	// copies memory of one user, each in another Flush.
	maxBlocked    = 3
	blockedPeriod = 200

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

// watch looks at the engine until done is closed. For a batch that takes too long it calls
// takeOver, with the placement of the thread that is in it, and leaves the watch to another
// goroutine: a thread that runs already takes over sooner than one that must be started.
func (w *watchdog) watch(done <-chan struct{}, o *observer, takeOver func(*mrtable.Batch, placement)) {
	tick := time.NewTicker(watchdogTick)
	defer tick.Stop()
	l := look{flush: w.flush.Load(), blocked: map[uint32]int{}}
	defer o.close()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		o.follow(int(w.thread.Load()))
		flush, state := w.flush.Load(), w.state.Load()
		busy := state&1 != 0
		user, does := uint32(0), copying
		if busy {
			user, does = userOf(w.batch.Load()), o.look(int(w.thread.Load()))
			busy = w.state.Load() == state // or it may have slept elsewhere
		}
		switch l.tick(flush, busy, does, user) {
		case tooLong:
			p := placementOf(int(w.thread.Load())) // which may end as soon as it is not the engine's
			if b := w.take(flush); b != nil {
				tick.Stop()
				o.close()
				go w.watch(done, newObserver(), takeOver)
				takeOver(b, p)
				return
			}
		case tooOften:
			w.engine.post(func() { w.engine.noteSlow(user) })
		case unused:
			tick.Stop()
			w.park(done, flush)
			tick.Reset(watchdogTick)
		}
	}
}

// A look is what the watchdog knows about the engine from one tick to the next.
type look struct {
	flush   uint64 // number of the last Flush
	ticks   int    // that have seen it, without those that found its thread waiting or unclear
	unclear int    // ticks that found its thread unclear
	idle    int    // ticks without a batch in progress, since the last Flush

	period  int            // ticks since blocked was cleared
	blocked map[uint32]int // how often a copy of a user's memory blocked the engine, by user ID
}

// A finding is the result of a look.
type finding uint8

const (
	normal   finding = iota
	tooLong          // the batch in progress takes too long
	tooOften         // copies of the user's memory blocked the engine too often
	unused           // there was no batch for long
)

// tick looks at the engine: at the number of its Flush, and whether a batch of a user is in
// progress and what the thread does with it.
func (l *look) tick(flush uint64, busy bool, does activity, user uint32) finding {
	if l.period++; l.period == blockedPeriod {
		l.period = 0
		clear(l.blocked)
	}
	if flush != l.flush {
		l.flush, l.ticks, l.unclear, l.idle = flush, 0, 0, 0
	}
	switch {
	case busy && does == waiting:
		return normal
	case busy && does == unclear:
		if l.unclear++; l.unclear >= ticksUnclear {
			return tooLong
		}
		return normal
	}
	l.ticks++
	switch {
	case busy && (does == asleep && l.ticks >= ticksAsleep || l.ticks >= ticksAwake):
		return tooLong
	case busy && does == asleep:
		if l.blocked[user]++; l.blocked[user] == maxBlocked {
			return tooOften
		}
	case !busy:
		if l.idle++; l.idle >= parkAfter {
			l.idle = 0
			return unused
		}
	}
	return normal
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
