package transport

import "softroce/internal/ib"

// Recovery is what brings back packets that were lost: go-back-N upon a NAK, a gap or the
// local ACK timeout (IBTA 9.7.6, 9.7.8).
type recovery struct {
	deadline   int64  // of the local ACK timeout; 0: not running
	timeouts   uint8  // how often in a row that has passed without an answer
	window     uint64 // of SEND and WRITE packets: ackInterval after a timeout, up to sendWindow
	rnrUntil   int64  // until when the responder asked for quiet; 0: not waiting
	retries    uint8  // left
	rnrRetries uint8  // left

	wentBack   bool   // upon a NAK or a gap, and nothing came since:
	wentBackTo uint64 // another one for this PSN is the echo of the first
}

// foreverRNR is the RNR retry count that never runs out (IBTA 9.7.5.2.8).
const infiniteRNRRetry = 7

// waiting reports whether an RNR NAK holds the requester back; it ends the wait when
// its time has come.
func (r *recovery) rnrWaiting(now int64) bool {
	if r.rnrUntil == 0 {
		return false
	}
	if now < r.rnrUntil {
		return true
	}
	r.rnrUntil = 0
	return false
}

// armTimer starts the local ACK timeout if something is outstanding and it does not run.
func (q *QP) armTimer(now int64) {
	r := &q.req
	if r.send == r.una {
		if r.rnrUntil == 0 && r.una == r.next {
			r.deadline = 0
		}
		return
	}
	if r.deadline == 0 && r.rnrUntil == 0 && q.attr.Timeout != 0 {
		r.deadline = now + ib.ACKTimeout(q.attr.Timeout)<<r.timeouts
	}
}

// progress notes that una has moved: the counters start anew, and so does the timer.
func (q *QP) resetRecovery(now int64) {
	r := &q.req
	r.retries, r.rnrRetries = q.attr.RetryCount, q.attr.RNRRetry
	r.wentBack = false
	r.deadline, r.timeouts = 0, 0
	r.window = min(2*r.window, sendWindow)
	q.armTimer(now)
}

// goBack makes to the next PSN to emit. It lies in a started work request, or behind the last.
func (q *QP) goBack(to uint64) {
	r := &q.req
	r.send, r.sinceAck = to, 0
	for i := q.sq.headIndex; i != q.sq.tailIndex; i++ {
		w := q.sq.at(i)
		if !w.started || to < w.first {
			r.cur, r.pkt = i, 0
			return
		}
		if to < w.end() {
			r.cur, r.pkt = i, uint32(to-w.first)
			return
		}
	}
	r.cur, r.pkt = q.sq.tailIndex, 0
}

// resend goes back to una because of a NAK or a gap in responses. It returns false if it has
// done so before and nothing came since: then the timeout decides.
func (q *QP) resend(e *Env) bool {
	r := &q.req
	if r.wentBack && r.wentBackTo == r.una {
		return false
	}
	if !q.useRetry(e) {
		return true
	}
	r.wentBack, r.wentBackTo = true, r.una
	r.deadline = 0
	q.goBack(r.una)
	return true
}

// spendRetry takes one from the retry count; where none is left the oldest work request fails.
func (q *QP) useRetry(e *Env) bool {
	r := &q.req
	if r.retries == 0 {
		q.cfg.Counters.RetryExceeded++
		q.failHead(e, ib.WCRetryExcErr)
		return false
	}
	r.retries--
	return true
}

// failHead completes the oldest work request in error, and flushes the rest.
func (q *QP) failHead(e *Env, s ib.WCStatus) {
	if !q.sq.empty() {
		q.completeWR(e, q.sq.head(), s)
	}
	q.resp.discardReplies()
	q.toError(e)
}

// receiverNotReady handles an RNR NAK with a timer code for the PSN una.
func (q *QP) handleRNR(e *Env, wait int64) {
	r := &q.req
	q.cfg.Counters.RNRReceived++
	if r.rnrRetries == 0 {
		q.cfg.Counters.RNRRetryExceeded++
		q.failHead(e, ib.WCRNRRetryExcErr)
		return
	}
	if r.rnrRetries != infiniteRNRRetry {
		r.rnrRetries--
	}
	r.retries = q.attr.RetryCount // the responder answers: no transport retry is under way
	r.deadline, r.timeouts = 0, 0
	r.wentBack = false
	r.rnrUntil = e.Now + wait
	q.goBack(r.una)
}

// Expire does what is due at e.Now. Transmit comes after it.
func (q *QP) Expire(e *Env) {
	r := &q.req
	if r.deadline == 0 || e.Now < r.deadline {
		return
	}
	r.deadline = 0
	if q.state != ib.QPSRTS && q.state != ib.QPSSQD || r.una == r.next {
		return
	}
	q.cfg.Counters.LocalACKTimeout++
	r.timeouts = min(r.timeouts+1, maxBackoff)
	if !q.useRetry(e) {
		return
	}
	r.wentBack = false
	// A peer that has not answered may still be busy with what was sent, or a queue on the way is full.
	r.window = ackInterval
	q.goBack(r.una)
}
