package replay

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
	"softroce/transport"
)

// A ResponderSession is the record of a ResponderScript that was played to a live requester: the
// packets at the player, and the work requests that were posted, so that they need not be inferred.
type ResponderSession struct {
	Service      packet.Service  // RC, UC
	Packets      capture.Packets // in order; those of other queue pairs are ignored
	Player, Peer End             // Peer has the requester
	PathMTU      int
	FirstPSN     uint32
	MaxRDAtomic  uint8
	Timeout      uint8
	RetryCount   uint8
	RNRRetry     uint8
	Work         []WorkRequest
	Posted       []time.Duration // when each work request was posted, on the clock of Packets, which starts at the Unix epoch

	// Early and Late are by how much a packet's timestamp may precede or follow the time at which
	// it was sent.
	Early, Late time.Duration

	// Untimed accepts retransmissions that come before their time. The clock of a live requester's
	// host may be unreliable, for example in a virtual machine.
	Untimed bool

	// Completions of the send queue, in order. Whole says that they were polled after all requests
	// were answered; Silent, that the live requester stopped sending.
	Completions []transport.Completion
	Whole       bool
	Silent      bool
	Lossy       bool // the network lost packets

	// Results is what READs and atomics wrote to memory, by work request; nil where it was not
	// read.
	Results [][]byte
}

// A liveRequester is a requesterModel, and its mode, with the work requests of a live requester,
// whose timing it judges.
type liveRequester struct {
	*requesterModel
	session *ResponderSession

	completions []transport.Completion
	results     [][]byte
	ending      bool // there is no further captured packet

	wentBack    bool                         // softroce's requester went back and nothing was acknowledged since: it does not go back again
	wentBackAt  int64                        // when it did
	recovery    int64                        // how long the last recoveries took, until something was acknowledged; 0: unknown
	rnrUntil    int64                        // when the wait for an RNR NAK ends, on the clock of the packets
	resumedAt   int64                        // when it last retransmitted after such a wait
	late        []*conversation.Transmission // replies that the live requester received after it sent something
	last        *conversation.Transmission   // the last reply that softroce's requester was given
	goBackCause *conversation.Transmission   // the reply that made softroce's requester go back since it last sent
	moved       int64                        // when the oldest unacknowledged PSN last changed, on the clock of the packets
	oldest      int64                        // that PSN
	timeouts    int                          // since it changed
	expired     int64                        // when the timer of the last timeout started at the earliest
	ignored     []Difference
	followed    int // number of NAKs that it followed
}

// Judge compares the live requester's requests with those of softroce's requester.
func (l *ResponderSession) Judge(o Options) (*Stream, error) {
	var requests, replies []*conversation.Transmission
	for i, p := range l.Packets {
		in := p.Opcode.Info()
		if p.Opcode.Service() != l.Service || conversation.Usable(p) != nil {
			continue
		}
		t := conversation.NewTransmission(p, i)
		switch {
		case in.Request && p.Src == l.Peer.Addr && p.Dst == l.Player.Addr && p.BTH.DestQP == l.Player.QPN:
			requests = append(requests, t)
		case !in.Request && p.Src == l.Player.Addr && p.Dst == l.Peer.Addr && p.BTH.DestQP == l.Peer.QPN:
			replies = append(replies, t)
		}
	}
	if len(requests) == 0 && !l.Silent {
		return nil, ErrSession
	}
	s := liveStream(requests, replies, l.Packets, l.PathMTU, l.FirstPSN)
	s.report.From, s.report.To = l.Peer, l.Player
	l.messages(s)
	m, err := newRequesterModel(s, o.Strict)
	if err != nil {
		return nil, err
	}
	r := &liveRequester{requesterModel: m, session: l}
	m.mode = r
	if err := r.plan(l.work(r)); err != nil {
		return nil, err
	}
	r.run()
	r.conclude()
	return s.report, nil
}

// liveStream returns the stream of a session, of which the beginning is known.
func liveStream(requests, replies []*conversation.Transmission, ps capture.Packets, mtu int, first uint32) *stream {
	s := conversation.NewKnown(requests, replies, ps, mtu, first)
	return &stream{s, nil, &Stream{Requests: len(requests), Replies: len(replies), PathMTU: mtu, FirstPSN: first,
		Responder: newVerdict(), Requester: newVerdict()}}
}

