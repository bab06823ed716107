package check

import (
	"net/netip"
	"slices"

	"softroce/cm"
	"softroce/internal/conversation"
	"softroce/packet"
)

// The messages of the connection manager say with which PSN and path MTU a connection begins, how
// long its requester waits, and how many READs and atomics it may have outstanding. A program may
// change that when it modifies the queue pair, so a stream uses them only if its first request is
// near that PSN.

// A setup is what REQ and REP say of one direction.
type setup struct {
	psn     uint32 // of the first request
	mtu     int    // path MTU, 0 if the code is not assigned
	timeout int64  // local ACK timeout in nanoseconds, 0: none
	reads   int    // READs and atomics that may be outstanding
}

// A requestID finds the REQ that a REP answers.
type requestID struct {
	from, to netip.Addr
	id       uint32
}

// setups are the connections that are being established, and those whose first request did not come
// yet.
type setups struct {
	requests recentMap[requestID, *cm.REQ]
	flows    recentMap[conversation.FlowKey, *setup]
}

// maxSetups is how many of each are remembered, the newest; at most twice as many.
const maxSetups = 1 << 12

// A recentMap is a map that forgets what was put into it before the newest maxSetups.
type recentMap[K comparable, V any] struct {
	recent, older map[K]V // two generations
}

func (n *recentMap[K, V]) put(k K, v V) {
	if len(n.recent) >= maxSetups {
		n.older, n.recent = n.recent, nil
	}
	if n.recent == nil {
		n.recent = map[K]V{}
	}
	n.recent[k] = v
}

// get returns a value, the zero value if there is none.
func (n *recentMap[K, V]) get(k K) V {
	if v, ok := n.recent[k]; ok {
		return v
	}
	return n.older[k]
}

// take is get, and removes the value.
func (n *recentMap[K, V]) take(k K) V {
	v := n.get(k)
	delete(n.recent, k)
	delete(n.older, k)
	return v
}

// message takes a message of the connection manager into account.
func (j *judge) message(p *judgedPacket, m cm.Message) {
	switch m := m.(type) {
	case *cm.REQ:
		j.setups.requests.put(requestID{p.Src, p.Dst, m.LocalID}, m)
	case *cm.REP:
		req := j.setups.requests.take(requestID{p.Dst, p.Src, m.RemoteID})
		if req == nil || req.Service != cm.ServiceRC {
			return
		}
		s := setup{mtu: mtuOfCode(req.PathMTU)}
		if code := req.Primary.ACKTimeout; code > 0 {
			s.timeout = 4096 << code
		}
		active, passive := s, s
		active.psn, passive.psn = m.StartingPSN, req.StartingPSN
		active.reads, passive.reads = int(m.ResponderResources), int(m.InitiatorDepth)
		j.setups.flows.put(conversation.FlowKey{Src: p.Dst, Dst: p.Src, QPN: m.LocalQPN}, &active)
		j.setups.flows.put(conversation.FlowKey{Src: p.Src, Dst: p.Dst, QPN: req.LocalQPN}, &passive)
	}
}

// mtuOfCode returns the path MTU of a code, 0 if there is none.
func mtuOfCode(code uint8) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// maxLostAtStart bounds the requests that may be lost before the first one in the capture.
const maxLostAtStart = 64

// useSetup begins the stream where the connection manager says, if its first request, with a PSN,
// shows that this is the connection.
func (s *stream) useSetup(psn uint32) {
	st := s.judge.setups.flows.take(s.flow.FlowKey)
	if st == nil {
		return
	}
	lost := packet.PSNDiff(psn, st.psn)
	if lost < 0 || lost > maxLostAtStart {
		return
	}
	seq := s.begin - int64(lost)
	s.begin, s.base, s.contiguous, s.next, s.prevEnd = seq, seq, seq, seq, seq
	s.accepted, s.positive, s.ackHigh = seq-1, seq-1, seq-1
	s.settled, s.certainFrom = true, seq
	s.timeLimit = 2 * maxTimeoutFactor * st.timeout
	s.reads = readLimit{known: true, most: st.reads}
	s.msn.base.holds(0, 0, 0) // the MSN counts from 0
	s.msn.votes = 2
	if f := s.flow; f.mtu == 0 && st.mtu >= f.fits {
		f.mtu = st.mtu
	}
}

// maxTimeoutFactor is how much longer than its code a timer may take (IBTA 9.7.6.1.3).
const maxTimeoutFactor = 4

// A readLimit is how many READs and atomics a requester may have outstanding, and those that it
// has.
type readLimit struct {
	known bool
	most  int
	open  []int64 // PSNs, some of them perhaps answered meanwhile
	held  excessRead
}

// An excessRead is a READ or atomic that is one too many, unless the capture lacks the response to
// an earlier one, or has it late: the replies up to the one that permits it show that.
type excessRead struct {
	no      int // packet number, 0 if there is none
	at      int64
	name    string
	opcode  packet.Opcode
	psn     uint32
	open    int     // how many have no response
	waiting []int64 // PSNs of those whose responses have to come before it
}

// checkReads judges whether r, a new READ or atomic, is one too many.
func (s *stream) checkReads(p *judgedPacket, r *request) {
	l := &s.reads
	if k := r.Info.Kind; !l.known || k != packet.KindRead && !k.IsAtomic() {
		return
	}
	if l.open = append(l.open, r.Seq); len(l.open) <= l.most {
		return
	}
	l.open = slices.DeleteFunc(l.open, func(seq int64) bool {
		q := s.requestAt(seq)
		return q == nil || q.Seq != seq || q.isAnswered() || q.reported || q.Seq <= s.positive
	})
	if n := len(l.open); n > l.most && l.held.no == 0 && s.certain(l.open[0]) {
		l.held = excessRead{p.No, p.at, p.name(), p.Opcode, p.PSN, n, slices.Clone(l.open[:n-l.most])}
	}
}

// judgeExcessRead reports the READ or atomic that is one too many when the reply p to the last of
// those comes that had to be answered before it, if no reply passed over one of them: they were
// still outstanding. A mirror port may delay one direction, so that the requester seems not to have
// waited for the reply. That is possible if it waited for at least half of the time until the
// reply.
func (s *stream) judgeExcessRead(p *judgedPacket, seq int64) {
	l := &s.reads
	h := &l.held
	if h.no == 0 {
		return
	}
	for len(h.waiting) > 1 && s.answered(h.waiting[0]) {
		h.waiting = h.waiting[1:]
	}
	q := s.requestAt(h.waiting[0])
	passedOver := q == nil || seq >= q.End()
	if !passedOver && !s.blind && len(h.waiting) > 1 {
		return
	}
	l.known = passedOver || s.blind || p.at-h.at < h.at-q.at
	if !l.known { // it is reported once
		s.violation(ruleReads, h.no, h.name, true, "%v with PSN %d is number %d of those without a response, the connection manager granted %d", h.opcode, h.psn, h.open, l.most)
	}
	*h = excessRead{}
}

// answered reports whether the request with the PSN seq has been answered.
func (s *stream) answered(seq int64) bool {
	q := s.requestAt(seq)
	return q != nil && q.isAnswered()
}
