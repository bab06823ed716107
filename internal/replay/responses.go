package replay

import (
	"sort"

	"softroce/internal/conversation"
	"softroce/packet"
)

// This file finds the transmission of a READ or atomic that each response answers. Responses are in
// the order in which the requests arrived, usually that in which they were sent.

// alignReach bounds how many requests are searched for the one that a reply answers.
const alignReach = 1 << 12

// align finds the request of each response. Responses have the order of their requests. align goes
// through both from the end, and takes the latest request that fits: had an earlier one been
// answered, the later one would hardly have been sent. A response that would leave an earlier one
// without a request is out of that order.
func (ev *inference) align(s *stream) {
	responses := ev.responses(s)
	gaps := s.gaps()
	i := len(s.Requests)
	for k := len(responses) - 1; k >= 0; k-- {
		t := responses[k]
		r := t.packets[0]
		for i > 0 && s.Requests[i-1].Index >= r.SentBefore {
			i--
		}
		j := fitting(s, r, i)
		for ev.reordered && j >= 0 && ev.tooLate(s, j, r) {
			j = fitting(s, r, j)
		}
		if j < 0 {
			continue
		}
		e := s.Requests[j]
		sent := ev.transmissionsBefore(s, r)
		switch {
		case ev.reordered && ev.settled(gaps, sent, e, r):
			if last := sent[len(sent)-1]; ev.responseTo[last] != nil {
				ev.copies[last] = append([]*response{ev.responseTo[last]}, ev.copies[last]...)
				t.request, ev.responseTo[last] = last, t
			}
		case ev.reordered && ev.outOfOrder(s, gaps, responses[max(0, k-maxOvertakenResponses):k], e):
		default:
			t.request, ev.responseTo[e], i = e, t, j
		}
	}
}

// responses returns the responses in the order in which they were sent.
func (ev *inference) responses(s *stream) []*response {
	var ts []*response
	for _, r := range s.RepliesSent {
		if t := ev.responseOf[r]; t != nil && t.packets[0] == r {
			ts = append(ts, t)
		}
	}
	return ts
}

// fitting returns the index of the latest of the first i requests that r may answer, or -1.
func fitting(s *stream, r *conversation.Transmission, i int) int {
	for j := i - 1; j >= max(0, i-alignReach); j-- {
		if e := s.Requests[j]; e.Seq == r.Seq && sameKind(e, r) && timely(s, e, r) {
			return j
		}
	}
	return -1
}

// tooLate reports whether r answers an earlier transmission than the j-th request: its MSN counts
// no message after the one it answers, while a later message had been accepted by then.
func (ev *inference) tooLate(s *stream, j int, r *conversation.Transmission) bool {
	e := s.Requests[j]
	if r.Info.Headers&packet.HasAETH == 0 || (r.AETH.MSN-s.FirstMSN)&packet.PSNMask != s.MessagesThrough(e.End()-1) {
		return false
	}
	for _, w := range s.Requests[max(0, j-placeReach):j] {
		if w.Seq < e.End() || w.Copy {
			continue
		}
		if by := ev.accepted(w.Seq); by != never && (w.Next == nil || w.Next.Index >= by) {
			return true
		}
	}
	return false
}

func sameKind(e, r *conversation.Transmission) bool {
	return e.Info.Kind.HasOwnResponse() && e.Info.Kind.IsAtomic() == (r.Info.Kind == packet.KindAtomicAck)
}

// transmissionsBefore returns the latest transmissions before r of the request that it answers.
func (ev *inference) transmissionsBefore(s *stream, r *conversation.Transmission) []*conversation.Transmission {
	sent := ev.transmissions[s.MessageAt(r.Seq)]
	n := len(sent)
	for n > 0 && sent[n-1].Index >= r.SentBefore {
		n--
	}
	return sent[max(0, n-placeReach):n]
}

// settled reports whether e had been answered, or reported missing by a NAK, when the request was
// last retransmitted before r. It is then more likely that the network duplicated the last
// transmission than that r answers e so late.
func (ev *inference) settled(gaps []*gap, sent []*conversation.Transmission, e, r *conversation.Transmission) bool {
	if len(sent) == 0 {
		return false
	}
	last := sent[len(sent)-1]
	if last.Index <= e.Index || last.Seq != r.Seq {
		return false
	}
	return missing(gaps, e, last.Index) || ev.answeredAll(gaps, sent, e, last)
}

