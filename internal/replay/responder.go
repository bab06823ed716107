package replay

import (
	"fmt"
	"slices"

	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
	"softroce/transport"
)

// A responderModel is softroce's responder, which is given the captured requests of a stream.
//
//  1. plan: memory regions and access rights are such that what was accepted can be accepted.
//  2. run: for each captured request, in order, decide whether it reached the captured responder.
//     If so, feed it to softroce's (feed.go, impairment.go).
//  3. compare: compare each captured reply with those of softroce's responder (comparereplies.go).
//
// What it knows of the captured responder beyond the packets is up to its mode.
type responderModel struct {
	*modelQP
	responderMemory
	transcript
	responderMode

	s        *stream
	inferred *inference
	v        *Verdict

	receives      receives
	shortReceives map[int64]uint32 // lengths of receive buffers, by the first PSN of the SEND that exceeds one
	epsn          int64            // the PSN that the responder expects

	ended  bool // no further request is fed
	cutoff int  // replies from this index on are not compared

	copies          []*copyToFeed                        // copies of requests that are not fed yet
	copying         bool                                 // a copy is being fed
	overtook        map[*conversation.Transmission]bool  // requests that arrived ahead of one sent before them
	delayed         map[int64]*conversation.Transmission // by PSN: requests that arrive after one sent after them
	refusedBy       map[*conversation.Transmission]bool  // captured RNR NAKs whose cause was fed
	lastSequenceNAK int64                                // the PSN of softroce's last sequence NAK
}

// A responderMemory is the memory of softroce's responder, by captured R_Key.
type responderMemory struct {
	views   views
	shadows map[uint32]*sparseMemory
	regions map[uint32]*mrtable.Region
	keys    []uint32 // in the order of their first use
	extents map[uint32]*extent

	lastAccepted map[uint32]int    // index of the last accepted request with each R_Key
	writeVA      uint64            // where the next packet of a WRITE goes
	writeKey     uint32            // the R_Key of that WRITE
	invalidated  map[uint32]uint32 // softroce's R_Keys of windows, by the live responder's
}

// A transcript is the replies of softroce's responder, and the captured responses.
type transcript struct {
	outputs []*output
	given   map[int64][]*output // the same by PSN
	states  map[int64]state     // by the PSN that an ACK would have
	steps   []acceptance        // the same, in their order

	responsesAt map[int64][]*conversation.Transmission // captured responses to READs and atomics, by PSN
	sentUpTo    int64                                  // the PSN after those of all captured requests
}

// A responderMode provides what packets do not show:
//
//   - judging: inferred from the capture, for a verdict on it;
//   - *requesterScriptWriter: inferred from the capture; records what the responder is given;
//   - *liveResponder: known from the session with a live responder.
type responderMode interface {
	// advance performs what the program on the responder's host did before an index in the capture.
	advance(index int)

	// known reports whether regions and receives are known, and not inferred.
	known() bool

	// assumesArrival reports whether a request without an answer is fed.
	assumesArrival() bool

	// feeding is called before a request is fed, with the headers that the responder is given; fed
	// after it; tooLong if its response exceeds the budget.
	feeding(t *conversation.Transmission, h packet.Header)
	fed(t *conversation.Transmission, accepted bool)
	tooLong(t *conversation.Transmission)
}

// judging is the mode of a responderModel that judges a capture.
type judging struct{}

func (judging) advance(int)                                       {}
func (judging) known() bool                                       { return false }
func (judging) assumesArrival() bool                              { return false }
func (judging) feeding(*conversation.Transmission, packet.Header) {}
func (judging) fed(*conversation.Transmission, bool)              {}
func (judging) tooLong(*conversation.Transmission)                {}

// An output is a packet that softroce's responder sent.
type output struct {
	sentPacket
	psn       int64
	at        int // index of the request that caused it
	cause     *conversation.Transmission
	used      bool
	copied    bool // caused by a copy of the request
	duplicate bool // the request was a duplicate
}

// A state is the MSN that an ACK with some PSN carries, and the index from which on it may be sent.
type state struct {
	msn uint32
	at  int
}

// receives is a receive queue that is never empty, unless empty is set or it is bounded.
type receives struct {
	empty   bool
	size    uint32
	region  *mrtable.Region
	sge     [1]transport.SGE
	taken   int
	lengths []uint32 // of the receives that were consumed
	posted  []uint32 // if bounded: the lengths of all receives posted so far
	bounded bool
}

// Next implements transport.RecvQueue.
func (q *receives) Next(wr *transport.RecvWR) bool {
	size := q.size
	switch {
	case q.empty, q.bounded && q.taken == len(q.posted):
		return false
	case q.bounded:
		size = q.posted[q.taken]
	default:
		q.lengths = append(q.lengths, size)
	}
	q.taken++
	q.sge[0] = transport.SGE{Length: size, LKey: q.region.LKey()}
	wr.SGEs = q.sge[:]
	return true
}

