package nic

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A poller is where an engine sleeps: it waits for an epoll set of doorbells and an eventfd of its
// own, all of which are edge-triggered, and for links' descriptors.
//
// Links' descriptors are in an epoll set, too, during a sleep. A socket wakes a thread that waits
// for it as if the sender was about to sleep, so the scheduler may put the engine behind the sender
// on its processor. A set does not. It is emptied afterwards, because the kernel would notify it of
// each packet.
type poller struct {
	epoll   int
	links   int // the set of links' descriptors
	wake    int
	asleep  atomic.Uint32
	closed  atomic.Bool
	watched []unix.PollFd // descriptors for links
	fds     []unix.PollFd // what ppoll waits for: both sets, and descriptors in neither
	events  [16]unix.EpollEvent
	keepsP  bool // EngineConfig.KeepsP
}

// briefSleep is how long an engine that keeps its P sleeps with it.
const briefSleep = 5 * time.Millisecond

// maxWatched is the most descriptors of a link that a sleep puts into the set: BenchmarkWait takes
// 1.5 µs for each, and 0.07 without the set. An xdp link may have many.
const maxWatched = 4

// endless is the length of a sleep without a deadline.
const endless = time.Duration(math.MaxInt64)

func (p *poller) open() (err error) {
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	for _, set := range []*int{&p.epoll, &p.links} {
		if *set, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	return p.add(p.wake)
}

func (p *poller) close() {
	if p.closed.Swap(true) {
		return
	}
	for _, fd := range []int{p.epoll, p.links, p.wake} {
		if fd > 0 { // else it is not open
			unix.Close(fd)
		}
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
	p.fds = append(p.fds[:0], unix.PollFd{Fd: int32(p.epoll), Events: unix.POLLIN}, unix.PollFd{Fd: int32(p.links), Events: unix.POLLIN})
	p.watched = p.watched[:0]
	for _, d := range devices {
		before := len(p.watched)
		p.watched = d.link.AppendFDs(p.watched)
		if len(p.watched)-before > maxWatched {
			p.fds = append(p.fds, p.watched[before:]...)
			p.watched = p.watched[:before]
		}
	}
}

// watch fills the set of links. What it does not take is waited for without it.
func (p *poller) watch() {
	for _, l := range p.watched {
		if unix.EpollCtl(p.links, unix.EPOLL_CTL_ADD, int(l.Fd), &unix.EpollEvent{Events: uint32(l.Events), Fd: l.Fd}) != nil {
			p.fds = append(p.fds, l)
		}
	}
}

// unwatch empties the set of links, which has lost descriptors that were closed.
func (p *poller) unwatch() {
	for _, l := range p.watched {
		unix.EpollCtl(p.links, unix.EPOLL_CTL_DEL, int(l.Fd), nil)
	}
}

// wait sleeps until a descriptor is ready or, if until is not 0, until that time. Which descriptor
// is ready does not matter: a step looks at everything.
func (p *poller) wait(now, until int64) {
	sleep := endless
	if until != 0 {
		sleep = time.Duration(until - now)
	}
	p.watch()
	kept, rest := p.split(sleep)
	if kept == 0 || p.ppoll(kept, true) && rest > 0 {
		p.ppoll(rest, false)
	}
	p.unwatch()
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
