package mrtable

import (
	"iter"
	"math"
	"math/rand/v2"
	"sync/atomic"

	"softroce/internal/ib"
	"softroce/internal/sharelock"
)

// A key consists of a slot number and, in the low bits, an unpredictable tag that changes whenever
// the slot is reused. There are more slots than a NIC has regions; the tag has the remaining bits.
const (
	tagBits    = 12
	tagMask    = 1<<tagBits - 1
	maxRegions = 1<<(32-tagBits) - 1 // slot 0 is unused, so that no key is 0
)

// A Table holds the protection domains, memory regions and windows of one NIC. Only its engine's
// goroutine uses it, unless several engines share it: see Share.
type Table struct {
	// Refuse, if it is set, is called for each remote access that the checks below allow, and
	// refuses it with true.
	Refuse func(qpn, rkey uint32) bool

	rnd   *rand.Rand
	slots []slot
	free  []uint32 // oldest first, to delay the reuse of a slot
	live  int

	// Deregistered memory that waits for IO.Epoch: retired since the last one, and before that.
	io             *IO
	retired        []*Region
	retiredEarlier []*Region

	sharing *sharing        // nil: one engine uses the table
	mu      sharelock.Mutex // held for windows, and for memory that is released
	atomics sharelock.Mutex // held for an atomic operation on memory that only the kernel can copy
}

type slot struct {
	region atomic.Pointer[Region] // nil: slot is free, or its window is not bound
	window *Window
	tag    uint32
}

// A PD is a protection domain, identified by its pointer.
type PD struct {
	// Client is whose memory its regions are; nil: the IO's own. Of a shared table, Clients has
	// that for each IO. They do not change.
	Client  *Client
	Clients []*Client

	table *Table // nil after DeallocPD
	uses  int
}

// A Region is registered memory or a bound window. Its fields do not change while it is live.
type Region struct {
	// What each access uses comes first.
	IOVA   uint64 // address of its first byte in work requests and packets
	Length uint64 // bytes
	Memory Memory
	Access ib.Access
	gone   atomic.Bool // not live any more

	base    uint64         // of a window: offset of its first byte in Memory
	process *processMemory // Memory, if it can only be copied
	table   *Table

	PD       *PD
	key      uint32
	windows  int      // number of windows bound to it
	pins     int      // detached batches that use Memory
	released bool     // Memory is to be closed when none does
	epochs   []uint64 // of a shared table: when the IOs do not use Memory any more

	// Set for a bound window, which is a part of parent.
	window *Window
	parent *Region
	qpn    uint32 // type 2: queue pair that bound it
}

// registered returns the registered region that r is, or is a part of.
func (r *Region) registered() *Region {
	if r.parent != nil {
		return r.parent
	}
	return r
}

// InPlace reports whether IO.Read returns the region's bytes in place. Otherwise the kernel has to
// copy them: see IO.QueueRead.
func (r *Region) InPlace() bool { return r.process == nil }

// offset returns the position in Memory of the byte at addr.
func (r *Region) offset(addr uint64) uint64 { return addr - r.IOVA + r.base }

// NewTable returns an empty table. rnd provides the unpredictable part of keys: seed it from
// crypto/rand, unless keys must be reproducible.
func NewTable(rnd *rand.Rand) *Table {
	return &Table{rnd: rnd, slots: make([]slot, 1)}
}

// AllocPD returns a new protection domain.
func (t *Table) AllocPD() *PD { return &PD{table: t} }

// DeallocPD deallocates a protection domain. It returns ErrBusy while a region or another object
// uses it, and ErrPD if it does not belong to this table.
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

// Use adds a reference to the domain, by a QP, an SRQ, an AH and so on.
func (pd *PD) Use() { pd.uses++ }

// Release removes a reference added by Use.
func (pd *PD) Release() { pd.uses-- }

// InUse returns the number of regions and other objects that refer to the domain.
func (pd *PD) InUse() int { return pd.uses }

// Register registers the first length bytes of mem as a region at address iova (0 if a has
// AccessZeroBased). It returns ErrFlags where ibv_reg_mr returns EINVAL; ErrAccess if a has write
// access and mem was mapped without; ErrBounds if mem is shorter or the addresses would exceed 64
// bits. The table closes mem when the region is released, but not if Register returns an error.
func (t *Table) Register(pd *PD, mem Memory, iova, length uint64, a ib.Access) (*Region, error) {
	r, err := t.newRegion(pd, mem, iova, length, a)
	if err != nil {
		return nil, err
	}
	index, ok := t.takeSlot()
	if !ok {
		return nil, ErrFull
	}
	r.key = index<<tagBits | t.slots[index].tag
	t.insert(r)
	return r, nil
}

// Reregister replaces old by a new region with the same key. Users of old find it invalid, as after
// Deregister. Errors are those of Register, ErrKey and ErrBusy; then old is unchanged.
func (t *Table) Reregister(old *Region, pd *PD, mem Memory, iova, length uint64, a ib.Access) (*Region, error) {
	if old == nil || old.table != t || old.gone.Load() || old.window != nil {
		return nil, ErrKey
	}
	if old.windows > 0 {
		return nil, ErrBusy
	}
	r, err := t.newRegion(pd, mem, iova, length, a)
	if err != nil {
		return nil, err
	}
	t.remove(old)
	r.key = old.key
	t.insert(r)
	return r, nil
}

