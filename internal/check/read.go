package check

import (
	"softroce/internal/conversation"
	"softroce/packet"
)

// readResponse takes a response to a READ, or the empty one that answers FLUSH and
// ATOMIC WRITE.
func (s *stream) readResponse(p *seen, seq int64, isLate bool) {
	r := s.holder(seq)
	if r == nil {
		return
	}
	switch r.info.Kind {
	case packet.KindRead:
	case packet.KindFlush, packet.KindAtomicWrite:
		s.emptyResponse(p, r)
		return
	default:
		s.bad(p, ruleAnswerKind, "%v with PSN %d, which is %v", p.Opcode, p.PSN, r.Opcode)
		return
	}
	if !s.certain(r.seq) {
		return // it may be the rest of one that was asked for before the capture
	}
	if !s.fits(p, r, seq) {
		return
	}
	if p.info.Headers&packet.HasAETH != 0 {
		s.answerMSN(p, r)
	}
	if !isLate {
		s.run(p, r, seq)
	}
	s.progress(r, seq)
}

// emptyResponse takes the answer to FLUSH or ATOMIC WRITE.
func (s *stream) emptyResponse(p *seen, r *request) {
	if p.info.Position != packet.Only || len(p.Payload) != 0 {
		s.bad(p, ruleAnswerKind, "%v of %d bytes answers %v", p.Opcode, len(p.Payload), r.Opcode)
		return
	}
	if r.Opcode.Info().Kind == packet.KindAtomicWrite && r.va%8 != 0 {
		s.bad(p, ruleAtomicAlign, "ATOMIC WRITE to %#x", r.va)
	}
	s.answerMSN(p, r)
	s.answered(p, r)
}

// answerMSN holds that the MSN counts the message of r, or all before the response to it
// is complete, and none that was not sent.
func (s *stream) answerMSN(p *seen, r *request) {
	n, ok := s.msgsBelow(r.end())
	if !ok || !s.certain(r.seq) {
		return
	}
	least := n
	if p.info.Position == packet.First {
		least--
	}
	s.msnIs(p, least, s.solidMsgs)
}

// answered counts the answers of r.
func (s *stream) answered(p *seen, r *request) {
	r.runs++
	if r.runs > r.tx && s.certain(r.seq) {
		s.bad(p, ruleReplyRepeat, "PSN %d is answered %d times, was asked %d times", p.PSN, r.runs, r.tx)
		r.runs = r.tx
	}
}

// fits holds that opcode and length are those of the PSN, in the READ or in a part of it
// that was asked for again.
func (s *stream) fits(p *seen, r *request, seq int64) bool {
	if r.n == 0 {
		return true
	}
	asks := append([]ask{{r.seq, r.n, r.length}}, r.asks...)
	opcode := false
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
	}
	if opcode {
		s.bad(p, ruleReadLength, "%v with PSN %d: %d bytes, of a READ of %d with PSN %d", p.Opcode, p.PSN, len(p.Payload), r.length, conversation.Wrap(r.seq))
	} else {
		s.bad(p, ruleReadOpcode, "%v with PSN %d, number %d of %d", p.Opcode, p.PSN, seq-r.seq+1, r.n)
	}
	return false
}

// position is that of the k-th of n responses.
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

// run follows the responses of one answer. What steps back, or is a First or Only, begins
// another answer, which must have been asked for.
func (s *stream) run(p *seen, r *request, seq int64) {
	begins := p.info.Position.StartsMessage() || r.runs == 0 || seq < r.runNext
	r.runNext = seq + 1
	if !begins {
		return
	}
	if r.runs == 0 && r.tx == 1 && s.positive >= r.end() {
		s.bad(p, ruleReadOrder, "PSN %d after the answer to PSN %d", p.PSN, conversation.Wrap(s.positive))
	}
	if !p.info.Position.StartsMessage() {
		if s.askedFrom(r, seq) {
			s.say(p, noteReadMiddle)
		} else if r.runs >= r.tx {
			s.bad(p, ruleReadOrder, "PSN %d after a later one of the same READ", p.PSN)
			return
		}
	}
	s.answered(p, r)
}

// askedFrom reports whether a part of r that begins at seq was asked for.
func (s *stream) askedFrom(r *request, seq int64) bool {
	for _, a := range r.asks {
		if a.seq == seq && seq != r.seq {
			return true
		}
	}
	return false
}

// progress notes how far r is answered.
func (s *stream) progress(r *request, seq int64) {
	if seq == r.upTo {
		r.upTo++
	}
	if r.upTo >= r.end() {
		s.readGap.clear(r.seq)
	}
}

// atomicAck takes the answer to COMPARE_SWAP or FETCH_ADD.
func (s *stream) atomicAck(p *seen, seq int64) {
	r := s.holder(seq)
	if r == nil {
		return
	}
	if k := r.info.Kind; !k.IsAtomic() {
		s.bad(p, ruleAnswerKind, "%v with PSN %d, which is %v", p.Opcode, p.PSN, r.Opcode)
		return
	}
	if r.va%8 != 0 {
		s.bad(p, ruleAtomicAlign, "%v to %#x", r.Opcode, r.va)
	}
	if r.runs > 0 && r.result != p.OrigData {
		s.bad(p, ruleAtomicReplay, "PSN %d: %#x, was %#x", p.PSN, p.OrigData, r.result)
	}
	r.result = p.OrigData
	s.answerMSN(p, r)
	s.answered(p, r)
}
