package check

import (
	"sort"

	"softroce/internal/conversation"
	"softroce/packet"
)

// A stream is the requests of one flow and what was answered. PSNs are unwrapped: they
// count on where 24 bits begin again.
type stream struct {
	*judge
	flow     *flow
	started  bool
	requests []request // in the order of PSNs, without overlap
	next     int64     // PSN behind the highest that was sent
	prevEnd  int64     // PSN behind the packet before

	// From base to solid every request was seen; solidMsgs of them ended messages.
	base               int64
	contiguous         int64
	contiguousMessages int

	// What is before the capture may have been sent, answered and sent again. From sure on
	// the capture has seen everything: see settle.
	settled      bool
	certainFrom  int64
	highest      int64 // PSN that replies have shown to be sent
	earlyReply   earlyReply
	replied      bool  // a reply came, after a request or before
	timesDrained int   // how often everything that was sent was answered
	drained      int64 // the last time

	// Of replies.
	accepted       int64 // every PSN up to here is acknowledged; first-1 at the beginning
	positive       int64 // the same, without what NAKs say
	ackHigh        int64 // the highest PSN of an ACKNOWLEDGE
	ackAt          int64 // and its time
	msn            msnBase
	nak            nak
	rnr            rnr
	keptWaits      int // after RNR NAKs, that were kept
	shortWaitCount int // and that were not
	shortWaits     []shortWait
	fatal          int // number of the packet that ended the connection

	// Of resends.
	goBacks         int          // requests that went back, were late, or came twice
	hasResponses    bool         // there are requests with answers of their own
	lateRequests    int          // late requests
	resendExplained bool         // something since the last resend may have caused one
	followedNAK     ackKnowledge // the requester followed a NAK
	restart         restart
	timeout         int64 // the shortest interval of a resend without visible cause, 0 if none
	lastProgress    int64 // time when accepted last moved, or a resend began
	skippedRead     skippedRead
	pendingNAK      misplacedResend // a resend that did not begin at the NAK's PSN
}

// A request is a packet of a requester, and what became of it.
type request struct {
	packet.Opcode
	info          *packet.Info
	seq           int64
	n             int64 // PSNs it takes, 0 if not known
	payload       int
	va            uint64 // of RETH or AtomicETH
	rkey          uint32
	length        uint32
	no            int         // number of its last packet
	at            int64       // time of that
	transmissions int         // how often it came
	mark          fingerprint // of its last packet
	ackReq        bool
	retries       int // without visible cause, since the last answer

	total  int64 // bytes of its WRITE, -1 if not known or none
	offset int64 // bytes of its message before it, -1 if not known
	msgs   int   // messages that end with it or before; valid below stream.solid

	// Of READs and atomics.
	partialReads []partialRead // other places from which it was asked for
	responses    int           // answers begun
	nextResponse int64         // PSN that goes on with the answer
	respondedTo  int64         // PSN up to which answers were seen without a gap
	result       uint64
	rnrNAKs      int // RNR NAKs
	reported     bool
}

// An ask is a part of a READ that was asked for.
type partialRead struct {
	seq, n int64
	length uint32
}

type nak struct {
	active bool
	seq    int64
	no     int
	served bool // the requester went back to seq
}

type rnr struct {
	active bool // and the request has not come again
	seq    int64
	at     int64
	wait   int64
	last   int64 // time of the transmission that drew it
	lower  bool  // the requester went back behind it: it took the NAK for a lost answer's sign
}

// A restart is a step back that the next request confirms, if it goes on from there.
type restart struct {
	active   bool
	seq, end int64
	no       int
	nak      bool  // it is the PSN of a NAK
	after    int64 // time since the packet was sent before
}

// known is a PSN up to which a requester knows everything to be acknowledged.
type ackKnowledge struct {
	any   bool
	seq   int64
	after int64 // how long it had waited for that
}

type misplacedResend struct {
	active bool
	want   int64
	nak    int // packet number
	seq    int64
	no     int
	name   string
}

