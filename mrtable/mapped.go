package mrtable

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// populateMax is the largest mapping whose pages are allocated when it is mapped, so that the
// engine takes no page faults. Larger ones, and those with AccessOnDemand, are populated on access:
// a client may map far more than it uses.
const populateMax = 64 << 20

// mapped is a range of a file, mapped into this program's address space.
type mapped struct {
	mapping  []byte // whole pages
	data     []byte // the requested range; nil once closed
	writable bool
}

// MapFD maps length bytes of a descriptor at offset off, writable if a has AccessLocalWrite. The
// caller keeps ownership of the descriptor.
//
// The descriptor must be a memfd with F_SEAL_SHRINK. The error matches ErrNotSealed if it is not,
// if other seals forbid the requested access, or if its pages could run out (see the package
// comment); use Process.Memory for such memory. It matches ErrBounds if the file is shorter than
// off + length, ErrAccess if the descriptor was not opened for the requested access, and ENOMEM if
// pages cannot be allocated. The caller must limit how much a client registers.
func MapFD(fd int, off, length uint64, a ib.Access) (Memory, error) {
	return mapFD(fd, off, length, a, strictOvercommit())
}

// mapFD implements MapFD. strict says that pages of ordinary memfds can run out.
func mapFD(fd int, off, length uint64, a ib.Access, strict bool) (Memory, error) {
	if err := checkAccess(a); err != nil {
		return nil, err
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: it has no F_SEAL_SHRINK", ErrNotSealed)
	}
	// Check the seal first: from here on the size can only grow.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("size of mapped memory: %w", err)
	}
	if size := uint64(st.Size); off > size || length > size-off {
		return nil, fmt.Errorf("%w: the descriptor has %d bytes", ErrBounds, size)
	}
	page, huge, err := pageSize(fd)
	if err != nil {
		return nil, err
	}
	m := &mapped{data: []byte{}, writable: a&ib.AccessLocalWrite != 0}
	if length == 0 {
		return m, nil
	}
	if err := m.mmap(fd, off, length, page); err != nil {
		return nil, err
	}
	if err := m.populate(fd, seals, huge || strict, a); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// pageSize returns the page size of fd, and whether its pages are huge pages.
func pageSize(fd int) (page uint64, huge bool, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, false, fmt.Errorf("page size of mapped memory: %w", err)
	}
	if fs.Type == unix.HUGETLBFS_MAGIC {
		return uint64(fs.Bsize), true, nil
	}
	return uint64(os.Getpagesize()), false, nil
}

// strictOvercommit reports whether the kernel refuses pages beyond its commit limit
// (vm.overcommit_memory 2), so that a page fault in a hole of a memfd can fail.
func strictOvercommit() bool {
	mode, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	return err == nil && strings.TrimSpace(string(mode)) == "2"
}

// mmap maps the whole pages that contain the range. Both ends of a hugetlb mapping must be
// multiples of its page size.
func (m *mapped) mmap(fd int, off, length, page uint64) error {
	first := off &^ (page - 1)
	lead := off - first
	whole := (lead + length + page - 1) &^ (page - 1)
	prot := unix.PROT_READ
	if m.writable {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, int64(first), int(whole), prot, unix.MAP_SHARED)
	switch {
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: mapping a descriptor: %w", ErrAccess, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: its seals forbid writing: %w", ErrNotSealed, err)
	case err != nil:
		return fmt.Errorf("mapping a descriptor: %w", err)
	}
	m.mapping = b
	m.data = b[lead : lead+length : lead+length]
	return nil
}

// populate allocates the pages. If they are scarce, it also prevents the client from freeing them.
func (m *mapped) populate(fd, seals int, scarce bool, a ib.Access) error {
	if scarce && seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) == 0 {
		// Without this seal the client could punch a hole, and the next access could find no page
		// for it.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
			return fmt.Errorf("%w: its pages can run out, adding F_SEAL_FUTURE_WRITE: %w", ErrNotSealed, err)
		}
	}
	if !scarce && (a&ib.AccessOnDemand != 0 || len(m.mapping) > populateMax) {
		return nil
	}
	advice := unix.MADV_POPULATE_READ
	if m.writable {
		advice = unix.MADV_POPULATE_WRITE
	}
	err := unix.Madvise(m.mapping, advice)
	switch {
	case errors.Is(err, unix.EINVAL) && !scarce: // Linux before 5.14: pages are allocated on access
		return nil
	case errors.Is(err, unix.EFAULT): // an access would raise SIGBUS
		return fmt.Errorf("providing the pages of mapped memory: %w", unix.ENOMEM)
	case err != nil:
		return fmt.Errorf("providing the pages of mapped memory: %w", err)
	}
	return nil
}

func (m *mapped) Len() uint64                   { return uint64(len(m.data)) }
func (m *mapped) View(off uint64, n int) []byte { return view(m.data, off, n) }

func (m *mapped) Close() error {
	b := m.mapping
	m.mapping, m.data = nil, nil
	if b == nil {
		return nil
	}
	return unix.Munmap(b)
}
