package nic

import (
	"slices"
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
	PID        int       // of the client, as shown by Snapshot
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
	device *Device
	opt    ContextOptions
	limits ContextLimits
	events EventSink

	doorbells     []*QP // by doorbell number
	freeDoorbells []int
	count         objects
	registered    uint64 // bytes of memory regions
	ringBytes     uint64

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

	schedule schedule
	client   mrtable.Client // owns the memory of its regions
	hold     *hold          // not nil while that memory takes long

	fatal  error // why the engine will close the context at the end of the step
	closed bool
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
	c := &Context{device: d, opt: o, limits: o.Limits, events: o.Events, ahs: map[uint32]*AH{}}
	c.client.Owner = c
	if c.limits == (ContextLimits{}) {
		c.limits = d.limits.Context
	}
	c.schedule.place.of = c
	if err := d.engine.watchDoorbell(c); err != nil {
		return nil, err
	}
	d.contexts = append(d.contexts, c)
	return c, nil
}

// Closed reports whether c was closed, by its owner or by the engine. The verbs of a closed context
// return EBADF.
func (c *Context) Closed() bool { return c.closed }

// Close destroys all objects of c, in order of dependency.
func (c *Context) Close() {
	if c.closed {
		return
	}
	c.takePosted()
	c.device.engine.copyPayload()
	c.events = nil // no events for a client that is gone
	for len(c.mws) > 0 {
		c.mws[len(c.mws)-1].remove()
	}
	for len(c.qps) > 0 {
		c.qps[len(c.qps)-1].remove()
	}
	for len(c.srqs) > 0 {
		c.srqs[len(c.srqs)-1].remove()
	}
	for _, a := range c.ahs {
		a.remove()
	}
	for len(c.cqs) > 0 {
		c.cqs[len(c.cqs)-1].remove()
	}
	for len(c.xrcds) > 0 {
		c.xrcds[len(c.xrcds)-1].remove()
	}
	for len(c.mrs) > 0 {
		c.mrs[len(c.mrs)-1].remove()
	}
	for len(c.dms) > 0 {
		c.dms[len(c.dms)-1].remove()
	}
	for len(c.pds) > 0 {
		c.pds[len(c.pds)-1].remove()
	}
	c.closed = true
	d := c.device
	d.engine.unwatchDoorbell(c)
	d.tx.remove(c)
	d.contexts = slices.DeleteFunc(d.contexts, func(o *Context) bool { return o == c })
}

// takePosted transmits what a client that is leaving has posted before, as much as a step transmits
// at most: a program may end right after it has posted its last message.
func (c *Context) takePosted() {
	for i, budget := 0, stepBytes; i < len(c.qps) && budget > 0; i++ {
		if q := c.qps[i]; q.hasPosted() {
			budget -= q.serveNow(budget)
		}
	}
}

// usable returns EBADF if c is closed or will be at the end of the step.
func (c *Context) usable() error {
	if c.closed || c.fatal != nil {
		return errorf(syscall.EBADF, "context is closed")
	}
	return nil
}

// breach schedules c to be closed because its client broke the rules of a ring. It may be called
// while a queue pair is being processed; the engine closes c at the end of the step.
func (c *Context) breach(format string, a ...any) {
	if c.fatal == nil && !c.closed {
		c.fatal = errorf(syscall.EPROTO, format, a...)
		c.device.engine.breached = append(c.device.engine.breached, c)
	}
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
	if i := slices.Index(list, item); i >= 0 {
		list[i] = list[len(list)-1]
		var zero T
		list[len(list)-1] = zero
		list = list[:len(list)-1]
	}
	return list
}
