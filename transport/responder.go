package transport

import (
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// The responder takes requests in PSN order and checks each in the order of IBTA 9.7.4: PSN, opcode
// sequence, opcode, resources, length, R_Key. Then it accesses memory and queues the reply.
type responder struct {
	epsn        uint32 // expected PSN
	accepted    uint64 // extended count of accepted PSNs, which advances with epsn
	msn         uint32 // messages completed, modulo 2^24 (C9-148)
	ackPSN      uint32 // PSN of the latest SEND or WRITE packet, which an ACK answers,
	ackMSN      uint32 // and the MSN up to it
	acked       uint32 // PSN up to which replies have acknowledged,
	ackedMSN    uint32 // and the MSN of that reply
	established bool   // EventCommEst was reported

	message packet.Kind     // the message in progress: KindSend, KindWrite or KindNone
	region  *mrtable.Region // WRITE: target region
	va      uint64          // WRITE: address of the next byte
	left    uint32          // WRITE: bytes of the message not yet received
	placed  uint32          // bytes of the message received

	replies replyQueue

	recv    RecvWR // current receive work request, valid if hasRecv
	hasRecv bool
	into    scatter
	lastWQE bool // EventQPLastWQEReached was reported

	target target // XRC

	ahead readAhead
}

func (r *responder) start(q *QP) {
	established := r.established
	r.reset()
	r.established = established
	r.epsn, r.ackPSN, r.acked = q.attr.RQPSN, packet.PSNAdd(q.attr.RQPSN, -1), q.attr.RQPSN
	r.replies.init(int(q.attr.MaxDestRDAtomic))
}

func (r *responder) reset() {
	*r = responder{replies: r.replies}
	r.replies.reset()
}

// respond handles one request packet.
func (q *QP) respond(e *Env, p *RxPacket, in *packet.Info) {
	r := &q.resp
	switch d := packet.PSNDiff(p.PSN, r.epsn); {
	case d > 0:
		q.outOfSequence(p)
	case d < 0:
		q.duplicate(e, p, in)
	default:
		r.replies.expectedReceived()
		if refusal := q.accept(e, p, in); refusal != 0 {
			q.cfg.Counters.Drop(DropLocalError)
			q.rejectRequest(e, refusal)
		}
	}
}

// outOfSequence handles a request after the expected PSN: one NAK, then none until the expected PSN
// arrives (IBTA 9.7.5.2.4).
func (q *QP) outOfSequence(p *RxPacket) {
	r := &q.resp
	q.cfg.Counters.OutOfSequence++
	q.cfg.Counters.Drop(DropSequence)
	if !r.replies.nakSent {
		r.replies.nakSent = true
		r.replies.nak, r.replies.nakPSN = packet.NAKSequence, p.PSN
	}
}

// accept executes a request with the expected PSN. It returns the NAK that rejects it, or 0.
func (q *QP) accept(e *Env, p *RxPacket, in *packet.Info) packet.Syndrome {
	r := &q.resp
	switch {
	case !r.inSequence(in):
		return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonMessageOrder})
	case !q.findSRQ(p):
		return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonNoSRQ})
	case !q.permits(in.Kind):
		return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonNotPermitted, Need: neededAccess(in.Kind)})
	case q.cfg.Refused.Has(in.Kind), q.cfg.NoInvalidate && in.Headers&packet.HasIETH != 0:
		return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonNotSupported})
	}
	switch in.Kind {
	case packet.KindSend:
		return q.acceptSend(e, p, in)
	case packet.KindWrite:
		return q.acceptWrite(e, p, in)
	case packet.KindRead:
		return q.acceptRead(e, p)
	case packet.KindCompareSwap, packet.KindFetchAdd:
		return q.acceptAtomic(e, p, in)
	case packet.KindFlush:
		return q.acceptFlush(e, p)
	case packet.KindAtomicWrite:
		return q.acceptAtomicWrite(e, p)
	}
	return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonNotSupported})
}

// inSequence checks the order of First, Middle, Last and Only (IBTA 9.7.4.1.2, table 26).
func (r *responder) inSequence(in *packet.Info) bool {
	if in.Position.StartsMessage() {
		return r.message == packet.KindNone
	}
	return r.message == in.Kind
}