// messages sets the messages of a stream from the posted work requests.
func (l *ResponderSession) messages(s *stream) {
	first := map[int64]*conversation.Transmission{}
	for _, e := range s.Sent {
		if first[e.Seq] == nil {
			first[e.Seq] = e
		}
	}
	s.FirstSeq = int64(conversation.Origin) + int64(l.FirstPSN)
	s.Messages = nil
	for i := range l.Posted {
		j := &l.Work[i]
		m := &conversation.Message{First: s.FirstSeq + j.PSN, NumPSNs: j.End - j.PSN, Kind: kindOf(j.Opcode)}
		for psn := m.First; psn < m.End(); psn++ {
			if e := first[psn]; e != nil {
				m.Packets = append(m.Packets, e)
			}
			if m.Kind.HasOwnResponse() {
				break
			}
		}
		s.Messages = append(s.Messages, m)
	}
}

// kindOf returns the kind of the packets of a work request.
func kindOf(o ib.WROpcode) packet.Kind {
	switch o {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		return packet.KindWrite
	case ib.WRRDMARead:
		return packet.KindRead
	case ib.WRFlush:
		return packet.KindFlush
	case ib.WRAtomicWrite:
		return packet.KindAtomicWrite
	case ib.WRAtomicCmpAndSwp:
		return packet.KindCompareSwap
	case ib.WRAtomicFetchAndAdd:
		return packet.KindFetchAdd
	}
	return packet.KindSend
}

// work returns the work requests that were posted, with memory for the results of READs and
// atomics.
func (l *ResponderSession) work(r *liveRequester) *work {
	w := &work{mtu: int64(l.PathMTU)}
	for i := range l.Posted {
		j := &l.Work[i]
		wr := j.SendWR
		wr.ID, wr.Flags, wr.SGEs = uint64(i), wr.Flags|ib.SendSignaled, nil
		var result []byte
		if j.Length > 0 {
			result = make([]byte, j.Length)
		} else if n := len(j.Payload); n > 0 {
			w.piece(w.data.length, int64(n))
			w.data.add(j.Payload, int64(n))
		}
		r.results = append(r.results, result)
		w.wrs = append(w.wrs, wr)
	}
	return w
}

// service implements requesterMode.
func (r *liveRequester) service() packet.Service { return r.session.Service }

// placeResults implements requesterMode.
func (r *liveRequester) placeResults(w *work) error {
	for i, m := range r.results {
		if len(m) == 0 {
			continue
		}
		g, err := r.register(mrtable.HeapMemory(m), 0, ib.AccessLocalWrite)
		if err != nil {
			return err
		}
		w.wrs[i].SGEs = []transport.SGE{{Length: uint32(len(m)), LKey: g.LKey()}}
	}
	return nil
}

// attributes implements requesterMode: they are those of the live queue pair.
func (r *liveRequester) attributes(a *ib.QPAttr) {
	l := r.session
	a.MaxRDAtomic, a.Timeout, a.RetryCount, a.RNRRetry = l.MaxRDAtomic, l.Timeout, l.RetryCount, l.RNRRetry
}

// compared implements requesterMode: the request was not lost.
func (r *liveRequester) compared(c *conversation.Transmission) { delete(r.unseen, c.Seq) }

// skipped implements requesterMode. The live requester may have received the reply late; a NAK has
// no effect then.
func (r *liveRequester) skipped(e *conversation.Transmission) {
	if e.Info.Kind != packet.KindAck || e.AETH.Syndrome.IsACK() {
		r.late = append(r.late, e)
	}
}

// mayCross implements requesterMode.
func (r *liveRequester) mayCross(e *conversation.Transmission) bool {
	return e.Info.Kind == packet.KindAck && e.AETH.Syndrome.IsACK()
}

// hasGoneBack implements requesterMode.
func (r *liveRequester) hasGoneBack() bool { return r.wentBack }

// completed implements requesterMode.
func (r *liveRequester) completed(c *transport.Completion) {
	r.completions = append(r.completions, *c)
	if c.Status == ib.WCRetryExcErr {
		r.exhausted()
	}
}

