package nic

import (
	"syscall"

	"softroce/internal/ib"
	"softroce/mrtable"
)

// A DM is device memory: bytes of the NIC, which no program can map. Work requests and peers reach them
// through memory regions, programs by copying.
type DM struct {
	ctx   *Context
	mem   []byte
	users int // MRs
}

// Length returns the size in bytes.
func (m *DM) Length() uint64 { return uint64(len(m.mem)) }

// Device memory is taken in units of dmUnit bytes, so that many small pieces cost no more than they count for.
const dmUnit = 64

func dmSize(length uint64) uint64 { return (length + dmUnit - 1) &^ (dmUnit - 1) }

// maxDMAlign is the largest log_align_req. An address of device memory is the distance from its first byte, so nothing
// but atomics can tell how that is aligned: to a multiple of 8, which is all that they need.
const maxDMAlign = 12

// MaxDM returns how many bytes of device memory the context may have: max_dm_size.
func (c *Context) MaxDM() uint64 {
	most := c.device.limits.MaxDM
	if c.limits.DeviceMemory > 0 {
		most = min(most, c.limits.DeviceMemory)
	}
	return most &^ (dmUnit - 1)
}

// AllocDM allocates device memory, which is zero at first. logAlign is what its address has to be a multiple
// of, as a power of two. Errors are EINVAL, and ENOMEM where the device or the context has not got as much.
func (c *Context) AllocDM(length uint64, logAlign uint32) (*DM, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	d := c.device
	switch {
	case length == 0:
		return nil, errorf(syscall.EINVAL, "the length is 0")
	case logAlign > maxDMAlign:
		return nil, errorf(syscall.EINVAL, "alignment to 2^%d bytes, of 2^%d at most", logAlign, maxDMAlign)
	case length > c.MaxDM():
		return nil, errorf(syscall.ENOMEM, "%d bytes of device memory, of %d at most", length, c.MaxDM())
	}
	size := dmSize(length)
	if d.deviceMemory+size > d.limits.MaxDM || c.deviceMemory+size > c.MaxDM() {
		return nil, errorf(syscall.ENOMEM, "%d bytes of device memory, and %d of the device's %d are in use, %d of the context's %d",
			length, d.deviceMemory, d.limits.MaxDM, c.deviceMemory, c.MaxDM())
	}
	m := &DM{ctx: c, mem: NewPage(int(length))}
	c.dms = append(c.dms, m)
	c.deviceMemory += size
	d.deviceMemory += size
	return m, nil
}

// FreeDM frees device memory; EBUSY while an MR is of it.
func (c *Context) FreeDM(m *DM) error {
	if m == nil || m.ctx != c {
		return errorf(syscall.EINVAL, "no DM of this context")
	}
	if m.users > 0 {
		return errorf(syscall.EBUSY, "DM is in use by %d MRs", m.users)
	}
	m.remove()
	return nil
}

func (m *DM) remove() {
	c := m.ctx
	m.ctx = nil
	c.dms = remove(c.dms, m)
	c.deviceMemory -= dmSize(m.Length())
	c.device.deviceMemory -= dmSize(m.Length())
}

// CopyToDM stores p at off: ibv_memcpy_to_dm. Both off and the length are multiples of 4, as with
// hardware that has such memory; what lies outside is EINVAL.
func (c *Context) CopyToDM(m *DM, off uint64, p []byte) error {
	b, err := c.partOfDM(m, off, uint64(len(p)))
	copy(b, p)
	return err
}

// CopyFromDM fills p with what lies at off: ibv_memcpy_from_dm. The rules are those of CopyToDM.
func (c *Context) CopyFromDM(m *DM, off uint64, p []byte) error {
	b, err := c.partOfDM(m, off, uint64(len(p)))
	copy(p, b)
	return err
}

func (c *Context) partOfDM(m *DM, off, n uint64) ([]byte, error) {
	if m == nil || m.ctx != c {
		return nil, errorf(syscall.EINVAL, "no DM of this context")
	}
	if off > m.Length() || n > m.Length()-off {
		return nil, errorf(syscall.EINVAL, "%d bytes from %d on are not inside the %d of the DM", n, off, m.Length())
	}
	if off%4 != 0 || n%4 != 0 {
		return nil, errorf(syscall.EINVAL, "%d bytes from %d on: both must be multiples of 4", n, off)
	}
	return m.mem[off : off+n], nil
}

// RegDM registers a part of device memory, addressed from 0 on: access must have ZeroBased. A
// region of no bytes is one, too. Errors are those of RegMR.
func (c *Context) RegDM(p *PD, m *DM, off, length uint64, access ib.Access) (*MR, error) {
	if m == nil || m.ctx != c {
		return nil, errorf(syscall.EINVAL, "no DM of this context")
	}
	if access&ib.AccessZeroBased == 0 || access&(ib.AccessOnDemand|ib.AccessHugeTLB) != 0 {
		return nil, errorf(syscall.EINVAL, "device memory is registered zero-based, and has no pages: access %v", access)
	}
	if off > m.Length() || length > m.Length()-off {
		return nil, errorf(syscall.EINVAL, "%d bytes from %d on are not inside the %d of the DM", length, off, m.Length())
	}
	// The garbage collector keeps the bytes for as long as a frame refers to them.
	r, err := c.RegMR(p, mrtable.HeapMemory(m.mem[off:off+length]), 0, length, access)
	if err != nil {
		return nil, err
	}
	r.dm = m
	m.users++
	return r, nil
}

// leaveDM ends an MR's use of device memory.
func (m *MR) leaveDM() {
	if m.dm != nil {
		m.dm.users--
		m.dm = nil
	}
}

// A DMInfo is device memory.
type DMInfo struct {
	Owner
	Length uint64 `json:"length"`
	Users  int    `json:"users"` // MRs
}
