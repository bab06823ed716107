package conversation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"softroce/capture"
	"softroce/packet"
)

// Bounds on what a survey remembers of a capture.
const (
	MaxFlows    = 1 << 14 // further flows are not in the survey
	maxRequests = 1 << 16 // PSNs of requests that wait for a reply; twice as many for a short time
	maxPerPSN   = 8       // latest flows with a request of one PSN between two hosts
	maxPeers    = 8       // flows that may be the opposite direction of one flow, those with most votes
)

// A FlowKey names the packets that go to one queue pair. RC, UC and XRC packets do not carry the
// number of the sending queue pair. The interface is no part of it: requests and replies may take
// different ones, as between two NICs of one daemon, where each packet is recorded at its sender.
type FlowKey struct {
	Src, Dst netip.Addr
	QPN      uint32 // of the destination
}

// KeyOf returns the flow of a packet.
func KeyOf(p *capture.Packet) FlowKey { return FlowKey{p.Src, p.Dst, p.DestQP} }

func (k FlowKey) String() string { return fmt.Sprintf("%v > %v QP %#x", k.Src, k.Dst, k.QPN) }

// A Flow is the packets from a host to a queue pair: requests of the sending queue pair, and its
// replies to the requests of the other one.
type Flow struct {
	FlowKey
	Number   int    // in the order of their first packets
	SrcPort  uint16 // UDP source port of the first packet
	PKeys    Majority
	Services Majority
	Packets  int
	Requests int   // of the packets
	First    int   // number of the first packet in the capture
	Last     int   // and of the last one
	Peer     *Flow // the opposite direction of the connection, nil if it is not known
	MTU      PathMTU
	reliable bool // RC or XRC
	votes    map[*Flow]int
}

// Reliable reports whether a packet of RC or XRC belongs to the flow: it has replies, or is one.
func (f *Flow) Reliable() bool { return f.reliable }

// PathMTU infers the path MTU from the packets of both directions.
func (f *Flow) PathMTU() *PathMTU {
	m := f.MTU
	if f.Peer != nil && f.Peer != f {
		m.Merge(&f.Peer.MTU)
	}
	return &m
}

// HasFlow reports whether packets of a service belong to a flow.
func HasFlow(s packet.Service) bool { return s == packet.RC || s == packet.UC || s == packet.XRC }

// A Survey sorts packets into flows and finds the two directions of each connection.
//
// The PSN of a reply is that of a request in the opposite direction. If starting PSNs are random in
// 24 bits, few requests of other connections match by chance. Where all connections start at the
// same PSN, as those of UCX do, a reply comes soon after its request. So every reply votes for the
// flows that were the last to send a request with its PSN, and the pairs with most votes win. How
// much a vote counts depends on whether the kinds of request and reply fit.
type Survey struct {
	views  *Views
	flows  map[FlowKey]*Flow
	list   []*Flow
	recent map[requestKey][]sentRequest
	older  map[requestKey][]sentRequest // the generation before
}

// A requestKey finds requests between two hosts by PSN, whatever their queue pairs.
type requestKey struct {
	src, dst netip.Addr
	psn      uint32
}

// A sentRequest is a request that a reply may answer.
type sentRequest struct {
	flow   *Flow
	info   *packet.Info
	ackReq bool
}

// NewSurvey returns a survey without packets.
func NewSurvey() *Survey {
	return &Survey{views: NewViews(), flows: map[FlowKey]*Flow{}, recent: map[requestKey][]sentRequest{}}
}

// Flows returns the flows in the order of their first packets.
func (s *Survey) Flows() []*Flow { return s.list }

// Flow returns the flow of a packet, nil if the survey does not have it.
func (s *Survey) Flow(p *capture.Packet) *Flow { return s.flows[KeyOf(p)] }

// Add takes the next packet of the capture into account. Packets that are damaged, of a service
// without flows, or another view of a packet before, are ignored.
func (s *Survey) Add(p *capture.Packet) {
	if s.views.IsAnother(p) || p.Err != nil || !p.ICRCOK() || !HasFlow(p.Opcode.Service()) {
		return
	}
	f := s.add(p)
	if f == nil {
		return
	}
	f.MTU.Add(&p.Header, len(p.Payload))
	f.PKeys.Add(p.PKey & 0x7fff)
	f.Services.Add(uint16(p.Opcode.Service()))
	f.Packets++
	f.Last = p.No
	f.reliable = f.reliable || p.Opcode.Service() != packet.UC
	if in := p.Opcode.Info(); in.Request {
		f.Requests++
		s.remember(sentRequest{f, in, p.AckReq}, requestKey{p.Src, p.Dst, p.PSN})
	} else {
		s.vote(f, p)
	}
}

