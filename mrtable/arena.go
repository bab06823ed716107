package mrtable

// An arena is a ring buffer. Bytes are taken at head and released at tail two epochs later, or all
// together.
// Positions only grow; the byte at position x is buf[x % len(buf)].
type arena struct {
	head uint64
	tail uint64
	mark uint64 // head at the last epoch
	buf  []byte
}

// arenaAlign prevents two reads from sharing a cache line.
const arenaAlign = 64

func newArena(n int) arena {
	return arena{buf: make([]byte, (max(n, 0)+arenaAlign-1)&^(arenaAlign-1))}
}

// take returns n contiguous bytes.
func (a *arena) take(n int) ([]byte, error) {
	size := uint64(len(a.buf))
	need := (uint64(n) + arenaAlign - 1) &^ (arenaAlign - 1)
	if need > size {
		return nil, ErrReadSize
	}
	start := a.head
	if rest := size - start%size; rest < need {
		start += rest // a take does not wrap
	}
	if start+need-a.tail > size {
		return nil, ErrArena
	}
	a.head = start + need
	off := start % size
	return a.buf[off : off+uint64(n) : off+uint64(n)], nil
}

// epoch releases what was taken before the previous epoch.
func (a *arena) epoch() {
	if a.tail == a.head {
		return // as the last epoch or release has left it
	}
	a.tail, a.mark = a.mark, a.head
	if a.tail != a.head {
		return
	}
	a.rewind()
}

// release releases everything.
func (a *arena) release() {
	a.tail, a.mark = a.head, a.head
	a.rewind()
}

// rewind starts over, where the cache is warm. Nothing may be in use.
func (a *arena) rewind() {
	if size := uint64(len(a.buf)); size > 0 && a.head%size != 0 {
		a.head += size - a.head%size
		a.tail, a.mark = a.head, a.head
	}
}
