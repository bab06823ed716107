package mrtable

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// OpenSelf is the way to memory that this program maps itself, but must not touch: where a page can be
// missing, because a file was truncated or a device has no memory left, a load would be a
// SIGBUS. The kernel copies in its place, and says EFAULT. See Process.MapGuarded.
func OpenSelf() *Process {
	return &Process{pid: os.Getpid(), pidfd: -1, mem: -1, own: true, refs: 1}
}

// MapGuarded maps length bytes of a descriptor from off on, writable if a has LocalWrite, for a Process of OpenSelf. The
// descriptor stays the caller's.
//
// It must be a DMA buffer that can be mapped, or a file of a tmpfs or hugetlbfs, as memfds are; it needs no seal. Others
// give ErrNotMemory: a page fault in them could wait for somebody else. The error matches ErrBounds where
// it is shorter than off + length, ErrAccess where it was not opened for the rights asked for,
// ErrFault where there is no page at its beginning or end, EOPNOTSUPP for a DMA buffer that cannot be mapped.
//
// All memory of one Process is one address space: what was written through one region
// is read through another. DMA buffers are taken to be coherent; nobody is told of an access
// (DMA_BUF_IOCTL_SYNC), as nobody is when a device has the memory itself.
func (p *Process) MapGuarded(fd int, off, length uint64, a ib.Access) (Memory, error) {
	if err := checkAccess(a); err != nil {
		return nil, err
	}
	if !p.own {
		return nil, ErrNotMemory
	}
	page, shared, err := guardable(fd, off, length)
	if err != nil {
		return nil, err
	}
	m := &mapped{data: []byte{}, writable: a&ib.AccessLocalWrite != 0}
	if length == 0 {
		return m, nil
	}
	err = m.mmap(fd, off, length, page)
	if err != nil && !shared && !errors.Is(err, ErrAccess) {
		return nil, fmt.Errorf("%w: the exporter of the DMA buffer does not let it be mapped: %w", unix.EOPNOTSUPP, err)
	}
	if err != nil {
		return nil, err
	}
	mem, err := p.Memory(uint64(uintptr(unsafe.Pointer(&m.data[0]))), length, a)
	if err != nil {
		m.Close()
		return nil, err
	}
	mem.(*processMemory).mapping = m
	return mem, nil
}

// guardable is the unit in which a descriptor can be mapped, and whether it is of shared memory and not of a DMA
// buffer, if the range lies in it.
func guardable(fd int, off, length uint64) (page uint64, shared bool, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, false, fmt.Errorf("%w: %w", ErrNotMemory, err)
	}
	page, shared = uint64(os.Getpagesize()), true
	switch fs.Type {
	case unix.TMPFS_MAGIC:
	case unix.HUGETLBFS_MAGIC:
		page = uint64(fs.Bsize)
	case unix.DMA_BUF_MAGIC:
		shared = false
	default:
		return 0, false, fmt.Errorf("%w: neither a DMA buffer nor shared memory", ErrNotMemory)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, false, fmt.Errorf("size of guarded memory: %w", err)
	}
	if size := uint64(st.Size); off > size || length > size-off {
		return 0, false, fmt.Errorf("%w: the descriptor has %d bytes", ErrBounds, size)
	}
	return page, shared, nil
}

// ownv is readv or writev within this program: call is the opposite one, since the memory that may
// fail has to be its local side. Faults there are errors, on the other too.
func (p *Process) ownv(call uintptr, local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
	n, _, errno := unix.Syscall6(call, uintptr(p.pid), uintptr(unsafe.Pointer(&remote[0])), uintptr(len(remote)),
		uintptr(unsafe.Pointer(&local[0])), uintptr(len(local)), 0)
	if errno != 0 {
		return 0, processError(errno)
	}
	return copied(int(n), nil)
}

// The two kinds of vector are the same to the kernel, and so they are in memory.
const (
	_ = -(unsafe.Sizeof(unix.Iovec{}) ^ unsafe.Sizeof(unix.RemoteIovec{}))
	_ = -(unsafe.Offsetof(unix.Iovec{}.Len) ^ unsafe.Offsetof(unix.RemoteIovec{}.Len))
)
