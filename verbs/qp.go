package verbs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// QP is a queue pair: ibv_qp.
type QP struct {
	ctx      *Context
	pd       *PD
	handle   uint32
	qpn      uint32
	qpType   QPType
	cap      QPCap
	sendCQ   *CQ
	recvCQ   *CQ
	srq      *SRQ
	doorbell *uint64 // its word in the doorbell page
	bit      uint64
	state    atomic.Uint32 // as Modify set it; the NIC may have changed it to ERR
	psn      atomic.Uint32 // the first PSN to send; see psnChosen

	successor successor
	sq, rq    workQueue
}

// A workQueue is a ring whose producer is this process.
type workQueue struct {
	mu           sync.Mutex
	ring         []byte // nil when closed
	unmap        func()
	closing      bool   // the daemon may have given the ring's memory to another queue
	size         uint32 // bytes of a slot
	mask         uint32
	limit        uint32 // capacity in work requests
	producer     uint32
	produced     *uint32
	consumed     *uint32
	recvDoorbell *uint32 // receive rings: not 0 if posting must ring the doorbell
}

// open uses a ring for at most limit work requests. If it fails, the queue is unchanged.
func (w *workQueue) open(c *chunks, fd int, at ringPlace, slotSize int, limit uint32) error {
	ring, unmap, err := c.ring(fd, at, slotSize)
	if err != nil {
		return err
	}
	w.ring, w.unmap = ring, unmap
	w.size, w.mask, w.limit = at.size, at.slots-1, limit
	w.produced, w.consumed = word(w.ring, abi.RingProducer), word(w.ring, abi.RingConsumer)
	w.recvDoorbell = word(w.ring, abi.RecvDoorbell)
	w.producer = atomic.LoadUint32(w.produced)
	return nil
}

func (w *workQueue) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ring != nil {
		w.unmap()
		w.ring = nil
	}
}

// setClosing is called with true before the daemon is asked to destroy the queue, and with false if
// it has refused.
func (w *workQueue) setClosing(closing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closing = closing
}

// CreateQP creates a queue pair in state RESET: ibv_create_qp. An XRCSend queue pair has a SendCQ
// only.
func (p *PD) CreateQP(ctx context.Context, a QPInitAttr) (*QP, error) {
	if a.QPType == XRCSend {
		a.RecvCQ, a.SRQ = nil, nil
	}
	if a.SendCQ == nil || a.RecvCQ == nil && a.QPType != XRCSend {
		return nil, &Error{Op: "create QP", Errno: syscall.EINVAL, Text: "a queue pair needs a CQ for each of its queues"}
	}
	req := abi.CreateQPRequest{
		PD: p.handle, SendCQ: a.SendCQ.handle,
		Type: uint32(a.QPType), SigAll: uint32(bit(a.SQSigAll)), Cap: a.Cap.abi(),
	}
	rings := 2
	if a.RecvCQ != nil {
		req.RecvCQ = a.RecvCQ.handle
	} else {
		rings = 1
	}
	if a.SRQ != nil {
		req.SRQ, rings = a.SRQ.handle, 1
	}
	q := &QP{ctx: p.ctx, pd: p, qpType: a.QPType, sendCQ: a.SendCQ, recvCQ: a.RecvCQ, srq: a.SRQ}
	return p.ctx.createQP(ctx, q, req, rings)
}

// createQP creates a queue pair with a number of rings: the send queue's, then the receive queue's.
func (c *Context) createQP(ctx context.Context, q *QP, req abi.CreateQPRequest, rings int) (*QP, error) {
	return created(ctx, "create QP", func() (*QP, error) { return c.openQP(q, req, rings) })
}

