package nic

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"softroce/internal/abi"
	"softroce/mrtable"
)

// ContextOptions configures a context.
type ContextOptions struct {
	Doorbell   []byte // abi.DoorbellSize bytes, page-aligned or from NewPage
	DoorbellFD int    // eventfd that the client writes when the engine sleeps; -1 for none
	Limits     ContextLimits
	Events     EventSink // may be nil
	Client     uint32    // number of the client, as shown by Snapshot
	PID        int       // of the client, likewise
	Group      int       // process group of the client, likewise
	UID        uint32    // user ID of the client
	Comm       string

	// Privileged lets the client set controlled Q_Keys: those with the highest bit set (IBTA
	// 10.2.5).
	Privileged bool
}

// NewPage returns n bytes of zeroed, aligned heap memory, for the rings and doorbell pages of
// programs in the daemon's own process: simulations and tests.
func NewPage(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8)[:n:n]
}

// A Context owns the objects of one client on one device.
type Context struct {
	// What each step uses comes first, as in Device.
	device    *Device
	bells     *doorbellWords // in opt.Doorbell
	doorbells []*QP          // by doorbell number
	parts     []contextPart  // by the number of the slice
	first     [1]contextPart // storage of parts, if there is one slice

	fatal  atomic.Pointer[Error] // why the engine will close the context at the end of the step
	opt    ContextOptions
	limits ContextLimits
	events EventSink

	addressChanges uint32 // at abi.DoorbellAddresses

	count      objects
	user       *user
	registered uint64 // bytes of memory regions
	ringBytes  uint64

	deviceMemory uint64 // bytes in use

	pds  []*PD
	mrs  []*MR
	mws  []*MW
	cqs  []*CQ
	srqs []*SRQ
	qps  []*QP
	ahs  map[uint32]*AH // by number

	xrcds []*XRCD
	dms   []*DM

	closing bool // some of its objects are destroyed
	closed  bool
}

// A contextPart is what a slice has of a context. Only its engine uses it.
type contextPart struct {
	ctx      *Context
	device   *Device
	hold     *hold // not nil while a copy of the memory of client takes too long
	schedule schedule
	client   mrtable.Client // owns the memory of the context's regions
	kept     int            // bytes of the frames that are kept for its queue pairs

	freeDoorbells []int
	nextDoorbell  int // the first that no queue pair has had
}

// Open creates a context for a client. Errors are EINVAL, ENOMEM and ENODEV (the engine was
// closed).
func (d *Device) Open(o ContextOptions) (*Context, error) {
	switch {
	case d.engine.ended:
		return nil, errorf(syscall.ENODEV, "%s: the engine was closed", d.name)
	case len(o.Doorbell) < abi.DoorbellSize:
		return nil, errorf(syscall.EINVAL, "doorbell page of %d bytes: it needs %d", len(o.Doorbell), abi.DoorbellSize)
	case uintptr(unsafe.Pointer(&o.Doorbell[0]))&7 != 0:
		return nil, errorf(syscall.EINVAL, "doorbell page is not aligned to 8 bytes")
	case len(d.contexts) >= d.limits.MaxContexts:
		return nil, errorf(syscall.ENOMEM, "%s: all %d contexts are in use", d.name, d.limits.MaxContexts)
	}
	owner := d.users[o.UID]
	if owner == nil {
		owner = &user{}
	} else if free := d.limits.MaxContexts - len(d.contexts); owner.contexts+1 > free-1 {
		return nil, errorf(syscall.ENOMEM, "%s: user %d has %d contexts; %d of %d are free, and no user may have more than remain free",
			d.name, o.UID, owner.contexts, free, d.limits.MaxContexts)
	}
	c := &Context{device: d, bells: wordsOf(o.Doorbell), opt: o, limits: o.Limits, user: owner, events: o.Events, ahs: map[uint32]*AH{}}
	c.makeParts()
	if c.limits == (ContextLimits{}) {
		c.limits = d.limits.Context
	}
	for i, s := range d.slices {
		if err := s.engine.watchDoorbell(c); err != nil {
			for _, s := range d.slices[:i] {
				s.engine.unwatchDoorbell(c)
			}
			return nil, err
		}
	}
	d.contexts = append(d.contexts, c)
	d.users[o.UID] = owner
	owner.contexts++
	return c, nil
}

// Closed reports whether c was closed, by its owner or by the engine. The verbs of a closed context
// return EBADF.
func (c *Context) Closed() bool { return c.closed }

// Close destroys all objects of c, in order of dependency.
func (c *Context) Close() {
	for !c.CloseSome(math.MaxInt) {
	}
}

// CloseObjects is how many objects CloseSome may destroy between two steps: about 100 µs.
const CloseObjects = 64

