package mrtable

import (
	"slices"
	"sync/atomic"

	"softroce/internal/ib"
)

// An IO copies data between regions and the NIC. Each engine has one; it is not safe for concurrent
// use. Only Flush makes system calls, for memory that must be copied. An IO takes no lock, and does
// not allocate in steady state.
type IO struct {
	// What each step uses comes first.
	dirty     []*Client // clients with queued operations
	failed    []failure
	epoch     uint64
	retired   int32 // deregistered regions whose memory is not released yet
	shares    bool  // it shares a table
	hasSpares bool  // spares was not always empty
	results   []result

	// Now is the time in nanoseconds, or 0 if it is unknown. The owner sets it before each Epoch.
	// Whether a process is alive is then looked up once in a while only.
	Now int64

	arena    arena
	spares   []arena  // that Detach has replaced
	detached int      // batches between Detach and Settle
	released uint64   // how often ReleaseReads was called
	tables   []*Table // tables whose deregistered memory this IO releases, and those that it shares

	index  int           // in the tables that it shares
	epochs atomic.Uint64 // epoch, for the others that share it

	// Runner, if not nil, is called by Flush to run a batch. It returns false if the batch goes on
	// without the IO, after Copy or Detach. Until Settle, operations that would be queued for the
	// client fail with ErrWait.
	Runner func(*Batch) bool

	anonymous Client // of regions whose domain has no Client
	barrier   uint64
}

type failure struct {
	tag any
	err error
}

// NewIO returns an IO with an arena of arena bytes for reads of other processes' memory. The arena
// holds what is read within two epochs and must be at least as large as any single read.
func NewIO(arena int) *IO {
	return &IO{arena: newArena(arena), epoch: 1}
}

// check applies the checks of every access, independent of earlier checks by the caller.
func (io *IO) check(r *Region, addr uint64, n int, need ib.Access) error {
	switch {
	case r == nil || r.gone.Load():
		return ErrKey
	case r.Access&need != need:
		return ErrAccess
	case n < 0 || !r.contains(addr, uint64(n)):
		return ErrBounds
	}
	if r.table.io != io {
		return io.claimTable(r)
	}
	return nil
}

// claimTable makes io release the memory that r's table deregisters, unless several IOs share it. A
// table belongs to the first IO that accesses one of its regions. Other IOs may access only its
// mapped memory, and only while it is registered.
func (io *IO) claimTable(r *Region) error {
	if r.table.sharing.has(io) {
		return nil
	}
	if r.table.io != nil {
		if r.process != nil {
			return ErrForeign
		}
		return nil
	}
	r.table.io = io
	io.tables = append(io.tables, r.table)
	return nil
}

// Read returns n bytes of the region starting at addr in place, or ErrNotMemory if the memory can
// only be copied: see QueueRead. They stay valid until the second Epoch, but the client may change
// them at any time. Other errors are ErrKey, ErrAccess or ErrBounds where Local or Remote would
// have returned it.
func (io *IO) Read(r *Region, addr uint64, n int) ([]byte, error) {
	if err := io.check(r, addr, n, 0); err != nil {
		return nil, err
	}
	return r.view(r.offset(addr), n)
}

// QueueRead queues a read of n bytes, at least one, of a region whose memory can only be copied,
// after all operations that were queued for its client before. Errors are those of Read, ErrArena
// if there is no room until the next Epoch or ReleaseReads, ErrReadSize if there never is, and
// ErrWait.
func (io *IO) QueueRead(rd *Read, r *Region, addr uint64, n int) error {
	if err := io.check(r, addr, n, 0); err != nil {
		return err
	}
	c := io.clientOf(r)
	if c.running != nil {
		return ErrWait
	}
	p, err := io.arena.take(n)
	if err != nil {
		return err
	}
	*rd = Read{region: r, addr: addr, p: p, released: &io.released, count: io.released}
	b := io.queue(c)
	b.reads = append(b.reads, rd)
	b.ops = append(b.ops, op{kind: opRead, region: r, addr: r.process.base + r.offset(addr), p: p, read: rd})
	return nil
}

