package mrtable

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// The model test executes random registrations and accesses, decoded from bytes, and compares with
// a copy of the memory and a list of registrations. After each step all memory must equal the copy,
// so that nothing outside a region changes, and nothing inside it without a write.

const modelSize = 3 * page

// A model is memory between two inaccessible pages, with its expected content and registrations.
type model struct {
	*fixture
	kind    int
	memory  []byte
	shadow  []byte
	backing func(off, n uint64) (Memory, error)

	pds     []*PD
	regions []*modelRegion // live and some former regions and bound windows
	windows []*Window
	pending []pendingWrite
	failed  map[any]error
}

// A modelRegion is a region as the model knows it.
type modelRegion struct {
	*Region
	off, length uint64
	live        bool
	parent      *modelRegion // set for a bound window
}

func (c *modelRegion) registered() *modelRegion {
	if c.parent != nil {
		return c.parent
	}
	return c
}

// A pendingWrite is a queued write.
type pendingWrite struct {
	tag any
	c   *modelRegion
	off uint64
	p   []byte
}

const modelKinds = 5

// newModel returns a model whose memory is of the kind-th kind.
func newModel(t testing.TB, kind int, ps *[3]*Process) *model {
	w := &model{fixture: newFixture(t), kind: kind, shadow: make([]byte, modelSize), failed: map[any]error{}}
	fd := memfd(t, modelSize, 0, unix.F_SEAL_SHRINK)
	all, err := unix.Mmap(-1, 0, modelSize+2*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(all) })
	w.memory = all[page : page+modelSize : page+modelSize]
	place := unsafePointer(w.memory)
	if _, err := unix.MmapPtr(fd, 0, place, modelSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		t.Fatal(err)
	}
	switch kind {
	case 0:
		w.backing = func(off, n uint64) (Memory, error) { return HeapMemory(w.memory[off : off+n]), nil }
	case 1:
		f := new(Files)
		held := must(f.Hold(fd))
		t.Cleanup(func() { held.Close() })
		w.backing = func(off, n uint64) (Memory, error) { return f.Map(fd, off, n, ib.AccessLocalWrite) }
	case 4:
		w.backing = func(off, n uint64) (Memory, error) { return ps[2].MapGuarded(fd, off, n, ib.AccessLocalWrite) }
	default:
		p := ps[kind-2]
		w.backing = func(off, n uint64) (Memory, error) {
			return p.Memory(uint64(address(w.memory))+off, n, 0)
		}
	}
	w.pds = []*PD{w.pd, w.table.AllocPD()}
	return w
}

// input provides the bytes that determine the steps.
type input []byte

func (in *input) byte() byte {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return b
}

func (in *input) uint16() uint64 { return uint64(in.byte())<<8 | uint64(in.byte()) }

