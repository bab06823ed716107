package nic

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A mailbox passes functions to the engine's goroutine. While Run is not running, they run in the
// goroutine that posts them, under the lock.
type mailbox struct {
	waiting atomic.Bool // queue is not empty; read without the lock

	polling, pollers   atomic.Int32 // goroutines that poll in do, and how many may
	sleeping, sleepers atomic.Int32 // threads that sleep in do, and how many may

	mu      sync.Mutex
	running bool
	queue   []func()
	spare   []func()
}

// taskSpin is how long a goroutine polls for the end of a task: about what a sleep and a wake-up
// cost. The step of an engine with little to do takes a few microseconds.
const taskSpin = 50 * time.Microsecond

// pollerShare is the part of the machine's processors that may be used for polling.
const pollerShare = 2

// sleeperShare is the part of Go's processors that sleeping threads may occupy. Until the runtime
// notices that a thread sleeps in a system call, which may take 10 ms, no other goroutine can use
// its processor.
const sleeperShare = 8

func (m *mailbox) post(f func(), wake func()) {
	m.mu.Lock()
	if !m.running {
		defer m.mu.Unlock()
		f()
		return
	}
	m.queue = append(m.queue, f)
	m.waiting.Store(true)
	m.mu.Unlock()
	wake()
}

// do is post that waits until f has returned.
func (m *mailbox) do(f func(), wake func()) {
	t := task{done: make(chan struct{})}
	m.post(func() { defer t.finish(); f() }, wake)
	if !limited(&m.polling, &m.pollers, t.poll) && !limited(&m.sleeping, &m.sleepers, t.sleep) {
		t.park()
	}
}

// limited calls f, unless that many goroutines are doing so, and returns its result, or else false.
func limited(users, limit *atomic.Int32, f func() bool) bool {
	defer users.Add(-1)
	return users.Add(1) <= limit.Load() && f()
}

// A task is a function that a goroutine waits for.
//
// The goroutine does not park if it can avoid it. A goroutine that the engine makes ready becomes
// the next one on the engine's processor of Go's scheduler, which the engine does not leave. The
// thread that takes it from there first sleeps for more than 50 µs (runqgrab in package runtime).
type task struct {
	state atomic.Uint32
	done  chan struct{}
}

// States of a task.
const (
	taskPending = iota
	taskDone
	taskParked // the goroutine waits for done to be closed
	taskAsleep // the goroutine's thread sleeps until state changes
)

// finish ends the wait. It runs where the task has run.
func (t *task) finish() {
	switch t.state.Swap(taskDone) {
	case taskParked:
		close(t.done)
	case taskAsleep:
		t.futex(futexWakePrivate, 1)
	}
}

// poll waits for taskSpin at most, and reports whether the task is done.
func (t *task) poll() bool {
	const looks = 64 // between two readings of the clock
	for start := time.Now(); time.Since(start) < taskSpin; {
		for range looks {
			if t.state.Load() == taskDone {
				return true
			}
		}
	}
	return false
}

// park waits without a thread.
func (t *task) park() {
	if t.state.CompareAndSwap(taskPending, taskParked) {
		<-t.done
	}
}

// sleep waits with its thread. It returns true.
func (t *task) sleep() bool {
	t.state.CompareAndSwap(taskPending, taskAsleep)
	for t.state.Load() == taskAsleep {
		t.futex(futexWaitPrivate, taskAsleep)
	}
	return true
}

// Operations of futex(2).
const (
	futexPrivate     = 128
	futexWaitPrivate = 0 | futexPrivate
	futexWakePrivate = 1 | futexPrivate
)

func (t *task) futex(op, value uintptr) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&t.state)), op, value, 0, 0, 0)
}

// take returns the queued functions. Only the engine calls it; the slice is valid until the next
// call.
func (m *mailbox) take() []func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue
	clear(m.spare)
	m.queue, m.spare = m.spare[:0], q
	m.waiting.Store(false)
	return q
}

// start marks the engine's goroutine as running; false if it was already.
func (m *mailbox) start() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.running
	m.running = true
	procs := runtime.GOMAXPROCS(0)
	m.pollers.Store(int32(min(procs, runtime.NumCPU()) / pollerShare))
	m.sleepers.Store(int32(procs / sleeperShare))
	return !was
}

// stop marks the engine's goroutine as gone, and runs the functions that are still queued.
func (m *mailbox) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = false
	for _, f := range m.queue {
		f()
	}
	m.queue = nil
	m.waiting.Store(false)
}
