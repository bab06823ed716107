package conversation

import (
	"cmp"
	"slices"
	"sort"

	"softroce/packet"
)

// Where Identifications do not count up, a capture leaves open in which order replies were sent.

// maxResponses bounds the responses among which a packet is searched for its own.
const maxResponses = 64

// byMSN sorts replies whose order is not certain: MSNs never decrease. A packet without an MSN
// belongs to the first response that lacks its PSN.
func (s *Stream) byMSN() {
	type place struct {
		msn   int
		first *Transmission // of the response
		psn   int64
	}
	places := map[*Transmission]place{}
	firsts := map[*Message][]*Transmission{} // packets that begin responses, in the order of their MSNs
	msn := func(r *Transmission) int { return packet.PSNDiff(r.AETH.MSN, s.FirstMSN) }
	for _, r := range s.RepliesSent {
		if r.Info.Headers&packet.HasAETH != 0 {
			places[r] = place{msn(r), r, r.Seq}
		}
		if m := s.MessageAt(r.Seq); m != nil && r.Info.Position == packet.First {
			firsts[m] = append(firsts[m], r)
		}
	}
	for _, l := range firsts {
		slices.SortStableFunc(l, func(a, b *Transmission) int { return cmp.Compare(msn(a), msn(b)) })
	}
	type part struct {
		first *Transmission
		psn   int64
	}
	taken := map[part]bool{}
	next := map[int64]int{} // by PSN: the response from which on one may lack it
	for _, r := range s.RepliesSent {
		if r.Info.Kind != packet.KindReadResponse || r.Info.Position.StartsMessage() {
			continue
		}
		l := firsts[s.MessageAt(r.Seq)]
		i := next[r.Seq]
		for i < len(l) && taken[part{l[i], r.Seq}] {
			i++
		}
		next[r.Seq] = i
		if r.Info.Headers&packet.HasAETH != 0 {
			i = max(i, sort.Search(len(l), func(i int) bool { return msn(l[i]) >= msn(r) }))
		}
		for _, f := range l[i:min(len(l), i+maxResponses)] {
			at := part{f, r.Seq}
			if r.Seq > f.Seq && !taken[at] && (r.Info.Headers&packet.HasAETH == 0 || msn(r) == msn(f)) {
				taken[at], places[r] = true, place{msn(f), f, r.Seq}
				break
			}
		}
	}
	last := place{}
	order := map[*Transmission]place{}
	for _, r := range s.RepliesSent {
		if p, ok := places[r]; ok {
			last = p
		}
		order[r] = last
	}
	slices.SortStableFunc(s.RepliesSent, func(a, b *Transmission) int {
		x, y := order[a], order[b]
		if c := cmp.Compare(x.msn, y.msn); c != 0 || x.first == nil || y.first == nil {
			return c
		}
		return cmp.Or(cmp.Compare(x.first.Index, y.first.Index), cmp.Compare(x.psn, y.psn))
	})
	setSentBefore(s.RepliesSent)
	s.begin()
}

// ByMSN returns the reading that replies were sent in the order of their MSNs, and that the network
// has reordered them. It returns nil if their Identifications say otherwise.
func (s *Stream) ByMSN() *Stream {
	if s.Ordered {
		return nil
	}
	renew := func(ts []*Transmission) (out []*Transmission) {
		for _, t := range ts {
			out = append(out, NewTransmission(t.Packet, t.Index))
		}
		return out
	}
	n := newStream(renew(s.Requests), renew(s.Replies), &Capture{Packets: s.packets, activity: s.activity})
	n.LastIndex, n.Refused, n.unrequested = s.LastIndex, s.Refused, s.unrequested
	n.byMSN()
	return n
}
