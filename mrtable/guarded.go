package mrtable

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// OpenSelf returns a Process for memory that this program maps but must not touch. If a page is
// missing, because a file was truncated or a device has no memory left, a load would raise SIGBUS.
// The kernel copies instead and returns EFAULT. See Files.MapGuarded.
func OpenSelf() *Process {
	return &Process{pid: os.Getpid(), pidfd: -1, mem: -1, self: true, refs: 1}
}

// MapGuarded maps length bytes of a descriptor at offset off, writable if a has AccessLocalWrite. p
// must come from OpenSelf. The caller keeps ownership of the descriptor.
//
// The descriptor must be a DMA buffer that can be mapped, or a file of a tmpfs or hugetlbfs, such
// as a memfd; no seal is needed. Others give ErrNotMemory, since their page faults could block. The
// error matches ErrBounds if the file is shorter than off + length, ErrAccess if the descriptor was
// not opened for the requested access, ErrFault if the first or last page is missing, and
// EOPNOTSUPP for a DMA buffer that cannot be mapped.
//
// All memory of one Process belongs to one address space: a read through one region sees what was
// written through another. DMA buffers are assumed to be coherent; the exporter is not notified of
// an access (DMA_BUF_IOCTL_SYNC), as with peer-to-peer access by a device.
func (f *Files) MapGuarded(p *Process, fd int, off, length uint64, a ib.Access) (Memory, error) {
	if err := checkAccess(a); err != nil {
		return nil, err
	}
	if !p.self {
		return nil, ErrNotMemory
	}
	page, shared, err := checkGuarded(fd)
	if err != nil {
		return nil, err
	}
	m, err := f.mapRange(fd, off, length, page, a, false)
	if err != nil && !shared && !errors.Is(err, ErrAccess) && !errors.Is(err, ErrBounds) {
		return nil, fmt.Errorf("%w: the exporter of the DMA buffer does not let it be mapped: %w", unix.EOPNOTSUPP, err)
	}
	if err != nil || length == 0 {
		return m, err
	}
	mem, err := p.Memory(uint64(uintptr(unsafe.Pointer(&m.data[0]))), length, a)
	if err != nil {
		m.Close()
		return nil, err
	}
	mem.(*processMemory).mapping = m
	return mem, nil
}

// checkGuarded checks the descriptor. It returns the page size, and whether the descriptor is
// shared memory rather than a DMA buffer.
func checkGuarded(fd int) (page uint64, shared bool, err error) {
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
	return page, shared, nil
}

// selfv is readv or writev within this program. call is the opposite operation, since the memory
// that may fault has to be its local side. The kernel reports faults there as errors too.
func (p *Process) selfv(call uintptr, local []unix.Iovec, remote []unix.RemoteIovec) (int, error) {
	n, _, errno := unix.Syscall6(call, uintptr(p.pid), uintptr(unsafe.Pointer(&remote[0])), uintptr(len(remote)),
		uintptr(unsafe.Pointer(&local[0])), uintptr(len(local)), 0)
	if errno != 0 {
		return 0, processError(errno)
	}
	return vectorResult(int(n), nil)
}

// Both vector types have the same memory layout.
const (
	_ = -(unsafe.Sizeof(unix.Iovec{}) ^ unsafe.Sizeof(unix.RemoteIovec{}))
	_ = -(unsafe.Offsetof(unix.Iovec{}.Len) ^ unsafe.Offsetof(unix.RemoteIovec{}.Len))
)
