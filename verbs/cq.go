package verbs

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// CQ is a completion queue: ibv_cq.
type CQ struct {
	ctx     *Context
	handle  uint32
	channel *CompChannel         // the program's, or nil
	socket  *control.EventSocket // completion events if there is no channel
	seen    uint32               // completion events that GetEvent has returned, under the channel's lock

	mu       sync.Mutex
	ring     []byte // nil when closed
	unmap    func()
	mask     uint32
	consumer uint32
	resize   resize

	spinLimit atomic.Int64 // of the next Wait, in nanoseconds
	yielder   yielder

	// Words of the ring, accessed under mu.
	producer, consumed, armed, events *uint32
}

// CreateCQ creates a completion queue for at least cqe entries: ibv_create_cq. With a CompChannel,
// its events go there and CQ.Wait is not available; without one (nil), CQ.Wait is.
func (c *Context) CreateCQ(ctx context.Context, cqe int, ch *CompChannel) (*CQ, error) {
	if cqe < 1 {
		return nil, &Error{Op: "create CQ", Errno: syscall.EINVAL, Text: "the number of entries must be at least 1"}
	}
	return created(ctx, "create CQ", func() (*CQ, error) { return c.openCQ(uint32(cqe), ch) })
}

func (c *Context) openCQ(cqe uint32, ch *CompChannel) (*CQ, error) {
	req := abi.CreateCQRequest{Entries: cqe, Flags: abi.CQOwnChannel}
	want := 2
	if ch != nil {
		req.Channel, req.Flags, want = ch.handle, 0, 1
	}
	var got abi.CreateCQReply
	p, err := c.call(control.Request{Name: "create CQ", Op: abi.OpCreateCQ, Body: []any{req}, Reply: &got, Want: want})
	if err != nil {
		c.drop(abi.OpDestroyCQ, got.Handle)
		return nil, err
	}
	defer p.CloseFDs()
	q := &CQ{ctx: c, handle: got.Handle, channel: ch, yielder: yielder{yield: new(goroutineYielder).yield}}
	fd := p.Take()
	err = q.open(fd, &got)
	unix.Close(fd)
	if err != nil {
		c.drop(abi.OpDestroyCQ, got.Handle)
		return nil, err
	}
	if ch == nil {
		q.socket = control.NewEventSocket(c.client, p.Take())
	} else {
		ch.add(q)
	}
	return adopted(c, q)
}

// CQE returns how many completions the queue holds.
func (q *CQ) CQE() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int(q.mask) + 1
}

// Resize makes the queue hold at least cqe completions: ibv_resize_cq. Completions that were not
// polled and the arming are kept; EINVAL if the new size has no room for them. Until the daemon
// replies, Poll returns no completions, Wait waits, and Arm waits or, if ctx ends first, returns
// EBUSY.
func (q *CQ) Resize(ctx context.Context, cqe int) error {
	if cqe < 1 {
		return &Error{Op: "resize CQ", Errno: syscall.EINVAL, Text: "the number of entries must be at least 1"}
	}
	if !q.ctx.owns(q) {
		return ErrClosed
	}
	return q.resize.run(ctx, "resize CQ", &q.mu, func() error { return q.setSize(uint32(cqe)) })
}

// setSize makes the daemon move the queue to a ring of another size.
func (q *CQ) setSize(cqe uint32) error {
	var got abi.CreateCQReply
	req := abi.ResizeCQRequest{Handle: q.handle, Entries: cqe}
	p, err := q.ctx.call(control.Request{Name: "resize CQ", Op: abi.OpResizeCQ, Body: []any{req}, Reply: &got, Want: 1})
	if got.Handle == 0 {
		return err
	}
	defer p.CloseFDs()
	fd := -1 // no room for the descriptor: the chunk may be mapped already
	if err == nil {
		fd = p.FDs[0]
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring == nil {
		return ErrClosed
	}
	unmap := q.unmap
	moved := q.open(fd, &got)
	if moved != nil {
		q.ring = nil // the daemon uses the new ring
	}
	unmap()
	if err != nil && moved != nil {
		return err
	}
	return moved
}

// open uses the ring of a reply. If it fails, the queue is unchanged.
func (q *CQ) open(fd int, r *abi.CreateCQReply) error {
	ring, unmap, err := q.ctx.rings.ring(fd, ringPlace{r.Chunk, r.Ring, r.Entries, abi.CQESize}, abi.CQESize)
	if err != nil {
		return err
	}
	q.ring, q.unmap, q.mask = ring, unmap, r.Entries-1
	q.producer, q.consumed = word(ring, abi.RingProducer), word(ring, abi.RingConsumer)
	q.armed, q.events = word(ring, abi.CQArmed), word(ring, abi.CQEvents)
	q.consumer = atomic.LoadUint32(q.consumed)
	return nil
}

// Poll moves up to len(wc) completions to wc and returns their number: ibv_poll_cq. It does not
// wait, but yields the processor now and then if there are none. When the daemon is gone and the
// queue is empty, the error is ErrDeviceFatal.
func (q *CQ) Poll(wc []WC) (int, error) {
	n, err := q.take(wc)
	if n == 0 && err == nil {
		q.yielder.noteEmpty()
	}
	return n, err
}

func (q *CQ) take(wc []WC) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring == nil {
		return 0, ErrClosed
	}
	if q.resize.done != nil {
		return 0, nil
	}
	ready := atomic.LoadUint32(q.producer) - q.consumer
	n := min(int(ready), len(wc))
	if n == 0 {
		// Check Err before the queue: completions that arrived before the end come first.
		if err := q.ctx.Err(); err != nil && atomic.LoadUint32(q.producer) == q.consumer {
			return 0, err
		}
		return 0, nil
	}
	for i := range n {
		wc[i].load(q.slot(q.consumer))
		q.consumer++
	}
	atomic.StoreUint32(q.consumed, q.consumer)
	return n, nil
}

