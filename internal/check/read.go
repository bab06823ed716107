package check

import (
	"softroce/internal/conversation"
	"softroce/packet"
)

// readResponse judges a response to a READ, or the empty one that answers FLUSH and ATOMIC WRITE.
func (s *stream) readResponse(p *judgedPacket, seq int64, isLate bool) {
	r := s.requestAt(seq)
	if r == nil {
		return
	}
	switch r.Info.Kind {
	case packet.KindRead:
	case packet.KindFlush, packet.KindAtomicWrite:
		s.emptyResponse(p, r)
		return
	default:
		s.violates(p, ruleAnswerKind, "%v with PSN %d, which is %v", p.Opcode, p.PSN, r.opcode)
		r.reported = true
		return
	}
	r.parts++
	if !s.certain(r.Seq) {
		s.progress(r, seq)
		return // it may continue the response to a request from before the capture
	}
	if !s.fitsRead(p, r, seq) {
		r.nextResponse = seq + 1
		r.responses = max(r.responses, 1)
		s.progress(r, seq)
		return
	}
	if p.info.Headers&packet.HasAETH != 0 {
		s.answerMSN(p, r)
	}
	if !isLate && !s.mayBeReordered(p, r, seq) {
		s.followResponses(p, r, seq)
	}
	s.progress(r, seq)
}

// mayBeReordered reports whether p is behind a later packet of the same response because the
// network has reordered them.
func (s *stream) mayBeReordered(p *judgedPacket, r *request, seq int64) bool {
	behind := seq < r.nextResponse && p.late == conversation.LatenessUnknown && p.at-r.respondedAt < maxLateness && !p.info.Position.StartsMessage()
	r.respondedAt = p.at
	return behind
}

// emptyResponse judges the response to FLUSH or ATOMIC WRITE.
func (s *stream) emptyResponse(p *judgedPacket, r *request) {
	if p.info.Position != packet.Only || len(p.Payload) != 0 {
		r.reported = true
		s.violates(p, ruleAnswerKind, "%v of %d bytes answers %v", p.Opcode, len(p.Payload), r.opcode)
		return
	}
	if r.Info.Kind == packet.KindAtomicWrite && r.va%8 != 0 {
		s.violates(p, ruleAtomicAlign, "ATOMIC WRITE to %#x", r.va)
	}
	s.answerMSN(p, r)
	s.countResponse(p, r)
}

// answerMSN judges the MSN of a response: it counts at least the messages up to r, without r if the
// response is not complete, and at most those that were sent.
func (s *stream) answerMSN(p *judgedPacket, r *request) {
	n, ok := s.msgsBelow(r.End())
	if !ok || !s.certain(r.Seq) {
		return
	}
	least := n
	if p.info.Position == packet.First {
		least--
	}
	s.msnIs(p, least, s.contiguousMessages)
}

// countResponse judges whether r has more responses than transmissions.
func (s *stream) countResponse(p *judgedPacket, r *request) {
	r.responses++
	if r.responses > r.transmissions && s.certain(r.Seq) {
		s.violates(p, ruleReplyRepeat, "PSN %d is answered %d times, sent %d times", p.PSN, r.responses, r.transmissions)
		r.responses = r.transmissions
	}
}

