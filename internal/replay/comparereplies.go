package replay

import (
	"fmt"
	"sort"

	"softroce/internal/conversation"
	"softroce/packet"
)

// A replyKey finds softroce's replies of one kind to one PSN. ACKs are compared by it in strict
// mode only.
type replyKey struct {
	psn   int64
	kind  packet.Kind
	class ackClass
}

// An ackClass is the class of an ACKNOWLEDGE's syndrome.
type ackClass uint8

const (
	notACK ackClass = iota // not an ACKNOWLEDGE
	ackPositive
	ackRNR // RNR NAK
	ackSequence
	ackFatal
)

func keyOf(psn int64, k packet.Kind, s packet.Syndrome) replyKey {
	class := ackFatal
	switch {
	case k != packet.KindAck:
		class = notACK
	case s.IsACK():
		class = ackPositive
	case isRNR(s):
		class = ackRNR
	case isSequence(s):
		class = ackSequence
	}
	return replyKey{psn, k, class}
}

// compare compares each captured reply with softroce's.
func (r *responderModel) compare(strict bool) {
	for _, e := range r.s.Requests {
		r.sentUpTo = max(r.sentUpTo, e.End())
	}
	ours := map[replyKey][]*output{}
	for _, o := range r.outputs {
		k := keyOf(o.psn, o.Opcode.Info().Kind, o.AETH.Syndrome)
		ours[k] = append(ours[k], o)
		r.given[o.psn] = append(r.given[o.psn], o)
	}
	for _, a := range r.s.RepliesSent {
		if k := a.Info.Kind; k == packet.KindReadResponse || k == packet.KindAtomicAck {
			r.responsesAt[a.Seq] = append(r.responsesAt[a.Seq], a)
		}
	}
	var before *conversation.Transmission
	odd := r.s.oddACK()
	for _, a := range r.s.RepliesSent {
		if a.SentBefore > r.cutoff {
			break
		}
		if r.beforeCapture(a) {
			r.note(a, "it answers a request from before the capture")
			continue
		}
		r.v.Compared++
		k := keyOf(a.Seq, a.Info.Kind, a.AETH.Syndrome)
		switch {
		case a == odd:
			r.v.differUnlessCopied(a, a.No, "it acknowledges a packet without AckReq: a packet without AckReq was duplicated", "PSN", psnText(a.Seq)+", without AckReq", "that of a packet with AckReq")
		case k.class == ackPositive && !strict:
			r.compareACK(a, before)
		default:
			for len(ours[k]) > 0 && ours[k][0].used {
				ours[k] = ours[k][1:]
			}
			r.compareReply(a, take(ours[k], a, r.inferred.responseOf[a]), strict)
		}
		before = a
	}
	for _, o := range r.outputs {
		if !o.used && o.at <= r.cutoff {
			r.missing(o, strict)
		}
	}
}

// beforeCapture reports whether a reply answers a request from before the capture.
func (r *responderModel) beforeCapture(a *conversation.Transmission) bool {
	ack := a.Info.Kind == packet.KindAck && a.AETH.Syndrome.IsACK()
	if r.v.Compared > 0 {
		return false
	}
	if m := r.s.MessageAt(a.Seq); m != nil && a.Info.Kind == packet.KindAck && isRNR(a.AETH.Syndrome) && len(m.Packets) > 0 && m.Packets[0].Index > a.SentBefore {
		return true // it names a packet that is retransmitted later
	}
	return a.Seq < r.s.FirstSeq-int64(bit(ack))
}

// take finds the reply of softroce to compare a captured one with: one to the same request if there
// is one, else the first.
func take(ours []*output, a *conversation.Transmission, t *response) *output {
	var found *output
	for _, o := range ours {
		if o.used || o.at > a.SentBefore {
			continue
		}
		if t != nil && o.cause == t.request {
			found = o
			break
		}
		if found == nil {
			found = o
		}
	}
	if found != nil {
		found.used = true
	}
	return found
}

