package conversation

import (
	"iter"
	"slices"

	"softroce/capture"
	"softroce/cm"
	"softroce/packet"
)

// A capture may begin in the middle of a connection, of a message, or of a retransmission. This
// file finds the first PSN of a stream that can be judged, and the MSN before it.

// findFirst sets FirstSeq to the lowest PSN of the requests before the first reply, or to the PSN
// that the first reply is a NAK for, if that is lower.
func (s *Stream) findFirst() {
	first := s.Requests[0]
	s.FirstSeq = first.Seq
	until := int(^uint(0) >> 1)
	if len(s.RepliesSent) > 0 {
		r := s.RepliesSent[0]
		until = r.SentBefore
		if r.Info.Kind == packet.KindAck && !r.AETH.Syndrome.IsACK() && r.Seq < s.FirstSeq && r.Seq > s.FirstSeq-maxLost {
			s.FirstSeq = r.Seq
		}
	}
	for _, e := range s.Requests {
		if e.Index > until {
			break
		}
		if e.Seq > first.Seq-maxLost {
			s.FirstSeq = min(s.FirstSeq, e.Seq)
		}
	}
}

// maxLost bounds the PSNs that may have been lost at once. NICs have fewer outstanding.
const maxLost = 1 << 12

// begin assembles the messages from FirstSeq on, and infers the MSN before them.
func (s *Stream) begin() {
	s.assemble()
	s.FirstMSN = s.startMSN()
}

// startMSN infers the MSN before the stream: 0 for a new queue pair. Each reply to a new request
// has a vote. A single vote does not count if the capture seems to contain the creation of the
// connection.
func (s *Stream) startMSN() uint32 {
	votes := map[uint32]int{}
	newest := s.FirstSeq - 1
	for _, r := range s.RepliesSent {
		if r.Info.Headers&packet.HasAETH == 0 || r.Seq < newest {
			continue
		}
		last := r.Seq
		switch {
		case r.Info.Kind == packet.KindAck && !r.AETH.Syndrome.IsACK():
			last--
		case r.Info.Kind != packet.KindAck:
			if m := s.MessageAt(r.Seq); m != nil {
				last = m.End() - 1
			}
		}
		newest = last
		votes[(r.AETH.MSN-s.MessagesThrough(last))&packet.PSNMask]++
	}
	best := uint32(0)
	for msn, n := range votes {
		if n > votes[best] || n == votes[best] && best != 0 && msn < best {
			best = msn
		}
	}
	if votes[best] == 1 && s.hasSetup() {
		return 0
	}
	return best
}

// hasSetup reports whether the capture has packets before the stream by which programs may have
// connected the queue pairs: those of the connection manager, or frames of other protocols.
func (s *Stream) hasSetup() bool {
	first := s.Requests[0]
	if first.No > first.Index+1 {
		return true
	}
	return slices.ContainsFunc(s.packets[:first.Index], mayConnect)
}

// mayConnect reports whether a packet may belong to the beginning of a connection: of the
// connection manager's messages only the request does.
func mayConnect(p *capture.Packet) bool {
	if p.Opcode.Service() != packet.UD {
		return false
	}
	_, m, _ := cm.Parse(p.Payload)
	return p.DestQP != cm.GSIQPN || m == nil || m.Attribute() == cm.AttrREQ
}

// maxFirstReplies bounds the replies that are searched for requests before the capture.
const maxFirstReplies = 1 << 8

// moveFirst reports whether requests from FirstSeq on were accepted before the capture began, so
// that it has only retransmissions of them. If so, it moves FirstSeq behind them.
func (s *Stream) moveFirst() bool {
	latest := map[int64]*Transmission{}
	first := map[int64]*Transmission{}
	req := s.Requests
	for _, r := range s.RepliesSent[:min(len(s.RepliesSent), maxFirstReplies)] {
		for len(req) > 0 && req[0].Index < r.SentBefore {
			e := req[0]
			req = req[1:]
			latest[e.Seq] = e
			if first[e.Seq] == nil {
				first[e.Seq] = e
			}
		}
		end, by := s.acceptedBy(r, latest[r.Seq])
		if end <= s.FirstSeq || end > s.FirstSeq+maxLost {
			continue
		}
		last := end - 1
		if m := s.MessageAt(last); m != nil && m.Kind.HasOwnResponse() {
			last = m.First
		}
		if e := first[last]; e == nil && s.MessageAt(last) == nil || e != nil && e.Index >= by {
			s.FirstSeq = end
			return true
		}
	}
	return false
}

