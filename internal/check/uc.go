package check

// unreliable takes a request of UC. A gap loses a message and is nobody's fault.
func (s *stream) unreliable(p *seen, when lateness) {
	if !s.started {
		s.start(p.PSN)
	}
	seq := s.unwrap(p.PSN)
	if s.far(seq) {
		s.say(p, noteNewStream)
		s.start(p.PSN)
		seq = s.next
	}
	i := s.find(seq)
	if i >= 0 && s.reqs[i].seq == seq {
		if r := &s.reqs[i]; !r.twin(p) && when == onTime {
			s.bad(p, ruleUCRepeat, "PSN %d again, was packet %d", p.PSN, r.no)
		}
		return
	}
	if i < 0 && len(s.reqs) > 0 {
		return
	}
	r := s.insert(s.newRequest(p, seq))
	s.neighbours(p, r)
	s.next = max(s.next, r.end())
}