// Len implements transport.RecvQueue.
func (q *receives) Len() int { return bit(!q.empty) }

// Shared implements transport.RecvQueue. It is not known how many receives the captured responder
// had, so no credits are granted.
func (q *receives) Shared() bool { return true }

// The budget bounds the packets that softroce's responder may send in a replay: a damaged READ of 2
// GiB without a captured response is not answered. softroce acknowledges each request, where the
// captured responder may coalesce ACKs. READs that are retransmitted may be answered several times.
const (
	budgetPerReply   = 4
	budgetPerRequest = 2
	budgetSpare      = 1 << 10
)

// replayResponder fills in the verdict on a stream's replies. It first assumes that the answered
// requests arrived in the order in which they were sent. If that leaves differences, some
// retransmitted requests may have arrived late or twice; that verdict counts if it has fewer
// differences.
func replayResponder(s *stream, strict bool) error {
	if err := replayAssuming(s, strict, false); err != nil {
		return err
	}
	inOrder := s.report.Responder
	if inOrder.unexplained() == 0 || !s.Ordered || !s.sentAgain() {
		return nil
	}
	s.report.Responder = newVerdict()
	if err := replayAssuming(s, strict, true); err != nil {
		return err
	}
	if s.report.Responder.unexplained() >= inOrder.unexplained() {
		s.report.Responder = inOrder
	}
	return nil
}

// unexplained counts the differences, and those that only reordering explains which nothing else
// shows.
func (v *Verdict) unexplained() int {
	n := len(v.Differences)
	for _, d := range v.conditionals {
		n += bit(d.needsReordering && d.weight == 0)
	}
	return n
}

// sentAgain reports whether a READ or atomic was retransmitted.
func (s *stream) sentAgain() bool {
	return slices.ContainsFunc(s.Sent, func(e *conversation.Transmission) bool { return e.Next != nil && e.Info.Kind.HasOwnResponse() })
}

func replayAssuming(s *stream, strict, reordered bool) error {
	r, err := newResponderModel(s, reordered)
	if err != nil {
		return err
	}
	if err := r.plan(); err != nil {
		return err
	}
	r.run()
	r.compare(strict)
	return nil
}

func newResponderModel(s *stream, reordered bool) (*responderModel, error) {
	b, err := newModelQP()
	if err != nil {
		return nil, err
	}
	r := &responderModel{modelQP: b, responderMode: judging{}, s: s, inferred: infer(s, reordered), v: &s.report.Responder, epsn: s.FirstSeq,
		cutoff: never, shortReceives: map[int64]uint32{}, overtook: map[*conversation.Transmission]bool{}, delayed: map[int64]*conversation.Transmission{}, refusedBy: map[*conversation.Transmission]bool{},
		responderMemory: responderMemory{shadows: map[uint32]*sparseMemory{}, regions: map[uint32]*mrtable.Region{}, extents: map[uint32]*extent{},
			lastAccepted: map[uint32]int{}},
		transcript: transcript{states: map[int64]state{}, given: map[int64][]*output{}, responsesAt: map[int64][]*conversation.Transmission{}}}
	r.room = budgetPerReply*len(s.Replies) + budgetPerRequest*len(s.Requests) + budgetSpare
	r.receives.region = b.discard
	return r, nil
}

// run feeds the requests to softroce's responder.
func (r *responderModel) run() {
	r.states[r.s.FirstSeq-1] = state{r.s.FirstMSN, -1}
	for _, e := range r.s.Requests {
		if r.ended {
			break
		}
		if e.Seq >= r.s.FirstSeq {
			r.consider(e)
		}
	}
	r.feedCopies(never)
}

// plan creates the queue pair and the regions that the requests name.
func (r *responderModel) plan() (err error) {
	r.qp, err = transport.New(transport.Config{QPN: 1, Service: packet.RC, PD: r.pd, Recv: &r.receives})
	if err != nil {
		return err
	}
	a := ib.QPAttr{PathMTU: r.s.PathMTU, RQPSN: uint32(r.s.FirstSeq) & packet.PSNMask, DestQPN: r.s.report.From.QPN,
		MaxDestRDAtomic: transport.MaxRDAtomic, MinRNRTimer: r.rnrTimer(),
		Access: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | ib.AccessFlushGlobal}
	if err := r.connect(a, packet.RC, false); err != nil {
		return err
	}
	r.planReceives()
	return r.planMemory()
}