// A readGap is a READ that was passed over before it was answered.
type skippedRead struct {
	active bool
	seq    int64
	at     int64
	news   int // requests since
}

// An earlyReply is the highest PSN of replies that came before any request.
type earlyReply struct {
	any bool
	psn uint32
}

// unwrap returns the unwrapped PSN nearest to those in use.
func (s *stream) unwrap(psn uint32) int64 { return conversation.Unwrap(psn, s.next) }

// start begins a stream at its first request, or at one that belongs to no stream before.
func (s *stream) start(psn uint32) {
	seq := int64(psn) + conversation.Origin
	highest := seq - 1
	if s.earlyReply.any {
		highest = max(highest, seq+int64(packet.PSNDiff(s.earlyReply.psn, psn)))
	}
	s.judge.requests -= len(s.requests)
	*s = stream{
		judge: s.judge, flow: s.flow, started: true, highest: highest, earlyReply: s.earlyReply, replied: s.earlyReply.any,
		next: seq, prevEnd: seq, base: seq, contiguous: seq, accepted: seq - 1, positive: seq - 1, ackHigh: seq - 1,
	}
}

// before takes a reply that comes before any request.
func (s *stream) before(psn uint32) {
	if !s.earlyReply.any || packet.PSNDiff(psn, s.earlyReply.psn) > 0 {
		s.earlyReply = earlyReply{true, psn}
	}
}

// certain reports whether the capture has seen all that became of a PSN.
func (s *stream) certain(seq int64) bool { return s.settled && seq >= s.certainFrom }

