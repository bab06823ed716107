package transport

import (
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport/congestion"
)

// The requester turns work requests into packets. Its PSNs are extended to 64 bits, of which the
// low 24 go on the wire, so that they compare as plain numbers.
type requester struct {
	una  uint64 // oldest unacknowledged
	send uint64 // next to emit; behind next during retransmission
	next uint64 // next unused

	cur uint32 // index of the work request that contains send
	pkt uint32 // index of the packet in that work request

	sinceAck int    // packets emitted since the last AckReq
	reads    int    // started work requests whose own response is incomplete
	readPSNs uint64 // outstanding response packets

	credited bool   // the responder grants end-to-end credits
	limit    uint64 // highest SSN that the credits allow

	src   gather
	ahead readAhead

	recovery
}

func (r *requester) start(q *QP) {
	psn := uint64(q.attr.SQPSN)
	*r = requester{una: psn, send: psn, next: psn, cur: q.sq.headIndex}
	r.retries, r.rnrRetries = q.attr.RetryCount, q.attr.RNRRetry
	r.window = congestion.NewWindow(sendWindow)
}

// stop discards the state of outstanding requests after the send queue was flushed.
func (r *requester) stop(q *QP) {
	r.una, r.send, r.cur, r.pkt = r.next, r.next, q.sq.tailIndex, 0
	r.stopTimer()
	r.reads, r.readPSNs, r.rnrUntil = 0, 0, 0
}

// request emits request packets until the work, the window or the room in the sink ends. It returns
// true if the room ended.
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

// discardOversized reports whether w is a datagram that exceeds the port's MTU. Such a datagram is
// not sent and completes successfully (C10-93.1.1).
func (q *QP) discardOversized(w *wqe) bool {
	if q.cfg.Service != packet.UD || w.status != ib.WCSuccess || q.state == ib.QPSSQD || w.length <= uint32(q.attr.PathMTU) {
		return false
	}
	q.cfg.Counters.TxOverlong++
	return true
}

// windowFull reports whether the window allows no further packet. If the last one did not ask for
// an ACK, it allows one that does: the window may have become smaller since.
func (r *requester) windowFull() bool { return r.windowLeft() == 0 && r.sinceAck == 0 }

// windowLeft returns how many more SEND and WRITE packets the window allows.
func (r *requester) windowLeft() uint64 {
	limit := r.window.Size() + r.readPSNs
	return limit - min(limit, r.send-r.una)
}

// withoutAck returns how many more packets may be sent that do not request an ACK, unless a message
// or the turn ends before.
func (r *requester) withoutAck() uint64 {
	interval := min(ackInterval, r.window.Size()/acksPerWindow)
	return min(interval-min(interval, uint64(r.sinceAck)+1), max(r.windowLeft(), 1)-1)
}

// tryStart assigns PSNs to w, the next unstarted work request, and reports whether it could. If w
// is invalid, tryStart sets its status.
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
		return false // out of credits: send one message at a time as a probe (IBTA 9.7.7.2.5)
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

// emitRequest emits the packet of w at the PSN send. full reports that the sink or the read arena
// had no room.
func (q *QP) emitRequest(e *Env, w *wqe) (ok, full bool) {
	r := &q.req
	h := &e.hdr
	offset := r.pkt * uint32(q.attr.PathMTU)
	h.BTH = packet.BTH{MigReq: migrated, PKey: q.attr.PKey, DestQP: q.attr.DestQPN, PSN: uint32(r.send) & packet.PSNMask}
	if w.ownResponse {
		return q.emitReadOrAtomic(e, w, offset)
	}
	n := min(uint32(q.attr.PathMTU), w.length-offset)
	first, last := r.pkt == 0, r.pkt == w.psns-1

	before := r.src
	r.src.seek(w, offset)
	if !last {
		if run := q.nextRun(e, w); run.Repeat > 0 && q.emitRun(e, w, run) {
			return true, false
		}
	}
	var err error
	e.segs, err = r.src.take(e, q, n, e.segs[:0])
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
	lastSlot := !last && e.Sink.Last(q)
	tx := e.Sink.Packet(q)
	if tx == nil {
		r.src = before
		return false, true
	}
	h.Opcode = packet.Opcode(q.cfg.Service) | packet.Opcode(requestOpcode(w.Opcode, first, last))
	h.RETH = packet.RETH{VA: w.RemoteAddr, RKey: w.RKey, Length: w.length}
	h.Imm, h.Invalidate, h.XRCSRQ = w.Imm, w.Imm, w.RemoteSRQ
	h.Solicited = last && w.Flags&ib.SendSolicited != 0 && consumesRecv(w)
	requestAck := last || lastSlot || r.withoutAck() == 0
	r.sinceAck++
	if !q.reliable() {
		q.setDatagramHeaders(h, w)
	} else if requestAck {
		h.AckReq, r.sinceAck = true, 0
		r.timeRequest(r.send, e.Now)
	}
	tx.Begin()
	for _, s := range e.segs {
		tx.Add(s)
	}
	tx.Finish(h)
	q.advanceSend(h.Opcode, 1)
	switch r.pkt++; {
	case last && !q.reliable():
		q.completeWR(e, w, ib.WCSuccess) // an unreliable service sends no acknowledgement
	case last:
		r.cur, r.pkt = r.cur+1, 0
	}
	return true, false
}