// planReceives finds the SENDs that were refused. It assumes that their receive buffers were too
// short, unless the captured responder sends anything later: a queue pair in the error state does
// not.
func (r *responderModel) planReceives() {
	for _, m := range r.s.Messages {
		if m.Kind != packet.KindSend || r.inferred.accepted(m.End()-1) != never {
			continue
		}
		for _, e := range m.Packets {
			nak := r.inferred.refusal(e.Seq, e.Index, never, func(s packet.Syndrome) bool {
				return s == packet.NAKInvalidRequest || s == packet.NAKRemoteOperational
			})
			if nak != nil && len(e.Payload) > 0 && nak.Index == r.s.LastIndex {
				size := uint64(e.Seq-m.First)*uint64(r.s.PathMTU) + uint64(len(e.Payload)) - 1
				r.shortReceives[m.First] = uint32(min(size, transport.MaxMessage))
				break
			}
		}
	}
}

// rnrTimer returns the timer code of most RNR NAKs.
func (r *responderModel) rnrTimer() uint8 {
	var counts [32]int
	best := 0
	for _, e := range r.s.RepliesSent {
		if e.Info.Kind == packet.KindAck && e.AETH.Syndrome.IsRNR() {
			counts[e.AETH.Syndrome&packet.SyndromeValue]++
		}
	}
	for i := range counts {
		if counts[i] > counts[best] {
			best = i
		}
	}
	return uint8(best)
}

// right returns the access flag that an operation needs.
func right(k packet.Kind) ib.Access {
	switch k {
	case packet.KindFlush:
		return ib.AccessFlushGlobal
	case packet.KindWrite, packet.KindAtomicWrite:
		return ib.AccessRemoteWrite
	case packet.KindRead:
		return ib.AccessRemoteRead
	case packet.KindCompareSwap, packet.KindFetchAdd:
		return ib.AccessRemoteAtomic
	}
	return 0
}

// An extent is the range of addresses that requests with one key name, both ends included, and the
// access that they need.
type extent struct {
	low, high uint64
	access    ib.Access
}

// planMemory registers for each R_Key the range that accepted requests name.
func (r *responderModel) planMemory() error {
	for _, e := range r.s.Requests {
		va, n, key, ok := target(e)
		if !ok || n == 0 || va+n-1 < va || r.refused(e) {
			continue
		}
		x := r.extents[key]
		if x == nil {
			x = &extent{low: va, high: va + n - 1}
			r.extents[key] = x
			r.keys = append(r.keys, key)
		}
		if e.Info.Kind != packet.KindFlush || e.FETH.Selectivity != uint8(ib.FlushMR) {
			x.low, x.high = min(x.low, va), max(x.high, va+n-1)
		}
		x.access |= right(e.Info.Kind)
	}
	for _, key := range r.keys {
		x := r.extents[key]
		sh := newShadow(&r.views)
		w := &memoryRange{sparseMemory: sh, base: x.low, length: x.high - x.low + 1}
		if w.length == 0 {
			w.length-- // the range has 2^64 bytes
		}
		region, err := r.register(w, x.low, x.access|ib.AccessLocalWrite)
		if err != nil {
			return fmt.Errorf("region of R_Key %#x: %w", key, err)
		}
		r.shadows[key], r.regions[key] = sh, region
	}
	return nil
}

// target returns the remote address range that a request names.
func target(e *conversation.Transmission) (va, n uint64, key uint32, ok bool) {
	switch {
	case e.Info.Kind == packet.KindFlush && e.FETH.Selectivity == uint8(ib.FlushMR):
		return e.RETH.VA, 1, e.RETH.RKey, true // the whole region
	case e.Info.Headers&packet.HasRETH != 0:
		return e.RETH.VA, uint64(e.RETH.Length), e.RETH.RKey, true
	case e.Info.Headers&packet.HasAtomicETH != 0:
		return e.Atomic.VA, 8, e.Atomic.RKey, true
	}
	return 0, 0, 0, false
}

// refused reports whether e caused a remote access NAK, and its PSN was never accepted.
func (r *responderModel) refused(e *conversation.Transmission) bool {
	return r.inferred.refusal(e.Seq, e.Index, never, func(s packet.Syndrome) bool { return s == packet.NAKRemoteAccess }) != nil &&
		r.inferred.accepted(e.Seq) == never
}

// mayRefuse reports whether memory that was accessed before may be inaccessible now: a program may
// have deregistered it, but usually not without exchanging a message.
func (r *responderModel) mayRefuse(key uint32, nak *conversation.Transmission) bool {
	at, ok := r.lastAccepted[key]
	return !ok || r.s.MayHaveChanged(at, nak)
}

func (r *responderModel) note(e *conversation.Transmission, format string, a ...any) {
	r.v.NotJudged = append(r.v.NotJudged, Note{e.No, fmt.Sprintf(format, a...)})
}

func (r *responderModel) lost(e *conversation.Transmission, format string, a ...any) {
	r.v.Lost = append(r.v.Lost, Note{e.No, fmt.Sprintf(format, a...)})
}
