package nic

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// threadName is the default of EngineConfig.Name.
const threadName = "engine"

// nameThread gives the calling thread a name, of which the kernel keeps 15 bytes.
func nameThread(name string) {
	b, err := unix.BytePtrFromString(name)
	if err == nil {
		unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(b)), 0, 0, 0)
	}
}

// setTimerSlack makes the kernel wake the calling thread at its deadlines: by default it may be 50
// µs late, and on a link with a rate or a delay that is longer than what the thread waits for.
func setTimerSlack() {
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // ns; 0 would be the default
}

// A placement is how the kernel schedules a thread: on which processors, and with which policy and
// priority. An operator may have chosen them for the engine's thread (taskset, chrt).
type placement struct {
	thread     int
	processors *unix.CPUSet
	policy     *unix.SchedAttr
}

// placementOf returns the placement of a thread of this process, the zero value if it is unknown.
func placementOf(thread int) placement {
	p := placement{thread: thread}
	var set unix.CPUSet
	if unix.SchedGetaffinity(thread, &set) == nil { // it fails if there are more processors than a set has
		p.processors = &set
	}
	p.policy, _ = unix.SchedGetAttr(thread, 0)
	return p
}

// takeOver moves the calling thread to the placement p, and the thread that had it to that of the
// calling one: it would compete with the engine for a processor, and have to wait while the engine
// polls. It does what the process has the right to do.
func (p placement) takeOver() {
	own := placementOf(unix.Gettid())
	own.apply(p.thread)
	p.apply(own.thread)
}

func (p placement) apply(thread int) {
	if p.processors != nil {
		unix.SchedSetaffinity(thread, p.processors)
	}
	if p.policy != nil {
		unix.SchedSetAttr(thread, p.policy, 0)
	}
}
