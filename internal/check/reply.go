package check

import (
	"softroce/internal/conversation"
	"softroce/packet"
)

// reply judges a reply of the stream's responder.
func (s *stream) reply(p *judgedPacket, when conversation.Lateness) {
	if !s.started {
		s.before(p.PSN)
		return
	}
	s.comeBack(p.PSN, true)
	seq := s.unwrap(p.PSN)
	s.judgeDiffering(seq, true)
	if p.headersCut {
		s.blind = true // it may be a NAK
		s.explains(p)
		return
	}
	if seq < s.begin-1 {
		s.replied = true
		s.explains(p)
		return // it answers requests from before the capture
	}
	s.settle(p, seq)
	isLate := when == conversation.Late
	if s.fatal != 0 && !isLate {
		if !s.fatalReported {
			s.violates(p, ruleAfterFatal, "%v with PSN %d after the NAK of packet %d", p.Opcode, p.PSN, s.fatal)
			s.fatalReported = true
		}
		return
	}
	if !isLate {
		s.judgeExcessRead(p, seq)
	}
	switch p.info.Kind {
	case packet.KindReadResponse:
		s.explains(p)
		if !s.checkSent(p, seq) {
			return
		}
		s.readResponse(p, seq, isLate)
		s.acceptPositive(p, seq, isLate)
	case packet.KindAtomicAck:
		s.explains(p)
		if !s.checkSent(p, seq) {
			return
		}
		s.atomicAck(p, seq)
		s.acceptPositive(p, seq, isLate)
	case packet.KindAck:
		s.acknowledge(p, seq, when)
	}
}

// explains records that p may cause a retransmission.
func (s *stream) explains(p *judgedPacket) { s.explainedBy = p.No }

// acknowledge judges an ACKNOWLEDGE packet: ACK, RNR NAK or NAK.
func (s *stream) acknowledge(p *judgedPacket, seq int64, when conversation.Lateness) {
	syndrome := p.AETH.Syndrome
	if !assigned(syndrome) {
		return
	}
	if syndrome.IsACK() {
		// An ACK for a PSN after a READ shows that the response to the READ was lost. The READ
		// itself may have been lost before the point of capture.
		if s.hasResponses || seq >= s.contiguous {
			s.explains(p)
		}
		if !s.checkSent(p, seq) {
			return
		}
		s.ackOrder(p, seq, when)
		s.ackInsteadOfResponse(p, seq)
		s.ackMSN(p, seq+1, 0)
		s.acceptPositive(p, seq, when == conversation.Late)
		return
	}
	s.explains(p)
	if seq < s.begin {
		return
	}
	if seq < s.base && !s.certain(seq) {
		return
	}
	if when != conversation.Late && seq <= s.positive {
		if !s.certain(seq) {
			return // retransmitted before the capture
		}
		s.violates(p, ruleNAKCause, "%v for PSN %d, which was acknowledged", syndrome, p.PSN)
		return
	}
	if !s.checkSent(p, seq-1) {
		return
	}
	switch {
	case syndrome.IsRNR():
		s.ackMSN(p, seq, 0)
		s.rnrNAK(p, seq)
	case syndrome == packet.NAKSequence:
		s.ackMSN(p, seq, 0)
		s.sequenceNAK(p, seq, when == conversation.Late)
	default:
		s.ackMSN(p, seq, 1)
		s.fatalNAK(p, seq)
	}
	s.accept(p, seq-1)
}

// A highACK is an ACK of a PSN that the capture does not have yet.
type highACK struct {
	no   int
	seq  int64
	name string
}

// checkSent judges whether all PSNs up to seq were sent. It returns false if seq itself was not, so
// that p says nothing else.
func (s *stream) checkSent(p *judgedPacket, seq int64) bool {
	if n := len(s.requests); n > 0 && s.requests[n-1].NumPSNs == 0 && seq >= s.requests[n-1].Seq {
		return true // the response to a READ of unknown length
	}
	for seq >= s.contiguous {
		at := s.contiguous
		switch {
		case s.useStandIn(), s.answersUnread(p, seq):
		case !s.certain(at):
			if seq < s.next {
				s.skip(seq + 1)
				return true
			}
			s.highACK = highACK{p.No, seq, p.name()}
			return false
		case s.fillJump(seq):
		case at < s.unseen:
			s.skip(s.unseen)
		case seq >= s.next:
			if seq == s.next {
				s.unseen = seq + 1
			}
			s.violates(p, ruleAckUnseen, "PSN %d, the highest that was sent is %d", p.PSN, conversation.Wrap(s.next-1))
			return false
		default:
			s.holdACK(p, at)
			s.skip(seq + 1)
			return true
		}
		if s.contiguous <= at {
			return true
		}
	}
	return true
}

