package liveplay

import (
	"fmt"
	"slices"
	"time"

	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/packet"
	"softroce/transport"
)

// A responderPlayer plays the responder's side of one stream: the live NIC's program posts the
// captured work requests, and the player sends the captured replies.
type responderPlayer struct {
	endpoint
	script  *replay.ResponderScript
	session replay.ResponderSession
	sources uint64 // address of region NAME-s, which is sent from
	lkey    uint32
	sinks   uint64 // address of region NAME-r, where results go
	skey    uint32
	offsets []uint64 // of each work request, in one of the two

	start          time.Duration
	repliesSent    int           // from the script
	retransmitted  int           // replies sent again because the live requester retransmitted
	requestsSeen   int           // number of requests
	lastActive     time.Duration // when a packet was last sent or received
	changed        []replay.Note
	part           *replay.Reply // the last ACK that is not from the script: see acknowledgePart
	requesterState               // of the live requester
}

// newResponderPlayer creates the live queue pair and its memory.
func newResponderPlayer(st target, s *replay.ResponderScript) (*responderPlayer, error) {
	a := &responderPlayer{endpoint: newEndpoint(st, s.Network), script: s}
	early, late := st.testbed.Slack()
	a.session = replay.ResponderSession{Service: s.Service, PathMTU: s.PathMTU, FirstPSN: s.FirstPSN, MaxRDAtomic: s.MaxRDAtomic, Timeout: s.Timeout,
		RetryCount: s.RetryCount, RNRRetry: s.RNRRetry, Work: s.Work, Early: early, Late: late, Untimed: st.options.Untimed}
	if err := a.setUp(); err != nil {
		a.destroy()
		return nil, err
	}
	st.recording.onPacket = a.request
	return a, nil
}

// setUp creates memory for payloads and results, and a queue pair in RTS.
func (a *responderPlayer) setUp() error {
	if err := a.createRegions(); err != nil {
		return err
	}
	s := a.script
	at := ib.QPAttr{PathMTU: s.PathMTU, SQPSN: s.FirstPSN, MaxRDAtomic: s.MaxRDAtomic, Timeout: s.Timeout, RetryCount: s.RetryCount, RNRRetry: s.RNRRetry}
	if err := a.connect(s.Service, at, true); err != nil {
		return err
	}
	a.session.Player, a.session.Peer = a.addresses()
	return nil
}

// createRegions assigns each work request an offset for its payload or its result. Equal payloads
// in sequence share one.
func (a *responderPlayer) createRegions() error {
	var source []byte
	var sinks uint64
	for i := range a.script.Work {
		j := &a.script.Work[i]
		at := uint64(len(source))
		switch {
		case j.Length > 0:
			at = sinks
			sinks += (uint64(j.Length) + alignment - 1) / alignment * alignment
		case i > 0 && len(j.Payload) > 0 && string(j.Payload) == string(a.script.Work[i-1].Payload):
			at = a.offsets[i-1]
		default:
			source = append(source, j.Payload...)
		}
		a.offsets = append(a.offsets, at)
		if sinks > maxMemory || sinks+uint64(len(source)) > maxMemory {
			return fmt.Errorf("%w: the limit is %d bytes", ErrMemory, maxMemory)
		}
	}
	from, err := a.register(a.name+"-s", testbed.RegionOptions{Size: max(1, len(source))})
	if err != nil {
		return err
	}
	to, err := a.register(a.name+"-r", testbed.RegionOptions{Size: int(max(1, sinks)), Access: ib.AccessLocalWrite})
	if err != nil {
		return err
	}
	a.sources, a.lkey, a.sinks, a.skey = from.Addr, from.LKey, to.Addr, to.LKey
	return a.write(a.name+"-s", 0, source)
}

// play sends each reply when its cause has arrived and its time has come.
func (a *responderPlayer) play() error {
	a.start, a.resendFrom = a.testbed.Now(), -1
	a.lastActive = a.start
	for {
		if err := a.options.Context.Err(); err != nil {
			return err
		}
		if err := a.post(); err != nil {
			return err
		}
		switch {
		case a.resendFrom >= 0 && !a.ready():
			if err := a.resendReplies(); err != nil {
				return err
			}
		case a.ready() && a.isTime(a.script.Replies[a.repliesSent].After):
			if err := a.sendReply(); err != nil {
				return err
			}
		case a.done():
			return a.conclude()
		default:
			if err := a.wait(); err != nil {
				return err
			}
		}
	}
}

