package replay

import (
	"math"
	"slices"
	"sort"

	"softroce/internal/conversation"
	"softroce/packet"
)

// never is an index after all packets of the capture.
const never = math.MaxInt

// An inference is what the captured replies show about the requests that the responder accepted,
// and when at the latest. A reply with PSN n shows that all before n were accepted; an ACK or a
// response, that n was too.
type inference struct {
	reordered bool // some retransmitted requests arrived late or twice

	acceptances   []acceptance                                           // ascending
	acknowledged  []acceptance                                           // those that the PSNs of replies show; ascending
	refusals      map[int64][]*conversation.Transmission                 // NAKs and RNR NAKs, by their PSN
	naks          []*conversation.Transmission                           // the same, in the order in which they were sent
	earlier       map[int64]int                                          // PSNs that were accepted before an index, though retransmitted later
	arrivals      map[int64]int                                          // index of the transmission of each PSN that was accepted
	overtaken     map[*conversation.Transmission]bool                    // such transmissions that arrived after one that was sent later, with a lower PSN
	transmissions map[*conversation.Message][]*conversation.Transmission // transmissions of READs and atomics
	responseOf    map[*conversation.Transmission]*response               // of each response packet
	responseTo    map[*conversation.Transmission]*response               // of each READ and atomic request
	lateResponses map[*response]*conversation.Transmission               // repeated responses that answer an earlier, late transmission
	late          map[*conversation.Transmission]bool                    // those transmissions
	given         map[int64][]*conversation.Transmission                 // first packets of responses, by PSN
	copies        map[*conversation.Transmission][]*response             // further responses to a transmission, which the network duplicated
}

// An acceptance says that all PSNs before psn were accepted before the index at.
type acceptance struct {
	psn int64
	at  int
}

// A response is the packets that answer one transmission of a READ, atomic, FLUSH or ATOMIC WRITE.
type response struct {
	request *conversation.Transmission // nil if none fits
	packets []*conversation.Transmission
	seen    map[int64]bool // PSNs of the packets
}

func newResponse(r *conversation.Transmission) *response {
	return &response{packets: []*conversation.Transmission{r}, seen: map[int64]bool{r.Seq: true}}
}

func (t *response) add(r *conversation.Transmission) {
	t.packets = append(t.packets, r)
	t.seen[r.Seq] = true
}

func infer(s *stream, reordered bool) *inference {
	ev := &inference{reordered: reordered, refusals: map[int64][]*conversation.Transmission{}, earlier: map[int64]int{}, arrivals: map[int64]int{}, overtaken: map[*conversation.Transmission]bool{},
		transmissions: map[*conversation.Message][]*conversation.Transmission{}, responseOf: map[*conversation.Transmission]*response{}, responseTo: map[*conversation.Transmission]*response{}, copies: map[*conversation.Transmission][]*response{}, given: map[int64][]*conversation.Transmission{},
		lateResponses: map[*response]*conversation.Transmission{}, late: map[*conversation.Transmission]bool{}}
	ev.inferAcceptances(s)
	ev.acknowledged = slices.Clone(ev.acceptances)
	ev.inferResponses(s)
	ev.inferFromRepeats(s)
	ev.inferArrivals(s)
	return ev
}

// inferFromRepeats reads the MSNs of repeated responses: they count what was accepted when the
// retransmission arrived.
func (ev *inference) inferFromRepeats(s *stream) {
	sent := s.FirstSeq
	for _, e := range s.Requests {
		if t := ev.responseTo[e]; t != nil && t.packets[0].Info.Headers&packet.HasAETH != 0 {
			first := t.packets[0]
			k := int((first.AETH.MSN - s.FirstMSN) & packet.PSNMask)
			switch {
			case k <= 0 || k > len(s.Messages) || s.Messages[k-1].First <= e.Seq:
			case s.Messages[k-1].End() <= sent:
				ev.acceptances = append(ev.acceptances, acceptance{s.Messages[k-1].End(), e.Index})
			case s.repeated(e) && s.wasSent(s.Messages[k-1], first.SentBefore):
				ev.acceptances = append(ev.acceptances, acceptance{s.Messages[k-1].End(), first.SentBefore}) // e arrived late
			}
		}
		sent = max(sent, e.End())
	}
	slices.SortStableFunc(ev.acceptances, func(a, b acceptance) int { return a.at - b.at })
	ascending := ev.acceptances[:0]
	for _, m := range ev.acceptances {
		if len(ascending) == 0 || m.psn > ascending[len(ascending)-1].psn {
			ascending = append(ascending, m)
		}
	}
	ev.acceptances = ascending
}

