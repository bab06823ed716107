package mrtable

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// Files maps the files of one client. All registrations of a file share one mapping, so that a
// process can serve more registrations than the kernel allows it mappings. Its methods may be
// called from any goroutine; those that map must not be called by an engine.
type Files struct {
	// Take and Give, if not nil, account for what mappings use. An error of Take fails the
	// registration. Give may be called by an engine.
	Take func(Usage) error
	Give func(Usage)

	mu       sync.Mutex // not held during a system call: an engine may wait for it
	files    map[fileKey]*file
	parts    map[fileKey]*file // the largest part of each file that is not mapped as a whole
	unused   []*file           // to be unmapped
	unmapper bool              // runs
}

// Usage is what mappings use of the process, the machine and the address space.
type Usage struct {
	Mappings  int
	Bytes     uint64 // of address space
	Populated uint64 // bytes of memory that registrations made the kernel provide
}

// A fileKey identifies what a mapping shows. The file is mapped as a whole, except if it is larger
// than wholeFile.
type fileKey struct {
	device, inode uint64
	writable      bool
	first         uint64
}

// wholeFile is the size of the largest file that is mapped as a whole. The address space has 2^47
// bytes.
const wholeFile = 1 << 40

// A file is a mapping that registrations share.
type file struct {
	key       fileKey
	mem       []byte
	page      uint64
	refs      int
	populated spans
	usage     Usage
}

// mapRange maps the whole pages that contain length bytes at offset off of a descriptor, writable
// if the region or the caller needs it. Both ends of a hugetlb mapping must be multiples of its
// page size.
func (f *Files) mapRange(fd int, off, length, page uint64, a ib.Access, writable bool) (*mapped, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("size of mapped memory: %w", err)
	}
	size := uint64(st.Size)
	if off > size || length > size-off {
		return nil, fmt.Errorf("%w: the descriptor has %d bytes", ErrBounds, size)
	}
	m := &mapped{data: []byte{}, writable: a&ib.AccessLocalWrite != 0}
	key := fileKey{device: st.Dev, inode: st.Ino, writable: m.writable || writable}
	if length == 0 {
		return m, nil
	}
	if err := mayMap(fd, key.writable); err != nil {
		return nil, err
	}
	first := off &^ (page - 1)
	end := (off + length + page - 1) &^ (page - 1)
	whole := (size + page - 1) &^ (page - 1)
	if whole > wholeFile {
		key.first, whole = first, end
	}
	shared, err := f.open(fd, key, whole-key.first, page, span{first, end})
	if err != nil {
		return nil, err
	}
	m.files, m.file = f, shared
	base := shared.key.first
	m.mapping = shared.mem[first-base : end-base : end-base]
	m.data = m.mapping[off-first : off-first+length : off-first+length]
	return m, nil
}

// mayMap returns ErrAccess unless the descriptor may be mapped. A mapping that another descriptor
// of the file made says nothing about this one.
func mayMap(fd int, writable bool) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("mapping a descriptor: %w", err)
	}
	if mode := flags & unix.O_ACCMODE; mode != unix.O_RDWR && (writable || mode != unix.O_RDONLY) {
		return fmt.Errorf("%w: mapping a descriptor: %w", ErrAccess, unix.EACCES)
	}
	return nil
}

// open returns a mapping that contains part, and takes a reference to it. A new one has size bytes.
func (f *Files) open(fd int, key fileKey, size, page uint64, part span) (*file, error) {
	if m := f.retain(key, part); m != nil {
		return m, nil
	}
	m := &file{key: key, page: page, refs: 1, usage: Usage{Mappings: 1, Bytes: size}}
	if err := f.take(m.usage); err != nil {
		return nil, err
	}
	err := m.mmap(fd, size)
	if err != nil {
		f.give(m.usage)
	}
	// Another goroutine may have mapped the file meanwhile, and sealed it against this mapping.
	if have := f.retain(key, part); have != nil {
		if err == nil {
			f.unmap(m)
		}
		return have, nil
	}
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files == nil {
		f.files, f.parts = map[fileKey]*file{}, map[fileKey]*file{}
	}
	f.files[key] = m
	if p := f.parts[key.file()]; p == nil || len(p.mem) < len(m.mem) {
		f.parts[key.file()] = m
	}
	return m, nil
}

// file returns the key without the part of the file.
func (k fileKey) file() fileKey {
	k.first = 0
	return k
}

// retain takes a reference to a mapping that contains part. A writable mapping also serves regions
// that are only read: IO checks the rights of each region.
func (f *Files) retain(key fileKey, part span) *file {
	f.mu.Lock()
	defer f.mu.Unlock()
	forWriting := key
	forWriting.writable = true
	for _, m := range [...]*file{f.files[key], f.files[forWriting], f.parts[key.file()], f.parts[forWriting.file()]} {
		if m != nil && part.first >= m.key.first && part.end-m.key.first <= uint64(len(m.mem)) {
			m.refs++
			return m
		}
	}
	return nil
}

