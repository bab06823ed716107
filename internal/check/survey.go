package check

import (
	"fmt"
	"net/netip"
	"sort"

	"softroce/capture"
	"softroce/packet"
)

// flowKey names what goes to one queue pair. The sender's own number is in no RC or UC
// packet. A capture of several interfaces may hold a packet once for each: they are apart.
type flowKey struct {
	iface    int
	src, dst netip.Addr
	qpn      uint32
}

// A flow is the packets from a host to a queue pair.
type flow struct {
	flowKey
	index   int
	mtu     int         // path MTU in bytes, 0 if nothing shows it
	sizes   map[int]int // payloads of First and Middle, how often each
	largest int         // payload of any packet
	port    uint16      // the first UDP source port
	pkey    uint16      // the first
	partner *flow       // what the queue pair sends, nil if not known
	votes   map[*flow]int

	stream *stream // what is known of its requests, in the second reading
	order  order
	lastCE int   // the last packet that was marked
	cnpAt  int64 // time of the last CNP
	cnps   int
	migReq bool
	seen   bool // a packet, in the second reading
}

func (f *flow) String() string { return fmt.Sprintf("%v > %v QP %#x", f.src, f.dst, f.qpn) }

// psnKey is a request: who sent it to whom, whatever the queue pair.
type psnKey struct {
	iface    int
	src, dst netip.Addr
	psn      uint32
}

// sent is a request that a reply may answer.
type sent struct {
	flow   *flow
	kind   packet.Kind
	ackReq bool
}

// survey finds the flows of a capture and which belong together. A reply's PSN is that
// of a request on the way back; PSNs begin anywhere among 2^24, so few such requests
// match by chance, and every reply is a vote.
type survey struct {
	flows  map[flowKey]*flow
	list   []*flow
	recent map[psnKey][]sent // who sent the PSN
	older  map[psnKey][]sent // the generation before
}

func newSurvey() *survey {
	return &survey{flows: map[flowKey]*flow{}, recent: map[psnKey][]sent{}}
}

// hasFlow reports whether packets of a service belong to a flow.
func hasFlow(s packet.Service) bool { return s == packet.RC || s == packet.UC || s == packet.XRC }

func keyOf(p *capture.Packet) flowKey { return flowKey{p.Interface, p.Src, p.Dst, p.DestQP} }

// record takes a frame of the first reading.
func (s *survey) record(rec capture.Record) {
	p, err := capture.Parse(rec)
	if err != nil || p.Err != nil || !p.ICRCOK() || !hasFlow(p.Opcode.Service()) {
		return
	}
	f := s.flow(p)
	if f == nil {
		return
	}
	in := p.Opcode.Info()
	f.largest = max(f.largest, len(p.Payload))
	if in.Payload && (in.Position == packet.First || in.Position == packet.Middle) && validMTU(len(p.Payload)) {
		f.sizes[len(p.Payload)]++
	}
	if in.Request {
		s.remember(sent{f, in.Kind, p.AckReq}, psnKey{p.Interface, p.Src, p.Dst, p.PSN})
	} else {
		s.vote(f, p)
	}
}

func (s *survey) flow(p *capture.Packet) *flow {
	k := keyOf(p)
	f := s.flows[k]
	if f == nil {
		if len(s.list) == maxFlows {
			return nil
		}
		f = &flow{flowKey: k, index: len(s.list), port: p.SrcPort, pkey: p.PKey, sizes: map[int]int{}, votes: map[*flow]int{}}
		s.flows[k] = f
		s.list = append(s.list, f)
	}
	return f
}

func (s *survey) remember(r sent, k psnKey) {
	if len(s.recent) >= maxRecent/2 {
		s.older, s.recent = s.recent, map[psnKey][]sent{}
	}
	list := s.recent[k]
	for i := range list {
		if list[i].flow == r.flow {
			list[i] = r
			return
		}
	}
	if len(list) < maxPartners {
		s.recent[k] = append(list, r)
	}
}

// vote counts the reply p, of flow f, for the flows whose request it may answer, and
// against those whose request it cannot. The same UDP source port both ways, which some
// NICs have, counts a little.
func (s *survey) vote(f *flow, p *capture.Packet) {
	back := psnKey{p.Interface, p.Dst, p.Src, p.PSN}
	for _, list := range [][]sent{s.recent[back], s.older[back]} {
		for _, r := range list {
			if _, ok := f.votes[r.flow]; !ok && len(f.votes) == maxPartners {
				continue
			}
			n := r.answered(p.Opcode.Info().Kind)
			if n > 0 && f.port == r.flow.port {
				n++
			}
			f.votes[r.flow] += n
		}
	}
}

// answered returns how much speaks for a reply of a kind to be the answer to r.
func (r sent) answered(by packet.Kind) int {
	const certain, likely, unlikely = 8, 3, 1
	fits := false
	switch r.kind {
	case packet.KindRead, packet.KindFlush, packet.KindAtomicWrite:
		fits = by == packet.KindReadResponse
	case packet.KindCompareSwap, packet.KindFetchAdd:
		fits = by == packet.KindAtomicAck
	default:
		fits = by == packet.KindAck && r.ackReq
	}
	switch {
	case by == packet.KindAck && fits:
		return likely
	case by == packet.KindAck:
		return unlikely // a NAK, or it covers what was before
	case fits:
		return certain
	case r.kind == packet.KindSend || r.kind == packet.KindWrite:
		return -certain
	}
	return 0
}

// pair decides which flows belong together, the clearest first, and what their path MTU is.
func (s *survey) pair() {
	type match struct {
		a, b  *flow
		votes int
	}
	both := map[[2]int]*match{}
	for _, f := range s.list {
		for g, n := range f.votes {
			a, b := f, g
			if a.index > b.index {
				a, b = b, a
			}
			k := [2]int{a.index, b.index}
			if both[k] == nil {
				both[k] = &match{a: a, b: b}
			}
			both[k].votes += n
		}
	}
	var matches []*match
	for _, m := range both {
		matches = append(matches, m)
	}
	sort.Slice(matches, func(i, j int) bool {
		a, b := matches[i], matches[j]
		if a.votes != b.votes {
			return a.votes > b.votes
		}
		if a.a != b.a {
			return a.a.index < b.a.index
		}
		return a.b.index < b.b.index
	})
	for _, m := range matches {
		if m.votes > 0 && m.a.partner == nil && m.b.partner == nil && m.a != m.b {
			m.a.partner, m.b.partner = m.b, m.a
		}
	}
	for _, f := range s.list {
		f.mtu = f.pathMTU()
	}
	s.recent, s.older = nil, nil
}

// pathMTU is what most of the packets say that a path MTU fills, of both directions.
func (f *flow) pathMTU() (mtu int) {
	most := 0
	for size := 256; size <= 4096; size *= 2 {
		n := f.sizes[size]
		if f.partner != nil {
			n += f.partner.sizes[size]
		}
		if n > most {
			mtu, most = size, n
		}
	}
	return mtu
}

// onePacket is a length that fits the path MTU for sure.
func (f *flow) onePacket() int {
	n := max(f.largest, 256)
	if f.partner != nil {
		n = max(n, f.partner.largest)
	}
	return n
}

func validMTU(n int) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }
