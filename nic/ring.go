package nic

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"softroce/internal/abi"
	"softroce/internal/release"
)

// word returns the 32-bit word at off of shared memory. The memory is page-aligned or from NewPage,
// off is a multiple of 4, and the machine is little-endian like the ABI.
func word(b []byte, off int) *uint32 { return (*uint32)(unsafe.Pointer(&b[off : off+4][0])) }

// A ring is the engine's side of a ring in memory that a client can write. The engine keeps its
// own index and only publishes it there; it checks the client's index each time it reads it. Both
// begin where the memory has them when the object is created. The atomic operations are
// sequentially consistent because of the pairs of words that package abi lists. The engine stores
// no consumer index of such a pair, so there a release store does.
type ring struct {
	slots    []byte // without the header
	slotSize uint32
	mask     uint32
	producer *uint32
	consumer *uint32
}

// newRing returns the ring in mem after checking that there is room for n slots, a power of two, of
// size bytes.
func newRing(what string, mem []byte, n, size int) (ring, error) {
	want := abi.RingSlots + n*size
	if n <= 0 || n&(n-1) != 0 || len(mem) < want {
		return ring{}, errorf(syscall.EINVAL, "%s ring of %d bytes: no room for %d slots of %d bytes", what, len(mem), n, size)
	}
	if uintptr(unsafe.Pointer(&mem[0]))&7 != 0 {
		return ring{}, errorf(syscall.EINVAL, "%s ring is not aligned to 8 bytes", what)
	}
	return ring{
		slots: mem[abi.RingSlots:want:want], slotSize: uint32(size), mask: uint32(n - 1),
		producer: word(mem, abi.RingProducer), consumer: word(mem, abi.RingConsumer),
	}, nil
}

func (r *ring) size() uint32 { return r.mask + 1 }

// slot returns the memory of slot i. The client may write to it at any time.
func (r *ring) slot(i uint32) []byte {
	off := (i & r.mask) * r.slotSize
	return r.slots[off : off+r.slotSize : off+r.slotSize]
}

func (r *ring) loadProducer() uint32   { return atomic.LoadUint32(r.producer) }
func (r *ring) loadConsumer() uint32   { return atomic.LoadUint32(r.consumer) }
func (r *ring) storeProducer(i uint32) { atomic.StoreUint32(r.producer, i) }

// storeConsumer publishes a consumer index. It does not wait for the cache line, which the client's
// processor may own.
func (r *ring) storeConsumer(i uint32) { release.Store32(r.consumer, i) }

// moveSlots copies slots from index first up to end between rings with slots of one size.
func moveSlots(to, from *ring, first, end uint32) {
	for i := first; i != end; i++ {
		copy(to.slot(i), from.slot(i))
	}
}

// roundSlots returns the number of slots for n entries: a power of two, at least 1.
func roundSlots(n int) int {
	s := 1
	for s < n {
		s *= 2
	}
	return s
}
