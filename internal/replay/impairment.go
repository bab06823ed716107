package replay

import (
	"fmt"
	"slices"
	"sort"

	"softroce/internal/conversation"
	"softroce/packet"
)

// The network may also duplicate and reorder packets after the point of capture. This file infers
// it from replies: a response is repeated though its request was sent once; a NAK names a packet
// that arrived.

// A conditional is a difference unless the network explains it.
type conditional struct {
	Difference
	weight          int
	needsReordering bool // only reordering in the network explains it
}

// A network that duplicates or reorders packets does so more than once, or loses some too. So a
// single sign in a capture does not count: its weight is 1, and 2 are needed. A requester that goes
// back after a NAK is a sign by itself.
const (
	signCopy      = 1
	signOvertaken = 2
	signsNeeded   = 2
)

// differUnlessCopied records a difference unless the network duplicated the packet cause, as text
// says.
func (v *Verdict) differUnlessCopied(e *conversation.Transmission, cause int, text, field, captured, softroce string) {
	v.Copied = append(v.Copied, Note{cause, text})
	v.conditionals = append(v.conditionals, conditional{Difference{e.No, e.BTH.PSN, field, captured, softroce}, signCopy, false})
}

// resolve decides whether the network explains the conditional differences of a capture. If not,
// they are differences.
func resolve(vs []*Verdict) {
	signs, overtaken := 0, false
	for _, v := range vs {
		signs += len(v.Lost)
		overtaken = overtaken || len(v.Overtaken) > 0
		for _, d := range v.conditionals {
			signs += d.weight
		}
	}
	for _, v := range vs {
		for _, d := range v.conditionals {
			if signs < signsNeeded || d.needsReordering && !overtaken {
				v.Differences = append(v.Differences, d.Difference)
			}
		}
		if signs < signsNeeded && len(v.conditionals) > 0 {
			v.Copied, v.Overtaken = []Note{}, []Note{}
		}
		v.conditionals = nil
	}
}

// mayBeReordered reports whether a, which answers a retransmission, may have another MSN because
// that retransmission arrived earlier or later among the others: an MSN that softroce's responder
// had between the first transmission and the response.
func (r *responderModel) mayBeReordered(a *conversation.Transmission, o *output) bool {
	m := r.s.MessageAt(a.Seq)
	if m == nil || !o.duplicate {
		return false
	}
	own, newest := r.s.MessagesThrough(m.End()-1)+r.s.FirstMSN, r.s.MessagesThrough(r.newestState(a.SentBefore))+r.s.FirstMSN
	return packet.PSNDiff(a.AETH.MSN, own&packet.PSNMask) >= 0 && packet.PSNDiff(newest&packet.PSNMask, a.AETH.MSN) >= 0
}

// overtakenBy returns a request that arrived after the one that a answers, though it was sent
// before it, and the weight of this sign. Its own response was sent later and counts more messages;
// or only replies after a acknowledge it, and a does not count it. by is the request that a
// answers.
func (r *responderModel) overtakenBy(a *conversation.Transmission) (e, by *conversation.Transmission, weight int) {
	t := r.inferred.responseOf[a]
	if t == nil || t.request == nil || !r.s.Ordered {
		return nil, nil, 0
	}
	rs := r.s.RepliesSent
	i := sort.Search(len(rs), func(i int) bool { return rs[i].SentBefore > a.SentBefore })
	for _, b := range rs[i:min(len(rs), i+alignReach)] {
		u := r.inferred.responseOf[b]
		if u == nil || u == t || u.request == nil || b.Info.Headers&packet.HasAETH == 0 {
			continue
		}
		if u.request.Index < t.request.Index && packet.PSNDiff(b.AETH.MSN, a.AETH.MSN) > 0 {
			return u.request, t.request, signOvertaken
		}
	}
	k := int((a.AETH.MSN - r.s.FirstMSN) & packet.PSNMask) // the first message that a does not count
	if k >= len(r.s.Messages) || len(r.s.Messages[k].Packets) == 0 {
		return nil, nil, 0
	}
	m := r.s.Messages[k]
	if by := r.inferred.answered(m.End() - 1); by == never || by <= a.SentBefore || r.isCountedBefore(a) {
		return nil, nil, 0
	}
	for _, p := range m.Packets {
		if at, ok := r.inferred.arrivals[p.Seq]; ok && at < t.request.Index {
			return r.s.requestAt(at), t.request, signCopy
		}
	}
	return nil, nil, 0
}

