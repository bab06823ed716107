package check

import (
	"time"

	"softroce/internal/conversation"
	"softroce/packet"
)

// request judges a request of RC or XRC.
func (s *stream) request(p *judgedPacket, when conversation.Lateness) {
	if !s.started {
		s.start(p.PSN)
	}
	s.comeBack(p.PSN, false)
	seq := s.unwrap(p.PSN)
	s.judgeDiffering(seq, false)
	if s.far(seq) {
		s.leave(p)
		seq = s.next
	}
	s.follow(p, seq)
	expected := s.next
	r, repeat, ok := s.findOrInsert(p, seq)
	s.order(p, seq, repeat, when)
	defer func() {
		s.reportACK()
		s.newest, s.counter, s.counted = p.No, p.counter, p.counted
	}()
	if !ok {
		return
	}
	if s.pendingNAK.active && seq == s.pendingNAK.want {
		s.pendingNAK.active = false // it was delayed, or lost before the point of capture
	}
	s.nak.served = s.nak.served || s.nak.active && seq == s.nak.seq
	s.lateRequests += bit(when == conversation.Late)
	isLate := when == conversation.Late || repeat && r.isCopy(p)
	same := repeat && !s.differs(p, r, seq)
	if soon := same && !isLate && !p.headersCut && r.no == s.newest && r.Seq == seq && s.explainedBy <= r.no && p.at-r.at < conversation.MinTimeout; repeat && !same || soon {
		j := s.lastJump()
		if j == nil || j.no != r.no {
			s.hold(p, seq, *r, same)
			r.transmissions++
			return
		}
		j.returned = true
		s.accuseJump(*j)
		expected = s.next
		if r, repeat, ok = s.findOrInsert(p, seq); !ok {
			return // the request before, a READ, stands where it has this PSN too
		}
	}
	if repeat {
		if isLate {
			r.transmissions++ // the responder receives it too
		}
		s.skipped.clear(r.Seq)
	} else if seq >= s.next {
		if seq > s.next {
			s.noteOn(p, noteGap)
			s.Gaps++
			s.addJump(p, r, expected)
		}
		s.next = r.End()
		s.checkOverdue(p)
		s.checkReads(p, r)
	}
	if isLate {
		return
	}
	s.sentOnTime(p, r, seq, repeat)
}

// sentOnTime judges a request, r, by what the requester did before.
func (s *stream) sentOnTime(p *judgedPacket, r *request, seq int64, repeat bool) {
	s.sentAgain(p, r, seq, repeat)
	s.confirmResend(p, seq, r)
	if seq < s.prevEnd {
		s.resend(p, r, seq)
	}
	s.checkRNRWait(p, seq)
	if repeat {
		r.sent(p)
	}
	s.prevEnd = s.endOf(r, seq)
}

// endOf returns the PSN after a transmission from seq on of the request r.
func (s *stream) endOf(r *request, seq int64) int64 { return max(r.End(), seq+1) }

// far reports whether a PSN is too far from those of the stream to belong to it.
func (s *stream) far(seq int64) bool {
	d := seq - s.next
	if len(s.requests) > 0 && s.requests[len(s.requests)-1].NumPSNs == 0 {
		return false // after a READ of unknown length
	}
	lowest := s.next
	if len(s.requests) > 0 {
		lowest = s.requests[0].Seq
	}
	return d > conversation.MaxPSNStep || seq < lowest-conversation.MaxPSNStep
}

// findOrInsert returns the record of the request p, and whether it was there before. It is not ok
// where p cannot be identified.
func (s *stream) findOrInsert(p *judgedPacket, seq int64) (r *request, repeat, ok bool) {
	i := s.find(seq)
	switch {
	case i >= 0 && s.requests[i].Seq == seq:
		return &s.requests[i], true, true
	case i < 0 && (seq < s.begin || s.trimmed):
		// The request is from before the capture, or no longer kept.
		if seq < s.begin && !p.accused {
			s.hold(p, seq, request{}, false)
			return nil, false, false
		}
		s.prevEnd = seq + 1
		s.hasResponses = true // it may have a response of its own
		return nil, false, false
	case i >= 0 && seq < s.requests[i].End():
		r = &s.requests[i]
		if s.isPartialRead(p, r, seq) {
			return r, true, true
		}
		if p.headersCut {
			if p.info.Kind == packet.KindRead { // most likely it goes to the end
				s.remember(r, partialRead{seq, r.End() - seq, r.length - uint32(seq-r.Seq)*uint32(s.flow.mtu)})
			}
			return r, true, true
		}
		s.keepAs(p, s.next)
		s.violates(p, rulePSNOverlap, "%v has PSN %d, a READ has %d to %d", p.Opcode, p.PSN, conversation.Wrap(r.Seq), conversation.Wrap(r.End()-1))
		return nil, false, false
	}
	r = s.insert(s.newRequest(p, seq))
	if s.flow.peer != nil {
		s.Messages += bit(r.Info.Position.EndsMessage())
	}
	r.transmissions += s.rejectedOf(seq)
	s.hasResponses = s.hasResponses || r.Info.Kind.HasOwnResponse()
	s.checkNeighbors(p, r)
	return r, false, true
}

// isPartialRead reports whether p is a retransmission of the READ r from seq on, and records it.
func (s *stream) isPartialRead(p *judgedPacket, r *request, seq int64) bool {
	if !s.isPartOf(p, r, seq) {
		return false
	}
	s.remember(r, partialRead{seq, conversation.ReadPSNs(p.RETH.Length, s.flow.mtu, s.flow.fits), p.RETH.Length})
	return true
}

