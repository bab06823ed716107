package replay

import (
	"maps"
	"slices"
	"sort"

	"softroce/internal/conversation"
	"softroce/packet"
)

// This file finds the transmission of each request that the responder accepted. Requests arrive in
// the order in which they were sent, unless something contradicts that.

// inferArrivals decides, for each accepted PSN, which transmission was accepted: the last one
// before the first reply that shows it, and before the accepted one of the next PSN. Of READs and
// atomics it is the first that was answered. What was sent before an RNR NAK was not accepted if it
// was retransmitted.
func (ev *inference) inferArrivals(s *stream) {
	byPSN := map[int64][]*conversation.Transmission{}
	var psns []int64
	for _, e := range s.Requests {
		if byPSN[e.Seq] == nil {
			psns = append(psns, e.Seq)
		}
		byPSN[e.Seq] = append(byPSN[e.Seq], e)
	}
	slices.Sort(psns)
	behind, rnrs := never, slices.DeleteFunc(slices.Clone(ev.naks), func(r *conversation.Transmission) bool { return !isRNR(r.AETH.Syndrome) })
	for i, psn := range slices.Backward(psns) {
		by := ev.accepted(psn)
		if by == never {
			behind = ev.refusalCause(s, psn, behind)
			continue
		}
		es := byPSN[psn]
		for len(rnrs) > 0 && rnrs[len(rnrs)-1].Seq > psn {
			rnrs = rnrs[:len(rnrs)-1]
		}
		if n := len(rnrs); n > 0 && len(between(es, rnrs[n-1].SentBefore, by)) > 0 {
			es = between(es, rnrs[n-1].SentBefore, by) // earlier ones were not accepted
		}
		in := between(es, -1, min(by, behind))
		if at, ok := ev.earlier[psn]; ok && len(between(es, -1, min(at, behind))) > 0 {
			in = between(es, -1, min(at, behind))
		}
		if len(in) == 0 {
			if in = between(es, -1, by); len(in) > 0 {
				ev.inferOvertaken(s, in[0], psns[i+1:], byPSN)
			}
			continue
		}
		behind = ev.arrivalAmong(s, in)
		nak := ev.refusal(psn, behind, by, isSequence)
		if nak != nil && !ev.hasOtherCause(s, nak, nil) && len(between(es, nak.SentBefore, by)) > 0 {
			// The earlier one was lost: nothing that overtook it was dropped.
			behind = ev.arrivalAmong(s, between(es, nak.SentBefore, by))
			ev.inferOvertaken(s, s.requestAt(behind), psns[i+1:], byPSN)
		}
		ev.arrivals[psn] = behind
		behind = ev.refusalCause(s, psn, behind)
	}
}

// between returns the transmissions after one index and before another.
func between(sent []*conversation.Transmission, after, before int) []*conversation.Transmission {
	count := func(at int) int { return sort.Search(len(sent), func(i int) bool { return sent[i].Index >= at }) }
	return sent[count(after+1):max(count(after+1), count(before))]
}

// arrivalAmong returns the index of the accepted one of some transmissions of a PSN.
func (ev *inference) arrivalAmong(s *stream, sent []*conversation.Transmission) int {
	last := len(sent) - 1
	for last > 0 && sent[last].Copy {
		last--
	}
	at := sent[last].Index
	for i, e := range sent {
		if t := ev.responseTo[e]; t != nil {
			at = e.Index
			if i > 0 && ev.repeats(s, e, t) {
				at = sent[i-1].Index // its response was lost before the point of capture
			}
			break
		}
	}
	return at
}

// repeats reports whether t, the response to e, counts messages after e: e was accepted before.
func (ev *inference) repeats(s *stream, e *conversation.Transmission, t *response) bool {
	first := t.packets[0]
	own := s.MessagesThrough(e.End()-1) + s.FirstMSN
	return first.Info.Headers&packet.HasAETH != 0 && packet.PSNDiff(first.AETH.MSN, own&packet.PSNMask) > 0
}

