package replay

import (
	"fmt"
	"math/bits"
	"slices"
	"sort"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// A ResponderScript is how the replies of one stream are played to a live requester: the work
// requests that the program on its host posts, and the replies to them. Addresses and keys are
// those of the capture.
type ResponderScript struct {
	Service     packet.Service // RC; or UC, which has no replies
	Network     packet.Network // of the captured packets
	From, To    End            // of the capture: To is played
	PathMTU     int
	FirstPSN    uint32
	MaxRDAtomic uint8
	Timeout     uint8 // local ACK timeout code
	RetryCount  uint8
	RNRRetry    uint8
	Work        []WorkRequest
	Replies     []Reply
	NotPlayed   []Note // replies and requests that cannot be played, and why
	Lost        int    // number of replies left out because the captured requester did not receive them

	// Unanswered is how many times the captured requester went back after the last reply.
	Unanswered int
}

// A WorkRequest is posted as soon as RepliesBefore replies have been sent.
type WorkRequest struct {
	transport.SendWR        // without a scatter/gather list
	Payload          []byte // that it sends
	Length           uint32 // of the result of a READ or atomic
	PSN, End         int64  // relative to FirstPSN, unwrapped
	RepliesBefore    int
	After            time.Duration // since the first request, in the capture
	Packet           int           // number of its first packet in the capture
}

// HasResponse reports whether the work request has a response of its own, which an ACK does not
// replace.
func (j *WorkRequest) HasResponse() bool { return kindOf(j.Opcode).HasOwnResponse() }

// A Reply is one reply packet.
type Reply struct {
	Packet *capture.Packet
	Header packet.Header // to be sent, except for the queue pair
	PSN    int64         // relative to FirstPSN, unwrapped
	Cause  int64         // the PSN of the request that causes it

	// Again says that the captured requester had sent that request before; Pass is how many times
	// it had gone back before it sent it.
	Again bool
	Pass  int
	After time.Duration // since the first request, in the capture
}

// ResponderScripts returns a script for each stream of a capture whose replies can be played, and
// notes about the others. If there is no script, the error says why.
func ResponderScripts(ps capture.Packets) ([]*ResponderScript, []Note, error) {
	return scripts(ps, func(s *stream) (*ResponderScript, []Note, error) {
		sc, err := s.answerScript()
		if err != nil || len(sc.Work) > 0 {
			return sc, nil, err
		}
		return nil, sc.NotPlayed, nil
	}, func(s *stream) (*ResponderScript, error) {
		sc, err := s.unreliableAnswers()
		if err != nil || len(sc.Work) > 0 {
			return sc, err
		}
		return nil, nil
	})
}

// answerScript writes the script of a stream: what the captured requester received, as a replay of
// it shows.
func (s *stream) answerScript() (*ResponderScript, error) {
	if len(s.Messages) == 0 || s.Messages[0].Kind == packet.KindNone {
		return nil, fmt.Errorf("%w %v > %v: the request with PSN %s is not in it", ErrMiddle, s.report.From, s.report.To, psnText(s.FirstSeq))
	}
	lost, err := s.lostReplies()
	if err != nil {
		return nil, err
	}
	w := &responderScriptWriter{s: s, lost: lost, ResponderScript: &ResponderScript{Service: packet.RC, Network: s.Requests[0].Network, From: s.report.From, To: s.report.To, PathMTU: s.PathMTU,
		FirstPSN: uint32(s.FirstSeq) & packet.PSNMask}}
	w.countPasses()
	w.workRequests()
	w.replies()
	w.schedule()
	w.MaxRDAtomic = w.outstanding()
	w.Timeout = w.timeout()
	w.retries()
	return w.ResponderScript, nil
}

// lostReplies returns the replies that the captured requester did not receive.
func (s *stream) lostReplies() (map[*conversation.Transmission]bool, error) {
	r, err := newRequesterModel(s, false)
	if err != nil {
		return nil, err
	}
	m := &lossCollector{capturedRequester{r}, map[*conversation.Transmission]bool{}}
	r.mode = m
	if err := r.plan(rebuild(s)); err != nil {
		return nil, err
	}
	r.run()
	return m.lost, nil
}

// A responderScriptWriter writes a ResponderScript.
type responderScriptWriter struct {
	*ResponderScript
	s             *stream
	lost          map[*conversation.Transmission]bool
	sent          []*conversation.Transmission       // requests from the first message on, without copies
	pass          map[*conversation.Transmission]int // how many times the requester had gone back when it sent one
	goBacks       []*conversation.Transmission       // the requests after which the PSNs went back, in the order of the capture
	byPSN         map[int64][]*conversation.Transmission
	transmissions map[*conversation.Message][]*conversation.Transmission // transmissions of READs and atomics
	played        []*conversation.Transmission                           // the replies that are played
	limit         int64                                                  // the PSN after what is played
	reads         map[int64]*conversation.Transmission                   // the READ that a response answers, by its PSN
}

// countPasses counts how many times the captured requester goes back.
func (w *responderScriptWriter) countPasses() {
	w.pass, w.byPSN, w.transmissions = map[*conversation.Transmission]int{}, map[int64][]*conversation.Transmission{}, map[*conversation.Message][]*conversation.Transmission{}
	next := w.s.FirstSeq
	for _, e := range w.s.Sent {
		if e.Seq < w.s.FirstSeq {
			continue
		}
		if e.Seq < next {
			w.goBacks = append(w.goBacks, e)
		}
		next = e.End()
		w.pass[e] = len(w.goBacks)
		w.sent = append(w.sent, e)
		w.byPSN[e.Seq] = append(w.byPSN[e.Seq], e)
		if m := w.s.MessageAt(e.Seq); m != nil && e.Info.Kind.HasOwnResponse() {
			w.transmissions[m] = append(w.transmissions[m], e)
		}
	}
	slices.SortStableFunc(w.goBacks, func(a, b *conversation.Transmission) int { return a.Index - b.Index })
}

// goBacksBefore returns how many times it went back before an index.
func (w *responderScriptWriter) goBacksBefore(place int) int { return countBefore(w.goBacks, place) }

// countBefore returns how many packets, in the order of the capture, precede an index.
func countBefore(es []*conversation.Transmission, place int) int {
	return sort.Search(len(es), func(i int) bool { return es[i].Index >= place })
}

// Bounds in bytes on what a live requester is asked to send and to receive: of all messages, and of
// a message of which the capture has less than half. A damaged capture may claim gigabytes.
const (
	mostWork   = 64 << 20
	mostUnseen = 1 << 20
)

// workRequests rebuilds the work requests, as far as the capture shows them.
func (w *responderScriptWriter) workRequests() {
	built := rebuild(w.s)
	sizes, seen := built.sizes(), w.seen()
	w.limit = w.s.FirstSeq
	total, why := int64(0), "it is not in the capture, or not supported"
	for i, m := range w.s.Messages {
		if m.Kind == packet.KindNone || i >= len(built.wrs) {
			break
		}
		if total += sizes[i]; total > mostWork || sizes[i] > mostUnseen && seen[m] < sizes[i]/2 {
			why = fmt.Sprintf("%d bytes exceed the limit, or what the capture has", sizes[i])
			break
		}
		wr := built.wrs[i]
		wr.Flags |= ib.SendSignaled
		j := WorkRequest{SendWR: wr, PSN: m.First - w.s.FirstSeq, End: m.End() - w.s.FirstSeq, Packet: m.Packets[0].No}
		if m.Kind == packet.KindRead || m.Kind.IsAtomic() {
			j.Length = uint32(sizes[i])
		} else {
			j.Payload = built.bytes(i, sizes[i])
		}
		w.Work = append(w.Work, j)
		w.limit = m.End()
	}
	if n := len(w.Work); n < len(w.s.Messages) {
		no := w.s.Requests[0].No
		if parts := w.s.Messages[n].Packets; len(parts) > 0 {
			no = parts[0].No
		}
		w.NotPlayed = append(w.NotPlayed, Note{no, fmt.Sprintf("the request with PSN %s and later ones are not posted: %s", psnText(w.limit), why)})
	}
}

// seen counts the payload bytes of each message and of its response in the capture.
func (w *responderScriptWriter) seen() map[*conversation.Message]int64 {
	n := map[*conversation.Message]int64{}
	for _, es := range [][]*conversation.Transmission{w.s.Sent, w.s.RepliesSent} {
		for _, e := range es {
			if m := w.s.MessageAt(e.Seq); m != nil {
				n[m] += int64(len(e.Payload))
			}
		}
	}
	return n
}

// replies adds the replies to the script.
func (w *responderScriptWriter) replies() {
	w.reads = map[int64]*conversation.Transmission{}
	start := w.sent[0].Time
	for _, r := range w.s.RepliesSent {
		class := keyOf(0, r.Info.Kind, r.AETH.Syndrome).class
		end := r.Seq + int64(bit(class == notACK || class == ackPositive))
		switch {
		case end <= w.s.FirstSeq && (class == notACK || class == ackPositive) || end < w.s.FirstSeq || r.Seq >= w.limit:
			continue
		case w.lost[r]:
			w.Lost++
			continue
		}
		cause, again := w.cause(r)
		a := Reply{Packet: r.Packet, Header: r.Header, PSN: r.Seq - w.s.FirstSeq, Cause: cause.Seq - w.s.FirstSeq, Again: again, Pass: w.pass[cause],
			After: r.Time.Sub(start)}
		if r.Info.Headers&packet.HasAETH != 0 {
			a.Header.AETH.MSN = (r.AETH.MSN - w.s.FirstMSN) & packet.PSNMask
		}
		w.played = append(w.played, r)
		w.Replies = append(w.Replies, a)
	}
}

// cause finds the request that a reply answers: the latest that may have caused it. again says that
// it was not the first one with its PSN. If the capture has none, cause returns a request that is
// not in the capture.
func (w *responderScriptWriter) cause(r *conversation.Transmission) (cause *conversation.Transmission, again bool) {
	switch {
	case r.Info.Kind == packet.KindAck && isSequence(r.AETH.Syndrome):
		cause = w.ahead(r)
	case r.Info.Kind == packet.KindReadResponse && r.Info.Position != packet.First && r.Info.Position != packet.Only:
		if e := w.reads[r.Seq-1]; e != nil && r.Seq < e.End() {
			cause = e
		}
	}
	if cause == nil {
		cause = w.latest(r)
	}
	if cause == nil {
		return &conversation.Transmission{Part: conversation.Part{Seq: r.Seq, NumPSNs: 1}}, false
	}
	if r.Info.Kind == packet.KindReadResponse {
		w.reads[r.Seq] = cause
	}
	first := w.byPSN[cause.Seq]
	if cause.Info.Kind.HasOwnResponse() {
		if l := w.transmissions[w.s.MessageAt(cause.Seq)]; len(l) > 0 {
			first = l
		}
	}
	return cause, first[0] != cause
}

// latest returns the last request before a reply that has its PSN, or whose PSNs include it.
func (w *responderScriptWriter) latest(r *conversation.Transmission) *conversation.Transmission {
	l := w.byPSN[r.Seq]
	if m := w.s.MessageAt(r.Seq); m != nil && len(w.transmissions[m]) > 0 {
		l = w.transmissions[m]
	}
	for i := len(l) - 1; i >= max(0, len(l)-alignReach); i-- {
		if e := l[i]; e.Index < r.SentBefore && e.Seq <= r.Seq && r.Seq < e.End() {
			return e
		}
	}
	return nil
}

// ahead returns the request that causes a sequence NAK: the first one after the NAK's PSN since the
// requester last went back.
func (w *responderScriptWriter) ahead(r *conversation.Transmission) (cause *conversation.Transmission) {
	n := sort.Search(len(w.sent), func(i int) bool { return w.sent[i].SentBefore >= r.SentBefore })
	for i := n - 1; i >= max(0, n-alignReach); i-- {
		switch e := w.sent[i]; {
		case e.Seq > r.Seq:
			cause = e
		case cause != nil:
			return cause
		}
	}
	return cause
}

// schedule sets when each work request is posted: when as many replies were sent as before its
// first packet.
func (w *responderScriptWriter) schedule() {
	start := w.sent[0].Time
	latest := make([]int, len(w.played))      // highest index of the replies up to each
	causeEnds := make([]int64, len(w.played)) // highest end of the causes of the replies up to each
	for i, r := range w.played {
		latest[i], causeEnds[i] = r.Index, w.Replies[i].Cause+1
		if i > 0 {
			latest[i], causeEnds[i] = max(latest[i], latest[i-1]), max(causeEnds[i], causeEnds[i-1])
		}
	}
	for i := range w.Work {
		j := &w.Work[i]
		first := w.s.Messages[i].Packets[0]
		j.After = max(0, first.Time.Sub(start))
		j.RepliesBefore, _ = slices.BinarySearch(latest, first.Index)
		needed, _ := slices.BinarySearch(causeEnds, j.PSN+1)
		j.RepliesBefore = min(j.RepliesBefore, needed) // its first packet may have been delayed
		if i > 0 {
			j.RepliesBefore, j.After = max(j.RepliesBefore, w.Work[i-1].RepliesBefore), max(j.After, w.Work[i-1].After)
		}
	}
}

// outstanding returns the highest number of READs and atomics that the captured requester had
// outstanding.
func (w *responderScriptWriter) outstanding() uint8 {
	most, open := 1, map[int64]int64{} // ends, by first PSN
	given := w.played
	for _, e := range w.sent {
		for ; len(given) > 0 && given[0].Index < e.Index; given = given[1:] {
			for psn, end := range open {
				if end <= given[0].Seq+1 {
					delete(open, psn)
				}
			}
		}
		if m := w.s.MessageAt(e.Seq); m != nil && e.Info.Kind.HasOwnResponse() {
			open[m.First] = m.End()
		}
		if most = max(most, len(open)); most >= usualRDAtomic {
			break
		}
	}
	return uint8(min(most, usualRDAtomic))
}

// Timeout codes of a live requester. A code that the capture shows is raised to what a busy host
// can keep to; otherwise the timeout is so long that it does not expire while a NIC is merely slow.
const (
	leastTimeout = 14 // 67 ms
	mostTimeout  = 18 // 1.1 s
	quietTimeout = 20 // 4.3 s
)

// timeout infers the code of the local ACK timeout from the pauses before retransmissions without a
// NAK.
func (w *responderScriptWriter) timeout() uint8 {
	code := quietTimeout
	for _, e := range w.goBacks {
		before := e.Index - 1 // of the stream
		var reply *conversation.Transmission
		since := w.s.Requests[0].Time
		if n := countBefore(w.s.Requests, e.Index); n > 0 {
			before, since = w.s.Requests[n-1].Index, w.s.Requests[n-1].Time
		}
		if n := countBefore(w.s.Replies, e.Index); n > 0 && w.s.Replies[n-1].Index > before {
			reply, since = w.s.Replies[n-1], w.s.Replies[n-1].Time
		}
		if reply != nil && reply.Info.Kind == packet.KindAck && !reply.AETH.Syndrome.IsACK() {
			continue
		}
		if pause := e.Time.Sub(since); pause > 0 {
			code = min(code, bits.Len64(uint64(pause)/timeoutUnit)-1)
		}
	}
	if code == quietTimeout {
		return quietTimeout
	}
	return uint8(min(mostTimeout, max(leastTimeout, code)))
}

// timeoutUnit is what the timeout of code 0 would be, in nanoseconds (IBTA 9.7.6.1.3).
const timeoutUnit = 4096

// LocalTimeout returns the local ACK timeout of a code.
func LocalTimeout(code uint8) time.Duration { return timeoutUnit << code }

// Forever is the RNR retry count without a limit. As a retry count it is the highest.
const Forever = 7

// retries infers the retry counts, if the capture ends with a requester that gave up.
func (w *responderScriptWriter) retries() {
	w.RetryCount, w.RNRRetry = Forever, Forever
	most, rnrs := 0, 0
	last, pass := -1, 0
	for i, r := range w.played {
		most = max(most, w.Replies[i].Pass-pass)
		pass = max(pass, w.Replies[i].Pass)
		last = r.Index
		if r.Info.Kind == packet.KindAck && isRNR(r.AETH.Syndrome) && (rnrs == 0 || r.Seq == w.played[i-1].Seq) {
			rnrs++
		} else {
			rnrs = 0
		}
	}
	w.Unanswered = len(w.goBacks) - w.goBacksBefore(last)
	silent := len(w.played) == 0 || rnrs == 0
	if silent && w.Unanswered > most && w.Unanswered < Forever {
		w.RetryCount = uint8(w.Unanswered)
	}
	if tail := w.sent[len(w.sent)-1]; rnrs > 0 && rnrs <= Forever && tail.Index < last && w.onlyRNRs() {
		w.RNRRetry = uint8(rnrs - 1)
	}
}

// onlyRNRs reports whether no request caused more RNR NAKs than the last one.
func (w *responderScriptWriter) onlyRNRs() bool {
	n := map[int64]int{}
	for _, r := range w.played {
		if r.Info.Kind == packet.KindAck && isRNR(r.AETH.Syndrome) {
			n[r.Seq]++
		}
	}
	last := w.played[len(w.played)-1].Seq
	for psn := range n {
		if n[psn] > n[last] {
			return false
		}
	}
	return true
}

// sizes returns the bytes that each work request sends or receives.
func (w *work) sizes() []int64 {
	n := make([]int64, len(w.wrs))
	for i := range w.pieces {
		n[w.pieces[i].wr] += w.pieces[i].size
	}
	return n
}

// bytes returns the payload of a work request. Bytes that the capture does not have are zero.
func (w *work) bytes(wr int, size int64) []byte {
	b := make([]byte, 0, size)
	for i := sort.Search(len(w.pieces), func(i int) bool { return w.pieces[i].wr >= wr }); i < len(w.pieces) && w.pieces[i].wr == wr; i++ {
		if p := w.pieces[i]; p.at >= 0 {
			b = w.data.appendTo(b, p.at, p.size)
		} else {
			b = append(b, make([]byte, p.size)...)
		}
	}
	return b
}
