package verbs

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

// word is the 32-bit word of shared memory at an offset that is a multiple of 4.
func word(b []byte, off int) *uint32 { return (*uint32)(unsafe.Pointer(&b[off : off+4][0])) }

// A semaphore is the read end of an event pipe: a byte for each event, and the end of the
// file when the daemon is gone.
type semaphore struct {
	ctx    *Context
	f      *os.File
	turn   chan struct{} // held by the one who reads
	closed chan struct{}
	buf    [1]byte
}

// newSemaphore takes fd over. The daemon made it non-blocking, so reads wait in the
// runtime's poller and hold no thread.
func newSemaphore(c *Context, fd int) *semaphore {
	return &semaphore{
		ctx: c, f: os.NewFile(uintptr(fd), "events"), turn: make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

// acquire makes the caller the one who may call wait, until release.
func (s *semaphore) acquire(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *semaphore) release() { <-s.turn }

// wait takes one event. Otherwise its error is that of ctx, ErrClosed or, when the
// daemon is gone, ErrDeviceFatal.
func (s *semaphore) wait(ctx context.Context) error {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { s.f.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	for {
		// The function above may run late, after the wait that it was for. So a deadline
		// counts only together with ctx: first it is reset, then ctx is asked.
		s.f.SetReadDeadline(time.Time{})
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := s.f.Read(s.buf[:])
		switch {
		case err == nil:
			return nil
		case errors.Is(err, io.EOF):
			return s.end(ctx)
		case errors.Is(err, os.ErrClosed):
			return ErrClosed
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

// end finds out why the daemon closed its end: it went, or we closed the object.
func (s *semaphore) end(ctx context.Context) error {
	select {
	case <-s.closed:
		return ErrClosed
	case <-s.ctx.client.Done():
		return s.ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *semaphore) close() {
	s.f.Close()
	close(s.closed)
}

// eventQueue is the ring of asynchronous events.
type eventQueue struct {
	*semaphore
	slots uint32

	mu    sync.Mutex
	ring  []byte // nil when closed
	fatal bool   // EventDeviceFatal was given out
}

// newEventQueue takes events over; ring stays the caller's.
func newEventQueue(c *Context, ring, events, slots int) (*eventQueue, error) {
	mem, err := mapShared(ring, abi.RingSize(slots, abi.AsyncEventSize))
	if err != nil {
		unix.Close(events)
		return nil, err
	}
	return &eventQueue{semaphore: newSemaphore(c, events), slots: uint32(slots), ring: mem}, nil
}

// next waits for an event. When the daemon goes without having said so, as it does
// when it is killed, there is one EventDeviceFatal.
func (q *eventQueue) next(ctx context.Context) (abi.AsyncEvent, error) {
	if err := q.acquire(ctx); err != nil {
		return abi.AsyncEvent{}, err
	}
	defer q.release()
	for {
		if e, ok, err := q.take(); ok || err != nil {
			return e, err
		}
		if err := q.wait(ctx); err != nil && !errors.Is(err, ErrDeviceFatal) {
			return abi.AsyncEvent{}, err
		}
	}
}

func (q *eventQueue) take() (e abi.AsyncEvent, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring == nil {
		return e, false, ErrClosed
	}
	gone := q.ctx.Err() != nil // before the ring is looked at: the daemon's last event comes first
	consumer := word(q.ring, abi.RingConsumer)
	if i := *consumer; i != atomic.LoadUint32(word(q.ring, abi.RingProducer)) {
		e.Parse(q.ring[abi.RingSlots+int(i%q.slots)*abi.AsyncEventSize:])
		atomic.StoreUint32(consumer, i+1)
		q.fatal = q.fatal || e.Type == uint32(EventDeviceFatal)
		return e, true, nil
	}
	if gone && !q.fatal {
		q.fatal = true
		return abi.AsyncEvent{Type: uint32(EventDeviceFatal), Port: 1}, true, nil
	}
	if gone {
		return e, false, q.ctx.Err()
	}
	return e, false, nil
}

func (q *eventQueue) close() {
	q.semaphore.close()
	q.mu.Lock()
	defer q.mu.Unlock()
	unix.Munmap(q.ring)
	q.ring = nil
}
