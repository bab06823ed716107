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

// A ResponderSession is what came of an AnswerScript that was played to a live requester: the packets as they passed the
// player, and the work that was posted, so that nothing of that has to be inferred.
type ResponderSession struct {
	Service      packet.Service  // RC, UC
	Packets      capture.Packets // in order; those of other queue pairs are passed over
	Player, Peer End             // Peer has the requester
	PathMTU      int
	FirstPSN     uint32
	MaxRDAtomic  uint8
	Timeout      uint8
	RetryCount   uint8
	RNRRetry     uint8
	Work         []WorkRequest
	Posted       []time.Duration // when each job that was posted was, on the clock of Packets, which begins at the Unix epoch

	// Early and Late are by how much packets may seem to be sent sooner or later than they were.
	Early, Late time.Duration

	// Completions of the send queue, in order. Whole says that they were looked for after all was answered,
	// Silent, that the live requester did not send what was waited for.
	Completions []transport.Completion
	Whole       bool
	Silent      bool
	Lossy       bool // the network has lost something

	// Results is what READs and atomics put into memory, by job; nil where that was not looked at.
	Results [][]byte
}

// An observation is what is noted of a live requester, in order to judge when it does something.
type observation struct {
	completions []transport.Completion
	results     [][]byte
	ending      bool // no captured packet follows

	wentBack    bool                         // softroce's requester has gone back, and nothing came since: it does not do so again
	rnrUntil    int64                        // until when an RNR NAK asks it to wait, on the clock of the packets
	late        []*conversation.Transmission // replies that the live requester had not had when it sent something
	last        *conversation.Transmission   // what softroce's requester was given last
	goBackCause *conversation.Transmission   // what made softroce's requester go back, since it last sent
	moved       int64                        // when the oldest unacknowledged PSN became that, on the clock of the packets
	oldest      int64                        // that PSN
	timeouts    int                          // since then
	expired     int64                        // when it may have begun, the last time
	ignored     []Difference
	followed    int // replies that told it to go back, and it did
}

// Judge holds the live requester's requests against what softroce's requester would have sent.
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
	r, err := newRequesterModel(s, o.Strict)
	if err != nil {
		return nil, err
	}
	r.live = l
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
	return &stream{s, &Stream{Requests: len(requests), Replies: len(replies), PathMTU: mtu, FirstPSN: first,
		Responder: newVerdict(), Requester: newVerdict()}}
}

// messages replaces what the packets tell of the messages by what was posted.
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

// kindOf returns what requests of a work request are.
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

// work makes the work requests that were posted, with memory of their own for what READs and atomics bring.
func (l *ResponderSession) work(r *requesterModel) *work {
	w := &work{mtu: int64(l.PathMTU), maxSGE: 1}
	for i := range l.Posted {
		j := &l.Work[i]
		wr := j.SendWR
		wr.ID, wr.Flags, wr.SGEs = uint64(i), wr.Flags|ib.SendSignaled, nil
		var result []byte
		if j.Length > 0 {
			result = make([]byte, j.Length)
		} else if n := len(j.Payload); n > 0 {
			w.piece(int64(len(w.data)), int64(n))
			w.data = append(w.data, j.Payload...)
		}
		r.results = append(r.results, result)
		w.wrs = append(w.wrs, wr)
	}
	return w
}

