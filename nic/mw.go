package nic

import (
	"syscall"

	"softroce/internal/ib"
	"softroce/mrtable"
)

var windowTypes = map[ib.MWType]mrtable.WindowType{ib.MWType1: mrtable.Type1, ib.MWType2: mrtable.Type2B}

// An MW is a memory window. Work requests bind it.
type MW struct {
	ctx    *Context
	id     uint32
	pd     *PD
	window *mrtable.Window
}

// RKey returns the current key. A bind changes its low 8 bits.
func (m *MW) RKey() uint32 { return m.window.RKey() }

// AllocMW allocates a memory window. Errors are EINVAL, ENOMEM and EOPNOTSUPP.
func (c *Context) AllocMW(p *PD, t ib.MWType) (*MW, error) {
	if err := c.own(p); err != nil {
		return nil, err
	}
	d := c.device
	if err := d.require(CapMemoryWindows, "memory windows"); err != nil {
		return nil, err
	}
	if t == ib.MWType2 {
		if err := d.require(CapMemoryWindows2B, "memory windows of type 2B"); err != nil {
			return nil, err
		}
	}
	if err := c.checkLimit(kindMW); err != nil {
		return nil, err
	}
	k, ok := windowTypes[t]
	if !ok {
		return nil, errorf(syscall.EINVAL, "memory window type %d: must be 1 or 2", t)
	}
	w, err := d.table.AllocWindow(p.pd, k)
	if err != nil {
		return nil, errorf(syscall.ENOMEM, "%v", err)
	}
	m := &MW{ctx: c, id: d.newID(), pd: p, window: w}
	p.users++
	c.mws = append(c.mws, m)
	c.add(kindMW, 1)
	return m, nil
}

// DeallocMW deallocates a memory window, bound or not.
func (c *Context) DeallocMW(m *MW) error {
	if m == nil || m.ctx != c {
		return errorf(syscall.ENOENT, "the MW is not of this context")
	}
	c.device.engine.copyPayload()
	m.remove()
	return nil
}

func (m *MW) remove() {
	c := m.ctx
	m.ctx = nil
	c.device.table.DeallocWindow(m.window)
	m.pd.users--
	c.mws = remove(c.mws, m)
	c.add(kindMW, -1)
}

// unbind invalidates the windows that are bound to q: its QPN may be reused.
func (q *QP) unbind() {
	for _, m := range q.ctx.mws {
		if m.window.QPN() == q.qpn {
			q.device.table.Invalidate(m.window.PD, q.qpn, m.window.RKey())
		}
	}
}
