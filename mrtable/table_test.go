package mrtable

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"softroce/internal/ib"
)

func newTestTable() *Table { return NewTable(rand.New(rand.NewPCG(1, 2))) }

func mustRegister(t testing.TB, table *Table, pd *PD, mem Memory, iova uint64, a ib.Access) *Region {
	t.Helper()
	r, err := table.Register(pd, mem, iova, mem.Len(), a)
	if err != nil {
		t.Fatalf("Register: %v", err)
	}
	return r
}

func TestRegisterChecksAccessFlags(t *testing.T) {
	for _, c := range []struct {
		a    ib.Access
		want error
	}{
		{0, nil},
		{ib.AccessLocalWrite, nil},
		{ib.AccessRemoteRead, nil},
		{ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic, nil},
		{ib.AccessRemoteWrite, ErrFlags},
		{ib.AccessRemoteAtomic, ErrFlags},
		{ib.AccessRemoteRead | ib.AccessRemoteAtomic, ErrFlags},
		{ib.AccessLocalWrite | ib.AccessMWBind | ib.AccessOnDemand | ib.AccessHugeTLB | ib.AccessRelaxedOrdering, nil},
		{1 << 29, nil}, // an optional flag
		{ib.AccessLocalWrite | ib.AccessFlushGlobal, nil},
		{ib.AccessLocalWrite | ib.AccessFlushPersistent, ErrFlags}, // not supported
		{1 << 19, ErrFlags},
		{1 << 30, ErrFlags},
		{1 << 31, ErrFlags},
	} {
		table := newTestTable()
		_, err := table.Register(table.AllocPD(), HeapMemory(make([]byte, 8)), 0, 8, c.a)
		if err != c.want {
			t.Errorf("%v (%#x): %v, want %v", c.a, uint32(c.a), err, c.want)
		}
	}
}

func TestAccessNames(t *testing.T) {
	for a, want := range map[ib.Access]string{
		0: "local_read",
		ib.AccessLocalWrite | ib.AccessRemoteRead:              "local_write|remote_read",
		ib.AccessRemoteAtomic | ib.AccessZeroBased | 1<<25:     "remote_atomic|zero_based|other",
		ib.AccessHugeTLB | ib.AccessOnDemand | ib.AccessMWBind: "mw_bind|on_demand|hugetlb",
		ib.AccessRelaxedOrdering | ib.AccessRemoteWrite:        "remote_write|relaxed_ordering",
	} {
		if got := a.String(); got != want {
			t.Errorf("%#x is %q, want %q", uint32(a), got, want)
		}
	}
}

