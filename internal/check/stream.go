package check

import (
	"sort"

	"softroce/internal/conversation"
	"softroce/packet"
)

// A stream is the requests of one flow, and what is known of the replies to them. PSNs are
// unwrapped.
type stream struct {
	*judge
	flow     *flow
	started  bool
	requests []request // in the order of PSNs, without overlap
	next     int64     // PSN after the highest that was sent
	prevEnd  int64     // PSN after the packet before

	begin   int64 // PSN of the first request
	trimmed bool  // the oldest requests are no longer kept

	// The capture has every request from base to contiguous; contiguousMessages of them end
	// messages.
	base               int64
	contiguous         int64
	contiguousMessages int

	// Requests from before the capture may have been sent, answered and retransmitted. From
	// certainFrom on the capture has everything: see settle.
	settled      bool
	certainFrom  int64
	highest      int64 // highest PSN that a reply acknowledges
	earlyReply   earlyReply
	replied      bool  // there was a reply
	timesDrained int   // how many times all that was sent was acknowledged
	drained      int64 // PSN of the last time

	// State of the replies.
	accepted       int64 // all PSNs up to this one are acknowledged; first-1 at the beginning
	positive       int64 // the same, without NAKs
	ackHigh        int64 // highest PSN of an ACK
	ackAt          int64 // and its time
	ackBefore      int64 // the same before the newest ACK
	msn            msnJudge
	highACK        highACK
	heldACK        heldACK
	unseen         int64 // PSN after one whose ACK was reported
	unread         int64 // PSN after the request that could not be read last, and the responses to it
	nak            nak
	rnr            rnr
	keptWaits      int // retransmissions after the time of an RNR NAK
	shortWaitCount int // retransmissions before it
	shortWaits     []shortWait
	fatal          int // number of the NAK that ended the connection
	fatalReported  bool

	// State of the retransmissions.
	reads        readLimit
	hasResponses bool         // there are requests with a response of their own
	lateRequests int          // late requests
	explainedBy  int          // number of the latest reply since the last retransmission that may cause one
	followedNAK  ackKnowledge // the requester retransmitted from the PSN of a NAK
	unfollowed   []int64      // PSNs of the newest sequence NAKs, from which it has not done so yet
	restart      restart
	recovering   recovering
	timeout      int64 // shortest time before a retransmission without visible cause, 0 if none
	timeLimit    int64 // longest time until a retransmission, 0 if the timeout is not known
	lastProgress int64 // time when accepted advanced, or a retransmission began
	skipped      skipped
	resent       bool            // there was a retransmission
	pendingNAK   misplacedResend // a retransmission that did not begin at the PSN of the NAK

	// State of the order of requests: see sequence.go.
	newest    int      // packet number of the newest request
	counter   *counter // of its Identification
	counted   int      // and its number there
	aside     *aside
	jumps     []jump
	unordered unordered
	differing *differing
	standIns  []standIn
	blind     bool // replies are cut inside their headers

	rejectedFirst *judgedPacket // the newest request that was rejected before the stream began
}

// A request is a request packet, and what is known of its transmissions and replies.
type request struct {
	conversation.Part
	opcode        packet.Opcode
	payload       int
	va            uint64 // of RETH or AtomicETH
	rkey          uint32
	length        uint32
	no            int                      // number of its last transmission
	at            int64                    // time of its last transmission
	transmissions int                      // number of transmissions
	fingerprint   conversation.Fingerprint // of its last transmission
	retries       int                      // without visible cause, since the last reply

	content  uint64 // hash of its headers and payload
	captured int    // bytes that the hash covers
	unknown  bool   // its extended headers are cut
	accused  bool   // it violates a rule: its neighbors may seem to

	total  int64 // bytes of its WRITE, -1 if unknown or not a WRITE
	offset int64 // bytes of its message before it, -1 if unknown
	msgs   int   // messages that end with it or before it; valid below stream.contiguous

	// Of a READ or atomic.
	partialReads []partialRead // retransmissions of a part of it
	responses    int           // responses that began
	nextResponse int64         // PSN that continues the response
	respondedTo  int64         // PSN up to which response packets are contiguous
	parts        int64         // response packets
	replayed     bool          // another result was reported
	respondedAt  int64         // time of the last response packet
	result       uint64
	rnrNAKs      int // RNR NAKs
	reported     bool
}

// A partialRead is a retransmission of a READ that begins in its middle.
type partialRead struct {
	seq, n int64
	length uint32
}

type nak struct {
	active bool
	seq    int64
	no     int
	at     int64
	name   string
	served bool // the requester went back to seq
}

