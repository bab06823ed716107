package check

import "softroce/packet"

// msnBase is the range of differences between MSNs and the messages counted here.
type msnBase struct {
	known  bool
	anchor uint32
	lo, hi int
}

// holds narrows the range by an MSN that counts least to most messages. It returns false, and
// changes nothing, if they contradict the range.
func (m *msnBase) holds(msn uint32, least, most int) bool {
	if !m.known {
		*m = msnBase{known: true, anchor: packet.PSNAdd(msn, -least)}
		m.lo = least - most
		return true
	}
	d := func(n int) int { return packet.PSNDiff(packet.PSNAdd(msn, -n), m.anchor) }
	lo, hi := max(m.lo, d(most)), min(m.hi, d(least))
	if lo > hi {
		return false
	}
	m.lo, m.hi = lo, hi
	return true
}

// An msnJudge compares the MSNs of replies. The first one may be wrong as well as those after it,
// so an MSN that contradicts those before is held until the next one shows which is right.
type msnJudge struct {
	base  msnBase
	votes int // MSNs that agree with base

	from int64 // only replies from this PSN on count

	first, doubtful msnReply // the first that agrees with base; one that contradicts it
	without         msnBase  // what the doubtful MSN says by itself
}

// An msnReply is a reply with an MSN. no is 0 if there is none.
type msnReply struct {
	no    int // packet number
	msn   uint32
	psn   uint32
	least int // messages that it counts
	flow  string
}

// msnIs judges the MSN of p, which counts least to most messages.
func (s *stream) msnIs(p *judgedPacket, least, most int) {
	m := &s.msn
	if s.unwrap(p.PSN) < m.from {
		return
	}
	reply := msnReply{p.No, p.AETH.MSN, p.PSN, least, p.name()}
	if m.doubtful.no != 0 {
		with, without := m.base, m.without
		fits, fitsDoubtful := with.holds(p.AETH.MSN, least, most), without.holds(p.AETH.MSN, least, most)
		if !fits && fitsDoubtful {
			wrong := m.doubtful
			if m.votes == 1 {
				wrong = m.first
			}
			right := m.base
			if wrong.no == m.first.no {
				right = m.without
			}
			s.wrongMSN(wrong, right)
			*m = msnJudge{base: without, votes: 2, first: m.doubtful, from: m.from}
			return
		}
		s.wrongMSN(m.doubtful, m.base)
		m.doubtful = msnReply{}
	}
	switch {
	case m.base.holds(p.AETH.MSN, least, most):
		if m.votes++; m.votes == 1 {
			m.first = reply
		}
	case !p.accused:
		m.doubtful, m.without = reply, msnBase{}
		m.without.holds(p.AETH.MSN, least, most)
	}
}

func (s *stream) wrongMSN(r msnReply, right msnBase) {
	s.violation(ruleMSN, r.no, r.flow, false, "MSN %d with PSN %d, expected %d", r.msn, r.psn, packet.PSNAdd(right.anchor, right.hi+r.least))
}

// lastMSN judges an MSN that no other one follows.
func (s *stream) lastMSN() {
	m := &s.msn
	if m.doubtful.no == 0 {
		return
	}
	if m.votes == 1 && m.without.anchor == 0 && m.base.anchor != 0 { // the MSN counts from 0
		s.wrongMSN(m.first, m.without)
	} else {
		s.wrongMSN(m.doubtful, m.base)
	}
	m.doubtful = msnReply{}
}

// recountMessages counts messages again from a PSN, where a violation of the requester makes
// their number uncertain.
func (s *stream) recountMessages(seq int64) { s.msn = msnJudge{from: max(seq+1, s.msn.from)} }
