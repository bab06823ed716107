package check

import (
	"hash/maphash"

	"softroce/internal/conversation"
	"softroce/packet"
)

// A requester sends new requests with consecutive PSNs. Where the capture has others, requests may
// have been lost before the point of capture. This file finds where that is no explanation.

// A jump is a request with a PSN after the expected one.
type jump struct {
	request
	expected int64
	name     string
	certain  bool // its sender sent nothing between the request before and this one
	returned bool // the request after it has the PSN after the expected one
}

// maxJumps bounds the jumps of a stream that are kept.
const maxJumps = 64

// addJump records that r, the request p, is not the expected one.
func (s *stream) addJump(p *judgedPacket, r *request, expected int64) {
	if i := s.find(r.Seq); i > 0 && s.requests[i-1].NumPSNs == 0 {
		return // it follows a READ of unknown length
	}
	if len(s.jumps) == maxJumps {
		s.jumps = append(s.jumps[:0], s.jumps[1:]...)
	}
	s.jumps = append(s.jumps, jump{request: *r, expected: expected, name: p.name(),
		certain: s.prevEnd == expected && p.nothingBetween(s.counter, s.counted)})
}

// lastJump returns the jump that the request before made, nil if it made none.
func (s *stream) lastJump() *jump {
	if n := len(s.jumps); n > 0 && s.jumps[n-1].no == s.newest {
		return &s.jumps[n-1]
	}
	return nil
}

// follow judges the jump before p by the PSN of p.
func (s *stream) follow(p *judgedPacket, seq int64) {
	j := s.lastJump()
	if j == nil {
		return
	}
	if seq != j.expected+j.End()-j.Seq || seq == j.Seq {
		return
	}
	j.returned = true
	if j.certain && !s.wasRefused(j.expected) {
		s.accuseJump(*j)
	}
}

// wasRefused reports whether the responder's last NAK is for a PSN: then the request was lost.
func (s *stream) wasRefused(seq int64) bool { return s.nak.no != 0 && s.nak.seq == seq }

// accuseJump reports a jump. If the PSNs go on as if there was none, the request stands where the
// expected one should be; otherwise requests were left out.
func (s *stream) accuseJump(j jump) {
	s.violation(rulePSNOrder, j.no, j.name, true, "%v with PSN %d, expected %d", j.opcode, conversation.Wrap(j.Seq), conversation.Wrap(j.expected))
	s.removeJump(j.no)
	if s.heldACK.jump == j.no {
		s.heldACK = heldACK{}
	}
	if !j.returned {
		if r := s.requestAt(j.Seq); r != nil {
			r.accused = true // it may be another one
		}
		s.skip(j.Seq)
		return
	}
	if i := s.find(j.Seq); i >= 0 && s.requests[i].no == j.no {
		s.requests = append(s.requests[:i], s.requests[i+1:]...)
		s.judge.requests--
	}
	s.standFor(j.request, j.expected)
	s.recountMessages(j.Seq)
	if n := len(s.requests); n > 0 {
		s.next = s.requests[n-1].End()
		s.prevEnd = s.next
	}
}

// standFor inserts a request with another PSN than it has.
func (s *stream) standFor(r request, seq int64) {
	r.Seq, r.nextResponse, r.respondedTo = seq, seq, seq
	r.accused, r.reported = true, true
	s.insert(r)
	s.next = max(s.next, r.End())
}

func (s *stream) removeJump(no int) {
	for i := range s.jumps {
		if s.jumps[i].no == no {
			s.jumps = append(s.jumps[:i], s.jumps[i+1:]...)
			return
		}
	}
}

// fillJump reports whether a jump certainly explains that the PSN contiguous is missing, although a
// reply has the PSN seq. If so it accuses the requester.
func (s *stream) fillJump(seq int64) bool {
	for _, j := range s.jumps {
		length := j.End() - j.Seq
		if j.no == s.newest && j.Seq > j.expected+length && seq == j.expected+length-1 {
			j.returned = true // the reply is for the expected request: j is that one
		}
		if j.expected == s.contiguous && (j.certain || j.returned && s.certain(j.expected)) {
			s.accuseJump(j)
			s.recountMessages(j.Seq)
			return true
		}
	}
	return false
}

// An unordered is a jump after which the requester sent the expected request. Either that one was
// lost before the point of capture, or they were sent in the wrong order.
type unordered struct {
	jump
	active    bool
	confirmed bool // new requests followed, or a reply acknowledges both
	no        int  // packet number of the expected request
	psn       uint32
}

// order judges the request before p. Where the Identifications show that it was not delayed, and
// the requester goes on with new requests, it is no retransmission either: that would repeat what
// follows.
func (s *stream) order(p *judgedPacket, seq int64, repeat bool, when conversation.Lateness) {
	if u := &s.unordered; u.active && !u.confirmed {
		u.active = !repeat && seq >= u.End()
		u.confirmed = u.active
	}
	s.accuseOrder()
	if repeat || s.flow.peer == nil {
		return
	}
	if j := s.lastJump(); j != nil && seq == j.expected && (when == conversation.OnTime || j.certain) && !s.wasRefused(seq) {
		s.unordered = unordered{jump: *j, active: true, no: p.No, psn: p.PSN}
	}
}

