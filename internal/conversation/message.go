package conversation

import (
	"fmt"
	"slices"
	"sort"

	"softroce/packet"
)

// A Message is the packets of one work request, assembled from the first captured transmission of
// each packet.
type Message struct {
	First, NumPSNs int64           // unwrapped PSNs
	Kind           packet.Kind     // KindNone: the beginning of the message was not captured
	Packets        []*Transmission // in the order of PSNs, perhaps with gaps; one of a READ or atomic
	Broken         *Transmission   // a packet that cannot follow the one before it, nil if all can
	Expected       string          // what a requester sends in its place
}

// End returns the unwrapped PSN after the message's last.
func (m *Message) End() int64 { return m.First + m.NumPSNs }

// assemble assembles the messages of a stream from FirstSeq on. Where the capture begins inside a
// message, FirstSeq moves to the next one.
func (s *Stream) assemble() {
	s.Messages = nil
	parts := s.firstTransmissions()
	for len(parts) > 0 && !parts[0].Info.Position.StartsMessage() {
		s.FirstSeq = parts[0].End() // inside a message
		parts = parts[1:]
	}
	at := s.FirstSeq
	for len(parts) > 0 {
		if parts[0].Seq > at {
			hole := &Message{First: at, NumPSNs: parts[0].Seq - at}
			s.Messages = append(s.Messages, hole)
		}
		var m *Message
		m, parts = s.assembleOne(parts)
		stray := !m.Packets[0].Info.Position.StartsMessage()
		if stray && len(s.Messages) > 0 && s.Messages[len(s.Messages)-1].Kind != packet.KindNone {
			m.Broken, m.Expected = m.Packets[0], "the first packet of a message"
		}
		if stray && m.Broken == nil && len(s.Messages) > 0 {
			if last := s.Messages[len(s.Messages)-1]; last.Kind == packet.KindNone && last.End() == m.First {
				last.NumPSNs += m.NumPSNs
				last.Packets = append(last.Packets, m.Packets...)
				at = m.End()
				continue
			}
		}
		s.Messages = append(s.Messages, m)
		at = m.End()
		for len(parts) > 0 && parts[0].Seq < at {
			parts = parts[1:] // a retransmitted READ that begins in the middle
		}
	}
}

// firstTransmissions returns the first transmission of each PSN from FirstSeq on, in the order of
// PSNs.
func (s *Stream) firstTransmissions() []*Transmission {
	seen := make(map[int64]bool, len(s.Sent))
	var parts []*Transmission
	for _, e := range s.Sent {
		if e.Seq >= s.FirstSeq && !seen[e.Seq] {
			seen[e.Seq] = true
			parts = append(parts, e)
		}
	}
	if len(parts) > 0 {
		s.LastNew = parts[len(parts)-1].Index
	}
	slices.SortStableFunc(parts, func(a, b *Transmission) int { return int(a.Seq - b.Seq) })
	return parts
}

// assembleOne removes the packets of the first message from parts.
func (s *Stream) assembleOne(parts []*Transmission) (*Message, []*Transmission) {
	start := parts[0]
	m := &Message{First: start.Seq, NumPSNs: start.NumPSNs, Kind: start.Info.Kind, Packets: parts[:1:1]}
	parts = parts[1:]
	switch {
	case !start.Info.Position.StartsMessage():
		m.Kind = packet.KindNone
		return m, parts
	case start.Info.Position == packet.Only:
		return m, parts
	}
	limit := int64(1) << 62
	if m.Kind == packet.KindWrite {
		m.NumPSNs = int64(packet.PSNCount(start.RETH.Length, s.PathMTU))
		limit = m.End()
	}
	for len(parts) > 0 {
		e := parts[0]
		if !m.Packets[len(m.Packets)-1].ContinuedBy(&e.Part) {
			m.cut(e, limit)
			break
		}
		m.Packets = append(m.Packets, e)
		parts = parts[1:]
		if e.Info.Position == packet.Last {
			m.NumPSNs = e.Seq + 1 - m.First
			break
		}
		if m.Kind != packet.KindWrite || e.Seq >= limit {
			m.NumPSNs = e.Seq + 1 - m.First
		}
	}
	return m, parts
}

// cut ends a message whose last packet was not captured before e, which begins another one.
func (m *Message) cut(e *Transmission, limit int64) {
	switch last := m.Packets[len(m.Packets)-1]; {
	case e.Seq >= limit: // its other packets were not captured
	case last.Adjoins(&e.Part):
		m.NumPSNs, m.Broken = e.Seq-m.First, e
		m.Expected = fmt.Sprintf("the next packet of the message of packet %d", m.Packets[0].No)
	default: // it is not known where it ended
		m.NumPSNs, m.Kind = e.Seq-m.First, packet.KindNone
	}
}

// MessageAt returns the message that an unwrapped PSN belongs to, nil if there is none.
func (s *Stream) MessageAt(psn int64) *Message {
	i := sort.Search(len(s.Messages), func(i int) bool { return s.Messages[i].End() > psn })
	if i < len(s.Messages) && s.Messages[i].First <= psn {
		return s.Messages[i]
	}
	return nil
}

// MessagesThrough returns how many messages of the stream end at an unwrapped PSN or before it.
func (s *Stream) MessagesThrough(psn int64) uint32 {
	return uint32(sort.Search(len(s.Messages), func(i int) bool { return s.Messages[i].End()-1 > psn }))
}
