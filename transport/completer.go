package transport

import (
	"softroce/internal/ib"
	"softroce/packet"
)

// The completer takes replies and frees the send queue in order.

// complete handles one reply.
func (q *QP) complete(e *Env, p *Packet, in *packet.Info) {
	r := &q.req
	c := q.cfg.Counters
	ahead := uint64((p.PSN - uint32(r.una)) & packet.PSNMask)
	outstanding := r.next - r.una
	psn := r.una + ahead
	if ahead >= outstanding && !(ahead == outstanding && p.AETH.Syndrome == packet.NAKSequence && in.Kind == packet.KindAck) {
		q.dropStray(ahead, in)
		return
	}
	if s := p.AETH.Syndrome; r.rnrUntil != 0 && in.Kind == packet.KindAck && (s.IsRNR() || s == packet.NAKSequence) {
		c.Drop(DropUnwanted) // drawn by what was sent behind the refused request
		return
	}
	switch in.Kind {
	case packet.KindAck:
		q.acknowledged(e, p, psn)
	case packet.KindReadResponse:
		q.readResponse(e, p, in, psn)
	case packet.KindAtomicAck:
		q.atomicResponse(e, p, psn)
	default:
		c.Drop(DropOpcode)
		return
	}
	q.checkDrained(e)
}

// dropStray counts a reply to what is not outstanding: an old one, or one beyond what was sent.
func (q *QP) dropStray(ahead uint64, in *packet.Info) {
	c := q.cfg.Counters
	switch {
	case ahead < maxOutstanding:
		c.Drop(DropUnsent)
	case in.Kind == packet.KindAck:
		c.Drop(DropGhostACK)
	default:
		c.Drop(DropResponse)
	}
}

// acknowledged handles an ACK or NAK whose PSN is psn. Both acknowledge all before it.
func (q *QP) acknowledged(e *Env, p *Packet, psn uint64) {
	c := q.cfg.Counters
	s := p.AETH.Syndrome
	switch {
	case s.IsACK():
		if !q.ackBelow(e, psn+1) {
			q.impliedNAK(e)
			return
		}
		q.grant(s, p.AETH.MSN)
	case s.IsRNR():
		if !q.ackBelow(e, psn) {
			q.impliedNAK(e)
			return
		}
		if q.state == ib.QPSErr {
			return // what became the oldest was wrong all along
		}
		q.receiverNotReady(e, packet.RNRTimer(uint8(s&packet.SyndromeValue)))
	case s.IsNAK() && s <= packet.NAKInvalidRD:
		c.NAKReceived[s-packet.NAKSequence]++
		q.refused(e, s, psn)
	default:
		c.Drop(DropResponse) // reserved syndrome
	}
}

// refused handles a NAK.
func (q *QP) refused(e *Env, s packet.Syndrome, psn uint64) {
	c := q.cfg.Counters
	whole := q.ackBelow(e, psn)
	if q.state == ib.QPSErr {
		return
	}
	if s == packet.NAKSequence {
		c.PacketSeqErr++
		if q.req.una != q.req.next && !q.resend(e) {
			c.Drop(DropUnwanted)
		}
		return
	}
	if !whole {
		// A response before the refused request is missing, and its sender answers no more.
		for w := q.sq.head(); w.end() <= psn; w = q.sq.head() {
			q.finish(e, w, ib.WCWRFlushErr)
		}
	}
	status := ib.WCRemOpErr
	switch s {
	case packet.NAKInvalidRequest:
		status = ib.WCRemInvReqErr
		c.ReqRemoteInvalid++
	case packet.NAKRemoteAccess:
		status = ib.WCRemAccessErr
		c.ReqRemoteAccess++
	}
	q.failHead(e, status)
}

// impliedNAK goes back for a READ or atomic whose response must have been lost. After a timeout what comes may be the rest of
// the answers to what was sent before it: then the next timeout decides.
func (q *QP) impliedNAK(e *Env) {
	if q.req.expired == 0 && q.resend(e) {
		q.cfg.Counters.ImpliedNAK++
	} else {
		q.cfg.Counters.Drop(DropUnwanted)
	}
}

// ackBelow takes all PSNs below end for acknowledged, and completes what that completes.
// It stops, and returns false, at a READ or atomic that lacks a response below end.
func (q *QP) ackBelow(e *Env, end uint64) bool {
	r := &q.req
	before := r.una
	whole := true
	for !q.sq.empty() {
		w := q.sq.head()
		if w.local && w.started {
			q.finish(e, w, ib.WCSuccess)
			continue
		}
		if !w.started || end <= w.first || w.status != ib.WCSuccess && end < w.end() {
			break
		}
		if w.ownResponse && !w.done {
			whole = end <= r.una
			break
		}
		if end < w.end() {
			r.una = end
			break
		}
		r.una = w.end()
		q.finish(e, w, ib.WCSuccess)
	}
	if r.una != before {
		q.moved(e)
	}
	return whole
}