// inferOvertaken corrects the arrivals of higher PSNs, which seemed to be accepted before e was
// sent, though e was accepted before them: a later transmission of them was accepted, or they were
// overtaken by e. They are not if nothing else causes the NAK for e: that responder has accepted
// what is ahead.
func (ev *inference) inferOvertaken(s *stream, e *conversation.Transmission, higher []int64, byPSN map[int64][]*conversation.Transmission) {
	corrected := map[int64]int{}
	late := map[*conversation.Transmission]bool{}
	behind := e.Index
	for _, psn := range higher[:min(len(higher), alignReach)] {
		at, ok := ev.arrivals[psn]
		if !ok || at > behind {
			break
		}
		if again := between(byPSN[psn], behind, ev.accepted(psn)); len(again) > 0 {
			behind = ev.arrivalAmong(s, again)
			corrected[psn] = behind
			continue
		}
		for _, w := range between(byPSN[psn], at-1, at+1) {
			late[w] = true
		}
	}
	previous := map[int64]int{}
	for psn, at := range corrected {
		previous[psn], ev.arrivals[psn] = ev.arrivals[psn], at
	}
	if nak := ev.refusal(e.Seq, -1, e.Index, isSequence); nak != nil && !ev.hasOtherCause(s, nak, late) {
		maps.Copy(ev.arrivals, previous)
		return
	}
	for psn, at := range previous {
		for _, w := range between(byPSN[psn], at-1, at+1) {
			delete(ev.overtaken, w)
		}
	}
	maps.Copy(ev.overtaken, late)
}

// hasOtherCause reports whether a request that was neither accepted nor late may have caused the
// NAK.
func (ev *inference) hasOtherCause(s *stream, nak *conversation.Transmission, late map[*conversation.Transmission]bool) bool {
	req := s.Requests
	i := sort.Search(len(req), func(i int) bool { return req[i].Index >= nak.SentBefore })
	return slices.ContainsFunc(req[max(0, i-alignReach):i], func(w *conversation.Transmission) bool {
		if w.Seq <= nak.Seq || late[w] {
			return false
		}
		at, ok := ev.arrivals[w.Seq]
		return !ok || at != w.Index
	})
}

// requestAt returns the request at an index in the capture.
func (s *stream) requestAt(at int) *conversation.Transmission {
	return s.Requests[sort.Search(len(s.Requests), func(i int) bool { return s.Requests[i].Index >= at })]
}

// refusalCause returns the index of the request that caused the first refusal of psn, the latest
// before an index: by then all before psn were accepted. It returns that other index if there is no
// such request, or if it was overtaken by a retransmission: a NAK for a lower PSN follows it.
func (ev *inference) refusalCause(s *stream, psn int64, before int) int {
	nak := ev.refusal(psn, -1, never, func(s packet.Syndrome) bool { return isSequence(s) || isRNR(s) })
	if nak == nil {
		return before
	}
	end := min(before, nak.SentBefore)
	i := sort.Search(len(s.Requests), func(i int) bool { return s.Requests[i].Index >= end })
	for j := i - 1; j >= max(0, i-alignReach); j-- {
		e := s.Requests[j]
		if isRNR(nak.AETH.Syndrome) && e.Seq == psn || isSequence(nak.AETH.Syndrome) && e.Seq > psn {
			if ev.isRefusedBelow(psn, e.Index, nak.SentBefore) {
				break
			}
			return e.Index
		}
	}
	return before
}

// isRefusedBelow reports whether a NAK for a PSN below psn was sent after one index and before
// another.
func (ev *inference) isRefusedBelow(psn int64, from, to int) bool {
	rs := ev.naks[sort.Search(len(ev.naks), func(i int) bool { return ev.naks[i].SentBefore > from }):]
	return slices.ContainsFunc(rs[:min(len(rs), refusalReach)], func(r *conversation.Transmission) bool { return r.SentBefore < to && r.Seq < psn })
}