// isCountedBefore reports whether a recent reply before a counts more messages than a.
func (r *responderModel) isCountedBefore(a *conversation.Transmission) bool {
	rs := r.s.RepliesSent
	i := sort.Search(len(rs), func(i int) bool { return rs[i].SentBefore >= a.SentBefore })
	return slices.ContainsFunc(rs[max(0, i-placeReach):i], func(b *conversation.Transmission) bool {
		return b.Info.Headers&packet.HasAETH != 0 && packet.PSNDiff(b.AETH.MSN, a.AETH.MSN) > 0
	})
}

// A copyToFeed is a request that arrived twice, as its responses show; or late, after others that
// were sent after it.
type copyToFeed struct {
	request *conversation.Transmission
	answers *response
	late    bool
}

// expectCopies queues the copies of a request that arrived.
func (r *responderModel) expectCopies(e *conversation.Transmission) {
	for _, t := range r.inferred.copies[e] {
		r.copies = append(r.copies, &copyToFeed{e, t, false})
	}
}

// feedCopies feeds the copies that arrived before an index: each as soon as softroce's responder
// counts as many messages as the response does, and at the latest before the response.
func (r *responderModel) feedCopies(at int) {
	if len(r.copies) == 0 {
		return
	}
	left := r.copies[:0]
	for _, c := range r.copies {
		if r.ended || r.messagesUntil(c.answers) != 0 && c.answers.packets[0].SentBefore > at {
			left = append(left, c)
			continue
		}
		if c.late {
			r.feedAt(c.request, c.answers, c.request.Index)
			continue
		}
		r.copying = true
		r.feedAt(c.request, c.answers, c.request.Index)
		r.copying = false
		for _, a := range c.answers.packets {
			what := fmt.Sprintf("%v PSN %d: packet %d is another response to it", c.request.Opcode, c.request.BTH.PSN, a.No)
			d := Difference{a.No, a.BTH.PSN, "reply", a.Opcode.String() + " for PSN " + psnText(a.Seq), "none"}
			if w := r.inferred.lateResponses[c.answers]; w != nil {
				if a == c.answers.packets[0] {
					r.v.Overtaken = append(r.v.Overtaken, Note{w.No, fmt.Sprintf("%v PSN %d: it arrived after packet %d, its retransmission; packet %d is the response",
						w.Opcode, w.BTH.PSN, c.request.No, a.No)})
				}
				r.v.conditionals = append(r.v.conditionals, conditional{d, signOvertaken, false})
				continue
			}
			r.v.Copied = append(r.v.Copied, Note{c.request.No, what})
			r.v.conditionals = append(r.v.conditionals, conditional{d, signCopy, false})
		}
	}
	r.copies = left
}

// messagesUntil returns how many more messages softroce's responder has to complete until a
// response fits.
func (r *responderModel) messagesUntil(t *response) int {
	first := t.packets[0]
	if first.Info.Headers&packet.HasAETH == 0 {
		return 0
	}
	_, msn := r.qp.Expected()
	return packet.PSNDiff(first.AETH.MSN, (msn+r.s.FirstMSN)&packet.PSNMask)
}

