package attach

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
)

// eventSlots is the number of asynchronous events that a client's ring holds. More wait in the
// daemon.
const eventSlots = 1024

// An eventRing carries asynchronous events to a client. All its methods except release run on the
// engine.
type eventRing struct {
	conn     *conn
	engine   *nic.Engine
	rings    *ringMemory
	mem      []byte
	events   *eventSocket
	producer uint32
	fatal    bool
	closed   bool
	handles  map[any]uint32 // of *nic.QP, *nic.CQ and *nic.SRQ
	joined   []*eventRing   // rings of the connections that joined the context, which get the same events

	// Events that found the ring full, in their order, and the same as a set. An event that waits
	// already is not added again, so there are at most as many as the client's objects can raise.
	waiting []abi.AsyncEvent
	waits   map[abi.AsyncEvent]bool
}

// newEventRing returns a ring and the two descriptors to send to the client.
func newEventRing(c *conn, e *nic.Engine) (r *eventRing, fds []int, err error) {
	rings, mem, fd, err := c.rings.newRing(abi.RingSize(eventSlots, abi.AsyncEventSize))
	if err != nil {
		return nil, nil, err
	}
	events, client, err := c.account.newEventSocket()
	if err != nil {
		rings.release()
		unix.Close(fd)
		return nil, nil, err
	}
	r = &eventRing{conn: c, engine: e, rings: rings, mem: c.rings.begin(mem), events: events, handles: map[any]uint32{}, waits: map[abi.AsyncEvent]bool{}}
	r.producer = atomic.LoadUint32(r.word(abi.RingConsumer))
	return r, []int{fd, client}, nil
}

// AsyncEvent implements nic.EventSink.
func (r *eventRing) AsyncEvent(e nic.Event) {
	out := abi.AsyncEvent{Type: uint32(e.Type), Port: uint32(e.Port)}
	switch {
	case e.QP != nil:
		out.Handle = r.handles[e.QP]
	case e.CQ != nil:
		out.Handle = r.handles[e.CQ]
	case e.SRQ != nil:
		out.Handle = r.handles[e.SRQ]
	}
	r.put(out)
	for _, g := range r.joined {
		g.put(out)
	}
}

// put adds an event, which waits if the ring is full.
func (r *eventRing) put(out abi.AsyncEvent) {
	if out.Type == uint32(ib.EventDeviceFatal) {
		if r.fatal {
			return
		}
		r.fatal = true
	}
	if len(r.waiting) == 0 && r.store(out) || r.waits[out] {
		return
	}
	if len(r.waiting) == 0 {
		r.engine.Repeat(r.refill)
	}
	r.waits[out] = true
	r.setWaiting(append(r.waiting, out))
}

// store puts an event into the ring and reports whether there was room. The client writes the
// consumer index. A wrong one makes the ring look full.
func (r *eventRing) store(out abi.AsyncEvent) bool {
	if r.producer-atomic.LoadUint32(r.word(abi.RingConsumer)) >= eventSlots {
		return false
	}
	slot := abi.RingSlots + int(r.producer%eventSlots)*abi.AsyncEventSize
	*abi.In[abi.AsyncEvent](r.mem[slot:]) = out
	r.producer++
	atomic.StoreUint32(r.word(abi.RingProducer), r.producer)
	r.events.signal()
	return true
}

// refill moves waiting events to the ring, and reports whether some are left. The client has taken
// an event and woken the engine, or the engine was awake.
func (r *eventRing) refill() (again bool) {
	if r.closed {
		return false
	}
	n := 0
	for n < len(r.waiting) && r.store(r.waiting[n]) {
		delete(r.waits, r.waiting[n])
		n++
	}
	r.setWaiting(r.waiting[n:])
	return len(r.waiting) > 0
}

func (r *eventRing) setWaiting(l []abi.AsyncEvent) {
	r.waiting = l
	atomic.StoreUint32(r.word(abi.EventsWaiting), uint32(len(l)))
}

// forget removes an object that was destroyed, and its waiting events. The client drops those in
// the ring.
func (r *eventRing) forget(o any) {
	handle := r.handles[o]
	delete(r.handles, o)
	r.dropWaiting(handle)
	for _, g := range r.joined {
		g.dropWaiting(handle)
	}
}

func (r *eventRing) dropWaiting(handle uint32) {
	if len(r.waiting) == 0 {
		return
	}
	r.setWaiting(slices.DeleteFunc(r.waiting, func(e abi.AsyncEvent) bool {
		if e.Handle != handle {
			return false
		}
		delete(r.waits, e)
		return true
	}))
}

// Killed implements nic.EventSink: the engine has closed the context.
func (r *eventRing) Killed(reason error) {
	c := r.conn
	c.server.running.Go(func() { c.end(reason) })
}

func (r *eventRing) word(off int) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[off])) }

// release frees the ring. The context must be closed.
func (r *eventRing) release() {
	r.rings.release()
	r.conn.account.closeEventSocket(r.events)
}