// accuseOrder reports requests in the wrong order, once that is certain.
func (s *stream) accuseOrder() {
	u := &s.unordered
	if !u.active || !u.confirmed || !s.certain(u.expected) {
		return
	}
	u.active = false
	s.violation(rulePSNOrder, u.jump.no, u.name, true, "%v with PSN %d, packet %d with PSN %d comes after it", u.opcode, conversation.Wrap(u.Seq), u.no, u.psn)
}

// A differing is a request with the PSN of an earlier one, and other content. Either it is a
// retransmission that is not the same, or a new request with a wrong PSN: the next request shows
// which.
type differing struct {
	p    *judgedPacket
	seq  int64
	was  request
	same bool // its content is the same: it is suspicious because it comes so soon

	certain     bool // the capture has all that its sender sent before
	explainedBy int  // of the stream, when it was sent
}

// judgeDiffering judges the request kept in differing. next is the PSN of the next request, or one
// that a reply acknowledges.
func (s *stream) judgeDiffering(next int64, reply bool) {
	d := s.differing
	if d == nil {
		return
	}
	isNew := next == s.next+1 && (s.settled || d.certain)
	if reply {
		isNew = next == s.next
	}
	if reply && !isNew {
		return
	}
	s.differing = nil
	r := s.requestAt(d.seq)
	if r != nil {
		r.transmissions--
	}
	if isNew {
		s.violates(d.p, rulePSNOrder, "%v with PSN %d, expected %d", d.p.Opcode, d.p.PSN, conversation.Wrap(s.next))
		s.standFor(s.newRequest(d.p, s.next), s.next)
		s.prevEnd = s.next
		return
	}
	if r == nil {
		if !s.settled {
			s.prevEnd, s.hasResponses = d.seq+1, true // it may have a response of its own
			return
		}
		s.violates(d.p, rulePSNOrder, "%v with PSN %d, expected %d", d.p.Opcode, d.p.PSN, conversation.Wrap(s.next))
		return
	}
	if !d.same {
		s.violates(d.p, ruleSame, "PSN %d is %v with %d bytes, and was another %v with %d bytes in packet %d",
			d.p.PSN, d.p.Opcode, len(d.p.Payload), d.was.opcode, d.was.payload, d.was.no)
	}
	later := s.explainedBy
	s.explainedBy = d.explainedBy
	s.sentOnTime(d.p, r, d.seq, true)
	s.explainedBy = max(s.explainedBy, later)
}

// hold keeps a request, p, until the next one shows what it is.
func (s *stream) hold(p *judgedPacket, seq int64, was request, same bool) {
	s.differing = &differing{p: p, seq: seq, was: was, same: same, explainedBy: s.explainedBy,
		certain: s.prevEnd == s.next && p.nothingBetween(s.counter, s.counted)}
}

// contentOf returns a hash of what a retransmission of p has to repeat, and its length.
func (s *stream) contentOf(p *judgedPacket) (hash uint64, n int) {
	n = min(p.captured(), len(p.Transport)-packet.ICRCLen)
	return maphash.Bytes(s.judge.seed, p.Transport[min(packet.BTHLen, n):n]), n
}

// An aside is a stream that a request with a PSN far away has ended, perhaps only because its PSN
// is wrong.
type aside struct {
	stream *stream
	jump   jump
}

// leave begins a new stream at p, and keeps the old one until the next packet shows whether it goes
// on.
func (s *stream) leave(p *judgedPacket) {
	old := *s
	s.earlyReply = earlyReply{}
	s.start(p.PSN)
	s.judge.requests += len(old.requests) // they are kept
	s.aside = &aside{stream: &old}
	s.aside.jump = jump{request: s.newRequest(p, old.next), expected: old.next, name: p.name(), returned: true}
}

// comeBack returns to the stream that was left, if a request or reply with a PSN continues it.
func (s *stream) comeBack(psn uint32, reply bool) {
	a := s.aside
	if a == nil {
		return
	}
	seq := a.stream.unwrap(psn)
	if reply && seq != a.jump.expected || !reply && seq != a.jump.End() {
		if !reply {
			s.noteLeft()
		}
		return
	}
	s.judge.requests -= len(s.requests)
	left := a.jump
	*s = *a.stream
	s.violation(rulePSNOrder, left.no, left.name, true, "%v with a PSN far off, expected %d", left.opcode, conversation.Wrap(left.expected))
	s.standFor(left.request, left.expected)
	s.prevEnd = s.next
}

// noteLeft ends the stream that was left.
func (s *stream) noteLeft() {
	a := s.aside
	s.aside = nil
	s.judge.requests -= len(a.stream.requests)
	s.note(noteNewStream, a.jump.no, a.jump.name)
	a.stream.reportACK()
	a.stream.judgeWaits()
	a.stream.lastMSN()
}