func (w *model) step(in *input) {
	switch in.byte() % 16 {
	case 0, 1:
		w.register(in)
	case 2:
		w.deregister(in)
	case 3, 4:
		w.lookup(in)
	case 5:
		w.read(in)
	case 6, 7, 8:
		w.write(in)
	case 9:
		w.atomic(in)
	case 10:
		w.io.Flush()
		w.flushed()
	case 11:
		w.io.Epoch()
		w.report()
	case 12, 13:
		w.bind(in)
	case 14:
		w.invalidate(in)
	case 15:
		w.dealloc(in)
	}
	if !bytes.Equal(w.memory, w.shadow) {
		w.t.Fatalf("kind %d: unexpected memory content, first at %d", w.kind, firstDifference(w.memory, w.shadow))
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// rights are the access rights that regions and accesses choose from.
var rights = []ib.Access{0, ib.AccessLocalWrite, ib.AccessRemoteRead, ib.AccessLocalWrite | ib.AccessRemoteWrite, allRights, ib.AccessLocalWrite | ib.AccessRemoteAtomic, ib.AccessRemoteWrite, 1 << 9,
	ib.AccessLocalWrite | ib.AccessMWBind, allRights | ib.AccessMWBind, ib.AccessMWBind}

func (w *model) register(in *input) {
	off := in.uint16() % (modelSize + 1)
	length := in.uint16() % (modelSize - off + 1)
	iovas := []uint64{uint64(address(w.memory)) + off, 0, -length, -length + 1, 1 << 63, in.uint16()}
	iova := iovas[int(in.byte())%len(iovas)]
	a := rights[int(in.byte())%len(rights)]
	pd := w.pds[int(in.byte())%2]
	mem, err := w.backing(off, length)
	if err != nil {
		w.t.Fatal(err)
	}
	asked := length + uint64(in.byte()&1) // sometimes more than the memory has
	r, err := w.table.Register(pd, mem, iova, asked, a)
	_, carry := bits.Add64(iova, asked-min(asked, 1), 0)
	wrong := asked > length || asked > 0 && carry != 0 || checkAccess(a) != nil
	if (err != nil) != wrong {
		w.t.Fatalf("registering %d of %d bytes at %#x with %v: %v", asked, length, iova, a, err)
	}
	if err != nil {
		mem.Close()
		return
	}
	w.regions = append(w.regions, &modelRegion{Region: r, off: off, length: length, live: true})
}

func (w *model) pickRegion(in *input) *modelRegion {
	if len(w.regions) == 0 {
		return nil
	}
	return w.regions[int(in.byte())%len(w.regions)]
}

func (w *model) deregister(in *input) {
	c := w.pickRegion(in)
	if c == nil || c.parent != nil {
		return
	}
	var want error
	for _, o := range w.regions {
		if o.live && o.parent == c {
			want = ErrBusy
		}
	}
	if err := w.table.Deregister(c.Region); err != want {
		w.t.Fatalf("deregister: %v, want %v", err, want)
	}
	c.live = c.live && want != nil
}

// pickRange returns a range near the region's ends.
func (w *model) pickRange(in *input, c *modelRegion) (addr, n uint64) {
	edges := []uint64{0, c.length, c.length / 2, in.uint16() % (c.length + 1)}
	addr = c.IOVA + edges[int(in.byte())%len(edges)] + uint64(int8(in.byte()))
	lengths := []uint64{uint64(in.byte() % 32), c.IOVA + c.length - addr, in.uint16() % (c.length + 1), 0xffffffff}
	n = lengths[int(in.byte())%len(lengths)] & 0xffffffff
	return addr, n
}

// contains reports whether a range is in the region, computed without overflow.
func (c *modelRegion) contains(addr, n uint64) bool {
	end, carry := bits.Add64(addr, n, 0)
	limit, limitCarry := bits.Add64(c.IOVA, c.length, 0)
	return addr >= c.IOVA && (carry < limitCarry || carry == limitCarry && end <= limit)
}

func (w *model) lookup(in *input) {
	c := w.pickRegion(in)
	if c == nil {
		return
	}
	addr, n := w.pickRange(in, c)
	need := rights[int(in.byte())%5]
	pd := w.pds[int(in.byte())%2]
	key := c.RKey()
	if in.byte()%8 == 0 {
		key ^= 1 << (in.byte() % 32)
	}
	qpn := uint32(in.byte() % 2)
	got, err := w.table.Remote(pd, qpn, key, addr, uint32(n), need)
	var owner *modelRegion
	for _, o := range w.regions {
		if o.live && o.RKey() == key {
			owner = o
		}
	}
	var want error
	switch {
	case owner == nil:
		want = ErrKey
	case owner.window != nil && owner.window.kind != Type1 && owner.window.qpn != qpn:
		want = ErrQP
	case owner.PD != pd && (owner.window == nil || owner.window.kind != Type2A):
		want = ErrPD
	case owner.Access&need != need:
		want = ErrAccess
	case !owner.contains(addr, n):
		want = ErrBounds
	}
	if err != want || (err == nil && got != owner.Region) {
		w.t.Fatalf("%d bytes at %#x in [%#x, +%d): %v, want %v", n, addr, c.IOVA, c.length, err, want)
	}
}

// accessError returns the error that an access through the IO must return.
func (c *modelRegion) accessError(addr, n uint64, need ib.Access) error {
	switch {
	case !c.live:
		return ErrKey
	case c.Access&need != need:
		return ErrAccess
	case !c.contains(addr, n):
		return ErrBounds
	}
	return nil
}

func (w *model) read(in *input) {
	c := w.pickRegion(in)
	if c == nil {
		return
	}
	addr, n := w.pickRange(in, c)
	got, err := w.fixture.read(c.Region, addr, int(n))
	if want := c.accessError(addr, n, 0); want != nil {
		if err != want {
			w.t.Fatalf("read: %v, want %v", err, want)
		}
		return
	}
	if w.kind >= 2 {
		if err == ErrArena {
			return
		}
		if n > 0 {
			w.flushed()
		}
	}
	from := c.off + (addr - c.IOVA)
	if err != nil || !bytes.Equal(got, w.shadow[from:from+n]) {
		w.t.Fatalf("read %d bytes: %v, or wrong bytes", n, err)
	}
}

func (w *model) write(in *input) {
	c := w.pickRegion(in)
	if c == nil {
		return
	}
	addr, n := w.pickRange(in, c)
	size := min(n, modelSize+1) // less than the region may claim, but enough to exceed any region
	p := make([]byte, size)
	fill := in.byte()
	for i := range p {
		p[i] = fill + byte(i)
	}
	tag, last := any(int(in.byte()%4)), in.byte()&1 == 1
	w.io.Write(tag, c.Region, addr, p, last)
	if w.failed[tag] != nil {
		return
	}
	if err := c.accessError(addr, size, ib.AccessLocalWrite); err != nil {
		w.failed[tag] = err
		return
	}
	w.pending = append(w.pending, pendingWrite{tag, c, c.off + (addr - c.IOVA), p})
	if w.kind < 2 {
		w.flushed()
	}
}

func (w *model) atomic(in *input) {
	c := w.pickRegion(in)
	if c == nil {
		return
	}
	addr, _ := w.pickRange(in, c)
	addr &^= uint64(in.byte() & 7)
	add, swap := uint64(in.byte()), in.byte()&1 == 1
	var old uint64
	var err error
	var compare uint64
	if swap {
		compare = 0x0706050403020100 + 0x0101010101010101*add
		old, err = w.compareSwap(c.Region, addr, compare, add)
	} else {
		old, err = w.fetchAdd(c.Region, addr, add)
	}
	want := c.accessError(addr, 8, ib.AccessLocalWrite)
	if want == nil && addr%8 != 0 {
		want = ErrAlign
	}
	at := c.off + (addr - c.IOVA)
	if want == nil && w.kind < 2 && at%8 != 0 {
		want = ErrAlign
	}
	if err != want {
		w.t.Fatalf("atomic: %v, want %v", err, want)
	}
	if err != nil {
		return
	}
	w.flushed()
	word := w.shadow[at : at+8]
	if was := binary.NativeEndian.Uint64(word); was != old {
		w.t.Fatalf("atomic gave %#x, memory held %#x", old, was)
	}
	switch {
	case !swap:
		binary.NativeEndian.PutUint64(word, old+add)
	case old == compare:
		binary.NativeEndian.PutUint64(word, add)
	}
}

// flushed applies the queued writes to the copy.
func (w *model) flushed() {
	for _, i := range w.pending {
		if !i.c.registered().live && w.failed[i.tag] == nil && len(i.p) > 0 {
			w.failed[i.tag] = ErrKey
		}
		if w.failed[i.tag] == nil {
			copy(w.shadow[i.off:], i.p)
		}
	}
	w.pending = nil
}

// report compares the failed tags.
func (w *model) report() {
	w.wantFailures(w.failed)
	clear(w.failed)
}

func (w *model) run(in input) {
	for steps := 0; len(in) > 0 && steps < 2000; steps++ {
		w.step(&in)
	}
	w.io.Flush()
	w.flushed()
	w.report()
	for _, m := range w.windows {
		w.table.DeallocWindow(m)
	}
	for _, c := range w.regions {
		w.table.Deregister(c.Region)
	}
	w.io.Epoch()
	w.io.Epoch()
	if len(w.io.dirty) != 0 || len(w.io.tables) != 0 || w.table.Len() != 0 {
		w.t.Fatal("state is left after the last region was deregistered")
	}
	if !bytes.Equal(w.memory, w.shadow) {
		w.t.Fatal("unexpected memory content at the end")
	}
}

func TestRandomAccessesMatchModel(t *testing.T) {
	ps := [3]*Process{self(t), selfMem(t), guardedSelf(t)}
	for seed := range uint64(200) {
		rnd := newRand(seed)
		in := make(input, 3000)
		for i := range in {
			in[i] = byte(rnd.Uint32())
		}
		for kind := range modelKinds {
			newModel(t, kind, &ps).run(in)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// FuzzAccess searches for a sequence of calls that panics, changes a byte outside a region, or
// differs from the model.
func FuzzAccess(f *testing.F) {
	for seed := range uint64(4) {
		rnd := newRand(seed)
		in := make([]byte, 300)
		for i := range in {
			in[i] = byte(rnd.Uint32())
		}
		f.Add(byte(seed), in)
	}
	ps := [3]*Process{self(f), selfMem(f), guardedSelf(f)}
	f.Fuzz(func(t *testing.T, kind byte, in []byte) {
		newModel(t, int(kind)%modelKinds, &ps).run(in)
	})
}

// FuzzLookup uses arbitrary numbers.
func FuzzLookup(f *testing.F) {
	f.Add(uint64(0x1000), uint16(64), uint64(0x1000), uint32(64))
	f.Add(^uint64(0)-63, uint16(64), ^uint64(0), uint32(1))
	f.Add(^uint64(0), uint16(1), uint64(0), uint32(1))
	buf := make([]byte, 1<<16)
	f.Fuzz(func(t *testing.T, iova uint64, length uint16, addr uint64, n uint32) {
		g := newFixture(t)
		r, err := g.table.Register(g.pd, HeapMemory(buf), iova, uint64(length), allRights)
		if err != nil {
			return
		}
		c := &modelRegion{Region: r, length: uint64(length), live: true}
		_, err = g.table.Local(g.pd, r.LKey(), addr, n, ib.AccessLocalWrite)
		if (err == nil) != c.contains(addr, uint64(n)) {
			t.Errorf("%d bytes at %#x in [%#x, +%d): %v", n, addr, iova, length, err)
		}
		p, err := g.read(r, addr, int(n))
		if (err == nil) != c.contains(addr, uint64(n)) || err == nil && len(p) != int(n) {
			t.Errorf("read %d bytes at %#x in [%#x, +%d): %v", n, addr, iova, length, err)
		}
	})
}