// permits checks the operation against the queue pair's access flags (IBTA 9.7.4.1.3).
func (q *QP) permits(k packet.Kind) bool {
	need := neededAccess(k)
	return q.attr.Access&need == need
}

// neededAccess returns the access flag that an operation needs.
func neededAccess(k packet.Kind) ib.Access {
	switch k {
	case packet.KindWrite, packet.KindAtomicWrite:
		return ib.AccessRemoteWrite
	case packet.KindRead:
		return ib.AccessRemoteRead
	case packet.KindCompareSwap, packet.KindFetchAdd:
		return ib.AccessRemoteAtomic
	}
	return 0
}

// lengthFits checks the payload length against the packet's position in the message (IBTA
// 9.7.4.1.6).
func (q *QP) lengthFits(p *RxPacket, in *packet.Info) bool {
	mtu := q.attr.PathMTU
	switch in.Position {
	case packet.First, packet.Middle:
		return p.Len == mtu
	case packet.Last:
		return p.Len >= 1 && p.Len <= mtu
	}
	return p.Len <= mtu
}

// takeRecv makes sure that there is a current receive work request. If none is posted, it queues an
// RNR NAK, counts the packet as dropped, and returns false.
func (q *QP) takeRecv(e *Env, p *RxPacket) bool {
	r := &q.resp
	if r.hasRecv {
		return true
	}
	if rq := q.recvQueue(); rq == nil || !rq.Next(&r.recv) {
		c := q.cfg.Counters
		c.OutOfBuffer++
		c.Drop(DropReceiverNotReady)
		r.replies.nak = packet.SyndromeRNR | packet.Syndrome(q.attr.MinRNRTimer)
		r.replies.nakSent = true // later packets of the burst draw no NAK
		return false
	}
	r.hasRecv = true
	if s := r.recv.Fault.Status; s != ib.WCSuccess {
		r.fatalNAK(packet.NAKRemoteOperational)
		q.recvFailed(e, s, p)
		return false
	}
	return true
}

func (q *QP) acceptSend(e *Env, p *RxPacket, in *packet.Info) packet.Syndrome {
	r := &q.resp
	if !q.lengthFits(p, in) {
		return q.refuseLength(e, p)
	}
	if in.Position.StartsMessage() {
		if !q.takeRecv(e, p) {
			return 0
		}
		r.into.begin(q.recvPD(), r.recv.SGEs, 0)
		r.placed = 0
	}
	if n := uint64(r.placed) + uint64(p.Len); n > MaxMessage {
		return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonMessageTooLong, Length: n, Room: MaxMessage})
	}
	switch r.into.write(e, q.respWriter, p.Payload, p.Len, in.Position.EndsMessage()) {
	case ib.WCLocLenErr:
		q.cfg.Counters.RespLocalLength++
		q.blameReceive(e, ib.WCLocLenErr, p)
		q.completeRecv(e, Completion{Status: ib.WCLocLenErr, Opcode: ib.WCRecv})
		return packet.NAKInvalidRequest
	case ib.WCLocProtErr:
		q.cfg.Counters.Drop(DropLocalError)
		r.fatalNAK(packet.NAKRemoteOperational)
		q.recvFailed(e, ib.WCLocProtErr, p)
		return 0
	}
	r.placed += uint32(p.Len)
	if in.Headers&packet.HasIETH != 0 {
		if err := e.Table.Invalidate(q.pd(), q.cfg.QPN, p.Invalidate); err != nil {
			q.invalidateFailed(e, p)
			return 0
		}
	}
	q.advance(p, in, packet.KindSend)
	if in.Position.EndsMessage() {
		q.cfg.Counters.RxSendRequests++
		q.completeRecv(e, q.recvCompletion(p, in, ib.WCRecv, r.placed))
	}
	return 0
}