func (q *CQ) slot(i uint32) []byte {
	off := abi.RingSlots + int(i&q.mask)*abi.CQESize
	return q.ring[off : off+abi.CQESize : off+abi.CQESize]
}

func (w *WC) load(slot []byte) {
	var c abi.CQE
	c.Parse(slot)
	*w = WC{
		WRID:         c.WRID,
		Status:       WCStatus(c.Status),
		Opcode:       WCOpcode(c.Opcode),
		VendorErr:    c.VendorErr,
		ByteLen:      c.ByteLen,
		QPNum:        c.QPN,
		SrcQP:        c.SrcQP,
		WCFlags:      WCFlags(c.Flags),
		PKeyIndex:    c.PKeyIndex,
		SLID:         c.SLID,
		SL:           c.SL,
		DLIDPathBits: c.PathBits,
		CVLAN:        c.VLAN,
		Timestamp:    c.Timestamp,
		WallclockNS:  c.Wallclock,
	}
	if w.WCFlags&WCWithInv != 0 {
		w.InvalidatedRKey = c.Imm
	} else if w.WCFlags&WCWithImm != 0 {
		w.Imm = c.Immediate()
	}
}

// Arm requests one event for the next completion, or for the next one that is solicited or an
// error: ibv_req_notify_cq. Completions that are already there cause no event, so poll once more
// after arming.
func (q *CQ) Arm(solicitedOnly bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.resize.wait(&q.mu) {
		return errResizing
	}
	if q.ring == nil {
		return ErrClosed
	}
	// The program's next load of the producer index is not older: see package abi.
	if solicitedOnly {
		// Armed for every completion includes this.
		atomic.CompareAndSwapUint32(q.armed, abi.CQArmNone, abi.CQArmSolicited)
	} else {
		atomic.StoreUint32(q.armed, abi.CQArmNext)
	}
	return nil
}

var errResizing error = &Error{Op: "arm CQ", Errno: syscall.EBUSY, Text: "the daemon has not replied to Resize or Close yet"}

// maxSpin is how long Wait polls at most before it blocks: several times what it costs the engine
// and the program to wake a thread that is blocked.
const maxSpin = 100 * time.Microsecond

// spin polls until the queue holds a completion: some times in any case, then until limit has
// passed. It stops if other threads had the processor for maxSpin.
func (q *CQ) spin(limit time.Duration) (bool, error) {
	const inAnyCase = 256 // a reply on a fabric comes sooner
	var start time.Time
	yielded := time.Duration(0)
	for n := 1; ; n++ {
		if ready, err := q.ready(); ready || err != nil || yielded >= maxSpin {
			return ready, err
		}
		if n >= inAnyCase && n%64 == 0 {
			if start.IsZero() {
				start = time.Now()
			}
			if time.Since(start) >= limit {
				return false, nil
			}
		}
		yielded += q.yielder.noteEmpty()
	}
}

// Wait returns when the queue holds a completion. It polls for up to 100 microseconds if the last
// completion that it blocked for came soon, otherwise for a few, and for as much longer if other
// threads have the processor meanwhile. Then it blocks in the runtime's poller, without a thread.
// Since other goroutines may poll at the same time, Poll may still return none. Errors are those of
// ctx, ErrDeviceFatal, ErrClosed, and EINVAL for a queue with a CompChannel.
func (q *CQ) Wait(ctx context.Context) error {
	if q.socket == nil {
		return &Error{Op: "wait for CQ", Errno: syscall.EINVAL, Text: "the events of the CQ go to a completion channel"}
	}
	if ready, err := q.spin(time.Duration(q.spinLimit.Load())); ready || err != nil {
		return err
	}
	blocked := time.Now()
	defer func() {
		limit := maxSpin
		if time.Since(blocked) > maxSpin {
			limit = 0
		}
		q.spinLimit.Store(int64(limit))
	}()
	if err := q.socket.Acquire(ctx); err != nil {
		return err
	}
	defer q.socket.Release()
	for {
		if err := q.finishResize(ctx); err != nil {
			return err
		}
		if err := q.Arm(false); err == errResizing {
			continue
		} else if err != nil {
			return err
		}
		if ready, err := q.ready(); ready || err != nil {
			return err
		}
		if err := q.ctx.Err(); err != nil {
			return err
		}
		if err := q.socket.Wait(ctx); err != nil {
			return err
		}
	}
}

