package mrtable

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/release"
)

// A system call takes at most maxVector pieces on either side (UIO_MAXIOV). A write that ends a
// message uses two, so half as many always fit.
const (
	maxVector = 1024
	maxPieces = maxVector / 2
)

// tailLen is how many final bytes of a message are stored after the rest.
const tailLen = 8

// A Batch is the operations of one client that a Flush carries out. Run may take as long as the
// client's memory likes: a page fault may wait for a program of the client. It uses nothing but the
// batch, so another goroutine may go on with the IO meanwhile, after Detach.
type Batch struct {
	client  *Client
	ops     []op
	atomics []operands
	reads   []*Read

	readsFailed []readFailure
	failed      []failure // tags
	results     []result

	local   []unix.Iovec // vectors of a system call
	remote  []unix.RemoteIovec
	barrier uint64

	detached bool                  // see IO.Detach
	borrowed []int                 // ops that take data from mapped memory and are not revoked, after Detach
	revoked  atomic.Pointer[[]any] // tags whose remaining writes are dropped: see Revoke
	pinned   []*Region
	copied   []byte // what is to be written, after Copy; used again after Settle
}

type opKind uint8

const (
	opWrite     opKind = iota // p to the process
	opRead                    // the process to p
	opPlace                   // p to mapped memory, after everything before it
	opStoreWord               // operand to the process
	opCompareSwap
	opFetchAdd
)

// An op is a queued operation, or the rest of it.
type op struct {
	kind     opKind
	last     bool
	operands int32 // index in Batch.atomics
	tag      any
	region   *Region
	addr     uint64 // address in the process
	p        []byte
	read     *Read
}

// operands are what an operation has beside a write.
type operands struct {
	place             []byte  // opPlace: the destination
	id, compare, word uint64  // atomics: swap, add or store word
	buf               [8]byte // of a system call
}

// A Read is a read of memory that the kernel copies. Its owner may use it again when Done.
type Read struct {
	region *Region
	addr   uint64
	p      []byte
	err    error
	done   bool

	released *uint64 // the IO's count of ReleaseReads, and its value when p was taken from the arena;
	count    uint64  // released is nil if p is memory of the read's own
}

// Done reports whether the read was carried out.
func (r *Read) Done() bool { return r.done }

// Of reports whether r has read region at addr, and what it has read was not released.
func (r *Read) Of(region *Region, addr uint64) bool {
	return r.region == region && r.addr == addr && (r.released == nil || *r.released == r.count)
}

// Bytes returns what was read, valid until the second IO.Epoch or IO.ReleaseReads, and ErrFault,
// ErrGone or ErrPermission for an access that failed. The read must be Done.
func (r *Read) Bytes() ([]byte, error) { return r.p, r.err }

type readFailure struct {
	read *Read
	err  error
}

// A result is what an atomic operation on queued memory found.
type result struct {
	tag      any
	id       uint64
	original uint64
}

// Client returns the client whose memory the batch accesses.
func (b *Batch) Client() *Client { return b.client }

// operands keeps v and returns its index.
func (b *Batch) operands(v operands) int32 {
	b.atomics = append(b.atomics, v)
	return int32(len(b.atomics) - 1)
}

// reset empties b. It does not write client, which a watchdog may read at any time.
func (b *Batch) reset() {
	clear(b.ops)
	clear(b.atomics)
	clear(b.reads)
	clear(b.readsFailed)
	clear(b.failed)
	clear(b.results)
	clear(b.pinned)
	b.ops, b.atomics, b.reads, b.pinned = b.ops[:0], b.atomics[:0], b.reads[:0], b.pinned[:0]
	b.borrowed = b.borrowed[:0]
	b.readsFailed, b.failed, b.results = b.readsFailed[:0], b.failed[:0], b.results[:0]
}

// Run carries out the operations. If one fails, the later ones with the same tag are dropped; all
// others are carried out, unless their region is deregistered meanwhile. It does not change ops,
// which Detach may read meanwhile.
func (b *Batch) Run() {
	off := 0 // bytes of ops[i] that were copied
	for i := 0; i < len(b.ops); {
		o := &b.ops[i]
		if b.isDropped(o.tag) {
			i, off = i+1, 0
			continue
		}
		n, err := b.next(i, off)
		if err == nil {
			i, off = b.advance(i, off+n)
			continue
		}
		if o.read != nil {
			b.readsFailed = append(b.readsFailed, readFailure{o.read, err})
		} else {
			b.failed = append(b.failed, failure{o.tag, err})
		}
		i, off = i+1, 0
	}
}

// isDropped reports whether the operations with this tag are not carried out any more.
func (b *Batch) isDropped(tag any) bool {
	return len(b.failed) > 0 && b.hasFailed(tag) || tag != nil && b.isRevoked(tag)
}

// isRevoked reports whether Revoke has named a tag.
func (b *Batch) isRevoked(tag any) bool {
	l := b.revoked.Load()
	return l != nil && slices.Contains(*l, tag)
}

// hasFailed reports whether an operation with this tag has failed. Reads have none.
func (b *Batch) hasFailed(tag any) bool {
	for i := range b.failed {
		if tag != nil && b.failed[i].tag == tag {
			return true
		}
	}
	return false
}

