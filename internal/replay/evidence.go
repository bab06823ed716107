package replay

import (
	"math"
	"slices"
	"sort"

	"softroce/internal/conversation"
	"softroce/packet"
)

// never is a place in the capture behind everything.
const never = math.MaxInt

// Evidence is what the captured replies say about which requests the responder accepted, and when at
// the latest. A reply with PSN n means that everything before n was accepted, an ACK or
// a response that n was, too.
type evidence struct {
	astray bool // among requests that were sent again, some came late or twice

	marks    []mark                                                 // rising
	refusals map[int64][]*conversation.Transmission                 // NAKs and RNR NAKs, by the PSN that they name
	earlier  map[int64]int                                          // PSNs that must have been accepted before a place, though sent again later
	arrivals map[int64]int                                          // the place of the transmission of each PSN that was accepted
	asked    map[*conversation.Message][]*conversation.Transmission // transmissions of READs and atomics
	answers  map[*conversation.Transmission]*train                  // responses to their trains
	answerTo map[*conversation.Transmission]*train                  // READ and atomic requests to the train that answers each
	belated  map[*train]*conversation.Transmission                  // of copies, those that are rather the answer to an earlier transmission, which came late
	late     map[*conversation.Transmission]bool                    // those transmissions
	given    map[int64][]*conversation.Transmission                 // first responses of trains, by PSN
	copies   map[*conversation.Transmission][]*train                // answers given once more to a request that was sent once: it came twice
}

// A mark says that all PSNs before psn were accepted before the place at.
type mark struct {
	psn int64
	at  int
}

// A train is the responses to one transmission of a READ, or the answer to one of an atomic.
type train struct {
	request   *conversation.Transmission // nil where none fits
	responses []*conversation.Transmission
	seen      map[int64]bool // PSNs of responses, where their order is not certain
}

func newTrain(r *conversation.Transmission) *train {
	return &train{responses: []*conversation.Transmission{r}, seen: map[int64]bool{r.Seq: true}}
}

func (t *train) add(r *conversation.Transmission) {
	t.responses = append(t.responses, r)
	t.seen[r.Seq] = true
}

func gather(s *stream, astray bool) *evidence {
	ev := &evidence{astray: astray, refusals: map[int64][]*conversation.Transmission{}, earlier: map[int64]int{}, arrivals: map[int64]int{},
		asked: map[*conversation.Message][]*conversation.Transmission{}, answers: map[*conversation.Transmission]*train{}, answerTo: map[*conversation.Transmission]*train{}, copies: map[*conversation.Transmission][]*train{}, given: map[int64][]*conversation.Transmission{},
		belated: map[*train]*conversation.Transmission{}, late: map[*conversation.Transmission]bool{}}
	ev.gatherMarks(s)
	ev.gatherTrains(s)
	ev.gatherRepeats(s)
	ev.gatherArrivals(s)
	return ev
}

// gatherRepeats reads the MSNs of answers that were given again: they count what was accepted when
// the request came again.
func (ev *evidence) gatherRepeats(s *stream) {
	sent := s.FirstSeq
	for _, e := range s.Requests {
		if t := ev.answerTo[e]; t != nil && t.responses[0].Info.Headers&packet.HasAETH != 0 {
			k := int((t.responses[0].AETH.MSN - s.FirstMSN) & packet.PSNMask)
			if k > 0 && k <= len(s.Messages) && s.Messages[k-1].First > e.Seq && s.Messages[k-1].End() <= sent {
				ev.marks = append(ev.marks, mark{s.Messages[k-1].End(), e.Index})
			}
		}
		sent = max(sent, e.End())
	}
	slices.SortStableFunc(ev.marks, func(a, b mark) int { return a.at - b.at })
	rising := ev.marks[:0]
	for _, m := range ev.marks {
		if len(rising) == 0 || m.psn > rising[len(rising)-1].psn {
			rising = append(rising, m)
		}
	}
	ev.marks = rising
}

