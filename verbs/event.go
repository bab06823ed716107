package verbs

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/attach/abi"
)

// word is the 32-bit word of shared memory at an offset that is a multiple of 4.
func word(b []byte, off int) *uint32 { return (*uint32)(unsafe.Pointer(&b[off : off+4][0])) }

// A semaphore is an eventfd that counts events and gives them one at a time. The
// daemon counts up; so does signal.
type semaphore struct {
	f    *os.File
	turn chan struct{} // held by the one who reads
	buf  [8]byte
}

// newSemaphore takes fd over. The daemon made it non-blocking, so reads wait in the
// runtime's poller and hold no thread.
func newSemaphore(fd int) *semaphore {
	return &semaphore{f: os.NewFile(uintptr(fd), "eventfd"), turn: make(chan struct{}, 1)}
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

// wait takes one event, or returns the error of ctx, or ErrClosed.
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
		case errors.Is(err, os.ErrClosed):
			return ErrClosed
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

func (s *semaphore) signal() { s.f.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (s *semaphore) close() { s.f.Close() }

// eventQueue is the ring of asynchronous events.
type eventQueue struct {
	*semaphore
	slots uint32

	mu    sync.Mutex
	ring  []byte // nil when closed
	fatal bool   // EventDeviceFatal was given out
}

// newEventQueue takes eventFD over; ring stays the caller's.
func newEventQueue(ringFD, eventFD, slots int) (*eventQueue, error) {
	ring, err := mapShared(ringFD, abi.RingSize(slots, abi.AsyncEventSize))
	if err != nil {
		unix.Close(eventFD)
		return nil, err
	}
	return &eventQueue{semaphore: newSemaphore(eventFD), slots: uint32(slots), ring: ring}, nil
}

// next waits for an event. When the daemon goes without having said so, as it does
// when it is killed, there is one EventDeviceFatal.
func (q *eventQueue) next(ctx context.Context, c *Context) (abi.AsyncEvent, error) {
	if err := q.acquire(ctx); err != nil {
		return abi.AsyncEvent{}, err
	}
	defer q.release()
	for {
		if e, ok, err := q.take(c); ok || err != nil {
			return e, err
		}
		if err := q.wait(ctx); err != nil {
			return abi.AsyncEvent{}, err
		}
	}
}

func (q *eventQueue) take(c *Context) (e abi.AsyncEvent, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring == nil {
		return e, false, ErrClosed
	}
	gone := c.gone.Load() // before the ring is looked at: the daemon's last event comes first
	consumer := word(q.ring, abi.RingConsumer)
	if i := *consumer; i != atomic.LoadUint32(word(q.ring, abi.RingProducer)) {
		abi.Decode(q.ring[abi.RingSlots+int(i%q.slots)*abi.AsyncEventSize:], &e)
		atomic.StoreUint32(consumer, i+1)
		q.fatal = q.fatal || e.Type == uint32(EventDeviceFatal)
		return e, true, nil
	}
	if gone && !q.fatal {
		q.fatal = true
		return abi.AsyncEvent{Type: uint32(EventDeviceFatal), Port: 1}, true, nil
	}
	if gone {
		return e, false, c.Err()
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
