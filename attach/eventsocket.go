package attach

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// An eventSocket is the daemon's end of a stream socket pair through which a client receives one
// byte for each event.
//
// It is no pipe: the reader of a pipe holds a lock while it copies, and its memory can take any
// time to arrive. The engine would wait for that lock. It is no eventfd either: both sides would
// share its O_NONBLOCK.
type eventSocket struct {
	fd       int
	unsent   atomic.Int64
	draining atomic.Bool

	mu     sync.Mutex // not the engine's
	file   *os.File   // of fd, from the first drain on: each byte that is read wakes the runtime's poller then
	closed bool
}

// eventBuffer is the size of a socket's send buffer: about forty unread events, in the kernel's way
// of counting. More wait in the daemon, as a number.
const eventBuffer = 16 << 10

var eventCost = amounts{descriptors: 1, memory: 2 * eventBuffer}

// newEventSocket returns the daemon's end and the descriptor for the client.
func (a *account) newEventSocket() (s *eventSocket, fd int, err error) {
	if err := a.take(eventCost); err != nil {
		return nil, -1, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		a.release(eventCost)
		return nil, -1, fmt.Errorf("event socket: %w", err)
	}
	unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, eventBuffer)
	unix.Shutdown(pair[0], unix.SHUT_RD) // nothing is read from clients
	return &eventSocket{fd: pair[0]}, pair[1], nil
}

// closeEventSocket closes the daemon's end. Nothing may be signaled any more.
func (a *account) closeEventSocket(s *eventSocket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.file != nil {
		s.file.Close() // drain returns
	} else {
		unix.Close(s.fd)
	}
	a.release(eventCost)
}

var eventByte = []byte{1}

// signal sends one byte. It never waits.
func (s *eventSocket) signal() {
	if !s.draining.Load() {
		if _, err := unix.SendmsgN(s.fd, eventByte, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != unix.EAGAIN {
			return
		}
	}
	s.unsent.Add(1)
	if s.draining.CompareAndSwap(false, true) {
		go s.drain()
	}
}

// waitable returns a file that waits in the runtime's poller and holds no thread, or nil if s is
// closed.
func (s *eventSocket) waitable() *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil && !s.closed {
		s.file = os.NewFile(uintptr(s.fd), "events")
	}
	return s.file
}

// drain sends the bytes for which the socket had no room, as the client reads.
func (s *eventSocket) drain() {
	file := s.waitable()
	if file == nil {
		return
	}
	bytes := make([]byte, 512)
	for {
		for n := s.unsent.Load(); n > 0; n = s.unsent.Load() {
			sent, err := file.Write(bytes[:min(n, int64(len(bytes)))])
			if s.unsent.Add(int64(-sent)); err != nil {
				return // it is closed, or the client is gone
			}
		}
		s.draining.Store(false)
		if s.unsent.Load() == 0 || !s.draining.CompareAndSwap(false, true) {
			return
		}
	}
}
