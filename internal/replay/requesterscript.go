package replay

import (
	"errors"
	"fmt"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// A RequesterScript is how the requests of one stream are played to a live responder: which packets
// to send, in which order, and what the program on the responder's host does meanwhile, so that its
// queue pair is in the state of the captured one. Addresses and keys are those of the capture.
type RequesterScript struct {
	Service         packet.Service // RC, UC
	Network         packet.Network // of the captured packets
	From, To        End            // of the capture: From is played
	PathMTU         int
	FirstPSN        uint32
	MinRNRTimer     uint8
	MaxDestRDAtomic uint8
	Access          ib.Access // of the queue pair
	Regions         []Region
	Receives        []uint32 // lengths of the receive buffers, in the order in which they are posted
	Steps           []Step
	NotPlayed       []Note // requests that cannot be played, and why
	Lost            int    // number of requests left out because the captured responder did not receive them
}

// A Region is memory that requests name by an R_Key.
type Region struct {
	RKey    uint32
	Addr    uint64
	Length  uint64
	Access  ib.Access
	Content []Write // where it is not zero at the beginning
}

// A Write is bytes that the program on the responder's host writes to its own memory.
type Write struct {
	RKey uint32
	Addr uint64
	Data []byte
}

// A Step is one request packet.
type Step struct {
	Packet *capture.Packet
	Header packet.Header // to be sent, except for queue pair, key and address
	PSN    int64         // relative to FirstPSN, unwrapped
	End    int64         // the PSN after it
	Region int           // index in RequesterScript.Regions of the region with its key; or NoRegion, WrongKey
	After  time.Duration // since the first step, in the capture

	// Accepted says that the captured responder expected this packet and accepted it; Answered,
	// that it has to reply to it.
	Accepted, Answered bool

	// Before the packet is sent, the program has written Writes and posted between MinReceives and
	// MaxReceives receives; and the replies that the captured requester had have arrived: those to
	// all packets before AnsweredBefore that have to be answered, and as many NAKs.
	Writes                   []Write
	MinReceives, MaxReceives int
	AnsweredBefore           int64
	SequenceNAKs, RNRNAKs    int
}

// WithoutInvalidate makes the step a SEND without invalidate.
func (s *Step) WithoutInvalidate() { s.Header.Opcode = withoutInvalidate[s.Header.Opcode] }

// Values of Step.Region for a request without a key, and for one with the key of no region.
const (
	NoRegion = -1
	WrongKey = -2
)

// Errors of RequesterScripts and ResponderScripts; match with errors.Is.
var (
	// ErrNothing is returned for a capture without a request of an RC or UC connection.
	ErrNothing = errors.New("there is no RC or UC connection with a request in it")
	// ErrMiddle is returned for a capture that begins in the middle of the only connection.
	ErrMiddle = errors.New("the capture begins in the middle of the connection")
)

// RequesterScripts returns a script for each stream of a capture that can be played, and notes
// about the others. If there is no script, the error says why.
func RequesterScripts(ps capture.Packets) ([]*RequesterScript, []Note, error) {
	return scripts(ps, func(s *stream) (*RequesterScript, []Note, error) {
		sc, err := s.script()
		if err != nil || len(sc.Steps) > 0 {
			return sc, nil, err
		}
		return nil, sc.NotPlayed, nil
	}, func(s *stream) (*RequesterScript, error) { return s.unreliableScript(), nil })
}

// scripts returns what reliable writes for each RC stream of a capture and unreliable for each UC
// stream, nil if it cannot be played, and notes about the streams without a script. If there is no
// script, the error says why.
func scripts[T any](ps capture.Packets, reliable func(*stream) (*T, []Note, error), unreliable func(*stream) (*T, error)) (list []*T, left []Note, err error) {
	rc, _ := unusable(ps)
	why := fmt.Errorf("%w: %s, of them %s of RC", ErrNothing, Count(len(ps), "packet"), Count(rc, "packet"))
	captured := conversation.New(ps, packet.RC)
	for _, d := range captured.Directions {
		streams, _ := captured.Streams(d)
		for _, cs := range streams {
			s := newStream(cs, d)
			sc, notes, err := reliable(s)
			switch {
			case errors.Is(err, ErrMiddle):
				why = err
				left = append(left, Note{s.Requests[0].No, err.Error()})
			case err != nil:
				return nil, nil, err
			case sc == nil:
				left = append(left, notes...)
				why = fmt.Errorf("%w that could be played", ErrNothing)
			default:
				list = append(list, sc)
			}
		}
	}
	err = unreliableStreams(ps, func(s *stream) error {
		sc, err := unreliable(s)
		switch {
		case errors.Is(err, ErrMiddle):
			left = append(left, Note{s.Requests[0].No, err.Error()})
			return nil
		case sc != nil && err == nil:
			list = append(list, sc)
		}
		return err
	})
	if err == nil && len(list) == 0 {
		err = why
	}
	return list, left, err
}

// script writes the script of a stream: what softroce's responder is given in a replay of it.
func (s *stream) script() (*RequesterScript, error) {
	first := s.Requests[0]
	name := fmt.Sprintf("%v > %v", s.report.From, s.report.To)
	switch {
	case s.FirstMSN != 0:
		return nil, fmt.Errorf("%w %s: %d messages were complete before packet %d", ErrMiddle, name, s.FirstMSN, first.No)
	case s.FirstSeq > first.Seq:
		return nil, fmt.Errorf("%w %s: packet %d, %v, does not begin a message", ErrMiddle, name, first.No, first.Opcode)
	case len(s.Messages) == 0 || s.Messages[0].Kind == packet.KindNone:
		return nil, fmt.Errorf("%w %s: the request with PSN %s is not in it", ErrMiddle, name, psnText(s.FirstSeq))
	}
	r, err := newResponderModel(s, false)
	if err != nil {
		return nil, err
	}
	w := &requesterScriptWriter{RequesterScript: &RequesterScript{Service: packet.RC, Network: first.Network, From: s.report.From, To: s.report.To, PathMTU: s.PathMTU, FirstPSN: uint32(s.FirstSeq) & packet.PSNMask,
		MinRNRTimer: r.rnrTimer()}, r: r, regions: map[uint32]int{}, replies: s.RepliesSent}
	r.responderMode = w
	if err := r.plan(); err != nil {
		return nil, err
	}
	w.begin()
	r.run()
	w.finish()
	return w.RequesterScript, nil
}

// A requesterScriptWriter is the mode of a responderModel that records what the responder is given.
type requesterScriptWriter struct {
	judging
	*RequesterScript
	r          *responderModel
	regions    map[uint32]int // index in Regions, by captured key
	writes     []Write        // for the next step
	mustAnswer []int64        // ends of packets that have to be answered, ascending

	replies                       []*conversation.Transmission // captured replies that are not counted yet
	mark                          int64                        // what the counted replies acknowledge
	naks, rnrs                    int
	sequenceNAKsSent, rnrNAKsSent int // number of NAKs that softroce's responder has sent
	counted                       int // number of outputs
}

// begin describes the regions.
func (w *requesterScriptWriter) begin() {
	for _, key := range w.r.keys {
		x := w.r.extents[key]
		w.regions[key] = len(w.Regions)
		i := len(w.Regions)
		w.Regions = append(w.Regions, Region{RKey: key, Addr: x.low, Length: x.high - x.low + 1, Access: x.access | ib.AccessLocalWrite})
		w.r.shadows[key].onLearn = func(addr uint64, b byte, fresh bool) {
			if fresh {
				w.Regions[i].Content = appendByte(w.Regions[i].Content, key, addr, b)
			} else {
				w.writes = appendByte(w.writes, key, addr, b)
			}
		}
	}
	w.Access = w.rights()
}

// appendByte appends a byte to the last write if it is adjacent.
func appendByte(ws []Write, key uint32, addr uint64, b byte) []Write {
	if n := len(ws); n > 0 && ws[n-1].RKey == key && ws[n-1].Addr+uint64(len(ws[n-1].Data)) == addr {
		ws[n-1].Data = append(ws[n-1].Data, b)
		return ws
	}
	return append(ws, Write{key, addr, []byte{b}})
}

// rights returns the access flags of the captured queue pair: all except those of operations that
// it refused as invalid requests and never accepted.
func (w *requesterScriptWriter) rights() ib.Access {
	var did, refused ib.Access
	for _, e := range w.r.s.Requests {
		need := right(e.Info.Kind)
		switch {
		case w.r.inferred.accepted(e.Seq) != never:
			did |= need
		case w.r.inferred.refusal(e.Seq, e.Index, never, func(s packet.Syndrome) bool { return s == packet.NAKInvalidRequest }) != nil &&
			(e.Info.Headers&packet.HasAtomicETH == 0 || e.Atomic.VA%8 == 0):
			refused |= need
		}
	}
	all := ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | did // not every NIC has FLUSH
	return all &^ (refused &^ did)
}

// feeding implements responderMode: it begins a step.
func (w *requesterScriptWriter) feeding(e *conversation.Transmission, h packet.Header) {
	w.count(e)
	s := Step{Packet: e.Packet, Header: h, PSN: e.Seq - w.r.s.FirstSeq, End: e.End() - w.r.s.FirstSeq, Region: w.regionOf(e),
		AnsweredBefore: w.answeredBefore(w.mark), SequenceNAKs: min(w.naks, w.sequenceNAKsSent), RNRNAKs: min(w.rnrs, w.rnrNAKsSent),
		Writes: w.writes, MinReceives: w.r.receives.taken, MaxReceives: w.r.receives.taken}
	s.Header.RETH.RKey, s.Header.Atomic.RKey = e.RETH.RKey, e.Atomic.RKey
	s.Header.Opcode = e.Opcode // the player provides the key to invalidate
	if h.FETH != e.FETH {
		w.NotPlayed = append(w.NotPlayed, Note{e.No, fmt.Sprintf("%v to persistence is played as one to global visibility", e.Opcode)})
	}
	w.writes = nil
	if len(w.Steps) > 0 {
		s.After = e.Time.Sub(w.Steps[0].Packet.Time)
	}
	w.Steps = append(w.Steps, s)
}

// count counts the replies that were captured before e, and those that softroce's responder has
// sent.
func (w *requesterScriptWriter) count(e *conversation.Transmission) {
	for ; len(w.replies) > 0 && w.replies[0].Index < e.Index; w.replies = w.replies[1:] {
		r := w.replies[0]
		switch {
		case r.Info.Kind != packet.KindAck || r.AETH.Syndrome.IsACK():
			w.mark = max(w.mark, r.Seq+1-w.r.s.FirstSeq)
			continue
		case isRNR(r.AETH.Syndrome):
			w.rnrs++
		case isSequence(r.AETH.Syndrome):
			w.naks++
		}
		w.mark = max(w.mark, r.Seq-w.r.s.FirstSeq)
	}
	for ; w.counted < len(w.r.outputs); w.counted++ {
		o := w.r.outputs[w.counted]
		if o.Opcode.Info().Kind == packet.KindAck {
			w.sequenceNAKsSent += bit(isSequence(o.AETH.Syndrome))
			w.rnrNAKsSent += bit(isRNR(o.AETH.Syndrome))
		}
	}
}

// answeredBefore returns the end of the last packet before psn that has to be answered.
func (w *requesterScriptWriter) answeredBefore(psn int64) int64 {
	for i := len(w.mustAnswer) - 1; i >= 0; i-- {
		if w.mustAnswer[i] <= psn {
			return w.mustAnswer[i]
		}
	}
	return 0
}

// regionOf decides which key a request has. A request that was refused keeps the key of its region
// if it exceeds the region, or needs a right that the region does not grant.
func (w *requesterScriptWriter) regionOf(e *conversation.Transmission) int {
	va, n, key, ok := target(e)
	if !ok {
		return NoRegion
	}
	i, ok := w.regions[key]
	if !ok {
		return WrongKey
	}
	if !w.r.refused(e) {
		return i
	}
	r := &w.Regions[i]
	inside := va >= r.Addr && n <= r.Length && va-r.Addr <= r.Length-n
	if inside && right(e.Info.Kind)&^r.Access == 0 {
		return WrongKey
	}
	return i
}

// assumesArrival implements responderMode: the live responder shows whether it arrived.
func (w *requesterScriptWriter) assumesArrival() bool { return true }

// fed implements responderMode: it completes the step.
func (w *requesterScriptWriter) fed(e *conversation.Transmission, accepted bool) {
	s := &w.Steps[len(w.Steps)-1]
	s.MinReceives = w.r.receives.taken
	s.Accepted = accepted
	s.Answered = accepted && e.ExpectsReply()
	if s.Answered {
		w.mustAnswer = append(w.mustAnswer, s.End)
	}
	if !w.r.receives.empty {
		s.MaxReceives = len(w.r.s.Messages) + 1
	}
}

// tooLong implements responderMode: it removes the step.
func (w *requesterScriptWriter) tooLong(e *conversation.Transmission) {
	s := w.Steps[len(w.Steps)-1]
	w.Steps = w.Steps[:len(w.Steps)-1]
	if s.Answered {
		w.mustAnswer = w.mustAnswer[:len(w.mustAnswer)-1]
	}
	w.NotPlayed = append(w.NotPlayed, Note{e.No, fmt.Sprintf("%v PSN %d and later requests are not played: its response is far longer than the capture", e.Opcode, e.BTH.PSN)})
}

// finish sets what depends on all steps.
func (w *requesterScriptWriter) finish() {
	w.Receives = w.r.receives.lengths
	most := len(w.Receives)
	for i := len(w.Steps) - 1; i >= 0; i-- {
		s := &w.Steps[i]
		most = min(most, s.MaxReceives)
		s.MaxReceives = most
	}
	w.MaxDestRDAtomic = uint8(w.outstanding())
	last := int64(0)
	for _, s := range w.Steps {
		if s.Accepted {
			last = max(last, s.End)
		}
	}
	for _, e := range w.r.s.Sent {
		if e.Seq-w.r.s.FirstSeq > last && w.r.inferred.accepted(e.Seq) != never {
			w.NotPlayed = append(w.NotPlayed, Note{e.No, fmt.Sprintf("%v PSN %d and later requests are not played: the request with PSN %s is not in the capture, or not supported",
				e.Opcode, e.BTH.PSN, psnText(w.r.s.FirstSeq+last))})
			break
		}
	}
	w.Lost = len(w.r.s.Requests) - len(w.Steps)
}

// usualRDAtomic is the max_dest_rd_atomic that common NICs support.
const usualRDAtomic = 16

// outstanding returns how many responder resources are needed: for READs and atomics without a
// response, and for those that are retransmitted later.
func (w *requesterScriptWriter) outstanding() int {
	most := usualRDAtomic
	var open []int64          // ends of outstanding ones
	number := map[int64]int{} // numbers of accepted ones, by PSN
	for _, s := range w.Steps {
		for len(open) > 0 && open[0] <= s.AnsweredBefore {
			open = open[1:]
		}
		if !s.Header.Opcode.Info().Kind.HasOwnResponse() {
			continue
		}
		if n, ok := number[s.PSN]; ok {
			most = max(most, len(number)-n)
		} else if s.Accepted {
			number[s.PSN] = len(number)
			open = append(open, s.End)
		}
		most = max(most, len(open))
	}
	return min(most, transport.MaxRDAtomic)
}
