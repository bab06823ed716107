package verbs

import (
	"fmt"
	"math/bits"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
)

// chunks are the mapped chunks of a Context, in which its rings are, by number.
type chunks struct {
	mu sync.Mutex
	m  map[uint32]*chunk
}

type chunk struct {
	mem   []byte
	rings int // that use the mapping
}

// A ringPlace is where the daemon says that a ring is.
type ringPlace struct {
	in     abi.Chunk
	offset uint32
	slots  uint32 // a power of two
	size   uint32 // bytes of a slot
}

// ring returns the memory of a ring in a chunk, whose descriptor is fd and stays the caller's, and
// a function that ends its use. Slots have at least a number of bytes. The error is EPROTO if the
// ring cannot be where the daemon says.
func (c *chunks) ring(fd int, at ringPlace, slotSize int) (ring []byte, release func(), err error) {
	in, offset := at.in, at.offset
	if bits.OnesCount32(at.slots) != 1 || uint64(at.size) < uint64(slotSize) || at.size%8 != 0 || offset%8 != 0 {
		return nil, nil, fmt.Errorf("ring of %d slots of %d bytes at %d: %w", at.slots, at.size, offset, syscall.EPROTO)
	}
	size := abi.RingSlots + uint64(at.slots)*uint64(at.size)
	if size+uint64(offset) > uint64(in.Size) {
		return nil, nil, fmt.Errorf("ring of %d bytes at %d of a chunk of %d: %w", size, offset, in.Size, syscall.EPROTO)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[uint32]*chunk{}
	}
	k := c.m[in.Number]
	if k == nil {
		mem, err := mapShared(fd, int(in.Size))
		if err != nil {
			return nil, nil, err
		}
		k = &chunk{mem: mem}
		c.m[in.Number] = k
	}
	if uint64(len(k.mem)) != uint64(in.Size) {
		return nil, nil, fmt.Errorf("chunk %d of %d bytes, which had %d: %w", in.Number, in.Size, len(k.mem), syscall.EPROTO)
	}
	k.rings++
	return k.mem[offset:][:size:size], func() { c.release(in.Number) }, nil
}

func (c *chunks) release(number uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.m[number]
	if k.rings--; k.rings == 0 {
		unix.Munmap(k.mem)
		delete(c.m, number)
	}
}

// mapShared maps memory of the daemon. A file that is shorter would end the process at an access.
func mapShared(fd, size int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Size < int64(size) {
		return nil, fmt.Errorf("memory of %d bytes in a file of %d: %w", size, st.Size, syscall.EPROTO)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return b, nil
}