// gatherArrivals decides, for each PSN that was accepted, which of its transmissions that was: the
// last one before the first reply that says so, and before the one that brought the next
// PSN. Of READs and atomics it is the first that was answered.
func (ev *evidence) gatherArrivals(s *stream) {
	byPSN := map[int64][]*conversation.Transmission{}
	var psns []int64
	for _, e := range s.Requests {
		if byPSN[e.Seq] == nil {
			psns = append(psns, e.Seq)
		}
		byPSN[e.Seq] = append(byPSN[e.Seq], e)
	}
	slices.Sort(psns)
	behind := never
	for _, psn := range slices.Backward(psns) {
		by := ev.accepted(psn)
		if by == never {
			behind = ev.drawn(s, psn, behind)
			continue
		}
		es := byPSN[psn]
		until := func(at int) []*conversation.Transmission {
			return es[:sort.Search(len(es), func(i int) bool { return es[i].Index >= at })]
		}
		in := until(min(by, behind))
		if at, ok := ev.earlier[psn]; ok && len(until(min(at, behind))) > 0 {
			in = until(min(at, behind))
		}
		if len(in) == 0 {
			continue
		}
		last := len(in) - 1
		for last > 0 && in[last].Copy {
			last--
		}
		behind = in[last].Index
		for _, e := range in {
			if ev.answerTo[e] != nil {
				behind = e.Index
				break
			}
		}
		ev.arrivals[psn] = behind
		behind = ev.drawn(s, psn, behind)
	}
}

// drawn returns the place of the request that drew the first refusal of psn, the latest that fits and
// lies before a place: by then all before psn had been accepted.
func (ev *evidence) drawn(s *stream, psn int64, before int) int {
	nak := ev.refusal(psn, -1, never, func(s packet.Syndrome) bool { return isSequence(s) || isRNR(s) })
	if nak == nil {
		return before
	}
	end := min(before, nak.SentBefore)
	i := sort.Search(len(s.Requests), func(i int) bool { return s.Requests[i].Index >= end })
	for j := i - 1; j >= max(0, i-alignReach); j-- {
		e := s.Requests[j]
		if isRNR(nak.AETH.Syndrome) && e.Seq == psn || isSequence(nak.AETH.Syndrome) && e.Seq > psn {
			return e.Index
		}
	}
	return before
}

// gatherMarks reads the acknowledgements. One of something that was not sent yet is no evidence.
func (ev *evidence) gatherMarks(s *stream) {
	sent := s.FirstSeq
	byPSN := map[int64][]*conversation.Transmission{}
	req := s.Requests
	var newest int64 = -1
	var recent []*conversation.Transmission // requests since the reply before
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
			waiting = r
		}
		if psn <= sent && psn > newest {
			newest = psn
			ev.marks = append(ev.marks, mark{psn, r.SentBefore})
		}
	}
}

// reACKReach bounds the requests that one ACK is understood to speak of.
const reACKReach = 1 << 10

// explained reports whether a recent request drew the ACK r: one that asked for it, or that is
// known to be a duplicate, all before newest having been acknowledged.
func explained(r *conversation.Transmission, recent []*conversation.Transmission, newest int64) bool {
	for _, e := range recent[max(0, len(recent)-reACKReach):] {
		if e.Seq <= r.Seq && (e.AckReq || e.Seq < newest) {
			return true
		}
	}
	return false
}

// reACK looks at an ACK of packets that did not ask for one: what drew it was a
// duplicate. If any of the recent requests is one, so is the lowest that came before.
func (ev *evidence) reACK(r *conversation.Transmission, recent []*conversation.Transmission, byPSN map[int64][]*conversation.Transmission, waiting *conversation.Transmission) {
	var drew *conversation.Transmission
	for _, e := range recent[max(0, len(recent)-reACKReach):] {
		if e.Seq <= r.Seq && (drew == nil || e.Seq <= drew.Seq) && before(e, byPSN[e.Seq], waiting) {
			drew = e
		}
	}
	if drew == nil {
		return
	}
	if at, ok := ev.earlier[drew.Seq]; !ok || drew.Index < at {
		ev.earlier[drew.Seq] = drew.Index
	}
}

// before reports whether a request was sent before, and since the NAK that waited for it or for one before.
func before(e *conversation.Transmission, sent []*conversation.Transmission, waiting *conversation.Transmission) bool {
	since := -1
	if waiting != nil && waiting.Seq <= e.Seq {
		since = waiting.SentBefore
	}
	i := sort.Search(len(sent), func(i int) bool { return sent[i].Index >= since })
	return i < len(sent) && sent[i].Index < e.Index
}

// accepted returns the place before which psn was accepted, or never.
func (ev *evidence) accepted(psn int64) int {
	i := sort.Search(len(ev.marks), func(i int) bool { return ev.marks[i].psn > psn })
	if i == len(ev.marks) {
		return never
	}
	return ev.marks[i].at
}

// refusalReach bounds how many refusals of one PSN are looked through.
const refusalReach = 64

