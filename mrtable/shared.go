package mrtable

import (
	"slices"
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
	retired []*Region    // deregistered memory that waits for the IOs' epochs; guarded by Table.mu
	pending atomic.Int32 // length of retired
}

// Share lets several IOs, one of each engine, access the table. An IO has the same place in the
// lists of all tables that it shares. Nothing may be registered yet.
func (t *Table) Share(ios ...*IO) {
	t.sharing = &sharing{ios: ios}
	t.mu.Share()
	t.atomics.Share()
	t.io = ios[0]
	for i, io := range ios {
		io.index, io.shares = i, true
		io.epochs.Store(io.epoch)
		io.tables = append(io.tables, t)
	}
}

// has reports whether io is one of those that share the table.
func (s *sharing) has(io *IO) bool { return s != nil && slices.Contains(s.ios, io) }

// retire schedules the memory of r for closing. No other IO runs.
func (t *Table) retire(r *Region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sharing
	for _, io := range s.ios {
		r.epochs = append(r.epochs, io.epochs.Load()+2)
	}
	s.retired = append(s.retired, r)
	s.pending.Store(int32(len(s.retired)))
}

// release closes the memory that no IO uses any more.
func (t *Table) release() {
	s := t.sharing
	if s == nil || s.pending.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
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
func (t *Table) waiting() []*Region {
	if t.sharing == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.sharing.retired)
}