type rnr struct {
	active bool // the request was not retransmitted yet
	seq    int64
	no     int
	at     int64
	wait   int64
	last   int64 // time of the transmission that it answers
	lower  bool  // the requester went back below it, as after a lost response
}

// A restart is a step back in the PSNs. The next request confirms that it is a retransmission if it
// continues from there.
type restart struct {
	active   bool
	seq, end int64
	no       int
	nak      bool  // it begins at the PSN of a NAK
	after    int64 // time since the last transmission of the packet
}

// An ackKnowledge is a PSN before which a requester knows all to be acknowledged.
type ackKnowledge struct {
	any   bool
	seq   int64
	after int64 // how long it waited before
}

type misplacedResend struct {
	active bool
	want   int64
	nak    int // packet number
	from   string
	whole  bool // the capture has all that its sender sent before
	seq    int64
	no     int
	name   string
}

// A skipped is a READ or atomic that a reply passed over before the response to it was complete.
type skipped struct {
	active    bool
	seq       int64
	no        int // packet number
	at        int64
	news      int // new requests since
	passed    bool
	exchanges int // new requests after another reply that passes over it

	ack  int // number of an ACK with its PSN, 0 if there is none
	from string
}

// An earlyReply is the highest PSN of the replies before the first request.
type earlyReply struct {
	any bool
	psn uint32
}

// unwrap returns the unwrapped PSN nearest to those in use.
func (s *stream) unwrap(psn uint32) int64 { return conversation.Unwrap(psn, s.next) }

// start begins a stream at its first request, or at a request that is too far from those before.
func (s *stream) start(psn uint32) {
	seq := int64(psn) + conversation.Origin
	highest := seq - 1
	if s.earlyReply.any {
		highest = max(highest, seq+int64(packet.PSNDiff(s.earlyReply.psn, psn)))
	}
	s.judge.requests -= len(s.requests)
	rejected := s.rejectedFirst
	*s = stream{
		judge: s.judge, flow: s.flow, started: true, highest: highest, earlyReply: s.earlyReply, replied: s.earlyReply.any,
		next: seq, prevEnd: seq, begin: seq, base: seq, contiguous: seq, accepted: seq - 1, positive: seq - 1, ackHigh: seq - 1,
	}
	s.useSetup(psn)
	if rejected != nil {
		s.keepStandIn(rejected)
		for i := range s.standIns {
			s.standIns[i].reported = s.earlyReply.any // it may be what they answer
		}
	}
}

// before records a reply that precedes all requests.
func (s *stream) before(psn uint32) {
	if !s.earlyReply.any || packet.PSNDiff(psn, s.earlyReply.psn) > 0 {
		s.earlyReply = earlyReply{true, psn}
	}
}

// certain reports whether the capture has everything about a PSN.
func (s *stream) certain(seq int64) bool { return s.settled && seq >= s.certainFrom && !s.blind }

// settle decides whether the reply p with the PSN seq shows that nothing from before the capture is
// outstanding. That is so if the MSN shows that the first message of the capture is the first of
// the connection; or if all that was sent was acknowledged certainDrains times; or if the PSN is
// more than maxOutstanding after the first one.
func (s *stream) settle(p *judgedPacket, seq int64) {
	if s.settled {
		return
	}
	nak := p.info.Kind == packet.KindAck && !p.AETH.Syndrome.IsACK()
	end := seq + 1
	if r := s.requestAt(seq); r != nil && !nak {
		end = r.End()
	}
	if nak {
		end = seq
	}
	s.highest = max(s.highest, seq)
	n, ok := s.msgsBelow(end)
	if !ok && end > s.contiguous && len(s.jumps) > 0 && s.jumps[0].certain && s.jumps[0].expected == s.contiguous {
		n, ok = s.messagesSent(end), true
	}
	switch {
	case !s.earlyReply.any && s.base == s.begin && ok && p.info.Position.StartsMessage() && p.AETH.MSN == uint32(n) && s.beginsMessage():
		s.settled, s.certainFrom = true, s.base
		return
	case nak:
	case seq >= s.next-1 && seq > s.drained:
		s.timesDrained++
		s.drained = seq
	}
	s.replied = true
	if s.timesDrained == certainDrains || seq >= s.base+maxOutstanding && !nak {
		s.settled, s.certainFrom = true, max(s.certainFrom, s.next, s.highest+1)
	}
}

