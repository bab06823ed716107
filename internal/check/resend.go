package check

import (
	"softroce/internal/conversation"
)

// resend takes a request, with PSN seq, that steps back behind others sent before it.
func (s *stream) resend(p *judgedPacket, r *request, seq int64) {
	s.goBacks++
	s.lastProgress = p.at
	s.restart = restart{active: true, seq: seq, end: s.endOf(r, seq), no: p.No, nak: s.nak.active && seq == s.nak.seq, after: p.at - r.at}
	switch {
	case s.nak.active && !s.nak.served && seq > s.nak.seq:
		s.pendingNAK = misplacedResend{active: true, want: s.nak.seq, nak: s.nak.no, seq: seq, no: p.No, name: p.name}
	case s.nak.active && !s.nak.served && seq < s.nak.seq:
		s.notes(p, noteBelowNAK)
	}
	if !s.resendExplained {
		s.checkUnexplained(p, r)
	}
	s.resendExplained = false
}

// causeless judges a resend that no reply of this capture explains: a timeout, or a
// reply that was lost... before it came here, which none is.
func (s *stream) checkUnexplained(p *judgedPacket, r *request) {
	if s.lateRequests > 0 || s.flow.peer == nil {
		return // times mean little, or the cause went another way
	}
	d := p.at - r.at
	if r.at == p.at && r.transmissions == 1 && r.no == p.No {
		return // seen for the first time: it was lost before the capture
	}
	if d < 0 {
		return // the capture's clock went back
	}
	if d+clockSlack < minTimeout {
		s.violates(p, ruleRetryInterval, "PSN %d again after %d ns", p.PSN, d)
		return
	}
	if s.timeout == 0 || d < s.timeout {
		s.timeout = d
	}
	r.retries++
	if r.retries == maxRetries+1 {
		s.notes(p, noteRetry7)
	}
}

// confirm looks whether the request behind a step back goes on from there. If so it was a
// resend, and not a late packet.
func (s *stream) confirmResend(p *judgedPacket, seq int64, r *request) {
	b := s.restart
	s.restart.active = false
	if !b.active || seq != b.end {
		return
	}
	// That it begins at the PSN of a NAK can be a timeout, with the first packet lost before
	// the capture; but not if it came much sooner than timeouts do.
	switch {
	case s.hasResponses: // a READ is asked for again although a NAK acknowledges it
	case b.nak && (!s.followedNAK.any || b.seq > s.followedNAK.seq):
		s.followedNAK = ackKnowledge{true, b.seq, b.after}
	case s.followedNAK.any && b.seq < s.followedNAK.seq && s.followedNAK.after < b.after/2:
		s.violation(ruleResendAcked, b.no, p.name, "begins again at PSN %d, after it did at %d", conversation.Wrap(b.seq), conversation.Wrap(s.followedNAK.seq))
	}
}

// serve looks whether a request that drew an RNR NAK has come again too soon.
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
		s.shortWaits = append(s.shortWaits, shortWait{no: p.No, seq: seq, after: d, wait: s.rnr.wait, since: p.at - s.rnr.last, flow: p.name})
	}
}

// A shortWait is a request that came again before the time of its RNR NAK.
type shortWait struct {
	no          int
	seq         int64
	after, wait int64 // since the NAK
	since       int64 // since it was sent before
	flow        string
}

// judgeWaits tells a requester that does not wait from one that did not get the NAK, once
// all of its waits are known: the latter sends again at a timeout, and not every time. One
// that missed the answer to a READ goes back to that at once, and the NAK counts for nothing.
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
		s.violation(ruleRNRWait, w.no, w.flow, "PSN %d again after %d ns of %d", conversation.Wrap(w.seq), w.after, w.wait)
	}
	s.shortWaits = nil
}

// skipped judges a resend that left out the NAK's PSN, once the responder has accepted
// that PSN all the same. Before that, the PSN may have been lost before the capture.
func (s *stream) skipped() {
	if s.pendingNAK.active && s.accepted >= s.pendingNAK.want {
		u := s.pendingNAK
		s.violation(ruleResendPSN, u.no, u.name, "begins at PSN %d, the NAK of packet %d names %d", conversation.Wrap(u.seq), u.nak, conversation.Wrap(u.want))
		s.pendingNAK.active = false
	}
}