// local returns the local ACK timeout of the live requester in nanoseconds.
func (l *ResponderSession) local() int64 { return int64(LocalTimeout(l.Timeout)) }

// when returns the time of a packet on the clock of the session.
func when(e *conversation.Transmission) int64 { return e.Time.UnixNano() }

// judgeRNRWait judges whether a retransmission came before the time of its RNR NAK. A sequence NAK
// after the RNR NAK, caused by later packets, changes nothing; but if the requester follows it, the
// RNR NAK may have been lost.
func (r *liveRequester) judgeRNRWait(c *conversation.Transmission) {
	l := r.session
	n := countBefore(r.s.Replies, c.Index)
	laterNAK := false
	for ; n > 0 && r.s.Replies[n-1].Info.Kind == packet.KindAck && isSequence(r.s.Replies[n-1].AETH.Syndrome); n-- {
		laterNAK = true
	}
	if n == 0 {
		return
	}
	nak := r.s.Replies[n-1]
	if nak.Info.Kind != packet.KindAck || !isRNR(nak.AETH.Syndrome) || c.Seq != nak.Seq {
		return
	}
	r.resumedAt = when(c)
	wait := packet.RNRTimer(uint8(nak.AETH.Syndrome & packet.SyndromeValue))
	pause := when(c) - when(nak)
	if l.Untimed || pause >= wait-int64(l.Early) {
		r.followed += bit(laterNAK)
		return
	}
	d := Difference{c.No, c.BTH.PSN, "RNR wait", time.Duration(pause).String(), fmt.Sprintf("%v, as in packet %d", time.Duration(wait), nak.No)}
	switch i := slices.Index(r.pending, nak); {
	case laterNAK && i >= 0:
		r.ignored = append(r.ignored, d)
		r.pending = slices.Delete(slices.Clone(r.pending), i, i+1)
	case pause >= l.local():
		r.ignored = append(r.ignored, d) // the NAK may have been lost
	default:
		r.v.Differences = append(r.v.Differences, d)
	}
}

// waitsForRNR reports whether a NAK arrives while the requester waits for an RNR timer. It adds
// nothing: it is caused by packets sent after the refused request.
func (r *liveRequester) waitsForRNR(e *conversation.Transmission) bool {
	nak := e.Info.Kind == packet.KindAck && (isRNR(e.AETH.Syndrome) || isSequence(e.AETH.Syndrome))
	return nak && when(e) < r.rnrUntil
}

// delivered records the effect of a reply on softroce's requester, which was at una and send
// before.
func (r *liveRequester) delivered(e *conversation.Transmission, una, send int64) {
	r.last = e
	u, s := r.progress()
	if u != una {
		if r.wentBack {
			r.recovery = when(e) - r.wentBackAt
		}
		r.moved, r.wentBack = when(e), false
	}
	rnr := e.Info.Kind == packet.KindAck && isRNR(e.AETH.Syndrome)
	if s < send {
		r.goBackCause, r.wentBack, r.wentBackAt = e, !rnr, when(e)
	}
	if rnr && (u == e.Seq || r.qp.State() != ib.QPSRTS) {
		r.rnrUntil = when(e) + packet.RNRTimer(uint8(e.AETH.Syndrome&packet.SyndromeValue))
		if r.resumedAt >= when(e) {
			r.rnrUntil = min(r.rnrUntil, r.resumedAt)
		}
	}
}

// judgeGoBack judges a retransmission after a NAK: the live requester must not wait for its
// timeout.
func (r *liveRequester) judgeGoBack(c *conversation.Transmission) {
	l, e := r.session, r.goBackCause
	r.goBackCause = nil
	if e == nil || e.Info.Kind == packet.KindAck && isRNR(e.AETH.Syndrome) {
		return
	}
	pause := when(c) - when(e)
	if pause < l.local()-int64(l.Early) || pause <= int64(l.Late) {
		r.followed++
		return
	}
	if e.Info.Kind != packet.KindAck {
		r.v.deviate(deviationGap, c)
		return
	}
	r.ignored = append(r.ignored, Difference{c.No, c.BTH.PSN, "retransmitted", fmt.Sprintf("%v after packet %d, after a timeout", time.Duration(pause), e.No),
		"after that packet, " + e.AETH.Syndrome.String()})
}

