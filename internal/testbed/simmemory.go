package testbed

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
)

// Memory of a simulated program. It is mapped instead of allocated on the heap, so that the NIC can
// access it as memory of another process, and so that it can be made inaccessible.

type simMR struct {
	mr      *nic.MR
	mem     []byte
	foreign bool
}

// Register implements NIC.
func (n *simNIC) Register(name string, o RegionOptions) (Region, error) {
	pd, err := n.pd(o.PD)
	if err != nil {
		return Region{}, err
	}
	m := &simMR{foreign: n.foreign || o.Foreign}
	if of := n.mrs[o.Of]; of != nil {
		m.mem, m.foreign = of.mem, of.foreign
	} else if m.mem, err = n.mmap(o); err != nil {
		return Region{}, err
	}
	backing, err := n.backing(m, o.Access)
	if err != nil {
		return Region{}, err
	}
	if m.mr, err = n.client.Context.RegMR(pd, backing, n.nextVA, uint64(o.Size), o.Access); err != nil {
		return Region{}, errors.Join(err, backing.Close())
	}
	r := Region{Addr: n.nextVA, Size: o.Size, LKey: m.mr.LKey(), RKey: m.mr.RKey()}
	n.mrs[name] = m
	n.nextVA += (uint64(o.Size)/vaSpace + 1) * vaSpace
	return r, nil
}

// mmap maps new memory.
func (n *simNIC) mmap(o RegionOptions) ([]byte, error) {
	if o.Size == 0 {
		return []byte{}, nil
	}
	mem, err := unix.Mmap(-1, 0, o.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	n.mappings = append(n.mappings, mem)
	for i := range mem {
		mem[i] = o.Fill
	}
	return mem, nil
}

// backing returns memory in the form that the NIC registers.
func (n *simNIC) backing(m *simMR, a ib.Access) (_ mrtable.Memory, err error) {
	if !m.foreign || len(m.mem) == 0 {
		return mrtable.HeapMemory(m.mem), nil
	}
	if n.process == nil {
		if n.process, err = mrtable.OpenProcess(os.Getpid(), -1); err != nil {
			return nil, err
		}
	}
	return n.process.Memory(uint64(uintptr(unsafe.Pointer(&m.mem[0]))), uint64(len(m.mem)), a)
}

// Deregister implements NIC.
func (n *simNIC) Deregister(name string) error {
	m, ok := n.mrs[name]
	if !ok {
		return fmt.Errorf("no memory region %q", name)
	}
	return n.client.Context.DeregMR(m.mr)
}

// protect changes the protection of a region's memory.
func (m *simMR) protect(how int) error {
	if len(m.mem) == 0 {
		return nil
	}
	return unix.Mprotect(m.mem, how)
}

// Unmap implements HostileProgram. It makes the memory inaccessible to the program and to the NIC.
func (n *simNIC) Unmap(name string) error {
	m := n.mrs[name]
	if m == nil || !m.foreign {
		return fmt.Errorf("cannot unmap the memory of %s, which the NIC has mapped: register it as foreign", name)
	}
	return m.protect(unix.PROT_NONE)
}

// ReadMemory implements NIC. It makes memory accessible again after Unmap.
func (n *simNIC) ReadMemory(name string, off, size uint64) ([]byte, error) {
	m := n.mrs[name]
	if err := m.protect(unix.PROT_READ | unix.PROT_WRITE); err != nil {
		return nil, err
	}
	return m.mem[off:][:size], nil
}

// WriteMemory implements NIC.
func (n *simNIC) WriteMemory(name string, off uint64, data []byte) error {
	m := n.mrs[name]
	if err := m.protect(unix.PROT_READ | unix.PROT_WRITE); err != nil {
		return err
	}
	copy(m.mem[off:], data)
	return nil
}

// close releases the program's resources. Its NIC must be closed.
func (n *simNIC) close() (err error) {
	for _, m := range n.mappings {
		err = errors.Join(err, unix.Munmap(m))
	}
	if n.process != nil {
		err = errors.Join(err, n.process.Close())
	}
	return err
}
