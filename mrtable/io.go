package mrtable

import (
	"slices"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
)

// An IO moves bytes between regions and the NIC. One engine has one; it is not safe for
// concurrent use. It calls the kernel only for another process's memory, takes no lock,
// and allocates nothing once it has seen its load.
type IO struct {
	arena  arena
	epoch  uint64
	tables []*Table // those whose deregistered memory this IO releases

	queues  map[*Process]*queue
	dirty   []*queue // those with pieces
	failed  []failure
	local   []unix.Iovec // room for one system call
	remote  []unix.RemoteIovec
	barrier uint64
	scratch [8]byte
}

type failure struct {
	tag any
	err error
}

// NewIO returns an IO whose reads of other processes' memory have arena bytes for what is
// read within two epochs. It must be at least as large as any one Read.
func NewIO(arena int) *IO {
	return &IO{
		arena:  newArena(arena),
		epoch:  1,
		queues: make(map[*Process]*queue),
		local:  make([]unix.Iovec, 0, maxVector),
		remote: make([]unix.RemoteIovec, 0, maxVector),
	}
}

// check is what every access must pass, whatever the caller has found out before.
func (io *IO) check(r *Region, addr uint64, n int, need ib.Access) error {
	switch {
	case r == nil || !r.live:
		return ErrKey
	case r.Access&need != need:
		return ErrAccess
	case n < 0 || !r.holds(addr, uint64(n)):
		return ErrBounds
	}
	if r.table.io != io {
		return io.adopt(r)
	}
	return nil
}

// adopt takes over the release of what r's table deregisters. A table belongs to the first
// IO that reaches one of its regions. Others may use its mapped memory, but without grace.
func (io *IO) adopt(r *Region) error {
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

// Read returns n bytes of the region from addr on: in place where the memory is mapped,
// else copied in one system call. They stay valid until the second Epoch
// from now, though a client may change mapped ones at any time.
//
// Writes that are queued for the same process are carried out first. The error is ErrArena
// where the arena has no room before the next Epoch, ErrReadSize where it never has;
// ErrFault, ErrGone and ErrPermission come from the process; ErrKey, ErrAccess and
// ErrBounds mean that Local or Remote would have refused.
func (io *IO) Read(r *Region, addr uint64, n int) ([]byte, error) {
	if err := io.check(r, addr, n, 0); err != nil {
		return nil, err
	}
	off := r.offset(addr)
	if r.process == nil {
		return r.view(off, n)
	}
	if n == 0 {
		return []byte{}, nil
	}
	p, err := io.arena.take(n)
	if err != nil {
		return nil, err
	}
	if err := io.fetch(r, off, p); err != nil {
		io.arena.untake()
		return nil, err
	}
	return p, nil
}

// Write stores p in the region from addr on, at once where the memory is mapped. Else it is
// queued, and p must not change until Flush. With last, p ends a message: its final 8 bytes
// are stored after everything else that was written under the same tag. Without last,
// nothing is promised about the order of bytes: enough where a completion tells of the
// message, and cheaper for short ones in another process.
//
// tag says for whom this is: Failed names it if the write could not be done. It must be a
// value that can be compared, and a pointer, for nothing to be allocated. Once a write has
// failed, all others with its tag are dropped until Failed has told so: nobody may find the
// end of a message whose beginning is missing.
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
		io.enqueue(r, piece{tag: tag, region: r, addr: r.process.base + off, p: p, last: last})
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
	if len(io.dirty) > 0 { // a message that is scattered over both kinds of memory
		io.flushTag(tag)
		if len(io.failed) > 0 && io.hasFailed(tag) {
			return
		}
	}
	io.storeLast(v, p)
}

// view is the region's memory in place.
func (r *Region) view(off uint64, n int) ([]byte, error) {
	v := r.Memory.View(off, n)
	if len(v) != n || v == nil {
		return nil, ErrNotMemory // a Memory that breaks its promise
	}
	return v, nil
}

// Unsettled reports whether a write is queued, or one that failed has not been reported: until
// Flush and Failed nobody knows whether all that was written is in place.
func (io *IO) Unsettled() bool { return len(io.dirty) > 0 || len(io.failed) > 0 }

// Failed reports the tags whose writes failed since the last call, each once, and
// forgets them. f may use the IO.
func (io *IO) Failed(f func(tag any, err error)) {
	if len(io.failed) == 0 {
		return
	}
	for i := 0; i < len(io.failed); i++ { // f may add some
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

// Epoch begins a new epoch: memory that was deregistered, and read buffers that were handed
// out, before the last call of Epoch are released.
func (io *IO) Epoch() {
	io.epoch++
	io.arena.epoch()
	if len(io.tables) == 0 {
		return
	}
	io.tables = slices.DeleteFunc(io.tables, func(t *Table) bool {
		for i, r := range t.dying {
			io.release(r)
			t.dying[i] = nil
		}
		t.dying, t.retired = t.retired, t.dying[:0]
		if t.live > 0 || len(t.dying) > 0 {
			return false
		}
		t.io = nil
		return true
	})
}

// release gives back what a region held.
func (io *IO) release(r *Region) {
	r.Memory.Close()
	if q := r.queue; q != nil {
		r.queue = nil
		q.regions--
		io.forget(q)
	}
}
