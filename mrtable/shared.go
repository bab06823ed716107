package mrtable

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Several engines may share the table of a NIC. Then these rules hold:
//
//   - Regions, windows and protection domains are created and destroyed while no
//     other engine uses the table: the caller keeps them from it.
//   - Lookups take no lock. A slot's region is an atomic pointer, because work
//     requests bind and invalidate windows at any time.
//   - Binds and invalidations exclude each other, as do atomic operations that the
//     kernel carries out as a read and a write.
//   - Deregistered memory is released when every IO has had two epochs since.

// A sharing is what a table has that several IOs share.
type sharing struct {
	ios     []*IO
	atomics sync.Mutex // held for an atomic operation on memory that only the kernel can copy

	mu      sync.Mutex   // held for windows, and for what follows
	retired []*Region    // deregistered memory that waits for the IOs' epochs
	pending atomic.Int32 // length of retired
}

// Share lets several IOs, one of each engine, access the table. An IO has the same place in the
// lists of all tables that it shares. Nothing may be registered yet.
func (t *Table) Share(ios ...*IO) {
	t.sharing = &sharing{ios: ios}
	t.io = ios[0]
	for i, io := range ios {
		io.index, io.shares = i, true
		io.epochs.Store(io.epoch)
		io.tables = append(io.tables, t)
	}
}

// has reports whether io is one of those that share the table.
func (s *sharing) has(io *IO) bool { return s != nil && slices.Contains(s.ios, io) }

// A guard is a lock that is held, nil for none.
type guard struct{ mu *sync.Mutex }

// lock takes the lock of a table that several IOs share.
func (t *Table) lock() guard {
	if t.sharing == nil {
		return guard{}
	}
	t.sharing.mu.Lock()
	return guard{&t.sharing.mu}
}

func (g guard) unlock() {
	if g.mu != nil {
		g.mu.Unlock()
	}
}

// retire schedules the memory of r for closing. No other IO runs.
func (s *sharing) retire(r *Region) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, io := range s.ios {
		r.epochs = append(r.epochs, io.epochs.Load()+2)
	}
	s.retired = append(s.retired, r)
	s.pending.Store(int32(len(s.retired)))
}

// release closes the memory that no IO uses any more.
func (s *sharing) release() {
	if s == nil || s.pending.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = slices.DeleteFunc(s.retired, func(r *Region) bool {
		for i, io := range s.ios {
			if io.epochs.Load() < r.epochs[i] {
				return false
			}
		}
		if r.released = true; r.pins == 0 {
			r.Memory.Close()
		}
		return true
	})
	s.pending.Store(int32(len(s.retired)))
}

// waiting returns the regions whose memory is not closed yet.
func (s *sharing) waiting() []*Region {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.retired)
}
