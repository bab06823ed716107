package replay

import (
	"math"
	"slices"
	"sort"

	"softroce/packet"
)

// never is a place in the capture behind everything.
const never = math.MaxInt

// Evidence is what the captured replies say about which requests the responder accepted, and when at
// the latest. A reply with PSN n means that everything before n was accepted, an ACK or
// a response that n was, too.
type evidence struct {
	astray bool // among requests that were sent again, some came late or twice

	marks    []mark                // rising
	refusals map[int64][]*event    // NAKs and RNR NAKs, by the PSN that they name
	earlier  map[int64]int         // PSNs that must have been accepted before a place, though sent again later
	arrivals map[int64]int         // the place of the transmission of each PSN that was accepted
	asked    map[*message][]*event // transmissions of READs and atomics
	answers  map[*event]*train     // responses to their trains
	belated  map[*train]*event     // of copies, those that are rather the answer to an earlier transmission, which came late
	late     map[*event]bool       // those transmissions
	given    map[int64][]*event    // first responses of trains, by PSN
	copies   map[*event][]*train   // answers given once more to a request that was sent once: it came twice
}

// A mark says that all PSNs before psn were accepted before the place at.
type mark struct {
	psn int64
	at  int
}

// A train is the responses to one transmission of a READ, or the answer to one of an atomic.
type train struct {
	request   *event // nil where none fits
	responses []*event
	seen      map[int64]bool // PSNs of responses, where their order is not certain
}

func newTrain(r *event) *train {
	return &train{responses: []*event{r}, seen: map[int64]bool{r.psn: true}}
}

func (t *train) add(r *event) {
	t.responses = append(t.responses, r)
	t.seen[r.psn] = true
}

func gather(s *stream, astray bool) *evidence {
	ev := &evidence{astray: astray, refusals: map[int64][]*event{}, earlier: map[int64]int{}, arrivals: map[int64]int{},
		asked: map[*message][]*event{}, answers: map[*event]*train{}, copies: map[*event][]*train{}, given: map[int64][]*event{},
		belated: map[*train]*event{}, late: map[*event]bool{}}
	ev.gatherMarks(s)
	ev.gatherTrains(s)
	ev.gatherRepeats(s)
	ev.gatherArrivals(s)
	return ev
}