func (q *QP) acceptWrite(e *Env, p *RxPacket, in *packet.Info) packet.Syndrome {
	r := &q.resp
	if !q.lengthFits(p, in) {
		return q.refuseLength(e, p)
	}
	if in.Position.StartsMessage() {
		if nak := q.beginWrite(e, p); nak != 0 {
			return q.rejectWrite(in, nak)
		}
	}
	if !q.writeLengthMatches(p, in) {
		return q.refuseLength(e, p)
	}
	if p.Len > 0 && !r.region.Live() {
		nak := q.refuse(e, packet.NAKRemoteAccess, p, Failure{Reason: ReasonRemoteMemory, Check: CheckLive, Address: r.va,
			Length: uint64(r.left), Need: ib.AccessRemoteWrite})
		return q.rejectWrite(in, nak)
	}
	if in.ConsumesRecv && !q.takeRecv(e, p) {
		return 0
	}
	q.placeWrite(e, p, in)
	q.advance(p, in, packet.KindWrite)
	if in.Position.EndsMessage() {
		q.cfg.Counters.RxWriteRequests++
	}
	if in.ConsumesRecv {
		q.completeRecv(e, q.recvCompletion(p, in, ib.WCRecvRDMAWithImm, r.placed))
	}
	return 0
}

// rejectWrite returns nak. If it is for the R_Key of a WRITE with immediate, it takes the receive
// work request, if one is posted, whose completion then reports the error (IBTA 11.6.2).
func (q *QP) rejectWrite(in *packet.Info, nak packet.Syndrome) packet.Syndrome {
	if rq := q.recvQueue(); nak == packet.NAKRemoteAccess && in.ConsumesRecv && rq != nil {
		q.resp.hasRecv = rq.Next(&q.resp.recv)
	}
	return nak
}

// writeLengthMatches checks the payload length against the RETH's DMA length (IBTA 9.7.4.1.6).
func (q *QP) writeLengthMatches(p *RxPacket, in *packet.Info) bool {
	n, left := uint32(p.Len), q.resp.left
	if in.Position.EndsMessage() {
		return n == left
	}
	return n < left
}

// placeWrite writes the payload of a WRITE packet to memory.
func (q *QP) placeWrite(e *Env, p *RxPacket, in *packet.Info) {
	r := &q.resp
	for k, b := range p.Payload {
		e.Mem.Write(q.respWriter, r.region, r.va, b, in.Position.EndsMessage() && k == len(p.Payload)-1)
		r.va += uint64(len(b))
	}
	r.left -= uint32(p.Len)
}

// beginWrite checks the whole range of a WRITE before its first byte is written.
func (q *QP) beginWrite(e *Env, p *RxPacket) packet.Syndrome {
	r := &q.resp
	if p.RETH.Length > MaxMessage {
		return q.refuseMessage(e, p)
	}
	r.va, r.left, r.placed, r.region = p.RETH.VA, p.RETH.Length, p.RETH.Length, nil
	if r.left == 0 {
		return 0 // the R_Key of a zero-length WRITE is not checked (C9-88)
	}
	var err error
	r.region, err = e.Table.Remote(q.pd(), q.cfg.QPN, p.RETH.RKey, r.va, r.left, ib.AccessRemoteWrite)
	if err != nil {
		return q.refuseMemory(e, p, err, &p.RETH, ib.AccessRemoteWrite)
	}
	return 0
}

func (q *QP) recvCompletion(p *RxPacket, in *packet.Info, op ib.WCOpcode, n uint32) Completion {
	c := Completion{Opcode: op, ByteLen: n, Solicited: p.Solicited, SrcQP: q.attr.DestQPN, VLAN: p.VLAN}
	if in.Headers&packet.HasDETH != 0 {
		c.SrcQP = p.DETH.SrcQP
	}
	if in.Headers&packet.HasImmDt != 0 {
		c.Imm, c.Flags = p.Imm, ib.WCWithImm
	}
	if in.Headers&packet.HasIETH != 0 {
		c.Imm, c.Flags = p.Invalidate, ib.WCWithInv
	}
	return c
}

// completeRecv completes the current receive work request.
func (q *QP) completeRecv(e *Env, c Completion) {
	r := &q.resp
	switch c.Status {
	case ib.WCSuccess:
	case ib.WCWRFlushErr:
		q.cfg.Counters.RespCQEFlush++
	default:
		q.cfg.Counters.RespCQEError++
	}
	c.WRID, c.Recv, c.Signaled = r.recv.ID, true, true
	if c.Status != ib.WCSuccess && c.Status == r.recv.Fault.Status {
		c.VendorErr = r.recv.Fault.VendorErr
	}
	r.hasRecv = false
	c.Queue = r.target.queue
	e.wc = c
	e.Sink.Complete(q, &e.wc)
}

