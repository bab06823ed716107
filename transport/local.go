package transport

import (
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// Local operations bind memory windows and invalidate them. They stand in the send queue like
// messages, are carried out when their turn to be sent has come, and complete in order; but they
// take no PSN, and are never sent again.

// isLocal reports whether an operation is one of these, on a service that has them.
func (q *QP) isLocal(o ib.WROpcode) bool {
	return (o == ib.WRBindMW || o == ib.WRLocalInv) && q.cfg.Service != packet.UD
}

// runLocal carries out w, unless that was done and the queue pair has only gone back behind it. It
// returns false where w must wait, or is wrong.
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

// fenced reports whether w waits for others. A fence holds back what was posted behind READs and
// atomics (C10-79), and an invalidation until everything before it is complete: a peer may
// still be using the key.
func (q *QP) fenced(w *wqe) bool {
	if w.Flags&ib.SendFence == 0 {
		return false
	}
	return q.req.reads > 0 || w.Opcode == ib.WRLocalInv && w != q.sq.head()
}

// retireLocal completes the local operations that nothing before them holds up any more.
func (q *QP) completeLocal(e *Env) {
	for !q.sq.empty() {
		w := q.sq.head()
		if !w.local || !w.started {
			return
		}
		q.completeWR(e, w, ib.WCSuccess)
	}
}