// refusal returns the first reply that refuses psn after a place and before another.
func (ev *evidence) refusal(psn int64, from, to int, is func(packet.Syndrome) bool) *conversation.Transmission {
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

// gatherTrains finds out which transmission of a READ or an atomic each response answers.
func (ev *evidence) gatherTrains(s *stream) {
	for _, e := range s.Requests {
		if m := s.MessageAt(e.Seq); m != nil && e.Info.Kind.HasOwnResponse() {
			ev.asked[m] = append(ev.asked[m], e)
		}
	}
	var open *train
	for _, r := range s.RepliesSent {
		if r.Info.Kind != packet.KindReadResponse && r.Info.Kind != packet.KindAtomicAck {
			continue
		}
		if open != nil && open.goesOn(s, r) {
			open.add(r)
		} else {
			open = newTrain(r)
			ev.given[r.Seq] = append(ev.given[r.Seq], r)
		}
		ev.answers[r] = open
	}
	ev.align(s)
	for _, r := range s.RepliesSent {
		if t := ev.answers[r]; t != nil && t.request == nil && t.responses[0] == r {
			ev.place(s, t)
		}
	}
	if ev.astray {
		ev.tellLate(s)
	}
}

// goesOn reports whether a response belongs to the train behind its last.
func (t *train) goesOn(s *stream, r *conversation.Transmission) bool {
	last := t.responses[len(t.responses)-1]
	if r.Info.Kind != packet.KindReadResponse || last.Info.Kind != packet.KindReadResponse ||
		r.Info.Position.StartsMessage() || last.Info.Position.EndsMessage() || r.Seq <= last.Seq {
		return false
	}
	first := t.responses[0]
	if first.Info.Headers&r.Info.Headers&packet.HasAETH != 0 && first.AETH.MSN != r.AETH.MSN {
		return false // the rest of that train is missing, and the beginning of this one
	}
	m := s.MessageAt(last.Seq)
	return m != nil && r.Seq < m.End()
}

// placeReach bounds how many transmissions of one request are looked through.
const placeReach = 64

// place finds the request of a train for which align found none: its first response is missing,
// or it was overtaken, where the order of the replies is not certain.
func (ev *evidence) place(s *stream, t *train) {
	r := t.responses[0]
	m := s.MessageAt(r.Seq)
	if m == nil {
		return
	}
	asked := ev.asked[m]
	asked = asked[:sort.Search(len(asked), func(i int) bool { return asked[i].Index >= r.SentBefore })]
	asked = asked[max(0, len(asked)-placeReach):]
	if e := ev.answeredBefore(asked, r); e != nil && ev.astray {
		t.request = e
		ev.copies[e] = append(ev.copies[e], t)
		return
	}
	for i := len(asked) - 1; i >= 0; i-- {
		e := asked[i]
		if ev.answerTo[e] == nil && timely(s, e, r) && (e.Seq == r.Seq || e.Seq < r.Seq && r.Seq < e.End() && !r.Info.Position.StartsMessage()) {
			t.request, ev.answerTo[e] = e, t
			return
		}
	}
	if !s.Ordered && t.join(ev, asked) {
		return
	}
	if s.FirstMSN != 0 && len(s.Messages) > 0 && r.Seq < s.Messages[0].End() {
		return // it may answer what was sent before the capture began
	}
	for i := len(asked) - 1; i >= 0; i-- {
		if e := asked[i]; e.Seq == r.Seq && sameKind(e, r) {
			t.request = e
			if ev.answerTo[e] == nil {
				ev.answerTo[e] = t // it was late
			} else {
				ev.copies[e] = append(ev.copies[e], t)
			}
			return
		}
	}
}

// join makes the responses of t part of another train that lacks them, if there is one.
func (t *train) join(ev *evidence, asked []*conversation.Transmission) bool {
	r := t.responses[0]
	for _, e := range asked {
		other := ev.answerTo[e]
		if other == nil || other.seen[r.Seq] || r.Seq < e.Seq || r.Seq >= e.End() {
			continue
		}
		for _, r := range t.responses {
			other.add(r)
			ev.answers[r] = other
		}
		return true
	}
	return false
}

// later returns what answers a later transmission of an atomic, whose own answer is missing. It is the
// same: an atomic is carried out once.
func (ev *evidence) later(s *stream, e *conversation.Transmission) *train {
	asked := ev.asked[s.MessageAt(e.Seq)]
	for _, again := range asked[:min(len(asked), placeReach)] {
		if ev.answerTo[again] != nil {
			return ev.answerTo[again]
		}
	}
	return nil
}
