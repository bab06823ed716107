package liveplay

import (
	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// A requesterState is what the live requester has sent. PSNs are those of the script.
type requesterState struct {
	next             int64 // the PSN after those that arrived in order since it last went back
	highest          int64 // the highest value of next
	acked            int64 // everything before this PSN is acknowledged
	oldest           int   // index of the first work request that may not be acknowledged
	goBacks          int   // how many times it went back since the last reply
	pass             int   // how many times the captured requester had gone back at this point
	fruitlessGoBacks int   // how many times it went back since something was acknowledged
	resendFrom       int64 // it requests again from this PSN, which was answered; or -1
	refused          bool  // a NAK has ended it
	ended            bool  // a completion shows that it is in the error state
}

// request handles a packet from the live NIC to the played queue pair.
func (a *responderPlayer) request(c *capture.Packet) {
	in := c.Opcode.Info()
	if c.BTH.DestQP != a.own || c.Src != a.session.Peer.Addr || in.Service != a.script.Service || !in.Request || c.Err != nil || !c.ICRCOK() {
		return
	}
	a.recording.answered = true
	a.requestsSeen++
	a.lastActive = a.testbed.Now()
	psn := a.highest + int64(packet.PSNDiff(c.BTH.PSN, uint32(int64(a.script.FirstPSN)+a.highest)&packet.PSNMask))
	end := psn + 1
	if in.Kind == packet.KindRead {
		end = psn + int64(packet.PSNCount(c.RETH.Length, a.script.PathMTU))
	}
	switch {
	case psn > a.next && psn > a.acked:
		return // a request before it is missing: the requester will go back
	case psn != a.next: // it went back, perhaps to a PSN after some that were answered meanwhile
		a.goBacks++
		a.fruitlessGoBacks++
		if a.repliesSent < len(a.script.Replies) && a.script.Replies[a.repliesSent].Pass > a.pass {
			a.pass++
		}
		if psn < a.acked || a.refused || psn == a.acked && a.resultLost() {
			if a.resendFrom < 0 || psn < a.resendFrom {
				a.resendFrom = psn
			}
		}
		if psn > a.acked {
			end = a.acked // it went back further
		}
	}
	a.next = end
	a.highest = max(a.highest, a.next)
	if a.script.Service == packet.UC {
		a.acked = a.next // UC has no acknowledgements
	}
}

// resultLost reports whether the response that the live requester waits for was sent too early, and
// is not sent again.
func (a *responderPlayer) resultLost() bool {
	for a.oldest < len(a.script.Work) && a.script.Work[a.oldest].End <= a.acked {
		a.oldest++
	}
	if a.oldest == len(a.script.Work) || !a.script.Work[a.oldest].HasResponse() {
		return false
	}
	given := false
	for i := range a.script.Replies {
		s := &a.script.Replies[i]
		if s.PSN == a.acked && s.Header.Opcode.Info().Kind != packet.KindAck {
			if i >= a.repliesSent && !a.mayGiveUp() {
				return false
			}
			given = given || i < a.repliesSent
		}
	}
	return given
}

// ready reports whether the cause of the next reply has arrived.
func (a *responderPlayer) ready() bool {
	if a.repliesSent == len(a.script.Replies) {
		return false
	}
	s := &a.script.Replies[a.repliesSent]
	if s.Cause < a.acked {
		return true // it acknowledges nothing new
	}
	return a.next > s.Cause && (!s.Again || a.pass >= s.Pass || a.mayGiveUp())
}

// mayGiveUp reports whether the live requester went back so often that it may give up, which the
// captured one did not. Then the next reply is sent.
func (a *responderPlayer) mayGiveUp() bool {
	return a.fruitlessGoBacks >= maxFruitlessGoBacks && a.script.RetryCount == replay.Forever
}

// note records that a reply is sent.
func (a *responderPlayer) note(s *replay.Reply) {
	a.goBacks, a.lastActive, a.pass = 0, a.testbed.Now(), max(a.pass, s.Pass)
	if s.PSN == a.resendFrom || s.PSN > a.resendFrom && s.Header.Opcode.Info().Kind == packet.KindAck {
		a.resendFrom = -1 // the result of another request does not answer it
	}
	a.acknowledge(s)
}

// acknowledge advances acked by what a reply acknowledges.
func (a *responderPlayer) acknowledge(s *replay.Reply) {
	end, before := s.PSN, a.acked
	n := s.Header.AETH.Syndrome
	result := s.Header.Opcode.Info().Kind != packet.KindAck
	if !result && n.IsACK() {
		end++
	}
	for a.oldest < len(a.script.Work) && a.acked < end {
		j := &a.script.Work[a.oldest]
		if a.acked >= j.End {
			a.oldest++
			continue
		}
		if j.HasResponse() {
			break // an ACK does not replace its response
		}
		a.acked = min(end, j.End)
	}
	if result && s.PSN == a.acked {
		a.acked++
	}
	if a.acked > before || !result && n.IsRNR() {
		a.fruitlessGoBacks = 0 // the retry counter is reset (IBTA 9.7.5.2.8)
	}
	a.refused = a.refused || isFatal(s)
}

// sendable reports whether the requests so far can be acknowledged, because the next reply is an
// ACK for more.
func (a *responderPlayer) sendable() bool {
	if a.repliesSent == len(a.script.Replies) {
		return false
	}
	s := &a.script.Replies[a.repliesSent]
	return s.Header.Opcode == packet.Acknowledge && s.Header.AETH.Syndrome.IsACK() && s.PSN >= a.next && a.next > a.acked && !a.reading()
}

// sendsNoMore reports whether the live requester has gone back more often than the captured one
// since the last reply: it waits for an acknowledgement.
func (a *responderPlayer) sendsNoMore() bool {
	return a.goBacks > 1 && a.pass >= a.script.Replies[a.repliesSent].Pass
}

// reading reports whether a READ or atomic has no response, which an ACK must not pass over.
func (a *responderPlayer) reading() bool {
	for i := range a.session.Posted {
		if j := &a.script.Work[i]; j.End > a.acked && j.PSN < a.next && j.HasResponse() {
			return true
		}
	}
	return false
}

// acknowledgePart acknowledges the requests so far, where the live requester does not send as many
// as the captured one before the next ACK: its send queue or window may be shorter.
func (a *responderPlayer) acknowledgePart() error {
	s := a.script.Replies[a.repliesSent]
	s.PSN = a.next - 1
	s.Header.PSN = uint32(int64(a.script.FirstPSN)+s.PSN) & packet.PSNMask
	s.Header.AETH.MSN = a.messages()
	if n := len(a.changed); n == 0 || a.changed[n-1].Packet != s.Packet.No {
		a.changed = append(a.changed, replay.Note{Packet: s.Packet.No, Text: "sent in parts: the live requester sends fewer requests without an acknowledgement"})
	}
	a.part = &s
	a.note(&s)
	return a.transmit(s.Packet, s.Header)
}

// messages counts the completed messages.
func (a *responderPlayer) messages() uint32 {
	n := uint32(0)
	for i := range a.session.Posted {
		if a.script.Work[i].End <= a.next {
			n++
		}
	}
	return n & packet.PSNMask
}
