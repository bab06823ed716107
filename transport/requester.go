package transport

import (
	"softroce/internal/ib"
	"softroce/packet"
)

// The requester turns work requests into packets. Its PSNs are extended: 64-bit
// counters whose low 24 bits are on the wire, so that they compare as numbers.
type requester struct {
	una  uint64 // oldest not acknowledged
	send uint64 // next to emit: behind next while packets are sent again
	next uint64 // next that was never used

	cur uint32 // index of the work request that send lies in
	pkt uint32 // packet of it: send - first

	sinceAck int    // packets emitted without AckReq
	reads    int    // READs and atomics without their response
	readPSNs uint64 // responses outstanding

	credited bool   // the responder grants credits
	limit    uint64 // highest SSN that may be sent then

	src   gather
	segs  [][]byte
	piece [1][]byte

	recovery
}

func (r *requester) start(q *QP) {
	psn := uint64(q.attr.SQPSN)
	*r = requester{una: psn, send: psn, next: psn, cur: q.sq.headIndex, segs: r.segs[:0]}
	r.retries, r.rnrRetries, r.window = q.attr.RetryCount, q.attr.RNRRetry, sendWindow
}

// stop forgets what was on its way; the send queue has been flushed.
func (r *requester) stop(q *QP) {
	r.una, r.send, r.cur, r.pkt = r.next, r.next, q.sq.tailIndex, 0
	r.reads, r.readPSNs, r.deadline, r.rnrUntil = 0, 0, 0, 0
}

// request emits request packets until the work, the window or the room ends; it returns
// true where it was the room.
func (q *QP) request(e *Env) (more bool) {
	r := &q.req
	if q.state != ib.QPSRTS && q.state != ib.QPSSQD || r.rnrWaiting(e.Now) {
		return false
	}
	r.src.chunk = nil
	for r.cur != q.sq.tailIndex {
		w := q.sq.at(r.cur)
		if q.discardOversized(w) {
			q.completeWR(e, w, ib.WCSuccess)
			continue
		}
		if w.local {
			if !q.runLocal(e, w) {
				break
			}
			continue
		}
		if !w.started && (q.state == ib.QPSSQD || !q.tryStart(e, w)) {
			break
		}
		if w.status != ib.WCSuccess {
			break
		}
		if q.reliable() && !w.ownResponse && r.windowFull() {
			break
		}
		if ok, full := q.emitRequest(e, w); !ok {
			more = full
			break
		}
	}
	q.completeFailed(e)
	q.armTimer(e.Now)
	return more
}

// swallows reports whether w is a datagram longer than the port's MTU: it is not sent, and
// completes without an error (C10-93.1.1).
func (q *QP) discardOversized(w *wqe) bool {
	if q.cfg.Service != packet.UD || w.status != ib.WCSuccess || q.state == ib.QPSSQD || w.length <= uint32(q.attr.PathMTU) {
		return false
	}
	q.cfg.Counters.TxOverlong++
	return true
}

func (r *requester) windowFull() bool { return r.windowLeft() == 0 }

// windowLeft returns how many packets of SENDs and WRITEs may still be sent.
func (r *requester) windowLeft() uint64 {
	limit := r.window + r.readPSNs
	return limit - min(limit, r.send-r.una)
}

// mayStart decides whether w, the next new work request, can have its PSNs now, and gives
// them. A work request that is found wrong gets its status instead.
func (q *QP) tryStart(e *Env, w *wqe) bool {
	r := &q.req
	if w.status != ib.WCSuccess {
		return false
	}
	if q.fenced(w) {
		return false
	}
	if w.psns = uint32(packet.PSNCount(w.length, q.attr.PathMTU)); w.kind != packet.KindRead && w.ownResponse {
		w.psns = 1
	}
	if r.next-r.una+uint64(w.psns) > maxOutstanding && r.next != r.una {
		return false
	}
	if w.ownResponse && !q.readAllowed(w) {
		return false
	}
	if r.credited && w.ssn > r.limit && consumesRecv(w) && r.una != r.next {
		return false // out of credits: one message at a time, as a probe (IBTA 9.7.7.2.5)
	}
	if w.status = q.checkLocal(e, w); w.status != ib.WCSuccess {
		return false
	}
	w.first, w.started = r.next, true
	if w.ownResponse {
		r.reads++
		r.readPSNs += uint64(w.psns)
	}
	return true
}

