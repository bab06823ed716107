package mrtable

import (
	"bytes"
	"testing"

	"softroce/internal/ib"
)

// A windowFixture is a fixture with 4096 bytes at pageBase registered for windows, and a window.
type windowFixture struct {
	*fixture
	mem []byte
	r   *Region
	w   *Window
}

const pageBase = 0x10000

const bindable = ib.AccessLocalWrite | ib.AccessMWBind | ib.AccessFlushGlobal

func newWindowFixture(t *testing.T, k WindowType) *windowFixture {
	p := &windowFixture{fixture: newFixture(t), mem: bytesOf(make([]uint64, 512))}
	p.r = mustRegister(t, p.table, p.pd, HeapMemory(p.mem), pageBase, bindable)
	p.w = p.alloc(k)
	return p
}

func (p *windowFixture) alloc(k WindowType) *Window {
	p.t.Helper()
	w, err := p.table.AllocWindow(p.pd, k)
	if err != nil {
		p.t.Fatal(err)
	}
	return w
}

// half returns the binding of the second half of the region with write access, by queue pair 17.
func (p *windowFixture) half() Binding {
	return Binding{PD: p.pd, QPN: 17, RKey: nextKey(p.w.RKey()), LKey: p.r.LKey(), Addr: pageBase + 2048, Length: 2048,
		Access: ib.AccessRemoteWrite | ib.AccessRemoteRead}
}

// nextKey is ibv_inc_rkey.
func nextKey(k uint32) uint32 { return k&^0xff | (k+1)&0xff }

func (p *windowFixture) bind(b Binding) {
	p.t.Helper()
	if err := p.table.Bind(b); err != nil {
		p.t.Fatal(err)
	}
}