// Write writes p to the region at addr. In mapped memory it does so at once; otherwise it queues
// the write, and p must not change until Flush. With last, p ends a message, whose final 8 bytes
// are stored after everything else written under the same tag. Without last the order is
// unspecified, which is cheaper in another process and suffices for messages that are followed by a
// completion.
//
// tag identifies the writer for Failed. It must be comparable, and a pointer to avoid an
// allocation. After a failed write all others with its tag are dropped until Failed has reported
// it, so that the end of a message never appears without its beginning.
func (io *IO) Write(tag any, r *Region, addr uint64, p []byte, last bool) {
	if len(io.failed) > 0 && io.hasFailed(tag) {
		return
	}
	if err := io.check(r, addr, len(p), ib.AccessLocalWrite); err != nil {
		io.fail(tag, err)
		return
	}
	if len(p) == 0 {
		return
	}
	off := r.offset(addr)
	if r.process != nil {
		b := io.queue(io.clientOf(r))
		if b == nil {
			io.fail(tag, ErrWait)
			return
		}
		b.ops = append(b.ops, op{kind: opWrite, tag: tag, region: r, addr: r.process.base + off, p: p, last: last})
		return
	}
	v, err := r.view(off, len(p))
	if err != nil {
		io.fail(tag, err)
		return
	}
	if !last {
		copy(v, p)
		return
	}
	if c := io.clientOf(r); c.hasQueued(tag) { // the message is scattered over both kinds of memory
		b := io.queue(c)
		if b == nil {
			io.fail(tag, ErrWait)
			return
		}
		b.ops = append(b.ops, op{kind: opPlace, tag: tag, region: r, p: p, operands: b.operands(operands{place: v})})
		return
	}
	storeLast(v, p, &io.barrier)
}

// view returns n bytes of the region in place.
func (r *Region) view(off uint64, n int) ([]byte, error) {
	v := r.Memory.View(off, n)
	if len(v) != n || v == nil {
		return nil, ErrNotMemory // a Memory that violates its contract
	}
	return v, nil
}

// HasPending reports whether an operation is queued or its failure not reported yet. Until Flush
// and Failed it is not known whether all writes took effect.
func (io *IO) HasPending() bool { return len(io.dirty) > 0 || len(io.failed) > 0 }

// HasOutcomes reports whether Results or Failed would call their functions.
func (io *IO) HasOutcomes() bool { return len(io.results) > 0 || len(io.failed) > 0 }

// Results calls f for each atomic operation that was queued and has succeeded since the last call.
func (io *IO) Results(f func(tag any, id, original uint64)) {
	for i := range io.results {
		f(io.results[i].tag, io.results[i].id, io.results[i].original)
	}
	clear(io.results)
	io.results = io.results[:0]
}

// Failed calls f once for each tag with a failed write since the last call. f may use the IO.
func (io *IO) Failed(f func(tag any, err error)) {
	if len(io.failed) == 0 {
		return
	}
	for i := 0; i < len(io.failed); i++ { // f may cause more failures
		f(io.failed[i].tag, io.failed[i].err)
	}
	clear(io.failed)
	io.failed = io.failed[:0]
}

func (io *IO) hasFailed(tag any) bool {
	for i := range io.failed {
		if io.failed[i].tag == tag {
			return true
		}
	}
	return false
}

func (io *IO) fail(tag any, err error) {
	if !io.hasFailed(tag) {
		io.failed = append(io.failed, failure{tag, err})
	}
}

// Epoch starts a new epoch. It releases memory deregistered and read buffers returned before the
// previous call of Epoch.
func (io *IO) Epoch() {
	io.epoch++
	if io.shares {
		io.epochs.Store(io.epoch)
		for _, t := range io.tables {
			t.release()
		}
	}
	io.arena.epoch()
	if io.hasSpares && io.detached == 0 {
		for i := range io.spares {
			io.spares[i].epoch()
		}
	}
	if io.retired == 0 {
		return
	}
	io.tables = slices.DeleteFunc(io.tables, func(t *Table) bool {
		if t.sharing != nil {
			return false
		}
		for i, r := range t.retiredEarlier {
			io.release(r)
			t.retiredEarlier[i] = nil
		}
		io.retired -= int32(len(t.retiredEarlier))
		t.retiredEarlier, t.retired = t.retired, t.retiredEarlier[:0]
		if t.live > 0 || len(t.retiredEarlier) > 0 {
			return false
		}
		t.io = nil
		return true
	})
}

// HasReads reports whether memory holds what was read and not released yet.
func (io *IO) HasReads() bool { return io.arena.head != io.arena.tail }

// ReleaseReads ends the use of what was read so far, without waiting for the second Epoch: nothing
// refers to it any more. The next reads use the same memory, which is in the processor's cache.
// What batches in progress read stays valid.
func (io *IO) ReleaseReads() {
	io.released++
	io.arena.release()
}

// release closes the memory of a region, unless a detached batch still uses it.
func (io *IO) release(r *Region) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.released = true
	if r.pins == 0 {
		r.Memory.Close()
	}
}
