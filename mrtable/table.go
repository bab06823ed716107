package mrtable

import (
	"iter"
	"math"
	"math/rand/v2"

	"softroce/internal/ib"
)

// A key is the number of a slot and, in the low bits, a tag that nobody can guess and
// that changes each time the slot is used again. The slots are more than any NIC
// offers; the tag has what is left.
const (
	tagBits    = 12
	tagMask    = 1<<tagBits - 1
	maxRegions = 1<<(32-tagBits) - 1 // slot 0 stays empty, so that no key is 0
)

// A Table holds the protection domains and memory regions of one NIC. It is used by one
// goroutine, its engine's.
type Table struct {
	rnd   *rand.Rand
	slots []slot
	free  []uint32 // oldest first, so that a slot rests as long as possible
	live  int

	// Deregistered memory waits here for IO.Epoch: retired since the last one, and before
	// that.
	io      *IO
	retired []*Region
	dying   []*Region
}

type slot struct {
	region *Region // nil: free, or a window that is not bound
	window *Window
	tag    uint32
}

// A PD is a protection domain. Its identity is the pointer.
type PD struct {
	table *Table // nil after DeallocPD
	uses  int
}

// A Region is registered memory. Its fields do not change while it is live.
type Region struct {
	PD     *PD
	IOVA   uint64 // the address of its first byte, as work requests and packets give it
	Length uint64 // bytes
	Access ib.Access
	Memory Memory

	table   *Table
	key     uint32
	live    bool
	process *processMemory // what Memory is, where it can only be copied
	queue   *queue         // the process's, once an IO has used the region
	windows int            // bound to it

	// A bound window is a region too: a part of another.
	window *Window
	parent *Region
	base   uint64 // where it begins in Memory
}

// origin is the registered region behind r.
func (r *Region) origin() *Region {
	if r.parent != nil {
		return r.parent
	}
	return r
}

// offset is where the byte at addr lies in Memory.
func (r *Region) offset(addr uint64) uint64 { return addr - r.IOVA + r.base }

// NewTable returns an empty table. rnd makes the unpredictable part of keys: seed it
// from crypto/rand, except where keys must be repeatable.
func NewTable(rnd *rand.Rand) *Table {
	return &Table{rnd: rnd, slots: make([]slot, 1)}
}

// AllocPD returns a new protection domain.
func (t *Table) AllocPD() *PD { return &PD{table: t} }

// DeallocPD ends a protection domain. It returns ErrBusy while a region or another
// object uses it and ErrPD if it is not one of this table's.
func (t *Table) DeallocPD(pd *PD) error {
	if pd == nil || pd.table != t {
		return ErrPD
	}
	if pd.uses > 0 {
		return ErrBusy
	}
	pd.table = nil
	return nil
}

// Use counts an object (QP, SRQ, AH …) that refers to the domain.
func (pd *PD) Use() { pd.uses++ }

// Release takes back one Use.
func (pd *PD) Release() { pd.uses-- }

// InUse is how many regions and other objects refer to the domain.
func (pd *PD) InUse() int { return pd.uses }

// Register makes the first length bytes of mem a region that begins at address iova (0 if a
// has ZeroBased). It returns ErrFlags as ibv_reg_mr does EINVAL; ErrAccess where a asks for
// writing and mem was mapped without; ErrBounds where mem is shorter or the addresses would
// exceed 64 bits. The table closes mem when the region is gone, but not if Register returns
// an error.
func (t *Table) Register(pd *PD, mem Memory, iova, length uint64, a ib.Access) (*Region, error) {
	r, err := t.describe(pd, mem, iova, length, a)
	if err != nil {
		return nil, err
	}
	index, ok := t.takeSlot()
	if !ok {
		return nil, ErrFull
	}
	r.key = index<<tagBits | t.slots[index].tag
	t.begin(r)
	return r, nil
}

// Reregister gives what Register would give the keys of old, which is no more: what still holds old
// finds it dead, as after Deregister. Errors are those of both; then old is as it was.
func (t *Table) Reregister(old *Region, pd *PD, mem Memory, iova, length uint64, a ib.Access) (*Region, error) {
	if old == nil || old.table != t || !old.live || old.window != nil {
		return nil, ErrKey
	}
	if old.windows > 0 {
		return nil, ErrBusy
	}
	r, err := t.describe(pd, mem, iova, length, a)
	if err != nil {
		return nil, err
	}
	t.end(old)
	r.key = old.key
	t.begin(r)
	return r, nil
}

// describe makes a region that has no key yet.
func (t *Table) describe(pd *PD, mem Memory, iova, length uint64, a ib.Access) (*Region, error) {
	if err := checkAccess(a); err != nil {
		return nil, err
	}
	if pd == nil || pd.table != t {
		return nil, ErrPD
	}
	process, err := reachable(mem, a)
	if err != nil {
		return nil, err
	}
	if a&ib.AccessZeroBased != 0 {
		iova = 0
	}
	if length > mem.Len() || length > 0 && iova > math.MaxUint64-(length-1) {
		return nil, ErrBounds
	}
	return &Region{PD: pd, IOVA: iova, Length: length, Access: a, Memory: mem, table: t, process: process}, nil
}

// begin puts r into the slot of its key.
func (t *Table) begin(r *Region) {
	r.live = true
	t.slots[r.key>>tagBits].region = r
	t.live++
	r.PD.uses++
}