// settle looks whether the reply p, to the PSN seq, tells where the unknown past ends.
// Either an MSN shows that the first message of the capture is the first of the
// connection; or what was answered was, often enough, all that was sent; or it is so far
// behind the first PSN that no NIC had so much in flight.
func (s *stream) settle(p *judgedPacket, seq int64) {
	if s.settled {
		return
	}
	nak := p.info.Kind == packet.KindAck && !p.AETH.Syndrome.IsACK()
	end := seq + 1
	if r := s.requestAt(seq); r != nil && !nak {
		end = r.end()
	}
	if nak {
		end = seq
	}
	s.highest = max(s.highest, seq)
	n, ok := s.msgsBelow(end)
	switch {
	case !s.replied && ok && end <= s.contiguous && p.info.Position.StartsMessage() && p.AETH.MSN == uint32(n) && s.beginsMessage():
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

func (s *stream) beginsMessage() bool {
	return len(s.requests) > 0 && s.requests[0].seq == s.base && s.requests[0].info.Position.StartsMessage()
}

// find returns the place of the last request at or before seq, -1 if there is none.
func (s *stream) find(seq int64) int {
	return sort.Search(len(s.requests), func(i int) bool { return s.requests[i].seq > seq }) - 1
}

// holder returns the request that has the PSN, nil if it is unknown.
func (s *stream) requestAt(seq int64) *request {
	i := s.find(seq)
	if i < 0 {
		return nil
	}
	r := &s.requests[i]
	if seq == r.seq || seq < r.end() || r.n == 0 && i == len(s.requests)-1 {
		return r
	}
	return nil
}

// end is the PSN behind the request, as far as is known.
func (r *request) end() int64 { return r.seq + max(r.n, 1) }

func (s *stream) newRequest(p *judgedPacket, seq int64) request {
	r := request{
		Opcode: p.Opcode, info: p.info, seq: seq, n: 1, payload: len(p.Payload),
		total: -1, offset: -1, nextResponse: seq, respondedTo: seq,
	}
	switch has := p.info.Headers; {
	case has&packet.HasRETH != 0:
		r.va, r.rkey, r.length = p.RETH.VA, p.RETH.RKey, p.RETH.Length
	case has&packet.HasAtomicETH != 0:
		r.va, r.rkey = p.Atomic.VA, p.Atomic.RKey
	}
	if p.info.Kind == packet.KindRead {
		r.n = s.readPackets(r.length)
	}
	r.sent(p)
	return r
}

// readPackets returns how many packets answer a READ, 0 if the path MTU is unknown.
func (s *stream) readPackets(length uint32) int64 {
	switch {
	case s.flow.mtu != 0:
	case int64(length) <= int64(s.flow.fits):
		return 1
	default:
		return 0
	}
	return int64(packet.PSNCount(length, s.flow.mtu))
}

// sent counts a transmission.
func (r *request) sent(p *judgedPacket) {
	r.transmissions++
	r.no, r.at, r.mark, r.ackReq = p.No, p.at, p.mark(), p.AckReq
}

// twin reports whether p is the packet that r holds, doubled on its way.
func (r *request) isCopy(p *judgedPacket) bool { return p.mark().isCopyOf(r.mark) }

// expects reports whether something has to answer r.
func (r *request) expects() bool { return r.ackReq || r.info.Kind.HasOwnResponse() }

// insert adds a request that was not seen before, and returns it.
func (s *stream) insert(r request) *request {
	limit := maxHistory
	if s.judge.requests >= maxRequests {
		limit = minHistory
	}
	if len(s.requests) >= limit {
		drop := len(s.requests) - limit + 1 + limit/4
		s.judge.requests -= drop
		s.requests = append(s.requests[:0], s.requests[drop:]...)
	}
	i := s.find(r.seq) + 1
	s.requests = append(s.requests, request{})
	copy(s.requests[i+1:], s.requests[i:])
	s.requests[i] = r
	s.judge.requests++
	s.grow()
	return &s.requests[s.find(r.seq)]
}

// grow moves solid over the requests that follow without a gap.
func (s *stream) grow() {
	i := s.find(s.contiguous)
	if i < 0 {
		return
	}
	if r := &s.requests[i]; r.seq < s.contiguous {
		if r.n != 0 || r.end() != s.contiguous {
			return
		}
		i++
	}
	for ; i < len(s.requests); i++ {
		r := &s.requests[i]
		if r.seq != s.contiguous {
			if i == 0 || s.requests[i-1].n != 0 {
				return
			}
			// Behind a READ of unknown length, others may be missing.
			s.base, s.contiguousMessages, s.msn = r.seq, 0, msnBase{}
		}
		if r.info.Position.EndsMessage() {
			s.contiguousMessages++
		}
		r.msgs = s.contiguousMessages
		s.contiguous = r.end()
	}
}

// skip gives up the gap below seq, and counts messages anew from there.
func (s *stream) skip(seq int64) {
	if r := s.requestAt(seq - 1); r != nil {
		seq = r.end()
	}
	s.base, s.contiguous, s.contiguousMessages, s.msn = seq, seq, 0, msnBase{}
	s.grow()
}

// msgsBelow returns how many messages ended between base and seq; ok is false where that
// is unknown.
func (s *stream) msgsBelow(seq int64) (n int, ok bool) {
	if seq == s.base {
		return 0, true
	}
	i := s.find(seq - 1)
	if i < 0 || s.requests[i].seq < s.base || s.requests[i].seq >= s.contiguous {
		return 0, false
	}
	return s.requests[i].msgs, true
}

// msnBase is what is known of the difference between MSNs and the messages counted here.
type msnBase struct {
	known  bool
	anchor uint32
	lo, hi int
}

// holds narrows the difference by an MSN that stands for least to most messages. It
// returns false, and learns nothing, if that contradicts what is known.
func (m *msnBase) holds(msn uint32, least, most int) bool {
	if !m.known {
		*m = msnBase{known: true, anchor: packet.PSNAdd(msn, -least)}
		m.lo = least - most
		return true
	}
	d := func(n int) int { return packet.PSNDiff(packet.PSNAdd(msn, -n), m.anchor) }
	lo, hi := max(m.lo, d(most)), min(m.hi, d(least))
	if lo > hi {
		return false
	}
	m.lo, m.hi = lo, hi
	return true
}
