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

// regMR looks up the PD when it commits: the client may destroy it in the meantime.
func (c *conn) regMR(v *abi.RegMRRequest, p *control.Packet) (prepared, error) {
	if v.Memory == abi.MemoryDevice {
		return prepared{commit: func() (reply, error) { return c.regDM(v) }}, nil
	}
	mem, kind, err := c.clientMemory(v, p)
	if err != nil {
		return prepared{}, err
	}
	return prepared{
		commit: func() (reply, error) {
			pd, err := lookUp[*nic.PD](&c.objects, v.PD)
			if err != nil {
				return reply{}, err
			}
			var m *nic.MR
			c.device.engine.Do(func() {
				m, err = c.nic.RegMR(pd, mem, v.IOVA, v.Length, ib.Access(v.Access))
				describeMemory(m, kind, v)
			})
			if err != nil {
				return reply{}, err
			}
			return c.mrReply(m, kind), nil
		},
		abandon: func() { mem.Close() },
	}, nil
}

// mrReply adds a new MR to the client's objects and describes it.
func (c *conn) mrReply(m *nic.MR, kind uint32) reply {
	return reply{body: []any{abi.RegMRReply{Handle: c.objects.add(m), LKey: m.LKey(), RKey: m.RKey(), Memory: kind}}}
}

// reregMR changes an MR, which keeps its handle and keys.
func (c *conn) reregMR(v *abi.ReregMRRequest, p *control.Packet) (prepared, error) {
	if v.MR.Memory == abi.MemoryDevice || v.MR.Memory == abi.MemoryDMABuf {
		return prepared{}, errorf(syscall.EOPNOTSUPP, "device memory and DMA buffers cannot be reregistered")
	}
	mem, kind, err := c.clientMemory(&v.MR, p)
	if err != nil {
		return prepared{}, err
	}
	return prepared{
		commit: func() (reply, error) {
			m, err := lookUp[*nic.MR](&c.objects, v.Handle)
			if err != nil {
				return reply{}, err
			}
			pd, err := lookUp[*nic.PD](&c.objects, v.MR.PD)
			if err != nil {
				return reply{}, err
			}
			r := abi.RegMRReply{Handle: v.Handle, Memory: kind}
			c.device.engine.Do(func() {
				err = c.nic.ReregMR(m, pd, mem, v.MR.IOVA, v.MR.Length, ib.Access(v.MR.Access))
				r.LKey, r.RKey = m.LKey(), m.RKey()
				if err == nil {
					describeMemory(m, kind, &v.MR)
				}
			})
			if err != nil {
				return reply{}, err
			}
			return reply{body: []any{r}}, nil
		},
		abandon: func() { mem.Close() },
	}, nil
}

// backingNames are the names of the kinds of memory in snapshots, and unsharedNames those of the
// reasons of a client.
var (
	backingNames  = [...]string{"process", "mapped", "self", "dma-buf", "device"}
	unsharedNames = [...]string{"", "disabled", "threads", "kind", "flags", "kernel", "limit", "refused"}
)

// describeMemory says in snapshots how the memory of m, unless that is nil, is accessed. The reason
// is what the client says, unless it is the daemon that did not map the memory.
func describeMemory(m *nic.MR, kind uint32, requested *abi.RegMRRequest) {
	if m == nil {
		return
	}
	unshared, why := requested.Unshared, ""
	if requested.Memory == abi.MemoryMapped {
		unshared = abi.UnsharedRefused
	}
	if kind != abi.MemoryMapped && unshared < uint32(len(unsharedNames)) {
		why = unsharedNames[unshared]
	}
	m.DescribeMemory(backingNames[kind], why)
}

