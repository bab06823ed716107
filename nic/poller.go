package nic

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A poller is the epoll set in which an engine sleeps: links' descriptors, doorbells and an eventfd
// of its own.
type poller struct {
	epoll     int
	wake      int
	asleep    atomic.Uint32
	closed    atomic.Bool
	events    [16]unix.EpollEvent
	msTimeout bool // the kernel has no epoll_pwait2: timeouts are whole milliseconds
	keepsP    bool // EngineConfig.KeepsP
}

// briefSleep is how long an engine that keeps its P sleeps with it.
const briefSleep = 5 * time.Millisecond

// endless is the length of a sleep without a deadline.
const endless = time.Duration(math.MaxInt64)

func (p *poller) open() (err error) {
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(p.epoll)
		return fmt.Errorf("eventfd: %w", err)
	}
	return p.add(p.wake, unix.EPOLLIN|unix.EPOLLET)
}

func (p *poller) close() {
	if p.epoll > 0 && !p.closed.Swap(true) {
		unix.Close(p.epoll)
		unix.Close(p.wake)
	}
}

func (p *poller) add(fd int, events uint32) error {
	err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	if err != nil {
		return fmt.Errorf("watching descriptor %d: %w", fd, err)
	}
	return nil
}

func (p *poller) remove(fd int) {
	if !p.closed.Load() {
		unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// one is the value that increments an eventfd by 1.
var one = [8]byte{1}

// ring makes wait return. The eventfd is edge-triggered and never read.
func (p *poller) ring() {
	if !p.closed.Load() {
		unix.Write(p.wake, one[:])
	}
}

// wait sleeps until a descriptor is ready or, if until is not 0, until that time. Which descriptor
// is ready does not matter: a step looks at everything.
func (p *poller) wait(now, until int64) {
	sleep := endless
	if until != 0 {
		sleep = time.Duration(until - now)
	}
	if !p.msTimeout {
		kept, rest := p.split(sleep)
		if kept == 0 || p.pwait2(kept, true) && rest > 0 {
			p.pwait2(rest, false)
		}
		if !p.msTimeout {
			return
		}
	}
	timeout := -1
	if until != 0 {
		timeout = int((until - now + int64(time.Millisecond) - 1) / int64(time.Millisecond))
	}
	unix.EpollWait(p.epoll, p.events[:], timeout)
}

// split returns for how much of a sleep the engine keeps its P, and for how much it then does not.
func (p *poller) split(sleep time.Duration) (kept, rest time.Duration) {
	if p.keepsP {
		kept = min(sleep, briefSleep)
	}
	return kept, sleep - kept
}

// pwait2 sleeps until a descriptor is ready or for the time, and reports whether none became ready.
func (p *poller) pwait2(sleep time.Duration, keepP bool) bool {
	var n uintptr
	var no unix.Errno
	limit := unix.NsecToTimespec(int64(sleep))
	if keepP {
		n, _, no = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events[0])),
			uintptr(len(p.events)), uintptr(unsafe.Pointer(&limit)), 0, 0)
	} else {
		n, _, no = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events[0])),
			uintptr(len(p.events)), uintptr(unsafe.Pointer(&limit)), 0, 0)
	}
	p.msTimeout = errors.Is(no, unix.ENOSYS) || errors.Is(no, unix.EPERM) // before Linux 5.11
	return n == 0 && no == 0
}
