package verbs

import (
	"fmt"
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

// ring returns the memory of a ring in a chunk, whose descriptor is fd and stays the caller's, and
// a function that ends its use.
func (c *chunks) ring(fd int, in abi.Chunk, offset uint32, size int) (ring []byte, release func(), err error) {
	if uint64(offset)+uint64(size) > uint64(in.Size) {
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

// mapShared maps memory of the daemon.
func mapShared(fd, size int) ([]byte, error) {
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return b, nil
}
