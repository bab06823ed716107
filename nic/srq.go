package nic

import (
	"syscall"

	"softroce/internal/ib"
	"softroce/transport"
)

// SRQInit configures a shared receive queue.
type SRQInit struct {
	PD     *PD
	MaxWR  int    // slots, from RoundSRQ
	MaxSGE int    // per work request
	Ring   []byte // abi.RingSize(MaxWR, abi.RecvSlotSize(MaxSGE)) bytes
	Limit  int

	XRCD *XRCD // XRC: the domain whose target queue pairs use it
	CQ   *CQ   // XRC: for its completions
}

// An SRQ is a shared receive queue.
type SRQ struct {
	ctx   *Context
	id    uint32
	pd    *PD
	ring  *recvRing
	bytes int
	users int

	xrcd   *XRCD // nil if not of XRC
	cq     *CQ
	num    uint32
	failed bool // target queue pairs cannot use it any more
}

// Number returns the SRQ number of an SRQ of XRC, 0 for others.
func (s *SRQ) Number() uint32 { return s.num }

// RoundSRQ rounds sizes up to what is granted; EINVAL if they exceed the limits, EOPNOTSUPP if the
// device has no shared receive queues.
func (d *Device) RoundSRQ(maxWR, maxSGE *int) error {
	if err := d.requireSRQ(); err != nil {
		return err
	}
	return d.limits.roundSRQ(maxWR, maxSGE)
}

func (d *Device) requireSRQ() error { return d.require(CapSRQ, "shared receive queues") }

func (l *Limits) roundSRQ(maxWR, maxSGE *int) error {
	if *maxWR < 1 || *maxWR > l.MaxSRQWR || *maxSGE < 0 || *maxSGE > l.MaxSRQSGE {
		return errorf(syscall.EINVAL, "SRQ of %d work requests of %d elements: at most %d of %d",
			*maxWR, *maxSGE, l.MaxSRQWR, l.MaxSRQSGE)
	}
	*maxWR, *maxSGE = roundSlots(*maxWR), max(*maxSGE, 1)
	return nil
}

// CreateSRQ creates a shared receive queue; errors are EINVAL, ENOMEM and EOPNOTSUPP.
func (c *Context) CreateSRQ(o SRQInit) (*SRQ, error) {
	if err := c.own(o.PD); err != nil {
		return nil, err
	}
	if err := c.checkXRC(&o); err != nil {
		return nil, err
	}
	d := c.device
	if err := d.requireSRQ(); err != nil {
		return nil, err
	}
	if err := c.checkLimit(kindSRQ); err != nil {
		return nil, err
	}
	if err := d.granted.roundSRQ(&o.MaxWR, &o.MaxSGE); err != nil {
		return nil, err
	}
	if o.Limit < 0 || o.Limit > o.MaxWR {
		return nil, errorf(syscall.EINVAL, "SRQ limit %d: must be 0 to %d", o.Limit, o.MaxWR)
	}
	r, err := newRecvRing(c, o.Ring, o.MaxWR, o.MaxSGE)
	if err != nil {
		return nil, err
	}
	if err := c.chargeRing(len(o.Ring)); err != nil {
		return nil, err
	}
	s := &SRQ{ctx: c, id: d.newID(), pd: o.PD, ring: r, bytes: len(o.Ring), xrcd: o.XRCD, cq: o.CQ}
	r.srq, r.limit = s, o.Limit
	if s.xrcd != nil {
		d.xrc.add(s)
		for _, o := range d.slices { // the target queue pairs may be of any
			s.ring.use(o)
			s.cq.use(o)
		}
		for i := range c.parts {
			if h := c.parts[i].hold; h != nil {
				h.include(s)
			}
		}
	}
	o.PD.users++
	c.srqs = append(c.srqs, s)
	c.add(kindSRQ, 1)
	return s, nil
}

// An SRQChange is the argument of ModifySRQ.
type SRQChange struct {
	// Limit arms the limit event, which is raised once, when fewer work requests are posted. 0
	// disarms it; a negative value leaves it unchanged.
	Limit int

	// Ring, if not nil, replaces the ring by one of MaxWR slots, from RoundSRQ. Posted work
	// requests move there with their indices. The client must not post during the call.
	Ring  []byte
	MaxWR int
}

