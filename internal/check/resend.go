package check

import (
	"slices"

	"softroce/internal/conversation"
)

// resend judges a request with a PSN below those sent before it.
func (s *stream) resend(p *judgedPacket, r *request, seq int64) {
	s.lastProgress, s.resent = p.at, true
	s.restart = restart{active: true, seq: seq, end: s.endOf(r, seq), no: p.No, nak: s.nak.active && seq == s.nak.seq, after: p.at - r.at}
	switch {
	case s.nak.active && !s.nak.served && seq > s.nak.seq && s.pendingNAK.active && s.pendingNAK.nak == s.nak.no:
	case s.nak.active && !s.nak.served && seq > s.nak.seq:
		s.pendingNAK = misplacedResend{active: true, want: s.nak.seq, nak: s.nak.no, from: s.nak.name, seq: seq, no: p.No, name: p.name(), whole: p.nothingBetween(s.counter, s.counted)}
	case s.nak.active && !s.nak.served && seq < s.nak.seq:
		s.noteOn(p, noteBelowNAK)
	}
	if !s.followsNAK(seq) && (s.explainedBy <= r.no && r.no != p.No || s.explainedBy == 0) {
		s.checkUnexplained(p, r)
	}
	s.explainedBy = 0
}

// maxUnfollowed is how many sequence NAKs may wait to be followed.
const maxUnfollowed = 8

// followsNAK reports whether a retransmission from seq on may be due to a sequence NAK. Each causes
// one, but perhaps not before the requester has gone back for an earlier NAK, which was delayed,
// too, and has passed its PSN.
func (s *stream) followsNAK(seq int64) bool {
	i := slices.Index(s.unfollowed, seq)
	s.unfollowed = s.unfollowed[i+1:]
	return i >= 0
}

// checkUnexplained judges a retransmission that no reply in the capture explains. It has to be a
// timeout.
func (s *stream) checkUnexplained(p *judgedPacket, r *request) {
	if s.lateRequests > 0 || s.flow.peer == nil {
		return // timestamps mean little, or the capture does not see the replies
	}
	d := p.at - r.at
	if r.at == p.at && r.transmissions == 1 && r.no == p.No {
		return // its first transmission was lost before the point of capture
	}
	if d < 0 {
		return // the clock of the capturing host went back
	}
	if d+clockSlack < conversation.MinTimeout {
		s.violates(p, ruleRetryInterval, "PSN %d retransmitted after %d ns", p.PSN, d)
		return
	}
	if s.timeout == 0 || d < s.timeout {
		s.timeout = d
	}
	r.retries++
	if r.retries == maxRetries+1 {
		s.noteOn(p, noteRetry7)
	}
}

// confirmResend judges the request after one that went back: if it continues from there, that one
// was a retransmission and not a late packet.
func (s *stream) confirmResend(p *judgedPacket, seq int64, r *request) {
	b := s.restart
	s.restart.active = false
	if !b.active || seq != b.end {
		return
	}
	// A retransmission that begins at the PSN of a NAK may still be a timeout whose first packet
	// was lost before the point of capture, but not if it came much sooner than timeouts do.
	switch {
	case s.hasResponses: // a READ is retransmitted although a NAK acknowledges it
	case b.nak && (!s.followedNAK.any || b.seq > s.followedNAK.seq):
		s.followedNAK = ackKnowledge{true, b.seq, b.after}
	case s.followedNAK.any && b.seq < s.followedNAK.seq && s.followedNAK.after < b.after/2:
		s.violation(ruleResendAcked, b.no, p.name(), true, "retransmission begins at PSN %d after one from %d", conversation.Wrap(b.seq), conversation.Wrap(s.followedNAK.seq))
	}
}

// checkRNRWait judges whether the request of an RNR NAK is retransmitted too soon.
func (s *stream) checkRNRWait(p *judgedPacket, seq int64) {
	if s.rnr.active && seq < s.rnr.seq {
		s.rnr.lower = true
	}
	if !s.rnr.active || seq != s.rnr.seq {
		return
	}
	s.rnr.active = false
	if s.rnr.lower {
		return
	}
	d := p.at - s.rnr.at
	if d < 0 || d+clockSlack >= s.rnr.wait {
		s.keptWaits++
		return
	}
	s.shortWaitCount++
	if len(s.shortWaits) < maxListed {
		s.shortWaits = append(s.shortWaits, shortWait{no: p.No, seq: seq, after: d, wait: s.rnr.wait, since: p.at - s.rnr.last, flow: p.name()})
	}
}

// A shortWait is a retransmission before the time of its RNR NAK has passed.
type shortWait struct {
	no          int
	seq         int64
	after, wait int64 // since the NAK
	since       int64 // since the transmission before
	flow        string
}

// judgeWaits distinguishes a requester that ignores RNR timers from one that did not receive some
// of the RNR NAKs, once all of its waits are known: the latter retransmits at its timeout, and not
// every time. A requester that misses the response to a READ retransmits it at once, whatever an
// RNR NAK says.
func (s *stream) judgeWaits() {
	few := 1
	if s.hasResponses {
		few = 6
	}
	for _, w := range s.shortWaits {
		if s.shortWaitCount <= s.keptWaits || s.shortWaitCount < few || s.timeout > 0 && w.since >= s.timeout/10*9 {
			s.note(noteEarlyRNR, w.no, w.flow)
			continue
		}
		s.violation(ruleRNRWait, w.no, w.flow, true, "PSN %d retransmitted after %d of %d ns; %d waits are too short", conversation.Wrap(w.seq), w.after, w.wait, s.shortWaitCount)
		break
	}
	s.shortWaits = nil
}

// acceptedSkippedPSN judges a retransmission that began after the PSN of the NAK, once the
// responder has accepted that PSN nevertheless. Until then the packet with that PSN may have been
// lost before the point of capture. If the requester certainly did not send it, the responder had
// it already.
func (s *stream) acceptedSkippedPSN() {
	if s.pendingNAK.active && s.accepted >= s.pendingNAK.want {
		u := s.pendingNAK
		if u.whole {
			s.violation(ruleNAKCause, u.nak, u.from, false, "PSN %d, which is accepted without a retransmission", conversation.Wrap(u.want))
		} else {
			s.violation(ruleResendPSN, u.no, u.name, true, "retransmission begins at PSN %d, the NAK of packet %d has %d", conversation.Wrap(u.seq), u.nak, conversation.Wrap(u.want))
		}
		s.pendingNAK.active = false
	}
}