func TestLookupReturnsFirstApplicableError(t *testing.T) {
	table := newTestTable()
	pd, other := table.AllocPD(), table.AllocPD()
	r := mustRegister(t, table, pd, HeapMemory(make([]byte, 100)), 0x1000, ib.AccessRemoteRead)
	for _, c := range []struct {
		name string
		pd   *PD
		key  uint32
		addr uint64
		n    uint32
		need ib.Access
		want error
	}{
		{"all of it", pd, r.RKey(), 0x1000, 100, ib.AccessRemoteRead, nil},
		{"the last byte", pd, r.RKey(), 0x1063, 1, ib.AccessRemoteRead, nil},
		{"zero length at the start", pd, r.RKey(), 0x1000, 0, ib.AccessRemoteRead, nil},
		{"zero length just past the end", pd, r.RKey(), 0x1064, 0, ib.AccessRemoteRead, nil},
		{"zero length beyond that", pd, r.RKey(), 0x1065, 0, ib.AccessRemoteRead, ErrBounds},
		{"one byte more", pd, r.RKey(), 0x1000, 101, ib.AccessRemoteRead, ErrBounds},
		{"one byte before", pd, r.RKey(), 0xfff, 2, ib.AccessRemoteRead, ErrBounds},
		{"wraps the address space", pd, r.RKey(), math.MaxUint64, 0x1002, ib.AccessRemoteRead, ErrBounds},
		{"all lengths", pd, r.RKey(), 0x1001, math.MaxUint32, ib.AccessRemoteRead, ErrBounds},
		{"missing access right", pd, r.RKey(), 0, 1, ib.AccessRemoteWrite, ErrAccess},
		{"one access right of two", pd, r.RKey(), 0x1000, 1, ib.AccessRemoteWrite | ib.AccessRemoteRead, ErrAccess},
		{"another domain", other, r.RKey(), 0, 1, ib.AccessRemoteWrite, ErrPD},
		{"no domain", nil, r.RKey(), 0x1000, 1, 0, ErrPD},
		{"another tag", pd, r.RKey() ^ 1, 0x1000, 1, ib.AccessRemoteRead, ErrKey},
		{"no slot", pd, r.RKey() + 1<<tagBits, 0x1000, 1, ib.AccessRemoteRead, ErrKey},
		{"key 0", pd, 0, 0x1000, 1, ib.AccessRemoteRead, ErrKey},
		{"the highest key", pd, math.MaxUint32, 0x1000, 1, ib.AccessRemoteRead, ErrKey},
	} {
		for way, find := range map[string]func(*PD, uint32, uint64, uint32, ib.Access) (*Region, error){
			"Local": table.Local,
			"Remote": func(pd *PD, key uint32, addr uint64, n uint32, need ib.Access) (*Region, error) {
				return table.Remote(pd, 1, key, addr, n, need)
			},
		} {
			got, err := find(c.pd, c.key, c.addr, c.n, c.need)
			if err != c.want || (err == nil) != (got == r) {
				t.Errorf("%s, %s: %v, want %v", way, c.name, err, c.want)
			}
		}
	}
}

func TestRegisterChecksRange(t *testing.T) {
	for _, c := range []struct {
		name         string
		iova, length uint64
		want         error
	}{
		{"empty", 0, 0, nil},
		{"empty at the last address", math.MaxUint64, 0, nil},
		{"up to the last address", math.MaxUint64 - 15, 16, nil},
		{"past the last address", math.MaxUint64 - 14, 16, ErrBounds},
		{"longer than the memory", 0, 17, ErrBounds},
		{"maximum length", 1, math.MaxUint64, ErrBounds},
	} {
		table := newTestTable()
		pd := table.AllocPD()
		r, err := table.Register(pd, HeapMemory(make([]byte, 16)), c.iova, c.length, ib.AccessLocalWrite)
		if err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err != nil && (pd.InUse() != 0 || table.Len() != 0) {
			t.Errorf("%s: a failed registration was not undone", c.name)
		}
		if err == nil {
			end := c.iova + c.length // may be 2^64
			if _, err := table.Local(pd, r.LKey(), end-1, 1, ib.AccessLocalWrite); (err == nil) != (c.length > 0) {
				t.Errorf("%s: last byte: %v", c.name, err)
			}
			if _, err := table.Local(pd, r.LKey(), end, 1, ib.AccessLocalWrite); err != ErrBounds {
				t.Errorf("%s: byte after the last: %v", c.name, err)
			}
		}
	}
}

type unviewableMemory struct{ Memory }

func (unviewableMemory) View(uint64, int) []byte { return nil }

func TestRegisterRejectsInaccessibleMemory(t *testing.T) {
	table := newTestTable()
	if _, err := table.Register(table.AllocPD(), nil, 0, 0, 0); err != ErrNotMemory {
		t.Errorf("nil memory: %v", err)
	}
	if _, err := table.Register(table.AllocPD(), unviewableMemory{HeapMemory(nil)}, 0, 0, 0); err != ErrNotMemory {
		t.Errorf("memory without a view: %v", err)
	}
	if _, err := table.Register(newTestTable().AllocPD(), HeapMemory(nil), 0, 0, 0); err != ErrPD {
		t.Errorf("another table's domain: %v", err)
	}
	if _, err := table.Register(nil, HeapMemory(nil), 0, 0, 0); err != ErrPD {
		t.Errorf("no domain: %v", err)
	}
}

