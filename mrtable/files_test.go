package mrtable

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// newFile returns a memfd that is sealed against shrinking, and its name in /proc/self/maps.
func newFile(t *testing.T, size int64) (fd int, name string) {
	t.Helper()
	name = "shared-" + t.Name()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	return fd, "memfd:" + name
}

func mappingsOf(t *testing.T, name string) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(maps, []byte(name))
}

// An account is the sum of what Files took and gave back.
type account struct {
	mu     sync.Mutex
	used   Usage
	refuse func(Usage) bool // or nil
}

func (a *account) files() *Files {
	return &Files{
		Take: func(u Usage) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.refuse != nil && a.refuse(u) {
				return errRefused
			}
			a.used = Usage{a.used.Mappings + u.Mappings, a.used.Bytes + u.Bytes, a.used.Populated + u.Populated}
			return nil
		},
		Give: func(u Usage) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.used = Usage{a.used.Mappings - u.Mappings, a.used.Bytes - u.Bytes, a.used.Populated - u.Populated}
		},
	}
}

var errRefused = errors.New("refused")

func (a *account) get() Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// wantNothing waits until everything was released.
func (a *account) wantNothing(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); a.get() != (Usage{}); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still in use: %+v", a.get())
		}
	}
}

func TestRegistrationsOfAFileShareOneMapping(t *testing.T) {
	const pages, each = 64, 300
	page := uint64(os.Getpagesize())
	fd, name := newFile(t, int64(pages*page))
	var used account
	f := used.files()
	var all []Memory
	for i := range uint64(each) {
		for _, a := range []ib.Access{ib.AccessLocalWrite, 0} {
			m, err := f.Map(fd, i%(pages*page-100), 100, a)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
	}
	if n := mappingsOf(t, name); n != 1 {
		t.Errorf("%d registrations use %d mappings", len(all), n)
	}
	if u := used.get(); u.Mappings != 1 || u.Bytes != pages*page || u.Populated != page {
		t.Errorf("accounted for %+v", u)
	}
	copy(all[0].View(0, 5), "hello")
	if got := all[1].View(0, 5); string(got) != "hello" {
		t.Errorf("the region for reading shows %q", got)
	}
	if got := all[4].View(0, 3); string(got) != "llo" { // 2 bytes further
		t.Errorf("the range at offset 2 shows %q", got)
	}
	for i, m := range all {
		if i == len(all)-1 && mappingsOf(t, name) == 0 {
			t.Error("the file was unmapped while a registration used it")
		}
		m.Close()
	}
	used.wantNothing(t)
	if n := mappingsOf(t, name); n != 0 {
		t.Errorf("%d mappings are left", n)
	}
}

func TestSharedMappingRespectsTheDescriptor(t *testing.T) {
	fd, _ := newFile(t, 4096)
	f := new(Files)
	m, err := f.Map(fd, 0, 4096, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for mode, want := range map[int][2]error{unix.O_RDONLY: {nil, ErrAccess}, unix.O_WRONLY: {ErrAccess, ErrAccess}} {
		other, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), mode|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(other)
		for i, a := range []ib.Access{0, ib.AccessLocalWrite} {
			m, err := f.Map(other, 0, 4096, a)
			if !errors.Is(err, want[i]) {
				t.Errorf("mode %d, access %v: %v, want %v", mode, a, err, want[i])
			}
			if err == nil {
				m.Close()
			}
		}
	}
}

func TestFileThatGrewIsMappedAgain(t *testing.T) {
	fd, name := newFile(t, 4096)
	f := new(Files)
	small, err := f.Map(fd, 0, 4096, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	if err := unix.Ftruncate(fd, 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Map(fd, 1<<20-4096, 4096, ib.AccessLocalWrite); !errors.Is(err, ErrNotSealed) {
		t.Errorf("writable, what was added: %v", err)
	}
	for range 2 {
		m, err := f.Map(fd, 1<<20-4096, 4096, ib.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
	}
	m, err := f.Map(fd, 0, 4096, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if n := mappingsOf(t, name); n != 2 {
		t.Errorf("%d mappings, want 2", n)
	}
}

func TestPagesBeyondTheBudgetAreNotPopulated(t *testing.T) {
	fd, _ := newFile(t, 1<<20)
	used := account{refuse: func(u Usage) bool { return u.Populated > 4096 }}
	f := used.files()
	if _, err := f.mapSealed(fd, 0, 1<<20, ib.AccessLocalWrite, true); !errors.Is(err, errRefused) {
		t.Errorf("pages that can run out, beyond the budget: %v", err)
	}
	used.wantNothing(t)
	fd, _ = newFile(t, 1<<20)
	m, err := f.mapSealed(fd, 0, 1<<20, ib.AccessLocalWrite, false)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Blocks != 0 {
		t.Errorf("%d blocks are allocated, %v", st.Blocks, err)
	}
	m.Close()
	used.wantNothing(t)
}

func TestSpans(t *testing.T) {
	var s spans
	for _, c := range []struct{ first, end, added uint64 }{
		{10, 20, 10}, {10, 20, 0}, {15, 25, 5}, {40, 50, 10}, {0, 100, 75}, {99, 101, 1}, {200, 201, 1},
	} {
		if n := s.add(c.first, c.end); n != c.added {
			t.Errorf("add(%d, %d) = %d, want %d", c.first, c.end, n, c.added)
		}
	}
	if len(s) != 2 {
		t.Errorf("spans %v", s)
	}
}

// Closing a region is the engine's work; unmapping is not.
func TestCloseDoesNotWaitForUnmapping(t *testing.T) {
	proceed := make(chan struct{})
	f := &Files{Give: func(Usage) { <-proceed }}
	for range 3 {
		fd, _ := newFile(t, 4096)
		m, err := f.Map(fd, 0, 4096, ib.AccessOnDemand)
		if err != nil {
			t.Fatal(err)
		}
		m.Close() // returns, although what unmaps waits
	}
	close(proceed)
}

// What is unmapped in parts leaves none behind, whatever its size.
func TestUnmapLeavesNothingMapped(t *testing.T) {
	fd, name := newFile(t, 200<<20)
	for _, size := range []int{1, 64 << 20, 64<<20 + 1, 200 << 20} {
		p, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if mappingsOf(t, name) != 1 {
			t.Fatalf("%d bytes are not mapped", size)
		}
		Unmap(unsafe.Slice((*byte)(p), size), 4096)
		if n := mappingsOf(t, name); n != 0 {
			t.Errorf("of %d bytes %d mappings are left", size, n)
		}
	}
}