// add returns the flow of a packet, which it adds if there is room; otherwise it returns nil.
func (s *Survey) add(p *capture.Packet) *Flow {
	k := KeyOf(p)
	f := s.flows[k]
	if f == nil {
		if len(s.list) == MaxFlows {
			return nil
		}
		f = &Flow{FlowKey: k, Number: len(s.list), SrcPort: p.SrcPort, First: p.No, votes: map[*Flow]int{}}
		s.flows[k] = f
		s.list = append(s.list, f)
	}
	return f
}

func (s *Survey) remember(r sentRequest, k requestKey) {
	if len(s.recent) >= maxRequests {
		s.older, s.recent = s.recent, map[requestKey][]sentRequest{}
	}
	list := s.recent[k]
	if i := slices.IndexFunc(list, func(o sentRequest) bool { return o.flow == r.flow }); i >= 0 {
		list = slices.Delete(list, i, i+1)
	} else if len(list) == maxPerPSN {
		list = slices.Delete(list, 0, 1)
	}
	s.recent[k] = append(list, r)
}

// vote counts the reply p of flow f for the flows whose request it may answer, and against those
// whose request it cannot answer. Some NICs use the same UDP source port in both directions, which
// counts one vote more.
func (s *Survey) vote(f *Flow, p *capture.Packet) {
	back := requestKey{p.Dst, p.Src, p.PSN}
	for _, list := range [][]sentRequest{s.recent[back], s.older[back]} {
		for _, r := range list {
			if _, ok := f.votes[r.flow]; !ok && len(f.votes) == maxPeers {
				f.dropWeakest()
			}
			n := r.votes(p.Opcode.Info().Kind)
			if n > 0 && f.SrcPort == r.flow.SrcPort {
				n++
			}
			f.votes[r.flow] += n
		}
	}
}

// dropWeakest forgets the flow with the fewest votes, the oldest of several.
func (f *Flow) dropWeakest() {
	var weakest *Flow
	for g, n := range f.votes {
		if weakest == nil || cmp.Or(cmp.Compare(n, f.votes[weakest]), cmp.Compare(g.Number, weakest.Number)) < 0 {
			weakest = g
		}
	}
	delete(f.votes, weakest)
}

// votes returns how strongly a reply of a kind suggests that it answers r.
func (r sentRequest) votes(by packet.Kind) int {
	const certain, likely, unlikely = 8, 3, 1
	fits := by == r.info.Kind.Response() && (by != packet.KindAck || r.ackReq)
	switch {
	case by == packet.KindAck && fits:
		return likely
	case by == packet.KindAck:
		return unlikely // a NAK, or it also acknowledges earlier requests
	case fits:
		return certain
	case r.info.Kind.Response() == packet.KindAck:
		return -certain
	}
	return 0
}

// A pairing is two flows that may be the two directions of a connection.
type pairing struct {
	a, b  *Flow
	votes int
}

// Pair finds the opposite direction of each flow, pairs with most votes first. Flows without a vote
// are paired by their UDP source port: see pairByPort.
func (s *Survey) Pair() {
	both := map[[2]*Flow]int{}
	for _, f := range s.list {
		for g, n := range f.votes {
			a, b := f, g
			if a.Number > b.Number {
				a, b = b, a
			}
			both[[2]*Flow{a, b}] += n
		}
	}
	var ps []pairing
	for k, n := range both {
		ps = append(ps, pairing{k[0], k[1], n})
	}
	slices.SortFunc(ps, func(x, y pairing) int {
		return cmp.Or(cmp.Compare(y.votes, x.votes), cmp.Compare(x.a.Number, y.a.Number), cmp.Compare(x.b.Number, y.b.Number))
	})
	for _, p := range ps {
		if p.votes > 0 {
			p.join()
		}
	}
	s.pairByPort()
	s.views, s.recent, s.older = nil, nil, nil
}

func (p pairing) join() {
	if p.a.Peer == nil && p.b.Peer == nil {
		p.a.Peer, p.b.Peer = p.b, p.a
	}
}

// pairByPort pairs reliable flows that have no request and reply in common, if each is the only one
// of its direction with the same UDP source port.
func (s *Survey) pairByPort() {
	type path struct {
		src, dst netip.Addr
		port     uint16
	}
	single := map[path][]*Flow{}
	for _, f := range s.list {
		if f.Peer == nil && f.reliable {
			k := path{f.Src, f.Dst, f.SrcPort}
			single[k] = append(single[k], f)
		}
	}
	for k, fs := range single {
		back := single[path{k.dst, k.src, k.port}]
		if len(fs) == 1 && len(back) == 1 && fs[0] != back[0] {
			pairing{a: fs[0], b: back[0]}.join()
		}
	}
}
