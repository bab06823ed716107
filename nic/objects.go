package nic

import (
	"errors"
	"syscall"

	"softroce/internal/ib"
	"softroce/mrtable"
)

// A PD is a protection domain.
type PD struct {
	ctx   *Context
	id    uint32
	pd    *mrtable.PD
	users int // MRs, QPs, SRQs and AHs
}

// AllocPD allocates a protection domain; ENOMEM if a limit is reached.
func (c *Context) AllocPD() (*PD, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	d := c.device
	if err := c.checkLimit(kindPD); err != nil {
		return nil, err
	}
	p := &PD{ctx: c, id: d.newID(), pd: d.table.AllocPD()}
	if len(c.parts) == 1 {
		p.pd.Client = &c.parts[0].client
	} else {
		p.pd.Clients = c.clients()
	}
	c.pds = append(c.pds, p)
	c.add(kindPD, 1)
	return p, nil
}

// DeallocPD deallocates p; EBUSY while an object belongs to it.
func (c *Context) DeallocPD(p *PD) error {
	if p == nil || p.ctx != c {
		return errorf(syscall.ENOENT, "the PD is not of this context")
	}
	if p.users > 0 {
		return errorf(syscall.EBUSY, "PD is in use by %d objects", p.users)
	}
	p.remove()
	return nil
}

func (p *PD) remove() {
	c := p.ctx
	p.ctx = nil
	c.device.table.DeallocPD(p.pd)
	c.pds = remove(c.pds, p)
	c.add(kindPD, -1)
}

// own returns ENOENT if p is not a PD of c, and EINVAL if there is none.
func (c *Context) own(p *PD) error {
	if err := c.usable(); err != nil {
		return err
	}
	if p == nil {
		return errorf(syscall.EINVAL, "the PD is missing")
	}
	if p.ctx != c {
		return errorf(syscall.ENOENT, "the PD is not of this context")
	}
	return nil
}

// An MR is a memory region.
type MR struct {
	ctx    *Context
	id     uint32
	pd     *PD
	region *mrtable.Region
	dm     *DM // the device memory that it is a range of, or nil

	backing, unshared string // for snapshots, see DescribeMemory
}

// DescribeMemory sets what a snapshot says about the memory: how it is accessed, and why the client
// does not share it, or "".
func (m *MR) DescribeMemory(backing, unshared string) { m.backing, m.unshared = backing, unshared }

// LKey returns the local key.
func (m *MR) LKey() uint32 { return m.region.LKey() }

// RKey returns the remote key.
func (m *MR) RKey() uint32 { return m.region.RKey() }

// Region returns the region in the table of keys.
func (m *MR) Region() *mrtable.Region { return m.region }

// RegMR registers memory. Work requests and peers address its first byte as iova. The region owns
// mem and closes it; after an error the caller still owns it. Errors are EINVAL, ENOMEM and EFAULT.
func (c *Context) RegMR(p *PD, mem mrtable.Memory, iova, length uint64, access ib.Access) (*MR, error) {
	if err := c.own(p); err != nil {
		return nil, err
	}
	d := c.device
	if err := d.checkAccess(access); err != nil {
		return nil, err
	}
	if err := c.checkLimit(kindMR); err != nil {
		return nil, err
	}
	if err := c.mayRegister(c.registered, length); err != nil {
		return nil, err
	}
	r, err := d.table.Register(p.pd, mem, iova, length, access)
	if err != nil {
		return nil, registration(err)
	}
	m := &MR{ctx: c, id: d.newID(), pd: p, region: r}
	p.users++
	c.mrs = append(c.mrs, m)
	c.registered += length
	c.add(kindMR, 1)
	return m, nil
}

// ReregMR replaces what m refers to and keeps its keys: ibv_rereg_mr. After an error m is unchanged
// and the caller still owns mem. Errors are those of RegMR, and EBUSY while a memory window is
// bound to m.
func (c *Context) ReregMR(m *MR, p *PD, mem mrtable.Memory, iova, length uint64, access ib.Access) error {
	if m == nil || m.ctx != c {
		return errorf(syscall.ENOENT, "the MR is not of this context")
	}
	if err := c.own(p); err != nil {
		return err
	}
	if err := c.device.checkAccess(access); err != nil {
		return err
	}
	others := c.registered - m.region.Length
	if err := c.mayRegister(others, length); err != nil {
		return err
	}
	c.device.engine.copyPayload()
	old := m.region
	r, err := c.device.table.Reregister(old, p.pd, mem, iova, length, access)
	if errors.Is(err, mrtable.ErrBusy) {
		return errorf(syscall.EBUSY, "memory windows are bound to the MR")
	}
	if err != nil {
		return registration(err)
	}
	c.device.engine.together(func(e *Engine) { e.revokeMemory(old) })
	m.leaveDM()
	m.pd.users--
	p.users++
	m.pd, m.region = p, r
	c.registered = others + length
	return nil
}

// mayRegister checks that a region of length bytes is within the device's limit, and together with
// the have bytes of its other regions within the context's limit of registered bytes.
func (c *Context) mayRegister(have, length uint64) error {
	if max := c.device.limits.MaxMRSize; length > max {
		return errorf(syscall.EINVAL, "registration of %d bytes: a region of %s has at most %d", length, c.device.name, max)
	}
	if max := c.limits.RegisteredBytes; max > 0 && (length > max || have > max-length) {
		return errorf(syscall.ENOMEM, "context has %d bytes registered: %d more exceed its limit of %d",
			have, length, max)
	}
	return nil
}

// registration converts an error of the table of keys.
func registration(err error) error {
	no := syscall.EINVAL
	errors.As(err, &no)
	return &Error{Errno: no, Text: err.Error()}
}

// DeregMR deregisters a region and invalidates its keys; EBUSY while a memory window is bound to
// it.
func (c *Context) DeregMR(m *MR) error {
	if m == nil || m.ctx != c {
		return errorf(syscall.ENOENT, "the MR is not of this context")
	}
	c.device.engine.copyPayload()
	if err := c.device.table.Deregister(m.region); err != nil {
		return errorf(syscall.EBUSY, "memory windows are bound to the MR")
	}
	m.remove()
	return nil
}

func (m *MR) remove() {
	c := m.ctx
	m.ctx = nil
	c.device.engine.together(func(e *Engine) { e.revokeMemory(m.region) })
	c.device.table.Deregister(m.region)
	m.leaveDM()
	m.pd.users--
	c.mrs = remove(c.mrs, m)
	c.registered -= m.region.Length
	c.add(kindMR, -1)
}