// nextRun returns the run that begins with the next packet, or none. The payload of a run is
// available and contiguous. None of its packets was sent before, or requests an ACK, except LAST.
func (q *QP) nextRun(e *Env, w *wqe) (run packet.Run) {
	r := &q.req
	rest := int(w.psns - r.pkt)
	if q.cfg.Service != packet.RC || r.send != r.next || w.Flags&ib.SendInline != 0 || r.pkt == 0 && w.kind != packet.KindWrite {
		return run
	}
	n := min(rest, int(r.withoutAck()), e.Sink.Run(q))
	if n < 2 || len(r.src.chunk) == 0 && r.src.fetch(e, q) != nil {
		return run // emitRequest finds the same error
	}
	n = min(n, len(r.src.chunk)/q.attr.PathMTU)
	if run.Ends = n == rest && w.Opcode == ib.WRRDMAWrite; n == rest && !run.Ends {
		n--
	}
	run.Repeat = uint16(max(0, n-1))
	return run
}

// emitRun emits a run.
func (q *QP) emitRun(e *Env, w *wqe, run packet.Run) bool {
	r := &q.req
	tx := e.Sink.Packet(q)
	if tx == nil {
		return false
	}
	n := run.Packets()
	e.segs, _ = r.src.take(e, q, uint32(n*q.attr.PathMTU), e.segs[:0]) // it is available
	h := &e.hdr
	h.Opcode = packet.Opcode(requestOpcode(w.Opcode, r.pkt == 0, false))
	h.RETH = packet.RETH{VA: w.RemoteAddr, RKey: w.RKey, Length: w.length}
	tx.Begin()
	tx.Add(e.segs[0])
	tx.FinishRun(h, run)
	c := q.cfg.Counters
	middle, last := run.Opcodes(h.Opcode)
	c.TxOpcode[h.Opcode]++
	c.TxOpcode[middle] += uint64(run.Repeat - 1)
	c.TxOpcode[last]++
	r.send += uint64(n)
	r.next = r.send
	r.sinceAck, r.pkt = r.sinceAck+n, r.pkt+uint32(n)
	if run.Ends {
		r.sinceAck, r.cur, r.pkt = 0, r.cur+1, 0
		r.timeRequest(r.send-1, e.Now)
	}
	return true
}

// setDatagramHeaders sets the destination and the DETH of a UD packet.
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

// controlledQKey marks a Q_Key that a program may not choose (IBTA 10.2.5).
const controlledQKey = 1 << 31

// emitReadOrAtomic emits a request that has a response of its own: READ, atomic, FLUSH or ATOMIC
// WRITE. A READ is requested from offset on if the bytes before it were received.
func (q *QP) emitReadOrAtomic(e *Env, w *wqe, offset uint32) (ok, full bool) {
	r := &q.req
	e.segs = e.segs[:0]
	if w.kind == packet.KindAtomicWrite {
		if ok, full := q.gatherWord(e, w); !ok {
			return false, full
		}
	}
	tx := e.Sink.Packet(q)
	if tx == nil {
		return false, true
	}
	h := &e.hdr
	h.AckReq, r.sinceAck, h.XRCSRQ = true, 0, w.RemoteSRQ
	r.timeRequest(r.send, e.Now)
	switch w.kind {
	case packet.KindFlush:
		h.Opcode = packet.Flush
		h.FETH = packet.FETH{Placement: uint8(w.Flush.Placement), Selectivity: uint8(w.Flush.Selectivity)}
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
	for _, s := range e.segs {
		tx.Add(s)
	}
	tx.Finish(h)
	q.advanceSend(h.Opcode, uint64(w.psns-r.pkt))
	r.cur, r.pkt = r.cur+1, 0
	return true, false
}

// gatherWord reads the operand of an ATOMIC WRITE.
func (q *QP) gatherWord(e *Env, w *wqe) (ok, full bool) {
	r := &q.req
	r.src = gather{}
	r.src.seek(w, 0)
	var err error
	e.segs, err = r.src.take(e, q, atomicLen, e.segs)
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

// advanceSend moves send past a packet that uses n PSNs.
func (q *QP) advanceSend(op packet.Opcode, n uint64) {
	r := &q.req
	q.cfg.Counters.TxOpcode[op]++
	if r.send < r.next {
		q.cfg.Counters.Retransmitted++
		q.counters.Retransmitted++
	}
	r.send += n
	r.next = max(r.next, r.send)
	if !q.reliable() {
		r.una = r.next
	}
}

// requestOpcode returns the operation of a SEND or WRITE packet from its position in the message.
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

// completeFailed completes the oldest work request if the requester found it invalid, and moves the
// queue pair to the error state. In SQD an unstarted work request waits.
func (q *QP) completeFailed(e *Env) {
	if q.sq.empty() {
		return
	}
	if w := q.sq.head(); w.status != ib.WCSuccess && (w.started || q.state != ib.QPSSQD) {
		q.blameInvalid(e, w)
		q.completeWR(e, w, w.status)
		if !q.reliable() {
			q.state, q.sqdNotify = ib.QPSSQE, false // the receive queue stays usable (IBTA 10.3.1)
			q.flushSend(e)
			return
		}
		q.resp.discardReplies()
		q.toError(e)
	}
}
