package transport

import (
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport/congestion"
)

// recovery is the requester's state for retransmission: go-back-N after a NAK, a gap in the
// responses or a local ACK timeout (IBTA 9.7.6, 9.7.8).
type recovery struct {
	// In one cache line: see PrefetchDeadline.
	deadline int64 // when the local ACK timeout expires; 0: stopped
	rnrUntil int64 // end of the wait after an RNR NAK; 0: not waiting

	began      int64  // when the local ACK timeout began; 0: it does not run
	timeouts   uint8  // consecutive timeouts
	shorten    uint32 // random: part of half of a doubled timeout by which it is shorter, in 2^-32
	answered   uint32 // tailIndex of the send queue when the peer last replied
	retries    uint8  // transport retries left
	rnrRetries uint8  // RNR retries left

	window    congestion.Window // of unacknowledged SEND and WRITE packets
	roundTrip congestion.RoundTrip
	direct    bool // no READ or atomic was outstanding when the request that is timed was sent

	nak   packet.Syndrome // the last NAK of the peer, or 0,
	nakAt uint64          // and una at that time

	wentBack   bool   // retransmitted after a NAK or gap, and nothing was acknowledged since;
	wentBackTo uint64 // another NAK for this PSN has the same cause and is ignored
	recovered  bool   // something was acknowledged after such a retransmission
	early      bool   // deadline is before the local ACK timeout: see armTimer
	repeats    uint8  // early deadlines that have passed since something was acknowledged
}

// infiniteRNRRetry is the RNR retry count that means no limit (IBTA 9.7.5.2.8).
const infiniteRNRRetry = 7

// rnrWaiting reports whether the requester waits after an RNR NAK, and ends the wait when it is
// over.
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

// stopTimer ends the local ACK timeout. The next one begins when armTimer is called.
func (r *recovery) stopTimer() { r.deadline, r.began = 0, 0 }

// armTimer starts the local ACK timeout if PSNs are outstanding and it is not running. Each timeout
// without a reply in between has doubled it, up to maxBackoff times, if the peer has replied since
// the oldest work request was posted. A peer that never did is given up after retry_cnt + 1 times
// the timeout.
//
// A doubled timeout is shorter by a random part of up to half of it. Senders whose packets were
// lost to the same full queue have timeouts that begin together. With equal ones their bursts would
// meet there again, in the same order, and those of the last senders would be lost each time.
//
// A NAK may be lost, or a retransmission: the responder sends no second NAK, and the requester
// ignores further gaps. So once it has recovered from a loss, and as long as the window is small
// because of losses, the requester first retransmits early, after times that double and that begin
// with one that few replies exceed (adaptive retransmission). This uses no retries, and does not
// delay the local ACK timeout.
func (q *QP) armTimer(now int64) {
	r := &q.req
	if r.send == r.una {
		if r.rnrUntil == 0 && r.una == r.next {
			r.stopTimer()
		}
		return
	}
	if r.deadline != 0 || r.rnrUntil != 0 || q.attr.Timeout == 0 {
		return
	}
	wait := ib.ACKTimeout(max(q.attr.Timeout, minTimeout))
	if int32(r.answered-q.sq.headIndex) > 0 {
		wait <<= r.timeouts
		if r.timeouts > 0 {
			wait -= int64(r.shorten) * (wait >> 1 >> 16) >> 16
		}
	}
	if r.began == 0 {
		r.began = now
	}
	r.deadline = max(r.began+wait, now+minRecovery)
	soon := max(r.roundTrip.Limit(), minRecovery) << r.repeats
	if r.early = r.window.Reduced() && r.recovered && r.timeouts == 0 && soon <= (r.deadline-now)/2; r.early {
		r.deadline = now + soon
	}
}

// timeRequest times the reply to a request, if none is timed. Replies wait for the responses to
// earlier READs, so that a round trip behind them does not show how long queues in the network are.
func (r *requester) timeRequest(psn uint64, now int64) {
	if r.roundTrip.Sent(psn, now) {
		r.direct = r.reads == 0
	}
}

// resetRecovery restores the retry counters and restarts the timer after una advanced by n.
func (q *QP) resetRecovery(now int64, n uint64) {
	r := &q.req
	r.retries, r.rnrRetries = q.attr.RetryCount, q.attr.RNRRetry
	if d := r.roundTrip.Acknowledged(r.una, now); d != 0 && r.direct && q.controller != nil {
		q.controller.Replied(now, d)
		q.limitWindow()
	}
	r.recovered = r.recovered || r.wentBack
	r.wentBack, r.repeats = false, 0
	r.window.Acknowledged(n, r.roundTrip.Queued())
	r.stopTimer()
	r.timeouts = 0
	q.armTimer(now)
}