// compareACK compares an ACK with the states that softroce's responder has passed. When to send an
// ACK is up to the implementation.
func (r *responderModel) compareACK(a, before *conversation.Transmission) {
	st, ok := r.states[a.Seq]
	switch {
	case ok && st.at < a.SentBefore && st.msn == a.AETH.MSN:
		if r.s.Ordered && before != nil && before.Seq > a.Seq && before.Info.Kind == packet.KindAck && before.AETH.Syndrome.IsACK() {
			r.v.differ(a, "PSN", psnText(a.Seq), psnText(before.Seq)+", as in the previous ACK")
		}
	case ok && st.at < a.SentBefore:
		r.v.differ(a, "MSN", fmt.Sprint(a.AETH.MSN), fmt.Sprint(st.msn))
	case a.BTH.PSN == packet.PSNMask && r.newestState(a.SentBefore) == r.s.FirstSeq-1:
		r.v.deviate(deviationReACK, a)
	default:
		r.v.differ(a, "PSN", psnText(a.Seq), psnText(r.newestState(a.SentBefore)))
	}
}

// oddACK returns the only ACK for a packet without AckReq, where nothing was retransmitted, no
// credits are granted, and all other ACKs answer packets with AckReq as the Linux driver's do. A
// NIC that coalesces ACKs sends more than one such ACK.
func (s *stream) oddACK() *conversation.Transmission {
	if len(s.Sent) != len(s.Requests) {
		return nil
	}
	ackReq := make(map[int64]bool, len(s.Sent)) // AckReq of each PSN
	for _, e := range s.Sent {
		if e.Next != nil {
			return nil
		}
		ackReq[e.Seq] = e.AckReq
	}
	const enough = 3
	requested := 0
	var odd *conversation.Transmission
	for _, r := range s.RepliesSent {
		switch {
		case r.Info.Kind != packet.KindAck:
		case r.AETH.Syndrome != packet.CreditsUnlimited:
			return nil
		case !known(ackReq, r.Seq):
		case ackReq[r.Seq]:
			requested++
		case odd != nil:
			return nil
		default:
			odd = r
		}
	}
	if requested < enough {
		return nil
	}
	return odd
}

func known(m map[int64]bool, psn int64) bool {
	_, ok := m[psn]
	return ok
}

// newestState returns the PSN that softroce's responder would acknowledge at an index.
func (r *responderModel) newestState(at int) int64 {
	i := sort.Search(len(r.steps), func(i int) bool { return r.steps[i].at >= at })
	if i == 0 {
		return r.s.FirstSeq - 1
	}
	return r.steps[i-1].psn
}

func psnText(psn int64) string { return fmt.Sprint(psn & packet.PSNMask) }

// compareReply compares a reply with softroce's, nil if there is none.
func (r *responderModel) compareReply(a *conversation.Transmission, o *output, strict bool) {
	if o == nil {
		r.unexpected(a)
		return
	}
	has := a.Info.Headers & o.Opcode.Info().Headers
	resumed := r.resumed(a, o)
	switch {
	case resumed:
		r.v.deviate(deviationResume, a)
	case a.Opcode != o.Opcode:
		r.v.differ(a, "opcode", a.Opcode.String(), o.Opcode.String())
	}
	if has&packet.HasAETH != 0 {
		r.compareAETH(a, o, strict)
	}
	if has&packet.HasAtomicAckETH != 0 && a.OrigData != o.OrigData {
		r.v.differ(a, "original value", fmt.Sprintf("%#x", a.OrigData), fmt.Sprintf("%#x", o.OrigData))
	}
	r.v.comparePayload(a, o.payload)
	if strict {
		r.v.compareChoices(a, &o.sentPacket)
	}
}

// resumed reports whether a answers a READ retransmitted from its middle, with the positions of the
// response to the whole READ.
func (r *responderModel) resumed(a *conversation.Transmission, o *output) bool {
	if a.Opcode == o.Opcode || a.Info.Kind != packet.KindReadResponse || a.Info.Position.StartsMessage() {
		return false
	}
	m := r.s.MessageAt(o.cause.Seq)
	return m != nil && o.cause.Seq > m.First && a.Seq == o.cause.Seq &&
		a.Info.Position.EndsMessage() == o.Opcode.Info().Position.EndsMessage()
}

