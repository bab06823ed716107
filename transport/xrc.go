package transport

import (
	"softroce/mrtable"
	"softroce/packet"
)

// XRC (annex A14) splits RC in two: an initiator has no receive queue, and a target takes receive
// work requests from the shared receive queue that the XRCETH of each request names. Requests
// access memory in the protection domain of that queue.

// A target is the shared receive queue that the current request of an XRC target names.
type target struct {
	number uint32
	queue  RecvQueue // nil: no XRC target, or no request received yet
	pd     *mrtable.PD
}

// findSRQ looks up the shared receive queue that an XRC request names. It must be in the target's
// XRC domain, and all packets of a message must name the same one.
func (q *QP) findSRQ(p *RxPacket) bool {
	if q.cfg.Role != Target {
		return true
	}
	t := &q.resp.target
	if q.resp.message != packet.KindNone && p.XRCSRQ != t.number {
		return false
	}
	queue, pd := q.cfg.Domain.Queue(p.XRCSRQ)
	if queue == nil {
		return false
	}
	*t = target{p.XRCSRQ, queue, pd}
	return true
}

// recvPD returns the protection domain of the receive work requests: that of the queue they were
// posted to.
func (q *QP) recvPD() *mrtable.PD {
	if q.cfg.RecvPD != nil {
		return q.cfg.RecvPD
	}
	return q.pd()
}

// pd returns the protection domain in which requests access memory.
func (q *QP) pd() *mrtable.PD {
	if q.cfg.Role == Target {
		return q.resp.target.pd
	}
	return q.cfg.PD
}

// recvQueue returns the queue that supplies the receive work request of the current request.
func (q *QP) recvQueue() RecvQueue {
	if q.cfg.Role == Target {
		return q.resp.target.queue
	}
	return q.cfg.Recv
}

// Receiving returns the shared receive queue whose work request the message in progress has taken,
// or nil. Only XRC targets have one.
func (q *QP) Receiving() RecvQueue {
	if q.resp.hasRecv {
		return q.resp.target.queue
	}
	return nil
}
