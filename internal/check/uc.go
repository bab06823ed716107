package check

import "softroce/internal/conversation"

// ucRequest judges a request of UC. A gap loses a message, which breaks no rule.
func (s *stream) ucRequest(p *judgedPacket, when conversation.Lateness) {
	if !s.started {
		s.start(p.PSN)
	}
	seq := s.unwrap(p.PSN)
	if s.far(seq) {
		s.noteOn(p, noteNewStream)
		s.start(p.PSN)
		seq = s.next
	}
	i := s.find(seq)
	if i >= 0 && s.requests[i].Seq == seq {
		if r := &s.requests[i]; !r.isCopy(p) && when == conversation.OnTime {
			s.violates(p, ruleUCRepeat, "PSN %d again, was packet %d", p.PSN, r.no)
		}
		return
	}
	if i < 0 && len(s.requests) > 0 {
		return
	}
	r := s.insert(s.newRequest(p, seq))
	s.UCMessages += bit(r.Info.Position.EndsMessage())
	s.checkNeighbors(p, r)
	s.next = max(s.next, r.End())
}
