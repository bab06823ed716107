package liveplay

import (
	"errors"
	"time"

	"softroce/capture"
	"softroce/internal/replay"
	"softroce/packet"
)

// Times that a player waits.
const (
	firstTimeout   = 100 * time.Millisecond // for a reply, before the first retransmission; doubled each time
	maxRetransmits = 6                      // retransmissions without a reply
	nakWait        = 100 * time.Millisecond // for a NAK that may be lost
	responseWait   = 100 * time.Millisecond // for a response that may be lost, before its request is repeated
	rnrWait        = 2 * time.Second        // for an RNR NAK before receives are posted, or for the longest RNR timer and some more
	ackWait        = 300 * time.Millisecond // for as many requests as were captured before an ACK
	pollInterval   = 20 * time.Millisecond  // between polls for completions
)

// maxOutstanding bounds the PSNs outstanding to the live NIC, where the capture does not show how
// many there were. Receivers of common NICs buffer as many packets.
const maxOutstanding = 128 // PSNs

// maxGoBacks is how many times a live requester may go back without sending the request for the
// next reply.
const maxGoBacks = 16

// maxFruitlessGoBacks is how many times it may go back without progress before it receives replies
// that the captured requester received later. Requesters give up after 7.
const maxFruitlessGoBacks = 4

// errNoProgress ends a play whose live requester keeps going back.
var errNoProgress = errors.New("the live requester keeps going back")

// errIdle ends a play whose live NIC stopped sending.
var errIdle = errors.New("no answer")

// A requesterProgress is what the live responder has acknowledged. PSNs are those of the script.
type requesterProgress struct {
	accepted   map[int64]*replay.Step // steps that were sent and are to be accepted, by PSN
	sentEnd    int64                  // the PSN after the last of them
	unanswered []*replay.Step         // steps that were sent and have to be answered
	seen       map[int64]bool         // PSNs of the responses to unanswered READs and atomics that have arrived
	acked      int64                  // everything before this PSN is acknowledged
	consumed   int                    // receives that messages before acked consumed
	responses  map[int64]bool         // READs and atomics that were sent and are not answered, by last PSN
	repeating  bool                   // the last step repeated one of them
	open       []*replay.Step         // steps that were sent and are to be accepted, from acked on

	naks, rnrs int
	progressed bool  // there was a new reply
	ended      bool  // a NAK has ended the connection
	missing    int64 // the PSN of a NAK for a step that was sent; or -1
	lastNAK    int64 // the PSN of the NAK that the last retransmission followed
}

func (g *requesterProgress) init() {
	g.accepted, g.seen, g.responses = map[int64]*replay.Step{}, map[int64]bool{}, map[int64]bool{}
	g.missing, g.lastNAK = -1, -1
}

// noteSent records that a step is about to be sent.
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

// reply handles a packet from the live NIC to the played queue pair.
func (p *requesterPlayer) reply(c *capture.Packet) {
	in := c.Opcode.Info()
	if c.BTH.DestQP != p.own || c.Src != p.session.Peer.Addr || in.Service != packet.RC || in.Request || c.Err != nil || !c.ICRCOK() {
		return
	}
	p.recording.answered = true
	psn := p.sentEnd + int64(packet.PSNDiff(c.BTH.PSN, p.psn(p.sentEnd)))
	switch {
	case in.Kind != packet.KindAck:
		delete(p.responses, psn)
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

// isAwaited reports whether a response is the first with its PSN to an unanswered step.
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

// dropAnswered removes answered steps from unanswered.
func (p *requesterPlayer) dropAnswered() {
	for len(p.unanswered) > 0 && (p.ended || p.complete(p.unanswered[0])) {
		for psn := p.unanswered[0].PSN; psn < p.unanswered[0].End; psn++ {
			delete(p.seen, psn)
		}
		p.unanswered = p.unanswered[1:]
	}
}

// complete reports whether a step has all its replies.
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

// receivesConsumed returns how many receives are certainly consumed. The last one may be in use.
func (p *requesterPlayer) receivesConsumed() int {
	if p.script.Service == packet.UC {
		return len(p.session.Completions)
	}
	return max(0, p.consumed-1)
}

// waitReceives waits, on UC, until n receives have completed, or no more do.
func (p *requesterPlayer) waitReceives(n int) error {
	_, late := p.testbed.Slack()
	for end := p.testbed.Now() + pollInterval + late; ; {
		if err := p.poll(); err != nil || len(p.session.Completions) >= n || p.testbed.Now() >= end {
			return err
		}
		p.testbed.Run(p.testbed.Now()+pollInterval, nil)
	}
}

// atLimit reports whether no further packet may be outstanding.
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

// waitAnswered waits until all steps before a PSN are answered. It retransmits those that are not.
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

// retransmit sends again what the live NIC has not acknowledged.
func (p *requesterPlayer) retransmit() error {
	p.lastNAK, p.missing = p.missing, -1
	for psn := min(p.acked, p.unanswered[0].PSN); psn < p.sentEnd; {
		s := p.accepted[psn]
		if s == nil {
			psn++
			continue
		}
		p.retransmitted++
		p.awaitResponses(s)
		if err := p.send(s); err != nil {
			return err
		}
		psn = max(s.End, psn+1)
	}
	return nil
}