// answeredAll reports whether, before last was sent, there were as many responses with the PSN of e
// as transmissions up to e, one of them after e.
func (ev *inference) answeredAll(gaps []*gap, sent []*conversation.Transmission, e, last *conversation.Transmission) bool {
	open := 0
	for _, a := range sent {
		if a.Index <= e.Index && !a.Copy && !missing(gaps, a, last.Index) {
			open++
		}
	}
	given := ev.given[e.Seq]
	n := sort.Search(len(given), func(i int) bool { return given[i].SentBefore >= last.Index })
	return n > 0 && given[n-1].SentBefore > e.Index && n >= open
}

// A gap is where the responder dropped requests from a PSN on, as a sequence NAK or an RNR NAK
// shows, and the index of the request that caused it.
type gap struct {
	psn        int64
	pos        int
	causeIndex int
}

// gaps returns the sequence NAKs and RNR NAKs in the order in which they were sent.
func (s *stream) gaps() []*gap {
	var gs []*gap
	i := 0
	for _, r := range s.RepliesSent {
		rnr := isRNR(r.AETH.Syndrome)
		if r.Info.Kind != packet.KindAck || !rnr && !isSequence(r.AETH.Syndrome) {
			continue
		}
		for i < len(s.Requests) && s.Requests[i].Index < r.SentBefore {
			i++
		}
		g := &gap{r.Seq, r.SentBefore, -1}
		for j := i - 1; j >= max(0, i-alignReach); j-- {
			if e := s.Requests[j]; e.Seq > r.Seq && !rnr || e.Seq == r.Seq && rnr {
				g.causeIndex = e.Index
				break
			}
		}
		gs = append(gs, g)
	}
	return gs
}

// missing reports whether a NAK after e and before an index shows that e was not accepted.
func missing(gaps []*gap, e *conversation.Transmission, before int) bool {
	i := sort.Search(len(gaps), func(i int) bool { return gaps[i].pos > e.Index })
	for _, g := range gaps[i:min(len(gaps), i+placeReach)] {
		if g.pos >= before {
			return false
		}
		if g.psn < e.Seq || g.psn == e.Seq && g.causeIndex > e.Index {
			return true
		}
	}
	return false
}

// maxOvertakenResponses bounds how many responses one that is out of order may overtake.
const maxOvertakenResponses = 16

// outOfOrder reports whether one of the earlier responses can only answer a request that was sent
// after e.
func (ev *inference) outOfOrder(s *stream, gaps []*gap, before []*response, e *conversation.Transmission) bool {
	for _, t := range before {
		r := t.packets[0]
		possible, later := false, false
		sent := ev.transmissionsBefore(s, r)
		for _, a := range sent {
			if a.Seq != r.Seq || !sameKind(a, r) || !timely(s, a, r) {
				continue
			}
			if a.Index > e.Index {
				later = true
			} else if !ev.settled(gaps, sent, a, r) {
				possible = true
				break
			}
		}
		if later && !possible {
			return true
		}
	}
	return false
}

// findLate finds, among repeated responses, those to an earlier transmission that seemed lost.
func (ev *inference) findLate(s *stream) {
	for _, m := range s.Messages {
		for _, last := range ev.transmissions[m] {
			for _, t := range ev.copies[last] {
				for _, e := range ev.transmissionsBefore(s, last) {
					if e.Seq == last.Seq && ev.responseTo[e] == nil && !e.Copy && !ev.late[e] {
						ev.late[e], ev.lateResponses[t] = true, e
						break
					}
				}
			}
		}
	}
}

// latestAnswered returns the latest transmission of a request that was answered before r, with r's
// PSN.
func (ev *inference) latestAnswered(sent []*conversation.Transmission, r *conversation.Transmission) *conversation.Transmission {
	for i := len(sent) - 1; i >= 0; i-- {
		e := sent[i]
		if t := ev.responseTo[e]; t != nil && e.Seq == r.Seq && t.request == e && t.packets[0].Seq == r.Seq && t.packets[0].SentBefore < r.SentBefore {
			return e
		}
	}
	return nil
}

// timely reports whether r may answer e without e being late: r's MSN counts no message that was
// sent after e.
func timely(s *stream, e, r *conversation.Transmission) bool {
	k := int((r.AETH.MSN - s.FirstMSN) & packet.PSNMask)
	if r.Info.Headers&packet.HasAETH == 0 || k < 1 || k > len(s.Messages) {
		return true
	}
	m := s.Messages[k-1]
	return m.First <= e.Seq || len(m.Packets) == 0 || m.Packets[len(m.Packets)-1].Index < e.Index
}