func TestZeroBasedRegionStartsAtZero(t *testing.T) {
	table := newTestTable()
	r := mustRegister(t, table, table.AllocPD(), HeapMemory(make([]byte, 4)), 0x7000, ib.AccessZeroBased)
	if r.IOVA != 0 {
		t.Errorf("region starts at %#x", r.IOVA)
	}
}

func TestPDInUseCannotBeDeallocated(t *testing.T) {
	table := newTestTable()
	pd := table.AllocPD()
	r := mustRegister(t, table, pd, HeapMemory(make([]byte, 4)), 0, 0)
	pd.Use()
	if err := table.DeallocPD(pd); err != ErrBusy {
		t.Errorf("with a region and a queue pair: %v", err)
	}
	table.Deregister(r)
	if err := table.DeallocPD(pd); err != ErrBusy {
		t.Errorf("with a queue pair: %v", err)
	}
	pd.Release()
	if err := table.DeallocPD(pd); err != nil {
		t.Errorf("unused: %v", err)
	}
	if err := table.DeallocPD(pd); err != ErrPD {
		t.Errorf("for the second time: %v", err)
	}
	if err := table.DeallocPD(nil); err != ErrPD {
		t.Errorf("nil: %v", err)
	}
	if _, err := table.Register(pd, HeapMemory(nil), 0, 0, 0); err != ErrPD {
		t.Errorf("registering in it afterwards: %v", err)
	}
}

func TestDeregisterInvalidatesKeyAtOnce(t *testing.T) {
	table := newTestTable()
	pd := table.AllocPD()
	r := mustRegister(t, table, pd, HeapMemory(make([]byte, 4)), 0, 0)
	table.Deregister(r)
	table.Deregister(r)   // no effect
	table.Deregister(nil) // no effect either
	newTestTable().Deregister(r)
	if r.Live() || table.Len() != 0 {
		t.Error("the region is still live")
	}
	if _, err := table.Local(pd, r.LKey(), 0, 1, 0); err != ErrKey {
		t.Errorf("lookup: %v", err)
	}
}

func TestKeysAreNotZeroAndNotReusedSoon(t *testing.T) {
	table := newTestTable()
	pd := table.AllocPD()
	seen := map[uint32]bool{}
	perSlot := map[uint32]map[uint32]bool{}
	for range 5000 {
		r := mustRegister(t, table, pd, HeapMemory(nil), 0, 0)
		key := r.RKey()
		if key == 0 || key != r.LKey() {
			t.Fatalf("key %#x, lkey %#x", key, r.LKey())
		}
		index := key >> tagBits
		if perSlot[index] == nil {
			perSlot[index] = map[uint32]bool{}
		}
		perSlot[index][key&tagMask] = true
		seen[key] = true
		table.Deregister(r)
		if _, err := table.Local(pd, key, 0, 0, 0); err != ErrKey {
			t.Fatalf("stale key %#x: %v", key, err)
		}
	}
	if len(seen) < 4900 {
		t.Errorf("only %d different keys in 5000 registrations", len(seen))
	}
	for index, tags := range perSlot {
		if len(tags) < 40 {
			t.Errorf("slot %d: only %d tags", index, len(tags))
		}
	}
}

func TestKeysDependOnTheSeed(t *testing.T) {
	keys := func(seed uint64) (k [8]uint32) {
		table := NewTable(rand.New(rand.NewPCG(seed, 0)))
		pd := table.AllocPD()
		for i := range k {
			k[i] = mustRegister(t, table, pd, HeapMemory(nil), 0, 0).RKey()
		}
		return k
	}
	if first, again := keys(1), keys(1); first != again {
		t.Error("the same seed gave different keys")
	}
	if keys(1) == keys(2) {
		t.Error("different seeds gave the same keys")
	}
}

func TestFullTableRejectsAndRecovers(t *testing.T) {
	table := newTestTable()
	pd := table.AllocPD()
	mem := HeapMemory(nil)
	var last *Region
	for range maxRegions {
		last = mustRegister(t, table, pd, mem, 0, 0)
	}
	if _, err := table.Register(pd, mem, 0, 0, 0); !errors.Is(err, ErrFull) {
		t.Fatalf("one more: %v", err)
	}
	table.Deregister(last)
	r := mustRegister(t, table, pd, mem, 0, 0)
	if r.RKey() == last.RKey() {
		t.Error("the key was reused at once")
	}
}