func TestWindowGrantsOnlyWhatWasBound(t *testing.T) {
	p := newWindowFixture(t, Type2B)
	other := p.table.AllocPD()
	b := p.half()
	p.bind(b)
	if p.w.RKey() != b.RKey {
		t.Fatalf("key %#x, bound with %#x", p.w.RKey(), b.RKey)
	}
	for _, c := range []struct {
		name string
		pd   *PD
		qpn  uint32
		key  uint32
		addr uint64
		n    uint32
		need ib.Access
		want error
	}{
		{"all of it", p.pd, 17, b.RKey, pageBase + 2048, 2048, ib.AccessRemoteWrite, nil},
		{"its last byte", p.pd, 17, b.RKey, pageBase + 4095, 1, ib.AccessRemoteRead, nil},
		{"a byte before", p.pd, 17, b.RKey, pageBase + 2047, 2, ib.AccessRemoteWrite, ErrBounds},
		{"a byte after", p.pd, 17, b.RKey, pageBase + 2048, 2049, ib.AccessRemoteWrite, ErrBounds},
		{"an access right that it lacks", p.pd, 17, b.RKey, pageBase + 2048, 8, ib.AccessRemoteAtomic, ErrAccess},
		{"another queue pair", p.pd, 18, b.RKey, pageBase + 2048, 8, ib.AccessRemoteRead, ErrQP},
		{"another domain", other, 17, b.RKey, pageBase + 2048, 8, ib.AccessRemoteRead, ErrPD},
		{"the key before", p.pd, 17, b.RKey - 1, pageBase + 2048, 8, ib.AccessRemoteRead, ErrKey},
		{"the region's key, which has no remote rights", p.pd, 17, p.r.RKey(), pageBase + 2048, 8, ib.AccessRemoteRead, ErrAccess},
	} {
		if _, err := p.table.Remote(c.pd, c.qpn, c.key, c.addr, c.n, c.need); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := p.table.Local(p.pd, b.RKey, pageBase+2048, 8, 0); err != ErrKey {
		t.Errorf("as a local key: %v", err)
	}
}

func TestWindowTypeChecks(t *testing.T) {
	for _, c := range []struct {
		kind                  WindowType
		otherQP, otherPD, two error // another queue pair; another domain; both
	}{
		{Type1, nil, ErrPD, ErrPD},
		{Type2A, ErrQP, nil, ErrQP},
		{Type2B, ErrQP, ErrPD, ErrQP},
	} {
		p := newWindowFixture(t, c.kind)
		other := p.table.AllocPD()
		b := p.half()
		p.bind(b)
		try := func(pd *PD, qpn uint32) error {
			_, err := p.table.Remote(pd, qpn, b.RKey, b.Addr, 8, ib.AccessRemoteWrite)
			return err
		}
		if got := try(p.pd, 17); got != nil {
			t.Errorf("type %v: %v", c.kind, got)
		}
		if a, b, d := try(p.pd, 18), try(other, 17), try(other, 18); a != c.otherQP || b != c.otherPD || d != c.two {
			t.Errorf("type %v: another queue pair: %v, domain: %v, both: %v", c.kind, a, b, d)
		}
	}
}

func TestRejectedBindChangesNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		kind WindowType
		edit func(*windowFixture, *Binding)
		want error
	}{
		{"no such window", Type1, func(p *windowFixture, b *Binding) { b.RKey ^= 1 << 8 }, ErrKey},
		{"no such slot", Type1, func(p *windowFixture, b *Binding) { b.RKey += 1 << 20 }, ErrKey},
		{"a region for a window", Type1, func(p *windowFixture, b *Binding) { b.RKey = p.r.RKey() }, ErrKey},
		{"queue pair of another domain", Type2B, func(p *windowFixture, b *Binding) { b.PD = p.table.AllocPD() }, ErrPD},
		{"no such region", Type1, func(p *windowFixture, b *Binding) { b.LKey ^= 1 }, ErrKey},
		{"a window for a region", Type1, func(p *windowFixture, b *Binding) { b.LKey = p.w.RKey() }, ErrKey},
		{"region of another domain", Type1, func(p *windowFixture, b *Binding) {
			b.LKey = mustRegister(p.t, p.table, p.table.AllocPD(), HeapMemory(p.mem), pageBase, bindable).LKey()
		}, ErrPD},
		{"region without MWBind", Type1, func(p *windowFixture, b *Binding) {
			b.LKey = mustRegister(p.t, p.table, p.pd, HeapMemory(p.mem), pageBase, ib.AccessLocalWrite).LKey()
		}, ErrAccess},
		{"zero-based region", Type1, func(p *windowFixture, b *Binding) {
			b.LKey, b.Addr = mustRegister(p.t, p.table, p.pd, HeapMemory(p.mem), 0, ib.AccessLocalWrite|ib.AccessMWBind|ib.AccessZeroBased).LKey(), 0
		}, ErrAccess},
		{"RemoteWrite to a region without LocalWrite", Type1, func(p *windowFixture, b *Binding) {
			b.LKey = mustRegister(p.t, p.table, p.pd, HeapMemory(p.mem), pageBase, ib.AccessMWBind).LKey()
		}, ErrAccess},
		{"RemoteAtomic to a region without LocalWrite", Type2A, func(p *windowFixture, b *Binding) {
			b.LKey = mustRegister(p.t, p.table, p.pd, HeapMemory(p.mem), pageBase, ib.AccessMWBind).LKey()
			b.Access = ib.AccessRemoteAtomic
		}, ErrAccess},
		{"FlushGlobal to a region without", Type1, func(p *windowFixture, b *Binding) {
			b.LKey = mustRegister(p.t, p.table, p.pd, HeapMemory(p.mem), pageBase, ib.AccessLocalWrite|ib.AccessMWBind).LKey()
			b.Access = ib.AccessFlushGlobal
		}, ErrAccess},
		{"LocalWrite", Type1, func(p *windowFixture, b *Binding) { b.Access |= ib.AccessLocalWrite }, ErrFlags},
		{"past the region", Type1, func(p *windowFixture, b *Binding) { b.Length++ }, ErrBounds},
		{"before the region", Type2B, func(p *windowFixture, b *Binding) { b.Addr = pageBase - 1 }, ErrBounds},
		{"zero-based and past the region", Type1, func(p *windowFixture, b *Binding) { b.Length++; b.Access |= ib.AccessZeroBased }, ErrBounds},
		{"type 2 with zero length", Type2B, func(p *windowFixture, b *Binding) { b.Length = 0 }, ErrWindow},
	} {
		p := newWindowFixture(t, c.kind)
		key := p.w.RKey()
		b := p.half()
		c.edit(p, &b)
		if err := p.table.Bind(b); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if p.w.Bound() != nil || p.w.RKey() != key || p.table.Deregister(p.r) != nil {
			t.Errorf("%s: the window or the region has changed", c.name)
		}
	}
}

