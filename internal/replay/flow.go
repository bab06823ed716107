package replay

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"softroce/capture"
	"softroce/packet"
)

// A flowKey names the packets that go from one host to one queue pair of another. RoCE packets
// carry the number of the destination queue pair alone, so which two flows make a
// connection must be found out.
type flowKey struct {
	src, dst netip.Addr
	qpn      uint32 // of the destination
}

// A flow is what a queue pair sends to its peer: requests of its own, and replies to the peer's.
type flow struct {
	key     flowKey
	runs    []*run
	replies []*event
	port    uint16 // UDP source port of the first packet
	peer    *flow
	number  int // in the order of the capture
}

// A run is requests of a flow whose PSNs are near each other. A flow has several where a queue
// pair number was used again.
type run struct {
	flow   *flow
	events []*event
	next   uint32 // the PSN behind the last
}

// runReach is how far, in PSNs, a request may be from the one before and still belong to the
// same queue pair. Starting PSNs are random in 24 bits.
const runReach = 1 << 20

// maxRuns bounds the runs of a flow that are looked through for a packet.
const maxRuns = 8

// A sorter takes a capture apart into flows.
type sorter struct {
	flows   []*flow
	byKey   map[flowKey]*flow
	asked   map[askedKey][]*run
	talk    talk
	skipped []Note
	rc      int
}

// askedKey finds the runs that have a request with a PSN.
type askedKey struct {
	src, dst netip.Addr
	psn      uint32
}

// maxAsked bounds the runs between two hosts that are remembered for one PSN.
const maxAsked = 8

// sortFlows sorts the RC packets of a capture into flows and finds out which belong together.
func sortFlows(ps capture.Packets) *sorter {
	s := &sorter{byKey: map[flowKey]*flow{}, asked: map[askedKey][]*run{}, talk: talk{}, skipped: []Note{}}
	for i, p := range ps {
		s.add(i, p)
	}
	s.pair()
	return s
}

// add takes in one packet.
func (s *sorter) add(at int, p *capture.Packet) {
	in := p.Opcode.Info()
	rc := p.Opcode.Service() == packet.RC
	if rc {
		s.rc++
	}
	if reason := unfit(p); reason != "" {
		if rc {
			s.skipped = append(s.skipped, Note{p.No, reason})
		}
		return
	}
	s.talk.add(at, p, in)
	if !rc {
		return
	}
	f := s.flow(p)
	ev := &event{Packet: p, info: in, at: at, pos: at}
	if in.Request {
		s.addRequest(f, ev)
	} else {
		f.replies = append(f.replies, ev)
	}
}

// unfit says why no queue pair would look at a packet.
func unfit(p *capture.Packet) string {
	switch {
	case p.Err != nil:
		return p.Err.Error()
	case !p.ICRCOK():
		return "the ICRC is wrong"
	case p.TVer != 0:
		return fmt.Sprintf("the transport version is %d", p.TVer)
	}
	return ""
}

func (s *sorter) flow(p *capture.Packet) *flow {
	k := flowKey{p.Src, p.Dst, p.BTH.DestQP}
	f := s.byKey[k]
	if f == nil {
		f = &flow{key: k, port: p.SrcPort, number: len(s.flows)}
		s.byKey[k] = f
		s.flows = append(s.flows, f)
	}
	return f
}

func (s *sorter) addRequest(f *flow, ev *event) {
	r := f.near(ev.BTH.PSN)
	if r == nil {
		r = &run{flow: f, next: ev.BTH.PSN}
		f.runs = append(f.runs, r)
	}
	r.events = append(r.events, ev)
	end := ev.BTH.PSN + 1
	if packet.PSNDiff(end&packet.PSNMask, r.next) > 0 {
		r.next = end & packet.PSNMask
	}
	k := askedKey{f.key.src, f.key.dst, ev.BTH.PSN}
	if rs := s.asked[k]; len(rs) < maxAsked && !slices.Contains(rs, r) {
		s.asked[k] = append(rs, r)
	}
}

// near finds the latest run that a PSN may belong to.
func (f *flow) near(psn uint32) *run {
	for i := len(f.runs) - 1; i >= max(0, len(f.runs)-maxRuns); i-- {
		d := packet.PSNDiff(psn, f.runs[i].next)
		if -runReach < d && d < runReach {
			return f.runs[i]
		}
	}
	return nil
}

// portVotes is how much more a vote counts if the UDP source port is the same both ways.
const portVotes = 9

// A match is two flows that may be the two directions of a connection.
type match struct {
	a, b  *flow
	votes int
}

// pair finds the flow that answers each flow: replies carry PSNs that the requests had. Where that
// fits several, the same UDP source port both ways decides, which most NICs use.
func (s *sorter) pair() {
	votes := map[[2]*flow]int{}
	for _, f := range s.flows {
		for _, ev := range f.replies {
			for _, r := range s.asked[askedKey{f.key.dst, f.key.src, ev.BTH.PSN}] {
				if r.events[0].at < ev.at {
					votes[ordered(f, r.flow)] += 1 + portVotes*bit(r.flow.port == f.port)
				}
			}
		}
	}
	matches := make([]match, 0, len(votes))
	for k, n := range votes {
		matches = append(matches, match{k[0], k[1], n})
	}
	slices.SortFunc(matches, func(x, y match) int {
		return cmp.Or(cmp.Compare(y.votes, x.votes), cmp.Compare(x.a.number, y.a.number), cmp.Compare(x.b.number, y.b.number))
	})
	for _, m := range matches {
		m.join()
	}
	s.pairByPort()
}

func (m match) join() {
	if m.a.peer == nil && m.b.peer == nil {
		m.a.peer, m.b.peer = m.b, m.a
	}
}

func ordered(a, b *flow) [2]*flow {
	if a.number > b.number {
		a, b = b, a
	}
	return [2]*flow{a, b}
}

// pairByPort joins flows that share no PSN, if they are the only ones with their port.
func (s *sorter) pairByPort() {
	type lane struct {
		src, dst netip.Addr
		port     uint16
	}
	alone := map[lane][]*flow{}
	for _, f := range s.flows {
		if f.peer == nil {
			k := lane{f.key.src, f.key.dst, f.port}
			alone[k] = append(alone[k], f)
		}
	}
	for k, fs := range alone {
		back := alone[lane{k.dst, k.src, k.port}]
		if len(fs) == 1 && len(back) == 1 && fs[0] != back[0] {
			match{a: fs[0], b: back[0]}.join()
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// talk knows when programs on a host heard something, or said something: packets that end a
// message which a program takes notice of. Between them, nothing but the captured
// operations should change memory.
type talk map[netip.Addr][]int

func (t talk) add(at int, p *capture.Packet, in *packet.Info) {
	if in.Request && in.Position.EndsMessage() && (in.Kind == packet.KindSend || in.Kind == packet.KindWrite) {
		t[p.Src] = append(t[p.Src], at)
		t[p.Dst] = append(t[p.Dst], at)
	}
}

// between reports whether a host's programs heard or said something after one packet and before another.
func (t talk) between(host netip.Addr, from, to int) bool {
	said := t[host]
	i, _ := slices.BinarySearch(said, from+1)
	return i < len(said) && said[i] < to
}
