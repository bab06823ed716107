package verbs

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// word returns the 32-bit word of shared memory at off, a multiple of 4.
func word(b []byte, off int) *uint32 { return (*uint32)(unsafe.Pointer(&b[off : off+4][0])) }

// eventQueue is the ring of asynchronous events.
type eventQueue struct {
	*control.EventSocket
	ctx   *Context
	slots uint32

	mu    sync.Mutex
	ring  []byte // nil when closed
	unmap func()
	fatal bool // EventDeviceFatal was returned
}

// newEventQueue takes ownership of events, but not of chunk.
func newEventQueue(c *Context, chunk, events int, r *abi.OpenDeviceReply) (*eventQueue, error) {
	mem, unmap, err := c.rings.ring(chunk, ringPlace{r.Chunk, r.EventRing, r.EventSlots, abi.AsyncEventSize}, abi.AsyncEventSize)
	if err != nil {
		unix.Close(events)
		return nil, err
	}
	return &eventQueue{EventSocket: control.NewEventSocket(c.client, events), ctx: c, slots: r.EventSlots, ring: mem, unmap: unmap}, nil
}

// next waits for an event. If the daemon ends without a last event, as it does when it is killed,
// next returns one EventDeviceFatal.
func (q *eventQueue) next(ctx context.Context) (abi.AsyncEvent, error) {
	if err := q.Acquire(ctx); err != nil {
		return abi.AsyncEvent{}, err
	}
	defer q.Release()
	for {
		if e, ok, err := q.take(); ok || err != nil {
			return e, err
		}
		if err := q.Wait(ctx); err != nil && !errors.Is(err, ErrDeviceFatal) {
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
	gone := q.ctx.Err() != nil // checked before the ring, so that the daemon's last event comes first
	consumer := word(q.ring, abi.RingConsumer)
	if i := *consumer; i != atomic.LoadUint32(word(q.ring, abi.RingProducer)) {
		e.Parse(q.ring[abi.RingSlots+int(i%q.slots)*abi.AsyncEventSize:])
		atomic.StoreUint32(consumer, i+1)
		if atomic.LoadUint32(word(q.ring, abi.EventsWaiting)) != 0 {
			q.ctx.wake() // the engine has more for the ring
		}
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
	q.EventSocket.Close()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unmap()
	q.ring = nil
}