// goBack makes to the next PSN to emit. It lies in a started work request or after the last one.
func (q *QP) goBack(to uint64) {
	r := &q.req
	r.send, r.sinceAck = to, 0
	r.roundTrip.WentBack()
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

// resend retransmits from una after a NAK or a gap. It returns false, and leaves recovery to the
// timer, if it did so before and nothing was acknowledged since.
func (q *QP) resend(e *Env) bool {
	r := &q.req
	if r.wentBack && r.wentBackTo == r.una {
		return false
	}
	if !q.useRetry(e) {
		return true
	}
	r.wentBack, r.wentBackTo = true, r.una
	r.window.Lost(r.send - r.una)
	q.reportLoss(e.Now)
	r.stopTimer()
	q.goBack(r.una)
	r.timeRequest(r.una, e.Now)
	return true
}

// useRetry consumes one transport retry. If none is left, it fails the oldest work request and
// returns false.
func (q *QP) useRetry(e *Env) bool {
	r := &q.req
	if r.retries == 0 {
		q.cfg.Counters.RetryExceeded++
		q.blameHead(e, Failure{Reason: ReasonRetryExceeded, Status: ib.WCRetryExcErr, Limit: q.attr.RetryCount,
			Timeouts: r.timeouts, Silent: q.silent(), Syndrome: r.lastNAK()})
		q.failHead(e, ib.WCRetryExcErr)
		return false
	}
	r.retries--
	q.cfg.Counters.Retries++
	return true
}

// SetController sets what limits the queue pair because of congestion, nil for nothing.
func (q *QP) SetController(c congestion.Controller) {
	q.controller = c
	q.limitWindow()
}

// limitWindow limits the window to that of the controller.
func (q *QP) limitWindow() {
	n := uint64(sendWindow)
	if q.controller != nil {
		n = q.controller.Window(q.attr.PathMTU)
	}
	q.req.window.Limit(n)
}

// reportLoss reports a loss or a timeout to the controller.
func (q *QP) reportLoss(now int64) {
	if q.controller != nil {
		q.controller.Lost(now)
		q.limitWindow()
	}
}

// failHead completes the oldest work request in error and flushes the rest.
func (q *QP) failHead(e *Env, s ib.WCStatus) {
	if !q.sq.empty() {
		q.completeWR(e, q.sq.head(), s)
	}
	q.resp.discardReplies()
	q.toError(e)
}

// handleRNR handles an RNR NAK for PSN una; wait is its timer in nanoseconds.
func (q *QP) handleRNR(e *Env, wait int64) {
	r := &q.req
	q.cfg.Counters.RNRReceived++
	q.counters.RNRNAKsReceived++
	if r.rnrRetries == 0 {
		q.cfg.Counters.RNRRetryExceeded++
		q.blameHead(e, Failure{Reason: ReasonRNRExceeded, Status: ib.WCRNRRetryExcErr, Limit: q.attr.RNRRetry, Syndrome: r.nak})
		q.failHead(e, ib.WCRNRRetryExcErr)
		return
	}
	if r.rnrRetries != infiniteRNRRetry {
		r.rnrRetries--
	}
	r.retries = q.attr.RetryCount // the responder is alive, so its RNR NAK ends the transport retries
	r.stopTimer()
	r.timeouts, r.repeats = 0, 0
	r.wentBack = false
	r.rnrUntil = e.Now + wait
	q.goBack(r.una)
}

// Expire handles a local ACK timeout that is due at e.Now, or an early deadline (see armTimer). The
// caller calls Transmit afterwards.
func (q *QP) Expire(e *Env) {
	r := &q.req
	if r.deadline == 0 || e.Now < r.deadline {
		return
	}
	q.discardReads()
	r.deadline = 0
	if q.state != ib.QPSRTS && q.state != ib.QPSSQD || r.una == r.next {
		r.stopTimer()
		return
	}
	if r.early {
		q.cfg.Counters.AdaptiveRetransmissions++
		r.wentBack, r.wentBackTo = true, r.una
		r.repeats++
		r.window.TimedOut(r.send - r.una)
		q.reportLoss(e.Now)
		q.goBack(r.una)
		r.roundTrip.Repeated(r.next)
		return
	}
	r.began = 0
	q.cfg.Counters.LocalACKTimeout++
	q.counters.Timeouts++
	r.timeouts = min(r.timeouts+1, maxBackoff)
	if e.Rand != nil {
		r.shorten = e.Rand.Uint32()
	}
	if !q.useRetry(e) {
		return
	}
	r.wentBack = false
	r.window.TimedOut(r.send - r.una)
	q.reportLoss(e.Now)
	q.goBack(r.una)
}
