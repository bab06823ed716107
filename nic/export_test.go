package nic

import (
	"runtime"
	"testing"
	"time"

	"softroce/mrtable"
	"softroce/packet"
	"softroce/wire"
)

// AddProc lets a goroutine that keeps its thread busy run beside that of the test, like a client's,
// on a machine with one processor too: the daemon raises GOMAXPROCS likewise.
func AddProc(t testing.TB) {
	procs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(procs + 1)
	t.Cleanup(func() { runtime.GOMAXPROCS(procs) })
}

// DatagramPort is datagramPort, for tests against captures.
var DatagramPort = datagramPort

// Describe returns the two parts of Engine.Snapshot: visits of the engine, and what comes after the
// last one.
func Describe(d *Device) (visit func(n int) (done bool), finish func() Snapshot) {
	s := &description{device: d}
	return s.visit, s.finish
}

// Joined returns how many packets the run at the front of frames has.
func Joined(frames []wire.RxFrame) int { return joined(frames).Packets() }

// LastRun returns the run that was received last, if no other packet was received after it.
func (d *Device) LastRun() packet.Run { return d.buffers.pkt.Run }

// Bounds of a step.
const (
	StepBytes = stepBytes
	TurnBytes = turnBytes
)

// A Batch is a batch of copies that does not return.
type Batch struct {
	e *Engine
	b *mrtable.Batch
}

// BlockMemory makes the next batch of copies for c behave as if its memory took long, and calls f
// with it.
func (e *Engine) BlockMemory(c *Context, f func(Batch)) {
	e.io.Runner = func(b *mrtable.Batch) bool {
		if b.Client().Owner.(*contextPart).ctx != c {
			return e.runBatch(b)
		}
		e.io.Runner = e.runBatch
		e.leave(b)
		delete(e.slow, userOf(b))
		f(Batch{e, b})
		return false
	}
}

// Return lets the batch be carried out and its thread report it, which the next step handles.
func (b Batch) Return() {
	h := b.b.Client().Owner.(*contextPart).hold
	b.b.Run()
	b.e.posted = append(b.e.posted, func() { b.e.release(h) })
}

// MemoryDeadline is memoryDeadline.
const MemoryDeadline = memoryDeadline

// MaxCopiers is maxCopiers.
const MaxCopiers = maxCopiers

// StepTime returns the time of the current step, or else of the last one.
func (e *Engine) StepTime() int64 { return e.now }

// TakeOvers returns how often another thread became the engine's.
func (e *Engine) TakeOvers() int { return int(e.watchdog.taken.Load()) }

// Thread returns the ID of the engine's thread.
func (e *Engine) Thread() int { return int(e.watchdog.thread.Load()) }

// UseCopiers makes the memory of a user count as slow, with n threads that copy for it.
func (e *Engine) UseCopiers(uid uint32, n int) { e.noteSlow(uid).copiers = n }

// Holds returns how many contexts wait for their memory, and Waiting how many batches of a user
// wait for a thread.
func (e *Engine) Holds() int             { return len(e.holds) }
func (e *Engine) Waiting(uid uint32) int { return len(e.slow[uid].waiting) }

// Deferred returns how many completions each flush looks at.
func (e *Engine) Deferred() int { return len(e.completions.deferred) }

// MaxKept is maxKept.
const MaxKept = maxKept

// Kept returns how many bytes are kept for clients that are held.
func (e *Engine) Kept() int { return e.kept }

// WatchdogTick is watchdogTick.
const WatchdogTick = watchdogTick

// Activity is activity.
type Activity = activity

// Values of Activity.
const (
	Copying = copying
	Asleep  = asleep
	Waiting = waiting
)

// An Observer is an observer.
type Observer struct{ *observer }

// NewObserver returns an observer.
func NewObserver() Observer { return Observer{newObserver()} }

// Look and Close are those of the observer.
func (o Observer) Look(thread int) Activity { return o.look(thread) }
func (o Observer) Close()                   { o.close() }

// AdaptStep is adaptStep. It returns how many bytes the next step may transmit.
func (e *Engine) AdaptStep(took time.Duration) int {
	e.adaptStep(int64(took))
	return e.stepLimit
}

// Pin makes the test's thread run on one processor.
var Pin = pin

// SeeManyThreads makes the engine believe that yields take long because of many threads.
func (e *Engine) SeeManyThreads() { e.spin.crowded.until = 1 << 62 }

// ShareProcessor makes the engine lend the thread's processor, and returns its number, plus 1.
func (e *Engine) ShareProcessor() uint32 {
	e.lender.locate()
	return e.lender.processor
}
