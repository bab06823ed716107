package report

import (
	"slices"
	"sort"
	"time"

	"softroce/capture"
	"softroce/internal/conversation"
	"softroce/packet"
)

// Bounds on what is kept of a stream.
const (
	maxWaiting   = 1 << 16 // requests that are not acknowledged
	maxLatencies = 1 << 22 // of all streams
)

// A Stream is the requests of one end of a connection, and what the other end replies to them.
type Stream struct {
	PSN       uint32 // of the first request
	Requests  int
	Replies   int
	Bytes     int64 // payload of requests and responses, each packet once
	Messages  map[packet.Kind]int
	SentAgain int // packets
	Timeouts  int // recoveries
	NAKs      int // sequence NAKs
	RNRs      int
	Refused   int // NAKs that end the connection
	Copies    int // packets that the network has duplicated or delayed

	Latencies []time.Duration // from the first packet of a message to the reply that acknowledges it, in order of duration

	edges edges

	begun       bool
	first, next int64 // unwrapped PSNs: of the first request, and that after the highest one
	waiting     []request
	message     time.Time // of the first packet of the message that is being sent
	outstanding int64     // bytes
	ends        []int64   // PSNs after the last of each message
	again       capture.Again
}

// A request is a packet that waits for its acknowledgement.
type request struct {
	end   int64 // PSN after its last
	bytes int64
	own   bool      // it is not completed by an acknowledgement
	began time.Time // of its message, if it ends one
}

func newStream() *Stream { return &Stream{Messages: map[packet.Kind]int{}} }

// begin sets the first PSN of a stream.
func (s *Stream) begin(psn uint32) {
	if !s.begun {
		s.begun, s.PSN = true, psn
		s.first = conversation.Origin + int64(psn)
		s.next = s.first
	}
}

// near reports whether a PSN belongs to the same connection as those before it.
func (s *Stream) near(psn uint32) bool {
	d := conversation.Unwrap(psn, s.next) - s.next
	return -conversation.MaxPSNStep < d && d < conversation.MaxPSNStep
}

// where returns where the diagram shows a PSN that may be wrong.
func (s *Stream) where(psn uint32) int64 {
	if !s.begun || !s.near(psn) {
		return s.next
	}
	return conversation.Unwrap(psn, s.next)
}

// relative returns a PSN relative to the first of the stream.
func (s *Stream) relative(seq int64) int64 {
	if !s.begun {
		return 0
	}
	return seq - s.first
}

// request adds a request.
func (s *Stream) request(c *Connection, a *analysis, p observation, pt *point) {
	s.begin(p.PSN)
	s.Requests++
	if !s.near(p.PSN) {
		pt.class, pt.seq = classDamaged, s.next
		return
	}
	mtu, fits := c.mtu()
	part := conversation.NewPart(&p.Header, conversation.Unwrap(p.PSN, s.next), mtu, fits)
	pt.class, pt.seq = classRequest, part.Seq
	if r := p.remark; r != nil && r.Again != nil {
		pt.class = classAgain
		s.SentAgain++
		if *r.Again != s.again && r.Again.Cause == capture.CauseTimeout {
			s.Timeouts++
		}
		s.again = *r.Again
	} else if r != nil && (r.Copy || r.Late) {
		pt.class = classCopy
		s.Copies++
	}
	if part.Seq < s.next {
		return
	}
	s.next = part.End()
	s.Bytes += int64(pt.bytes)
	in := part.Info
	if in.Position.StartsMessage() {
		s.message = p.Time
	}
	if in.Position.EndsMessage() {
		s.Messages[in.Kind]++
		s.ends = append(s.ends, s.next)
	}
	if in.Service == packet.RC || in.Service == packet.XRC {
		s.wait(&part, p, int64(pt.bytes))
	}
}

