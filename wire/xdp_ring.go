package wire

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An xdpRing is a ring that an AF_XDP socket shares with the kernel. One side produces entries and
// the other consumes them; each stores its own index and reads the other's. What the kernel stores
// is not trusted: an index is taken modulo the size, and a distance is at most the size.
type xdpRing[T any] struct {
	memory   []byte
	entries  []T
	mask     uint32
	mine     uint32  // this side's index, ahead of what the kernel sees until publish
	own      *uint32 // where this side's index is stored
	other    *uint32 // the kernel's index
	flags    *uint32
	produces bool
}

// mapRing maps a ring of a socket with a number of entries, a power of two. produces says which
// side the program is.
func mapRing[T any](fd int, page int64, o unix.XDPRingOffset, entries int, produces bool) (r xdpRing[T], err error) {
	var entry T
	n := int(o.Desc) + entries*int(unsafe.Sizeof(entry))
	if r.memory, err = unix.Mmap(fd, page, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return r, os.NewSyscallError("map a ring of the AF_XDP socket", err)
	}
	at := func(offset uint64) *uint32 { return (*uint32)(unsafe.Pointer(&r.memory[offset])) }
	r.entries = unsafe.Slice((*T)(unsafe.Pointer(&r.memory[o.Desc])), entries)
	r.mask, r.produces, r.flags = uint32(entries-1), produces, at(o.Flags)
	r.own, r.other = at(o.Consumer), at(o.Producer)
	if produces {
		r.own, r.other = r.other, r.own
	}
	return r, nil
}

func (r *xdpRing[T]) unmap() {
	if r.memory != nil {
		unix.Munmap(r.memory)
	}
}

// ready returns how many entries this side may produce, or consume.
func (r *xdpRing[T]) ready() int {
	n := atomic.LoadUint32(r.other) - r.mine
	if r.produces {
		n += uint32(len(r.entries))
	}
	return int(min(n, uint32(len(r.entries))))
}

// entry returns the entry that is i beyond the next.
func (r *xdpRing[T]) entry(i int) *T { return &r.entries[(r.mine+uint32(i))&r.mask] }

// add produces n entries that the kernel sees from the next publish on.
func (r *xdpRing[T]) add(n int) { r.mine += uint32(n) }

// publish produces or consumes n entries.
func (r *xdpRing[T]) publish(n int) {
	r.mine += uint32(n)
	atomic.StoreUint32(r.own, r.mine)
}

// pending returns how many produced entries the kernel has not reported as consumed. It may have
// read any that is published, so none is ever taken back.
func (r *xdpRing[T]) pending() int { return len(r.entries) - r.ready() }

// needsWakeup reports whether the kernel waits for a system call before it looks at the ring.
func (r *xdpRing[T]) needsWakeup() bool {
	return atomic.LoadUint32(r.flags)&unix.XDP_RING_NEED_WAKEUP != 0
}
