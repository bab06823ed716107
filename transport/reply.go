package transport

import (
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// A response is a responder resource: what the responder sends for a request that has a response of
// its own. It is kept to answer duplicates.
type response struct {
	position uint64 // responder.accepted before the request
	va       uint64 // READ
	original uint64 // atomics: the value before the operation
	region   *mrtable.Region
	pd       *mrtable.PD

	psn    uint32
	psns   uint32 // number of PSNs
	msn    uint32
	rkey   uint32
	length uint32

	// What is to be emitted, which is all of it, or what the latest duplicate requested. Packets
	// count from psn, bytes from va.
	first, sent, last uint32 // first packet, next packet, end of the packets
	end               uint32 // READ: end of the bytes

	kind     packet.Kind
	answered bool // all of it was emitted once
	waiting  bool // atomics: original is not known yet
}

// replyQueue holds the responder resources and with them the responses to emit, in the order of
// their PSNs, followed by at most one ACK or NAK.
//
// A duplicate request restarts the response in its place. So it does not wait for the rest of the
// response that it repeats, nor for later ones, which the requester cannot use before it and will
// request again.
type replyQueue struct {
	resources []response // ring, as long as needed up to max; the n-th request is at n modulo its length
	added     uint64     // requests since the start
	next      uint64     // the response to emit next; equal to added if there is none
	max       uint64     // max_dest_rd_atomic

	ack     bool            // an ACK is due
	nak     packet.Syndrome // a NAK with this syndrome is due; 0: none
	nakPSN  uint32          // the PSN that drew a NAKSequence
	nakSent bool            // suppresses further NAKs until the expected PSN arrives
}

func (a *replyQueue) init(limit int) { *a = replyQueue{max: uint64(limit)} }

// resize changes the number of responder resources. It keeps the responses that are not emitted yet
// and the latest resources.
func (a *replyQueue) resize(limit int) {
	a.max = uint64(limit)
	a.makeRoom(max(a.max, a.added-a.next))
}

// makeRoom gives the ring room for n resources.
func (a *replyQueue) makeRoom(n uint64) {
	resources := make([]response, n)
	for i := a.added - min(n, a.kept()); i != a.added; i++ {
		resources[i%n] = *a.at(i)
	}
	a.resources = resources
}

func (a *replyQueue) reset() { a.init(int(a.max)) }

// at returns the resource of the n-th request.
func (a *replyQueue) at(n uint64) *response { return &a.resources[n%uint64(len(a.resources))] }

// kept returns how many of the latest requests still have a resource.
func (a *replyQueue) kept() uint64 { return min(a.added, uint64(len(a.resources))) }

// expectedReceived allows NAKs again. It replaces an RNR NAK that was not emitted yet by an ACK.
func (a *replyQueue) expectedReceived() {
	a.nakSent = false
	if a.nak.IsRNR() {
		a.nak, a.ack = 0, true
	}
}

// full reports whether the requester has max_dest_rd_atomic requests outstanding.
func (a *replyQueue) full() bool {
	if a.max == 0 || a.added < a.max {
		return a.max == 0
	}
	oldest := a.at(a.added - a.max)
	return oldest.kind != packet.KindNone && !oldest.answered
}

// add queues the response to a new request. It replaces the oldest resource: the requester must
// have received that response, and a repetition of it that is not emitted yet is not needed.
func (a *replyQueue) add(n response) {
	n.last, n.end = n.psns, n.length
	if size := uint64(len(a.resources)); size < a.max && a.added >= size {
		a.makeRoom(min(max(1, 2*size), a.max))
	}
	if a.next+uint64(len(a.resources)) == a.added {
		a.next++
	}
	*a.at(a.added) = n
	a.added++
}

// find returns the request at a position (see responder.extendPSN) and its resource, or nil.
func (a *replyQueue) find(position uint64) (n uint64, r *response) {
	for n = a.added - a.kept(); n != a.added; n++ {
		if r = a.at(n); r.kind != packet.KindNone && position-r.position < uint64(r.psns) {
			return n, r
		}
	}
	return 0, nil
}

// repeat emits the response of request n again, from its first packet to its last. It carries the
// current MSN, and so do repeated responses behind it that have not begun: they are emitted later.
func (a *replyQueue) repeat(n uint64, msn uint32) {
	r := a.at(n)
	r.sent = r.first
	a.next = min(a.next, n)
	for ; n != a.added; n++ {
		if behind := a.at(n); behind.answered && behind.sent == behind.first {
			behind.msn = msn
		}
	}
}

// atomicDone sets the result of the atomic request at a position.
func (a *replyQueue) atomicDone(position, original uint64) {
	if _, r := a.find(position); r != nil && r.waiting {
		r.original, r.waiting = original, false
	}
}

// reply emits replies until the queue or the room in the sink ends. It returns true if the room
// ended.
func (q *QP) reply(e *Env) (more bool) {
	s := &q.resp.replies
	for s.next != s.added {
		a := s.at(s.next)
		if a.sent == a.last {
			a.answered = true
			s.next++
			continue
		}
		var full bool
		switch a.kind {
		case packet.KindCompareSwap, packet.KindFetchAdd:
			if a.waiting {
				return false // until AtomicDone
			}
			full = q.replyAtomic(e, a)
		default:
			full = q.replyRead(e, a) // no payload for FLUSH and ATOMIC WRITE
		}
		if full {
			return true
		}
	}
	if s.nak != 0 {
		return q.replyNAK(e)
	}
	if s.ack {
		return q.replyACK(e)
	}
	return false
}

// replyHeader starts the headers of a reply.
func (q *QP) replyHeader(e *Env, op packet.Opcode, psn uint32) *packet.Header {
	h := &e.hdr
	h.BTH = packet.BTH{Opcode: packet.Opcode(q.cfg.Service) | op, MigReq: migrated, PKey: q.attr.PKey, DestQP: q.attr.DestQPN, PSN: psn}
	return h
}

// credits returns the syndrome of an ACK, with the number of posted receive work requests.
func (q *QP) credits() packet.Syndrome {
	if q.cfg.Recv == nil || q.cfg.Recv.Shared() {
		return packet.SyndromeACK | packet.CreditsUnlimited
	}
	return packet.SyndromeACK | packet.Syndrome(packet.CreditCode(q.cfg.Recv.Len()))
}

// replyRead emits the response packets of a READ.
func (q *QP) replyRead(e *Env, a *response) (full bool) {
	mtu := uint32(q.attr.PathMTU)
	var chunk []byte
	for a.sent < a.last {
		offset := a.sent * mtu
		n := min(mtu, a.end-offset)
		if uint32(len(chunk)) < n {
			var err error
			if chunk, err = q.readChunk(e, a, offset); isTransient(err) {
				return true
			} else if err != nil {
				q.readFailed(e, a)
				return false
			}
		}
		tx := e.Sink.Packet(q)
		if tx == nil {
			return true
		}
		h := q.replyHeader(e, readResponseOpcode(a.sent == a.first, a.sent == a.last-1), packet.PSNAdd(a.psn, int(a.sent)))
		h.AETH = packet.AETH{Syndrome: q.credits(), MSN: a.msn}
		tx.Begin()
		if n > 0 {
			tx.Add(chunk[:n:n])
			chunk = chunk[n:]
		}
		tx.Finish(h)
		q.cfg.Counters.TxOpcode[h.Opcode]++
		a.sent++
		q.resp.noteAcked(packet.PSNAdd(h.PSN, 1), a.msn)
	}
	return false
}

// readChunk reads the data of a READ from offset on, as much as can be sent in this step.
func (q *QP) readChunk(e *Env, a *response, offset uint32) ([]byte, error) {
	n := min(a.end-offset, q.fetchLimit(e, uint64(a.last-a.sent)))
	if n == 0 {
		return nil, errNoRoom
	}
	if a.region.InPlace() {
		return e.Mem.Read(a.region, a.va+uint64(offset), int(n))
	}
	if !a.region.Live() {
		return nil, mrtable.ErrKey
	}
	b, ok, err := q.resp.ahead.take(a.region, a.va+uint64(offset))
	if !ok {
		err = q.readResponses(e, offset)
	}
	return b, err
}

// readFailed rejects a READ whose memory became inaccessible after the request was accepted.
// Requests accepted after it get no reply; the requester flushes them. A duplicate of a READ that
// was answered gets no reply either.
func (q *QP) readFailed(e *Env, a *response) {
	s := &q.resp.replies
	if a.answered {
		q.cfg.Counters.Drop(DropDuplicateRequest)
		a.sent = a.last
		return
	}
	psn, msn := packet.PSNAdd(a.psn, int(a.sent)), a.msn
	nak := packet.NAKRemoteOperational
	if !a.region.Live() {
		nak = packet.NAKRemoteAccess
	}
	f := Failure{Reason: ReasonMemoryGone, Operation: ib.WRRDMARead.String(), PSN: psn, Address: a.va, Length: uint64(a.length)}
	if nak == packet.NAKRemoteAccess {
		f.Reason, f.Check, f.Need = ReasonRemoteMemory, CheckLive, ib.AccessRemoteRead
	}
	f.Syndrome = nak
	q.Blame(e, f)
	s.reset()
	q.resp.epsn, q.resp.msn = psn, msn
	if q.state != ib.QPSErr {
		q.rejectRequest(e, nak)
		return
	}
	s.nak = nak
}

func readResponseOpcode(first, last bool) packet.Opcode {
	switch {
	case first && last:
		return packet.ReadResponseOnly
	case first:
		return packet.ReadResponseFirst
	case last:
		return packet.ReadResponseLast
	}
	return packet.ReadResponseMid
}

func (q *QP) replyAtomic(e *Env, a *response) (full bool) {
	tx := e.Sink.Packet(q)
	if tx == nil {
		return true
	}
	h := q.replyHeader(e, packet.AtomicAcknowledge, a.psn)
	h.AETH = packet.AETH{Syndrome: q.credits(), MSN: a.msn}
	h.OrigData = a.original
	tx.Begin()
	tx.Finish(h)
	q.cfg.Counters.TxOpcode[h.Opcode]++
	q.resp.noteAcked(packet.PSNAdd(a.psn, 1), a.msn)
	a.sent = a.last
	return false
}

// replyACK emits one ACK for all requests accepted since the last one. Its PSN is never that of a
// request with a response of its own: if that response is lost, the kernel's rxe would take such an
// ACK as the completion of the READ or atomic, without its data.
func (q *QP) replyACK(e *Env) (full bool) {
	tx := e.Sink.Packet(q)
	if tx == nil {
		return true
	}
	h := q.replyHeader(e, packet.Acknowledge, q.resp.ackPSN)
	h.AETH = packet.AETH{Syndrome: q.credits(), MSN: q.resp.ackMSN}
	tx.Begin()
	tx.Finish(h)
	q.cfg.Counters.TxOpcode[h.Opcode]++
	q.cfg.Counters.ACKSent++
	q.resp.replies.ack = false
	q.resp.noteAcked(packet.PSNAdd(h.PSN, 1), h.AETH.MSN)
	return false
}

// replyNAK emits a NAK for the expected PSN. It acknowledges all earlier PSNs and thus replaces a
// pending ACK.
func (q *QP) replyNAK(e *Env) (full bool) {
	r := &q.resp
	s := &r.replies
	if s.nak == packet.NAKSequence && packet.PSNDiff(r.epsn, s.nakPSN) > 0 {
		s.nak = 0 // the missing packet and the one that drew the NAK have both arrived
		return s.ack && q.replyACK(e)
	}
	tx := e.Sink.Packet(q)
	if tx == nil {
		return true
	}
	h := q.replyHeader(e, packet.Acknowledge, r.epsn)
	h.AETH = packet.AETH{Syndrome: s.nak, MSN: r.msn}
	tx.Begin()
	tx.Finish(h)
	c := q.cfg.Counters
	c.TxOpcode[h.Opcode]++
	if s.nak.IsRNR() {
		c.RNRSent++
		q.counters.RNRNAKsSent++
	} else {
		c.NAKSent[s.nak-packet.NAKSequence]++
		q.counters.NAKsSent++
	}
	r.noteAcked(r.epsn, r.msn)
	s.nak, s.ack, s.nakSent = 0, false, true
	return false
}
