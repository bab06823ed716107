package nic

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// An activity is what the engine's thread does with a batch of copies.
type activity uint8

const (
	// copying: the thread has run since the last look.
	copying activity = iota
	// asleep: it sleeps in a system call that copies.
	asleep
	// waiting: it waits for a processor, or for its turn among the goroutines of this process. The
	// client's memory is not the cause, and another thread would have to wait as well.
	waiting
	// unclear: it runs again after a sleep, either in a system call that copies or waiting for its
	// turn.
	unclear
)

// An observer tells what a thread of this process does. It allocates nothing as long as the thread
// stays the same.
type observer struct {
	thread       int
	call, status int // descriptors of the thread's files syscall and status in /proc, or -1

	slept uint64        // how often the thread had slept at the last look
	ran   time.Duration // its processor time at the last look

	buf [8 << 10]byte
}

func newObserver() *observer { return &observer{call: -1, status: -1} }

// follow opens the files of a thread, unless it is the one whose files are open.
func (o *observer) follow(thread int) {
	if thread != o.thread {
		o.close()
		o.thread, o.call, o.status = thread, open(thread, "syscall"), open(thread, "status")
	}
}

// look returns what a thread does. If it cannot find out, it returns what does not overlook that
// the client's memory takes long.
func (o *observer) look(thread int) activity {
	o.follow(thread)
	call := o.read(o.call)
	switch {
	case len(call) == 0: // a process that is not dumpable cannot open the file unless it is root's
		if _, state, _ := bytes.Cut(o.read(o.status), []byte("\nState:\t")); len(state) == 0 || state[0] != 'R' {
			return asleep
		}
	case bytes.HasPrefix(call, []byte("running")):
	case copies(call):
		return asleep
	default:
		return waiting
	}
	return o.runnable()
}

// runnable returns what a thread does that does not sleep. If it has neither run for long nor slept
// since the last look, it waits for a processor.
func (o *observer) runnable() activity {
	_, rest, _ := bytes.Cut(o.read(o.status), []byte("\nvoluntary_ctxt_switches:\t"))
	slept, ok := leadingNumber(rest)
	ran, err := threadTime(o.thread)
	sleeps, time := slept-o.slept, ran-o.ran
	o.slept, o.ran = slept, ran
	switch {
	case !ok || err != nil || time >= watchdogTick/2:
		return copying
	case sleeps != 0:
		return unclear
	}
	return waiting
}

func (o *observer) close() {
	for _, fd := range []int{o.call, o.status} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	o.call, o.status = -1, -1
}

// read returns the contents of a file, as far as they fit.
func (o *observer) read(fd int) []byte {
	n := 0
	for fd >= 0 {
		k, err := unix.Pread(fd, o.buf[n:], int64(n))
		if err != nil || k <= 0 {
			break
		}
		n += k
	}
	return o.buf[:n]
}

// open opens a file of a thread in /proc, and returns -1 if it cannot.
func open(thread int, name string) int {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/%s", thread, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// copies reports whether the contents of a thread's file syscall begin with the number of one that
// mrtable copies with.
func copies(call []byte) bool {
	number, ok := leadingNumber(call)
	if !ok {
		return false // -1: not in a system call
	}
	switch number {
	case unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PREADV, unix.SYS_PWRITEV:
		return true
	}
	return false
}

// leadingNumber parses the digits at the beginning of b.
func leadingNumber(b []byte) (uint64, bool) {
	n := 0
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	v, err := strconv.ParseUint(string(b[:n]), 10, 64)
	return v, err == nil
}

// threadTime returns the processor time of a thread of this process.
func threadTime(thread int) (time.Duration, error) {
	const perThread, scheduler = 4, 2 // CPUCLOCK_PERTHREAD_MASK, CPUCLOCK_SCHED
	var t unix.Timespec
	err := unix.ClockGettime(int32(^thread<<3|perThread|scheduler), &t)
	return time.Duration(t.Nano()), err
}
