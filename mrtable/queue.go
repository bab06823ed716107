package mrtable

import (
	"golang.org/x/sys/unix"
)

// A system call takes at most maxVector pieces on either side (UIO_MAXIOV). A write that ends a
// message uses two, so half as many writes always fit.
const (
	maxVector = 1024
	maxPieces = maxVector / 2
)

// tailLen is how many final bytes of a message are stored after the rest.
const tailLen = 8

// A queue holds the pending writes to one process, in order.
type queue struct {
	process    *Process
	pieces     []piece
	regions    int    // regions that use the queue
	aliveEpoch uint64 // epoch in which the process was last seen alive
}

// A piece is a queued write, or its unwritten rest.
type piece struct {
	tag    any
	region *Region
	addr   uint64 // address in the process
	p      []byte
	last   bool
}

// queueOf returns the queue of the process that r belongs to, creating it if needed.
func (io *IO) queueOf(r *Region) *queue {
	r = r.registered() // the release of the registered region drops the queue
	if r.queue != nil {
		return r.queue
	}
	q := io.queues[r.process.process]
	if q == nil {
		q = &queue{process: r.process.process}
		io.queues[q.process] = q
	}
	q.regions++
	r.queue = q
	return q
}

// dropUnused removes a queue without regions, unless writes are pending in it: a second queue for
// the same process would break the order of writes.
func (io *IO) dropUnused(q *queue) {
	if q.regions == 0 && len(q.pieces) == 0 {
		delete(io.queues, q.process)
	}
}

func (io *IO) enqueue(r *Region, pc piece) {
	q := io.queueOf(r)
	if len(q.pieces) == maxPieces {
		io.flush(q)
		if len(io.failed) > 0 && io.hasFailed(pc.tag) {
			return
		}
	}
	if len(q.pieces) == 0 {
		io.dirty = append(io.dirty, q)
	}
	q.pieces = append(q.pieces, pc)
}

// Flush executes all queued writes, with one system call for each process unless some fail.
// Afterwards the slices given to Write are no longer used.
func (io *IO) Flush() {
	for len(io.dirty) > 0 {
		io.flush(io.dirty[len(io.dirty)-1])
	}
}

// flushTag flushes the queues that contain writes with this tag.
func (io *IO) flushTag(tag any) {
	for i := len(io.dirty) - 1; i >= 0; i-- {
		for j := range io.dirty[i].pieces {
			if io.dirty[i].pieces[j].tag == tag {
				io.flush(io.dirty[i])
				break
			}
		}
	}
}

// flush executes the writes of a queue. If one fails, the later ones with the same tag are dropped;
// all others are executed.
func (io *IO) flush(q *queue) {
	for i := range io.dirty {
		if io.dirty[i] == q {
			end := len(io.dirty) - 1
			io.dirty[i] = io.dirty[end]
			io.dirty[end] = nil
			io.dirty = io.dirty[:end]
			break
		}
	}
	rest := io.filterLive(q.pieces)
	for len(rest) > 0 {
		n, err := io.write(q, rest)
		if err == nil {
			rest = advance(rest, n)
			continue
		}
		if err == ErrFault { // the first piece has failed
			tag := rest[0].tag
			io.fail(tag, err)
			rest = withoutTag(rest, tag)
			continue
		}
		for i := range rest {
			io.fail(rest[i].tag, err)
		}
		break
	}
	clear(q.pieces)
	q.pieces = q.pieces[:0]
	io.dropUnused(q)
}

// filterLive keeps the pieces whose region is still registered and whose tag has not failed. Writes
// through a window that was invalidated since are executed, because they precede the invalidation.
func (io *IO) filterLive(pieces []piece) []piece {
	kept := pieces[:0]
	for i := range pieces {
		pc := pieces[i]
		if !pc.region.registered().live {
			io.fail(pc.tag, ErrKey)
		}
		if len(io.failed) == 0 || !io.hasFailed(pc.tag) {
			kept = append(kept, pc)
		}
	}
	return kept
}

// withoutTag keeps the pieces that have another tag.
func withoutTag(pieces []piece, tag any) []piece {
	kept := pieces[:0]
	for i := range pieces {
		if pieces[i].tag != tag {
			kept = append(kept, pieces[i])
		}
	}
	return kept
}

// advance skips n bytes that were written.
func advance(pieces []piece, n int) []piece {
	for len(pieces) > 0 && n >= len(pieces[0].p) {
		n -= len(pieces[0].p)
		pieces = pieces[1:]
	}
	if n > 0 && len(pieces) > 0 {
		pieces[0].p = pieces[0].p[n:]
		pieces[0].addr += uint64(n)
	}
	return pieces
}

// write passes all pieces to one system call and returns how many bytes were written.
func (io *IO) write(q *queue, pieces []piece) (int, error) {
	if err := io.checkAlive(q); err != nil {
		return 0, err
	}
	io.buildVectors(pieces)
	n, err := q.process.writev(io.local, io.remote)
	clear(io.local)
	return n, err
}

// checkAlive checks, once an epoch, that the PID still refers to the process.
func (io *IO) checkAlive(q *queue) error {
	if q.aliveEpoch != io.epoch {
		if !q.process.alive() {
			return ErrGone
		}
		q.aliveEpoch = io.epoch
	}
	return nil
}

// buildVectors builds the vectors of a system call. Writes to adjacent addresses are merged into
// one remote piece, which saves most of the kernel's work per packet. The end of a message is
// always a separate piece.
func (io *IO) buildVectors(pieces []piece) {
	io.local, io.remote = io.local[:0], io.remote[:0]
	grows := false // the last remote piece may be extended
	for i := range pieces {
		pc := &pieces[i]
		body := len(pc.p)
		if pc.last {
			body = max(0, body-tailLen)
		}
		if body > 0 {
			io.appendVector(pc.p[:body], pc.addr, grows)
			grows = true
		}
		if pc.last {
			io.appendVector(pc.p[body:], pc.addr+uint64(body), false)
			grows = false
		}
	}
}

func (io *IO) appendVector(p []byte, addr uint64, extend bool) {
	io.local = append(io.local, unix.Iovec{Base: &p[0], Len: uint64(len(p))})
	if end := len(io.remote) - 1; extend && end >= 0 {
		if r := &io.remote[end]; uint64(r.Base)+uint64(r.Len) == addr {
			r.Len += len(p)
			return
		}
	}
	io.remote = append(io.remote, unix.RemoteIovec{Base: uintptr(addr), Len: len(p)})
}

// readProcess reads a process's memory into p, after all earlier writes to it.
func (io *IO) readProcess(r *Region, off uint64, p []byte) error {
	q := io.queueOf(r)
	if len(q.pieces) > 0 {
		io.flush(q)
	}
	if err := io.checkAlive(q); err != nil {
		return err
	}
	addr := r.process.base + off
	for len(p) > 0 { // the kernel copies at most 2 GiB at once
		io.local = append(io.local[:0], unix.Iovec{Base: &p[0], Len: uint64(len(p))})
		io.remote = append(io.remote[:0], unix.RemoteIovec{Base: uintptr(addr), Len: len(p)})
		n, err := q.process.readv(io.local, io.remote)
		clear(io.local)
		if err != nil {
			return err
		}
		p = p[n:]
		addr += uint64(n)
	}
	return nil
}
