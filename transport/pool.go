package transport

import "softroce/mrtable"

// A Pool is the memory of what is in progress on the queue pairs of an engine: send work requests,
// and reads of memory. It passes from one queue pair to another, so that idle ones have none.
//
// Frames and writes to memory may refer to a work request that is complete: to its inline data, or
// to the value that an atomic returned. Its memory is therefore used again only after Recycle.
type Pool struct {
	used  []*wqeBlock // since Recycle
	free  []*wqeBlock
	reads []readList
	age   uint32 // number of Abandon calls
}

const (
	// wqesPerBlock is how many work requests a block holds: it is of about 1 KiB.
	wqesPerBlock = 4

	// maxFree is how many blocks a pool keeps, 4 MiB without inline data and long scatter/gather
	// lists. What queue pairs return during a step is usually less.
	maxFree = 4096

	// maxLists is how many lists of reads a pool keeps, and maxReads the longest one. With short
	// elements, a step can need many more, and no budget covers the memory of the pool.
	maxLists = 256
	maxReads = 512
)

// A wqeBlock is a part of a send queue, with the scatter/gather lists and inline data of its
// entries.
type wqeBlock struct {
	age    uint32     // of the pool, when the block was taken
	sges   arena[SGE] // in single, until they are too many
	inline arena[byte]
	single [wqesPerBlock]SGE
	wqes   [wqesPerBlock]wqe
}

// take returns a block without entries.
func (p *Pool) take() (b *wqeBlock) {
	if n := len(p.free); n > 0 {
		b = p.free[n-1]
		p.free = p.free[:n-1]
		b.sges, b.inline = b.sges[:0], b.inline[:0]
	} else {
		b = new(wqeBlock)
		b.sges = b.single[:0]
	}
	b.age = p.age
	return b
}

// put returns a block whose entries are complete.
func (p *Pool) put(b *wqeBlock) {
	if b.age == p.age {
		p.used = append(p.used, b)
	}
}

// Recycle makes the memory of work requests that are complete available to others. No frame or
// write may refer to it any more.
func (p *Pool) Recycle() {
	if len(p.used) == 0 {
		return
	}
	n := min(len(p.used), maxFree-len(p.free))
	p.free = append(p.free, p.used[:n]...)
	clear(p.used)
	p.used = p.used[:0]
}

// Abandon leaves all memory to whatever may still refer to it: none of it is used again. That
// includes reads, which may refer to a read arena that the IO has replaced.
func (p *Pool) Abandon() {
	p.age++
	p.free, p.used, p.reads = nil, nil, nil
}

// A readList is storage of a readAhead. In the pool its reads are empty or nil.
type readList struct {
	reads []*mrtable.Read
	age   uint32 // of the pool, when the list was taken
}

// takeReads returns storage for reads.
func (p *Pool) takeReads() readList {
	n := len(p.reads)
	if n == 0 {
		return readList{make([]*mrtable.Read, 0, 4), p.age}
	}
	l := p.reads[n-1]
	p.reads = p.reads[:n-1]
	return l
}

// putReads returns storage whose reads are empty or nil.
func (p *Pool) putReads(l readList) {
	if l.age == p.age && len(l.reads) <= maxReads && len(p.reads) < maxLists {
		p.reads = append(p.reads, l)
	}
}

// An arena holds the lists that were added to it since it was emptied.
type arena[T any] []T

// add returns a copy of l. What was added before stays where it is.
func (a *arena[T]) add(l []T) []T {
	n := len(*a)
	*a = append(*a, l...)
	return (*a)[n:len(*a):len(*a)]
}
