package transport

import (
	"softroce/internal/ib"
	"softroce/packet"
)

// UC and UD responders send no replies. They drop what they cannot accept, and the queue pair stays
// operational (IBTA 9.8.2, 9.8.3).

// respondUC handles one UC request packet. A gap in the PSNs loses the message in progress, or the
// one whose start is missing. The next message is accepted again (IBTA 9.8.2.2.4).
func (q *QP) respondUC(e *Env, p *RxPacket, in *packet.Info) {
	r := &q.resp
	if p.PSN != r.epsn {
		r.message = packet.KindNone
		q.cfg.Counters.OutOfSequence++
	}
	r.epsn = packet.PSNAdd(p.PSN, 1)
	switch {
	case in.Position.StartsMessage():
		r.message = packet.KindNone // a message in progress is lost
	case r.message != in.Kind:
		r.message = packet.KindNone
		q.cfg.Counters.Drop(DropAbandonedMessage)
		return
	}
	reason, ok := q.placeUC(e, p, in)
	switch {
	case !ok:
		r.message = packet.KindNone
		q.cfg.Counters.Drop(reason)
	case in.Position.EndsMessage():
		r.message = packet.KindNone
	default:
		r.message = in.Kind
	}
}

// placeUC writes the payload to memory. If it rejects the message, the receive work request stays
// current for the next one.
func (q *QP) placeUC(e *Env, p *RxPacket, in *packet.Info) (DropReason, bool) {
	if !q.lengthFits(p, in) || !q.permits(in.Kind) {
		return DropInvalid, false
	}
	if in.Kind == packet.KindSend {
		return q.placeSendUC(e, p, in)
	}
	return q.placeWriteUC(e, p, in)
}

func (q *QP) placeSendUC(e *Env, p *RxPacket, in *packet.Info) (DropReason, bool) {
	r := &q.resp
	if in.Position.StartsMessage() {
		if reason, ok := q.takeRecvUnreliable(e, p); !ok {
			return reason, false
		}
		r.into.begin(q.recvPD(), r.recv.SGEs, 0)
		r.placed = 0
	}
	if uint64(r.placed)+uint64(p.Len) > MaxMessage {
		return DropInvalid, false
	}
	switch r.into.write(e, q.respWriter, p.Payload, p.Len, in.Position.EndsMessage()) {
	case ib.WCLocLenErr:
		return q.recvTooShort(e), false
	case ib.WCLocProtErr:
		q.recvFailed(e, ib.WCLocProtErr, p)
		return DropLocalError, false
	}
	r.placed += uint32(p.Len)
	if in.Position.EndsMessage() {
		q.cfg.Counters.RxSendRequests++
		q.completeRecv(e, q.recvCompletion(p, in, ib.WCRecv, r.placed))
	}
	return 0, true
}

func (q *QP) placeWriteUC(e *Env, p *RxPacket, in *packet.Info) (DropReason, bool) {
	r := &q.resp
	if in.Position.StartsMessage() && q.beginWrite(e, p) != 0 {
		return DropAccess, false
	}
	if !q.writeLengthMatches(p, in) {
		return DropInvalid, false
	}
	if p.Len > 0 && !r.region.Live() {
		return DropAccess, false
	}
	if in.ConsumesRecv {
		if reason, ok := q.takeRecvUnreliable(e, p); !ok {
			return reason, false
		}
	}
	q.placeWrite(e, p, in)
	if in.Position.EndsMessage() {
		q.cfg.Counters.RxWriteRequests++
	}
	if in.ConsumesRecv {
		q.completeRecv(e, q.recvCompletion(p, in, ib.WCRecvRDMAWithImm, r.placed))
	}
	return 0, true
}

// takeRecvUnreliable makes sure that there is a current receive work request. If there is none, or
// it has a fault, the packet is dropped for the reason that is returned.
func (q *QP) takeRecvUnreliable(e *Env, p *RxPacket) (DropReason, bool) {
	r := &q.resp
	if !r.hasRecv && (q.cfg.Recv == nil || !q.cfg.Recv.Next(&r.recv)) {
		q.cfg.Counters.OutOfBuffer++
		return DropReceiverNotReady, false
	}
	r.hasRecv = true
	if s := r.recv.Fault.Status; s != ib.WCSuccess {
		q.recvFailed(e, s, p)
		return DropLocalError, false
	}
	return 0, true
}

// recvTooShort drops a message that exceeds the current receive work request. The work request
// stays current; one of a shared queue, which cannot be put back, completes in error (IBTA 9.9.3,
// classes D and E). The queue pair stays operational.
func (q *QP) recvTooShort(e *Env) DropReason {
	q.cfg.Counters.RespLocalLength++
	if q.cfg.Recv.Shared() {
		q.completeRecv(e, Completion{Status: ib.WCLocLenErr, Opcode: ib.WCRecv})
	}
	return DropRecvTooShort
}

// recvFailed completes the current receive work request in error and moves the queue pair to the
// error state. The completion reports the error, so no event does (IBTA 11.6.3.2).
func (q *QP) recvFailed(e *Env, s ib.WCStatus, p *RxPacket) {
	q.blameReceive(e, s, p)
	q.completeRecv(e, Completion{Status: s, Opcode: ib.WCRecv})
	q.toError(e)
}

// respondUD handles a datagram. The first 40 bytes of the receive buffer get the GRH, or its IPv4
// equivalent.
func (q *QP) respondUD(e *Env, p *RxPacket, in *packet.Info) {
	if reason, ok := q.placeUD(e, p, in); !ok {
		q.cfg.Counters.Drop(reason)
	}
}

func (q *QP) placeUD(e *Env, p *RxPacket, in *packet.Info) (DropReason, bool) {
	r := &q.resp
	switch {
	case p.DETH.QKey != q.attr.QKey:
		return DropQKey, false
	case p.Len > q.attr.PathMTU:
		return DropInvalid, false
	}
	if reason, ok := q.takeRecvUnreliable(e, p); !ok {
		return reason, false
	}
	if listLength(r.recv.SGEs) < uint64(packet.GRHLen+p.Len) {
		return q.recvTooShort(e), false
	}
	r.into.begin(q.recvPD(), r.recv.SGEs, 0)
	e.piece[0] = p.GRH
	st := r.into.write(e, q.respWriter, e.piece[:], len(p.GRH), false)
	if st == ib.WCSuccess {
		st = r.into.write(e, q.respWriter, p.Payload, p.Len, true)
	}
	e.piece[0] = nil
	if st != ib.WCSuccess {
		q.recvFailed(e, st, p)
		return DropLocalError, false
	}
	q.cfg.Counters.RxSendRequests++
	c := q.recvCompletion(p, in, ib.WCRecv, uint32(packet.GRHLen+p.Len))
	c.Flags |= ib.WCGRH
	c.SL = p.SL
	q.completeRecv(e, c)
	return 0, true
}
