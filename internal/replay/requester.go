package replay

import (
	"fmt"

	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// A requesterModel is softroce's requester with the work requests of the captured one. It is given
// the captured replies.
//
// It runs in lockstep: each captured request, in the order in which they were sent, has to be the
// next one that softroce's requester sends. Where the captured requester went back or is ahead,
// softroce's is given the replies that the captured one may have had by then, or the time to run
// into a timeout. There is a difference only if nothing brings it to that PSN.
//
// What it knows of the captured requester beyond the packets is up to its mode.
type requesterModel struct {
	*modelQP
	s          *stream
	v          *Verdict
	requests   []*conversation.Transmission
	floor      []int64 // for each request: the lowest PSN from it on, so that all before was or may be acknowledged
	next       []int   // for each message: the index of the first one from it on with a response of its own
	pending    []*conversation.Transmission
	reply      *conversation.Transmission // being delivered
	current    *conversation.Transmission // the request that is being compared
	unseen     map[int64]sentPacket       // sent by softroce's requester only: lost before the point of capture
	unseenLeft int                        // how many more packets may be unseen
	gaveUp     bool                       // softroce's requester is no longer compared
	strict     bool
	mode       requesterMode
}

// A requesterMode provides what packets do not show:
//
//   - capturedRequester: inferred from the capture, for a verdict on it;
//   - *lossCollector: inferred from the capture; collects the replies that were lost;
//   - *liveRequester: known from the session with a live requester, whose timing it judges.
type requesterMode interface {
	// service returns the transport service of the queue pair, and attributes sets its attributes
	// that the capture does not show.
	service() packet.Service
	attributes(a *ib.QPAttr)

	// placeResults sets the scatter/gather lists of work requests whose results are compared.
	placeResults(w *work) error

	// compared is called after a request was compared with softroce's; delivered after softroce's
	// requester, which was at una and send before, was given a reply; skipped when a reply is not
	// delivered; completed with each completion.
	compared(c *conversation.Transmission)
	delivered(e *conversation.Transmission, una, send int64)
	skipped(e *conversation.Transmission)
	completed(c *transport.Completion)

	// mayCross reports whether a reply that acknowledges what is retransmitted may have crossed the
	// retransmission. It remains pending then.
	mayCross(e *conversation.Transmission) bool

	// ignoresNAK reports and records that the requester, which sends c, did not follow the sequence
	// NAK e.
	ignoresNAK(e, c *conversation.Transmission) bool

	// waitsForRNR reports whether a NAK has no effect, because it arrives while the requester waits
	// for an RNR timer.
	waitsForRNR(e *conversation.Transmission) bool

	// hasGoneBack reports whether softroce's requester went back and nothing was acknowledged
	// since.
	hasGoneBack() bool

	// These judge what the requester did before it sent c, by its timing.
	judgeRNRWait(c *conversation.Transmission)
	judgeGoBack(c *conversation.Transmission)
	judgeTimeout(c *conversation.Transmission)
	judgeUnneeded(c *conversation.Transmission)
	judgeAfterEnd(c *conversation.Transmission)
}

// spareUnseen bounds the packets that may have been lost before the point of capture, besides two
// for each captured request.
const spareUnseen = 1 << 11

// replayRequester fills in the verdict on a stream's requests.
func replayRequester(s *stream, strict bool) error {
	r, err := newRequesterModel(s, strict)
	if err != nil {
		return err
	}
	r.mode = capturedRequester{r}
	for _, m := range s.Messages {
		if m.Broken != nil {
			r.v.differ(m.Broken, "opcode", m.Broken.Opcode.String(), m.Expected)
		}
	}
	if err := r.plan(rebuild(s)); err != nil {
		return err
	}
	r.run()
	return nil
}

// newRequesterModel returns a model without a queue pair and without a mode.
func newRequesterModel(s *stream, strict bool) (*requesterModel, error) {
	b, err := newModelQP()
	if err != nil {
		return nil, err
	}
	r := &requesterModel{modelQP: b, s: s, v: &s.report.Requester, pending: s.Replies, unseen: map[int64]sentPacket{}, strict: strict,
		unseenLeft: 2*len(s.Requests) + spareUnseen}
	r.onComplete = func(c *transport.Completion) { r.mode.completed(c) }
	return r, nil
}

// run compares each captured request with softroce's.
func (r *requesterModel) run() {
	for i, c := range r.requests {
		r.v.Compared++
		r.current = c
		r.mode.judgeRNRWait(c)
		if m, ok := r.sendUntil(i, c); ok {
			r.mode.judgeGoBack(c)
			r.compare(c, &m)
		} else {
			r.compareRepeat(c)
		}
		r.mode.compared(c)
	}
	r.finish()
}

// plan creates the queue pair, and looks ahead in the captured requests.
func (r *requesterModel) plan(w *work) (err error) {
	service := r.mode.service()
	r.qp, err = transport.New(transport.Config{QPN: 1, Service: service, PD: r.pd, SendDepth: len(w.wrs), MaxSendSGE: maxPieces})
	if err != nil {
		return err
	}
	const someTimeout = 14
	a := ib.QPAttr{PathMTU: r.s.PathMTU, SQPSN: uint32(r.s.FirstSeq) & packet.PSNMask, DestQPN: r.s.report.To.QPN,
		MaxRDAtomic: transport.MaxRDAtomic, Timeout: someTimeout, RetryCount: 7, RNRRetry: 7}
	r.mode.attributes(&a)
	if err := r.connect(a, service, true); err != nil {
		return err
	}
	if err := r.mode.placeResults(w); err != nil {
		return err
	}
	var skipped []*conversation.Transmission
	for _, e := range r.s.Sent {
		if e.Seq >= r.s.FirstSeq {
			r.requests = append(r.requests, e)
		} else {
			skipped = append(skipped, e)
		}
	}
	if len(skipped) > 0 {
		r.v.NotJudged = append(r.v.NotJudged, Note{skipped[0].No, fmt.Sprintf("%s, of which this is the first, may repeat what was sent before the capture",
			Count(len(skipped), "request"))})
	}
	r.floor = make([]int64, len(r.requests))
	for i := len(r.requests) - 1; i >= 0; i-- {
		r.floor[i] = r.requests[i].Seq
		if i+1 < len(r.requests) {
			r.floor[i] = min(r.floor[i], r.floor[i+1])
		}
	}
	r.next = make([]int, len(r.s.Messages)+1)
	r.next[len(r.s.Messages)] = len(r.s.Messages)
	for i := len(r.s.Messages) - 1; i >= 0; i-- {
		r.next[i] = r.next[i+1]
		if r.s.Messages[i].Kind.HasOwnResponse() {
			r.next[i] = i
		}
	}
	return w.post(r.modelQP)
}

// progress returns the oldest unacknowledged PSN and the next to send.
func (r *requesterModel) progress() (una, send int64) {
	u, s, _ := r.qp.Progress()
	una = r.s.FirstSeq + int64((u-uint32(r.s.FirstSeq))&packet.PSNMask)
	return una, una + int64((s-u)&packet.PSNMask)
}

// sendUntil makes softroce's requester send the packet with the PSN of c, the i-th request, and
// returns it.
func (r *requesterModel) sendUntil(i int, c *conversation.Transmission) (sentPacket, bool) {
	for !r.gaveUp {
		if r.qp.State() != ib.QPSRTS {
			r.mode.judgeAfterEnd(c)
			r.giveUp(c, "softroce's requester is in the error state")
			break
		}
		_, send := r.progress()
		switch {
		case send == c.Seq:
			if m, ok := r.emit(); ok {
				return m, true
			}
			r.unblock(i, c)
		case send < c.Seq:
			r.advance(i, c, send)
		default:
			if m, ok := r.overtaken(i, c, send); ok {
				return m, true
			}
			r.goBack(i, c)
		}
	}
	return sentPacket{}, false
}

// giveUp stops comparing with softroce's requester: c and later requests are compared with earlier
// transmissions.
func (r *requesterModel) giveUp(c *conversation.Transmission, format string, a ...any) {
	if !r.gaveUp {
		r.gaveUp = true
		r.v.NotJudged = append(r.v.NotJudged, Note{c.No, fmt.Sprintf(format, a...) + "; later packets are compared with earlier transmissions only"})
	}
}

// emit lets softroce's requester send one packet, if it can.
func (r *requesterModel) emit() (sentPacket, bool) {
	r.room = 1
	r.qp.Transmit(&r.env)
	r.room = 0
	out := r.take()
	r.env.Mem.Epoch()
	if len(out) == 0 {
		return sentPacket{}, false
	}
	return out[0], true
}

// advance brings softroce's requester to a higher PSN: with a reply that acknowledges what it would
// send, or by sending a packet that the capture does not have.
func (r *requesterModel) advance(i int, c *conversation.Transmission, send int64) {
	if r.deliver(i, c, func(una int64, back bool) bool { return !back || una >= send && una <= c.Seq }) {
		return
	}
	if r.unseenLeft == 0 {
		r.giveUp(c, "too much is missing in the capture")
		return
	}
	m, ok := r.emit()
	if !ok {
		r.unblock(i, c)
		return
	}
	r.unseenLeft--
	r.unseen[send] = m
	_, after := r.progress()
	if m := r.s.MessageAt(send); m != nil && m.Kind != packet.KindNone {
		r.missed(c, send, after)
	}
}

// missed notes that the requests from one PSN to before another were lost before the point of
// capture.
func (r *requesterModel) missed(c *conversation.Transmission, from, to int64) {
	text := fmt.Sprintf("the request before it, with PSN %s, was lost before the point of capture", psnText(from))
	r.v.Lost = append(r.v.Lost, Note{c.No, text})
}

// goBack makes softroce's requester go back, as the captured one did to send c: with a reply that
// it may have had, or else by a timeout. Both go back to the oldest unacknowledged PSN. Packets
// between it and c were lost before the point of capture.
func (r *requesterModel) goBack(i int, c *conversation.Transmission) {
	if r.deliver(i, c, func(int64, bool) bool { return true }) {
		return
	}
	r.room = 0
	r.qp.Transmit(&r.env) // starts the timer
	deadline := r.qp.NextDeadline()
	if deadline == 0 {
		r.mode.judgeUnneeded(c)
		r.giveUp(c, "softroce's requester has no timeout running")
		return
	}
	r.mode.judgeTimeout(c)
	r.env.Now = max(r.env.Now, deadline)
	r.qp.Expire(&r.env)
	if r.qp.State() != ib.QPSRTS {
		r.giveUp(c, "softroce's requester has used up its retries")
	}
}

// overtaken returns the packet that c is if the network delayed it: one that seemed lost when later
// ones were captured. The next request is new in that case.
func (r *requesterModel) overtaken(i int, c *conversation.Transmission, send int64) (sentPacket, bool) {
	m, ok := r.unseen[c.Seq]
	if ok = ok && (i+1 == len(r.requests) || r.requests[i+1].Seq >= send); ok {
		delete(r.unseen, c.Seq)
	}
	return m, ok
}

// unblock acknowledges requests where softroce's requester does not send because too many are
// outstanding.
func (r *requesterModel) unblock(i int, c *conversation.Transmission) {
	if r.deliver(i, c, func(_ int64, back bool) bool { return !back }) {
		return
	}
	una, send := r.progress()
	if to := min(r.floor[i], send); to > una {
		// Requests that are not retransmitted may be acknowledged.
		before := una
		h := packet.Header{BTH: packet.BTH{Opcode: packet.Acknowledge, PSN: uint32(to-1) & packet.PSNMask},
			AETH: packet.AETH{Syndrome: packet.CreditsUnlimited}}
		r.receive(h, nil)
		if una, _ := r.progress(); una > before {
			return
		}
	}
	r.giveUp(c, "more requests are outstanding than softroce sends without an acknowledgement")
}

// finish delivers the rest of the replies.
func (r *requesterModel) finish() {
	for _, e := range r.pending {
		if r.gaveUp || r.qp.State() != ib.QPSRTS {
			return
		}
		r.deliverReply(e)
	}
}