func (m *file) mmap(fd int, size uint64) error {
	prot, flags := unix.PROT_READ, unix.MAP_SHARED
	if m.key.writable {
		prot |= unix.PROT_WRITE
	}
	if m.page > uint64(unix.Getpagesize()) {
		flags |= unix.MAP_NORESERVE // huge pages of the parts that are registered, not of the whole file
	}
	// unix.Mmap and unix.Munmap share a lock, with which they unmap.
	p, err := unix.MmapPtr(fd, int64(m.key.first), nil, uintptr(size), prot, flags)
	switch {
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: mapping a descriptor: %w", ErrAccess, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: its seals forbid writing: %w", ErrNotSealed, err)
	case err != nil:
		return fmt.Errorf("mapping a descriptor: %w", err)
	}
	m.mem = unsafe.Slice((*byte)(p), size)
	return nil
}

// release drops a reference. The last one has the file unmapped, which takes long if it is large.
func (f *Files) release(m *file) {
	f.mu.Lock()
	m.refs--
	last := m.refs == 0
	if last && f.files[m.key] == m {
		delete(f.files, m.key)
	}
	if last && f.parts[m.key.file()] == m {
		delete(f.parts, m.key.file())
	}
	f.mu.Unlock()
	if last {
		f.unmap(m)
	}
}

// unmap unmaps a file on a goroutine of its own, so that an engine can call it.
func (f *Files) unmap(m *file) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unused = append(f.unused, m)
	if !f.unmapper {
		f.unmapper = true
		go f.unmapUnused()
	}
}

func (f *Files) unmapUnused() {
	for {
		f.mu.Lock()
		if len(f.unused) == 0 {
			f.unused, f.unmapper = nil, false
			f.mu.Unlock()
			return
		}
		m := f.unused[0]
		f.unused = f.unused[1:]
		f.mu.Unlock()
		m.munmap()
		f.give(m.usage)
	}
}

// unmapPart is unmapped in one call. During the call no mapping can be made, not even by the Go
// runtime.
const unmapPart = 64 << 20

func (m *file) munmap() {
	mem := m.mem
	m.mem = nil
	Unmap(mem, m.page)
}

// Unmap unmaps what unix.MmapPtr has mapped, in pages of that size, without stalling others that
// map or unmap.
func Unmap(mem []byte, page uint64) {
	part := max(unmapPart, page)
	base, size := unsafe.Pointer(unsafe.SliceData(mem)), uint64(len(mem))
	for at := uint64(0); at < size; at += part {
		unix.MunmapPtr(unsafe.Add(base, at), uintptr(min(part, size-at)))
	}
}

func (f *Files) take(u Usage) error {
	if f.Take == nil {
		return nil
	}
	return f.Take(u)
}

func (f *Files) give(u Usage) {
	if f.Give != nil {
		f.Give(u)
	}
}

// takePopulated accounts for the memory of part of a mapping, of which some may have been accounted
// for. No more than absent bytes of the file are missing. It returns how many bytes it accounted
// for.
func (f *Files) takePopulated(m *file, part []byte, absent uint64) (uint64, error) {
	first := uint64(uintptr(unsafe.Pointer(&part[0])) - uintptr(unsafe.Pointer(&m.mem[0])))
	end := first + uint64(len(part))
	f.mu.Lock()
	missing := min(m.populated.missing(first, end), absent)
	f.mu.Unlock()
	if err := f.take(Usage{Populated: missing}); err != nil {
		return 0, err
	}
	f.mu.Lock()
	added := min(m.populated.add(first, end), missing)
	m.usage.Populated += added
	f.mu.Unlock()
	f.give(Usage{Populated: missing - added}) // populated meanwhile
	return added, nil
}

// spans are parts of a mapping that do not overlap.
type spans []span

type span struct{ first, end uint64 }

// missing returns how many bytes of a part the spans do not have.
func (s spans) missing(first, end uint64) uint64 {
	n := end - first
	for _, x := range s {
		if lo, hi := max(first, x.first), min(end, x.end); lo < hi {
			n -= hi - lo
		}
	}
	return n
}

// add adds a part and returns how many bytes of it were missing.
func (s *spans) add(first, end uint64) uint64 {
	n := s.missing(first, end)
	rest := (*s)[:0]
	for _, x := range *s {
		if x.end < first || x.first > end {
			rest = append(rest, x)
		} else {
			first, end = min(first, x.first), max(end, x.end)
		}
	}
	*s = append(rest, span{first, end})
	return n
}
