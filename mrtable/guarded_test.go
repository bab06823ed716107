package mrtable

import (
	"bytes"
	"errors"
	"math"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

func guardedSelf(t testing.TB) *Process {
	t.Helper()
	if !hasProcessVM() {
		return selfMem(t)
	}
	p := OpenSelf()
	t.Cleanup(func() { p.Close() })
	return p
}

func (g *fixture) guarded(p *Process, fd int, off, length uint64) *Region {
	g.t.Helper()
	m, err := p.MapGuarded(fd, off, length, allRights)
	if err != nil {
		g.t.Fatal(err)
	}
	return g.region(m, 1000)
}

func TestGuardedMemoryIsReadAndWritten(t *testing.T) {
	fd := memfd(t, 4*page, 0, 0)
	client := mapShared(t, fd, 4*page)
	for _, c := range []struct{ off, length uint64 }{
		{0, 4 * page}, {0, 1}, {1, page}, {page, page}, {page - 1, 2}, {4*page - 1, 1},
	} {
		g := newFixture(t)
		r := g.guarded(guardedSelf(t), fd, c.off, c.length)
		clear(client)
		p := bytes.Repeat([]byte{0x77}, int(c.length))
		g.io.Write(g, r, 1000, p, true)
		g.io.Flush()
		g.wantFailures(nil)
		if bytes.Count(client, []byte{0x77}) != len(p) || !bytes.Equal(client[c.off:c.off+c.length], p) {
			t.Errorf("%d bytes at %d: not what the client reads", c.length, c.off)
		}
		if got, err := g.read(r, 1000, len(p)); err != nil || !bytes.Equal(got, p) {
			t.Errorf("%d bytes at %d: read: %v", c.length, c.off, err)
		}
	}
}

func TestTruncatedGuardedMemoryFaults(t *testing.T) {
	fd := memfd(t, 4*page, 0, 0)
	g := newFixture(t)
	r := g.guarded(guardedSelf(t), fd, 0, 4*page)
	if err := unix.Ftruncate(fd, page); err != nil {
		t.Fatal(err)
	}
	g.io.Write("beyond", r, 1000+3*page, []byte("lost"), true)
	g.io.Write("inside", r, 1000, []byte("kept"), true)
	g.io.Flush()
	g.wantFailures(map[any]error{"beyond": ErrFault})
	if _, err := g.read(r, 1000+2*page, 1); err != ErrFault {
		t.Errorf("read: %v", err)
	}
	if _, err := g.fetchAdd(r, 3*page+1000&^7, 1); err != ErrFault {
		t.Errorf("fetch and add: %v", err)
	}
	if got, err := g.read(r, 1000, 4); err != nil || string(got) != "kept" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := unix.Ftruncate(fd, 4*page); err != nil {
		t.Fatal(err)
	}
	if got, err := g.read(r, 1000+3*page, 4); err != nil || !bytes.Equal(got, make([]byte, 4)) {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestRegionsOfOneFileShareMemory(t *testing.T) {
	p, g := guardedSelf(t), newFixture(t)
	fd := memfd(t, 2*page, 0, 0)
	a, b := g.guarded(p, fd, 0, page), g.guarded(p, fd, 0, page)
	g.io.Write("w", a, 1008, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, true)
	if got, err := g.read(b, 1008, 9); err != nil || got[8] != 9 || got[0] != 1 {
		t.Errorf("read %v, %v", got, err)
	}
	old, err := g.fetchAdd(b, 1008, 1)
	if err != nil || old != 0x0807060504030201 {
		t.Errorf("fetch and add returned %#x, %v", old, err)
	}
	if old, err = g.compareSwap(a, 1008, 0x0807060504030202, 5); err != nil || old != 0x0807060504030202 {
		t.Errorf("compare and swap returned %#x, %v", old, err)
	}
	g.wantFailures(nil)
}

func TestMapGuardedChecksDescriptor(t *testing.T) {
	p := guardedSelf(t)
	fd := memfd(t, 2*page, 0, 0)
	readOnly, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(readOnly)
	file, err := os.OpenFile("/proc/self/comm", os.O_RDWR, 0) // on a file system that is not memory-backed
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		name        string
		fd          int
		off, length uint64
		a           ib.Access
		want        error
	}{
		{"all of it", fd, 0, 2 * page, ib.AccessLocalWrite, nil},
		{"its end", fd, 2 * page, 0, ib.AccessLocalWrite, nil},
		{"a file", int(file.Fd()), 0, 1, 0, ErrNotMemory},
		{"no descriptor", math.MaxInt32, 0, 1, 0, ErrNotMemory},
		{"one byte too many", fd, page, page + 1, 0, ErrBounds},
		{"lengths that overflow", fd, page, math.MaxUint64, 0, ErrBounds},
		{"an offset that overflows", fd, math.MaxUint64, 2, 0, ErrBounds},
		{"wrong flags", fd, 0, page, ib.AccessRemoteWrite, ErrFlags},
		{"reading through a read-only descriptor", readOnly, 0, page, ib.AccessRemoteRead, nil},
		{"writing through a read-only descriptor", readOnly, 0, page, ib.AccessLocalWrite, ErrAccess},
		{"more than the address space", memfd(t, 1<<62, 0, 0), 0, 1 << 62, 0, unix.ENOMEM},
	} {
		m, err := p.MapGuarded(c.fd, c.off, c.length, c.a)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err == nil {
			m.Close()
		}
	}
	if _, err := self(t).MapGuarded(fd, 0, page, 0); err != ErrNotMemory {
		t.Errorf("through another kind of process: %v", err)
	}
	m, err := p.MapGuarded(fd, 0, page, ib.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	g := newFixture(t)
	if _, err := g.table.Register(g.pd, m, 0, page, ib.AccessLocalWrite); err != ErrAccess {
		t.Errorf("read-only memory registered for writing: %v", err)
	}
	r := mustRegister(t, g.table, g.pd, m, 0, ib.AccessRemoteRead)
	g.table.Deregister(r)
	g.io.Epoch()
	if err := m.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}