// A heldACK is a reply to a PSN that the capture lacks, to be reported. If the newest request has
// the PSN after it, the next one shows whether that is the request with a wrong PSN.
type heldACK struct {
	no           int
	psn, missing uint32
	name         string
	jump         int // number of that request, 0 if there is none
}

// holdACK keeps the reply p until it is clear who is at fault that a PSN is missing.
func (s *stream) holdACK(p *judgedPacket, missing int64) {
	s.reportACK()
	if p.accused {
		return
	}
	p.accused = true
	s.heldACK = heldACK{no: p.No, psn: p.PSN, missing: conversation.Wrap(missing), name: p.name()}
	if j := s.lastJump(); j != nil && j.expected == missing {
		s.heldACK.jump = j.no
	} else {
		s.reportACK()
	}
}

// reportACK reports the reply that is held, if there is one.
func (s *stream) reportACK() {
	if h := s.heldACK; h.no != 0 {
		s.violation(ruleAckUnseen, h.no, h.name, false, "PSN %d, but PSN %d is not in the capture", h.psn, h.missing)
		s.heldACK = heldACK{}
	}
}

// accept records that the responder has accepted all PSNs up to seq.
func (s *stream) accept(p *judgedPacket, seq int64) {
	if seq <= s.accepted || seq >= s.next {
		return
	}
	s.accepted = seq
	s.lastProgress = p.at
	s.acceptedSkippedPSN()
	if s.nak.active && seq >= s.nak.seq {
		s.nak.active = false
	}
	if s.rnr.active && seq >= s.rnr.seq {
		s.rnr.active = false
	}
}

// acceptPositive is accept for a reply other than a NAK. It looks for READs without a complete
// response that the reply passes over.
func (s *stream) acceptPositive(p *judgedPacket, seq int64, isLate bool) {
	s.accept(p, seq)
	if isLate || seq <= s.positive || seq >= s.next {
		return
	}
	if !s.skipped.active {
		s.findSkipped(p, seq)
	}
	s.skipped.passed = true
	s.positive = seq
	if u := &s.unordered; u.active && seq >= u.Seq && !s.wasRefused(u.expected) {
		u.confirmed = true
		s.accuseOrder()
	}
}

func (s *stream) findSkipped(p *judgedPacket, seq int64) {
	passed := seq
	if p.info.Kind == packet.KindAck {
		passed++
	}
	for i := max(s.find(s.positive), 0); i < len(s.requests) && s.requests[i].End() <= passed; i++ {
		r := &s.requests[i]
		if r.Info.Kind.HasOwnResponse() && !r.isAnswered() && !r.reported && r.transmissions == 1 && s.certain(r.Seq) {
			s.skipped = skipped{active: true, seq: r.Seq, no: r.no, at: p.at}
			if r.End() == seq+1 {
				s.skipped.ack, s.skipped.from = p.No, p.name()
			}
			return
		}
	}
}

// isAnswered reports whether the response to a READ or atomic is complete, or its length unknown.
func (r *request) isAnswered() bool {
	if r.Info.Kind == packet.KindRead {
		return r.NumPSNs == 0 || r.respondedTo >= r.End() || r.parts >= r.NumPSNs
	}
	return r.responses > 0
}

// clear ends the record of a request that was retransmitted or answered.
func (g *skipped) clear(seq int64) {
	if g.seq == seq {
		g.active = false
	}
}

// unansweredSkipped reports the READ or atomic that was skipped.
func (s *stream) unansweredSkipped() {
	g := s.skipped
	s.skipped.active = false
	if r := s.requestAt(g.seq); r != nil {
		r.reported = true
		if g.ack != 0 {
			s.violation(ruleAnswerKind, g.ack, g.from, false, "an ACK with PSN %d, which is %v, and no response", conversation.Wrap(r.End()-1), r.opcode)
			return
		}
		s.violation(ruleUnanswered, g.no, s.flow.name, true, "%v with PSN %d has no complete response, and was not retransmitted", r.opcode, conversation.Wrap(g.seq))
	}
}

// waitsForACK reports whether a SEND or WRITE before r may have had no ACK before the newest one.
func (s *stream) waitsForACK(r *request) bool {
	for i := s.find(r.Seq) - 1; i >= 0; i-- {
		if q := &s.requests[i]; !q.Info.Kind.HasOwnResponse() {
			return q.Seq > s.ackBefore
		}
	}
	return s.ackBefore < s.begin
}

