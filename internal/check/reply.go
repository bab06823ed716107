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
	seq := s.unwrap(p.PSN)
	if seq < s.base-1 {
		s.replied, s.resendExplained = true, true
		return // it answers requests from before the capture
	}
	s.settle(p, seq)
	isLate := when == conversation.Late
	if s.fatal != 0 && !isLate {
		s.violates(p, ruleAfterFatal, "%v with PSN %d after the NAK of packet %d", p.Opcode, p.PSN, s.fatal)
		return
	}
	switch p.info.Kind {
	case packet.KindReadResponse:
		s.resendExplained = true
		s.checkSent(p, seq)
		s.readResponse(p, seq, isLate)
		s.acceptPositive(p, seq, isLate)
	case packet.KindAtomicAck:
		s.resendExplained = true
		s.checkSent(p, seq)
		s.atomicAck(p, seq)
		s.acceptPositive(p, seq, isLate)
	case packet.KindAck:
		s.acknowledge(p, seq, when)
	}
}

// acknowledge judges an ACKNOWLEDGE packet: ACK, RNR NAK or NAK.
func (s *stream) acknowledge(p *judgedPacket, seq int64, when conversation.Lateness) {
	syndrome := p.AETH.Syndrome
	if !assigned(syndrome) {
		return
	}
	if syndrome.IsACK() {
		// An ACK for a PSN after a READ shows that the response to the READ was lost. The READ
		// itself may have been lost before the point of capture.
		s.resendExplained = s.resendExplained || s.hasResponses || seq >= s.contiguous
		s.checkSent(p, seq)
		s.ackOrder(p, seq, when)
		s.ackMSN(p, seq+1, 0)
		s.acceptPositive(p, seq, when == conversation.Late)
		return
	}
	s.resendExplained = true
	if seq < s.base {
		return
	}
	if when != conversation.Late && seq <= s.positive {
		if !s.certain(seq) {
			return // retransmitted before the capture
		}
		s.violates(p, ruleNAKCause, "%v for PSN %d, which was acknowledged", syndrome, p.PSN)
		return
	}
	s.checkSent(p, seq-1)
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

// checkSent judges whether all PSNs up to seq were sent.
func (s *stream) checkSent(p *judgedPacket, seq int64) {
	if seq < s.contiguous {
		return
	}
	if !s.certain(s.contiguous) {
		if seq < s.next {
			s.skip(seq + 1)
		}
		return
	}
	if seq >= s.next {
		s.violates(p, ruleAckUnseen, "PSN %d, the highest that was sent is %d", p.PSN, conversation.Wrap(s.next-1))
		return
	}
	if r := s.requestAt(seq); r != nil && r.NumPSNs == 0 && r.End() == s.contiguous {
		return // the response to a READ of unknown length
	}
	s.violates(p, ruleAckUnseen, "PSN %d, but PSN %d is not in the capture", p.PSN, conversation.Wrap(s.contiguous))
	s.skip(seq + 1)
}

// accept records that the responder has accepted all PSNs up to seq.
func (s *stream) accept(p *judgedPacket, seq int64) {
	if seq <= s.accepted || seq >= s.next {
		return
	}
	s.accepted = seq
	s.lastProgress = p.at
	s.skipped()
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
	if !s.skippedRead.active {
		s.findReadGap(p, seq)
	}
	s.positive = seq
}

func (s *stream) findReadGap(p *judgedPacket, seq int64) {
	for i := max(s.find(s.positive), 0); i < len(s.requests) && s.requests[i].End() <= seq; i++ {
		r := &s.requests[i]
		if r.Info.Kind == packet.KindRead && r.NumPSNs != 0 && r.respondedTo < r.End() && r.transmissions == 1 && s.certain(r.Seq) {
			s.skippedRead = skippedRead{active: true, seq: r.Seq, at: p.at}
			return
		}
	}
}

// clear ends the record of a READ that was retransmitted or answered.
func (g *skippedRead) clear(seq int64) {
	if g.seq == seq {
		g.active = false
	}
}

// ackOrder judges whether the PSNs of ACKs decrease, other than by reordering in the network.
func (s *stream) ackOrder(p *judgedPacket, seq int64, when conversation.Lateness) {
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

func (s *stream) msnIs(p *judgedPacket, least, most int) {
	if !s.msn.holds(p.AETH.MSN, least, most) {
		s.violates(p, ruleMSN, "MSN %d with PSN %d, expected %d", p.AETH.MSN, p.PSN, packet.PSNAdd(s.msn.anchor, s.msn.hi+least))
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
	s.nak = nak{active: true, seq: seq, no: p.No, at: p.at}
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