func (q *QP) readAllowed(w *wqe) bool {
	r := &q.req
	if q.attr.MaxRDAtomic == 0 {
		w.status = ib.WCLocQPOpErr
		return false
	}
	if r.reads >= int(q.attr.MaxRDAtomic) {
		return false
	}
	return r.reads == 0 || r.readPSNs+uint64(w.psns) <= readWindow
}

func consumesRecv(w *wqe) bool {
	return w.kind == packet.KindSend || w.Opcode == ib.WRRDMAWriteWithImm
}

// emitRequest emits the packet at send. full says that there was no room for it.
func (q *QP) emitRequest(e *Env, w *wqe) (ok, full bool) {
	r := &q.req
	h := &q.hdr
	offset := r.pkt * uint32(q.attr.PathMTU)
	h.BTH = packet.BTH{PKey: q.attr.PKey, DestQP: q.attr.DestQPN, PSN: uint32(r.send) & packet.PSNMask}
	if w.ownResponse {
		return q.emitReadOrAtomic(e, w, offset)
	}
	n := min(uint32(q.attr.PathMTU), w.length-offset)
	first, last := r.pkt == 0, r.pkt == w.psns-1

	before := r.src
	r.src.seek(w, offset)
	var err error
	r.segs, err = r.src.take(e, q, n, r.segs[:0])
	if isTransient(err) {
		r.src = before
		r.src.chunk = nil
		return false, true
	}
	if err != nil {
		w.status = ib.WCLocProtErr
		return false, false
	}
	q.dest = w.Dest
	tx := e.Sink.Packet(q)
	if tx == nil {
		r.src = before
		return false, true
	}
	h.Opcode = packet.Opcode(q.cfg.Service) | packet.Opcode(requestOpcode(w.Opcode, first, last))
	h.RETH = packet.RETH{VA: w.RemoteAddr, RKey: w.RKey, Length: w.length}
	h.Imm, h.Invalidate, h.XRCSRQ = w.Imm, w.Imm, w.RemoteSRQ
	h.Solicited = last && w.Flags&ib.SendSolicited != 0 && consumesRecv(w)
	r.sinceAck++
	if !q.reliable() {
		q.setDatagramHeaders(h, w)
	} else if last || r.sinceAck >= ackInterval || r.send+1-r.una >= r.window+r.readPSNs {
		h.AckReq, r.sinceAck = true, 0
	}
	tx.Begin()
	for _, s := range r.segs {
		tx.Add(s)
	}
	tx.Finish(h)
	q.advanceSend(h.Opcode, 1)
	switch r.pkt++; {
	case last && !q.reliable():
		q.completeWR(e, w, ib.WCSuccess) // there is nothing to wait for
	case last:
		r.cur, r.pkt = r.cur+1, 0
	}
	return true, false
}

// addressed completes the headers of an unreliable service: no acknowledgement is asked
// for, and a datagram says whose it is and under which key.
func (q *QP) setDatagramHeaders(h *packet.Header, w *wqe) {
	if q.cfg.Service != packet.UD {
		return
	}
	h.DestQP = w.RemoteQPN
	h.DETH = packet.DETH{QKey: w.RemoteQKey, SrcQP: q.cfg.QPN}
	if w.RemoteQKey&controlledQKey != 0 {
		h.DETH.QKey = q.attr.QKey
	}
}

// controlledQKey is the bit of a Q_Key that a program may not send of its own (IBTA 10.2.5).
const controlledQKey = 1 << 31

