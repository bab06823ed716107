package liveplay

import (
	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// An asking is what the live requester has sent. PSNs are those of the script.
type asking struct {
	got     int64 // the PSN behind what has come in order, since it last went back
	most    int64 // the same, ever
	acked   int64 // everything before this PSN has been answered
	oldest  int   // the job that acked lies in, or one before
	back    int   // how often it has gone back since the last answer
	pass    int   // the same for the captured requester, where that was what the live one is now
	vain    int   // how often it has gone back since it got on
	repeat  int64 // it asks again from here, which was answered; or -1
	refused bool  // a NAK has ended it
	ended   bool  // a completion says that it is at an end
}

// request takes notice of what the live NIC asks of the queue pair that is played.
func (a *answerer) request(c *capture.Packet) {
	in := c.Opcode.Info()
	if c.BTH.DestQP != a.own || c.Src != a.session.Peer.Addr || in.Service != a.script.Service || !in.Request || c.Err != nil || !c.ICRCOK() {
		return
	}
	a.tape.answered = true
	a.heard++
	a.busy = a.bench.Now()
	psn := a.most + int64(packet.PSNDiff(c.BTH.PSN, uint32(int64(a.script.FirstPSN)+a.most)&packet.PSNMask))
	end := psn + 1
	if in.Kind == packet.KindRead {
		end = psn + int64(packet.PSNCount(c.RETH.Length, a.script.PathMTU))
	}
	switch {
	case psn > a.got:
		return // one before it is missing: it will go back
	case psn < a.got:
		a.back++
		a.vain++
		if a.given < len(a.script.Replies) && a.script.Replies[a.given].Pass > a.pass {
			a.pass++
		}
		if psn < a.acked || a.refused || psn == a.acked && a.spent() {
			a.repeat = psn
		}
		if psn > a.acked {
			end = a.acked // it must have gone back further
		}
	}
	a.got = end
	a.most = max(a.most, a.got)
	if a.script.Service == packet.UC {
		a.acked = a.got // nobody answers
	}
}

// spent reports whether the result for which the live requester asks has been given, too soon for it, and will not be
// given again.
func (a *answerer) spent() bool {
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
			if i >= a.given && !a.weary() {
				return false
			}
			given = given || i < a.given
		}
	}
	return given
}

// ready reports whether what draws the next answer has come.
func (a *answerer) ready() bool {
	if a.given == len(a.script.Replies) {
		return false
	}
	s := &a.script.Replies[a.given]
	if s.Cause < a.acked {
		return true // it says nothing new
	}
	return a.got > s.Cause && (!s.Again || a.pass >= s.Pass || a.weary())
}

// weary reports whether the live requester has gone back so often that it may soon give up, other than the captured one
// did: then it is given what there is.
func (a *answerer) weary() bool { return a.vain >= mostVain && a.script.RetryCount == replay.Forever }

// note takes notice of an answer that is given.
func (a *answerer) note(s *replay.Reply) {
	a.back, a.busy, a.pass = 0, a.bench.Now(), max(a.pass, s.Pass)
	if s.PSN >= a.repeat {
		a.repeat = -1
	}
	a.credit(s)
}

// credit works out what the live requester takes for acknowledged when it has an answer.
func (a *answerer) credit(s *replay.Reply) {
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
			break // there is nothing to be acknowledged without its response
		}
		a.acked = min(end, j.End)
	}
	if result && s.PSN == a.acked {
		a.acked++
	}
	if a.acked > before || !result && n.IsRNR() {
		a.vain = 0 // the retry count begins anew (IBTA 9.7.5.2.8)
	}
	a.refused = a.refused || refusing(s)
}

// sendable reports whether an ACK can be given for what has come, because the next answer is one for more than that.
func (a *answerer) sendable() bool {
	if a.given == len(a.script.Replies) {
		return false
	}
	s := &a.script.Replies[a.given]
	return s.Header.Opcode == packet.Acknowledge && s.Header.AETH.Syndrome.IsACK() && s.PSN >= a.got && a.got > a.acked && !a.reading()
}

// reading reports whether a READ or atomic has not been answered, which an ACK must not pass over.
func (a *answerer) reading() bool {
	for i := range a.session.Posted {
		if j := &a.script.Work[i]; j.End > a.acked && j.PSN < a.got && j.HasResponse() {
			return true
		}
	}
	return false
}

// settle acknowledges what has come, where the live requester does not send as far as the captured one did before
// the next ACK: its send queue or its window may be shorter.
func (a *answerer) settle() error {
	s := a.script.Replies[a.given]
	s.PSN = a.got - 1
	s.Header.PSN = uint32(int64(a.script.FirstPSN)+s.PSN) & packet.PSNMask
	s.Header.AETH.MSN = a.messages()
	if n := len(a.parted); n == 0 || a.parted[n-1].Packet != s.Packet.No {
		a.parted = append(a.parted, replay.Note{Packet: s.Packet.No, Text: "given in parts: the live requester does not send as far before it has an answer"})
	}
	a.note(&s)
	return a.transmit(s.Packet, s.Header)
}

// messages counts those that have come as a whole.
func (a *answerer) messages() uint32 {
	n := uint32(0)
	for i := range a.session.Posted {
		if a.script.Work[i].End <= a.got {
			n++
		}
	}
	return n & packet.PSNMask
}