// moved notes that una has moved, and takes send along if it fell behind.
func (q *QP) moved(e *Env) {
	if q.req.send < q.req.una {
		q.goBack(q.req.una)
	}
	q.progress(e.Now)
	q.retireLocal(e)
	q.retireFailed(e)
}

// grant takes the credits of an AETH: the responder has room for messages up to
// MSN + credits (IBTA 9.7.7.2).
func (q *QP) grant(s packet.Syndrome, msn uint32) {
	r := &q.req
	n := packet.Credits(uint8(s & packet.SyndromeValue))
	if r.credited = n >= 0; !r.credited {
		return
	}
	// The MSN counts completed messages in 24 bits; bring it near the SSN of the newest.
	done := q.sq.nextNumber - uint64(q.sq.used())
	r.limit = done + uint64(packet.PSNDiff(msn, uint32(done)&packet.PSNMask)) + uint64(n)
}

// readResponse handles a READ response packet.
func (q *QP) readResponse(e *Env, p *Packet, in *packet.Info, psn uint64) {
	r := &q.req
	w := q.responseOwner(e, psn)
	if w == nil {
		return
	}
	if w.kind.Response() != in.Kind {
		q.spurn(e, ib.WCBadRespErr)
		return
	}
	if psn != r.una {
		q.impliedNAK(e)
		return
	}
	if !q.validResponse(p, in, w) {
		q.spurn(e, ib.WCBadRespErr)
		return
	}
	last := w.got == w.n-1
	var to scatter
	to.begin(w.SGEs, w.got*uint32(q.attr.PathMTU))
	if st := to.write(e, &q.asker, p.Payload, p.Len, last); st != ib.WCSuccess {
		q.spurn(e, ib.WCLocProtErr)
		return
	}
	w.got++
	r.una++
	r.readPSNs--
	if in.Headers&packet.HasAETH != 0 {
		q.grant(p.AETH.Syndrome, p.AETH.MSN)
	}
	if last {
		w.done = true
		q.finish(e, w, ib.WCSuccess)
	}
	q.moved(e)
}

// validResponse checks length and place of a READ response. Where a READ was asked for again
// from its middle a First or Only may come there.
func (q *QP) validResponse(p *Packet, in *packet.Info, w *wqe) bool {
	rest := w.length - w.got*uint32(q.attr.PathMTU)
	if w.kind == packet.KindAtomicWrite {
		rest = 0
	}
	if w.got == w.n-1 {
		return in.Position.EndsMessage() && uint32(p.Len) == rest
	}
	return !in.Position.EndsMessage() && p.Len == q.attr.PathMTU
}

// atomicResponse handles an atomic acknowledgement: the original value goes to the requester's buffer.
func (q *QP) atomicResponse(e *Env, p *Packet, psn uint64) {
	r := &q.req
	w := q.responseOwner(e, psn)
	if w == nil {
		return
	}
	if w.kind.Response() != packet.KindAtomicAck {
		q.spurn(e, ib.WCBadRespErr)
		return
	}
	if !p.AETH.Syndrome.IsACK() {
		q.cfg.Counters.Drop(DropResponse)
		return
	}
	if st := q.storeOriginal(e, w, p.OrigData); st != ib.WCSuccess {
		q.spurn(e, st)
		return
	}
	w.got, w.done = 1, true
	r.una++
	r.readPSNs--
	q.grant(p.AETH.Syndrome, p.AETH.MSN)
	q.finish(e, w, ib.WCSuccess)
	q.moved(e)
}

// spurn drops a response because of which the oldest work request fails.
func (q *QP) spurn(e *Env, s ib.WCStatus) {
	q.cfg.Counters.Drop(DropLocalError)
	q.failHead(e, s)
}

// responseOwner acknowledges what came before the response psn and returns the work
// request that it answers, which is then the oldest. nil: the packet was dealt with.
func (q *QP) responseOwner(e *Env, psn uint64) *wqe {
	for i := q.sq.headIndex; i != q.sq.tailIndex; i++ {
		w := q.sq.at(i)
		if !w.started || psn < w.first {
			break
		}
		if psn >= w.end() {
			continue
		}
		if !w.ownResponse || psn < w.first+uint64(w.got) {
			q.cfg.Counters.Drop(DropResponse)
			return nil
		}
		if !q.ackBelow(e, w.first) {
			q.impliedNAK(e)
			return nil
		}
		if q.state == ib.QPSErr {
			q.cfg.Counters.Drop(DropLocalError)
			return nil
		}
		return w
	}
	q.cfg.Counters.Drop(DropResponse)
	return nil
}
