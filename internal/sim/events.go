package sim

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
)

// AsyncEvent implements nic.EventSink. Completions that can be polled now precede the event.
func (p *program) AsyncEvent(e nic.Event) {
	switch e.Type {
	case ib.EventCQErr:
		p.overflow = true
	case ib.EventSQDrained:
		p.polled = append(p.polled, p.cq.PollAll()...)
		p.drained[e.QP.QPN()] = true
	case ib.EventQPLastWQEReached:
		p.polled = append(p.polled, p.cq.PollAll()...)
		p.lastWQE[e.QP.QPN()] = true
	}
}

// Killed implements nic.EventSink.
func (p *program) Killed(reason error) { p.killed = reason }

// poll returns the next completion. It checks that no event announced that there would be none.
func (p *program) poll() (c nictest.WC, ok bool, err error) {
	if len(p.polled) > 0 {
		c, p.polled = p.polled[0], p.polled[1:]
		return c, true, nil
	}
	if c, ok = p.cq.Poll(); !ok {
		return c, false, nil
	}
	switch {
	case c.WRID < recvID && c.Status == ib.WCSuccess && p.drained[c.QPN]:
		err = fmt.Errorf("invariant 12: send %d of QP %#x completed after SQ_DRAINED", c.WRID, c.QPN)
	case c.WRID >= recvID && p.lastWQE[c.QPN]:
		err = fmt.Errorf("invariant 12: receive %d of QP %#x completed after LAST_WQE_REACHED", c.WRID-recvID, c.QPN)
	}
	return c, true, err
}

// forgetEvents discards what events have announced, because the queue pair was reset.
func (q *queue) forgetEvents() {
	delete(q.drained, q.QPN())
	delete(q.lastWQE, q.QPN())
	if q.tgt != nil {
		delete(q.drained, q.tgt.QPN())
		delete(q.lastWQE, q.tgt.QPN())
	}
}
