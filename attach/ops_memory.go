package attach

import (
	"context"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
)

func (c *conn) allocPD(*empty, *control.Packet) (answer, error) {
	var p *nic.PD
	var err error
	c.device.engine.Do(func() { p, err = c.nic.AllocPD() })
	if err != nil {
		return answer{}, err
	}
	return handleReply(c.objects.add(p)), nil
}

// destroy ends an object through f, which runs on the engine, and forgets its handle.
func destroy[T any](c *conn, handle uint32, f func(T) error) (o T, err error) {
	if o, err = lookUp[T](&c.objects, handle); err != nil {
		return o, err
	}
	c.device.engine.Do(func() { err = f(o) })
	if err == nil {
		delete(c.objects.m, handle)
	}
	return o, err
}

func (c *conn) deallocPD(v *abi.HandleRequest, _ *control.Packet) (answer, error) {
	_, err := destroy(c, v.Handle, func(p *nic.PD) error { return c.nic.DeallocPD(p) })
	return answer{}, err
}

func (c *conn) regMR(v *abi.RegMRRequest, p *control.Packet) (answer, error) {
	pd, err := lookUp[*nic.PD](&c.objects, v.PD)
	if err != nil {
		return answer{}, err
	}
	var m *nic.MR
	kind := v.Memory
	if kind == abi.MemoryDevice {
		m, err = c.regDM(pd, v)
	} else {
		m, kind, err = c.regMemory(pd, v, p)
	}
	if err != nil {
		return answer{}, err
	}
	return answer{body: []any{abi.RegMRReply{Handle: c.objects.add(m), LKey: m.LKey(), RKey: m.RKey(), Memory: kind}}}, nil
}

// regMemory registers memory that is not the device's, and tells how it is reached.
func (c *conn) regMemory(pd *nic.PD, v *abi.RegMRRequest, p *control.Packet) (*nic.MR, uint32, error) {
	mem, kind, err := c.memory(v, p)
	if err != nil {
		return nil, 0, err
	}
	var m *nic.MR
	c.device.engine.Do(func() { m, err = c.nic.RegMR(pd, mem, v.IOVA, v.Length, ib.Access(v.Access)) })
	if err != nil {
		mem.Close()
		return nil, 0, err
	}
	return m, kind, nil
}

// reregMR makes an MR another one with the same handle and keys.
func (c *conn) reregMR(v *abi.ReregMRRequest, p *control.Packet) (answer, error) {
	m, err := lookUp[*nic.MR](&c.objects, v.Handle)
	if err != nil {
		return answer{}, err
	}
	pd, err := lookUp[*nic.PD](&c.objects, v.MR.PD)
	if err != nil {
		return answer{}, err
	}
	if v.MR.Memory == abi.MemoryDevice || v.MR.Memory == abi.MemoryDMABuf {
		return answer{}, refuse(syscall.EOPNOTSUPP, "device memory and DMA buffers cannot be registered anew")
	}
	mem, kind, err := c.memory(&v.MR, p)
	if err != nil {
		return answer{}, err
	}
	r := abi.RegMRReply{Handle: v.Handle, Memory: kind}
	c.device.engine.Do(func() {
		err = c.nic.ReregMR(m, pd, mem, v.MR.IOVA, v.MR.Length, ib.Access(v.MR.Access))
		r.LKey, r.RKey = m.LKey(), m.RKey()
	})
	if err != nil {
		mem.Close()
		return answer{}, err
	}
	return answer{body: []any{r}}, nil
}

// queryMR tells the keys of an MR, for those who know its handle alone.
func (c *conn) queryMR(v *abi.HandleRequest, _ *control.Packet) (answer, error) {
	m, err := lookUp[*nic.MR](&c.objects, v.Handle)
	if err != nil {
		return answer{}, err
	}
	var r abi.QueryMRReply
	c.device.engine.Do(func() {
		region := m.Region()
		r = abi.QueryMRReply{LKey: m.LKey(), RKey: m.RKey(), IOVA: region.IOVA, Length: region.Length, Access: uint32(region.Access)}
	})
	return answer{body: []any{r}}, nil
}

