package attach

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
)

func (c *conn) allocDM(v *abi.AllocDMRequest, _ *control.Packet) (answer, error) {
	var m *nic.DM
	var err error
	c.device.engine.Do(func() { m, err = c.nic.AllocDM(v.Length, v.LogAlign) })
	if err != nil {
		return answer{}, err
	}
	return handleReply(c.objects.add(m)), nil
}

func (c *conn) freeDM(v *abi.HandleRequest, _ *control.Packet) (answer, error) {
	_, err := destroy(c, v.Handle, func(m *nic.DM) error { return c.nic.FreeDM(m) })
	return answer{}, err
}

// queryDM is for those who know the handle alone.
func (c *conn) queryDM(v *abi.HandleRequest, _ *control.Packet) (answer, error) {
	m, err := lookUp[*nic.DM](&c.objects, v.Handle)
	if err != nil {
		return answer{}, err
	}
	return answer{body: []any{abi.QueryDMReply{Length: m.Length()}}}, nil
}

func (c *conn) copyToDM(v *abi.CopyDMRequest, data []byte) (answer, error) {
	m, err := lookUp[*nic.DM](&c.objects, v.Handle)
	if err != nil {
		return answer{}, err
	}
	if uint64(len(data)) != uint64(v.Length) {
		return answer{}, refuse(syscall.EINVAL, "%d bytes came, the request says %d", len(data), v.Length)
	}
	c.device.engine.Do(func() { err = c.nic.CopyToDM(m, v.Offset, data) })
	return answer{}, err
}

func (c *conn) copyFromDM(v *abi.CopyDMRequest, _ *control.Packet) (answer, error) {
	m, err := lookUp[*nic.DM](&c.objects, v.Handle)
	if err != nil {
		return answer{}, err
	}
	if v.Length > abi.DMCopyMax {
		return answer{}, refuse(syscall.EINVAL, "%d bytes, of %d at most", v.Length, abi.DMCopyMax)
	}
	data := make([]byte, v.Length)
	c.device.engine.Do(func() { err = c.nic.CopyFromDM(m, v.Offset, data) })
	if err != nil {
		return answer{}, err
	}
	return answer{body: []any{data}}, nil
}

// regDM registers a part of device memory.
func (c *conn) regDM(pd *nic.PD, v *abi.RegMRRequest) (*nic.MR, error) {
	if v.Address > 1<<32-1 {
		return nil, refuse(syscall.EINVAL, "%#x is no handle", v.Address)
	}
	dm, err := lookUp[*nic.DM](&c.objects, uint32(v.Address))
	if err != nil {
		return nil, err
	}
	var m *nic.MR
	c.device.engine.Do(func() { m, err = c.nic.RegDM(pd, dm, v.Offset, v.Length, ib.Access(v.Access)) })
	return m, err
}

// dmaBufAccess are the flags of ibv_reg_dmabuf_mr.
const dmaBufAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | ib.AccessRelaxedOrdering

// dmaBuf is the way to the memory of a DMA buffer. What its client has sealed against shrinking is mapped as other
// shared memory is; the rest can lose its pages at any time, and is reached through the kernel.
func (c *conn) dmaBuf(v *abi.RegMRRequest, p *control.Packet) (mrtable.Memory, error) {
	const inPage = 4095
	access := ib.Access(v.Access)
	switch {
	case len(p.FDs) != 1:
		return nil, refuse(syscall.EINVAL, "a DMA buffer comes with its descriptor")
	case access&^dmaBufAccess != 0:
		return nil, refuse(syscall.EINVAL, "access %v of a DMA buffer", access)
	case (v.Offset^v.IOVA)&inPage != 0:
		return nil, refuse(syscall.EINVAL, "the offset %#x and the address %#x lie at different places in a page", v.Offset, v.IOVA)
	}
	seals, err := unix.FcntlInt(uintptr(p.FDs[0]), unix.F_GET_SEALS, 0)
	if err == nil && seals&unix.F_SEAL_SHRINK != 0 {
		if mem, err := mrtable.MapFD(p.FDs[0], v.Offset, v.Length, access); !errors.Is(err, mrtable.ErrNotSealed) {
			return mem, err
		}
	}
	return c.server.self.MapGuarded(p.FDs[0], v.Offset, v.Length, access)
}