// messagesSent returns how many messages end before seq, whether or not the capture has all
// requests.
func (s *stream) messagesSent(seq int64) (n int) {
	for i := range s.requests {
		n += bit(s.requests[i].Seq < seq && s.requests[i].Info.Position.EndsMessage())
	}
	return n
}

func (s *stream) beginsMessage() bool {
	return len(s.requests) > 0 && s.requests[0].Seq == s.base && s.requests[0].Info.Position.StartsMessage()
}

// find returns the index of the last request at or before seq, -1 if there is none.
func (s *stream) find(seq int64) int {
	return sort.Search(len(s.requests), func(i int) bool { return s.requests[i].Seq > seq }) - 1
}

// requestAt returns the request that has the PSN, nil if it is unknown.
func (s *stream) requestAt(seq int64) *request {
	i := s.find(seq)
	if i < 0 {
		return nil
	}
	r := &s.requests[i]
	if seq == r.Seq || seq < r.End() || r.NumPSNs == 0 && i == len(s.requests)-1 {
		return r
	}
	return nil
}

func (s *stream) newRequest(p *judgedPacket, seq int64) request {
	r := request{
		opcode: p.Opcode, Part: conversation.NewPart(&p.Header, seq, s.flow.mtu, s.flow.fits), payload: len(p.Payload),
		total: -1, offset: -1, nextResponse: seq, respondedTo: seq, accused: p.accused,
	}
	r.content, r.captured = s.contentOf(p)
	if r.unknown = p.headersCut; r.unknown && r.Info.Kind == packet.KindRead {
		r.NumPSNs = 0
	}
	switch has := p.info.Headers; {
	case has&packet.HasRETH != 0:
		r.va, r.rkey, r.length = p.RETH.VA, p.RETH.RKey, p.RETH.Length
	case has&packet.HasAtomicETH != 0:
		r.va, r.rkey = p.Atomic.VA, p.Atomic.RKey
	}
	r.sent(p)
	return r
}

// sent records a transmission.
func (r *request) sent(p *judgedPacket) {
	r.transmissions++
	r.no, r.at, r.fingerprint, r.AckReq = p.No, p.at, p.fingerprint(), p.AckReq
}

// isCopy reports whether p is a copy of the last transmission of r made by the network.
func (r *request) isCopy(p *judgedPacket) bool { return p.isCopyOf(r.fingerprint) }

// insert adds a new request, and returns its record.
func (s *stream) insert(r request) *request {
	limit := maxHistory
	if s.judge.requests >= maxRequests {
		limit = minHistory
	}
	if len(s.requests) >= limit {
		drop := len(s.requests) - limit + 1 + limit/4
		s.judge.requests -= drop
		s.trimmed = true
		s.requests = append(s.requests[:0], s.requests[drop:]...)
	}
	i := s.find(r.Seq) + 1
	s.requests = append(s.requests, request{})
	copy(s.requests[i+1:], s.requests[i:])
	s.requests[i] = r
	s.judge.requests++
	s.grow()
	return &s.requests[s.find(r.Seq)]
}

// grow moves contiguous over the requests that follow without a gap.
func (s *stream) grow() {
	i := s.find(s.contiguous)
	if i < 0 {
		return
	}
	if r := &s.requests[i]; r.Seq < s.contiguous {
		if r.NumPSNs != 0 || r.End() != s.contiguous {
			return
		}
		i++
	}
	for ; i < len(s.requests); i++ {
		r := &s.requests[i]
		if r.Seq != s.contiguous {
			if i == 0 || s.requests[i-1].NumPSNs != 0 {
				return
			}
			// After a READ of unknown length, requests may be missing.
			s.base, s.contiguousMessages, s.msn = r.Seq, 0, msnJudge{}
		}
		if r.Info.Position.EndsMessage() {
			s.contiguousMessages++
		}
		r.msgs = s.contiguousMessages
		s.contiguous = r.End()
	}
}

// skip gives up the gap below seq, and counts messages from there on.
func (s *stream) skip(seq int64) {
	if r := s.requestAt(seq - 1); r != nil {
		seq = r.End()
	}
	s.base, s.contiguous, s.contiguousMessages, s.msn = seq, seq, 0, msnJudge{}
	s.grow()
}

// msgsBelow returns how many messages ended between base and seq; ok is false where that is
// unknown.
func (s *stream) msgsBelow(seq int64) (n int, ok bool) {
	if seq == s.base {
		return 0, true
	}
	i := s.find(seq - 1)
	if i < 0 || s.requests[i].Seq < s.base || s.requests[i].Seq >= s.contiguous {
		return 0, false
	}
	return s.requests[i].msgs, true
}
