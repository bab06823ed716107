package mrtable

import (
	"sync"
	"testing"
	"unsafe"

	"softroce/internal/ib"
)

// closeRecorder is memory that records that it was closed.
type closeRecorder struct {
	Memory
	closed bool
}

func (m *closeRecorder) Close() error { m.closed = true; return m.Memory.Close() }

// sharedTable returns a table that two IOs share.
func sharedTable() (*Table, *IO, *IO) {
	t, a, b := newTestTable(), NewIO(1<<16), NewIO(1<<16)
	t.Share(a, b)
	return t, a, b
}

// Memory of a shared table is closed only after two epochs of each IO, whichever of them has the
// last one.
func TestSharedMemoryWaitsForEveryEpoch(t *testing.T) {
	for _, c := range []struct {
		name   string
		epochs string // of the IOs a and b
		closed bool
	}{
		{"none", "", false},
		{"of one", "aaaa", false},
		{"one too few of the other", "aaab", false},
		{"the first one last", "bbaa", true},
		{"the second one last", "aabb", true},
		{"in turns", "abab", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, a, b := sharedTable()
			m := &closeRecorder{Memory: HeapMemory(make([]byte, 64))}
			r, err := table.Register(table.AllocPD(), m, 0, 64, ib.AccessLocalWrite)
			if err != nil {
				t.Fatal(err)
			}
			for _, io := range []*IO{a, b} {
				if _, err := io.Read(r, 0, 8); err != nil {
					t.Fatalf("one of the IOs cannot read: %v", err)
				}
			}
			table.Deregister(r)
			if _, err := b.Read(r, 0, 8); err != ErrKey {
				t.Errorf("a read after deregistration: %v, want %v", err, ErrKey)
			}
			for _, e := range c.epochs {
				if e == 'a' {
					a.Epoch()
				} else {
					b.Epoch()
				}
			}
			if m.closed != c.closed {
				t.Errorf("closed: %v, want %v", m.closed, c.closed)
			}
		})
	}
}

// An IO that does not share the table cannot claim it.
func TestForeignIOCannotCopyFromSharedTable(t *testing.T) {
	table, _, _ := sharedTable()
	self, own := OpenSelf(), make([]byte, 64)
	m, err := self.Memory(uint64(uintptr(unsafe.Pointer(&own[0]))), 64, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	r, err := table.Register(table.AllocPD(), m, 0, 64, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	var rd Read
	if err := NewIO(1<<16).QueueRead(&rd, r, 0, 8); err != ErrForeign {
		t.Errorf("a read by another IO: %v, want %v", err, ErrForeign)
	}
}

// Engines look keys up while others bind and invalidate windows: each lookup finds a whole window
// or none.
func TestSharedWindowsMayBeBoundDuringLookups(t *testing.T) {
	table, _, _ := sharedTable()
	pd := table.AllocPD()
	r, err := table.Register(pd, HeapMemory(make([]byte, 64)), 0, 64, ib.AccessLocalWrite|ib.AccessMWBind)
	if err != nil {
		t.Fatal(err)
	}
	const qps, rounds = 2, 2000
	keys := make(chan uint32, qps*rounds)
	var windows []*Window
	for range qps {
		w, err := table.AllocWindow(pd, Type2B)
		if err != nil {
			t.Fatal(err)
		}
		windows = append(windows, w)
	}
	var engines sync.WaitGroup
	for i, w := range windows {
		qpn := uint32(i)
		first := w.RKey()
		engines.Go(func() {
			for i := range uint32(rounds) {
				key := first&^consumerMask | i&consumerMask
				if err := table.Bind(Binding{PD: pd, QPN: qpn, RKey: key, LKey: r.LKey(), Length: 32, Access: ib.AccessRemoteRead}); err != nil {
					t.Errorf("bind %d: %v", i, err)
				}
				keys <- key
				if err := table.Invalidate(pd, qpn, key); err != nil {
					t.Errorf("invalidation %d: %v", i, err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { engines.Wait(); close(keys); close(done) }()
	for key := range keys {
		found, err := table.Remote(pd, 7, key, 0, 8, ib.AccessRemoteRead)
		if err != ErrKey && err != ErrQP {
			t.Fatalf("another queue pair's lookup: %v, %v; want %v or %v", found, err, ErrKey, ErrQP)
		}
	}
	<-done
	if err := table.Deregister(r); err != nil {
		t.Errorf("deregistration after all windows were invalidated: %v", err)
	}
}

// Atomic operations that are a read and a write exclude each other, whichever engine carries them
// out.
func TestSharedAtomicsOfEveryIOExcludeEachOther(t *testing.T) {
	table, a, b := sharedTable()
	ios := []*IO{a, b}
	pd := table.AllocPD()
	pd.Clients = []*Client{{}, {}}
	word := new(uint64)
	self := OpenSelf()
	m, err := self.Memory(uint64(uintptr(unsafe.Pointer(word))), 8, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	r, err := table.Register(pd, m, 0, 8, ib.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 2000
	var engines sync.WaitGroup
	for _, io := range ios {
		engines.Go(func() {
			for range rounds {
				if _, _, err := io.FetchAdd(io, 0, r, 0, 1); err != nil {
					t.Error(err)
				}
				io.Flush()
				io.Failed(func(_ any, err error) { t.Error(err) })
			}
		})
	}
	engines.Wait()
	if want := uint64(len(ios) * rounds); *word != want {
		t.Errorf("%d additions by two IOs: the sum is %d", want, *word)
	}
}