// ModifySRQ changes s. After an error, EINVAL or ENOMEM, it is unchanged.
func (c *Context) ModifySRQ(s *SRQ, o SRQChange) error {
	if err := c.usable(); err != nil {
		return err
	}
	if s == nil || s.ctx != c {
		return errorf(syscall.ENOENT, "the SRQ is not of this context")
	}
	limit, slots := o.Limit, int(s.ring.size())
	if limit < 0 {
		limit = s.ring.limit
	}
	if o.Ring != nil {
		slots = o.MaxWR
	}
	if limit > slots {
		return errorf(syscall.EINVAL, "SRQ limit %d: must be 0 to %d", limit, slots)
	}
	if o.Ring != nil {
		if err := s.resize(o.MaxWR, o.Ring); err != nil {
			return err
		}
	}
	s.ring.limit = limit
	s.checkLimit()
	return nil
}

// resize replaces the ring by one of maxWR slots.
func (s *SRQ) resize(maxWR int, mem []byte) error {
	c, old := s.ctx, s.ring
	if !c.device.has(CapSRQResize) { // drivers do not return EOPNOTSUPP here
		return errorf(syscall.EINVAL, "%s cannot resize shared receive queues", c.device.name)
	}
	maxSGE := old.maxSGE
	if err := c.device.granted.roundSRQ(&maxWR, &maxSGE); err != nil {
		return err
	}
	r, err := newRecvRing(c, mem, maxWR, maxSGE)
	if err != nil {
		return err
	}
	waiting := old.posted()
	if err := c.fatal.Load(); err != nil {
		return err
	}
	if waiting > int(r.size()) {
		return errorf(syscall.EINVAL, "SRQ holds %d work requests: %d slots are too few", waiting, r.size())
	}
	if err := c.chargeRing(len(mem)); err != nil {
		return err
	}
	c.releaseRing(s.bytes)
	end := old.consumerIndex + uint32(waiting)
	moveSlots(&r.ring, &old.ring, old.consumerIndex, end)
	r.storeProducer(end)
	r.storeConsumer(old.consumerIndex)
	// Queue pairs keep their pointers to the recvRing.
	old.ring, old.doorbellWord, s.bytes = r.ring, r.doorbellWord, len(mem)
	return nil
}

// SRQAttr is struct ibv_srq_attr.
type SRQAttr struct{ MaxWR, MaxSGE, Limit int }

// Query returns the granted sizes and the armed limit.
func (s *SRQ) Query() SRQAttr { return SRQAttr{int(s.ring.size()), s.ring.maxSGE, s.ring.limit} }

// DestroySRQ destroys s; EBUSY while a queue pair uses it.
func (c *Context) DestroySRQ(s *SRQ) error {
	if s == nil || s.ctx != c {
		return errorf(syscall.ENOENT, "the SRQ is not of this context")
	}
	if s.users > 0 {
		return errorf(syscall.EBUSY, "SRQ is in use by %d QPs", s.users)
	}
	s.remove()
	return nil
}

func (s *SRQ) remove() {
	c := s.ctx
	if s.xrcd != nil {
		c.device.xrc.remove(s)
	}
	s.ctx = nil
	s.pd.users--
	c.releaseRing(s.bytes)
	c.srqs = remove(c.srqs, s)
	c.add(kindSRQ, -1)
}

// fail reports that no more messages arrive through s, and fails the queue pairs that use it.
func (s *SRQ) fail() {
	s.ctx.event(Event{Type: ib.EventSRQErr, SRQ: s})
	s.failed = true
	s.failTargets(func(*QP) bool { return true })
	for _, q := range s.ctx.qps {
		if q.init.SRQ == s {
			q.fail(transport.ReasonSRQ)
		}
	}
}

func (s *SRQ) checkLimit() {
	if s.ring.limit > 0 && s.ring.posted() < s.ring.limit {
		s.ring.limit = 0
		s.ctx.event(Event{Type: ib.EventSRQLimitReached, SRQ: s})
	}
}
