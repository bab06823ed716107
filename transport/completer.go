package transport

import (
	"softroce/internal/ib"
	"softroce/packet"
)

// The completer matches replies with outstanding requests and completes them in order.

// handleResponse handles one reply packet: an ACK or NAK, a READ response or an atomic response.
func (q *QP) handleResponse(e *Env, p *RxPacket, in *packet.Info) {
	r := &q.req
	c := q.cfg.Counters
	ahead := uint64((p.PSN - uint32(r.una)) & packet.PSNMask)
	outstanding := r.next - r.una
	psn := r.una + ahead
	if ahead >= outstanding && !(ahead == outstanding && p.AETH.Syndrome == packet.NAKSequence && in.Kind == packet.KindAck) {
		q.dropUnmatched(ahead, in)
		return
	}
	if s := p.AETH.Syndrome; r.rnrUntil != 0 && in.Kind == packet.KindAck && (s.IsRNR() || s == packet.NAKSequence) {
		c.Drop(DropStaleResponse) // caused by packets after the one that drew the RNR NAK
		return
	}
	r.answered = q.sq.tailIndex
	switch in.Kind {
	case packet.KindAck:
		q.handleACK(e, p, psn)
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

// dropUnmatched drops a reply whose PSN is not outstanding: an old one, or one beyond what was
// sent.
func (q *QP) dropUnmatched(ahead uint64, in *packet.Info) {
	c := q.cfg.Counters
	switch {
	case ahead < maxOutstanding:
		c.Drop(DropACKBeyondSent)
	case in.Kind == packet.KindAck:
		c.Drop(DropGhostACK)
	default:
		c.Drop(DropUnmatchedResponse)
	}
}

// handleACK handles an ACK or NAK for psn. Both acknowledge all earlier PSNs.
func (q *QP) handleACK(e *Env, p *RxPacket, psn uint64) {
	c := q.cfg.Counters
	s := p.AETH.Syndrome
	switch {
	case s.IsACK():
		if !q.ackBefore(e, psn+1) {
			q.impliedNAK(e)
			return
		}
		q.updateCredits(s, p.AETH.MSN)
	case s.IsRNR():
		if !q.ackBefore(e, psn) {
			q.impliedNAK(e)
			return
		}
		if q.state == ib.QPSErr {
			return // the new head of the send queue was invalid
		}
		q.noteNAK(s)
		q.handleRNR(e, packet.RNRTimer(uint8(s&packet.SyndromeValue)))
	case s.IsNAK() && s <= packet.NAKInvalidRD:
		c.NAKReceived[s-packet.NAKSequence]++
		q.counters.NAKsReceived++
		q.handleNAK(e, s, psn)
	default:
		c.Drop(DropUnmatchedResponse) // reserved syndrome
	}
}

// handleNAK handles a NAK other than RNR for psn.
func (q *QP) handleNAK(e *Env, s packet.Syndrome, psn uint64) {
	c := q.cfg.Counters
	whole := q.ackBefore(e, psn)
	if q.state == ib.QPSErr {
		return
	}
	if s == packet.NAKSequence {
		q.noteNAK(s)
		c.PacketSeqErr++
		if q.req.una != q.req.next && !q.resend(e) {
			c.Drop(DropStaleResponse)
		}
		return
	}
	if !whole {
		// A response to a request before psn is missing, and the responder, now in error, cannot
		// repeat it.
		for !q.sq.empty() && q.sq.head().end() <= psn {
			q.completeWR(e, q.sq.head(), ib.WCWRFlushErr)
		}
	}
	reason, status := ReasonRemoteOperational, ib.WCRemOpErr
	switch s {
	case packet.NAKInvalidRequest:
		reason, status = ReasonRemoteInvalid, ib.WCRemInvReqErr
		c.ReqRemoteInvalid++
	case packet.NAKRemoteAccess:
		reason, status = ReasonRemoteAccess, ib.WCRemAccessErr
		c.ReqRemoteAccess++
	}
	q.blameHead(e, Failure{Reason: reason, Status: status, Syndrome: s})
	q.failHead(e, status)
}

// impliedNAK retransmits because a READ or atomic response must have been lost. After a timeout the
// packet may instead reply to the first transmission; then only the next timeout retransmits.
//
// If the requester has retransmitted already, the responder still sends the rest of an earlier
// response, which may be long. Then the local ACK timeout starts again.
func (q *QP) impliedNAK(e *Env) {
	r := &q.req
	if r.timeouts == 0 && q.resend(e) {
		q.cfg.Counters.ImpliedNAK++
		return
	}
	q.cfg.Counters.Drop(DropStaleResponse)
	if !r.early {
		r.stopTimer()
		q.armTimer(e.Now)
	}
}

// ackBefore acknowledges all PSNs below end and completes the work requests that end there. It
// stops and returns false at a request whose own response is missing.
func (q *QP) ackBefore(e *Env, end uint64) bool {
	r := &q.req
	before := r.una
	whole := true
	for !q.sq.empty() {
		w := q.sq.head()
		if w.local && w.started {
			q.completeWR(e, w, ib.WCSuccess)
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
		q.completeWR(e, w, ib.WCSuccess)
	}
	if r.una != before {
		q.unaMoved(e, r.una-before)
	}
	return whole
}

// unaMoved restarts timer and retry counters after una advanced by n, and completes what waited for
// it.
func (q *QP) unaMoved(e *Env, n uint64) {
	if q.req.send < q.req.una {
		q.goBack(q.req.una)
	}
	q.resetRecovery(e.Now, n)
	q.completeLocal(e)
	q.completeFailed(e)
}

// updateCredits takes the end-to-end credits of an AETH: the responder accepts messages up to MSN +
// credits (IBTA 9.7.7.2).
func (q *QP) updateCredits(s packet.Syndrome, msn uint32) {
	r := &q.req
	n := packet.Credits(uint8(s & packet.SyndromeValue))
	if r.credited = n >= 0; !r.credited {
		return
	}
	// Extend the 24-bit MSN to the SSN of the newest completed message.
	done := q.sq.nextNumber - uint64(q.sq.used())
	r.limit = done + uint64(packet.PSNDiff(msn, uint32(done)&packet.PSNMask)) + uint64(n)
}

// readResponse handles a READ response packet. It also answers FLUSH and ATOMIC WRITE.
func (q *QP) readResponse(e *Env, p *RxPacket, in *packet.Info, psn uint64) {
	r := &q.req
	w := q.findRequest(e, psn)
	if w == nil {
		return
	}
	if w.kind.Response() != in.Kind {
		q.rejectResponse(e, ib.WCBadRespErr)
		return
	}
	if psn != r.una {
		q.impliedNAK(e)
		return
	}
	if !q.validResponse(p, in, w) {
		q.rejectResponse(e, ib.WCBadRespErr)
		return
	}
	last := w.received == w.psns-1
	var to scatter
	to.begin(q.cfg.PD, w.SGEs, w.received*uint32(q.attr.PathMTU))
	if st := to.write(e, q.reqWriter, p.Payload, p.Len, last); st != ib.WCSuccess {
		q.rejectResponse(e, ib.WCLocProtErr)
		return
	}
	w.received++
	r.una++
	r.readPSNs--
	if in.Headers&packet.HasAETH != 0 {
		q.updateCredits(p.AETH.Syndrome, p.AETH.MSN)
	}
	if last {
		w.done = true
		q.completeWR(e, w, ib.WCSuccess)
	}
	q.unaMoved(e, 1)
}

// validResponse checks length and position of a READ response. If a READ was requested again from
// its middle, the responder may begin there with a First or Only.
func (q *QP) validResponse(p *RxPacket, in *packet.Info, w *wqe) bool {
	rest := w.length - w.received*uint32(q.attr.PathMTU)
	if w.kind == packet.KindAtomicWrite {
		rest = 0
	}
	if w.received == w.psns-1 {
		return in.Position.EndsMessage() && uint32(p.Len) == rest
	}
	return !in.Position.EndsMessage() && p.Len == q.attr.PathMTU
}

// atomicResponse handles an ATOMIC ACKNOWLEDGE and writes the original value to the requester's
// buffer.
func (q *QP) atomicResponse(e *Env, p *RxPacket, psn uint64) {
	r := &q.req
	w := q.findRequest(e, psn)
	if w == nil {
		return
	}
	if w.kind.Response() != packet.KindAtomicAck {
		q.rejectResponse(e, ib.WCBadRespErr)
		return
	}
	if !p.AETH.Syndrome.IsACK() {
		q.cfg.Counters.Drop(DropUnmatchedResponse)
		return
	}
	if st := q.storeOriginal(e, w, p.OrigData); st != ib.WCSuccess {
		q.rejectResponse(e, st)
		return
	}
	w.received, w.done = 1, true
	r.una++
	r.readPSNs--
	q.updateCredits(p.AETH.Syndrome, p.AETH.MSN)
	q.completeWR(e, w, ib.WCSuccess)
	q.unaMoved(e, 1)
}

// rejectResponse drops an invalid response and fails the oldest work request.
func (q *QP) rejectResponse(e *Env, s ib.WCStatus) {
	q.cfg.Counters.Drop(DropLocalError)
	q.blameResponse(e, s)
	q.failHead(e, s)
}

// findRequest returns the work request that the response psn belongs to, after acknowledging all
// earlier ones, so that it is the oldest. It returns nil if it dropped the packet or handled it as
// an implied NAK.
func (q *QP) findRequest(e *Env, psn uint64) *wqe {
	for i := q.sq.headIndex; i != q.sq.tailIndex; i++ {
		w := q.sq.at(i)
		if !w.started || psn < w.first {
			break
		}
		if psn >= w.end() {
			continue
		}
		if !w.ownResponse || psn < w.first+uint64(w.received) {
			q.cfg.Counters.Drop(DropUnmatchedResponse)
			return nil
		}
		if !q.ackBefore(e, w.first) {
			q.impliedNAK(e)
			return nil
		}
		if q.state == ib.QPSErr {
			q.cfg.Counters.Drop(DropLocalError)
			return nil
		}
		return w
	}
	q.cfg.Counters.Drop(DropUnmatchedResponse)
	return nil
}