// gatherRepeats reads the MSNs of answers that were given again: they count what was accepted when
// the request came again.
func (ev *evidence) gatherRepeats(s *stream) {
	sent := s.base
	for _, e := range s.requests {
		if t := e.answers; t != nil && t.responses[0].info.Headers&packet.HasAETH != 0 {
			k := int((t.responses[0].AETH.MSN - s.msn) & packet.PSNMask)
			if k > 0 && k <= len(s.messages) && s.messages[k-1].first > e.psn && s.messages[k-1].end() <= sent {
				ev.marks = append(ev.marks, mark{s.messages[k-1].end(), e.at})
			}
		}
		sent = max(sent, e.end())
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
	byPSN := map[int64][]*event{}
	var psns []int64
	for _, e := range s.requests {
		if byPSN[e.psn] == nil {
			psns = append(psns, e.psn)
		}
		byPSN[e.psn] = append(byPSN[e.psn], e)
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
		until := func(at int) []*event {
			return es[:sort.Search(len(es), func(i int) bool { return es[i].at >= at })]
		}
		in := until(min(by, behind))
		if at, ok := ev.earlier[psn]; ok && len(until(min(at, behind))) > 0 {
			in = until(min(at, behind))
		}
		if len(in) == 0 {
			continue
		}
		last := len(in) - 1
		for last > 0 && in[last].copied {
			last--
		}
		behind = in[last].at
		for _, e := range in {
			if e.answers != nil {
				behind = e.at
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
	end := min(before, nak.pos)
	i := sort.Search(len(s.requests), func(i int) bool { return s.requests[i].at >= end })
	for j := i - 1; j >= max(0, i-alignReach); j-- {
		e := s.requests[j]
		if isRNR(nak.AETH.Syndrome) && e.psn == psn || isSequence(nak.AETH.Syndrome) && e.psn > psn {
			return e.at
		}
	}
	return before
}

// gatherMarks reads the acknowledgements. One of something that was not sent yet is no evidence.
func (ev *evidence) gatherMarks(s *stream) {
	sent := s.base
	byPSN := map[int64][]*event{}
	req := s.requests
	var newest int64 = -1
	var recent []*event // requests since the reply before
	var waiting *event  // the latest NAK
	for _, r := range s.answered {
		if len(req) > 0 && req[0].at < r.pos {
			recent = nil
		}
		for len(req) > 0 && req[0].at < r.pos {
			e := req[0]
			req = req[1:]
			sent = max(sent, e.end())
			byPSN[e.psn] = append(byPSN[e.psn], e)
			recent = append(recent, e)
		}
		psn := r.psn
		switch {
		case r.info.Kind != packet.KindAck:
			psn++
			if m := s.of(r.psn); m != nil {
				psn = m.end()
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
			ev.marks = append(ev.marks, mark{psn, r.pos})
		}
	}
}

// reACKReach bounds the requests that one ACK is understood to speak of.
const reACKReach = 1 << 10

// explained reports whether a recent request drew the ACK r: one that asked for it, or that is
// known to be a duplicate, all before newest having been acknowledged.
func explained(r *event, recent []*event, newest int64) bool {
	for _, e := range recent[max(0, len(recent)-reACKReach):] {
		if e.psn <= r.psn && (e.AckReq || e.psn < newest) {
			return true
		}
	}
	return false
}

// reACK looks at an ACK of packets that did not ask for one: what drew it was a
// duplicate. If any of the recent requests is one, so is the lowest that came before.
func (ev *evidence) reACK(r *event, recent []*event, byPSN map[int64][]*event, waiting *event) {
	var drew *event
	for _, e := range recent[max(0, len(recent)-reACKReach):] {
		if e.psn <= r.psn && (drew == nil || e.psn <= drew.psn) && before(e, byPSN[e.psn], waiting) {
			drew = e
		}
	}
	if drew == nil {
		return
	}
	if at, ok := ev.earlier[drew.psn]; !ok || drew.at < at {
		ev.earlier[drew.psn] = drew.at
	}
}

// before reports whether a request was sent before, and since the NAK that waited for it or for one before.
func before(e *event, sent []*event, waiting *event) bool {
	since := -1
	if waiting != nil && waiting.psn <= e.psn {
		since = waiting.pos
	}
	i := sort.Search(len(sent), func(i int) bool { return sent[i].at >= since })
	return i < len(sent) && sent[i].at < e.at
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
func (ev *evidence) refusal(psn int64, from, to int, is func(packet.Syndrome) bool) *event {
	rs := ev.refusals[psn]
	rs = rs[sort.Search(len(rs), func(i int) bool { return rs[i].pos > from }):]
	for _, r := range rs[:min(len(rs), refusalReach)] {
		if r.pos >= to {
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
	for _, e := range s.requests {
		if m := s.of(e.psn); m != nil && answeredKind(e.info.Kind) {
			ev.asked[m] = append(ev.asked[m], e)
		}
	}
	var open *train
	for _, r := range s.answered {
		if r.info.Kind != packet.KindReadResponse && r.info.Kind != packet.KindAtomicAck {
			continue
		}
		if open != nil && open.goesOn(s, r) {
			open.add(r)
		} else {
			open = newTrain(r)
			ev.given[r.psn] = append(ev.given[r.psn], r)
		}
		ev.answers[r] = open
	}
	ev.align(s)
	for _, r := range s.answered {
		if t := ev.answers[r]; t != nil && t.request == nil && t.responses[0] == r {
			ev.place(s, t)
		}
	}
	if ev.astray {
		ev.tellLate(s)
	}
}

// answeredKind reports whether a request has an answer of its own, which an ACK does not replace.
func answeredKind(k packet.Kind) bool {
	return k == packet.KindRead || k == packet.KindFlush || k == packet.KindAtomicWrite || isAtomic(k)
}

func isAtomic(k packet.Kind) bool { return k == packet.KindCompareSwap || k == packet.KindFetchAdd }

// goesOn reports whether a response belongs to the train behind its last.
func (t *train) goesOn(s *stream, r *event) bool {
	last := t.responses[len(t.responses)-1]
	if r.info.Kind != packet.KindReadResponse || last.info.Kind != packet.KindReadResponse ||
		r.info.Position.StartsMessage() || last.info.Position.EndsMessage() || r.psn <= last.psn {
		return false
	}
	first := t.responses[0]
	if first.info.Headers&r.info.Headers&packet.HasAETH != 0 && first.AETH.MSN != r.AETH.MSN {
		return false // the rest of that train is missing, and the beginning of this one
	}
	m := s.of(last.psn)
	return m != nil && r.psn < m.end()
}

// placeReach bounds how many transmissions of one request are looked through.
const placeReach = 64

// place finds the request of a train for which align found none: its first response is missing,
// or it was overtaken, where the order of the replies is not certain.
func (ev *evidence) place(s *stream, t *train) {
	r := t.responses[0]
	m := s.of(r.psn)
	if m == nil {
		return
	}
	asked := ev.asked[m]
	asked = asked[:sort.Search(len(asked), func(i int) bool { return asked[i].at >= r.pos })]
	asked = asked[max(0, len(asked)-placeReach):]
	if e := answeredBefore(asked, r); e != nil && ev.astray {
		t.request = e
		ev.copies[e] = append(ev.copies[e], t)
		return
	}
	for i := len(asked) - 1; i >= 0; i-- {
		e := asked[i]
		if e.answers == nil && timely(s, e, r) && (e.psn == r.psn || e.psn < r.psn && r.psn < e.end() && !r.info.Position.StartsMessage()) {
			t.request, e.answers = e, t
			return
		}
	}
	if !s.ordered && t.join(ev, asked) {
		return
	}
	if s.msn != 0 && len(s.messages) > 0 && r.psn < s.messages[0].end() {
		return // it may answer what was sent before the capture began
	}
	for i := len(asked) - 1; i >= 0; i-- {
		if e := asked[i]; e.psn == r.psn && sameKind(e, r) {
			t.request = e
			if e.answers == nil {
				e.answers = t // it was late
			} else {
				ev.copies[e] = append(ev.copies[e], t)
			}
			return
		}
	}
}

// join makes the responses of t part of another train that lacks them, if there is one.
func (t *train) join(ev *evidence, asked []*event) bool {
	r := t.responses[0]
	for _, e := range asked {
		other := e.answers
		if other == nil || other.seen[r.psn] || r.psn < e.psn || r.psn >= e.end() {
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
func (ev *evidence) later(s *stream, e *event) *train {
	asked := ev.asked[s.of(e.psn)]
	for _, again := range asked[:min(len(asked), placeReach)] {
		if again.answers != nil {
			return again.answers
		}
	}
	return nil
}