// emitRead emits the request of a READ, from offset on where part of it has come, of an atomic, a
// FLUSH or an ATOMIC WRITE.
func (q *QP) emitReadOrAtomic(e *Env, w *wqe, offset uint32) (ok, full bool) {
	r := &q.req
	r.segs = r.segs[:0]
	if w.kind == packet.KindAtomicWrite {
		if ok, full := q.gatherWord(e, w); !ok {
			return false, full
		}
	}
	tx := e.Sink.Packet(q)
	if tx == nil {
		return false, true
	}
	h := &q.hdr
	h.AckReq, r.sinceAck, h.XRCSRQ = true, 0, w.RemoteSRQ
	switch w.kind {
	case packet.KindFlush:
		h.Opcode = packet.Flush
		h.FETH = packet.FETH{Placement: w.Flush.Placement, Selectivity: w.Flush.Selectivity}
		h.RETH = packet.RETH{VA: w.RemoteAddr, RKey: w.RKey, Length: w.Flush.Length}
	case packet.KindAtomicWrite:
		h.Opcode = packet.AtomicWrite
		h.RETH = packet.RETH{VA: w.RemoteAddr, RKey: w.RKey, Length: atomicLen}
	case packet.KindRead:
		h.Opcode = packet.ReadRequest
		h.RETH = packet.RETH{VA: w.RemoteAddr + uint64(offset), RKey: w.RKey, Length: w.length - offset}
	case packet.KindCompareSwap:
		h.Opcode = packet.CompareSwap
		h.Atomic = packet.AtomicETH{VA: w.RemoteAddr, RKey: w.RKey, SwapAdd: w.Swap, Compare: w.CompareAdd}
	default:
		h.Opcode = packet.FetchAdd
		h.Atomic = packet.AtomicETH{VA: w.RemoteAddr, RKey: w.RKey, SwapAdd: w.CompareAdd}
	}
	h.Opcode |= packet.Opcode(q.cfg.Service)
	tx.Begin()
	for _, s := range r.segs {
		tx.Add(s)
	}
	tx.Finish(h)
	q.advanceSend(h.Opcode, uint64(w.psns-r.pkt))
	r.cur, r.pkt = r.cur+1, 0
	return true, false
}

// gatherWord reads the eight bytes of an ATOMIC WRITE.
func (q *QP) gatherWord(e *Env, w *wqe) (ok, full bool) {
	r := &q.req
	r.src = gather{}
	r.src.seek(w, 0)
	var err error
	r.segs, err = r.src.take(e, q, atomicLen, r.segs)
	r.src = gather{}
	if isTransient(err) {
		return false, true
	}
	if err != nil {
		w.status = ib.WCLocProtErr
		return false, false
	}
	return true, false
}

// sent moves on behind a packet that takes n PSNs.
func (q *QP) advanceSend(op packet.Opcode, n uint64) {
	r := &q.req
	q.cfg.Counters.TxOpcode[op]++
	if r.send < r.next {
		q.cfg.Counters.Retransmitted++
	}
	r.send += n
	r.next = max(r.next, r.send)
	if !q.reliable() {
		r.una = r.next
	}
}

// requestOpcode names the packet of a SEND or WRITE by its place in the message.
func requestOpcode(o ib.WROpcode, first, last bool) uint8 {
	imm := o == ib.WRSendWithImm || o == ib.WRRDMAWriteWithImm
	write := o == ib.WRRDMAWrite || o == ib.WRRDMAWriteWithImm
	op := uint8(packet.SendMiddle)
	switch {
	case o == ib.WRSendWithInv && last && first:
		op = packet.SendOnlyInv
	case o == ib.WRSendWithInv && last:
		op = packet.SendLastInv
	case first && last && imm:
		op = packet.SendOnlyImm
	case first && last:
		op = packet.SendOnly
	case first:
		op = packet.SendFirst
	case last && imm:
		op = packet.SendLastImm
	case last:
		op = packet.SendLast
	}
	if write {
		op += packet.WriteFirst - packet.SendFirst
	}
	return op
}

// retireFailed completes a work request that the requester itself found wrong, when all
// before it are done. The queue pair goes to error. In SQD one that is not begun waits.
func (q *QP) completeFailed(e *Env) {
	if q.sq.empty() {
		return
	}
	if w := q.sq.head(); w.status != ib.WCSuccess && (w.started || q.state != ib.QPSSQD) {
		q.completeWR(e, w, w.status)
		if !q.reliable() {
			q.state, q.sqdNotify = ib.QPSSQE, false // the receive queue goes on (IBTA 10.3.1)
			q.flushSend(e)
			return
		}
		q.resp.discardReplies()
		q.toError(e)
	}
}