// wait adds a request that is outstanding until it is acknowledged.
func (s *Stream) wait(part *conversation.Part, p observation, bytes int64) {
	r := request{end: part.End(), bytes: bytes, own: part.Info.Kind.HasOwnResponse()}
	switch {
	case part.Info.Kind == packet.KindRead:
		r.bytes = int64(p.RETH.Length)
	case part.Info.Kind.IsAtomic():
		r.bytes = atomicBytes
	}
	if part.Info.Position.EndsMessage() {
		r.began = s.message
	}
	if len(s.waiting) == maxWaiting {
		s.outstanding -= s.waiting[0].bytes
		s.waiting = s.waiting[1:]
	}
	s.waiting = append(s.waiting, r)
	s.outstanding += r.bytes
}

// atomicBytes is the length of the operand of an atomic operation.
const atomicBytes = 8

// reply adds a reply to the stream's requests.
func (s *Stream) reply(a *analysis, p observation, pt *point) {
	in := p.Opcode.Info()
	s.Replies++
	s.begin(p.PSN)
	pt.class = classResponse
	syn := p.AETH.Syndrome
	if in.Kind == packet.KindAck {
		switch {
		case syn.IsRNR():
			pt.class = classRNR
		case syn.IsNAK():
			pt.class = classNAK
		default:
			pt.class = classACK
		}
	}
	if r := p.remark; r != nil && r.Copy {
		pt.class = classCopy
		s.Copies++
	}
	pt.seq = s.where(p.PSN)
	switch pt.class {
	case classCopy:
		return
	case classRNR:
		s.RNRs++
	case classNAK:
		if conversation.IsFatal(syn) {
			s.Refused++
		} else {
			s.NAKs++
		}
	case classResponse:
		s.Bytes += int64(pt.bytes)
	}
	if !s.near(p.PSN) {
		return
	}
	if in.Kind == packet.KindReadResponse {
		s.next = max(s.next, pt.seq+1)
	}
	s.acknowledge(a, p, pt.seq, pt.class)
	if in.Headers&packet.HasAETH != 0 && a.points < maxPackets {
		s.credit(pt, syn)
	}
}

// acknowledge completes the requests that a reply acknowledges: a NAK those before its PSN. A READ
// or atomic is completed by the last packet of its own response alone.
func (s *Stream) acknowledge(a *analysis, p observation, seq int64, class class) {
	in := p.Opcode.Info()
	through := seq + 1
	if class == classNAK || class == classRNR {
		through = seq
	}
	n := 0
	for _, r := range s.waiting {
		if r.end > through || r.own && (class != classResponse || !in.Position.EndsMessage() && r.end == through) {
			break
		}
		n++
		s.outstanding -= r.bytes
		if d := p.Time.Sub(r.began); !r.began.IsZero() && d >= 0 && a.latencies < maxLatencies {
			a.latencies++
			s.Latencies = append(s.Latencies, d)
		}
	}
	s.waiting = s.waiting[n:]
}

// credit notes the limit of an acknowledgement with credits: the messages through its PSN, and as
// many as it has credits for (IBTA 9.7.7.2).
func (s *Stream) credit(pt *point, syn packet.Syndrome) {
	if code := uint8(syn & packet.SyndromeValue); syn.IsACK() && code != packet.CreditsUnlimited {
		completed := sort.Search(len(s.ends), func(i int) bool { return s.ends[i] > pt.seq+1 })
		s.edges.add(edge{at: pt.at, limit: completed + packet.Credits(code)})
	}
}

// finish sorts the latencies, and finds the PSNs of the limits.
func (s *Stream) finish(to *compressor) {
	slices.Sort(s.Latencies)
	s.edges.finish(to, func(limit int) int64 {
		switch {
		case limit == 0:
			return 0
		case limit <= len(s.ends):
			return s.ends[limit-1] - s.first
		}
		return unknownEdge
	})
	s.ends, s.waiting = nil, nil
}

// percentile returns the duration that a share of all latencies does not exceed.
func percentile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
