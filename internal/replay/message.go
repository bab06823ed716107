package replay

import (
	"fmt"
	"slices"
	"sort"

	"softroce/packet"
)

// A message is what one work request became, put together from the first captured
// transmission of each of its packets.
type message struct {
	first, n int64       // PSNs
	kind     packet.Kind // KindNone: requests of which the beginning was not captured
	parts    []*event    // in order of PSN; there may be gaps. READs and atomics have one
	broken   *event      // a packet that no requester sends there: it begins or goes on with something else
	wanted   string      // what one would send instead
}

func (m *message) end() int64 { return m.first + m.n }

// assemble puts the messages of a stream together, from base on. Where the capture begins
// inside a message, base moves to the next.
func (s *stream) assemble() {
	s.messages = nil
	parts := s.firstTransmissions()
	for len(parts) > 0 && !parts[0].info.Position.StartsMessage() {
		s.base = parts[0].end() // the capture begins inside a message
		parts = parts[1:]
	}
	at := s.base
	for len(parts) > 0 {
		gap := parts[0].psn > at
		if gap {
			hole := &message{first: at, n: parts[0].psn - at}
			s.messages = append(s.messages, hole)
		}
		var m *message
		m, parts = s.assembleOne(parts)
		stray := !m.parts[0].info.Position.StartsMessage()
		if stray && !gap && len(s.messages) > 0 && s.messages[len(s.messages)-1].kind != packet.KindNone {
			m.broken, m.wanted = m.parts[0], "a packet that begins a message"
		}
		if stray && m.broken == nil && len(s.messages) > 0 {
			if last := s.messages[len(s.messages)-1]; last.kind == packet.KindNone && last.end() == m.first {
				last.n += m.n
				last.parts = append(last.parts, m.parts...)
				at = m.end()
				continue
			}
		}
		s.messages = append(s.messages, m)
		at = m.end()
		for len(parts) > 0 && parts[0].psn < at {
			parts = parts[1:] // a READ that is asked for again from its middle
		}
	}
}

// firstTransmissions returns the first transmission of each PSN from base on, in the order of PSNs.
func (s *stream) firstTransmissions() []*event {
	seen := make(map[int64]bool, len(s.sent))
	var parts []*event
	for _, e := range s.sent {
		if e.psn >= s.base && !seen[e.psn] {
			seen[e.psn] = true
			parts = append(parts, e)
		}
	}
	if len(parts) > 0 {
		s.newest = parts[len(parts)-1].at
	}
	slices.SortStableFunc(parts, func(a, b *event) int { return int(a.psn - b.psn) })
	return parts
}

// assembleOne takes the packets of the first message off parts.
func (s *stream) assembleOne(parts []*event) (*message, []*event) {
	start := parts[0]
	m := &message{first: start.psn, n: start.n, kind: start.info.Kind, parts: parts[:1:1]}
	parts = parts[1:]
	switch {
	case !start.info.Position.StartsMessage():
		m.kind = packet.KindNone
		return m, parts
	case start.info.Position == packet.Only:
		return m, parts
	}
	limit := int64(1) << 62
	if m.kind == packet.KindWrite {
		m.n = int64(packet.PSNCount(start.RETH.Length, s.mtu))
		limit = m.end()
	}
	for len(parts) > 0 {
		e := parts[0]
		if e.info.Position.StartsMessage() || e.info.Kind != m.kind {
			m.cut(e, limit)
			break
		}
		m.parts = append(m.parts, e)
		parts = parts[1:]
		if e.info.Position == packet.Last {
			m.n = e.psn + 1 - m.first
			break
		}
		if m.kind != packet.KindWrite || e.psn >= limit {
			m.n = e.psn + 1 - m.first
		}
	}
	return m, parts
}

// cut ends a message of which no last packet was captured before e, which begins another.
func (m *message) cut(e *event, limit int64) {
	switch last := m.parts[len(m.parts)-1]; {
	case e.psn >= limit: // what is missing was not captured
	case e.psn == last.psn+1:
		m.n, m.broken = e.psn-m.first, e
		m.wanted = fmt.Sprintf("the next packet of the message that packet %d begins", m.parts[0].No)
	default: // where it ended is not to be told
		m.n, m.kind = e.psn-m.first, packet.KindNone
	}
}

// of returns the message whose PSNs psn lies among, or nil.
func (s *stream) of(psn int64) *message {
	i := sort.Search(len(s.messages), func(i int) bool { return s.messages[i].end() > psn })
	if i < len(s.messages) && s.messages[i].first <= psn {
		return s.messages[i]
	}
	return nil
}

// counted returns how many messages of the stream end with psn or before it.
func (s *stream) counted(psn int64) uint32 {
	return uint32(sort.Search(len(s.messages), func(i int) bool { return s.messages[i].end()-1 > psn }))
}