// wasSent reports whether the last captured packet of a message was sent before an index.
func (s *stream) wasSent(m *conversation.Message, before int) bool {
	return len(m.Packets) > 0 && m.Packets[len(m.Packets)-1].Index < before
}

// inferAcceptances reads the acknowledgements. Those of requests that were not sent yet are
// ignored.
func (ev *inference) inferAcceptances(s *stream) {
	sent := s.FirstSeq
	byPSN := map[int64][]*conversation.Transmission{}
	req := s.Requests
	var newest int64 = -1
	var recent []*conversation.Transmission // requests since the last reply
	var waiting *conversation.Transmission  // the latest NAK
	for _, r := range s.RepliesSent {
		if len(req) > 0 && req[0].Index < r.SentBefore {
			recent = nil
		}
		for len(req) > 0 && req[0].Index < r.SentBefore {
			e := req[0]
			req = req[1:]
			sent = max(sent, e.End())
			byPSN[e.Seq] = append(byPSN[e.Seq], e)
			recent = append(recent, e)
		}
		psn := r.Seq
		switch {
		case r.Info.Kind != packet.KindAck:
			psn++
			if m := s.MessageAt(r.Seq); m != nil {
				psn = m.End()
			}
		case r.AETH.Syndrome.IsACK():
			psn++
			if !explained(r, recent, newest) {
				ev.reACK(r, recent, byPSN, waiting)
			}
		default:
			ev.refusals[psn] = append(ev.refusals[psn], r)
			ev.naks = append(ev.naks, r)
			waiting = r
		}
		if psn <= sent && psn > newest {
			newest = psn
			ev.acceptances = append(ev.acceptances, acceptance{psn, r.SentBefore})
		}
	}
}

// reACKReach bounds the requests that one ACK is assumed to acknowledge.
const reACKReach = 1 << 10

// explained reports whether a recent request caused the ACK r: one with AckReq, or a known
// duplicate, as all before newest was acknowledged.
func explained(r *conversation.Transmission, recent []*conversation.Transmission, newest int64) bool {
	for _, e := range recent[max(0, len(recent)-reACKReach):] {
		if e.Seq <= r.Seq && (e.AckReq || e.Seq < newest) {
			return true
		}
	}
	return false
}

// reACK handles an ACK that no AckReq explains: a duplicate caused it. If recent requests were sent
// before, it is the lowest of them.
func (ev *inference) reACK(r *conversation.Transmission, recent []*conversation.Transmission, byPSN map[int64][]*conversation.Transmission, waiting *conversation.Transmission) {
	var cause *conversation.Transmission
	for _, e := range recent[max(0, len(recent)-reACKReach):] {
		if e.Seq <= r.Seq && (cause == nil || e.Seq <= cause.Seq) && before(e, byPSN[e.Seq], waiting) {
			cause = e
		}
	}
	if cause == nil {
		return
	}
	if at, ok := ev.earlier[cause.Seq]; !ok || cause.Index < at {
		ev.earlier[cause.Seq] = cause.Index
	}
}

// before reports whether a request was sent before, since the NAK for it or for an earlier one.
func before(e *conversation.Transmission, sent []*conversation.Transmission, waiting *conversation.Transmission) bool {
	since := -1
	if waiting != nil && waiting.Seq <= e.Seq {
		since = waiting.SentBefore
	}
	i := sort.Search(len(sent), func(i int) bool { return sent[i].Index >= since })
	return i < len(sent) && sent[i].Index < e.Index
}

// accepted returns the index before which psn was accepted, or never.
func (ev *inference) accepted(psn int64) int { return acceptedBefore(ev.acceptances, psn) }

// answered returns the SentBefore of the first reply whose PSN shows that psn was accepted, or
// never. Another reply was sent before that acceptance if it was sent before this one; its index
// may nevertheless exceed what accepted returns, as it may cross a retransmission.
func (ev *inference) answered(psn int64) int { return acceptedBefore(ev.acknowledged, psn) }

func acceptedBefore(as []acceptance, psn int64) int {
	i := sort.Search(len(as), func(i int) bool { return as[i].psn > psn })
	if i == len(as) {
		return never
	}
	return as[i].at
}

// refusalReach bounds how many refusals of one PSN are searched.
const refusalReach = 64

// refusal returns the first reply that refuses psn after one index and before another.
func (ev *inference) refusal(psn int64, from, to int, is func(packet.Syndrome) bool) *conversation.Transmission {
	rs := ev.refusals[psn]
	rs = rs[sort.Search(len(rs), func(i int) bool { return rs[i].SentBefore > from }):]
	for _, r := range rs[:min(len(rs), refusalReach)] {
		if r.SentBefore >= to {
			break
		}
		if is(r.AETH.Syndrome) {
			return r
		}
	}
	return nil
}

