package verbs

import (
	"context"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
)

// SRQAttr is ibv_srq_attr.
type SRQAttr struct {
	MaxWR    uint32
	MaxSGE   uint32
	SRQLimit uint32 // EventSRQLimitReached occurs once, when fewer are posted; 0: it has occurred or is not requested
}

// SRQAttrMask names fields of SRQAttr: ibv_srq_attr_mask.
type SRQAttrMask uint32

// Bits of SRQAttrMask.
const (
	SRQMaskMaxWR SRQAttrMask = SRQAttrMask(ib.SRQMaskMaxWR)
	SRQMaskLimit SRQAttrMask = SRQAttrMask(ib.SRQMaskLimit)
)

// SRQ is a shared receive queue: ibv_srq.
type SRQ struct {
	ctx    *Context
	pd     *PD
	handle uint32
	maxSGE uint32
	number uint32
	wq     workQueue
	resize resize // under wq.mu
}

// CreateSRQ creates a shared receive queue with at least the capacity in a: ibv_create_srq.
func (p *PD) CreateSRQ(ctx context.Context, a SRQAttr) (*SRQ, error) {
	return p.createSRQ(ctx, abi.CreateSRQRequest{PD: p.handle, Attr: a.abi()})
}

func (p *PD) createSRQ(ctx context.Context, req abi.CreateSRQRequest) (*SRQ, error) {
	return created(ctx, "create SRQ", func() (*SRQ, error) { return p.openSRQ(req) })
}

func (p *PD) openSRQ(req abi.CreateSRQRequest) (*SRQ, error) {
	c := p.ctx
	var got abi.SRQReply
	m, err := c.call(control.Request{Name: "create SRQ", Op: abi.OpCreateSRQ, Body: []any{req}, Reply: &got, Want: 1})
	if err != nil {
		c.drop(abi.OpDestroySRQ, got.Handle)
		return nil, err
	}
	defer m.CloseFDs()
	s := &SRQ{ctx: c, pd: p, handle: got.Handle, maxSGE: got.Attr.MaxSGE, number: got.Number}
	if err := s.open(m.FDs[0], &got); err != nil {
		c.drop(abi.OpDestroySRQ, got.Handle)
		return nil, err
	}
	return adopted(c, s)
}

// open uses the ring of a reply. If it fails, the queue is unchanged.
func (s *SRQ) open(fd int, r *abi.SRQReply) error {
	at := ringPlace{r.Chunk, r.Ring, r.Slots, r.SlotSize}
	return s.wq.open(&s.ctx.rings, fd, at, abi.RecvSlotSize(int(s.maxSGE)), r.Attr.MaxWR)
}

func (a SRQAttr) abi() abi.SRQAttr {
	return abi.SRQAttr{MaxWR: a.MaxWR, MaxSGE: a.MaxSGE, SRQLimit: a.SRQLimit}
}

// Number returns the SRQ number by which peers address an SRQ for XRC, 0 for other SRQs:
// ibv_get_srq_num.
func (s *SRQ) Number() uint32 { return s.number }

// PD returns the queue's protection domain.
func (s *SRQ) PD() *PD { return s.pd }

// PostRecv posts work requests: ibv_post_srq_recv. It posts all of them, or none and returns the
// reason: ErrQueueFull, ErrWorkRequest, ErrClosed, ErrDeviceFatal.
func (s *SRQ) PostRecv(wr ...RecvWR) error {
	w := &s.wq
	w.mu.Lock()
	defer w.mu.Unlock()
	if !s.resize.wait(&w.mu) {
		return ErrQueueFull
	}
	if w.ring == nil {
		return ErrClosed
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if !w.room(len(wr)) {
		return ErrQueueFull
	}
	for i := range wr {
		if len(wr[i].SGList) > int(s.maxSGE) {
			return ErrWorkRequest
		}
	}
	w.store(wr)
	return nil
}

// Modify changes what mask names, the limit or the size of the queue: ibv_modify_srq. PostRecv
// waits while the size changes. If ctx ends first, the change may still happen; until the daemon
// replies, PostRecv returns ErrQueueFull.
func (s *SRQ) Modify(ctx context.Context, a SRQAttr, mask SRQAttrMask) error {
	if !s.ctx.owns(s) {
		return ErrClosed
	}
	req := abi.ModifySRQRequest{Handle: s.handle, Mask: uint32(mask), Attr: a.abi()}
	if mask&SRQMaskMaxWR == 0 {
		_, err := query[abi.SRQReply](ctx, s.ctx, control.Request{Name: "modify SRQ", Op: abi.OpModifySRQ, Body: []any{req}})
		return err
	}
	return s.resize.run(ctx, "modify SRQ", &s.wq.mu, func() error { return s.setSize(req) })
}

// setSize makes the daemon move the queue to a ring of another size.
func (s *SRQ) setSize(req abi.ModifySRQRequest) error {
	var got abi.SRQReply
	m, err := s.ctx.call(control.Request{Name: "modify SRQ", Op: abi.OpModifySRQ, Body: []any{req}, Reply: &got, Want: 1})
	if got.Handle == 0 {
		return err
	}
	defer m.CloseFDs()
	fd := -1 // no room for the descriptor: the chunk may be mapped already
	if err == nil {
		fd = m.FDs[0]
	}
	w := &s.wq
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ring == nil {
		return ErrClosed
	}
	unmap := w.unmap
	moved := s.open(fd, &got)
	if moved != nil {
		w.ring = nil // the daemon uses the new ring
	}
	unmap()
	if err != nil && moved != nil {
		return err
	}
	return moved
}

// Query returns the present attributes: ibv_query_srq.
func (s *SRQ) Query(ctx context.Context) (SRQAttr, error) {
	if !s.ctx.owns(s) {
		return SRQAttr{}, ErrClosed
	}
	got, err := query[abi.SRQAttr](ctx, s.ctx, control.Request{
		Name: "query SRQ", Op: abi.OpQuerySRQ, Body: []any{abi.HandleRequest{Handle: s.handle}},
	})
	return SRQAttr{got.MaxWR, got.MaxSGE, got.SRQLimit}, err
}

// Close destroys the queue; EBUSY while queue pairs use it.
func (s *SRQ) Close(ctx context.Context) error {
	return s.resize.run(ctx, "destroy SRQ", &s.wq.mu, func() error {
		return s.ctx.closeObject(context.Background(), s, "destroy SRQ", abi.OpDestroySRQ, s.handle, nil)
	})
}

func (s *SRQ) abandon() { s.wq.close() }
