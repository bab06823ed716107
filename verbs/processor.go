package verbs

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A yielder yields the processor after some empty polls of a CQ. If more threads poll than there
// are processors, what the CQ waits for may need this one: the engine, or the peer. The numbers are
// those of libverbs/ibverbs/processor.c, which also takes into account where the engine runs. Here
// that makes no difference that was measured.
type yielder struct {
	between, left atomic.Int32 // empty polls from one yield to the next
	yield         func()       // lets other threads run on the processor
}

// The number of empty polls from one yield to the next is manyPolls as long as yields let no other
// thread run, and fewPolls after one that did.
const (
	fewPolls  = 2
	manyPolls = 256
)

// A yield that took longer than switched let another thread run: it contains two context switches.
// One that took as long as preempted let a thread run that does not yield itself, which is no
// reason to yield more often.
const (
	switched  = 2500 * time.Nanosecond
	preempted = 200 * time.Microsecond
)

// noteEmpty counts an empty poll. It returns how long it has yielded.
func (y *yielder) noteEmpty() (took time.Duration) {
	if y.left.Add(-1) >= 0 {
		return 0
	}
	start := time.Now()
	y.yield()
	took = time.Since(start)
	between := pollsBetween(y.between.Load(), took)
	y.between.Store(between)
	y.left.Store(between)
	return took
}

// pollsBetween returns how many empty polls are between two yields after there were n, and a yield
// took that long.
func pollsBetween(n int32, took time.Duration) int32 {
	if took > switched && took < preempted {
		return fewPolls
	}
	return min(max(2*n, fewPolls), manyPolls)
}

// yieldProcessor lets other goroutines run, and then other threads on the processor.
func yieldProcessor() {
	runtime.Gosched()
	unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