// acceptedBy returns what a reply acknowledges: all requests before end were accepted before an
// index in the capture. asked is the latest request with its PSN.
func (s *Stream) acceptedBy(r, asked *Transmission) (end int64, index int) {
	if r.Info.Kind == packet.KindAck {
		end = r.Seq
		if r.AETH.Syndrome.IsACK() {
			end++
		}
		return end, r.SentBefore
	}
	k := int((r.AETH.MSN - s.FirstMSN) & packet.PSNMask)
	if asked == nil || r.Info.Headers&packet.HasAETH == 0 || k < 1 || k > len(s.Messages) || s.Messages[k-1].First <= asked.Seq {
		return s.FirstSeq, 0
	}
	return s.Messages[k-1].End(), asked.Index
}

// maxPast bounds the messages from before the capture that a requester may repeat in it.
const maxPast = 1 << 10

// Later returns readings of a stream that begins inside a retransmission: its first 1, 2, 3, 5, …
// messages, or all, were accepted before the capture, which shows neither when nor how. There are
// none if the capture has the beginning of the queue pair, or no sign of such a retransmission.
func (s *Stream) Later() iter.Seq[*Stream] {
	return func(yield func(*Stream) bool) {
		all := min(len(s.Messages), maxPast)
		if all == 0 || s.FirstMSN == 0 && len(s.unrequested) == 0 && !s.resumesRead() || !s.repeatsPast() && !s.resumesRead() {
			return
		}
		for n := 1; ; n = min(n+(n+1)/2, all) {
			t := *s
			t.FirstSeq = s.Messages[n-1].End()
			t.begin()
			if !yield(&t) || n == all {
				return
			}
		}
	}
}

// repeatsPast reports whether requests from FirstSeq on were certainly sent before the capture: the
// responder replies to one that the capture does not have by then, or one of the queue pairs goes
// back below FirstSeq, or to it from the first request of the capture.
func (s *Stream) repeatsPast() bool {
	if s.Requests[0].Seq > s.FirstSeq {
		return true
	}
	sent := map[int64]bool{}
	first := func(psn int64) int64 {
		if m := s.MessageAt(psn); m != nil && m.Kind.HasOwnResponse() {
			return m.First
		}
		return psn
	}
	req, asked, replied := s.Requests, false, false
	for _, r := range slices.Concat(s.unrequested, s.RepliesSent) {
		for len(req) > 0 && req[0].Index < r.SentBefore {
			isPast := req[0].Seq < s.FirstSeq
			if isPast && asked {
				return true
			}
			asked = !isPast
			sent[first(req[0].Seq)] = true
			req = req[1:]
		}
		psn := Unwrap(r.BTH.PSN, s.FirstSeq)
		if r.Info.Kind == packet.KindAck && !r.AETH.Syndrome.IsACK() {
			psn--
		}
		isPast := psn < s.FirstSeq
		if isPast && replied || !isPast && !sent[first(psn)] {
			return true
		}
		replied = !isPast
	}
	return false
}

// resumesRead reports whether the stream begins with a READ that was retransmitted from its middle:
// more than one response to it continues an earlier one, as the Linux driver's do.
func (s *Stream) resumesRead() bool {
	n := 0
	for _, r := range s.RepliesSent {
		if r.Seq == s.FirstSeq && r.Info.Kind == packet.KindReadResponse && !r.Info.Position.StartsMessage() {
			n++
		}
	}
	return n > 1
}