// isPartOf reports whether p asks for a part of the READ r, from seq on.
func (s *stream) isPartOf(p *judgedPacket, r *request, seq int64) bool {
	if p.info.Kind != packet.KindRead || r.Info.Kind != packet.KindRead {
		return false
	}
	skipped := uint64(seq-r.Seq) * uint64(s.flow.mtu)
	return p.RETH.VA == r.va+skipped && p.RETH.RKey == r.rkey && uint64(p.RETH.Length)+skipped <= uint64(r.length)
}

func (s *stream) remember(r *request, a partialRead) {
	for _, known := range r.partialReads {
		if known == a {
			return
		}
	}
	if len(r.partialReads) == maxPartialReads {
		r.partialReads = append(r.partialReads[:0], r.partialReads[1:]...)
	}
	r.partialReads = append(r.partialReads, a)
}

// checkNeighbors judges whether r may follow the request before it and precede the one after it.
func (s *stream) checkNeighbors(p *judgedPacket, r *request) {
	i := s.find(r.Seq)
	if r.Info.Position.StartsMessage() {
		r.offset = 0
		if r.Info.Kind == packet.KindWrite && !r.unknown {
			r.total = int64(r.length)
		}
	}
	if i > 0 && s.requests[i-1].Adjoins(&r.Part) {
		s.checkFollows(p, &s.requests[i-1], r)
	}
	for ; i+1 < len(s.requests) && s.requests[i].Adjoins(&s.requests[i+1].Part); i++ {
		a, b := &s.requests[i], &s.requests[i+1]
		if a != r && (b.offset >= 0 || a.offset < 0) {
			break // judged before
		}
		s.checkFollows(p, a, b)
	}
}

// checkFollows judges whether b may follow a, and adds up the bytes of their message.
func (s *stream) checkFollows(p *judgedPacket, a, b *request) {
	if !a.FollowedBy(&b.Part) {
		s.recountMessages(b.Seq)
	}
	if a.accused || b.accused {
		return
	}
	if !a.FollowedBy(&b.Part) {
		b.accused = true
		s.violates(p, ruleSequence, "%v with PSN %d after %v with PSN %d", b.opcode, conversation.Wrap(b.Seq), a.opcode, conversation.Wrap(a.Seq))
		return
	}
	if !a.ContinuedBy(&b.Part) || a.offset < 0 {
		return
	}
	b.offset, b.total = a.offset+int64(a.payload), a.total
	if b.total < 0 {
		return
	}
	sum := b.offset + int64(b.payload)
	if ends := b.Info.Position.EndsMessage(); ends && sum != b.total || !ends && sum >= b.total {
		s.violates(p, ruleDMALength, "%v with PSN %d: %d bytes of %d so far", b.opcode, conversation.Wrap(b.Seq), sum, b.total)
	}
}

// differs reports whether p, with the PSN of an earlier request, r, is not the same packet.
func (s *stream) differs(p *judgedPacket, r *request, seq int64) bool {
	if r.Info.Kind == packet.KindRead && p.info.Kind == packet.KindRead && (seq != r.Seq || s.isPartialRead(p, r, seq)) {
		return false
	}
	content, captured := s.contentOf(p)
	same := p.Opcode == r.opcode && len(p.Payload) == r.payload && (content == r.content || captured != r.captured)
	return !same && !r.accused && !p.accused
}

// checkOverdue judges which responses are overdue when a requester sends a new request.
func (s *stream) checkOverdue(p *judgedPacket) {
	if s.lastProgress == 0 {
		s.lastProgress = p.at
	}
	if g := &s.skipped; g.active {
		g.exchanges += bit(g.passed)
		g.passed = false
		if g.news++; g.exchanges >= certainDrains || g.news > maxHistory/16 || p.at-g.at > maxTimeout {
			s.unansweredSkipped()
		}
	}
	limit := int64(maxTimeout)
	if s.timeLimit > 0 {
		limit = min(limit, s.timeLimit)
	}
	if s.flow.peer == nil || p.at-s.lastProgress <= limit {
		return // the replies may take a path that the capture does not see
	}
	s.lastProgress = p.at
	for i := max(s.find(s.accepted), 0); i < len(s.requests); i++ {
		r := &s.requests[i]
		if r.Seq <= s.accepted || !r.ExpectsReply() || r.reported || p.at-r.at <= limit {
			continue
		}
		r.reported = true
		s.violates(p, ruleUnanswered, "%v with PSN %d, packet %d, for %v", r.opcode, conversation.Wrap(r.Seq), r.no, time.Duration(p.at-r.at))
		return
	}
}

// finish judges what later packets might have explained, and notes the requests without a reply at
// the end of the capture.
func (s *stream) finish() {
	if s.aside != nil {
		s.noteLeft()
	}
	s.judgeDiffering(s.next, false)
	s.reportACK()
	s.judgeWaits()
	s.lastMSN()
	if s.fatal != 0 {
		return
	}
	if g := s.skipped; g.active && g.exchanges >= minExchanges {
		s.unansweredSkipped()
	} else if g.active {
		s.note(noteNoAnswer, g.no, s.flow.String())
	}
	for i := max(s.find(s.accepted), 0); i < len(s.requests); i++ {
		if r := &s.requests[i]; r.Seq > s.accepted && r.ExpectsReply() && r.Info.Service != packet.UC {
			s.note(noteNoAnswer, r.no, s.flow.String())
		}
	}
}