// place gives the work requests the memory for what they bring.
func (r *requesterModel) place(w *work) error {
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

// attributes returns the queue pair's attributes, those that a live one was given.
func (r *requesterModel) attributes() ib.QPAttr {
	const someTimeout = 14
	a := ib.QPAttr{PathMTU: r.s.PathMTU, SQPSN: uint32(r.s.FirstSeq) & packet.PSNMask, DestQPN: r.s.report.To.QPN,
		MaxRDAtomic: transport.MaxRDAtomic, Timeout: someTimeout, RetryCount: 7, RNRRetry: 7}
	if l := r.live; l != nil {
		a.MaxRDAtomic, a.Timeout, a.RetryCount, a.RNRRetry = l.MaxRDAtomic, l.Timeout, l.RetryCount, l.RNRRetry
	}
	return a
}

// local is the local ACK timeout of the live requester.
func (l *ResponderSession) local() int64 { return int64(LocalTimeout(l.Timeout)) }

// when is the time of a packet on the clock of the session.
func when(e *conversation.Transmission) int64 { return e.Time.UnixNano() }

// judgeRNRWait judges when a request came: not before the time for which an RNR NAK asked. A sequence NAK behind that, which
// others of its message have drawn, changes nothing; but if it was heeded the RNR NAK may have been lost.
func (r *requesterModel) judgeRNRWait(c *conversation.Transmission) {
	l := r.live
	if l == nil {
		return
	}
	n := countBefore(r.s.Replies, c.Index)
	sequel := false
	for ; n > 0 && r.s.Replies[n-1].Info.Kind == packet.KindAck && isSequence(r.s.Replies[n-1].AETH.Syndrome); n-- {
		sequel = true
	}
	if n == 0 {
		return
	}
	nak := r.s.Replies[n-1]
	if nak.Info.Kind != packet.KindAck || !isRNR(nak.AETH.Syndrome) || c.Seq != nak.Seq {
		return
	}
	wait := packet.RNRTimer(uint8(nak.AETH.Syndrome & packet.SyndromeValue))
	pause := when(c) - when(nak)
	if pause >= wait-int64(l.Early) {
		r.followed += bit(sequel)
		return
	}
	d := Difference{c.No, c.BTH.PSN, "RNR wait", time.Duration(pause).String(), fmt.Sprintf("%v, which packet %d asks for", time.Duration(wait), nak.No)}
	switch i := slices.Index(r.pending, nak); {
	case sequel && i >= 0:
		r.ignored = append(r.ignored, d)
		r.pending = slices.Delete(slices.Clone(r.pending), i, i+1)
	case pause >= l.local():
		r.ignored = append(r.ignored, d) // the NAK may have been lost
	default:
		r.v.Differences = append(r.v.Differences, d)
	}
}

// waitsForRNR reports whether a reply comes while the requester waits upon an RNR NAK, so that a NAK says nothing new: it was
// drawn by what had been sent behind the refused request.
func (r *requesterModel) waitsForRNR(e *conversation.Transmission) bool {
	nak := e.Info.Kind == packet.KindAck && (isRNR(e.AETH.Syndrome) || isSequence(e.AETH.Syndrome))
	return r.live != nil && nak && when(e) < r.rnrUntil
}

// delivered notes what a reply did to softroce's requester, which was somewhere before.
func (r *requesterModel) delivered(e *conversation.Transmission, una, send int64) {
	if r.live == nil {
		return
	}
	r.last = e
	u, s := r.progress()
	if u != una {
		r.moved, r.wentBack = when(e), false
	}
	rnr := e.Info.Kind == packet.KindAck && isRNR(e.AETH.Syndrome)
	if s < send {
		r.goBackCause, r.wentBack = e, !rnr
	}
	if rnr && (u == e.Seq || r.qp.State() != ib.QPSRTS) {
		r.rnrUntil = when(e) + packet.RNRTimer(uint8(e.AETH.Syndrome&packet.SyndromeValue))
	}
}

// judgeGoBack judges what brought the live requester to send c: if it was told to go back, that it did not wait for
// its timeout.
func (r *requesterModel) judgeGoBack(c *conversation.Transmission) {
	l, e := r.live, r.goBackCause
	r.goBackCause = nil
	if l == nil || e == nil || e.Info.Kind == packet.KindAck && isRNR(e.AETH.Syndrome) {
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
	r.ignored = append(r.ignored, Difference{c.No, c.BTH.PSN, "sent again", fmt.Sprintf("%v after packet %d, upon a timeout", time.Duration(pause), e.No),
		"upon that packet, " + e.AETH.Syndrome.String()})
}

// ignoresNAK notes that a live requester that sends c has not taken notice of e, a sequence NAK.
func (r *requesterModel) ignoresNAK(e, c *conversation.Transmission) bool {
	if r.live == nil || e.Info.Kind != packet.KindAck || !isSequence(e.AETH.Syndrome) || when(c)-when(e) <= int64(r.live.Late) {
		return false
	}
	r.ignored = append(r.ignored, Difference{e.No, e.BTH.PSN, "sent again", fmt.Sprintf("packet %d goes back further", c.No), "from the PSN of the NAK"})
	return true
}

// judgeTimeout judges that the live requester went back to send c without being told: not before its timeout.
func (r *requesterModel) judgeTimeout(c *conversation.Transmission) {
	l := r.live
	if l == nil {
		return
	}
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
	switch pause := when(c) - since; {
	case pause >= least-int64(l.Early):
	case when(c)-began >= l.local()-int64(l.Early):
		r.v.deviate(deviationTimer, c)
	default:
		r.v.differ(c, "timeout", fmt.Sprintf("sent again after %v", time.Duration(pause)), fmt.Sprintf("not before %v", time.Duration(least)))
	}
}

// exhausted notes that softroce's requester has used up its retries, where the live one goes on, or has ended too.
func (r *requesterModel) exhausted() {
	switch l := r.live; {
	case r.ending:
	case l == nil || l.RetryCount == Forever:
		r.v.deviate(deviationForever, r.current)
	default:
		r.v.differ(r.current, "request", "sent again", fmt.Sprintf("none: the retry count of %d is used up", l.RetryCount))
	}
}

// judgeUnneeded judges a request that comes again though nothing is outstanding.
func (r *requesterModel) judgeUnneeded(c *conversation.Transmission) {
	n := countBefore(r.s.Replies, c.Index)
	if r.live != nil && n > 0 && when(c)-when(r.s.Replies[n-1]) > int64(r.live.Late) {
		r.v.differ(c, "request", "sent again", "none: all is answered")
	}
}

// judgeAfterEnd judges a request that comes after the reply with which softroce's requester ended.
func (r *requesterModel) judgeAfterEnd(c *conversation.Transmission) {
	if r.live == nil || r.last == nil || r.gaveUp {
		return
	}
	for i := range r.completions {
		status := r.completions[i].Status
		switch {
		case status == ib.WCSuccess, status == ib.WCWRFlushErr:
		case when(c)-when(r.last) > int64(r.live.Late), status == ib.WCRNRRetryExcErr && c.Seq == r.last.Seq && when(c) >= r.rnrUntil:
			r.v.differ(c, "request", c.Opcode.String(), "none: it has ended with "+status.String())
			return
		}
	}
}

// conclude judges what the end shows: requests that never came, completions and what READs brought.
func (r *requesterModel) conclude() {
	l := r.live
	r.ending = true
	for _, e := range r.late { // what crossed a request on the way has come in the end
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
			r.v.Lost = append(r.v.Lost, Note{d.Packet, fmt.Sprintf("%s: %s; what asked for it may have been lost", d.Field, d.Captured)})
		}
	} else {
		r.v.Differences = append(r.v.Differences, r.ignored...)
	}
	if len(r.v.Differences) > 0 || r.gaveUp {
		return // behind which softroce's requester may be another way
	}
	r.concludeCompletions()
	r.concludeResults()
}

// expireLast lets softroce's timeout run out once more: the last one, if the live requester ended upon it in time.
func (r *requesterModel) expireLast() {
	r.room = 0
	r.qp.Transmit(&r.env)
	if deadline := r.qp.NextDeadline(); deadline != 0 && r.qp.State() == ib.QPSRTS {
		r.env.Now = max(r.env.Now, deadline)
		r.qp.Expire(&r.env)
	}
}

// concludeRequests reports what softroce's requester sent and the live one did not, or would send next, where the live one
// fell silent. What it did send before, and not again, may have been lost where other things were.
func (r *requesterModel) concludeRequests() {
	came := map[int64]bool{}
	for _, e := range r.requests {
		came[e.Seq] = true
	}
	sure := !r.live.Lossy && len(r.v.Lost) <= len(r.unseen)
	for _, psn := range slices.Sorted(maps.Keys(r.unseen)) {
		m := r.unseen[psn]
		if sure || !came[psn] {
			r.v.Differences = append(r.v.Differences, Difference{PSN: m.BTH.PSN, Field: "request", Captured: "none", Softroce: m.Opcode.String()})
		}
	}
	if !r.live.Silent || r.gaveUp || r.qp.State() != ib.QPSRTS {
		return
	}
	if m, ok := r.emit(); ok {
		r.v.Differences = append(r.v.Differences, Difference{PSN: m.BTH.PSN, Field: "request", Captured: "none", Softroce: m.Opcode.String()})
	} else {
		r.v.Differences = append(r.v.Differences, Difference{Field: "request", Captured: "none any more", Softroce: "sent again upon a timeout"})
	}
}

func (r *requesterModel) concludeCompletions() {
	l := r.live
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

func (r *requesterModel) concludeResults() {
	for i, have := range r.live.Results {
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