// ignoresNAK reports and records that a live requester that sends c did not follow the sequence NAK
// e.
func (r *liveRequester) ignoresNAK(e, c *conversation.Transmission) bool {
	if e.Info.Kind != packet.KindAck || !isSequence(e.AETH.Syndrome) || when(c)-when(e) <= int64(r.session.Late) {
		return false
	}
	r.ignored = append(r.ignored, Difference{e.No, e.BTH.PSN, "retransmitted", fmt.Sprintf("packet %d goes back further", c.No), "from the PSN of the NAK"})
	return true
}

// minAdaptive is the least time, in nanoseconds, after which softroce retransmits without a NAK
// before the timeout.
const minAdaptive = 1e6

// judgeTimeout judges a retransmission without a NAK: it must not precede the timeout. Requesters
// with adaptive retransmission, as softroce, do not wait for it once they know how long recovery
// from a loss takes. That may be before the replies show it.
func (r *liveRequester) judgeTimeout(c *conversation.Transmission) {
	l := r.session
	una, _ := r.progress()
	if una != r.oldest {
		r.oldest, r.timeouts = una, 0
	}
	r.timeouts++
	r.wentBack = false
	since := r.moved
	if i := sort.Search(len(r.s.Messages), func(i int) bool { return r.s.Messages[i].End() > una }); i < len(l.Posted) {
		since = max(since, int64(l.Posted[i]))
	}
	least := int64(r.timeouts) * l.local()
	began := max(r.expired, int64(l.Posted[0]))
	r.expired = since // at the earliest
	pause := when(c) - since
	early := Difference{c.No, c.BTH.PSN, "timeout", fmt.Sprintf("retransmitted after %v", time.Duration(pause)), fmt.Sprintf("not before %v", time.Duration(least))}
	switch {
	case l.Untimed, pause >= least-int64(l.Early):
	case when(c)-began >= l.local()-int64(l.Early):
		r.v.deviate(deviationTimer, c)
	case r.recovery != 0 && pause > r.recovery, r.followed > 0 && pause >= minAdaptive:
		r.timeouts--
		r.v.deviate(deviationAdaptive, c)
	case r.missedResponse(c): // it, or one after it, may have shown a gap
		r.timeouts--
		r.ignored = append(r.ignored, early)
	default:
		r.v.Differences = append(r.v.Differences, early)
	}
}

// missedResponse reports whether the live requester had not received the response of a READ or
// atomic that immediately precedes its request c.
func (r *liveRequester) missedResponse(c *conversation.Transmission) bool {
	if len(r.late) == 0 {
		return false
	}
	e := r.late[len(r.late)-1]
	return e.Info.Kind != packet.KindAck && when(c)-when(e) <= int64(r.session.Late)
}

// exhausted records that softroce's requester has used up its retries, while the live one continues
// or has ended too.
func (r *liveRequester) exhausted() {
	switch l := r.session; {
	case r.ending:
	case l.RetryCount == Forever:
		r.v.deviate(deviationForever, r.current)
	default:
		r.v.differ(r.current, "request", "retransmitted", fmt.Sprintf("none: the retry count of %d is used up", l.RetryCount))
	}
}

// judgeUnneeded judges a retransmission while nothing is outstanding.
func (r *liveRequester) judgeUnneeded(c *conversation.Transmission) {
	n := countBefore(r.s.Replies, c.Index)
	if n > 0 && when(c)-when(r.s.Replies[n-1]) > int64(r.session.Late) {
		r.v.differ(c, "request", "retransmitted", "none: no request is outstanding")
	}
}

// judgeAfterEnd judges a request after the reply that ended softroce's requester.
func (r *liveRequester) judgeAfterEnd(c *conversation.Transmission) {
	if r.last == nil || r.gaveUp {
		return
	}
	for i := range r.completions {
		status := r.completions[i].Status
		switch {
		case status == ib.WCSuccess, status == ib.WCWRFlushErr:
		case when(c)-when(r.last) > int64(r.session.Late), status == ib.WCRNRRetryExcErr && c.Seq == r.last.Seq && when(c) >= r.rnrUntil:
			r.v.differ(c, "request", c.Opcode.String(), "none: it ended with "+status.String())
			return
		}
	}
}