// isTime reports whether the captured time after the start has come. With Options.Fast it always
// has.
func (a *responderPlayer) isTime(after time.Duration) bool {
	return a.options.Fast || a.testbed.Now() >= a.start+after
}

// post posts the work requests that the captured program had posted after as many replies.
func (a *responderPlayer) post() error {
	for n := len(a.session.Posted); n < len(a.script.Work); n++ {
		j := &a.script.Work[n]
		if j.RepliesBefore > a.repliesSent || !a.isTime(j.After) {
			return nil
		}
		if n-len(a.session.Completions) >= queueDepth {
			if err := a.poll(); err != nil || n-len(a.session.Completions) >= queueDepth {
				return err
			}
		}
		wr := j.SendWR
		wr.ID = uint64(n)
		switch {
		case j.Length > 0:
			wr.SGEs = []transport.SGE{{Addr: a.sinks + a.offsets[n], Length: j.Length, LKey: a.skey}}
		case len(j.Payload) > 0:
			wr.SGEs = []transport.SGE{{Addr: a.sources + a.offsets[n], Length: uint32(len(j.Payload)), LKey: a.lkey}}
		}
		a.lastActive = a.testbed.Now()
		a.session.Posted = append(a.session.Posted, a.lastActive)
		if err := a.nic.PostSend(a.name, &wr); err != nil {
			return a.truncate(n, err)
		}
		a.testbed.Run(a.testbed.Now(), nil)
	}
	return nil
}

// truncate ends the script before a work request that the live NIC's program rejects.
func (a *responderPlayer) truncate(n int, refusal error) error {
	if n == 0 {
		return refusal
	}
	j := a.script.Work[n]
	a.changed = append(a.changed, replay.Note{Packet: j.Packet, Text: fmt.Sprintf("this and later work requests are not posted: %v", refusal)})
	a.session.Posted = a.session.Posted[:n]
	a.script.Work = a.script.Work[:n]
	a.script.Replies = slices.DeleteFunc(a.script.Replies, func(s replay.Reply) bool { return s.PSN >= j.PSN })
	a.script.Unanswered = 0
	return nil
}

// poll polls the completions.
func (a *responderPlayer) poll() error {
	l, err := a.nic.Completions()
	for _, c := range l {
		if c.QP != a.name || c.Recv {
			continue
		}
		a.ended = a.ended || c.Status != ib.WCSuccess
		a.session.Completions = append(a.session.Completions, transport.Completion{WRID: c.ID, Status: c.Status, Opcode: c.Opcode, ByteLen: c.ByteLen})
	}
	return err
}

// sendReply sends the next reply.
func (a *responderPlayer) sendReply() error {
	s := &a.script.Replies[a.repliesSent]
	a.repliesSent++
	a.note(s)
	return a.transmit(s.Packet, s.Header)
}

// resendReplies sends again what the live requester requests again: the network lost it.
func (a *responderPlayer) resendReplies() error {
	from := a.resendFrom
	a.resendFrom = -1
	var ack *replay.Reply
	for i := range a.script.Replies[:a.repliesSent] {
		s := &a.script.Replies[i]
		switch in := s.Header.Opcode.Info(); {
		case s.PSN < from:
		case in.Kind != packet.KindAck:
			a.retransmitted++
			a.acknowledge(s)
			if err := a.transmit(s.Packet, s.Header); err != nil {
				return err
			}
		case s.Header.AETH.Syndrome.IsACK() || isFatal(s):
			ack = s
		}
	}
	if a.part != nil && a.part.PSN >= from && (ack == nil || a.part.PSN > ack.PSN) {
		ack = a.part
	}
	if ack == nil {
		return nil
	}
	a.retransmitted++
	return a.transmit(ack.Packet, ack.Header)
}

// isFatal reports whether a reply ends the connection.
func isFatal(s *replay.Reply) bool {
	return s.Header.Opcode.Info().Kind == packet.KindAck && conversation.IsFatal(s.Header.AETH.Syndrome)
}

