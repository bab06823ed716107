package transport

import (
	"softroce/mrtable"
	"softroce/packet"
)

// XRC (annex A14) is RC with the two ends apart: an initiator has no receive queue, and a target takes its
// receive work requests from the shared receive queue that each request names in its XRCETH. That
// queue's protection domain is the one in which the request reaches memory.

// A target is what the requests of an XRC target go to.
type target struct {
	number uint32
	queue  RecvQueue // nil: not XRC, or no request came yet
	pd     *mrtable.PD
}

// finds looks up the shared receive queue that a request of XRC names. All packets of a message name the
// same; it must be one of the target's domain.
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

// pd is the protection domain in which the queue pair reaches memory.
func (q *QP) pd() *mrtable.PD {
	if q.cfg.Role == Target {
		return q.resp.target.pd
	}
	return q.cfg.PD
}

// recvQueue is where the request at hand takes its receive work request from.
func (q *QP) recvQueue() RecvQueue {
	if q.cfg.Role == Target {
		return q.resp.target.queue
	}
	return q.cfg.Recv
}

// Receiving returns the shared receive queue from which a message that is under way has taken
// its work request: XRC targets, else nil.
func (q *QP) Receiving() RecvQueue {
	if q.resp.hasRecv {
		return q.resp.target.queue
	}
	return nil
}
