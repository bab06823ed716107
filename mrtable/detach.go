package mrtable

import (
	"cmp"
	"slices"
	"unsafe"
)

// A batch in progress refers to memory of others: received packets, the read arena, and, in the
// fabric inside the process, mapped memory of other clients. If it may take long, that memory must
// neither be unmapped nor used for anything else before it ends.

// Detach lets the IO go on while another thread is in b.Run, which may last until the end of the
// program. Regions that b accesses or takes data from stay mapped until Settle, and the read arena
// is replaced. The caller must give up the buffers of received packets.
func (io *IO) Detach(b *Batch) {
	io.replaceArena()
	io.detached++
	b.detached = true
	for _, r := range b.reads {
		r.released = nil
	}
	io.pinOwn(b)
	io.pinSources(b)
}

// maxSpares bounds the arenas that are kept for later. Each is as large as the read arena.
const maxSpares = 4

// replaceArena takes another arena for reads and keeps the old one, to use it again: stale
// references to an arena, of which many may be left, keep all of its memory from the collector.
func (io *IO) replaceArena() {
	next := -1
	if io.detached == 0 { // or a batch may still write to a spare one
		next = slices.IndexFunc(io.spares, func(a arena) bool { return a.head == a.tail })
	}
	old := io.arena
	switch {
	case next >= 0:
		io.arena, io.spares[next] = io.spares[next], old
		return
	case len(io.spares) < maxSpares:
		io.spares, io.hasSpares = append(io.spares, old), true
	}
	io.arena = newArena(len(old.buf))
}

// Revoke ends the use of data that a detached batch takes from mapped memory and that its owner may
// change from now on: of the writes with a tag for which f returns true, those that have not begun
// are dropped, and all have failed when the batch is settled. What the kernel has begun to copy may
// still be written. f may be called several times with a tag, while another thread is in Run.
func (b *Batch) Revoke(f func(tag any) bool) {
	var last any // most operations have the tag of the one before
	b.revokeOps(func(o *op) bool {
		if o.tag == last {
			return false
		}
		last = o.tag
		return f(o.tag)
	})
}

// RevokeMemory is Revoke for the tags with data in a region that is mapped.
func (b *Batch) RevokeMemory(r *Region) {
	if r.process != nil || r.Length == 0 {
		return
	}
	v, err := r.view(r.base, int(r.Length))
	if err != nil {
		return
	}
	first := uintptr(unsafe.Pointer(&v[0]))
	b.revokeOps(func(o *op) bool {
		return len(o.p) > 0 && uintptr(unsafe.Pointer(&o.p[0]))-first < uintptr(len(v))
	})
}

func (b *Batch) revokeOps(f func(*op) bool) {
	var tags []any
	if l := b.revoked.Load(); l != nil {
		tags = slices.Clone(*l) // Run may read the old list
	}
	before, stay := len(tags), b.borrowed[:0]
	for _, i := range b.borrowed {
		switch o := &b.ops[i]; {
		case slices.Contains(tags, o.tag):
		case f(o):
			tags = append(tags, o.tag)
		default:
			stay = append(stay, i)
		}
	}
	b.borrowed = stay
	if len(tags) > before {
		b.revoked.Store(&tags)
	}
}

// settleDetached ends what Detach began. What b has read moves to memory of its own.
func (io *IO) settleDetached(b *Batch) {
	io.detached--
	b.detached = false
	for _, r := range b.reads {
		r.p = slices.Clone(r.p)
	}
}

// Copy prepares b for Run on another goroutine: it copies what b refers to. What is read stays
// valid, since it is in memory of its own.
func (io *IO) Copy(b *Batch) {
	written, read := 0, 0
	for i := range b.ops {
		if o := &b.ops[i]; o.read == nil {
			written += len(o.p)
		} else {
			read += len(o.p)
		}
	}
	b.copied = slices.Grow(b.copied[:0], written)[:written]
	from, to := b.copied, make([]byte, read)
	for i := range b.ops {
		o := &b.ops[i]
		n := len(o.p)
		if o.read == nil {
			copy(from, o.p)
			o.p, from = from[:n:n], from[n:]
		} else {
			o.p, to = to[:n:n], to[n:]
			o.read.p, o.read.released = o.p, nil
		}
	}
	io.pinOwn(b)
}

// pinOwn keeps the regions that b accesses.
func (io *IO) pinOwn(b *Batch) {
	var last *Region
	for i := range b.ops {
		if r := b.ops[i].region.registered(); r != last {
			last = r
			b.pin(r)
		}
	}
}

// pin keeps the memory of r until Settle.
func (b *Batch) pin(r *Region) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.pins++
	b.pinned = append(b.pinned, r)
}

func (io *IO) unpin(b *Batch) {
	for _, r := range b.pinned {
		r.unpin()
	}
}

func (r *Region) unpin() {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	if r.pins--; r.pins == 0 && r.released {
		r.Memory.Close()
	}
}

// A source is the address of the first byte that an operation writes.
type source struct {
	first uintptr
	op    int // index in Batch.ops
}

// inPlace returns the memory of r that writes may take data from, nil if there is none.
func (r *Region) inPlace() []byte {
	switch m := r.Memory.(type) {
	case *mapped:
		return m.mapping
	case *heap:
		return m.data
	}
	return nil
}

// pinSources keeps the mapped regions that contain data to be written. It compares addresses: the
// data of a packet does not say where it comes from.
func (io *IO) pinSources(b *Batch) {
	var at []source // in the order of their addresses
	for i := range b.ops {
		if o := &b.ops[i]; o.read == nil && len(o.p) > 0 {
			at = append(at, source{uintptr(unsafe.Pointer(&o.p[0])), i})
		}
	}
	slices.SortFunc(at, func(x, y source) int { return cmp.Compare(x.first, y.first) })
	covering := make([]int, len(at)+1) // regions of at[i], less those of at[i-1]
	pin := func(r *Region) {
		v := r.inPlace()
		if len(v) == 0 || r.window != nil {
			return
		}
		first := uintptr(unsafe.Pointer(&v[0]))
		compare := func(s source, to uintptr) int { return cmp.Compare(s.first, to) }
		i, _ := slices.BinarySearchFunc(at, first, compare)
		n, _ := slices.BinarySearchFunc(at[i:], first+uintptr(len(v)), compare)
		if n > 0 {
			covering[i]++
			covering[i+n]--
			b.pin(r)
		}
	}
	for _, t := range io.tables {
		for i := range t.slots {
			if r := t.slots[i].region.Load(); r != nil {
				pin(r)
			}
		}
		for _, r := range t.retired {
			pin(r)
		}
		for _, r := range t.retiredEarlier {
			pin(r)
		}
		for _, r := range t.waiting() {
			pin(r)
		}
	}
	regions := 0
	for i := range at {
		if regions += covering[i]; regions > 0 {
			b.borrowed = append(b.borrowed, at[i].op)
		}
	}
}