// inferResponses finds the transmission of a READ or atomic that each response answers.
func (ev *inference) inferResponses(s *stream) {
	for _, e := range s.Requests {
		if m := s.MessageAt(e.Seq); m != nil && e.Info.Kind.HasOwnResponse() {
			ev.transmissions[m] = append(ev.transmissions[m], e)
		}
	}
	var open *response
	for _, r := range s.RepliesSent {
		if r.Info.Kind != packet.KindReadResponse && r.Info.Kind != packet.KindAtomicAck {
			continue
		}
		if open != nil && open.continuesWith(s, r) {
			open.add(r)
		} else {
			open = newResponse(r)
			ev.given[r.Seq] = append(ev.given[r.Seq], r)
		}
		ev.responseOf[r] = open
	}
	ev.align(s)
	for _, r := range s.RepliesSent {
		if t := ev.responseOf[r]; t != nil && t.request == nil && t.packets[0] == r {
			ev.place(s, t)
		}
	}
	if ev.reordered {
		ev.findLate(s)
	}
}

// continuesWith reports whether r is the next packet of the response.
func (t *response) continuesWith(s *stream, r *conversation.Transmission) bool {
	last := t.packets[len(t.packets)-1]
	if r.Info.Kind != packet.KindReadResponse || last.Info.Kind != packet.KindReadResponse ||
		r.Info.Position.StartsMessage() || last.Info.Position.EndsMessage() || r.Seq <= last.Seq {
		return false
	}
	first := t.packets[0]
	if first.Info.Headers&r.Info.Headers&packet.HasAETH != 0 && first.AETH.MSN != r.AETH.MSN {
		return false // the end of that response is missing, and the beginning of this one
	}
	m := s.MessageAt(last.Seq)
	return m != nil && r.Seq < m.End()
}

// placeReach bounds how many transmissions of one request are searched.
const placeReach = 64

// place finds the request of a response for which align found none: its first packet is missing, or
// it was overtaken while the order of the replies is not certain.
func (ev *inference) place(s *stream, t *response) {
	r := t.packets[0]
	m := s.MessageAt(r.Seq)
	if m == nil {
		return
	}
	sent := ev.transmissions[m]
	sent = sent[:sort.Search(len(sent), func(i int) bool { return sent[i].Index >= r.SentBefore })]
	sent = sent[max(0, len(sent)-placeReach):]
	if e := ev.latestAnswered(sent, r); e != nil && ev.reordered {
		t.request = e
		ev.copies[e] = append(ev.copies[e], t)
		return
	}
	for i := len(sent) - 1; i >= 0; i-- {
		e := sent[i]
		if ev.responseTo[e] == nil && timely(s, e, r) && (e.Seq == r.Seq || e.Seq < r.Seq && r.Seq < e.End() && !r.Info.Position.StartsMessage()) {
			t.request, ev.responseTo[e] = e, t
			return
		}
	}
	if !s.Ordered && t.join(ev, sent) {
		return
	}
	if s.FirstMSN != 0 && len(s.Messages) > 0 && r.Seq < s.Messages[0].End() {
		return // it may answer a request from before the capture
	}
	for i := len(sent) - 1; i >= 0; i-- {
		if e := sent[i]; e.Seq == r.Seq && sameKind(e, r) {
			t.request = e
			if ev.responseTo[e] == nil {
				ev.responseTo[e] = t // it was late
			} else {
				ev.copies[e] = append(ev.copies[e], t)
			}
			return
		}
	}
}

// join merges t into another response that lacks its packets, if there is one.
func (t *response) join(ev *inference, sent []*conversation.Transmission) bool {
	r := t.packets[0]
	for _, e := range sent {
		other := ev.responseTo[e]
		if other == nil || other.seen[r.Seq] || r.Seq < e.Seq || r.Seq >= e.End() {
			continue
		}
		for _, r := range t.packets {
			other.add(r)
			ev.responseOf[r] = other
		}
		return true
	}
	return false
}

// later returns the response to a later transmission of an atomic whose own response is missing. It
// is the same: an atomic is executed once.
func (ev *inference) later(s *stream, e *conversation.Transmission) *response {
	sent := ev.transmissions[s.MessageAt(e.Seq)]
	for _, again := range sent[:min(len(sent), placeReach)] {
		if ev.responseTo[again] != nil {
			return ev.responseTo[again]
		}
	}
	return nil
}
