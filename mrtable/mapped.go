package mrtable

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// Memory up to this size is made present when it is mapped, so that the engine meets no
// page fault; what is larger, or OnDemand, when it is touched: a client may map far more
// than it uses.
const populateMax = 64 << 20

// mapped is a part of a file in this program's address space.
type mapped struct {
	mapping  []byte // whole pages
	data     []byte // the part asked for; nil once closed
	writable bool
}

// MapFD maps length bytes of a descriptor from offset off on, writable if a has
// LocalWrite. The descriptor stays the caller's.
//
// It must be a memfd with F_SEAL_SHRINK. The error matches ErrNotSealed where it is not,
// where other seals forbid the rights asked for, or where its pages could run out (see the
// package comment): Process.Memory can reach such memory. It matches ErrBounds where the
// file is shorter than off + length, ErrAccess where the descriptor was not opened for the
// rights asked for, and ENOMEM where there are no pages. How much a client may register is
// for the caller to limit.
func MapFD(fd int, off, length uint64, a ib.Access) (Memory, error) {
	return mapFD(fd, off, length, a, strictOvercommit())
}

// mapFD is MapFD where strict tells whether pages of ordinary memfds can run out.
func mapFD(fd int, off, length uint64, a ib.Access, strict bool) (Memory, error) {
	if err := checkAccess(a); err != nil {
		return nil, err
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: it has no F_SEAL_SHRINK", ErrNotSealed)
	}
	// The seal comes first: from here on the size can only grow.
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
	if err := m.provide(fd, seals, huge || strict, a); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// pageSize is the unit in which fd can be mapped, and whether its pages come from the
// pool of huge ones.
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

// strictOvercommit reports whether the kernel refuses pages that exceed its commit limit
// (vm.overcommit_memory 2), so that a fault in a memfd's hole can fail.
func strictOvercommit() bool {
	mode, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	return err == nil && strings.TrimSpace(string(mode)) == "2"
}

// mmap maps the whole pages around the range; both ends of a hugetlb mapping must be
// multiples of its page.
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

// provide makes the pages present. Where they are scarce it makes sure that they stay, too.
func (m *mapped) provide(fd, seals int, scarce bool, a ib.Access) error {
	if scarce && seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) == 0 {
		// Without this seal the client could punch a hole, and the next access
		// would find no page for it.
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
	case errors.Is(err, unix.EINVAL) && !scarce: // before Linux 5.14: the pages come when touched
		return nil
	case errors.Is(err, unix.EFAULT): // what would have been a SIGBUS
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
