package attach

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

// An arena is the memory of a connection's rings. Client and daemon share it in chunks, of which a
// ring is a part: the kernel bounds the mappings of a process, and mapping memory takes longer than
// everything else that a new queue pair needs. Each chunk doubles the arena, so there are few.
//
// A client can write all of a chunk at any time, also what no ring uses: it can only harm its own
// rings. So the budget has the whole chunk. The connection's lock guards the arena.
type arena struct {
	account *account
	chunks  []*chunk
	last    uint32 // number of the last chunk
	rings   uint32 // that were created
}

const (
	ringAlign = 64 // a cache line; a power of two
	pageSize  = 4096
	minChunk  = 64 << 10
	maxChunk  = 64 << 20 // unless a ring is larger
	maxRings  = 1 << 30  // of an object

	// A goroutine that clears memory cannot be stopped, also not between two pieces unless it
	// yields there. The garbage collector, and with it all engines, would wait for it.
	clearAtATime = 256 << 10
)

// A chunk is a mapped memfd.
type chunk struct {
	number uint32
	fd     int
	mem    []byte
	free   []span // in order, with rings between any two of them
	fresh  int    // no ring was ever at this offset or behind it
}

// A span is a range of a chunk.
type span struct{ start, end int }

// ringMemory is a span for the rings of one object.
type ringMemory struct {
	arena *arena
	chunk *chunk
	span  span
}

// spanOf returns the bytes that rings of a size occupy: an odd number of cache lines. So the
// headers of many rings of one size are in different sets of the processor's caches; those of rings
// at the beginning of pages would evict each other.
func spanOf(size int) int { return (size+ringAlign-1)&^(ringAlign-1) | ringAlign }

// newRings returns zeroed memory, at an aligned offset.
func (a *arena) newRings(size int) (*ringMemory, error) {
	if size > maxRings {
		return nil, errorf(syscall.ENOMEM, "rings of %d bytes: an object may have %d", size, maxRings)
	}
	size = spanOf(size)
	if err := a.account.take(ringCost(size)); err != nil {
		return nil, err
	}
	for _, c := range a.chunks {
		if s, ok := c.cut(size); ok {
			return &ringMemory{a, c, s}, nil
		}
	}
	c, err := a.grow(size)
	if err != nil {
		a.account.release(ringCost(size))
		return nil, err
	}
	s, _ := c.cut(size)
	return &ringMemory{a, c, s}, nil
}

// newRing returns the memory of one ring, and a descriptor to send to the client and then to close.
func (a *arena) newRing(size int) (r *ringMemory, mem []byte, fd int, err error) {
	if r, err = a.newRings(size); err != nil {
		return nil, nil, -1, err
	}
	if fd, err = r.descriptor(); err != nil {
		r.release()
		return nil, nil, -1, err
	}
	return r, r.ring(0, size), fd, nil
}

// ringCost is what a ring costs beside its chunk: the daemon copies work requests.
func ringCost(size int) amounts { return amounts{memory: uint64(size)} }

func chunkCost(size int) amounts {
	return amounts{mappings: 1, descriptors: 1, memory: uint64(size)}
}

// grow adds a chunk for a ring of that size: as large as the arena is or, if the user may not have
// that much, as large as the ring.
func (a *arena) grow(size int) (*chunk, error) {
	n := minChunk
	for _, c := range a.chunks {
		n += len(c.mem)
	}
	size = (size + pageSize - 1) &^ (pageSize - 1)
	n = max(min(n, maxChunk), size)
	if a.account.take(chunkCost(n)) != nil {
		n = size
		if err := a.account.take(chunkCost(n)); err != nil {
			return nil, err
		}
	}
	mem, fd, err := newSharedMemory("rings", n)
	if err != nil {
		a.account.release(chunkCost(n))
		return nil, err
	}
	a.last++
	c := &chunk{number: a.last, fd: fd, mem: mem, free: []span{{0, n}}}
	a.chunks = append(a.chunks, c)
	return c, nil
}

// cut takes the first free span that is large enough, and zeroes it. A span that was never used is
// zero, or has what its client wrote.
func (c *chunk) cut(size int) (s span, ok bool) {
	i := slices.IndexFunc(c.free, func(f span) bool { return f.end-f.start >= size })
	if i < 0 {
		return s, false
	}
	s = span{c.free[i].start, c.free[i].start + size}
	if c.free[i].start = s.end; s.end == c.free[i].end {
		c.free = slices.Delete(c.free, i, i+1)
	}
	for used := c.mem[s.start:max(s.start, min(s.end, c.fresh))]; len(used) > 0; {
		n := min(len(used), clearAtATime)
		clear(used[:n])
		if used = used[n:]; len(used) > 0 {
			runtime.Gosched()
		}
	}
	c.fresh = max(c.fresh, s.end)
	return s, true
}

// put is the opposite of cut.
func (c *chunk) put(s span) {
	i, _ := slices.BinarySearchFunc(c.free, s.start, func(f span, start int) int { return f.start - start })
	if i < len(c.free) && c.free[i].start == s.end {
		c.free[i].start = s.start
	} else {
		c.free = slices.Insert(c.free, i, s)
	}
	if i > 0 && c.free[i-1].end == s.start {
		c.free[i-1].end = c.free[i].end
		c.free = slices.Delete(c.free, i, i+1)
	}
}

func (c *chunk) empty() bool { return len(c.free) == 1 && c.free[0] == span{0, len(c.mem)} }

// ring returns the memory of a ring at an offset.
func (r *ringMemory) ring(offset, size int) []byte {
	mem := r.chunk.mem[r.span.start:r.span.end]
	return mem[offset:][:size:size]
}

// indicesBefore is how far the indices of a new ring are from 2^31 or 2^32.
const indicesBefore = 6

// begin sets the indices of a new ring, and returns it. They pass 2^31 or 2^32 soon, in turn:
// arithmetic that is wrong there fails at once, and not after days.
func (a *arena) begin(ring []byte) []byte {
	a.rings++
	for _, index := range []int{abi.RingProducer, abi.RingConsumer} {
		binary.LittleEndian.PutUint32(ring[index:], a.rings<<31-indicesBefore)
	}
	return ring
}

// descriptor returns a descriptor of the chunk to send to the client, and then to close. The chunk
// may be gone by then.
func (r *ringMemory) descriptor() (int, error) {
	fd, err := unix.FcntlInt(uintptr(r.chunk.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("descriptor of a ring: %w", err)
	}
	return fd, nil
}

func (r *ringMemory) number() abi.Chunk {
	return abi.Chunk{Number: r.chunk.number, Size: uint32(len(r.chunk.mem))}
}

func (r *ringMemory) offset() uint32 { return uint32(r.span.start) }

// release frees the rings, which the engine must no longer use. A chunk without rings is unmapped.
func (r *ringMemory) release() {
	a, c := r.arena, r.chunk
	c.put(r.span)
	a.account.release(ringCost(r.span.end - r.span.start))
	if c.empty() {
		a.chunks = slices.DeleteFunc(a.chunks, func(o *chunk) bool { return o == c })
		unmapShared(c.mem)
		unix.Close(c.fd)
		a.account.release(chunkCost(len(c.mem)))
	}
}