func (r *responderModel) compareAETH(a *conversation.Transmission, o *output, strict bool) {
	x, y := a.AETH.Syndrome, o.AETH.Syndrome
	switch {
	case x == packet.NAKRemoteOperational && y == packet.NAKInvalidRequest && o.cause.Info.Kind == packet.KindSend:
		r.v.deviate(deviationTooLong, a)
	case x.IsACK() && y.IsACK():
		if strict && x != y {
			r.v.differ(a, "credits", x.String(), y.String())
		}
	case x != y:
		r.v.differ(a, "syndrome", x.String(), y.String())
	}
	switch {
	case a.AETH.MSN == o.AETH.MSN:
	case r.mayBeReordered(a, o):
		e, by, weight := r.overtakenBy(a)
		if e != nil {
			r.v.Overtaken = append(r.v.Overtaken, Note{e.No, fmt.Sprintf("%v PSN %d: packet %d arrived before it, and its response %[5]d counts %[4]d messages",
				e.Opcode, e.BTH.PSN, by.No, a.AETH.MSN, a.No)})
		}
		r.v.conditionals = append(r.v.conditionals, conditional{Difference{a.No, a.BTH.PSN, "MSN", fmt.Sprint(a.AETH.MSN), fmt.Sprint(o.AETH.MSN)}, weight, true})
	default:
		r.v.differ(a, "MSN", fmt.Sprint(a.AETH.MSN), fmt.Sprint(o.AETH.MSN))
	}
}

// unexpected reports a reply that softroce's responder does not send.
func (r *responderModel) unexpected(a *conversation.Transmission) {
	s := a.AETH.Syndrome
	if a.Info.Kind == packet.KindAck && s == packet.NAKSequence && r.afterRNR(a) {
		r.v.deviate(deviationNAKAfterRNR, a)
		if st := r.states[a.Seq-1]; st.msn != a.AETH.MSN {
			r.v.differ(a, "MSN", fmt.Sprint(a.AETH.MSN), fmt.Sprint(st.msn))
		}
		return
	}
	if first := r.s.Messages; r.s.FirstMSN != 0 && a.Info.Kind != packet.KindAck && len(first) > 0 && a.Seq < first[0].End() {
		r.note(a, "it may answer a request from before the capture")
		return
	}
	if r.isDuplicateReply(a) || a.Info.Kind == packet.KindAck && isSequence(s) && r.overtookPrevious(a) {
		return
	}
	what := a.Opcode.String()
	if a.Info.Kind == packet.KindAck {
		what = s.String()
	}
	r.v.differ(a, "reply", what+" for PSN "+psnText(a.Seq), "none")
}

// afterRNR reports whether the packet with a's PSN caused an RNR NAK, and a later packet arrived
// before it was accepted.
func (r *responderModel) afterRNR(a *conversation.Transmission) bool {
	if r.inferred.answered(a.Seq) < a.SentBefore {
		return false
	}
	req := r.s.Requests
	i := sort.Search(len(req), func(i int) bool { return req[i].Index >= a.SentBefore })
	behind := false
	for j := i - 1; j >= max(0, i-alignReach); j-- {
		if behind && req[j].Seq == a.Seq && r.inferred.refusal(a.Seq, req[j].Index, a.SentBefore, isRNR) != nil {
			return true
		}
		behind = behind || req[j].Seq > a.Seq
	}
	return false
}