func TestReadOnlyRegionAllowsReadOnlyWindow(t *testing.T) {
	p := newWindowFixture(t, Type1)
	b := p.half()
	b.LKey = mustRegister(t, p.table, p.pd, HeapMemory(p.mem), pageBase, ib.AccessMWBind).LKey()
	b.Access = ib.AccessRemoteRead
	p.bind(b)
	p.io.Write(p, p.w.Bound(), b.Addr, []byte{1}, true)
	p.wantFailures(map[any]error{p: ErrAccess})
}

func TestOnlyType1CanBeBoundTwice(t *testing.T) {
	for kind, want := range map[WindowType]error{Type1: nil, Type2A: ErrWindow, Type2B: ErrWindow} {
		p := newWindowFixture(t, kind)
		b := p.half()
		p.bind(b)
		first := p.w.Bound()
		again := b
		again.RKey, again.Addr, again.Length = nextKey(b.RKey), pageBase, 16
		if err := p.table.Bind(again); err != want {
			t.Errorf("type %v bound twice: %v, want %v", kind, err, want)
		}
		if first.Live() != (want != nil) {
			t.Errorf("type %v: the first bind's region is live: %v", kind, first.Live())
		}
		if _, err := p.table.Remote(p.pd, 17, b.RKey, b.Addr, 8, ib.AccessRemoteWrite); (err == nil) != (want != nil) {
			t.Errorf("type %v: the first bind's key: %v", kind, err)
		}
	}
}

func TestZeroLengthBindUnbindsType1(t *testing.T) {
	p := newWindowFixture(t, Type1)
	p.bind(p.half())
	b := p.half()
	p.bind(Binding{PD: p.pd, RKey: b.RKey})
	if p.w.Bound() != nil || p.w.RKey() != b.RKey {
		t.Errorf("bound %v, key %#x", p.w.Bound(), p.w.RKey())
	}
	if _, err := p.table.Remote(p.pd, 17, b.RKey, pageBase+2048, 0, 0); err != ErrKey {
		t.Error(err)
	}
}

func TestInvalidateChecks(t *testing.T) {
	for _, c := range []struct {
		name string
		kind WindowType
		edit func(p *windowFixture, pd **PD, qpn, key *uint32)
		want error
	}{
		{"its queue pair", Type2B, func(*windowFixture, **PD, *uint32, *uint32) {}, nil},
		{"its queue pair, 2A", Type2A, func(*windowFixture, **PD, *uint32, *uint32) {}, nil},
		{"another queue pair", Type2B, func(_ *windowFixture, _ **PD, qpn, _ *uint32) { *qpn = 18 }, ErrQP},
		{"another domain", Type2B, func(p *windowFixture, pd **PD, _, _ *uint32) { *pd = p.table.AllocPD() }, ErrPD},
		{"an old key", Type2B, func(_ *windowFixture, _ **PD, _, key *uint32) { *key-- }, ErrKey},
		{"no slot", Type2B, func(_ *windowFixture, _ **PD, _, key *uint32) { *key += 1 << 24 }, ErrKey},
		{"type 1", Type1, func(*windowFixture, **PD, *uint32, *uint32) {}, ErrWindow},
		{"a region", Type2B, func(p *windowFixture, _ **PD, _, key *uint32) { *key = p.r.RKey() }, ErrWindow},
	} {
		p := newWindowFixture(t, c.kind)
		p.bind(p.half())
		pd, qpn, key := p.pd, uint32(17), p.w.RKey()
		c.edit(p, &pd, &qpn, &key)
		if err := p.table.Invalidate(pd, qpn, key); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if (p.w.Bound() == nil) != (c.want == nil) {
			t.Errorf("%s: bound is %v", c.name, p.w.Bound())
		}
	}
}