// ackInsteadOfResponse judges an ACK with the PSN of a READ or atomic that has no response yet. If
// a SEND or WRITE before it waits for an ACK, or is repeated, the ACK may be for that, and the
// response may be lost.
func (s *stream) ackInsteadOfResponse(p *judgedPacket, seq int64) {
	r := s.requestAt(seq)
	if r == nil || !r.Info.Kind.HasOwnResponse() || r.isAnswered() || r.reported || s.resent || s.waitsForACK(r) || !s.certain(r.Seq) {
		return
	}
	r.reported = true
	s.violates(p, ruleAnswerKind, "%v with PSN %d, which is %v", p.Opcode, p.PSN, r.opcode)
}

// ackOrder judges whether the PSNs of ACKs decrease, other than by reordering in the network.
func (s *stream) ackOrder(p *judgedPacket, seq int64, when conversation.Lateness) {
	if h := s.highACK; h.no != 0 && seq < h.seq && when != conversation.Late {
		s.violation(ruleAckUnseen, h.no, h.name, false, "PSN %d was not sent, and the next ACK has PSN %d", conversation.Wrap(h.seq), p.PSN)
		s.highACK = highACK{}
		s.highest = min(s.highest, s.next-1)
	}
	s.ackBefore = s.ackHigh
	back := seq < s.ackHigh
	if !back {
		s.ackHigh, s.ackAt = seq, p.at
		return
	}
	if when == conversation.OnTime || when == conversation.LatenessUnknown && p.at-s.ackAt > maxLateness {
		s.violates(p, ruleAckOrder, "ACK of PSN %d after that of %d", p.PSN, conversation.Wrap(s.ackHigh))
	}
}

// ackMSN judges the MSN of an ACKNOWLEDGE: it counts the messages that end before seq, and up to
// more besides.
func (s *stream) ackMSN(p *judgedPacket, seq int64, more int) {
	if r := s.requestAt(seq - 1); r != nil && r.End() != seq || seq > s.contiguous {
		return // in the middle of a READ, or after a gap in the capture
	}
	if n, ok := s.msgsBelow(seq); ok {
		s.msnIs(p, n, n+more)
	}
}

// sequenceNAK judges a NAK for a gap at seq.
func (s *stream) sequenceNAK(p *judgedPacket, seq int64, isLate bool) {
	switch {
	case isLate:
		return
	case s.rnr.seq == seq && s.rnr.at != 0:
		s.noteOn(p, noteRNRNAK)
	case s.nak.active && s.nak.seq == seq:
		s.violates(p, ruleNAKOnce, "PSN %d, as the NAK of packet %d", p.PSN, s.nak.no)
	case s.positive < seq-1 && seq == s.next-1:
		// The requests before it had no answer yet. They may have arrived after the last one, which
		// was discarded, and before the NAK was sent. Then the last one is missing.
		s.noteOn(p, noteOvertaken)
	case s.certain(seq) && len(s.requests) > 0 && s.requests[len(s.requests)-1].Seq <= seq:
		s.violates(p, ruleNAKCause, "PSN %d, the highest that was sent", p.PSN)
	}
	s.NAKs++
	s.nak = nak{active: true, seq: seq, no: p.No, at: p.at, name: p.name()}
	if s.unfollowed = append(s.unfollowed, seq); len(s.unfollowed) > maxUnfollowed {
		s.unfollowed = s.unfollowed[1:]
	}
}

// rnrNAK judges an RNR NAK for the request at seq.
func (s *stream) rnrNAK(p *judgedPacket, seq int64) {
	r := s.requestAt(seq)
	if r == nil {
		return
	}
	if !mayNeedRNR(r.Info) {
		s.violates(p, ruleRNRTarget, "PSN %d, which is %v", p.PSN, r.opcode)
	}
	r.rnrNAKs++
	if r.rnrNAKs > r.transmissions && s.certain(seq) {
		s.violates(p, ruleRNROnce, "%d RNR NAKs for PSN %d, which was sent %d times", r.rnrNAKs, p.PSN, r.transmissions)
		r.rnrNAKs = r.transmissions
	}
	s.RNRNAKs++
	s.rnr = rnr{active: true, seq: seq, no: p.No, at: p.at, last: r.at, wait: packet.RNRTimer(uint8(p.AETH.Syndrome & packet.SyndromeValue))}
}

// fatalNAK judges a NAK that ends the connection.
func (s *stream) fatalNAK(p *judgedPacket, seq int64) {
	if r := s.requestAt(seq); r != nil && r.Info.Kind == packet.KindSend && p.AETH.Syndrome == packet.NAKRemoteOperational {
		s.noteOn(p, noteSendNAK)
	}
	s.fatal = p.No
}