func TestAllReturnsLiveRegions(t *testing.T) {
	table := newTestTable()
	pd := table.AllocPD()
	var rs []*Region
	for i := range 5 {
		rs = append(rs, mustRegister(t, table, pd, HeapMemory(nil), uint64(i), 0))
	}
	table.Deregister(rs[2])
	var got []uint64
	for r := range table.All() {
		got = append(got, r.IOVA)
		if len(got) == 3 {
			break
		}
	}
	if len(got) != 3 || got[0] != 0 || got[1] != 1 || got[2] != 3 {
		t.Errorf("regions %v", got)
	}
}

func TestReregisterKeepsOnlyTheKeys(t *testing.T) {
	table := NewTable(rand.New(rand.NewPCG(1, 2)))
	a, b := table.AllocPD(), table.AllocPD()
	old, err := table.Register(a, HeapMemory(make([]byte, 64)), 0x1000, 64, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	key := old.RKey()
	rights := ib.AccessLocalWrite | ib.AccessRemoteWrite
	if _, err := table.Reregister(old, b, HeapMemory(make([]byte, 16)), 0x2000, 32, rights); !errors.Is(err, ErrBounds) {
		t.Errorf("more bytes than the memory: %v, want %v", err, ErrBounds)
	}
	if r, err := table.Local(a, key, 0x1000, 64, ib.AccessLocalWrite); err != nil || r != old {
		t.Errorf("after a rejected call: %v, want the region unchanged", err)
	}
	r, err := table.Reregister(old, b, HeapMemory(make([]byte, 32)), 0x2000, 32, rights)
	if err != nil {
		t.Fatal(err)
	}
	if r.RKey() != key || r.LKey() != key {
		t.Errorf("keys %#x and %#x, want %#x", r.LKey(), r.RKey(), key)
	}
	if got, err := table.Remote(b, 1, key, 0x2000, 32, ib.AccessRemoteWrite); err != nil || got != r {
		t.Errorf("new range: %v", err)
	}
	if _, err := table.Remote(a, 1, key, 0x2000, 32, 0); !errors.Is(err, ErrPD) {
		t.Errorf("old domain: %v, want %v", err, ErrPD)
	}
	if _, err := table.Remote(b, 1, key, 0x1000, 1, 0); !errors.Is(err, ErrBounds) {
		t.Errorf("old range: %v, want %v", err, ErrBounds)
	}
	if _, err := table.Reregister(old, a, HeapMemory(nil), 0, 0, 0); !errors.Is(err, ErrKey) {
		t.Errorf("a deregistered region: %v, want %v", err, ErrKey)
	}
	if a.InUse() != 0 || b.InUse() != 1 {
		t.Errorf("domains are used %d and %d times, want 0 and 1", a.InUse(), b.InUse())
	}
	if err := table.Deregister(r); err != nil || b.InUse() != 0 {
		t.Errorf("deregister: %v, domain used %d times", err, b.InUse())
	}
}

func TestReregisterRejectsRegionWithWindows(t *testing.T) {
	table := NewTable(rand.New(rand.NewPCG(1, 2)))
	pd := table.AllocPD()
	r, err := table.Register(pd, HeapMemory(make([]byte, 64)), 0, 64, ib.AccessMWBind)
	if err != nil {
		t.Fatal(err)
	}
	w, err := table.AllocWindow(pd, Type1)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Bind(Binding{PD: pd, RKey: w.RKey(), LKey: r.LKey(), Length: 8, Access: ib.AccessRemoteRead}); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Reregister(r, pd, HeapMemory(make([]byte, 64)), 0, 64, 0); !errors.Is(err, ErrBusy) {
		t.Errorf("%v, want %v", err, ErrBusy)
	}
	table.DeallocWindow(w)
	if _, err := table.Reregister(r, pd, HeapMemory(make([]byte, 64)), 0, 64, 0); err != nil {
		t.Errorf("without the window: %v", err)
	}
}
