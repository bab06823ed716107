package verbs

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A yielder yields the processor after some empty polls of a CQ. If more threads poll than there
// are processors, what the CQ waits for may need this one: the engine, or the peer. The numbers are
// those of libverbs/ibverbs/processor.c, which also asks the kernel whether a yield let another
// thread run, and takes into account where the engine runs. Here neither makes a difference that
// was measured.
type yielder struct {
	between, left atomic.Int32        // empty polls from one yield to the next
	yield         func(now time.Time) // lets other threads run on the processor
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
	y.yield(start)
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

// A goroutineYielder lets other goroutines run if any wait for that, and then other threads on the
// processor.
type goroutineYielder struct {
	last atomic.Int64 // when other goroutines could last run, in nanoseconds
}

// maxAlone is how long a goroutineYielder may find no goroutine that waits until it yields to them
// anyway. Timers that are due, and workers of the garbage collector, may be noticed only then.
const maxAlone = 500 * time.Microsecond

// yield mostly calls runtime.Gosched only if a goroutine waits to run. Otherwise that can wake a
// thread of the runtime, which looks for work and often takes this goroutine, at the cost of
// several microseconds and of two context switches.
func (y *goroutineYielder) yield(now time.Time) {
	if y.mustYield(now) {
		y.last.Store(now.UnixNano())
		runtime.Gosched()
	}
	unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

func (y *goroutineYielder) mustYield(now time.Time) bool {
	alone := now.UnixNano() - y.last.Load() // less than 0 if the clock was set back
	return alone < 0 || alone >= int64(maxAlone) || goroutinesWait()
}

// waiting is how many goroutines wait to run. A goroutine that does not get mu does not wait for
// it, as it would for the runtime's lock for metrics.
var waiting struct {
	mu     sync.Mutex
	sample [1]metrics.Sample
}

// maxCounted is the largest GOMAXPROCS with which goroutinesWait counts, which takes 0.4 µs then.
const maxCounted = 16

// goroutinesWait reports whether goroutines may wait to run.
func goroutinesWait() bool {
	if runtime.GOMAXPROCS(0) > maxCounted || !waiting.mu.TryLock() {
		return true
	}
	defer waiting.mu.Unlock()
	waiting.sample[0].Name = "/sched/goroutines/runnable:goroutines"
	metrics.Read(waiting.sample[:])
	n := waiting.sample[0].Value
	return n.Kind() != metrics.KindUint64 || n.Uint64() > 0
}