// missing reports a reply of softroce that the capture does not have, unless loss explains it.
func (r *responderModel) missing(o *output, strict bool) {
	k := o.Opcode.Info().Kind
	if k == packet.KindAck && o.AETH.Syndrome.IsACK() && !strict {
		return
	}
	if o.copied {
		return // nothing but the other responses is known of the copy
	}
	if again := r.retransmissionOf(o); again != nil {
		r.v.Lost = append(r.v.Lost, Note{o.cause.No, fmt.Sprintf("the %v to it with PSN %s was lost before the point of capture; packet %d requests it again",
			o.Opcode, psnText(o.psn), again.No)})
		return
	}
	if b := r.givenBefore(o); b != nil {
		r.v.Lost = append(r.v.Lost, Note{o.cause.No, fmt.Sprintf("the %v to it with PSN %s was lost before the point of capture; packet %d was the same response",
			o.Opcode, psnText(o.psn), b.No)})
		return
	}
	if !r.doesWithout(o) {
		r.note(o.cause, "the %v to it with PSN %s is missing; the requests after it do not show whether it was lost", o.Opcode, psnText(o.psn))
		return
	}
	if r.s.LastNew < o.at && (r.s.repeated(o.cause) || r.s.Refused) {
		r.note(o.cause, "the %v to it with PSN %s is missing; the requester sends no further new request", o.Opcode, psnText(o.psn))
		return
	}
	what := o.Opcode.String()
	if k == packet.KindAck {
		what = o.AETH.Syndrome.String()
	}
	r.v.differ(o.cause, "reply", "none", what+" for PSN "+psnText(o.psn))
}

// provingExchanges is how many times the requester has to send something new, after a reply that
// passes over a missing one, until it certainly does without it.
const provingExchanges = 2

// doesWithout reports whether the requester does without softroce's reply o, which the capture
// lacks: replies pass over it until all is answered, or the requester sends new requests after
// them, and goes back no more. A reply that was lost before the point of capture is requested
// again, but not at once.
func (r *responderModel) doesWithout(o *output) bool {
	rs, req := r.s.RepliesSent, r.s.Requests
	n := len(rs)
	if n == 0 || rs[n-1].Seq <= o.psn || rs[n-1].SentBefore < o.at {
		return false
	}
	if rs[n-1].Seq >= r.sentUpTo-1 {
		return true
	}
	k := sort.Search(len(rs), func(i int) bool { return rs[i].SentBefore >= o.at })
	i := sort.Search(len(req), func(i int) bool { return req[i].Index > o.at })
	exchanges, passed := 0, false
	for _, e := range req[i:min(len(req), i+alignReach)] {
		for ; k < len(rs) && rs[k].SentBefore < e.Index; k++ {
			passed = passed || rs[k].Seq > o.psn
		}
		switch {
		case e.Seq <= o.psn:
			exchanges, passed = 0, false
		case passed && !r.s.repeated(e):
			exchanges, passed = exchanges+1, false
		}
	}
	return exchanges >= provingExchanges
}

// givenBefore returns a response to an earlier transmission of the request of softroce's response
// o: a requester that has it need not retransmit.
func (r *responderModel) givenBefore(o *output) *conversation.Transmission {
	if k := o.Opcode.Info().Kind; k != packet.KindReadResponse && k != packet.KindAtomicAck || !r.s.repeated(o.cause) {
		return nil
	}
	for _, a := range r.responsesAt[o.psn] {
		if a.Index < o.at {
			return a
		}
	}
	return nil
}

// retransmissionOf returns a retransmission of the request that a reply of softroce answers, or
// nil.
func (r *responderModel) retransmissionOf(o *output) *conversation.Transmission {
	m := r.s.MessageAt(o.psn)
	if m == nil || o.Opcode.Info().Kind == packet.KindAck {
		return o.cause.Next
	}
	sent := r.inferred.transmissions[m]
	for i := len(sent) - 1; i >= max(0, len(sent)-placeReach); i-- {
		if e := sent[i]; e.Index > o.at && !e.Copy && e.Seq <= o.psn && o.psn < e.End() {
			return e
		}
	}
	return nil
}

// repeated reports whether a request is a retransmission.
func (s *stream) repeated(e *conversation.Transmission) bool {
	m := s.MessageAt(e.Seq)
	return m != nil && m.Packets[0] != e && !e.Copy
}