func TestInvalidatedWindowCanBeBoundAgain(t *testing.T) {
	p := newWindowFixture(t, Type2B)
	p.bind(p.half())
	for range 2 { // the second time the window is unbound, which is no error
		if err := p.table.Invalidate(p.pd, 17, p.w.RKey()); err != nil {
			t.Fatal(err)
		}
	}
	if p.w.QPN() != 0 {
		t.Errorf("still of queue pair %d", p.w.QPN())
	}
	b := p.half()
	b.QPN = 18
	p.bind(b)
	if p.w.QPN() != 18 {
		t.Errorf("bound by queue pair %d", p.w.QPN())
	}
}

func TestRegionWithWindowsCannotBeDeregistered(t *testing.T) {
	p := newWindowFixture(t, Type2B)
	second := p.alloc(Type1)
	p.bind(p.half())
	b := p.half()
	b.RKey = second.RKey()
	p.bind(b)
	for range 2 {
		if err := p.table.Deregister(p.r); err != ErrBusy || !p.r.Live() {
			t.Fatalf("deregister: %v", err)
		}
		p.table.DeallocWindow(p.w) // a bound window may be deallocated
		p.w = second
	}
	if err := p.table.Deregister(p.r); err != nil || p.r.Live() {
		t.Errorf("deregister: %v", err)
	}
	p.table.DeallocWindow(second) // no effect
	if err := p.table.DeallocPD(p.pd); err != nil {
		t.Error(err)
	}
}

func TestPDWithWindowCannotBeDeallocated(t *testing.T) {
	table := newTestTable()
	pd := table.AllocPD()
	w, err := table.AllocWindow(pd, Type1)
	if err != nil || table.DeallocPD(pd) != ErrBusy {
		t.Fatal(err)
	}
	table.DeallocWindow(w)
	if err := table.DeallocPD(pd); err != nil {
		t.Error(err)
	}
	for _, pd := range []*PD{nil, pd, newTestTable().AllocPD()} {
		if _, err := table.AllocWindow(pd, Type1); err != ErrPD {
			t.Error(err)
		}
	}
	if _, err := table.AllocWindow(table.AllocPD(), 0); err != ErrWindow {
		t.Error(err)
	}
}

