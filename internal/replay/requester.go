package replay

import (
	"fmt"

	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// A requesterModel is the replay of a stream's replies to a requester with the same work.
//
// It goes in lockstep: each captured request, in the order in which they were sent, is one that
// softroce's requester must send next. Where softroce would go on and the captured
// requester went back, or ahead, it is given the replies that the captured one had by then,
// or the time to run into a timeout. Only when nothing brings it to that PSN
// is there a difference.
type requesterModel struct {
	*modelQP
	s          *stream
	v          *Verdict
	requests   []*conversation.Transmission
	floor      []int64 // for each: no request from it on is older, so all before was acknowledged or may be
	next       []int   // for each message: the index of the first READ or atomic from it on
	pending    []*conversation.Transmission
	reply      *conversation.Transmission // being delivered
	current    *conversation.Transmission // the request that is being compared
	unseen     map[int64]sentPacket       // sent by softroce, not by the captured requester: lost before the capture
	unseenLeft int                        // such packets that may still come
	gaveUp     bool                       // softroce's requester is left behind
	strict     bool

	lostReplies map[*conversation.Transmission]bool // if not nil: the replies that the captured requester cannot have had
	live        *ResponderSession                   // what is known of the requester, instead of inferred; may be nil
	observation                                     // of a live requester
}

// spareUnseen bounds the packets that may have been lost before the capture.
const spareUnseen = 1 << 11

// replayRequester fills in the verdict on a stream's requests.
func replayRequester(s *stream, strict bool) error {
	r, err := newRequesterModel(s, strict)
	if err != nil {
		return err
	}
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

func newRequesterModel(s *stream, strict bool) (*requesterModel, error) {
	b, err := newModelQP()
	if err != nil {
		return nil, err
	}
	r := &requesterModel{modelQP: b, s: s, v: &s.report.Requester, pending: s.Replies, unseen: map[int64]sentPacket{}, strict: strict,
		unseenLeft: 2*len(s.Requests) + spareUnseen}
	r.onComplete = r.completed
	return r, nil
}

// run holds each captured request against softroce's.
func (r *requesterModel) run() {
	for i, c := range r.requests {
		r.v.Compared++
		r.current = c
		r.judgeRNRWait(c)
		if m, ok := r.sendUntil(i, c); ok {
			r.judgeGoBack(c)
			r.compare(c, &m)
		} else {
			r.compareRepeat(c)
		}
		if r.live != nil {
			delete(r.unseen, c.Seq)
		}
	}
	r.finish()
}

// plan makes the queue pair, and what lockstep wants to know of the future.
func (r *requesterModel) plan(w *work) (err error) {
	service := packet.RC
	if r.live != nil {
		service = r.live.Service
	}
	r.qp, err = transport.New(transport.Config{QPN: 1, Service: service, PD: r.pd, SendDepth: len(w.wrs), MaxSendSGE: maxPieces})
	if err != nil {
		return err
	}
	if err := r.connect(r.attributes(), service, true); err != nil {
		return err
	}
	if err := r.place(w); err != nil {
		return err
	}
	for _, e := range r.s.Sent {
		if e.Seq >= r.s.FirstSeq {
			r.requests = append(r.requests, e)
		}
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

// progress tells the oldest unacknowledged PSN and the next to send.
func (r *requesterModel) progress() (una, send int64) {
	u, s, _ := r.qp.Progress()
	una = r.s.FirstSeq + int64((u-uint32(r.s.FirstSeq))&packet.PSNMask)
	return una, una + int64((s-u)&packet.PSNMask)
}

// sendUntil brings softroce's requester to send what has the PSN of c, the i-th request, and returns it.
func (r *requesterModel) sendUntil(i int, c *conversation.Transmission) (sentPacket, bool) {
	for !r.gaveUp {
		if r.qp.State() != ib.QPSRTS {
			r.judgeAfterEnd(c)
			r.giveUp(c, "softroce's requester has ended")
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

// giveUp gives up softroce's requester: what c and the requests behind it are is not judged by it.
func (r *requesterModel) giveUp(c *conversation.Transmission, format string, a ...any) {
	if !r.gaveUp {
		r.gaveUp = true
		r.v.NotJudged = append(r.v.NotJudged, Note{c.No, fmt.Sprintf(format, a...) + "; from here on packets are compared with earlier transmissions only"})
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

// advance moves softroce's requester on: replies may let it pass over what was to be sent
// again, or the captured requester has sent a packet that the capture does not have.
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

// missed notes that PSNs from one to before another were lost before the capture.
func (r *requesterModel) missed(c *conversation.Transmission, from, to int64) {
	text := fmt.Sprintf("before it, the request with PSN %s was lost ahead of the point of capture", psnText(from))
	r.v.Lost = append(r.v.Lost, Note{c.No, text})
}

// goBack brings softroce's requester back, as the captured one was to send c: upon a reply that it
// can have had, or else by a timeout. Both go back to the oldest unacknowledged PSN, from where c
// may be some packets on, which were lost ahead of the point of capture.
func (r *requesterModel) goBack(i int, c *conversation.Transmission) {
	if r.deliver(i, c, func(int64, bool) bool { return true }) {
		return
	}
	r.room = 0
	r.qp.Transmit(&r.env) // starts the timer
	deadline := r.qp.NextDeadline()
	if deadline == 0 {
		r.judgeUnneeded(c)
		r.giveUp(c, "softroce's requester has no timeout running")
		return
	}
	r.judgeTimeout(c)
	r.env.Now = max(r.env.Now, deadline)
	r.qp.Expire(&r.env)
	if r.qp.State() != ib.QPSRTS {
		r.giveUp(c, "softroce's requester has used up its retries")
	}
}

// overtaken returns the packet that c is if the network delayed it: one that seemed lost when later
// ones were captured. What comes behind it is new then.
func (r *requesterModel) overtaken(i int, c *conversation.Transmission, send int64) (sentPacket, bool) {
	m, ok := r.unseen[c.Seq]
	if ok = ok && (i+1 == len(r.requests) || r.requests[i+1].Seq >= send); ok {
		delete(r.unseen, c.Seq)
	}
	return m, ok
}

// unblock makes room for a packet that softroce's requester holds back because too much is on its way.
func (r *requesterModel) unblock(i int, c *conversation.Transmission) {
	if r.deliver(i, c, func(_ int64, back bool) bool { return !back }) {
		return
	}
	una, send := r.progress()
	if to := min(r.floor[i], send); to > una {
		// What will not be sent again may as well be acknowledged.
		before := una
		h := packet.Header{BTH: packet.BTH{Opcode: packet.Acknowledge, PSN: uint32(to-1) & packet.PSNMask},
			AETH: packet.AETH{Syndrome: packet.CreditsUnlimited}}
		r.receive(h, nil)
		if una, _ := r.progress(); una > before {
			return
		}
	}
	r.giveUp(c, "more is on its way than softroce sends without an answer")
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