// conclude judges what only the end shows: requests that were not sent, completions, and results.
func (r *liveRequester) conclude() {
	l := r.session
	r.ending = true
	for _, e := range r.late { // they crossed a request in the network
		if !r.gaveUp && r.qp.State() == ib.QPSRTS {
			r.deliverReply(e)
		}
	}
	if last := len(l.Completions) - 1; last >= 0 && !r.gaveUp {
		for _, c := range l.Completions {
			if c.Status == ib.WCRetryExcErr {
				r.expireLast()
			}
		}
	}
	r.concludeRequests()
	if len(r.v.Lost)+r.followed > 0 {
		for _, d := range r.ignored {
			r.v.Lost = append(r.v.Lost, Note{d.Packet, fmt.Sprintf("%s: %s; its cause may have been lost", d.Field, d.Captured)})
		}
	} else {
		r.v.Differences = append(r.v.Differences, r.ignored...)
	}
	if len(r.v.Differences) > 0 || r.gaveUp {
		return // softroce's requester may be in another state
	}
	r.concludeCompletions()
	r.concludeResults()
}

// expireLast lets softroce's timeout expire once more, if the live requester ended after its last
// timeout.
func (r *liveRequester) expireLast() {
	r.room = 0
	r.qp.Transmit(&r.env)
	if deadline := r.qp.NextDeadline(); deadline != 0 && r.qp.State() == ib.QPSRTS {
		r.env.Now = max(r.env.Now, deadline)
		r.qp.Expire(&r.env)
	}
}

// concludeRequests reports requests that softroce's requester sent and the live one did not, and
// the one that it would send next if the live one stopped. Packets that were lost elsewhere may
// explain it.
func (r *liveRequester) concludeRequests() {
	arrived := map[int64]bool{}
	for _, e := range r.requests {
		arrived[e.Seq] = true
	}
	lossless := !r.session.Lossy && len(r.v.Lost) <= len(r.unseen)
	for _, psn := range slices.Sorted(maps.Keys(r.unseen)) {
		m := r.unseen[psn]
		if lossless || !arrived[psn] {
			r.v.Differences = append(r.v.Differences, Difference{PSN: m.BTH.PSN, Field: "request", Captured: "none", Softroce: m.Opcode.String()})
		}
	}
	if !r.session.Silent || r.gaveUp || r.qp.State() != ib.QPSRTS {
		return
	}
	if m, ok := r.emit(); ok {
		r.v.Differences = append(r.v.Differences, Difference{PSN: m.BTH.PSN, Field: "request", Captured: "none", Softroce: m.Opcode.String()})
	} else {
		r.v.Differences = append(r.v.Differences, Difference{Field: "request", Captured: "none", Softroce: "retransmitted after a timeout"})
	}
}

func (r *liveRequester) concludeCompletions() {
	l := r.session
	differ := func(i int, have, want string) {
		r.v.Differences = append(r.v.Differences, Difference{Field: fmt.Sprintf("completion %d of the send queue", i+1), Captured: have, Softroce: want})
	}
	for i, c := range l.Completions {
		if i >= len(r.completions) {
			differ(i, sendText(&c), "none")
			return
		}
		if have, want := sendText(&c), sendText(&r.completions[i]); have != want {
			differ(i, have, want)
			return
		}
	}
	if n := len(l.Completions); l.Whole && n < len(r.completions) {
		differ(n, "none", sendText(&r.completions[n]))
	}
}

func sendText(c *transport.Completion) string {
	s := fmt.Sprintf("of work request %d: %v", c.WRID+1, c.Status)
	if c.Status == ib.WCSuccess && c.Opcode == ib.WCRDMARead {
		s += fmt.Sprintf(", %d bytes", c.ByteLen)
	}
	return s
}

func (r *liveRequester) concludeResults() {
	for i, have := range r.session.Results {
		want := r.results[i]
		if have == nil || bytes.Equal(have, want) {
			continue
		}
		for k := range want {
			if k >= len(have) || have[k] != want[k] {
				r.v.Differences = append(r.v.Differences, Difference{Field: fmt.Sprintf("result of work request %d, byte %d of %d", i+1, k, len(want)),
					Captured: fmt.Sprintf("%#02x", have[k]), Softroce: fmt.Sprintf("%#02x", want[k])})
				break
			}
		}
	}
}
