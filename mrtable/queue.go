package mrtable

import (
	"golang.org/x/sys/unix"
)

// A system call takes at most maxVector pieces on either side (UIO_MAXIOV). A write that
// ends a message becomes two, so half as many writes always fit in one call.
const (
	maxVector = 1024
	maxPieces = maxVector / 2
)

// tailLen is how much of a message's end is stored after the rest.
const tailLen = 8

// A queue holds the writes to one process in the order in which they came.
type queue struct {
	process *Process
	pieces  []piece
	regions int    // that know this queue
	proved  uint64 // the epoch in which the process was last seen alive
}

// A piece is a queued write, or what is left of it.
type piece struct {
	tag    any
	region *Region
	addr   uint64 // in the process
	p      []byte
	last   bool
}

// queueOf finds or makes the queue of the process that r is memory of.
func (io *IO) queueOf(r *Region) *queue {
	r = r.origin() // whose release ends the queue's use
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

// forget drops the queue of a process of which no region is left, unless writes wait in it: with a
// second queue for the same process they would lose their place before later ones.
func (io *IO) forget(q *queue) {
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

// Flush carries out all queued writes: one system call for each process, however many
// pieces and messages, unless some fail. Afterwards the slices given to Write are no longer
// used.
func (io *IO) Flush() {
	for len(io.dirty) > 0 {
		io.flush(io.dirty[len(io.dirty)-1])
	}
}

// flushTag carries out what is queued for processes that tag has queued writes to.
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

// flush empties a queue. A piece that fails takes along those behind it with the same tag;
// all others are written.
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
	rest := io.due(q.pieces)
	for len(rest) > 0 {
		n, err := io.write(q, rest)
		if err == nil {
			rest = advance(rest, n)
			continue
		}
		if err == ErrFault { // the first piece's own
			tag := rest[0].tag
			io.fail(tag, err)
			rest = without(rest, tag)
			continue
		}
		for i := range rest {
			io.fail(rest[i].tag, err)
		}
		break
	}
	clear(q.pieces)
	q.pieces = q.pieces[:0]
	io.forget(q)
}

// due keeps the pieces whose region is still registered and whose tag has not failed. A
// window may have been invalidated since: what came before that is carried out.
func (io *IO) due(pieces []piece) []piece {
	kept := pieces[:0]
	for i := range pieces {
		pc := pieces[i]
		if !pc.region.origin().live {
			io.fail(pc.tag, ErrKey)
		}
		if len(io.failed) == 0 || !io.hasFailed(pc.tag) {
			kept = append(kept, pc)
		}
	}
	return kept
}

// without keeps the pieces that have another tag.
func without(pieces []piece, tag any) []piece {
	kept := pieces[:0]
	for i := range pieces {
		if pieces[i].tag != tag {
			kept = append(kept, pieces[i])
		}
	}
	return kept
}

// advance passes over n bytes that were written.
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

// write makes one system call of all pieces and returns how many bytes were written.
func (io *IO) write(q *queue, pieces []piece) (int, error) {
	if err := io.prove(q); err != nil {
		return 0, err
	}
	io.gather(pieces)
	n, err := q.process.writev(io.local, io.remote)
	clear(io.local)
	return n, err
}

// prove makes sure, once in an epoch, that the process's number still means the process.
func (io *IO) prove(q *queue) error {
	if q.proved != io.epoch {
		if !q.process.alive() {
			return ErrGone
		}
		q.proved = io.epoch
	}
	return nil
}

// gather lays out the pieces for the kernel. Writes to adjacent addresses become one remote
// piece, which spares the kernel most of its work per packet; the end of a message is
// always one of its own.
func (io *IO) gather(pieces []piece) {
	io.local, io.remote = io.local[:0], io.remote[:0]
	grows := false // whether the last remote piece may be extended
	for i := range pieces {
		pc := &pieces[i]
		body := len(pc.p)
		if pc.last {
			body = max(0, body-tailLen)
		}
		if body > 0 {
			io.place(pc.p[:body], pc.addr, grows)
			grows = true
		}
		if pc.last {
			io.place(pc.p[body:], pc.addr+uint64(body), false)
			grows = false
		}
	}
}

func (io *IO) place(p []byte, addr uint64, extend bool) {
	io.local = append(io.local, unix.Iovec{Base: &p[0], Len: uint64(len(p))})
	if end := len(io.remote) - 1; extend && end >= 0 {
		if r := &io.remote[end]; uint64(r.Base)+uint64(r.Len) == addr {
			r.Len += len(p)
			return
		}
	}
	io.remote = append(io.remote, unix.RemoteIovec{Base: uintptr(addr), Len: len(p)})
}

// fetch reads a process's memory into p, after all writes to it that came before.
func (io *IO) fetch(r *Region, off uint64, p []byte) error {
	q := io.queueOf(r)
	if len(q.pieces) > 0 {
		io.flush(q)
	}
	if err := io.prove(q); err != nil {
		return err
	}
	addr := r.process.base + off
	for len(p) > 0 { // the kernel moves at most 2 GiB at once
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