// fitsRead judges whether opcode and length of a response are those of its PSN, in the whole READ
// or in a part of it that was retransmitted.
func (s *stream) fitsRead(p *judgedPacket, r *request, seq int64) bool {
	if r.NumPSNs == 0 {
		if n := uint32(len(p.Payload)); !r.unknown && (p.info.Position == packet.Only && n != r.length || p.info.Position == packet.First && n >= r.length) {
			s.violates(p, ruleReadLength, "%v with PSN %d: %d bytes, expected %d or the path MTU", p.Opcode, p.PSN, n, r.length)
			return false
		}
		return true
	}
	asks := append([]partialRead{{r.Seq, r.NumPSNs, r.length}}, r.partialReads...)
	opcode, expected := false, int64(0)
	for _, a := range asks {
		k := seq - a.seq
		if k < 0 || k >= a.n || position(k, a.n) != p.info.Position {
			continue
		}
		opcode = true
		want := int64(s.flow.mtu)
		if k == a.n-1 {
			want = int64(a.length) - k*int64(s.flow.mtu)
		}
		if int64(len(p.Payload)) == want {
			return true
		}
		expected = want
	}
	if opcode {
		s.violates(p, ruleReadLength, "%v with PSN %d: %d bytes, expected %d, of a READ of %d with PSN %d", p.Opcode, p.PSN, len(p.Payload), expected, r.length, conversation.Wrap(r.Seq))
	} else {
		s.violates(p, ruleReadOpcode, "%v with PSN %d, expected %v, as number %d of %d", p.Opcode, p.PSN, positionName[position(seq-r.Seq, r.NumPSNs)], seq-r.Seq+1, r.NumPSNs)
	}
	return false
}

var positionName = map[packet.Position]string{packet.First: "FIRST", packet.Middle: "MIDDLE", packet.Last: "LAST", packet.Only: "ONLY"}

// position returns the position of the k-th of n response packets.
func position(k, n int64) packet.Position {
	switch {
	case n == 1:
		return packet.Only
	case k == 0:
		return packet.First
	case k == n-1:
		return packet.Last
	}
	return packet.Middle
}

// followResponses follows the packets of the responses to r. A packet that goes back, or is a FIRST
// or ONLY, begins another response, which needs another transmission of r.
func (s *stream) followResponses(p *judgedPacket, r *request, seq int64) {
	begins := p.info.Position.StartsMessage() || r.responses == 0 || seq < r.nextResponse
	r.nextResponse = seq + 1
	if !begins {
		return
	}
	if r.responses == 0 && r.transmissions == 1 && s.positive >= r.End() {
		s.violates(p, ruleReadOrder, "PSN %d after the answer to PSN %d", p.PSN, conversation.Wrap(s.positive))
	}
	if !p.info.Position.StartsMessage() {
		if s.askedFrom(r, seq) {
			s.noteOn(p, noteReadMiddle)
		} else if r.responses >= r.transmissions {
			s.violates(p, ruleReadOrder, "PSN %d after a later one of the same READ", p.PSN)
			return
		}
	}
	s.countResponse(p, r)
}

// askedFrom reports whether a partial retransmission of r began at seq.
func (s *stream) askedFrom(r *request, seq int64) bool {
	for _, a := range r.partialReads {
		if a.seq == seq && seq != r.Seq {
			return true
		}
	}
	return false
}

// progress advances the PSN up to which the response to r is complete.
func (s *stream) progress(r *request, seq int64) {
	if seq == r.respondedTo {
		r.respondedTo++
	}
	if r.respondedTo >= r.End() {
		s.skipped.clear(r.Seq)
	}
}

// atomicAck judges the response to COMPARE_SWAP or FETCH_ADD.
func (s *stream) atomicAck(p *judgedPacket, seq int64) {
	r := s.requestAt(seq)
	if r == nil {
		return
	}
	if k := r.Info.Kind; !k.IsAtomic() {
		s.violates(p, ruleAnswerKind, "%v with PSN %d, which is %v", p.Opcode, p.PSN, r.opcode)
		r.reported = true
		return
	}
	if r.va%8 != 0 {
		s.violates(p, ruleAtomicAlign, "%v to %#x", r.opcode, r.va)
	}
	if r.responses == 0 {
		r.result = p.OrigData
	} else if r.result != p.OrigData && !r.replayed {
		s.violates(p, ruleAtomicReplay, "PSN %d: %#x, was %#x", p.PSN, p.OrigData, r.result)
		r.replayed = true
	}
	s.answerMSN(p, r)
	s.countResponse(p, r)
}
