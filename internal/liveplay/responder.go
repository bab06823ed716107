package liveplay

import (
	"fmt"
	"slices"
	"time"

	"softroce/internal/ib"
	"softroce/internal/replay"
	"softroce/internal/testbed"
	"softroce/packet"
	"softroce/transport"
)

// A responderPlayer plays the responder's side of one stream: it has the live NIC's program post the captured work, and gives the
// captured answers to what comes.
type responderPlayer struct {
	endpoint
	script  *replay.ResponderScript
	session replay.ResponderSession
	sources uint64 // where what is sent lies: the address of region NAME-s
	lkey    uint32
	sinks   uint64 // where results go: the address of region NAME-r
	skey    uint32
	offsets []uint64 // of each job in one of the two

	start          time.Duration
	repliesSent    int           // answers
	retransmitted  int           // of them, more than once, because the live requester asked again
	requestsSeen   int           // requests
	lastActive     time.Duration // when something last happened
	changed        []replay.Note
	requesterState // what the live requester has sent
}

// newResponderPlayer makes the live queue pair and its memory.
func newResponderPlayer(st target, s *replay.ResponderScript) (*responderPlayer, error) {
	a := &responderPlayer{endpoint: newEndpoint(st), script: s}
	early, late := st.testbed.Slack()
	a.session = replay.ResponderSession{Service: s.Service, PathMTU: s.PathMTU, FirstPSN: s.FirstPSN, MaxRDAtomic: s.MaxRDAtomic, Timeout: s.Timeout,
		RetryCount: s.RetryCount, RNRRetry: s.RNRRetry, Work: s.Work, Early: early, Late: late}
	if err := a.setUp(); err != nil {
		a.destroy()
		return nil, err
	}
	st.recording.onPacket = a.request
	return a, nil
}

// setUp makes memory for what is sent and for results, and a queue pair that can send.
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

// createRegions gives every job a place: what is sent, where it is not the same as before, and results.
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

// play gives every answer when its turn has come, and waits for what is to be sent until then.
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

// isTime reports whether the time has come for what the capture has at some time, if that counts.
func (a *responderPlayer) isTime(after time.Duration) bool {
	return a.options.Fast || a.testbed.Now() >= a.start+after
}

// post posts what the captured program had posted when it had had as many answers.
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

// truncate ends the script before a job that the live NIC's program refuses.
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

// poll takes what has completed.
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

// sendReply gives the next answer.
func (a *responderPlayer) sendReply() error {
	s := &a.script.Replies[a.repliesSent]
	a.repliesSent++
	a.note(s)
	return a.transmit(s.Packet, s.Header)
}

// resendReplies gives once more what the live requester has been given and asks for again: the network lost it.
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
	if ack == nil {
		return nil
	}
	a.retransmitted++
	return a.transmit(ack.Packet, ack.Header)
}

// isFatal reports whether an answer ends the connection.
func isFatal(s *replay.Reply) bool {
	n := s.Header.AETH.Syndrome
	return s.Header.Opcode.Info().Kind == packet.KindAck && n.IsNAK() && n != packet.NAKSequence
}

// wait lets time pass until something is to be done. A live requester that sends nothing though it should is given what
// can be said so far; in the end it is silent.
func (a *responderPlayer) wait() error {
	before, now := a.requestsSeen, a.testbed.Now()
	end := a.lastActive + a.idleTimeout()
	next := a.nextDue()
	switch {
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

// queueFull reports whether a job waits for room in the live send queue.
func (a *responderPlayer) queueFull() bool {
	n := len(a.session.Posted)
	return n < len(a.script.Work) && a.script.Work[n].RepliesBefore <= a.repliesSent && n-len(a.session.Completions) >= queueDepth
}

// nextDue returns when something is due by the capture's time that waits for nothing else, or 0.
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

// idleTimeout is how long it takes at most until a live requester goes back by itself.
func (a *responderPlayer) idleTimeout() time.Duration {
	const most = 4 // times what the timeout says (IBTA 9.7.6.1.3)
	_, late := a.testbed.Slack()
	return most*replay.LocalTimeout(a.script.Timeout) + rnrWait + late
}

// done reports whether all is posted, sent and answered, or the live requester has ended.
func (a *responderPlayer) done() bool {
	if a.ended {
		return true
	}
	return a.repliesSent == len(a.script.Replies) && len(a.session.Posted) == len(a.script.Work) &&
		(a.refused || a.acked >= a.end() || a.next >= a.end() && a.goBacks >= a.script.Unanswered)
}

// end is the PSN behind everything.
func (a *responderPlayer) end() int64 { return a.script.Work[len(a.script.Work)-1].End }

// conclude waits for completions and looks at what the program sees.
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

// inspect looks at what READs and atomics brought.
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
