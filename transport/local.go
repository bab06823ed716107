package transport

import (
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// Local operations bind and invalidate memory windows. They occupy a place in the send queue,
// execute when the requester reaches it, and complete in order. They use no PSN and are never
// retransmitted.

// isLocal reports whether o is a local operation that the service supports.
func (q *QP) isLocal(o ib.WROpcode) bool {
	return (o == ib.WRBindMW || o == ib.WRLocalInv && !q.cfg.NoInvalidate) && q.cfg.Service != packet.UD
}

// runLocal executes w, unless it was executed before a retransmission. It returns false if w must
// wait or has failed.
func (q *QP) runLocal(e *Env, w *wqe) bool {
	r := &q.req
	if !w.started {
		if w.status != ib.WCSuccess || q.state == ib.QPSSQD || q.fenced(w) {
			return false
		}
		if err := q.executeLocal(e, w); err != nil {
			w.status = ib.WCMWBindErr // "memory management operation error" (IBTA 11.6.2)
			return false
		}
		w.first, w.started = r.next, true
	}
	r.cur, r.pkt = r.cur+1, 0
	q.completeLocal(e)
	return true
}

func (q *QP) executeLocal(e *Env, w *wqe) error {
	if w.Opcode == ib.WRLocalInv {
		return e.Table.Invalidate(q.cfg.PD, q.cfg.QPN, w.Imm)
	}
	b := &w.Bind
	return e.Table.Bind(mrtable.Binding{PD: q.cfg.PD, QPN: q.cfg.QPN, RKey: w.RKey, LKey: b.LKey,
		Addr: b.Addr, Length: b.Length, Access: b.Access})
}

// fenced reports whether w must wait for earlier work requests. A fence waits for READs and atomics
// (C10-79). A fenced invalidation waits until everything before it is complete, since a peer may
// still use the key.
func (q *QP) fenced(w *wqe) bool {
	if w.Flags&ib.SendFence == 0 {
		return false
	}
	return q.req.reads > 0 || w.Opcode == ib.WRLocalInv && w != q.sq.head()
}

// completeLocal completes the executed local operations at the head of the send queue.
func (q *QP) completeLocal(e *Env) {
	for !q.sq.empty() {
		w := q.sq.head()
		if !w.local || !w.started {
			return
		}
		q.completeWR(e, w, ib.WCSuccess)
	}
}
