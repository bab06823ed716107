package mrtable

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	"softroce/internal/ib"
)

// A fixture is a table, a protection domain and an IO.
type fixture struct {
	t     testing.TB
	table *Table
	pd    *PD
	io    *IO
	rd    Read
}

func newFixture(t testing.TB) *fixture {
	table := newTestTable()
	return &fixture{t: t, table: table, pd: table.AllocPD(), io: NewIO(1 << 20)}
}

const allRights = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

func (g *fixture) region(mem Memory, iova uint64) *Region {
	g.t.Helper()
	return mustRegister(g.t, g.table, g.pd, mem, iova, allRights)
}

// failures returns the failed tags and clears the IO's list.
func (g *fixture) failures() map[any]error {
	got := map[any]error{}
	g.io.Failed(func(tag any, err error) {
		if _, twice := got[tag]; twice {
			g.t.Errorf("%v failed twice", tag)
		}
		got[tag] = err
	})
	return got
}

func (g *fixture) wantFailures(want map[any]error) {
	g.t.Helper()
	got := g.failures()
	for tag, err := range want {
		if got[tag] != err {
			g.t.Errorf("%v: %v, want %v", tag, got[tag], err)
		}
	}
	if len(got) != len(want) {
		g.t.Errorf("failures %v, want %v", got, want)
	}
}