// queryMR returns the keys of an MR, for a client that imported its handle.
func (c *conn) queryMR(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	m, err := lookUp[*nic.MR](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	var r abi.QueryMRReply
	c.device.engine.Do(func() {
		region := m.Region()
		r = abi.QueryMRReply{LKey: m.LKey(), RKey: m.RKey(), IOVA: region.IOVA, Length: region.Length, Access: uint32(region.Access)}
	})
	return reply{body: []any{r}}, nil
}

// clientMemory chooses the access to the memory of a registration: a mapping if it is safe, or else
// the client's address space.
func (c *conn) clientMemory(v *abi.RegMRRequest, p *control.Packet) (mrtable.Memory, uint32, error) {
	switch {
	case v.Length > 0:
	case v.Memory == abi.MemoryDMABuf:
		return nil, 0, errorf(syscall.EINVAL, "a DMA buffer of 0 bytes")
	default:
		return mrtable.HeapMemory(nil), abi.MemoryMapped, nil // its keys are good for messages of 0 bytes
	}
	if max := c.server.config.Limits.Registered; v.Length > max {
		return nil, 0, errorf(syscall.ENOMEM, "registration of %d bytes: a client may register %d", v.Length, max)
	}
	access := ib.Access(v.Access)
	switch v.Memory {
	case abi.MemoryMapped:
		if len(p.FDs) != 1 {
			return nil, 0, errorf(syscall.EINVAL, "mapped memory requires a descriptor")
		}
		mem, err := c.mapSealedFD(p.FDs[0], v.Offset, v.Length, access)
		if err == nil || !errors.Is(err, mrtable.ErrNotSealed) {
			return mem, abi.MemoryMapped, err
		}
		if v.Address == 0 {
			return nil, 0, errorf(syscall.EINVAL, "the descriptor cannot be sealed against shrinking and holes, "+
				"and the request has no address in the client's mapping: %v", err)
		}
	case abi.MemoryProcess:
	case abi.MemorySelf:
		if len(p.FDs) != 1 {
			return nil, 0, errorf(syscall.EINVAL, "memory through /proc/self/mem requires a descriptor")
		}
		descriptor := amounts{descriptors: 1}
		if err := c.server.budget.take(c.peer.UID, descriptor); err != nil {
			return nil, 0, err
		}
		proc, err := mrtable.OpenProcessMem(p.FDs[0])
		if err != nil {
			c.server.budget.release(c.peer.UID, descriptor)
			return nil, 0, err
		}
		proc.Closed = func() { c.server.budget.release(c.peer.UID, descriptor) }
		defer proc.Close() // the memory keeps its own descriptor
		mem, err := proc.Memory(v.Address, v.Length, access)
		return mem, abi.MemorySelf, err
	case abi.MemoryDMABuf:
		mem, err := c.dmaBufMemory(v, p)
		return mem, abi.MemoryDMABuf, err
	default:
		return nil, 0, errorf(syscall.EINVAL, "unknown kind of memory %d", v.Memory)
	}
	proc, err := c.openProcess()
	if err != nil {
		return nil, 0, err
	}
	mem, err := proc.Memory(v.Address, v.Length, access)
	return mem, abi.MemoryProcess, err
}

// openProcess returns the client's process, which stays open until no request is prepared.
func (c *conn) openProcess() (*mrtable.Process, error) {
	c.processMu.Lock()
	defer c.processMu.Unlock()
	if c.process == nil {
		proc, err := mrtable.OpenProcess(c.peer.PID, c.peer.pidfd)
		if err != nil {
			return nil, err
		}
		c.process = proc
	}
	return c.process, nil
}

// mapSealedFD maps a descriptor. It seals it against shrinking if its owner has not.
func (c *conn) mapSealedFD(fd int, offset, length uint64, access ib.Access) (mrtable.Memory, error) {
	sealShrinking(fd)
	return c.files.Map(fd, offset, length, access)
}

// sealShrinking adds F_SEAL_SHRINK if it can: mrtable checks the result.
func sealShrinking(fd int) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil && seals&unix.F_SEAL_SHRINK == 0 {
		unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	}
}

// holdMemory keeps a descriptor mapped, which the daemon cannot map again after it has sealed it.
func (c *conn) holdMemory(_ *empty, p *control.Packet) (prepared, error) {
	if len(p.FDs) != 1 {
		return prepared{}, errorf(syscall.EINVAL, "holding memory requires a descriptor")
	}
	sealShrinking(p.FDs[0])
	mem, err := c.files.Hold(p.FDs[0])
	if err != nil {
		return prepared{}, err
	}
	return prepared{
		commit:  func() (reply, error) { return handleReply(c.objects.add(&heldMemory{mem})), nil },
		abandon: func() { mem.Close() },
	}, nil
}

func (c *conn) releaseMemory(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	h, err := lookUp[*heldMemory](&c.objects, v.Handle)
	if err != nil {
		return reply{}, err
	}
	c.objects.remove(v.Handle)
	return reply{}, h.mem.Close()
}

func (c *conn) deregMR(v *abi.HandleRequest, _ *control.Packet) (reply, error) {
	_, err := destroy(c, v.Handle, func(m *nic.MR) error { return c.nic.DeregMR(m) })
	return reply{}, err
}

// dmaBufAccess is the access flags that ibv_reg_dmabuf_mr allows.
const dmaBufAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | ib.AccessRelaxedOrdering

// dmaBufMemory returns the access to a DMA buffer. A file in its place that its owner has sealed
// against shrinking and holes is mapped like other shared memory. Any other can lose its pages at
// any time, and is accessed through the kernel.
func (c *conn) dmaBufMemory(v *abi.RegMRRequest, p *control.Packet) (mrtable.Memory, error) {
	const inPage = 4095
	access := ib.Access(v.Access)
	switch {
	case len(p.FDs) != 1:
		return nil, errorf(syscall.EINVAL, "a DMA buffer requires a descriptor")
	case access&^dmaBufAccess != 0:
		return nil, errorf(syscall.EINVAL, "access flags %v: a DMA buffer allows %v", access, dmaBufAccess)
	case (v.Offset^v.IOVA)&inPage != 0:
		return nil, errorf(syscall.EINVAL, "the offset %#x and the IOVA %#x differ in their place within a page", v.Offset, v.IOVA)
	}
	seals, err := unix.FcntlInt(uintptr(p.FDs[0]), unix.F_GET_SEALS, 0)
	if err == nil && seals&unix.F_SEAL_SHRINK != 0 && seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		if mem, err := c.files.Map(p.FDs[0], v.Offset, v.Length, access); !errors.Is(err, mrtable.ErrNotSealed) {
			return mem, err
		}
	}
	return c.files.MapGuarded(c.server.self, p.FDs[0], v.Offset, v.Length, access)
}