// next carries out operations from the i-th on, of which off bytes were copied before, and returns
// how many bytes. An error is that of the i-th.
func (b *Batch) next(i, off int) (int, error) {
	o := &b.ops[i]
	if o.region.registered().gone.Load() {
		return 0, ErrKey
	}
	switch o.kind {
	case opWrite, opRead:
		return b.transfer(i, off)
	case opPlace:
		storeLast(b.atomics[o.operands].place, o.p, &b.barrier)
		return len(o.p), nil
	}
	return 0, b.atomic(o, &b.atomics[o.operands])
}

// transfer passes operations of one kind in one process to a system call.
func (b *Batch) transfer(i, off int) (int, error) {
	kind, p := b.ops[i].kind, b.ops[i].region.process.process
	k := i + 1
	for k < len(b.ops) && k-i < maxPieces && b.ops[k].kind == kind && b.ops[k].region.process.process == p &&
		!b.ops[k].region.registered().gone.Load() && !b.isDropped(b.ops[k].tag) {
		k++
	}
	b.buildVectors(b.ops[i:k], off)
	defer clear(b.local)
	if kind == opRead {
		return p.readv(b.local, b.remote)
	}
	return p.writev(b.local, b.remote)
}

// advance returns the position n bytes after the beginning of the i-th operation. An operation on a
// word has no bytes.
func (b *Batch) advance(i, n int) (next, off int) {
	for {
		size := len(b.ops[i].p)
		if n < size {
			return i, n
		}
		i, n = i+1, n-size
		if n == 0 {
			return i, 0
		}
	}
}

// buildVectors builds the vectors of a system call, without the first off bytes. Adjacent addresses
// are merged into one remote piece, which saves most of the kernel's work per packet. The end of a
// message is always a separate piece.
func (b *Batch) buildVectors(ops []op, off int) {
	b.local, b.remote = b.local[:0], b.remote[:0]
	grows := false // the last remote piece may be extended
	for i := range ops {
		o := &ops[i]
		p, addr := o.p[off:], o.addr+uint64(off)
		off = 0
		body := len(p)
		if o.last {
			body = max(0, body-tailLen)
		}
		if body > 0 {
			b.appendVector(p[:body], addr, grows)
			grows = true
		}
		if o.last {
			b.appendVector(p[body:], addr+uint64(body), false)
			grows = false
		}
	}
}

func (b *Batch) appendVector(p []byte, addr uint64, extend bool) {
	b.local = append(b.local, unix.Iovec{Base: &p[0], Len: uint64(len(p))})
	if end := len(b.remote) - 1; extend && end >= 0 {
		if r := &b.remote[end]; uint64(r.Base)+uint64(r.Len) == addr {
			r.Len += len(p)
			return
		}
	}
	b.remote = append(b.remote, unix.RemoteIovec{Base: uintptr(addr), Len: len(p)})
}

// atomic carries out an operation on eight bytes of a process, which other operations of this IO
// cannot interrupt (IBV_ATOMIC_HCA).
func (b *Batch) atomic(o *op, a *operands) error {
	t := o.region.table
	t.atomics.Lock()
	defer t.atomics.Unlock()
	v := a.word
	if o.kind != opStoreWord {
		if err := b.word(o, a, (*Process).readv); err != nil {
			return err
		}
		original := binary.NativeEndian.Uint64(a.buf[:])
		if o.kind == opFetchAdd {
			v += original
		}
		if o.kind == opFetchAdd || original == a.compare {
			binary.NativeEndian.PutUint64(a.buf[:], v)
			if err := b.word(o, a, (*Process).writev); err != nil {
				return err
			}
		}
		b.results = append(b.results, result{o.tag, a.id, original})
		return nil
	}
	binary.NativeEndian.PutUint64(a.buf[:], v)
	return b.word(o, a, (*Process).writev)
}

// word copies the eight bytes of an atomic operation.
func (b *Batch) word(o *op, a *operands, call func(*Process, []unix.Iovec, []unix.RemoteIovec) (int, error)) error {
	for done := 0; done < len(a.buf); {
		b.local, b.remote = b.local[:0], b.remote[:0]
		b.appendVector(a.buf[done:], o.addr+uint64(done), false)
		n, err := call(o.region.process.process, b.local, b.remote)
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

// storeLast copies p to v of the same length and stores the final 8 bytes last, with a single store
// if they are aligned. The bytes before them are visible earlier: Store64 is not ordered before
// what precedes it, and the stores after the atomic load are not ordered before the load. An atomic
// addition alone would not do: without LSE, an arm64 makes it of two instructions between which
// both sides may move.
func storeLast(v, p []byte, barrier *uint64) {
	body := max(0, len(p)-tailLen)
	copy(v[:body], p)
	if tail := v[body:]; len(tail) == tailLen && aligned(tail) {
		release.Store64((*uint64)(unsafe.Pointer(&tail[0])), binary.NativeEndian.Uint64(p[body:]))
		return
	}
	atomic.StoreUint64(barrier, 1)
	atomic.LoadUint64(barrier)
	copy(v[body:], p[body:])
}