// late reports whether a retransmitted READ or atomic is fed later: its response counts messages
// that were sent after it.
func (r *responderModel) late(e *conversation.Transmission) bool {
	t := r.inferred.responseTo[e]
	if e.Seq >= r.epsn || t == nil || r.messagesUntil(t) <= 0 {
		return false
	}
	r.copies = append(r.copies, &copyToFeed{e, t, true})
	first := t.packets[0]
	_, msn := r.qp.Expected()
	r.v.Overtaken = append(r.v.Overtaken, Note{e.No, fmt.Sprintf("%v PSN %d: its response %d counts messages that were sent after it", e.Opcode, e.BTH.PSN, first.No)})
	r.v.conditionals = append(r.v.conditionals, conditional{Difference{first.No, first.BTH.PSN, "MSN", fmt.Sprint(first.AETH.MSN),
		fmt.Sprint((msn + r.s.FirstMSN) & packet.PSNMask)}, signCopy, false})
	return true
}

// isDuplicateReply reports whether a repeats a reply of softroce's responder: the request arrived
// twice.
func (r *responderModel) isDuplicateReply(a *conversation.Transmission) bool {
	if a.Info.Kind == packet.KindAck && (!isRNR(a.AETH.Syndrome) || r.inferred.answered(a.Seq) < a.SentBefore) {
		return false
	}
	given := r.given[a.Seq]
	for _, o := range given[:min(len(given), placeReach)] {
		if o.at > a.SentBefore || o.Opcode != a.Opcode || o.AETH.MSN != a.AETH.MSN || o.OrigData != a.OrigData ||
			a.Info.Kind == packet.KindAck && o.AETH != a.AETH || !samePayload(a, o.payload) {
			continue
		}
		what, reply := fmt.Sprintf("%v PSN %d: packet %d is another response to it", o.cause.Opcode, o.cause.BTH.PSN, a.No), a.Opcode.String()
		if a.Info.Kind == packet.KindAck {
			reply = a.AETH.Syndrome.String()
		}
		r.v.differUnlessCopied(a, o.cause.No, what, "reply", reply+" for PSN "+psnText(a.Seq), "none")
		return true
	}
	return false
}

// overtookPrevious reports whether a request arrived ahead of others, which arrived before the
// sequence NAK a was sent that it caused: the packet of a, which overtook the one before it; or one
// after that, which was delayed until then.
func (r *responderModel) overtookPrevious(a *conversation.Transmission) bool {
	st, ok := r.states[a.Seq-1]
	if !ok || st.at >= a.SentBefore || st.msn != a.AETH.MSN || r.inferred.answered(a.Seq) < a.SentBefore {
		return false
	}
	req := r.s.Requests
	i := sort.Search(len(req), func(i int) bool { return req[i].Index >= a.SentBefore })
	var delayed *conversation.Transmission
	for j := i - 1; j >= max(0, i-alignReach); j-- {
		w := req[j]
		if w.Seq < a.Seq || w.Next == nil {
			continue // it was not retransmitted after the NAK
		}
		if w.Seq > a.Seq {
			if delayed == nil && w.Next.Index > a.SentBefore {
				delayed = w
			}
			continue
		}
		if r.overtook[w] {
			continue
		}
		if w.Next.Index < a.SentBefore && r.wasAcknowledged(a.Seq, w.Next.Index) || r.sentSequenceNAK(a.Seq, w.Index) {
			return false // the requester went back before the NAK, although it knew that all before was accepted
		}
		if r.s.Ordered && r.wasAcknowledged(a.Seq, w.Index) {
			return false // the one before it arrived before it was sent
		}
		r.v.differUnlessOvertaken(w, a, signCopy, "%v PSN %d: it arrived before the previous one, and causes the NAK %d", w.Opcode, w.BTH.PSN, a.No)
		return true
	}
	if delayed == nil || r.sentSequenceNAK(a.Seq, 0) {
		return false
	}
	r.v.differUnlessOvertaken(delayed, a, signCopy, "%v PSN %d: it arrived after packets that were sent later, and causes the NAK %d", delayed.Opcode, delayed.BTH.PSN, a.No)
	return true
}

