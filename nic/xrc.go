package nic

import (
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/transport"
)

// xrc holds the XRC domains of a device, and its SRQs of XRC by number.
type xrc struct {
	shared map[XRCDKey]*domain
	srqs   map[uint32]*SRQ // by SRQ number
	last   uint32          // number allocated most recently
}

// A domain is an XRC domain. Several contexts may have it open.
type domain struct {
	key   XRCDKey // zero: private to one context
	open  int
	holds []int // by slice: contexts with an SRQ in it that are held (hold.go)
}

// An XRCDKey identifies the file of an XRC domain by its device and inode numbers.
type XRCDKey struct{ Device, Inode uint64 }

// An XRCD is an XRC domain that a context has open.
type XRCD struct {
	ctx    *Context
	domain *domain
	users  int // SRQs and target queue pairs of the context
}

// OpenXRCD opens the XRC domain of a file. If there is none, create must be set, and creates it;
// with exclusive there must be none. The zero key creates a private domain. Errors are ENOMEM,
// ENOENT, EEXIST, and EINVAL for the zero key without create.
func (c *Context) OpenXRCD(key XRCDKey, create, exclusive bool) (*XRCD, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	d := c.device
	if err := d.require(CapXRC, "XRC"); err != nil {
		return nil, err
	}
	if err := c.checkLimit(kindXRCD); err != nil {
		return nil, err
	}
	m := d.xrc.shared[key]
	switch {
	case key == XRCDKey{} && !create:
		return nil, errorf(syscall.EINVAL, "an XRC domain without a file can only be created")
	case m == nil && !create:
		return nil, errorf(syscall.ENOENT, "the file has no XRC domain")
	case m != nil && exclusive:
		return nil, errorf(syscall.EEXIST, "the file has an XRC domain")
	case m == nil:
		m = &domain{key: key, holds: make([]int, len(d.slices))}
		if key != (XRCDKey{}) {
			d.xrc.shared[key] = m
		}
	}
	m.open++
	x := &XRCD{ctx: c, domain: m}
	c.xrcds = append(c.xrcds, x)
	c.add(kindXRCD, 1)
	return x, nil
}

// CloseXRCD closes x; EBUSY while an SRQ or a QP of the context uses it. The domain ends when its
// last context closes it.
func (c *Context) CloseXRCD(x *XRCD) error {
	if x == nil || x.ctx != c {
		return errorf(syscall.ENOENT, "the XRCD is not of this context")
	}
	if x.users > 0 {
		return errorf(syscall.EBUSY, "XRCD is in use by %d objects", x.users)
	}
	x.remove()
	return nil
}

func (x *XRCD) remove() {
	c := x.ctx
	x.ctx = nil
	if x.domain.open--; x.domain.open == 0 {
		delete(c.device.xrc.shared, x.domain.key)
	}
	c.xrcds = remove(c.xrcds, x)
	c.add(kindXRCD, -1)
}

// checkXRC checks that an SRQ has both an XRC domain and a CQ, or neither.
func (c *Context) checkXRC(o *SRQInit) error {
	switch {
	case o.XRCD == nil && o.CQ == nil:
		return nil
	case o.XRCD == nil || o.XRCD.ctx != c || o.CQ == nil || o.CQ.ctx != c:
		return errorf(syscall.EINVAL, "XRC SRQ needs an XRCD and a CQ of its context")
	}
	return nil
}

// lastSRQ is the highest SRQ number of an XRCETH. The limit of SRQs is lower.
const lastSRQ = 1<<24 - 1

// add assigns an SRQ of XRC its number.
func (x *xrc) add(s *SRQ) {
	for {
		x.last = x.last%lastSRQ + 1
		if x.srqs[x.last] == nil {
			break
		}
	}
	s.num = x.last
	x.srqs[s.num] = s
	s.xrcd.users++
	s.cq.users++
}

// remove removes s. Queue pairs that are receiving a message into it fail.
func (x *xrc) remove(s *SRQ) {
	delete(x.srqs, s.num)
	s.failTargets(func(q *QP) bool { return q.t.Receiving() != nil })
	s.xrcd.users--
	s.cq.users--
}

// failTargets fails the target queue pairs whose latest message was for s and for which the
// condition holds.
func (s *SRQ) failTargets(which func(*QP) bool) {
	for _, c := range s.ctx.device.contexts {
		for _, q := range c.qps {
			if q.init.Type == ib.QPTypeXRCRecv && q.recv.ring == s.ring && which(q) {
				q.fail(transport.ReasonSRQ)
			}
		}
	}
}

// An xrcTarget is the XRC domain of a target queue pair, for its transport.
type xrcTarget struct{ q *QP }

// Queue implements transport.Domain.
func (t xrcTarget) Queue(number uint32) (transport.RecvQueue, *mrtable.PD) {
	q := t.q
	s := q.device.xrc.srqs[number]
	if s == nil || s.xrcd.domain != q.init.XRCD.domain || s.failed {
		return nil, nil
	}
	q.recv.ring, q.recv.left = s.ring, 1
	return &q.recv, s.pd.pd
}

// An XRC queue pair lacks one queue or both. An empty ring of one slot, which no client sees, takes
// the place of each.
var (
	unusedSend = abi.SendSlotSize(1, 0)
	unusedRing = abi.RingSize(1, unusedSend)
)

func (q *QP) makeXRCRings() (err error) {
	o := &q.init
	if o.Type == ib.QPTypeXRCRecv {
		q.sq, err = newRing("send", NewPage(unusedRing), 1, unusedSend)
	} else {
		err = q.makeSendRing()
	}
	if err != nil {
		return err
	}
	r, err := newRecvRing(q.ctx, NewPage(unusedRing), 1, 1)
	q.recv = recvQueue{qp: q, ring: r, sges: make([]transport.SGE, 0, q.device.limits.MaxSRQSGE), shared: true}
	return err
}

// checkXRCInit checks the configuration of an XRC queue pair, and clears the capacities that it
// does not have.
func (c *Context) checkXRCInit(o *QPInit) error {
	if o.SRQ != nil || o.RecvCQ != nil || o.RQ != nil {
		return errorf(syscall.EINVAL, "XRC QP has no receive queue")
	}
	if o.Type == ib.QPTypeXRCRecv {
		return c.checkTarget(o)
	}
	if err := c.own(o.PD); err != nil {
		return err
	}
	if o.SendCQ == nil || o.SendCQ.ctx != c || o.XRCD != nil {
		return errorf(syscall.EINVAL, "XRC initiator QP needs a send CQ of its context, and no XRCD")
	}
	if err := c.device.granted.roundCaps(&o.Caps); err != nil {
		return err
	}
	o.Caps.MaxRecvWR, o.Caps.MaxRecvSGE = 0, 0
	return nil
}

func (c *Context) checkTarget(o *QPInit) error {
	if err := c.usable(); err != nil {
		return err
	}
	switch {
	case o.XRCD == nil || o.XRCD.ctx != c:
		return errorf(syscall.EINVAL, "XRC target QP needs an XRCD of its context")
	case o.PD != nil || o.SendCQ != nil || o.SQ != nil:
		return errorf(syscall.EINVAL, "XRC target QP has no PD and no send queue")
	}
	o.Caps = Caps{}
	return nil
}

// xrcConfig completes the transport's configuration of an XRC queue pair.
func (q *QP) xrcConfig(t *transport.Config) {
	t.Recv, t.Role = nil, transport.Initiator
	if q.init.Type == ib.QPTypeXRCRecv {
		t.Role, t.Domain = transport.Target, xrcTarget{q}
	}
}