// advance moves the expected PSN past an accepted SEND or WRITE packet. The last packet of a
// message increments the MSN (C9-148).
func (q *QP) advance(p *RxPacket, in *packet.Info, k packet.Kind) {
	r := &q.resp
	r.ackPSN = r.epsn
	r.epsn, r.accepted = packet.PSNAdd(r.epsn, 1), r.accepted+1
	r.message = k
	if in.Position.EndsMessage() {
		r.message = packet.KindNone
		r.msn = packet.PSNAdd(r.msn, 1)
	}
	r.ackMSN = r.msn
	if p.AckReq {
		r.replies.ack = true
	}
}

func (q *QP) acceptRead(e *Env, p *RxPacket) packet.Syndrome {
	r := &q.resp
	switch {
	case r.replies.full():
		return q.refuseReads(e, p)
	case p.Len != 0:
		return q.refuseLength(e, p)
	case p.RETH.Length > MaxMessage:
		return q.refuseMessage(e, p)
	}
	a := response{kind: packet.KindRead, psn: r.epsn, psns: uint32(packet.PSNCount(p.RETH.Length, q.attr.PathMTU)),
		va: p.RETH.VA, rkey: p.RETH.RKey, length: p.RETH.Length, pd: q.pd()}
	if a.length > 0 {
		var err error
		if a.region, err = e.Table.Remote(q.pd(), q.cfg.QPN, a.rkey, a.va, a.length, ib.AccessRemoteRead); err != nil {
			return q.refuseMemory(e, p, err, &p.RETH, ib.AccessRemoteRead)
		}
	}
	q.cfg.Counters.RxReadRequests++
	q.acceptWithResponse(a)
	return 0
}

func (q *QP) acceptAtomic(e *Env, p *RxPacket, in *packet.Info) packet.Syndrome {
	r := &q.resp
	switch {
	case r.replies.full():
		return q.refuseReads(e, p)
	case p.Len != 0:
		return q.refuseLength(e, p)
	case p.Atomic.VA%8 != 0:
		return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonMisaligned, Address: p.Atomic.VA})
	}
	region, err := e.Table.Remote(q.pd(), q.cfg.QPN, p.Atomic.RKey, p.Atomic.VA, 8, ib.AccessRemoteAtomic)
	if err != nil {
		return q.refuseMemory(e, p, err, &packet.RETH{VA: p.Atomic.VA, RKey: p.Atomic.RKey, Length: atomicLen}, ib.AccessRemoteAtomic)
	}
	a := response{kind: in.Kind, psn: r.epsn, psns: 1}
	var done bool
	if in.Kind == packet.KindCompareSwap {
		a.original, done, err = e.Mem.CompareSwap(q.respWriter, r.accepted, region, p.Atomic.VA, p.Atomic.Compare, p.Atomic.SwapAdd)
	} else {
		a.original, done, err = e.Mem.FetchAdd(q.respWriter, r.accepted, region, p.Atomic.VA, p.Atomic.SwapAdd)
	}
	if err != nil {
		return q.refuseAtomic(e, p, err, p.Atomic.VA)
	}
	a.waiting = !done
	q.cfg.Counters.RxAtomicRequests++
	q.acceptWithResponse(a)
	return 0
}

// AtomicDone reports the previous value that an atomic operation of w has found, of which
// mrtable.IO.Results knows the number id. It must precede the next Transmit.
func (q *QP) AtomicDone(id, original uint64) { q.resp.replies.atomicDone(id, original) }

// acceptWithResponse moves the expected PSN past a request that has a response of its own, and
// queues the response. Its MSN already counts the request (C9-148).
func (q *QP) acceptWithResponse(a response) {
	r := &q.resp
	r.msn = packet.PSNAdd(r.msn, 1)
	a.msn, a.position = r.msn, r.accepted
	r.epsn, r.accepted = packet.PSNAdd(r.epsn, int(a.psns)), r.accepted+uint64(a.psns)
	r.replies.add(a)
}

// duplicate replies to a request before the expected PSN without executing it again, except that a
// READ reads memory again (IBTA 9.7.5.1.2 to 9.7.5.1.4).
func (q *QP) duplicate(e *Env, p *RxPacket, in *packet.Info) {
	r := &q.resp
	c := q.cfg.Counters
	c.DuplicateRequest++
	switch {
	case in.Response == packet.KindAck:
		r.replies.ack = true // acknowledged again (C9-105)
	case in.Kind.HasOwnResponse():
		n, a := r.replies.find(r.extendPSN(p.PSN))
		if a == nil || a.kind != in.Kind || in.Kind == packet.KindRead && !q.narrow(e, a, p) {
			c.Drop(DropDuplicateRequest)
			return
		}
		r.replies.repeat(n, r.msn)
		e.Sink.Discard(q, a.psn, a.psns)
	default:
		c.Drop(DropDuplicateRequest)
	}
}

