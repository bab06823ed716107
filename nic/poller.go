package nic

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A poller is where an engine sleeps: it waits for links' descriptors and for an epoll set of
// doorbells and an eventfd of its own, all of which are edge-triggered.
type poller struct {
	epoll  int
	wake   int
	asleep atomic.Uint32
	closed atomic.Bool
	fds    []unix.PollFd // the set, then those of links
	events [16]unix.EpollEvent
	keepsP bool // EngineConfig.KeepsP
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
	return p.add(p.wake)
}

func (p *poller) close() {
	if p.epoll > 0 && !p.closed.Swap(true) {
		unix.Close(p.epoll)
		unix.Close(p.wake)
	}
}

func (p *poller) add(fd int) error {
	err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)})
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

// list lists the descriptors for which wait waits.
func (p *poller) list(devices []*Device) {
	p.fds = append(p.fds[:0], unix.PollFd{Fd: int32(p.epoll), Events: unix.POLLIN})
	for _, d := range devices {
		p.fds = d.link.AppendFDs(p.fds)
	}
}

// wait sleeps until a descriptor is ready or, if until is not 0, until that time. Which descriptor
// is ready does not matter: a step looks at everything.
func (p *poller) wait(now, until int64) {
	sleep := endless
	if until != 0 {
		sleep = time.Duration(until - now)
	}
	kept, rest := p.split(sleep)
	if kept == 0 || p.ppoll(kept, true) && rest > 0 {
		p.ppoll(rest, false)
	}
	if p.fds[0].Revents != 0 {
		unix.EpollWait(p.epoll, p.events[:], 0) // so that the set is not ready again for these events
	}
}

// split returns for how much of a sleep the engine keeps its P, and for how much it then does not.
func (p *poller) split(sleep time.Duration) (kept, rest time.Duration) {
	if p.keepsP {
		kept = min(sleep, briefSleep)
	}
	return kept, sleep - kept
}

// ppoll sleeps until a descriptor is ready or for the time, and reports whether none became ready.
func (p *poller) ppoll(sleep time.Duration, keepP bool) bool {
	var n uintptr
	var no unix.Errno
	limit := unix.NsecToTimespec(int64(sleep))
	if keepP {
		n, _, no = unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p.fds[0])), uintptr(len(p.fds)),
			uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	} else {
		n, _, no = unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p.fds[0])), uintptr(len(p.fds)),
			uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	}
	return n == 0 && no == 0
}
