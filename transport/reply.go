package transport

import (
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// A response is what the responder sends for a request that has a response of its own. It is kept
// as a responder resource to answer duplicates.
type response struct {
	kind      packet.Kind
	psn       uint32
	position  uint64 // responder.accepted before the request
	psns      uint32 // number of PSNs
	msn       uint32
	sent      uint32 // packets emitted
	duplicate bool   // answers a duplicate request

	va       uint64 // READ
	rkey     uint32
	length   uint32
	region   *mrtable.Region
	pd       *mrtable.PD
	original uint64 // atomics: the value before the operation
	waiting  bool   // atomics: original is not known yet
}

// replyQueue holds the responses to emit, in order, followed by at most one ACK or NAK.
type replyQueue struct {
	queue       []response // ring, from head to tail
	head, tail  uint32
	outstanding int // responses in queue that do not answer duplicates

	resources    []response // responder resources: the latest responses, as a ring
	nextResource int        // resource that the next request overwrites
	max          int        // max_dest_rd_atomic

	ack     bool            // an ACK for everything before the expected PSN is due
	nak     packet.Syndrome // a NAK with this syndrome is due; 0: none
	nakPSN  uint32          // the PSN that drew a NAKSequence
	nakSent bool            // suppresses further NAKs until the expected PSN arrives
}

func (a *replyQueue) init(max int) {
	n := 1
	for n < queuedPerResource*max {
		n *= 2
	}
	*a = replyQueue{queue: make([]response, n), resources: make([]response, max), max: max}
}

// resize changes the number of responder resources. It keeps the queued responses and the latest
// resources.
func (a *replyQueue) resize(limit int) {
	old := *a
	a.init(limit)
	a.ack, a.nak, a.nakPSN, a.nakSent = old.ack, old.nak, old.nakPSN, old.nakSent
	a.head, a.tail, a.outstanding = old.head, old.tail, old.outstanding
	if len(a.queue) < len(old.queue) {
		a.queue = make([]response, len(old.queue))
	}
	for i := a.head; i != a.tail; i++ {
		a.queue[i%uint32(len(a.queue))] = old.queue[i%uint32(len(old.queue))]
	}
	for k := 1; k <= min(limit, old.max); k++ {
		a.resources[limit-k] = old.resources[(old.nextResource+old.max-k)%old.max]
	}
}

func (a *replyQueue) reset() {
	*a = replyQueue{queue: a.queue, resources: a.resources, max: a.max}
	clear(a.resources)
}

// expectedReceived allows NAKs again. It replaces an RNR NAK that was not emitted yet by an ACK.
func (a *replyQueue) expectedReceived() {
	a.nakSent = false
	if a.nak.IsRNR() {
		a.nak, a.ack = 0, true
	}
}

// full reports whether the requester has max_dest_rd_atomic requests outstanding.
func (a *replyQueue) full() bool { return a.outstanding >= a.max || a.room() == 0 }

func (a *replyQueue) room() int { return len(a.queue) - int(a.tail-a.head) }

// add queues the response to a new request and keeps it as a responder resource.
func (a *replyQueue) add(n response) {
	a.push(n)
	a.outstanding++
	a.resources[a.nextResource] = n
	a.nextResource = (a.nextResource + 1) % len(a.resources)
}

// requeue queues the response to a duplicate request. It carries the current MSN.
func (a *replyQueue) requeue(n response, msn uint32) bool {
	if a.room() <= max(a.max-a.outstanding, 0) { // new requests take precedence
		return false
	}
	n.duplicate, n.sent, n.msn = true, 0, msn
	a.push(n)
	return true
}

func (a *replyQueue) push(n response) {
	a.queue[a.tail%uint32(len(a.queue))] = n
	a.tail++
}

func (a *replyQueue) pop() {
	if !a.queue[a.head%uint32(len(a.queue))].duplicate {
		a.outstanding--
	}
	a.head++
}

// find returns the responder resource for the request at a position (see responder.extendPSN), or
// nil.
func (a *replyQueue) find(at uint64) *response {
	for i := range a.resources {
		k := &a.resources[i]
		if k.kind != packet.KindNone && at-k.position < uint64(k.psns) {
			return k
		}
	}
	return nil
}

// atomicDone sets the result of the atomic request at a position.
func (a *replyQueue) atomicDone(position, original uint64) {
	set := func(r *response) {
		if r.waiting && r.position == position {
			r.original, r.waiting = original, false
		}
	}
	for i := range a.resources {
		set(&a.resources[i])
	}
	for i := a.head; i != a.tail; i++ {
		set(&a.queue[i%uint32(len(a.queue))])
	}
}

// reply emits replies until the queue or the room in the sink ends. It returns true if the room
// ended.
func (q *QP) reply(e *Env) (more bool) {
	s := &q.resp.replies
	for s.head != s.tail {
		a := &s.queue[s.head%uint32(len(s.queue))]
		var full bool
		switch a.kind {
		case packet.KindCompareSwap, packet.KindFetchAdd:
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
func (q *QP) replyHeader(op packet.Opcode, psn uint32) *packet.Header {
	h := &q.hdr
	h.BTH = packet.BTH{Opcode: packet.Opcode(q.cfg.Service) | op, PKey: q.attr.PKey, DestQP: q.attr.DestQPN, PSN: psn}
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
	for a.sent < a.psns {
		offset := a.sent * mtu
		n := min(mtu, a.length-offset)
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
		h := q.replyHeader(readResponseOpcode(a.sent == 0, a.sent == a.psns-1), packet.PSNAdd(a.psn, int(a.sent)))
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
	q.resp.replies.pop()
	return false
}

// readChunk reads the data of a READ from offset on, as much as can be sent in this step.
func (q *QP) readChunk(e *Env, a *response, offset uint32) ([]byte, error) {
	n := min(a.length-offset, q.fetchLimit(e, uint64(a.psns-a.sent)))
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
// Requests accepted after it get no reply; the requester flushes them. A duplicate READ gets no
// reply either.
func (q *QP) readFailed(e *Env, a *response) {
	s := &q.resp.replies
	if a.duplicate {
		q.cfg.Counters.Drop(DropDuplicateRequest)
		s.pop()
		return
	}
	psn, msn := packet.PSNAdd(a.psn, int(a.sent)), a.msn
	nak := packet.NAKRemoteOperational
	if !a.region.Live() {
		nak = packet.NAKRemoteAccess
	}
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
	if a.waiting {
		return true
	}
	tx := e.Sink.Packet(q)
	if tx == nil {
		return true
	}
	h := q.replyHeader(packet.AtomicAcknowledge, a.psn)
	h.AETH = packet.AETH{Syndrome: q.credits(), MSN: a.msn}
	h.OrigData = a.original
	tx.Begin()
	tx.Finish(h)
	q.cfg.Counters.TxOpcode[h.Opcode]++
	q.resp.noteAcked(packet.PSNAdd(a.psn, 1), a.msn)
	q.resp.replies.pop()
	return false
}

// replyACK emits one ACK for all requests accepted since the last one.
func (q *QP) replyACK(e *Env) (full bool) {
	tx := e.Sink.Packet(q)
	if tx == nil {
		return true
	}
	h := q.replyHeader(packet.Acknowledge, packet.PSNAdd(q.resp.epsn, -1))
	h.AETH = packet.AETH{Syndrome: q.credits(), MSN: q.resp.msn}
	tx.Begin()
	tx.Finish(h)
	q.cfg.Counters.TxOpcode[h.Opcode]++
	q.cfg.Counters.ACKSent++
	q.resp.noteAcked(q.resp.epsn, q.resp.msn)
	q.resp.replies.ack = false
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
	h := q.replyHeader(packet.Acknowledge, r.epsn)
	h.AETH = packet.AETH{Syndrome: s.nak, MSN: r.msn}
	tx.Begin()
	tx.Finish(h)
	c := q.cfg.Counters
	c.TxOpcode[h.Opcode]++
	if s.nak.IsRNR() {
		c.RNRSent++
	} else {
		c.NAKSent[s.nak-packet.NAKSequence]++
	}
	r.noteAcked(r.epsn, r.msn)
	s.nak, s.ack, s.nakSent = 0, false, true
	return false
}
