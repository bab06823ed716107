package liveplay

import (
	"errors"
	"time"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// What is waited for.
const (
	firstTimeout   = 100 * time.Millisecond // for an answer, before packets are sent again; each time twice as long
	maxRetransmits = 6                      // how often they are sent again without an answer
	nakWait        = 100 * time.Millisecond // for a NAK that may be lost
	rnrWait        = 2 * time.Second        // for one with which the receives that are posted next have to do, or a requester for its time
	ackWait        = 300 * time.Millisecond // for as many requests as were captured before an ACK
	pollInterval   = 20 * time.Millisecond  // for a completion, when the live send queue is full
)

// Bounds of what is on its way to the live NIC, where the capture does not tell how much that was.
const maxOutstanding = 128 // PSNs

// maxGoBacks is how often a live requester may go back while it does not send what draws the next answer.
const maxGoBacks = 16

// maxFruitlessGoBacks is how often it may go back without getting on before it is given what the captured requester was given later.
const maxFruitlessGoBacks = 4

// errNoProgress ends a play whose live requester goes back again and again.
var errNoProgress = errors.New("the live requester keeps going back")

// errIdle ends a play whose live NIC does not answer any more.
var errIdle = errors.New("no answer")

// requesterProgress is what the live responder has answered. PSNs are those of the script.
type requesterProgress struct {
	accepted   map[int64]*replay.Step // those sent that are to be accepted, by PSN
	sentEnd    int64                  // the PSN behind the last of them
	unanswered []*replay.Step         // sent, and to be answered
	seen       map[int64]bool         // PSNs of responses to READs and atomics that are due
	acked      int64                  // everything before this PSN is acknowledged
	consumed   int                    // receives that messages before acked took
	open       []*replay.Step         // sent, accepted, and not before acked yet

	naks, rnrs int
	progressed bool  // something new
	ended      bool  // the live queue pair has refused for good
	missing    int64 // the PSN of a NAK for what was sent already; or -1
	lastNAK    int64 // the PSN for which packets were sent again upon a NAK
}

func (g *requesterProgress) init() {
	g.accepted, g.seen, g.missing, g.lastNAK = map[int64]*replay.Step{}, map[int64]bool{}, -1, -1
}

// noteSent notes that a step is about to be sent.
func (p *requesterPlayer) noteSent(s *replay.Step) {
	if !s.Accepted {
		return
	}
	p.accepted[s.PSN] = s
	p.sentEnd = max(p.sentEnd, s.End)
	p.open = append(p.open, s)
	if s.Answered {
		p.unanswered = append(p.unanswered, s)
	}
}

// reply takes notice of what the live NIC says to the queue pair that is played.
func (p *requesterPlayer) reply(c *capture.Packet) {
	in := c.Opcode.Info()
	if c.BTH.DestQP != p.own || c.Src != p.session.Peer.Addr || in.Service != packet.RC || in.Request || c.Err != nil || !c.ICRCOK() {
		return
	}
	p.recording.answered = true
	psn := p.sentEnd + int64(packet.PSNDiff(c.BTH.PSN, p.psn(p.sentEnd)))
	switch {
	case in.Kind != packet.KindAck:
		if p.isAwaited(psn) {
			p.seen[psn], p.progressed = true, true
		}
		p.acknowledge(psn + 1)
	case c.AETH.Syndrome.IsACK():
		p.acknowledge(psn + 1)
	default:
		p.nak(psn, c.AETH.Syndrome)
	}
	p.dropAnswered()
}

// isAwaited reports whether a response is one that is due and was not there yet.
func (p *requesterPlayer) isAwaited(psn int64) bool {
	return len(p.unanswered) > 0 && psn >= p.unanswered[0].PSN && psn < p.sentEnd && !p.seen[psn]
}

func (p *requesterPlayer) acknowledge(end int64) {
	if end > p.sentEnd || end <= p.acked {
		return
	}
	p.acked, p.progressed = end, true
	for len(p.open) > 0 && p.open[0].End <= end {
		p.consumed = max(p.consumed, p.open[0].MinReceives)
		p.open = p.open[1:]
	}
}

func (p *requesterPlayer) nak(psn int64, s packet.Syndrome) {
	switch {
	case s.IsRNR():
		p.rnrs++
	case s == packet.NAKSequence:
		p.naks++
		if p.accepted[psn] != nil && psn != p.lastNAK {
			p.missing = psn
		}
	case s.IsNAK():
		p.ended = true
	}
	p.acknowledge(psn)
}

// dropAnswered takes off due what is answered.
func (p *requesterPlayer) dropAnswered() {
	for len(p.unanswered) > 0 && (p.ended || p.complete(p.unanswered[0])) {
		for psn := p.unanswered[0].PSN; psn < p.unanswered[0].End; psn++ {
			delete(p.seen, psn)
		}
		p.unanswered = p.unanswered[1:]
	}
}

// complete reports whether a request is answered altogether.
func (p *requesterPlayer) complete(s *replay.Step) bool {
	if s.Header.Opcode.Info().Kind.HasOwnResponse() {
		for psn := s.PSN; psn < s.End; psn++ {
			if !p.seen[psn] {
				return false
			}
		}
		return true
	}
	return p.acked >= s.End
}

// consumed returns how many receives have been taken for certain, but the last, which may be in use.
func (p *requesterPlayer) receivesConsumed() int {
	if p.script.Service == packet.UC {
		return len(p.session.Completions)
	}
	return max(0, p.consumed-1)
}

// waitReceives waits, where nothing is answered, until as many receives have completed, or no more do.
func (p *requesterPlayer) waitReceives(n int) error {
	_, late := p.testbed.Slack()
	for end := p.testbed.Now() + pollInterval + late; ; {
		if err := p.poll(); err != nil || len(p.session.Completions) >= n || p.testbed.Now() >= end {
			return err
		}
		p.testbed.Run(p.testbed.Now()+pollInterval, nil)
	}
}

// atLimit reports whether as much is on its way as the live NIC should be given.
func (p *requesterPlayer) atLimit(s *replay.Step) bool {
	if len(p.unanswered) == 0 {
		return false
	}
	kept := 0
	for _, d := range p.unanswered {
		if d.Header.Opcode.Info().Kind.HasOwnResponse() {
			kept++
		}
	}
	return kept >= int(p.script.MaxDestRDAtomic) || s.PSN-p.unanswered[0].PSN > maxOutstanding
}

// waitAnswered waits until all that has to be answered before a PSN is. What does not come is asked for again.
func (p *requesterPlayer) waitAnswered(end int64) error {
	done := func() bool { return len(p.unanswered) == 0 || p.unanswered[0].End > end }
	for tries := 0; ; {
		p.progressed = false
		if done() || p.testbed.Run(p.testbed.Now()+firstTimeout<<tries, func() bool { return done() || p.missing >= 0 }) && done() {
			return nil
		}
		if err := p.options.Context.Err(); err != nil {
			return err
		}
		switch {
		case p.missing >= 0 || p.progressed:
			tries = 0
		case tries == maxRetransmits:
			return errIdle
		default:
			tries++
		}
		if err := p.retransmit(); err != nil {
			return err
		}
	}
}

// retransmit sends once more what the live NIC did not have, or did not answer.
func (p *requesterPlayer) retransmit() error {
	p.lastNAK, p.missing = p.missing, -1
	for psn := min(p.acked, p.unanswered[0].PSN); psn < p.sentEnd; {
		s := p.accepted[psn]
		if s == nil {
			psn++
			continue
		}
		p.retransmitted++
		if err := p.send(s); err != nil {
			return err
		}
		psn = max(s.End, psn+1)
	}
	return nil
}