// extendPSN returns the position of an accepted PSN in the extended count of responder.accepted.
func (r *responder) extendPSN(psn uint32) uint64 {
	return r.accepted + uint64(packet.PSNDiff(psn, r.epsn))
}

// narrow reduces the response to a READ to what a duplicate requests, which may be a part of the
// original. It returns false, and changes nothing, if the duplicate is not valid: the R_Key and the
// range are checked again.
func (q *QP) narrow(e *Env, a *response, p *RxPacket) bool {
	first := uint32(packet.PSNDiff(p.PSN, a.psn))
	skipped := uint64(first) * uint64(q.attr.PathMTU)
	if p.Len != 0 || skipped > uint64(a.length) || p.RETH.VA != a.va+skipped || p.RETH.RKey != a.rkey ||
		uint64(p.RETH.Length) > uint64(a.length)-skipped {
		return false
	}
	region := a.region
	if p.RETH.Length > 0 {
		var err error
		region, err = e.Table.Remote(a.pd, q.cfg.QPN, a.rkey, p.RETH.VA, p.RETH.Length, ib.AccessRemoteRead)
		if err != nil {
			return false
		}
	}
	a.region, a.first, a.end = region, first, uint32(skipped)+p.RETH.Length
	a.last = first + uint32(packet.PSNCount(p.RETH.Length, q.attr.PathMTU))
	return true
}

// rejectRequest replies with a fatal NAK and moves the queue pair to the error state.
func (q *QP) rejectRequest(e *Env, s packet.Syndrome) {
	r := &q.resp
	q.Blame(e, Failure{Reason: ReasonNotSupported, Syndrome: s, PSN: r.epsn})
	r.fatalNAK(s)
	ev := ib.EventQPReqErr
	switch s {
	case packet.NAKRemoteAccess:
		q.cfg.Counters.RespRemoteAccess++
		ev = ib.EventQPAccessErr
	case packet.NAKRemoteOperational:
		ev = ib.EventQPFatal
	}
	if r.hasRecv {
		status := ib.WCRemInvReqErr
		if s == packet.NAKRemoteAccess {
			status = ib.WCLocAccessErr
		}
		q.completeRecv(e, Completion{Status: status, Opcode: ib.WCRecv})
	}
	q.toError(e)
	e.Sink.Event(q, ev)
}

// noteAcked records that a reply was emitted which acknowledges all PSNs before psn.
func (r *responder) noteAcked(psn, msn uint32) {
	if packet.PSNDiff(psn, r.acked) > 0 {
		r.acked, r.ackedMSN = psn, msn
	}
	if psn == r.epsn {
		r.replies.ack = false
	}
}

// unwind discards everything accepted since the last emitted reply.
func (r *responder) unwind() {
	r.replies.reset()
	r.epsn, r.msn = r.acked, r.ackedMSN
}

// fatalNAK makes s the last reply of this queue pair, for the expected PSN.
func (r *responder) fatalNAK(s packet.Syndrome) { r.replies.nak, r.replies.ack = s, false }

// discardReplies drops all pending replies.
func (r *responder) discardReplies() { r.replies.reset() }

// flush completes the receive queue with WCWRFlushErr. The work requests of a shared receive queue
// stay there, and EventQPLastWQEReached tells the owner that this queue pair takes no more of them.
func (r *responder) flush(q *QP, e *Env) {
	if r.hasRecv {
		q.completeRecv(e, Completion{Status: ib.WCWRFlushErr, Opcode: ib.WCRecv})
	}
	rq := q.cfg.Recv
	if rq == nil {
		return
	}
	if rq.Shared() {
		if !r.lastWQE {
			r.lastWQE = true
			e.Sink.Event(q, ib.EventQPLastWQEReached)
		}
		return
	}
	for rq.Next(&r.recv) {
		q.completeRecv(e, Completion{Status: ib.WCWRFlushErr, Opcode: ib.WCRecv})
	}
}