// end makes r unusable and has its memory closed; its slot is left to the caller.
func (t *Table) end(r *Region) {
	r.live = false
	t.live--
	r.PD.uses--
	if t.io == nil {
		r.Memory.Close() // no IO ever handed out a byte of this table's memory
		return
	}
	t.retired = append(t.retired, r)
}

// takeSlot finds a free slot and gives it a tag other than its last one.
func (t *Table) takeSlot() (uint32, bool) {
	// A slot rests until this many others are free, so that a stale key meets an empty
	// slot for long.
	const rest = 64
	if len(t.free) > rest || len(t.free) > 0 && len(t.slots) > maxRegions {
		index := t.free[0]
		t.free = t.free[1:]
		s := &t.slots[index]
		s.tag = (s.tag + 1 + t.rnd.Uint32N(tagMask)) & tagMask
		return index, true
	}
	if len(t.slots) > maxRegions {
		return 0, false
	}
	t.slots = append(t.slots, slot{tag: t.rnd.Uint32N(1 << tagBits)})
	return uint32(len(t.slots) - 1), true
}

// Deregister makes the region unusable at once; writes to it that are still queued fail.
// Its memory is closed after the second IO.Epoch from now, because frames may still point
// to it. It does nothing to a region that is not live, and returns ErrBusy, changing nothing,
// while a memory window is bound to it.
func (t *Table) Deregister(r *Region) error {
	if r == nil || r.table != t || !r.live || r.window != nil {
		return nil
	}
	if r.windows > 0 {
		return ErrBusy
	}
	t.freeSlot(r.key >> tagBits)
	t.end(r)
	return nil
}

func (t *Table) freeSlot(index uint32) {
	t.slots[index].region, t.slots[index].window = nil, nil
	t.free = append(t.free, index)
}

// Local finds the region that a work request's SGE names. need is 0 for reading or
// LocalWrite. The error is ErrKey, ErrPD, ErrAccess or ErrBounds, the first that applies.
func (t *Table) Local(pd *PD, lkey uint32, addr uint64, n uint32, need ib.Access) (*Region, error) {
	r := t.named(lkey)
	if r == nil || r.window != nil {
		return nil, ErrKey // a window is for peers alone
	}
	return r.grant(pd, addr, n, need)
}

// Remote finds the region, or the window, that a packet to the queue pair qpn names. need is
// made of RemoteWrite, RemoteRead, RemoteAtomic and FlushGlobal. The error is ErrKey, ErrQP, ErrPD, ErrAccess
// or ErrBounds, the first that applies. A window's Region is live until the window is
// invalidated, bound anew or deallocated.
func (t *Table) Remote(pd *PD, qpn, rkey uint32, addr uint64, n uint32, need ib.Access) (*Region, error) {
	r := t.named(rkey)
	if r == nil {
		return nil, ErrKey
	}
	return r.grantRemote(pd, qpn, addr, n, need)
}

// RemoteWhole is Remote for all that a key names, whatever its range.
func (t *Table) RemoteWhole(pd *PD, qpn, rkey uint32, need ib.Access) (*Region, error) {
	r := t.named(rkey)
	if r == nil {
		return nil, ErrKey
	}
	return r.grantRemote(pd, qpn, r.IOVA, 0, need)
}

func (r *Region) grantRemote(pd *PD, qpn uint32, addr uint64, n uint32, need ib.Access) (*Region, error) {
	if w := r.window; w != nil {
		if w.kind != Type1 && w.qpn != qpn {
			return nil, ErrQP
		}
		if w.kind == Type2A {
			pd = r.PD // it was that of the queue pair when the window was bound
		}
	}
	return r.grant(pd, addr, n, need)
}

// named finds what has a key, or nil.
func (t *Table) named(key uint32) *Region {
	index := key >> tagBits
	if index >= uint32(len(t.slots)) {
		return nil
	}
	if r := t.slots[index].region; r != nil && r.key == key {
		return r
	}
	return nil
}

func (r *Region) grant(pd *PD, addr uint64, n uint32, need ib.Access) (*Region, error) {
	switch {
	case r.PD != pd:
		return nil, ErrPD
	case r.Access&need != need:
		return nil, ErrAccess
	case !r.holds(addr, uint64(n)):
		return nil, ErrBounds
	}
	return r, nil
}

// holds reports whether n bytes from addr on lie in the region. Nothing here can
// overflow. No bytes lie anywhere from its first to just behind its last.
func (r *Region) holds(addr, n uint64) bool {
	off := addr - r.IOVA
	return addr >= r.IOVA && off <= r.Length && n <= r.Length-off
}

// Live reports whether the region is registered, or the window still bound as it was.
func (r *Region) Live() bool { return r.live }

// LKey is the key for work requests. It is never 0.
func (r *Region) LKey() uint32 { return r.key }

// RKey is the key for peers; the same as LKey.
func (r *Region) RKey() uint32 { return r.key }

// Len is the number of live regions.
func (t *Table) Len() int { return t.live }

// All yields the live regions in the order of their slots.
func (t *Table) All() iter.Seq[*Region] {
	return func(yield func(*Region) bool) {
		for i := range t.slots {
			if r := t.slots[i].region; r != nil && r.window == nil && !yield(r) {
				return
			}
		}
	}
}