// wait lets time pass until there is something to do. A live requester that does not send the
// expected request is acknowledged as far as it has sent; if that does not help, it is idle.
func (a *responderPlayer) wait() error {
	before, now := a.requestsSeen, a.testbed.Now()
	end := a.lastActive + a.idleTimeout()
	next := a.nextDue()
	switch {
	case a.sendable() && a.sendsNoMore():
		end = now
	case a.sendable():
		end = a.lastActive + ackWait
	case next > now:
		end = max(end, next)
	}
	until := end
	if a.queueFull() {
		until = min(until, now+pollInterval)
	}
	if next > now {
		until = min(until, next)
	}
	if a.goBacks > maxGoBacks+a.script.Unanswered {
		return errNoProgress
	}
	if a.testbed.Run(until, func() bool { return a.requestsSeen != before }) || a.testbed.Now() < end || until == next {
		return nil
	}
	if err := a.poll(); err != nil || a.ended {
		return err
	}
	if a.sendable() {
		return a.acknowledgePart()
	}
	return errIdle
}

// queueFull reports whether a work request waits for room in the live send queue.
func (a *responderPlayer) queueFull() bool {
	n := len(a.session.Posted)
	return n < len(a.script.Work) && a.script.Work[n].RepliesBefore <= a.repliesSent && n-len(a.session.Completions) >= queueDepth
}

// nextDue returns when the next work request or reply is due by the captured timing, 0 if none is.
func (a *responderPlayer) nextDue() (at time.Duration) {
	if a.options.Fast {
		return 0
	}
	if n := len(a.session.Posted); n < len(a.script.Work) && a.script.Work[n].RepliesBefore <= a.repliesSent && !a.isTime(a.script.Work[n].After) {
		at = a.start + a.script.Work[n].After
	}
	if a.ready() {
		if t := a.start + a.script.Replies[a.repliesSent].After; at == 0 || t < at {
			at = t
		}
	}
	return at
}

// idleTimeout returns the longest time after which a live requester goes back by itself.
func (a *responderPlayer) idleTimeout() time.Duration {
	const most = 4 // times the local ACK timeout (IBTA 9.7.6.1.3)
	_, late := a.testbed.Slack()
	return most*replay.LocalTimeout(a.script.Timeout) + rnrWait + late
}

// done reports whether all is posted, sent and answered, or the live requester is in the error
// state.
func (a *responderPlayer) done() bool {
	if a.ended {
		return true
	}
	return a.repliesSent == len(a.script.Replies) && len(a.session.Posted) == len(a.script.Work) &&
		(a.refused || a.acked >= a.end() || a.next >= a.end() && a.goBacks >= a.script.Unanswered)
}

// end returns the PSN after the last work request.
func (a *responderPlayer) end() int64 { return a.script.Work[len(a.script.Work)-1].End }

// conclude waits for the last completions.
func (a *responderPlayer) conclude() error {
	a.linger(nakWait, func() bool { return false })
	if err := a.poll(); err != nil {
		return err
	}
	final := a.refused || a.acked >= a.end() || a.script.RetryCount != replay.Forever || a.script.RNRRetry != replay.Forever
	for a.lastActive = a.testbed.Now(); final && len(a.session.Completions) < len(a.session.Posted) && a.testbed.Now() < a.lastActive+a.idleTimeout(); {
		a.testbed.Run(a.testbed.Now()+nakWait, nil)
		if err := a.poll(); err != nil {
			return err
		}
		if a.resendFrom >= 0 {
			if err := a.resendReplies(); err != nil {
				return err
			}
		}
	}
	a.session.Whole = final
	return nil
}

// inspect reads the results of READs and atomics.
func (a *responderPlayer) inspect() error {
	a.session.Packets = a.recording.packets[a.first:]
	left := uint64(maxInspect)
	good := map[uint64]bool{}
	for _, c := range a.session.Completions {
		good[c.WRID] = c.Status == ib.WCSuccess
	}
	a.session.Results = make([][]byte, len(a.session.Posted))
	for i := range a.session.Posted {
		j := &a.script.Work[i]
		n := uint64(j.Length)
		if n == 0 || n > left || !good[uint64(i)] {
			continue
		}
		left -= n
		b, err := a.read(a.name+"-r", a.offsets[i], n)
		if err != nil {
			return err
		}
		a.session.Results[i] = b
	}
	return nil
}
