package nic

import (
	"sync/atomic"
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

// A revocation is what the completion of a bind waits for if other slices serve peers too: the bind
// may have replaced a window of type 1, which they use in the step that they are in. Windows of
// type 2 are used by the queue pair that has bound them.
type revocation struct{ left atomic.Int32 }

func (r *revocation) done() bool { return r == nil || r.left.Load() == 0 }

// revoke makes the completions of q from now on wait until no slice uses a window that q has
// replaced.
func (q *QP) revoke() {
	d := q.device
	if len(d.slices) == 1 {
		return
	}
	c, r := q.ctx, &revocation{}
	r.left.Store(1)
	q.revocation = r
	done := func() {
		if r.left.Add(-1) == 0 {
			d.engine.Wake()
		}
	}
	d.onControl(func() {
		for _, s := range d.slices {
			if s == d {
				continue // its frames do not refer to the window any more: endReferences
			}
			s.engine.copyOwnPayload()
			if h := c.parts[s.number].hold; h != nil {
				r.left.Add(1)
				h.after = append(h.after, done)
			}
		}
		done()
	})
}

// unbind invalidates the windows that are bound to q: its QPN may be reused.
func (q *QP) unbind() {
	for _, m := range q.ctx.mws {
		if m.window.QPN() == q.qpn {
			q.device.table.Invalidate(m.window.PD, q.qpn, m.window.RKey())
		}
	}
}
