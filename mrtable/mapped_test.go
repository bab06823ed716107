package mrtable

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// memfd creates a memfd with this size and these seals.
func memfd(t testing.TB, size int, flags, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("mrtable", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// mapShared maps a whole descriptor, as a client does.
func mapShared(t testing.TB, fd, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func TestMappedMemoryIsSharedWithTheClient(t *testing.T) {
	fd := memfd(t, 4*page, 0, unix.F_SEAL_SHRINK)
	client := mapShared(t, fd, 4*page)
	f := new(Files)
	defer must(f.Hold(fd)).Close()
	for _, c := range []struct{ off, length uint64 }{
		{0, 4 * page}, {0, 1}, {1, page}, {page, page}, {page - 1, 2}, {4*page - 1, 1}, {4 * page, 0}, {7, 0},
	} {
		m, err := f.Map(fd, c.off, c.length, allRights)
		if err != nil {
			t.Fatalf("%d bytes at %d: %v", c.length, c.off, err)
		}
		g := newFixture(t)
		r := g.region(m, 1000)
		clear(client)
		p := bytes.Repeat([]byte{0x77}, int(c.length))
		g.io.Write(g, r, 1000, p, true)
		g.wantFailures(nil)
		if bytes.Count(client, []byte{0x77}) != len(p) || !bytes.Equal(client[c.off:c.off+c.length], p) {
			t.Errorf("%d bytes at %d: not what the client reads", c.length, c.off)
		}
		g.table.Deregister(r)
		g.io.Epoch()
		if c.length > 0 && m.View(0, 1) == nil {
			t.Error("unmapped after one epoch")
		}
		g.io.Epoch()
		if m.View(0, 0) != nil && c.length > 0 {
			t.Error("still mapped after two epochs")
		}
		if err := m.Close(); err != nil {
			t.Errorf("closed twice: %v", err)
		}
	}
}

func TestMapFDRejectsUnsafeDescriptors(t *testing.T) {
	sealed := memfd(t, 2*page, 0, unix.F_SEAL_SHRINK)
	readOnly, err := unix.Open("/proc/self/fd/"+strconv.Itoa(sealed), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(readOnly)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	shm, err := os.CreateTemp("/dev/shm", "mrtable")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(shm.Name())
	defer shm.Close()
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for _, c := range []struct {
		name        string
		fd          int
		off, length uint64
		a           ib.Access
		want        error
	}{
		{"a memfd without the seal", memfd(t, page, 0, unix.F_SEAL_GROW), 0, page, 0, ErrNotSealed},
		{"a file", int(file.Fd()), 0, 0, 0, ErrNotSealed},
		{"a file in a tmpfs", int(shm.Fd()), 0, 0, 0, ErrNotSealed},
		{"a process's memory", int(mem.Fd()), 0, 0, 0, ErrNotSealed},
		{"no descriptor", math.MaxInt32, 0, 0, 0, ErrNotSealed},
		{"one byte too many", sealed, page, page + 1, 0, ErrBounds},
		{"past the end", sealed, 2*page + 1, 0, 0, ErrBounds},
		{"lengths that overflow", sealed, page, math.MaxUint64, 0, ErrBounds},
		{"an offset that overflows", sealed, math.MaxUint64, 2, 0, ErrBounds},
		{"wrong flags", sealed, 0, page, ib.AccessRemoteWrite, ErrFlags},
		{"reading through a read-only descriptor that can be sealed", readOnly, 0, page, ib.AccessRemoteRead, ErrNotSealed},
		{"writing through a read-only descriptor", readOnly, 0, page, ib.AccessLocalWrite, ErrAccess},
		{"writing where writing is sealed", memfd(t, page, 0, unix.F_SEAL_SHRINK|unix.F_SEAL_FUTURE_WRITE), 0, page, ib.AccessLocalWrite, ErrNotSealed},
		{"reading where writing is sealed", memfd(t, page, 0, unix.F_SEAL_SHRINK|unix.F_SEAL_FUTURE_WRITE), 0, page, 0, nil},
		{"more than the address space", memfd(t, 1<<62, 0, unix.F_SEAL_SHRINK), 0, 1 << 62, 0, unix.ENOMEM},
	} {
		m, err := MapFD(c.fd, c.off, c.length, c.a)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err == nil {
			m.Close()
		}
	}
}

func TestReadOnlyMappingCannotBeRegisteredForWriting(t *testing.T) {
	fd := memfd(t, page, 0, unix.F_SEAL_SHRINK|unix.F_SEAL_FUTURE_WRITE)
	m, err := MapFD(fd, 0, page, ib.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	g := newFixture(t)
	if _, err := g.table.Register(g.pd, m, 0, page, ib.AccessLocalWrite); err != ErrAccess {
		t.Errorf("registration with write access: %v, want ErrAccess", err)
	}
	if protection(t, m) != "r--s" {
		t.Errorf("mapped %s", protection(t, m))
	}
	g.io.Write("w", mustRegister(t, g.table, g.pd, m, 0, ib.AccessRemoteRead), 0, []byte{1}, true)
	g.wantFailures(map[any]error{"w": ErrAccess})
}

// protection returns the permissions of m's pages in /proc/self/maps.
func protection(t testing.TB, m Memory) string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	start := strconv.FormatUint(uint64(address(m.View(0, 1))), 16)
	for line := range strings.Lines(string(maps)) {
		if strings.HasPrefix(line, start) {
			return strings.Fields(line)[1]
		}
	}
	return "not"
}

func TestClientCannotRemoveMappedPages(t *testing.T) {
	const size = 16 * page
	fd := memfd(t, size, 0, unix.F_SEAL_SHRINK)
	client := mapShared(t, fd, size)
	m, err := MapFD(fd, 0, size, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := unix.Ftruncate(fd, 0); err != unix.EPERM {
		t.Errorf("truncation: %v", err)
	}
	m.View(0, size)[5] = 1
	punch(t, fd, size, unix.EPERM)
	if err := unix.Madvise(client, unix.MADV_REMOVE); err != unix.EPERM {
		t.Errorf("punching a hole through the client's mapping: %v", err)
	}
	if client[5] != 1 {
		t.Error("the page was replaced")
	}
}

// A region that is only read must not keep a later one from being written.
func TestSealedFileIsMappedForAllRegions(t *testing.T) {
	fd := memfd(t, 2*page, 0, unix.F_SEAL_SHRINK)
	f := new(Files)
	for _, a := range []ib.Access{0, ib.AccessLocalWrite, 0, ib.AccessLocalWrite} {
		m, err := f.Map(fd, 0, page, a)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if got := m.(*mapped).writable; got != (a == ib.AccessLocalWrite) {
			t.Errorf("access %v: writable is %v", a, got)
		}
	}
}

func TestHeldFileCanBeMappedAgain(t *testing.T) {
	fd := memfd(t, 2*page, 0, unix.F_SEAL_SHRINK)
	f := new(Files)
	held, err := f.Hold(fd)
	if err != nil {
		t.Fatal(err)
	}
	if allocated(t, fd) != 0 {
		t.Error("pages were allocated")
	}
	for range 2 {
		m, err := f.Map(fd, page, page, ib.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		m.View(0, page)[0] = 1
		m.Close()
	}
	held.Close()
	if _, err := f.Map(fd, page, page, ib.AccessLocalWrite); !errors.Is(err, ErrNotSealed) {
		t.Errorf("when it is held no longer: %v", err)
	}
	for _, c := range []struct {
		name string
		fd   int
	}{
		{"a memfd that cannot be sealed", memfd(t, page, 0, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)},
		{"a memfd that can shrink", memfd(t, page, 0, 0)},
		{"no descriptor", math.MaxInt32},
	} {
		if _, err := f.Hold(c.fd); !errors.Is(err, ErrNotSealed) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// The pages of a file that is larger than wholeFile are mapped as they are registered first.
func TestPartsOfLargeFileShareMapping(t *testing.T) {
	fd := memfd(t, 2*wholeFile, 0, unix.F_SEAL_SHRINK)
	f := new(Files)
	first, err := f.Map(fd, 4*page, 4*page, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	part, err := f.Map(fd, 6*page+1, page, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	part.View(0, 1)[0] = 5
	if first.View(2*page+1, 1)[0] != 5 {
		t.Error("the regions show different memory")
	}
	if _, err := f.Map(fd, 7*page, 2*page, ib.AccessLocalWrite); !errors.Is(err, ErrNotSealed) {
		t.Errorf("beyond the first part: %v", err)
	}
}

// One of several goroutines maps and seals the file, while others are about to map it.
func TestFileIsMappedByManyAtOnce(t *testing.T) {
	for range 200 {
		fd := memfd(t, page, 0, unix.F_SEAL_SHRINK)
		f := new(Files)
		var all sync.WaitGroup
		proceed := make(chan struct{})
		memories := make(chan Memory, 4)
		for range cap(memories) {
			all.Go(func() {
				<-proceed
				m, err := f.Map(fd, 0, page, ib.AccessLocalWrite|ib.AccessOnDemand)
				if err != nil {
					t.Error(err)
					return
				}
				memories <- m
			})
		}
		close(proceed)
		all.Wait()
		for range len(memories) {
			(<-memories).Close()
		}
	}
}

func punch(t testing.TB, fd int, size int64, want error) {
	t.Helper()
	const how = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := unix.Fallocate(fd, how, 0, size); !errors.Is(err, want) {
		t.Errorf("punching a hole: %v, want %v", err, want)
	}
}

func TestScarcePagesStayAllocated(t *testing.T) {
	const size = 16 * page
	for _, a := range []ib.Access{ib.AccessLocalWrite, 0} {
		fd := memfd(t, size, 0, unix.F_SEAL_SHRINK)
		m, err := mapFD(fd, 0, size, a, true)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if blocks := allocated(t, fd); blocks != size {
			t.Errorf("%v: %d of %d bytes are allocated", a, blocks, size)
		}
		punch(t, fd, size, unix.EPERM)
		if _, err := mapFD(fd, 0, size, ib.AccessLocalWrite, true); !errors.Is(err, ErrNotSealed) {
			t.Errorf("%v: mapping for writing again: %v", a, err)
		}
		again, err := mapFD(fd, 0, size, ib.AccessRemoteRead, true)
		if err != nil {
			t.Fatalf("%v: mapping for reading again: %v", a, err)
		}
		again.Close()
	}
	stubborn := memfd(t, size, 0, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	if _, err := mapFD(stubborn, 0, size, ib.AccessLocalWrite, true); !errors.Is(err, ErrNotSealed) {
		t.Errorf("with F_SEAL_SEAL: %v", err)
	}
}

func allocated(t testing.TB, fd int) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestSmallMappingsArePopulated(t *testing.T) {
	for _, c := range []struct {
		size int
		a    ib.Access
		want int64
	}{
		{1 << 20, ib.AccessLocalWrite, 1 << 20},
		{1 << 20, ib.AccessRemoteRead, 1 << 20},
		{1 << 20, ib.AccessLocalWrite | ib.AccessOnDemand, 0},
		{populateMax + page, ib.AccessLocalWrite, 0},
	} {
		fd := memfd(t, c.size, 0, unix.F_SEAL_SHRINK)
		m, err := MapFD(fd, 0, uint64(c.size), c.a)
		if err != nil {
			t.Fatal(err)
		}
		if got := allocated(t, fd); got != c.want {
			t.Errorf("%d bytes, %v: %d are allocated, want %d", c.size, c.a, got, c.want)
		}
		m.Close()
	}
}

// hugePages ensures that n huge pages of 2 MiB are free, or skips the test.
func hugePages(t *testing.T, n int) {
	const pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	read := func(name string) int {
		b, err := os.ReadFile(pool + name)
		if err != nil {
			skipOrFail(t, "no huge pages in this kernel: "+err.Error())
		}
		v, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return v
	}
	before := read("nr_hugepages")
	spare := read("free_hugepages") - read("resv_hugepages")
	if spare >= n {
		return
	}
	set := func(v int) error { return os.WriteFile(pool+"nr_hugepages", []byte(strconv.Itoa(v)), 0) }
	if err := set(before + n - spare); err != nil {
		skipOrFail(t, "no free huge pages: "+err.Error())
	}
	t.Cleanup(func() { set(before) })
	if read("free_hugepages")-read("resv_hugepages") < n {
		skipOrFail(t, "the kernel has no memory for huge pages")
	}
}

func TestHugePagesStayAllocated(t *testing.T) {
	const huge = 2 << 20
	hugePages(t, 2)
	fd := memfd(t, 2*huge, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB, unix.F_SEAL_SHRINK)
	client := mapShared(t, fd, 2*huge)
	// A range within two pages: neither end is page-aligned.
	m, err := MapFD(fd, huge-100, 205, ib.AccessLocalWrite|ib.AccessHugeTLB)
	if err != nil {
		t.Fatal(err)
	}
	copy(m.View(0, 205), bytes.Repeat([]byte{9}, 205))
	if bytes.Count(client, []byte{9}) != 205 || client[huge-100] != 9 {
		t.Error("the client reads unexpected bytes")
	}
	punch(t, fd, 2*huge, unix.EPERM)
	if err := m.Close(); err != nil {
		t.Errorf("unmapping: %v", err)
	}
	if _, err := MapFD(fd, 0, huge, ib.AccessLocalWrite); !errors.Is(err, ErrNotSealed) {
		t.Errorf("for writing again: %v", err)
	}

	// A second client gets none, and an error.
	all := memfd(t, 1<<40, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB, unix.F_SEAL_SHRINK)
	if _, err := MapFD(all, 0, 1<<40, ib.AccessLocalWrite); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("more bytes than exist: %v", err)
	}
}