func (q *CQ) ready() (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring == nil {
		return false, ErrClosed
	}
	return q.resize.done == nil && atomic.LoadUint32(q.producer) != q.consumer, nil
}

func (q *CQ) finishResize(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.resize.finish(ctx, &q.mu)
}

// remove removes the completions of a queue pair. The producer only appends, so the remaining ones
// move up to its index.
func (q *CQ) remove(qpn uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.resize.finish(context.Background(), &q.mu)
	if q.ring == nil {
		return
	}
	to := atomic.LoadUint32(q.producer)
	if to-q.consumer > q.mask+1 {
		return // impossible: it has been overwritten
	}
	for from := to; from != q.consumer; {
		from--
		slot := q.slot(from)
		var c abi.CQE
		if c.Parse(slot); c.QPN == qpn {
			continue
		}
		to--
		if to != from {
			copy(q.slot(to), slot)
		}
	}
	q.consumer = to
	atomic.StoreUint32(q.consumed, to)
}

// Close destroys the queue; EBUSY while queue pairs use it. Until the daemon replies, the queue can
// be used as during Resize.
func (q *CQ) Close(ctx context.Context) error {
	return q.resize.run(ctx, "destroy CQ", &q.mu, func() error {
		return q.ctx.closeObject(context.Background(), q, "destroy CQ", abi.OpDestroyCQ, q.handle, nil)
	})
}

func (q *CQ) abandon() {
	if q.channel != nil {
		q.channel.drop(q)
	}
	if q.socket != nil {
		q.socket.Close()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring != nil {
		q.unmap()
		q.ring = nil
	}
}

// CompChannel receives the completion events of several CQs: ibv_comp_channel.
type CompChannel struct {
	ctx    *Context
	handle uint32
	socket *control.EventSocket

	mu     sync.Mutex
	queues []*CQ
}

// CreateCompChannel creates a completion channel: ibv_create_comp_channel.
func (c *Context) CreateCompChannel(ctx context.Context) (*CompChannel, error) {
	const name = "create completion channel"
	return created(ctx, name, func() (*CompChannel, error) {
		var got abi.HandleReply
		p, err := c.call(control.Request{Name: name, Op: abi.OpCreateChannel, Reply: &got, Want: 1})
		if err != nil {
			c.drop(abi.OpDestroyChannel, got.Handle)
			return nil, err
		}
		return adopted(c, &CompChannel{ctx: c, handle: got.Handle, socket: control.NewEventSocket(c.client, p.Take())})
	})
}

// GetEvent waits for a completion event and returns its queue: ibv_get_cq_event. The queue must be
// armed again for the next event. There is nothing to acknowledge.
func (ch *CompChannel) GetEvent(ctx context.Context) (*CQ, error) {
	if err := ch.socket.Acquire(ctx); err != nil {
		return nil, err
	}
	defer ch.socket.Release()
	for {
		if err := ch.ctx.Err(); err != nil {
			return nil, err
		}
		if err := ch.socket.Wait(ctx); err != nil {
			return nil, err
		}
		if q, err := ch.next(ctx); q != nil || err != nil {
			return q, err
		}
	}
}

// next returns a queue with an event that GetEvent has not returned yet, nil if there is none. It
// waits for queues that are being resized: their events cannot be read until the daemon has
// replied.
func (ch *CompChannel) next(ctx context.Context) (*CQ, error) {
	for {
		q, resizing := ch.scan()
		if q != nil || resizing == nil {
			return q, nil
		}
		select {
		case <-resizing:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// scan looks for a queue with an event, in rotation. If there is none it returns a channel that is
// closed when a resize has ended, nil if no queue is being resized.
func (ch *CompChannel) scan() (found *CQ, resizing <-chan struct{}) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for i, q := range ch.queues {
		event, wait := q.takeEvent()
		if event {
			last := len(ch.queues) - 1
			copy(ch.queues[i:], ch.queues[i+1:])
			ch.queues[last] = q
			return q, nil
		}
		if wait != nil {
			resizing = wait
		}
	}
	return nil, resizing
}

func (q *CQ) takeEvent() (event bool, resizing <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.resize.done != nil {
		return false, q.resize.done
	}
	if q.ring == nil || atomic.LoadUint32(q.events) == q.seen {
		return false, nil
	}
	q.seen++
	return true, nil
}

func (ch *CompChannel) add(q *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.queues = append(ch.queues, q)
}

func (ch *CompChannel) drop(q *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for i := range ch.queues {
		if ch.queues[i] == q {
			ch.queues = append(ch.queues[:i], ch.queues[i+1:]...)
			return
		}
	}
}

// Close destroys the channel; EBUSY while CQs use it.
func (ch *CompChannel) Close(ctx context.Context) error {
	return ch.ctx.closeObject(ctx, ch, "destroy completion channel", abi.OpDestroyChannel, ch.handle, nil)
}

func (ch *CompChannel) abandon() { ch.socket.Close() }
