package verbs

import (
	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// SRQAttr is ibv_srq_attr.
type SRQAttr struct {
	MaxWR    uint32
	MaxSGE   uint32
	SRQLimit uint32 // EventSRQLimitReached is given once, when fewer are posted; 0: it was given, or none is asked for
}

// SRQAttrMask names fields of SRQAttr: ibv_srq_attr_mask.
type SRQAttrMask uint32

// Bits of SRQAttrMask.
const (
	SRQMaskMaxWR SRQAttrMask = abi.SRQMaxWR
	SRQMaskLimit SRQAttrMask = abi.SRQLimit
)

// SRQ is a shared receive queue: ibv_srq.
type SRQ struct {
	ctx    *Context
	pd     *PD
	handle uint32
	maxSGE uint32
	number uint32
	wq     workQueue
}

// CreateSRQ creates a shared receive queue, which holds at least what a asks for.
func (p *PD) CreateSRQ(a SRQAttr) (*SRQ, error) {
	return p.createSRQ(abi.CreateSRQRequest{PD: p.handle, Attr: a.abi()})
}

func (p *PD) createSRQ(ask abi.CreateSRQRequest) (*SRQ, error) {
	c := p.ctx
	var got abi.SRQReply
	m, err := c.call(control.Request{Name: "create SRQ", Op: abi.OpCreateSRQ, Body: []any{ask}, Reply: &got, Want: 1})
	if err != nil {
		c.drop(abi.OpDestroySRQ, got.Handle)
		return nil, err
	}
	defer m.CloseFDs()
	s := &SRQ{ctx: c, pd: p, handle: got.Handle, maxSGE: got.Attr.MaxSGE, number: got.Number}
	if err := s.wq.open(m.FDs[0], got.Slots, got.SlotSize, got.Attr.MaxWR); err != nil {
		c.drop(abi.OpDestroySRQ, got.Handle)
		return nil, err
	}
	return adopted(c, s)
}

func (a SRQAttr) abi() abi.SRQAttr {
	return abi.SRQAttr{MaxWR: a.MaxWR, MaxSGE: a.MaxSGE, SRQLimit: a.SRQLimit}
}

// Number returns what peers call an SRQ for XRC, 0 of another: ibv_get_srq_num.
func (s *SRQ) Number() uint32 { return s.number }

// PD returns the queue's protection domain.
func (s *SRQ) PD() *PD { return s.pd }

// PostRecv adds work requests: ibv_post_srq_recv. All of them are posted, or none and the
// error says why: ErrQueueFull, ErrWorkRequest, ErrClosed, ErrDeviceFatal.
func (s *SRQ) PostRecv(wr ...RecvWR) error {
	w := &s.wq
	w.mu.Lock()
	defer w.mu.Unlock()
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

// Modify changes what mask names: the limit, or the size of the queue; ibv_modify_srq.
func (s *SRQ) Modify(a SRQAttr, mask SRQAttrMask) error {
	w := &s.wq
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ring == nil {
		return ErrClosed
	}
	want := 0
	if mask&SRQMaskMaxWR != 0 {
		want = 1
	}
	var got abi.SRQReply
	ask := abi.ModifySRQRequest{Handle: s.handle, Mask: uint32(mask), Attr: a.abi()}
	m, err := s.ctx.call(control.Request{Name: "modify SRQ", Op: abi.OpModifySRQ, Body: []any{ask}, Reply: &got, Want: want})
	if err != nil || want == 0 {
		return err
	}
	defer m.CloseFDs()
	old := w.ring
	if err := w.open(m.FDs[0], got.Slots, got.SlotSize, got.Attr.MaxWR); err != nil {
		w.ring = nil // the daemon has gone over to the new one
	}
	unix.Munmap(old)
	return err
}

// Query returns the attributes as they are: ibv_query_srq.
func (s *SRQ) Query() (SRQAttr, error) {
	if !s.ctx.owns(s) {
		return SRQAttr{}, ErrClosed
	}
	var got abi.SRQAttr
	_, err := s.ctx.call(control.Request{
		Name: "query SRQ", Op: abi.OpQuerySRQ, Body: []any{abi.HandleRequest{Handle: s.handle}}, Reply: &got,
	})
	return SRQAttr{got.MaxWR, got.MaxSGE, got.SRQLimit}, err
}

// Close destroys the queue; EBUSY while queue pairs use it.
func (s *SRQ) Close() error { return s.ctx.closeObject(s, "destroy SRQ", abi.OpDestroySRQ, s.handle) }

func (s *SRQ) abandon() { s.wq.close() }