// CloseSome destroys up to n objects of c, in order of dependency, and reports whether c is closed.
// After the first call the client's rings are not read.
func (c *Context) CloseSome(n int) bool {
	if c.closed {
		return true
	}
	if !c.closing {
		c.takePosted()
		c.closing, c.events = true, nil // no events for a client that is gone
	}
	c.fatal.CompareAndSwap(nil, &Error{Errno: syscall.EBADF, Text: "context is closed"})
	d := c.device
	d.engine.copyPayload()
	destroy(&n, &c.mws, (*MW).remove)
	destroy(&n, &c.qps, (*QP).remove)
	destroy(&n, &c.srqs, (*SRQ).remove)
	for _, a := range c.ahs {
		if n == 0 {
			break
		}
		a.remove()
		n--
	}
	destroy(&n, &c.cqs, (*CQ).remove)
	destroy(&n, &c.xrcds, (*XRCD).remove)
	destroy(&n, &c.mrs, (*MR).remove)
	destroy(&n, &c.dms, (*DM).remove)
	destroy(&n, &c.pds, (*PD).remove)
	if n == 0 {
		return false
	}
	c.closed = true
	for i := range c.parts {
		p := &c.parts[i]
		p.device.forgetKept(c)
		if p.hold != nil {
			p.hold.freeDomains()
			p.device.engine.released = true
		}
		p.device.engine.unwatchDoorbell(c)
		p.device.engine.lender.forget(c)
		p.device.tx.remove(p)
	}
	d.contexts = slices.DeleteFunc(d.contexts, func(o *Context) bool { return o == c })
	if d.one[0] == c { // contexts has other storage by now
		d.one[0] = nil
	}
	if c.user.contexts--; c.user.contexts == 0 {
		delete(d.users, c.opt.UID)
	}
	for i := range c.parts {
		if p := &c.parts[i]; p.hold != nil {
			p.device.engine.abandon(p.hold)
		}
	}
	return true
}

// destroy calls remove for up to *n objects, which removes them from the list.
func destroy[T any](n *int, list *[]T, remove func(T)) {
	for ; *n > 0 && len(*list) > 0; *n-- {
		remove((*list)[len(*list)-1])
	}
}

// takePosted transmits what a client has posted before, as much as a step transmits at most: a
// program may end right after it has posted its last message. The rings of other queue pairs are
// not touched: thousands of page faults would delay the step.
func (c *Context) takePosted() {
	for i := range c.parts {
		c.parts[i].readDoorbells()
	}
	for i, budget := 0, stepBytes; i < len(c.qps) && budget > 0; i++ {
		if q := c.qps[i]; q.turn.queued && q.hasPosted() {
			budget -= q.serveNow(budget)
		}
	}
}

// usable returns EBADF if c is closed or will be at the end of the step.
func (c *Context) usable() error {
	if c.closed || c.fatal.Load() != nil {
		return errorf(syscall.EBADF, "context is closed")
	}
	return nil
}

// breach schedules c to be closed because its client broke the rules of a ring. It may be called
// while a queue pair is being processed; the engine closes c at the end of the step.
func (c *Context) breach(format string, a ...any) {
	c.kill(&Error{Errno: syscall.EPROTO, Text: fmt.Sprintf(format, a...)})
}

// kill schedules c to be closed for a reason, unless it is closed or has another one.
func (c *Context) kill(reason *Error) {
	if c.closed || !c.fatal.CompareAndSwap(nil, reason) {
		return
	}
	e := c.device.engine
	c.device.onControl(func() { e.breached, e.unusual = append(e.breached, c), true })
}

// makeParts makes the parts of the slices.
func (c *Context) makeParts() {
	c.parts = c.first[:]
	if n := len(c.device.slices); n > 1 {
		c.parts = make([]contextPart, n)
	}
	for i, s := range c.device.slices {
		p := &c.parts[i]
		p.ctx, p.device, p.client.Owner, p.schedule.place.of = c, s, p, p
		p.nextDoorbell = i * doorbellsOfLine
	}
}

// clients returns the owners of the context's memory, by the number of the slice.
func (c *Context) clients() (l []*mrtable.Client) {
	for i := range c.parts {
		l = append(l, &c.parts[i].client)
	}
	return l
}

// chargeRing counts n bytes of ring memory against the context's limit.
func (c *Context) chargeRing(n int) error {
	if c.limits.RingBytes > 0 && c.ringBytes+uint64(n) > c.limits.RingBytes {
		return errorf(syscall.ENOMEM, "context has %d bytes of rings: %d more exceed its limit of %d",
			c.ringBytes, n, c.limits.RingBytes)
	}
	c.ringBytes += uint64(n)
	return nil
}

func (c *Context) releaseRing(n int) { c.ringBytes -= uint64(n) }

// remove deletes the item from a list. It does not keep the order.
func remove[T comparable](list []T, item T) []T {
	for i := len(list) - 1; i >= 0; i-- { // from the end: contexts are closed in that order
		if list[i] == item {
			list[i] = list[len(list)-1]
			var zero T
			list[len(list)-1] = zero
			return list[:len(list)-1]
		}
	}
	return list
}