func TestZeroBasedWindowStartsAtZero(t *testing.T) {
	p := newWindowFixture(t, Type2B)
	b := p.half()
	b.Addr, b.Length, b.Access = pageBase+64, 32, ib.AccessRemoteWrite|ib.AccessRemoteAtomic|ib.AccessZeroBased
	p.bind(b)
	r, err := p.table.Remote(p.pd, 17, b.RKey, 8, 24, ib.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	p.io.Write(p, r, 8, []byte("here"), true)
	if !bytes.Equal(p.mem[72:76], []byte("here")) {
		t.Errorf("memory holds %q", p.mem[64:96])
	}
	if got, err := p.read(r, 8, 4); string(got) != "here" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := p.fetchAdd(r, 16, 5); err != nil || p.mem[80] != 5 {
		t.Errorf("atomic: %v, %d", err, p.mem[80])
	}
	for _, at := range []uint64{32, pageBase + 64} {
		if _, err := p.table.Remote(p.pd, 17, b.RKey, at, 1, ib.AccessRemoteWrite); err != ErrBounds {
			t.Errorf("at %#x: %v", at, err)
		}
	}
}

// TestWritesBeforeInvalidationAreExecuted invalidates a window between a write to another process's
// memory and the flush at the end of the step.
func TestWritesBeforeInvalidationAreExecuted(t *testing.T) {
	for name, proc := range map[string]*Process{"process_vm": self(t), "mem": selfMem(t)} {
		g := newFixture(t)
		mem := make([]byte, 64)
		m, err := proc.Memory(uint64(address(mem)), 64, 0)
		if err != nil {
			t.Fatal(err)
		}
		r := mustRegister(t, g.table, g.pd, m, pageBase, bindable)
		w, _ := g.table.AllocWindow(g.pd, Type2B)
		b := Binding{PD: g.pd, QPN: 17, RKey: w.RKey(), LKey: r.LKey(), Addr: pageBase + 16, Length: 16, Access: ib.AccessRemoteWrite}
		if err := g.table.Bind(b); err != nil {
			t.Fatal(err)
		}
		bound := w.Bound()
		g.io.Write("early", bound, pageBase+16, []byte("in time"), true)
		if err := g.table.Invalidate(g.pd, 17, b.RKey); err != nil {
			t.Fatal(err)
		}
		g.io.Write("late", bound, pageBase+24, []byte("too late"), true)
		g.io.Flush()
		if string(mem[16:23]) != "in time" || mem[24] != 0 {
			t.Errorf("%s: memory holds %q", name, mem[16:32])
		}
		g.wantFailures(map[any]error{"late": ErrKey})
		if _, err := g.read(bound, pageBase+16, 8); err != ErrKey {
			t.Errorf("%s: read: %v", name, err)
		}

		// The region can be deregistered afterwards.
		b.RKey = nextKey(b.RKey)
		if err := g.table.Bind(b); err != nil {
			t.Fatal(err)
		}
		g.io.Write("deregistered", w.Bound(), pageBase+16, []byte("nowhere"), true)
		g.table.DeallocWindow(w)
		if err := g.table.Deregister(r); err != nil {
			t.Fatal(err)
		}
		g.io.Flush()
		g.wantFailures(map[any]error{"deregistered": ErrKey})
		if string(mem[16:23]) != "in time" {
			t.Errorf("%s: memory holds %q", name, mem[16:32])
		}
	}
}

func TestStoreWordFollowsQueuedWrites(t *testing.T) {
	for name, proc := range map[string]*Process{"mapped": nil, "process_vm": self(t)} {
		g := newFixture(t)
		mem := bytesOf(make([]uint64, 8))
		m := HeapMemory(mem)
		if proc != nil {
			var err error
			if m, err = proc.Memory(uint64(address(mem)), 64, 0); err != nil {
				t.Fatal(err)
			}
		}
		r := g.region(m, 0x1000)
		g.io.Write(g, r, 0x1000, bytes.Repeat([]byte{7}, 24), false)
		if err := g.storeWord(r, 0x1008, 0x0102030405060708); err != nil {
			t.Fatal(err)
		}
		if loadUint64(&mem[8]) != 0x0102030405060708 || mem[7] != 7 || mem[16] != 7 {
			t.Errorf("%s: memory holds %x", name, mem[:24])
		}
		if err := g.storeWord(r, 0x1004, 0); err != ErrAlign {
			t.Errorf("%s, not aligned: %v", name, err)
		}
		if err := g.storeWord(r, 0x1040, 0); err != ErrBounds {
			t.Errorf("%s, outside: %v", name, err)
		}
		g.table.Deregister(r)
		if err := g.storeWord(r, 0x1000, 0); err != ErrKey {
			t.Errorf("%s, deregistered: %v", name, err)
		}
	}
}

func TestAllOmitsWindows(t *testing.T) {
	p := newWindowFixture(t, Type1)
	p.bind(p.half())
	p.table.Deregister(p.w.Bound()) // no effect
	n := 0
	for range p.table.All() {
		n++
	}
	if n != 1 || p.table.Len() != 1 || !p.w.Bound().Live() {
		t.Errorf("%d regions, Len %d", n, p.table.Len())
	}
}