// memory finds the way to the memory of a registration: mapped, if that is safe, else
// through the client's process.
func (c *conn) memory(v *abi.RegMRRequest, p *control.Packet) (mrtable.Memory, uint32, error) {
	if v.Length == 0 {
		return nil, 0, refuse(syscall.EINVAL, "the length is 0")
	}
	if max := c.server.config.Limits.Registered; v.Length > max {
		return nil, 0, refuse(syscall.ENOMEM, "%d bytes are more than the %d that a client may register", v.Length, max)
	}
	access := ib.Access(v.Access)
	switch v.Memory {
	case abi.MemoryMapped:
		if len(p.FDs) != 1 {
			return nil, 0, refuse(syscall.EINVAL, "memory to be mapped comes with its descriptor")
		}
		mem, err := mapped(p.FDs[0], v.Offset, v.Length, access)
		if err == nil || !errors.Is(err, mrtable.ErrNotSealed) {
			return mem, abi.MemoryMapped, err
		}
		if v.Address == 0 {
			return nil, 0, refuse(syscall.EINVAL, "the descriptor cannot be sealed against shrinking, "+
				"and there is no address in the client's own mapping: %v", err)
		}
	case abi.MemoryProcess:
	case abi.MemorySelf:
		if len(p.FDs) != 1 {
			return nil, 0, refuse(syscall.EINVAL, "memory through /proc/self/mem comes with its descriptor")
		}
		proc, err := mrtable.OpenProcessMem(p.FDs[0])
		if err != nil {
			return nil, 0, err
		}
		defer proc.Close() // the memory keeps what it needs
		mem, err := proc.Memory(v.Address, v.Length, access)
		return mem, abi.MemorySelf, err
	case abi.MemoryDMABuf:
		mem, err := c.dmaBuf(v, p)
		return mem, abi.MemoryDMABuf, err
	default:
		return nil, 0, refuse(syscall.EINVAL, "kind of memory %d", v.Memory)
	}
	if c.process == nil {
		proc, err := mrtable.OpenProcess(c.peer.PID, c.peer.pidfd)
		if err != nil {
			return nil, 0, err
		}
		c.process = proc
	}
	mem, err := c.process.Memory(v.Address, v.Length, access)
	return mem, abi.MemoryProcess, err
}

// mapped maps a descriptor, which it first seals against shrinking if its owner has not.
func mapped(fd int, offset, length uint64, access ib.Access) (mrtable.Memory, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil && seals&unix.F_SEAL_SHRINK == 0 {
		unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK) // MapFD sees whether it worked
	}
	return mrtable.MapFD(fd, offset, length, access)
}

func (c *conn) deregMR(v *abi.HandleRequest, _ *control.Packet) (answer, error) {
	_, err := destroy(c, v.Handle, func(m *nic.MR) error { return c.nic.DeregMR(m) })
	return answer{}, err
}

// flowLabelMask is what an IPv6 header has room for. Drivers take as much of a flow label and leave the rest: UCX asks for 0xffffffff.
const flowLabelMask = 1<<20 - 1

func vector(a *abi.AHAttr) nic.AddressVector {
	return nic.AddressVector{
		DGID: a.DGID, SGIDIndex: int(a.SGIDIndex), Port: int(a.PortNum), HopLimit: a.HopLimit,
		TClass: a.TrafficClass, FlowLabel: a.FlowLabel & flowLabelMask, SL: a.SL, DLID: a.DLID,
	}
}

// resolve finds the neighbour of an address vector, which may take seconds.
func (c *conn) resolve(av *nic.AddressVector) (err error) {
	ctx, cancel := context.WithTimeout(c.ctx, resolveTimeout)
	defer cancel()
	av.Path, err = c.device.ResolvePath(ctx, av)
	return err
}

func (c *conn) createAH(v *abi.CreateAHRequest) (func() (answer, error), error) {
	av := vector(&v.AH)
	if err := c.resolve(&av); err != nil {
		return nil, err
	}
	return func() (answer, error) {
		pd, err := lookUp[*nic.PD](&c.objects, v.PD)
		if err != nil {
			return answer{}, err
		}
		// Send work requests name the address handle by the number that the client has.
		handle := c.objects.next()
		var ah *nic.AH
		c.device.engine.Do(func() { ah, err = c.nic.CreateAH(pd, handle, av) })
		if err != nil {
			return answer{}, err
		}
		c.objects.m[handle] = ah
		return handleReply(handle), nil
	}, nil
}

func (c *conn) destroyAH(v *abi.HandleRequest, _ *control.Packet) (answer, error) {
	_, err := destroy(c, v.Handle, func(a *nic.AH) error { return c.nic.DestroyAH(a) })
	return answer{}, err
}
