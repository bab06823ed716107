package replay

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"softroce/capture"
	"softroce/packet"
)

// An event is a packet of a stream.
type event struct {
	*capture.Packet
	info *packet.Info
	at   int // its place in the capture

	// pos is the place in the capture before which it must have been sent: its own, or that
	// of a packet which was sent after it and captured before it.
	pos    int
	psn    int64 // extended: counts on where 24 bits wrap
	n      int64 // PSNs that a request takes
	copied bool  // the network made it from the one before
	early  bool  // behind the point of capture it overtook one that was sent before it

	answers *train // of a READ or atomic request: what answers it
	next    *event // the next transmission of a request with this PSN that the requester made
}

// end is the PSN behind a request's last.
func (e *event) end() int64 { return e.psn + e.n }

// A stream is the requests of one queue pair and the replies of its peer. Each is there in two
// orders: that of the capture, in which the receiver has them, and that in which they were sent.
type stream struct {
	report   *Stream
	requests []*event
	sent     []*event // requests without the network's copies
	replies  []*event
	answered []*event // replies in the order in which they were sent, without the network's copies
	ordered  bool     // the order of answered is certain
	mtu      int
	base     int64 // the first PSN that is judged
	msn      uint32
	messages []*message
	talk     talk
	packets  capture.Packets // the whole capture
	newest   int             // the place of the last request that was new
	dead     bool            // one of the queue pairs refused something for good
	lastWord int             // the place of the last packet of the responder's queue pair, requests too
}

// extendedStart is a multiple of 2^24 far above 0, so that PSNs before the first are positive.
const extendedStart = 1 << 40

// newStream puts a run of requests and the replies to it in order.
func newStream(r *run, replies []*event, t talk, ps capture.Packets) *stream {
	s := &stream{requests: r.events, replies: replies, talk: t, packets: ps}
	s.mtu = findMTU(s.requests, s.replies)
	anchor := int64(extendedStart) + int64(r.events[0].BTH.PSN)
	s.extend(&anchor)
	s.sent, _ = sendOrder(s.requests)
	s.answered, s.ordered = sendOrder(s.replies)
	s.findBase()
	s.begin()
	for s.msn != 0 && s.moveBase() {
		s.begin()
	}
	s.chain()
	return s
}

// unchangedFor is how long memory is taken to stay as it is while the programs on both
// sides say nothing.
const unchangedFor = time.Second

// free reports whether something outside the connection may have changed the responder's memory
// between a place in the capture and a reply: programs had time, or reason.
func (s *stream) free(since int, r *event) bool {
	if since < 0 || since >= len(s.packets) {
		return true
	}
	return s.talk.between(s.requests[0].Dst, since, r.at) || r.Time.Sub(s.packets[since].Time) > unchangedFor
}

// extend gives every packet its extended PSN. Requests and replies move on together.
func (s *stream) extend(anchor *int64) {
	req, rep := s.requests, s.replies
	for len(req) > 0 || len(rep) > 0 {
		var e *event
		if len(rep) == 0 || len(req) > 0 && req[0].at < rep[0].at {
			e, req = req[0], req[1:]
		} else {
			e, rep = rep[0], rep[1:]
		}
		e.psn = *anchor + int64(packet.PSNDiff(e.BTH.PSN, uint32(*anchor)&packet.PSNMask))
		e.n = 1
		if !e.info.Request {
			continue
		}
		if e.info.Kind == packet.KindRead {
			e.n = int64(packet.PSNCount(e.RETH.Length, s.mtu))
		}
		// A READ may reach far; the anchor must not run away with what a NIC cannot have meant.
		*anchor = max(*anchor, min(e.end(), e.psn+runReach))
	}
}

// chain links the transmissions of each PSN.
func (s *stream) chain() {
	last := map[int64]*event{}
	for _, e := range s.requests {
		if e.copied {
			continue
		}
		if before := last[e.psn]; before != nil {
			before.next = e
		}
		last[e.psn] = e
	}
}

// sendOrder returns packets of one sender in the order in which they were sent, without the
// copies that the network made. Where the IPv4 identification counts, it tells the order,
// and certain is true; otherwise the order of the capture has to do.
func sendOrder(captured []*event) (sent []*event, certain bool) {
	ids, counts := identifications(captured)
	order := slices.Clone(captured)
	if counts {
		slices.SortStableFunc(order, func(a, b *event) int { return cmp.Compare(ids[a], ids[b]) })
	}
	for i, e := range order {
		if i > 0 && copyOf(order[i-1], e, counts) {
			e.copied = true
			continue
		}
		sent = append(sent, e)
	}
	for i := len(sent) - 2; i >= 0; i-- {
		sent[i].pos = min(sent[i].at, sent[i+1].pos)
	}
	return sent, counts
}

// copyWithin is how soon after a packet the network's copy of it comes, if there is no
// identification to tell a copy from a packet that was sent again.
const copyWithin = time.Millisecond

// copyOf reports whether b, which came after a, is a copy of it that the network made.
func copyOf(a, b *event, counts bool) bool {
	if !bytes.Equal(a.IP, b.IP) {
		return false
	}
	return counts || b.Time.Sub(a.Time) < copyWithin
}

// identifications extends the IPv4 identifications of packets beyond 16 bits, and finds
// out whether they count up, so that they tell the order in which the packets were sent.
func identifications(es []*event) (ids map[*event]int64, count bool) {
	const reordered = 512 // a packet is not overtaken by more than this
	ids = make(map[*event]int64, len(es))
	seen := make(map[int64]*event, len(es))
	var newest int64
	up := 0
	for i, e := range es {
		if !e.Src.Is4() {
			return nil, false
		}
		id := newest + int64(int16(e.ID-uint16(newest)))
		if i == 0 {
			id = int64(e.ID) + 1<<16
			newest = id
		}
		if other := seen[id]; other != nil && !bytes.Equal(other.IP, e.IP) || id < newest-reordered {
			return nil, false
		}
		if id > newest {
			up++
			newest = id
		}
		ids[e], seen[id] = id, e
	}
	return ids, len(es) >= 4 && 2*up > len(es)
}
