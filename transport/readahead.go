package transport

import (
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// Memory that only the kernel can copy is read in two passes of a step. In the first, Transmit
// reaches a packet whose payload is not there, queues reads for this packet and the next ones, and
// ends. The engine carries out the reads of all queue pairs, with few system calls, and calls
// Transmit again, which emits the packets. A failed read is an error of the work request or
// response that needs it, not of those before it.

// A readAhead is the reads of one side of a queue pair.
type readAhead struct {
	readList // of the pool; reads[next:n] were not used yet
	n, next  int
	packets  uint64 // packets that wait for reads queued by this Transmit
}

// begin is called at the beginning of Transmit.
func (a *readAhead) begin() { a.packets = 0 }

// end is called at the end of Transmit. What was read and not sent would be out of date in the next
// step.
func (a *readAhead) end(p *Pool) {
	if a.packets == 0 {
		a.discard(p)
	}
}

// discard forgets all reads. Those that are not done belong to the IO. The others are emptied: what
// they have read, and the client whose memory it was, may go while the pool has them.
func (a *readAhead) discard(p *Pool) {
	if a.reads == nil {
		return
	}
	for i, r := range a.reads[:a.n] {
		if r.Done() {
			*r = mrtable.Read{}
		} else {
			a.reads[i] = nil
		}
	}
	p.putReads(a.readList)
	a.readList, a.n, a.next = readList{}, 0, 0
}

// discardReads forgets what both sides have read and not sent. The memory of a client may take so
// long that packets arrive between the two passes. These change what is to be sent, and the memory:
// a later READ of the same address must not find what an earlier one has read.
func (q *QP) discardReads() {
	if !q.readsAhead {
		return
	}
	q.readsAhead = false
	q.req.ahead.discard(q.cfg.Pool)
	q.resp.ahead.discard(q.cfg.Pool)
}

// take returns the bytes of a region at addr if they were read.
func (a *readAhead) take(r *mrtable.Region, addr uint64) (b []byte, ok bool, err error) {
	if a.packets > 0 || a.next == a.n || !a.reads[a.next].Done() {
		return nil, false, nil
	}
	rd := a.reads[a.next]
	if !rd.Of(r, addr) {
		return nil, false, nil
	}
	if b, err = rd.Bytes(); err != nil {
		return nil, true, err // b is old memory of the arena; a second take finds the same error
	}
	a.next++
	return b, true, nil
}

// queue queues reads of n bytes of a region at addr.
func (a *readAhead) queue(e *Env, p *Pool, r *mrtable.Region, addr, n uint64) error {
	if a.reads == nil {
		a.readList = p.takeReads()
	}
	for n > 0 {
		if a.n == len(a.reads) {
			a.reads = append(a.reads, nil)
		}
		if a.reads[a.n] == nil {
			a.reads[a.n] = new(mrtable.Read)
		}
		k := min(n, maxRead)
		if err := e.Mem.QueueRead(a.reads[a.n], r, addr, int(k)); err != nil {
			return err
		}
		a.n++
		addr, n = addr+k, n-k
	}
	return nil
}

// Waiting returns how many packets can be emitted when reads that the last Transmit has queued are
// done. Transmit must be called again then.
func (q *QP) Waiting() int { return int(q.req.ahead.packets + q.resp.ahead.packets) }

// readRequests queues reads from the next packet on, of w, for as many packets as can be sent in
// this step. The error is that of the first read; errNoRoom means that reads are queued, or that
// there is no room to send.
func (q *QP) readRequests(e *Env, w *wqe) error {
	r := &q.req
	a := &r.ahead
	if a.packets > 0 {
		return errNoRoom
	}
	a.discard(q.cfg.Pool)
	room := min(max(1, r.windowLeft()), uint64(e.Sink.Room(q)))
	var at gather
	at.seek(w, r.pkt*uint32(q.attr.PathMTU))
	first := uint64(r.pkt)
	for i := r.cur; room > 0; {
		n := min(room, uint64(packet.PSNCount(at.w.length, q.attr.PathMTU))-first)
		end := min(uint64(at.w.length), (first+n)*uint64(q.attr.PathMTU))
		if err := q.readMessage(e, &at, uint32(end)); err != nil {
			if a.n == 0 {
				return err
			}
			break // reported when the packets before are emitted
		}
		room, a.packets = room-n, a.packets+n
		if i++; at.w.ownResponse || i == q.sq.tailIndex || !q.sq.at(i).mayReadAhead(q) {
			break
		}
		at, first = gather{}, 0
		at.seek(q.sq.at(i), 0)
	}
	a.packets = max(a.packets, min(1, uint64(a.n)))
	return errNoRoom
}

// mayReadAhead reports whether w may be read while earlier work requests are not emitted.
func (w *wqe) mayReadAhead(q *QP) bool {
	return w.status == ib.WCSuccess && !w.local && !w.ownResponse && w.Flags&ib.SendFence == 0 &&
		(q.cfg.Service != packet.UD || w.length <= uint32(q.attr.PathMTU))
}

// readMessage queues reads of a message from g's position to byte end.
func (q *QP) readMessage(e *Env, g *gather, end uint32) error {
	if g.w.Flags&ib.SendInline != 0 {
		return nil
	}
	for g.pos < end {
		s := &g.w.SGEs[g.i]
		n := min(s.Length-g.off, end-g.pos)
		if n > 0 {
			addr := s.Addr + uint64(g.off)
			r, err := e.Table.Local(q.cfg.PD, s.LKey, addr, n, 0)
			if err == nil && !r.InPlace() {
				q.readsAhead = true
				err = q.req.ahead.queue(e, q.cfg.Pool, r, addr, uint64(n))
			}
			if err != nil {
				return err
			}
		}
		g.pos += n
		if g.off += n; g.off == s.Length {
			g.i, g.off = g.i+1, 0
		}
	}
	return nil
}

// readResponses is readRequests for the response at the head of the queue, from a byte offset on,
// and the READs after it.
func (q *QP) readResponses(e *Env, offset uint32) error {
	a := &q.resp.ahead
	if a.packets > 0 {
		return errNoRoom
	}
	a.discard(q.cfg.Pool)
	s := &q.resp.replies
	room := uint64(e.Sink.Room(q))
	for i := s.next; i != s.added && room > 0; i++ {
		p := s.at(i)
		if p.sent == p.last {
			continue
		}
		if p.kind != packet.KindRead {
			break
		}
		n := min(room, uint64(p.last-p.sent))
		end := min(uint64(p.end), (uint64(p.sent)+n)*uint64(q.attr.PathMTU))
		if i != s.next {
			offset = p.sent * uint32(q.attr.PathMTU)
		}
		if p.length > 0 && !p.region.InPlace() {
			q.readsAhead = true
			if err := a.queue(e, q.cfg.Pool, p.region, p.va+uint64(offset), end-uint64(offset)); err != nil {
				if a.n == 0 {
					return err
				}
				break
			}
		}
		room, a.packets = room-n, a.packets+n
	}
	a.packets = max(a.packets, min(1, uint64(a.n)))
	return errNoRoom
}