// wasAcknowledged reports whether a recent reply before an index acknowledged all before psn.
func (r *responderModel) wasAcknowledged(psn int64, at int) bool {
	rs := r.s.RepliesSent
	i := sort.Search(len(rs), func(i int) bool { return rs[i].SentBefore >= at })
	return slices.ContainsFunc(rs[max(0, i-placeReach):i], func(a *conversation.Transmission) bool {
		end := a.Seq + 1
		if m := r.s.MessageAt(a.Seq); m != nil && a.Info.Kind != packet.KindAck {
			end = m.End()
		} else if a.Info.Kind == packet.KindAck && !a.AETH.Syndrome.IsACK() {
			end = a.Seq
		}
		return end >= psn
	})
}

// sentSequenceNAK reports whether softroce's responder sent a sequence NAK for psn because of the
// request at an index, or after it.
func (r *responderModel) sentSequenceNAK(psn int64, from int) bool {
	return slices.ContainsFunc(r.given[psn], func(o *output) bool {
		return o.at >= from && o.Opcode == packet.Acknowledge && isSequence(o.AETH.Syndrome)
	})
}

// differUnlessOvertaken records a NAK as a difference unless packets overtook each other at e.
func (v *Verdict) differUnlessOvertaken(e, nak *conversation.Transmission, weight int, format string, a ...any) {
	v.Overtaken = append(v.Overtaken, Note{e.No, fmt.Sprintf(format, a...)})
	v.conditionals = append(v.conditionals, conditional{Difference{nak.No, nak.BTH.PSN, "reply", nak.AETH.Syndrome.String() + " for PSN " + psnText(nak.Seq), "none"}, weight, false})
}

// feedOvertaken feeds the requests that e overtook, as soon as they are expected.
func (r *responderModel) feedOvertaken(e *conversation.Transmission) {
	for w := r.delayed[r.epsn]; w != nil && !r.ended; w = r.delayed[r.epsn] {
		delete(r.delayed, w.Seq)
		r.v.Overtaken = append(r.v.Overtaken, Note{w.No, fmt.Sprintf("%v PSN %d: packet %d arrived before it", w.Opcode, w.BTH.PSN, e.No)})
		r.v.conditionals = append(r.v.conditionals, conditional{Difference{w.No, w.BTH.PSN, "reply", "accepted", packet.NAKSequence.String()}, 0, true})
		r.feedAt(w, r.inferred.responseTo[w], e.Index)
	}
}

// feedOvertaking feeds a packet ahead of e, the expected one, where a NAK that was sent before the
// reply at an index shows that e was missing although it arrived.
func (r *responderModel) feedOvertaking(e *conversation.Transmission, before int) {
	if e.Seq != r.epsn || r.lastSequenceNAK == e.Seq {
		return
	}
	next := never
	if e.Next != nil {
		next = e.Next.Index
	}
	if !r.s.Ordered {
		before = next
	}
	nak := r.inferred.refusal(e.Seq, e.Index, before, isSequence) // it may cross the retransmission
	if nak == nil {
		return
	}
	weight := signOvertaken
	if nak.SentBefore > next {
		weight = signCopy
	}
	req := r.s.Requests
	i := sort.Search(len(req), func(i int) bool { return req[i].Index > e.Index })
	for _, w := range req[i:min(len(req), i+alignReach)] {
		if w.Index >= nak.SentBefore {
			return
		}
		at, known := r.inferred.arrivals[w.Seq]
		if w.Seq <= e.Seq || r.overtook[w] || known && at == w.Index || w.Next == nil {
			continue
		}
		r.feed(w)
		r.overtook[w] = true
		r.v.differUnlessOvertaken(e, nak, weight, "%v PSN %d: packet %d arrived before it, and causes the NAK %d", e.Opcode, e.BTH.PSN, w.No, nak.No)
		return
	}
}