// newRegion returns a region without a key.
func (t *Table) newRegion(pd *PD, mem Memory, iova, length uint64, a ib.Access) (*Region, error) {
	if err := checkAccess(a); err != nil {
		return nil, err
	}
	if pd == nil || pd.table != t {
		return nil, ErrPD
	}
	process, err := checkMemory(mem, a)
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

// insert puts r into the slot of its key.
func (t *Table) insert(r *Region) {
	t.slots[r.key>>tagBits].region.Store(r)
	t.live++
	r.PD.uses++
}

// remove invalidates r and schedules its memory for closing. The caller handles its slot.
func (t *Table) remove(r *Region) {
	r.gone.Store(true)
	t.live--
	r.PD.uses--
	if t.io == nil {
		r.Memory.Close() // no IO has used this table's memory
		return
	}
	if t.sharing != nil {
		t.retire(r)
		return
	}
	t.retired = append(t.retired, r)
	t.io.retired++
}

// takeSlot returns a free slot, with a new tag.
func (t *Table) takeSlot() (uint32, bool) {
	// A slot is reused only when this many others are free, so that a stale key finds an empty slot
	// for long.
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

// Deregister invalidates the region at once; writes to it that are still queued fail. Its memory is
// closed at the second IO.Epoch, because frames may still refer to it. It does nothing if the
// region is not live. It returns ErrBusy, and changes nothing, while a memory window is bound to
// the region.
func (t *Table) Deregister(r *Region) error {
	if r == nil || r.table != t || r.gone.Load() || r.window != nil {
		return nil
	}
	if r.windows > 0 {
		return ErrBusy
	}
	t.freeSlot(r.key >> tagBits)
	t.remove(r)
	return nil
}

func (t *Table) freeSlot(index uint32) {
	t.slots[index].region.Store(nil)
	t.slots[index].window = nil
	t.free = append(t.free, index)
}

// Local returns the region that an SGE of a work request names. need is 0 or AccessLocalWrite. The
// error is the first that applies of ErrKey, ErrPD, ErrAccess and ErrBounds.
func (t *Table) Local(pd *PD, lkey uint32, addr uint64, n uint32, need ib.Access) (*Region, error) {
	r := t.lookup(lkey)
	if r == nil || r.window != nil {
		return nil, ErrKey // windows have no L_Key
	}
	return r.checkGrant(pd, addr, n, need)
}

// Remote returns the region or bound window that a packet to queue pair qpn names. need is made of
// AccessRemoteWrite, AccessRemoteRead, AccessRemoteAtomic and AccessFlushGlobal. The error is the
// first that applies of ErrKey, ErrQP, ErrPD, ErrAccess and ErrBounds. A window's Region is live
// until the window is invalidated, bound again or deallocated.
func (t *Table) Remote(pd *PD, qpn, rkey uint32, addr uint64, n uint32, need ib.Access) (*Region, error) {
	r := t.lookup(rkey)
	if r == nil {
		return nil, ErrKey
	}
	return t.checkRemote(r, pd, qpn, addr, n, need)
}

// RemoteWhole is Remote for the whole region or window that a key names.
func (t *Table) RemoteWhole(pd *PD, qpn, rkey uint32, need ib.Access) (*Region, error) {
	r := t.lookup(rkey)
	if r == nil {
		return nil, ErrKey
	}
	return t.checkRemote(r, pd, qpn, r.IOVA, 0, need)
}

// checkRemote checks an access by a packet to queue pair qpn: for a window of type 2 its queue
// pair, then the rest like a local one (IBTA 9.7.4.1.5, 10.6.7.2).
func (t *Table) checkRemote(r *Region, pd *PD, qpn uint32, addr uint64, n uint32, need ib.Access) (*Region, error) {
	if w := r.window; w != nil {
		if w.kind != Type1 && r.qpn != qpn {
			return nil, ErrQP
		}
		if w.kind == Type2A {
			pd = r.PD // equal to that of the queue pair at bind time
		}
	}
	found, err := r.checkGrant(pd, addr, n, need)
	if err == nil && t.Refuse != nil && t.Refuse(qpn, r.key) {
		return nil, ErrKey
	}
	return found, err
}

// lookup returns the region or bound window with this key, or nil.
func (t *Table) lookup(key uint32) *Region {
	index := key >> tagBits
	if index >= uint32(len(t.slots)) {
		return nil
	}
	if r := t.slots[index].region.Load(); r != nil && r.key == key {
		return r
	}
	return nil
}

// checkGrant checks protection domain, access rights and bounds, in this order.
func (r *Region) checkGrant(pd *PD, addr uint64, n uint32, need ib.Access) (*Region, error) {
	switch {
	case r.PD != pd:
		return nil, ErrPD
	case r.Access&need != need:
		return nil, ErrAccess
	case !r.contains(addr, uint64(n)):
		return nil, ErrBounds
	}
	return r, nil
}

// contains reports whether n bytes at addr are inside the region. It cannot overflow. An empty
// range is inside from the first byte to just after the last.
func (r *Region) contains(addr, n uint64) bool {
	off := addr - r.IOVA
	return addr >= r.IOVA && off <= r.Length && n <= r.Length-off
}

// Live reports whether the region is registered, or the window still bound.
func (r *Region) Live() bool { return !r.gone.Load() }

// LKey returns the key for work requests. It is never 0.
func (r *Region) LKey() uint32 { return r.key }

// RKey returns the key for peers. It equals LKey.
func (r *Region) RKey() uint32 { return r.key }

// Len returns the number of live regions.
func (t *Table) Len() int { return t.live }

// All returns the live regions in slot order.
func (t *Table) All() iter.Seq[*Region] {
	return func(yield func(*Region) bool) {
		for i := range t.slots {
			if r := t.slots[i].region.Load(); r != nil && r.window == nil && !yield(r) {
				return
			}
		}
	}
}