// self is this program, accessed like another process.
func self(t testing.TB) *Process {
	t.Helper()
	if !hasProcessVM() {
		return selfMem(t)
	}
	p, err := OpenProcess(os.Getpid(), -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// selfMem is this program, accessed through /proc/self/mem.
func selfMem(t testing.TB) *Process {
	t.Helper()
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := OpenProcessMem(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// backings are the kinds of Memory that can access a slice of this program.
func backings(t testing.TB) map[string]func(b []byte) Memory {
	p, m := self(t), selfMem(t)
	of := func(p *Process) func(b []byte) Memory {
		return func(b []byte) Memory {
			mem, err := p.Memory(uint64(address(b)), uint64(len(b)), allRights)
			if err != nil {
				t.Fatal(err)
			}
			return mem
		}
	}
	return map[string]func(b []byte) Memory{"mapped": HeapMemory, "process": of(p), "proc_mem": of(m), "guarded": of(guardedSelf(t))}
}

func TestReadReturnsWrittenBytes(t *testing.T) {
	for name, backing := range backings(t) {
		for _, n := range []int{0, 1, 3, 7, 8, 9, 15, 16, 17, 100, 4096, 70000} {
			for _, off := range []uint64{0, 1, 8, 13} {
				for _, last := range []bool{false, true} {
					g := newFixture(t)
					b := make([]byte, 70100)
					r := g.region(backing(b), 0x1000)
					p := bytes.Repeat([]byte{0xa5, 0x5a, 1}, n/3+1)[:n]
					g.io.Write(g, r, 0x1000+off, p, last)
					got, err := g.read(r, 0x1000+off, n)
					if err != nil || got == nil || !bytes.Equal(got, p) {
						t.Fatalf("%s, %d bytes at %d: %v", name, n, off, err)
					}
					if !bytes.Equal(b[off:int(off)+n], p) || bytes.ContainsFunc(b[int(off)+n:], func(c rune) bool { return c != 0 }) {
						t.Fatalf("%s, %d bytes at %d: unexpected memory content", name, n, off)
					}
					g.wantFailures(nil)
				}
			}
		}
	}
}

func TestMappedReadIsInPlace(t *testing.T) {
	g := newFixture(t)
	b := make([]byte, 100)
	p, err := g.read(g.region(HeapMemory(b), 5), 15, 20)
	if err != nil || &p[0] != &b[10] || cap(p) != 20 {
		t.Errorf("%v, cap %d", err, cap(p))
	}
}

func TestIOChecksAccessAgain(t *testing.T) {
	for name, backing := range backings(t) {
		g := newFixture(t)
		b := make([]byte, 64)
		r := g.region(backing(b), 100)
		readOnly := mustRegister(t, g.table, g.pd, backing(b), 100, ib.AccessRemoteRead)
		dead := g.region(backing(b), 100)
		g.table.Deregister(dead)
		for _, c := range []struct {
			what string
			r    *Region
			addr uint64
			n    int
			want error
		}{
			{"before the start", r, 99, 2, ErrBounds},
			{"past the end", r, 163, 2, ErrBounds},
			{"far past the end", r, math.MaxUint64, 1, ErrBounds},
			{"dead", dead, 100, 8, ErrKey},
			{"nil", nil, 100, 8, ErrKey},
		} {
			if _, err := g.read(c.r, c.addr, c.n); err != c.want {
				t.Errorf("%s: read %s: %v", name, c.what, err)
			}
			g.io.Write(c.what, c.r, c.addr, make([]byte, c.n), true)
			if _, err := g.fetchAdd(c.r, c.addr, 1); err != c.want {
				t.Errorf("%s: fetch-add %s: %v", name, c.what, err)
			}
			if _, err := g.compareSwap(c.r, c.addr, 0, 1); err != c.want {
				t.Errorf("%s: compare-swap %s: %v", name, c.what, err)
			}
			g.io.Flush()
			g.wantFailures(map[any]error{c.what: c.want})
		}
		if _, err := g.read(r, 100, -1); err != ErrBounds {
			t.Errorf("%s: negative length: %v", name, err)
		}
		g.io.Write("read-only", readOnly, 100, []byte{1}, true)
		g.wantFailures(map[any]error{"read-only": ErrAccess})
		if _, err := g.fetchAdd(readOnly, 104, 1); err != ErrAccess {
			t.Errorf("%s: atomic on read-only: %v", name, err)
		}
		if !bytes.Equal(b, make([]byte, 64)) {
			t.Errorf("%s: a rejected access changed memory", name)
		}
	}
}

func TestAtomicOperations(t *testing.T) {
	for name, backing := range backings(t) {
		g := newFixture(t)
		words := make([]uint64, 4)
		b := bytesOf(words)
		r := g.region(backing(b), 64)
		words[1] = 5
		if old, err := g.fetchAdd(r, 72, math.MaxUint64); err != nil || old != 5 || words[1] != 4 {
			t.Errorf("%s: 5 + (2^64-1): %d, %v, memory %d", name, old, err, words[1])
		}
		if old, err := g.compareSwap(r, 72, 3, 9); err != nil || old != 4 || words[1] != 4 {
			t.Errorf("%s: compare fails: %d, %v, memory %d", name, old, err, words[1])
		}
		if old, err := g.compareSwap(r, 72, 4, 9); err != nil || old != 4 || words[1] != 9 {
			t.Errorf("%s: compare holds: %d, %v, memory %d", name, old, err, words[1])
		}
		for _, addr := range []uint64{73, 76, 79} {
			if _, err := g.fetchAdd(r, addr, 1); err != ErrAlign {
				t.Errorf("%s: fetch-add at %d: %v", name, addr, err)
			}
			if _, err := g.compareSwap(r, addr, 0, 1); err != ErrAlign {
				t.Errorf("%s: compare-swap at %d: %v", name, addr, err)
			}
		}
		g.io.Write(g, r, 72, []byte{1, 0, 0, 0, 0, 0, 0, 0}, true)
		if old, err := g.fetchAdd(r, 72, 1); err != nil || old != binary.NativeEndian.Uint64([]byte{1, 0, 0, 0, 0, 0, 0, 0}) {
			t.Errorf("%s: after a queued write: %d, %v", name, old, err)
		}
		if words[0] != 0 || words[2] != 0 {
			t.Errorf("%s: neighboring bytes changed", name)
		}
	}
}

func TestAtomicRejectsUnalignedMappedMemory(t *testing.T) {
	g := newFixture(t)
	b := bytesOf(make([]uint64, 4))
	if _, err := g.fetchAdd(g.region(HeapMemory(b[1:]), 0), 8, 1); err != ErrAlign {
		t.Errorf("fetch-add in unaligned memory: %v, want ErrAlign", err)
	}
}

func TestMappedAtomicsAreAtomicForTheClient(t *testing.T) {
	g := newFixture(t)
	words := make([]uint64, 1)
	r := g.region(HeapMemory(bytesOf(words)), 0)
	const rounds = 20000
	var client sync.WaitGroup
	client.Go(func() {
		for range rounds {
			addUint64(&words[0], 1)
		}
	})
	for range rounds {
		if _, err := g.fetchAdd(r, 0, 1<<32); err != nil {
			t.Fatal(err)
		}
		for {
			old, _ := g.compareSwap(r, 0, math.MaxUint64, 0) // reads
			if seen, _ := g.compareSwap(r, 0, old, old+1<<32); seen == old {
				break
			}
		}
	}
	client.Wait()
	if words[0] != rounds+2*rounds<<32 {
		t.Errorf("%#x: an addition was lost", words[0])
	}
}

func TestFinalBytesAreStoredLast(t *testing.T) {
	// As a client polls the last byte of a message in mapped memory.
	for _, n := range []int{16, 64, 1000, 4096, 65536} {
		g := newFixture(t)
		b := bytesOf(make([]uint64, n/8))
		r := g.region(HeapMemory(b), 0)
		stop := time.Now().Add(20 * time.Millisecond)
		p := make([]byte, n)
		for round := byte(1); time.Now().Before(stop); round++ {
			for i := range p {
				p[i] = round
			}
			done := make(chan bool)
			want := binary.NativeEndian.Uint64(p)
			go func() {
				for loadUint64(&b[n-8]) != want {
				}
				done <- b[0] == round && b[n-9] == round && b[n/2] == round
			}()
			g.io.Write(g, r, 0, p, true)
			if !<-done {
				t.Fatalf("%d bytes, round %d: the end was visible before the rest", n, round)
			}
		}
	}
}

func TestMemoryIsClosedTwoEpochsAfterDeregistration(t *testing.T) {
	g := newFixture(t)
	m := &closeCounter{Memory: HeapMemory(make([]byte, 8))}
	r := g.region(m, 0)
	if _, err := g.read(r, 0, 8); err != nil {
		t.Fatal(err)
	}
	g.table.Deregister(r)
	for epoch, want := range []int{0, 0, 1, 1, 1} {
		if m.closed != want {
			t.Errorf("after %d epochs it was closed %d times, want %d", epoch, m.closed, want)
		}
		g.io.Epoch()
	}
	if len(g.io.tables) != 0 || g.table.io != nil {
		t.Error("the IO still holds an empty table")
	}
}

func TestUnusedMemoryIsClosedAtOnce(t *testing.T) {
	g := newFixture(t)
	m := &closeCounter{Memory: HeapMemory(make([]byte, 8))}
	g.table.Deregister(g.region(m, 0))
	if m.closed != 1 {
		t.Errorf("closed %d times", m.closed)
	}
}

type closeCounter struct {
	Memory
	closed int
}

func (c *closeCounter) Close() error { c.closed++; return nil }

func TestProcessMemoryOfATableIsUsedByOneIO(t *testing.T) {
	g, p := newFixture(t), self(t)
	b := make([]byte, 8)
	mem, err := p.Memory(uint64(address(b)), 8, allRights)
	if err != nil {
		t.Fatal(err)
	}
	r, heap := g.region(mem, 0), g.region(HeapMemory(b), 0)
	if _, err := g.read(r, 0, 8); err != nil {
		t.Fatal(err)
	}
	second := NewIO(100)
	if _, err := second.Read(r, 0, 8); err != ErrForeign {
		t.Errorf("process memory: %v", err)
	}
	if _, err := second.Read(heap, 0, 8); err != nil {
		t.Errorf("mapped memory: %v", err)
	}
}

type shortViewMemory struct{ Memory }

func (shortViewMemory) View(_ uint64, n int) []byte { return make([]byte, n/2) }

func TestInvalidViewIsAnError(t *testing.T) {
	g := newFixture(t)
	r := g.region(shortViewMemory{HeapMemory(make([]byte, 64))}, 0)
	if _, err := g.read(r, 0, 64); err != ErrNotMemory {
		t.Errorf("read: %v", err)
	}
	g.io.Write("w", r, 0, make([]byte, 64), true)
	g.wantFailures(map[any]error{"w": ErrNotMemory})
	if _, err := g.fetchAdd(r, 0, 1); err != ErrNotMemory {
		t.Errorf("atomic: %v", err)
	}
}

func TestArenaHoldsReadsForTwoEpochs(t *testing.T) {
	g, p := newFixture(t), self(t)
	g.io = NewIO(256)
	b := bytes.Repeat([]byte{7}, 256)
	mem, err := p.Memory(uint64(address(b)), 256, allRights)
	if err != nil {
		t.Fatal(err)
	}
	r := g.region(mem, 0)
	if _, err := g.read(r, 0, 256+1); err != ErrBounds {
		t.Errorf("more bytes than the region: %v", err)
	}
	first, err := g.read(r, 0, 100) // takes 128
	if err != nil {
		t.Fatal(err)
	}
	g.io.Epoch()
	if _, err := g.read(r, 0, 64); err != nil {
		t.Fatal(err)
	}
	if _, err := g.read(r, 0, 65); err != ErrArena {
		t.Errorf("no room: %v", err)
	}
	for i := range b {
		b[i] = 8
	}
	if _, err := g.read(r, 0, 64); err != nil {
		t.Fatalf("exactly the rest: %v", err)
	}
	if !bytes.Equal(first, bytes.Repeat([]byte{7}, 100)) {
		t.Error("the first read was overwritten")
	}
	g.io.Epoch() // the first is released
	if _, err := g.read(r, 0, 128); err != nil {
		t.Errorf("in place of the first: %v", err)
	}
	if _, err := g.read(r, 0, 1); err != ErrArena {
		t.Errorf("no room again: %v", err)
	}
	g.io.Epoch()
	g.io.Epoch()
	if _, err := g.read(r, 0, 256); err != nil {
		t.Errorf("all of it: %v", err)
	}
	if !g.rd.Of(r, 0) {
		t.Error("what was read does not count as read")
	}
	g.io.ReleaseReads()
	if g.rd.Of(r, 0) {
		t.Error("what was released counts as read")
	}
	if _, err := g.read(r, 0, 256); err != nil {
		t.Errorf("all of it again: %v", err)
	}
	g.io = NewIO(0)
	mem, _ = p.Memory(uint64(address(b)), 256, allRights)
	g.table, g.pd = newTestTable(), nil
	g.pd = g.table.AllocPD()
	if _, err := g.read(g.region(mem, 0), 0, 1); err != ErrReadSize {
		t.Errorf("no arena: %v", err)
	}
}

func TestArenaDoesNotReuseLiveBytes(t *testing.T) {
	a := newArena(1024)
	type lease struct {
		p     []byte
		mark  byte
		epoch int
	}
	var leases []lease
	rnd := newRand(3)
	for epoch := range 2000 {
		for range rnd.IntN(6) {
			p, err := a.take(1 + rnd.IntN(400))
			if err != nil {
				continue
			}
			mark := byte(rnd.Uint32())
			for i := range p {
				p[i] = mark
			}
			leases = append(leases, lease{p, mark, epoch})
		}
		for _, l := range leases {
			for _, c := range l.p {
				if c != l.mark {
					t.Fatalf("epoch %d: a buffer of epoch %d was reused", epoch, l.epoch)
				}
			}
		}
		a.epoch()
		for len(leases) > 0 && leases[0].epoch < epoch {
			leases = leases[1:]
		}
	}
}
