package mrtable

import (
	"errors"
	"fmt"
	"math"
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
	files    *Files
	file     *file // that mapping is a part of; nil if it is empty or closed
}

// Map maps length bytes of a descriptor at offset off, writable if a has AccessLocalWrite. The
// caller keeps ownership of the descriptor.
//
// The descriptor must be a memfd with F_SEAL_SHRINK. Unless it has F_SEAL_FUTURE_WRITE or
// F_SEAL_WRITE, Map adds the former, so that no process can punch holes (see the package comment):
// the file cannot be mapped writable again, not even by Map, except by the same Files as long as a
// writable mapping is left. See Hold.
//
// The error matches ErrNotSealed if the descriptor lacks a seal that cannot be added, or if its
// seals forbid the requested access; use Process.Memory for such memory. It matches ErrBounds if
// the file is shorter than off + length, ErrAccess if the descriptor was not opened for the
// requested access, and ENOMEM if pages cannot be allocated. The caller must limit how much a
// client registers.
func (f *Files) Map(fd int, off, length uint64, a ib.Access) (Memory, error) {
	return f.mapSealed(fd, off, length, a, strictOvercommit())
}

// Hold maps a whole descriptor as Map does, and keeps the mapping for later calls of Map, until the
// Memory is closed. No page is allocated.
func (f *Files) Hold(fd int) (Memory, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSealed, err)
	}
	m, _, err := f.mapProtected(fd, 0, uint64(max(st.Size, 0)), ib.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// mapSealed implements Map. strict says that pages of ordinary memfds can run out.
func (f *Files) mapSealed(fd int, off, length uint64, a ib.Access, strict bool) (Memory, error) {
	m, huge, err := f.mapProtected(fd, off, length, a)
	if err != nil {
		return nil, err
	}
	if err := m.populate(fd, huge || strict, a); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// noHoles are the seals with which the kernel refuses to punch holes.
const noHoles = unix.F_SEAL_WRITE | unix.F_SEAL_FUTURE_WRITE

// mapProtected maps a descriptor from which no page can be removed, and reports whether it has huge
// pages.
func (f *Files) mapProtected(fd int, off, length uint64, a ib.Access) (m *mapped, huge bool, err error) {
	if err := checkAccess(a); err != nil {
		return nil, false, err
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, false, fmt.Errorf("%w: it has no F_SEAL_SHRINK", ErrNotSealed)
	}
	// The seal was checked first: from here on the size can only grow.
	page, huge, err := pageSize(fd)
	if err != nil {
		return nil, false, err
	}
	// This mapping may be the last that can be writable, and other regions may need that.
	sealed := seals&noHoles != 0
	m, err = f.mapRange(fd, off, length, page, a, !sealed)
	if err != nil {
		if errors.Is(err, ErrAccess) && !sealed && a&ib.AccessLocalWrite == 0 {
			return nil, false, fmt.Errorf("%w: sealing requires a descriptor for reading and writing", ErrNotSealed)
		}
		return nil, false, err
	}
	if m.file != nil && !sealed {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
			m.Close()
			return nil, false, fmt.Errorf("%w: adding F_SEAL_FUTURE_WRITE: %w", ErrNotSealed, err)
		}
	}
	return m, huge, nil
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

// populate allocates the pages. If they are scarce, it fails unless it could.
func (m *mapped) populate(fd int, scarce bool, a ib.Access) error {
	if len(m.mapping) == 0 || !scarce && (a&ib.AccessOnDemand != 0 || len(m.mapping) > populateMax) {
		return nil
	}
	absent := uint64(math.MaxUint64)
	if scarce { // what is there now stays
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("size of mapped memory: %w", err)
		}
		absent = uint64(max(st.Size-st.Blocks*512, 0))
	}
	taken, err := m.files.takePopulated(m.file, m.mapping, absent)
	if err != nil && scarce {
		return err
	}
	if !scarce && taken == 0 {
		return nil // populated before, or beyond the budget: pages are allocated on access
	}
	advice := unix.MADV_POPULATE_READ
	if m.writable {
		advice = unix.MADV_POPULATE_WRITE
	}
	err = unix.Madvise(m.mapping, advice)
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
	shared := m.file
	m.mapping, m.data, m.file = nil, nil, nil
	if shared != nil {
		m.files.release(shared)
	}
	return nil
}
