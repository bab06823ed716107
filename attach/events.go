package attach

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
)

// eventSlots is the number of asynchronous events that may be queued for a client.
const eventSlots = 1024

// An eventRing carries asynchronous events to a client. All its methods except release run on the
// engine.
type eventRing struct {
	conn     *conn
	mem      []byte
	pipe     int
	producer uint32
	lost     uint32
	fatal    bool
	handles  map[any]uint32 // of *nic.QP, *nic.CQ and *nic.SRQ
	joined   []*eventRing   // rings of the connections that joined the context, which get the same events
}

// newEventRing returns a ring and the two descriptors to send to the client.
func newEventRing(c *conn) (r *eventRing, fds []int, err error) {
	mem, fd, err := sharedMemory("events", abi.RingSize(eventSlots, abi.AsyncEventSize))
	if err != nil {
		return nil, nil, err
	}
	read, write, err := eventPipe()
	if err != nil {
		unix.Munmap(mem)
		unix.Close(fd)
		return nil, nil, err
	}
	return &eventRing{conn: c, mem: mem, pipe: write, handles: map[any]uint32{}}, []int{fd, read}, nil
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

// put adds an event, or counts it as lost if the ring is full.
func (r *eventRing) put(out abi.AsyncEvent) {
	if out.Type == uint32(ib.EventDeviceFatal) {
		if r.fatal {
			return
		}
		r.fatal = true
	}
	// The client writes the consumer index. A wrong one makes the ring look full.
	if r.producer-atomic.LoadUint32(r.word(abi.RingConsumer)) >= eventSlots {
		r.lost++
		atomic.StoreUint32(r.word(abi.EventsLost), r.lost)
		return
	}
	slot := abi.RingSlots + int(r.producer%eventSlots)*abi.AsyncEventSize
	out.Put(r.mem[slot:])
	r.producer++
	atomic.StoreUint32(r.word(abi.RingProducer), r.producer)
	writeEvent(r.pipe)
}

// Killed implements nic.EventSink: the engine has closed the context.
func (r *eventRing) Killed(reason error) {
	c := r.conn
	c.server.running.Go(func() { c.end(reason) })
}

func (r *eventRing) word(off int) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[off])) }

// release frees the ring. The context must be closed.
func (r *eventRing) release() {
	unix.Munmap(r.mem)
	unix.Close(r.pipe)
}
