package nic

import (
	"syscall"

	"softroce/internal/ib"
	"softroce/mrtable"
)

// A DM is device memory, which no program can map. Work requests and peers access it through memory
// regions, programs through copies.
type DM struct {
	ctx   *Context
	id    uint32
	mem   []byte
	users int // MRs
}

// Length returns the size in bytes.
func (m *DM) Length() uint64 { return uint64(len(m.mem)) }

// Device memory is allocated in units of dmUnit bytes, so that small allocations do not use much
// more memory than the limit counts.
const dmUnit = 64

func dmSize(length uint64) uint64 { return (length + dmUnit - 1) &^ (dmUnit - 1) }

// maxDMAlign is the largest log_align_req. Addresses of device memory are offsets from its first
// byte, so the alignment only matters to atomics. Those need a multiple of 8, which every
// allocation provides.
const maxDMAlign = 12

// MaxDM returns max_dm_size: how many bytes of device memory the context may have.
func (c *Context) MaxDM() uint64 {
	if !c.device.has(CapDeviceMemory) {
		return 0
	}
	most := c.device.limits.MaxDM
	if c.limits.DeviceMemory > 0 {
		most = min(most, c.limits.DeviceMemory)
	}
	return most &^ (dmUnit - 1)
}

// AllocDM allocates zeroed device memory whose address is a multiple of 2^logAlign. Errors are
// EINVAL, and ENOMEM if the limit of the device or the context is reached.
func (c *Context) AllocDM(length uint64, logAlign uint32) (*DM, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	d := c.device
	if err := d.require(CapDeviceMemory, "device memory"); err != nil {
		return nil, err
	}
	switch {
	case length == 0:
		return nil, errorf(syscall.EINVAL, "length of device memory is 0")
	case logAlign > maxDMAlign:
		return nil, errorf(syscall.EINVAL, "alignment of 2^%d bytes: at most 2^%d", logAlign, maxDMAlign)
	case length > c.MaxDM():
		return nil, errorf(syscall.ENOMEM, "%d bytes of device memory: at most %d", length, c.MaxDM())
	}
	size := dmSize(length)
	if d.deviceMemory+size > d.limits.MaxDM || c.deviceMemory+size > c.MaxDM() {
		return nil, errorf(syscall.ENOMEM, "%d bytes of device memory: %d of the device's %d and %d of the context's %d are in use",
			length, d.deviceMemory, d.limits.MaxDM, c.deviceMemory, c.MaxDM())
	}
	if free, have := d.limits.MaxDM-d.deviceMemory, c.user.deviceMemory; c.MaxDM() <= d.limits.MaxDM/2 && have+size > free-size {
		return nil, errorf(syscall.ENOMEM, "user %d has %d bytes of device memory and needs %d more; %d of the device's %d are free, "+
			"and no user may have more than remain free", c.opt.UID, have, size, free, d.limits.MaxDM)
	}
	m := &DM{ctx: c, id: d.newID(), mem: NewPage(int(length))}
	c.dms = append(c.dms, m)
	m.count(size)
	return m, nil
}

// FreeDM frees device memory; EBUSY while an MR refers to it.
func (c *Context) FreeDM(m *DM) error {
	if m == nil || m.ctx != c {
		return errorf(syscall.ENOENT, "the DM is not of this context")
	}
	if m.users > 0 {
		return errorf(syscall.EBUSY, "DM is in use by %d MRs", m.users)
	}
	m.remove()
	return nil
}

func (m *DM) remove() {
	m.count(-dmSize(m.Length()))
	m.ctx.dms = remove(m.ctx.dms, m)
	m.ctx = nil
}

// count adds bytes to what is in use, modulo 2^64.
func (m *DM) count(bytes uint64) {
	c := m.ctx
	c.deviceMemory += bytes
	c.user.deviceMemory += bytes
	c.device.deviceMemory += bytes
}

// CopyToDM copies p to offset off: ibv_memcpy_to_dm. off and len(p) must be multiples of 4, as
// hardware requires, and within the memory; otherwise EINVAL.
func (c *Context) CopyToDM(m *DM, off uint64, p []byte) error {
	b, err := c.partOfDM(m, off, uint64(len(p)))
	copy(b, p)
	return err
}

// CopyFromDM copies from offset off to p: ibv_memcpy_from_dm. The rules are those of CopyToDM.
func (c *Context) CopyFromDM(m *DM, off uint64, p []byte) error {
	b, err := c.partOfDM(m, off, uint64(len(p)))
	copy(p, b)
	return err
}

func (c *Context) partOfDM(m *DM, off, n uint64) ([]byte, error) {
	if m == nil || m.ctx != c {
		return nil, errorf(syscall.ENOENT, "the DM is not of this context")
	}
	if off > m.Length() || n > m.Length()-off {
		return nil, errorf(syscall.EINVAL, "%d bytes at offset %d are outside the DM of %d bytes", n, off, m.Length())
	}
	if off%4 != 0 || n%4 != 0 {
		return nil, errorf(syscall.EINVAL, "%d bytes at offset %d: both must be multiples of 4", n, off)
	}
	return m.mem[off : off+n], nil
}

// RegDM registers a range of device memory, addressed from 0: access must include
// ib.AccessZeroBased. The range may be empty. Errors are those of RegMR.
func (c *Context) RegDM(p *PD, m *DM, off, length uint64, access ib.Access) (*MR, error) {
	if m == nil || m.ctx != c {
		return nil, errorf(syscall.ENOENT, "the DM is not of this context")
	}
	if access&ib.AccessZeroBased == 0 || access&(ib.AccessOnDemand|ib.AccessHugeTLB) != 0 {
		return nil, errorf(syscall.EINVAL, "access %v: device memory needs zero_based, and allows neither on_demand nor hugetlb", access)
	}
	if off > m.Length() || length > m.Length()-off {
		return nil, errorf(syscall.EINVAL, "%d bytes at offset %d are outside the DM of %d bytes", length, off, m.Length())
	}
	// The garbage collector keeps the bytes as long as a frame refers to them.
	r, err := c.RegMR(p, mrtable.HeapMemory(m.mem[off:off+length]), 0, length, access)
	if err != nil {
		return nil, err
	}
	r.dm = m
	m.users++
	return r, nil
}

// leaveDM ends the use of device memory by an MR.
func (m *MR) leaveDM() {
	if m.dm != nil {
		m.dm.users--
		m.dm = nil
	}
}

// A DMInfo is device memory.
type DMInfo struct {
	Owner
	ID     uint32 `json:"dmn"`
	Length uint64 `json:"length"`
	Users  int    `json:"users"` // MRs
}