func (c *Context) openQP(q *QP, req abi.CreateQPRequest, rings int) (*QP, error) {
	var got abi.CreateQPReply
	m, err := c.call(control.Request{Name: "create QP", Op: abi.OpCreateQP, Body: []any{req}, Reply: &got, Want: min(rings, 1)})
	if err != nil {
		c.drop(abi.OpDestroyQP, got.Handle)
		return nil, err
	}
	defer m.CloseFDs()
	q.handle, q.qpn, q.cap = got.Handle, got.QPN, qpCap(got.Cap)
	if at := abi.DoorbellBits + int(got.Doorbell/64)*8; at+8 <= len(c.doorbells) {
		q.doorbell, q.bit = word64(c.doorbells, at), 1<<(got.Doorbell%64)
	} else {
		err = fmt.Errorf("doorbell %d of %d bytes: %w", got.Doorbell, len(c.doorbells), syscall.EPROTO)
	}
	if err == nil && rings > 0 {
		size := abi.SendSlotSize(int(got.Cap.MaxSendSGE), int(got.Cap.MaxInlineData))
		err = q.sq.open(&c.rings, m.FDs[0], ringPlace{got.Chunk, got.SendRing, got.SendSlots, got.SendSlotSize}, size, got.Cap.MaxSendWR)
	}
	if err == nil && rings > 1 {
		size := abi.RecvSlotSize(int(got.Cap.MaxRecvSGE))
		err = q.rq.open(&c.rings, m.FDs[0], ringPlace{got.Chunk, got.RecvRing, got.RecvSlots, got.RecvSlotSize}, size, got.Cap.MaxRecvWR)
	}
	if err != nil {
		q.sq.close()
		c.drop(abi.OpDestroyQP, got.Handle)
		return nil, err
	}
	return adopted(c, q)
}

// QPNum returns the queue pair number.
func (q *QP) QPNum() uint32 { return q.qpn }

// Type returns the transport service.
func (q *QP) Type() QPType { return q.qpType }

// Cap returns the capacity of the queue pair: at least the requested one.
func (q *QP) Cap() QPCap { return q.cap }

// PD returns the queue pair's protection domain, nil for an XRC target.
func (q *QP) PD() *PD { return q.pd }

// Modify changes the attributes in mask: ibv_modify_qp. IBTA 11.2.5.2 lists the attributes of each
// transition; the text of EINVAL names the one that is missing or wrong. Setting an address vector
// may wait for address resolution. If ctx ends first, the change may still happen.
func (q *QP) Modify(ctx context.Context, a *QPAttr, mask QPAttrMask) error {
	if !q.ctx.owns(q) {
		return ErrClosed
	}
	req := abi.ModifyQPRequest{Handle: q.handle, Mask: uint32(mask), Attr: a.abi()}
	state := a.QPState
	return control.AwaitError(ctx, "modify QP", func() error {
		if _, err := q.ctx.call(control.Request{Name: "modify QP", Op: abi.OpModifyQP, Body: []any{req}}); err != nil {
			return err
		}
		if mask&QPMaskState != 0 {
			if state == QPSReset {
				q.reset()
			}
			q.state.Store(uint32(state))
		}
		return nil
	})
}

// reset empties the queues of this process, as the NIC has emptied its own.
func (q *QP) reset() {
	q.purge()
	for _, w := range []*workQueue{&q.sq, &q.rq} {
		w.mu.Lock()
		if w.ring != nil {
			w.producer = atomic.LoadUint32(w.produced)
		}
		w.mu.Unlock()
	}
}

// purge removes the queue pair's completions.
func (q *QP) purge() {
	if q.sendCQ != nil {
		q.sendCQ.remove(q.qpn)
	}
	if q.recvCQ != nil && q.recvCQ != q.sendCQ {
		q.recvCQ.remove(q.qpn)
	}
}

// Query returns the present attributes: ibv_query_qp.
func (q *QP) Query(ctx context.Context) (QPAttr, error) {
	if !q.ctx.owns(q) {
		return QPAttr{}, ErrClosed
	}
	got, err := query[abi.QueryQPReply](ctx, q.ctx, control.Request{
		Name: "query QP", Op: abi.OpQueryQP, Body: []any{abi.HandleRequest{Handle: q.handle}},
	})
	return qpAttr(got.Attr), err
}

// Close destroys the queue pair. Its work requests end without completions, and completions that
// were not polled yet are gone.
func (q *QP) Close(ctx context.Context) error {
	return q.ctx.closeObject(ctx, q, "destroy QP", abi.OpDestroyQP, q.handle, q.purge)
}

func (q *QP) setClosing(closing bool) {
	q.sq.setClosing(closing)
	q.rq.setClosing(closing)
}

func (q *QP) abandon() {
	q.sq.close()
	q.rq.close()
	q.leaveSuccession()
}
