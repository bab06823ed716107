package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"softroce/internal/network"
	"softroce/packet"
	"softroce/transport/congestion"
)

// Switches is a network of switches between the NICs, in place of a fabric that delivers at once.
type Switches struct {
	Topology   network.Topology
	Cyclic     bool // lossless queues can wait for each other in a circle
	Failures   []network.Failure
	TClasses   []uint8           // traffic classes of packets, to draw from
	Congestion congestion.Params // of the NICs
}

// drawSwitches draws the network of switches, and traffic that meets in it.
func (p *Profile) drawSwitches(r *rand.Rand) {
	p.Rate, p.Buffer = 0, 0 // the ports have a rate
	if r.IntN(2) == 0 {
		*p = p.withoutFaults() // only switches lose anything
	}
	p.NICs = max(p.NICs, 2+r.IntN(5))
	if p.Pairs < 32 && p.LongReads == 0 {
		p.Pairs += r.IntN(2 * p.NICs)
	}
	for p.MaxMessage > 16 && p.NICs*p.memory() > 16<<20 { // bounds the time of a run
		p.MaxMessage /= 2
	}
	s := &Switches{}
	switch r.IntN(10) {
	case 0:
		s.drawRing(p.NICs, r)
	case 1, 2, 3:
		s.drawStar(p.NICs, r)
	case 4, 5, 6:
		s.drawTwoSwitches(p.NICs, r)
	default:
		s.drawLeafSpine(p.NICs, r)
	}
	s.drawTraffic(r)
	s.drawConfig(r)
	if r.IntN(3) == 0 {
		s.drawFailures(r)
	}
	p.Switches = s
}

// Rates of ports in b/s, and longest delay of cables in ns.
var portRates = []int64{1e9, 2.5e9, 10e9, 25e9, 100e9}

const maxCableDelay = 5000

// addSwitches adds switches and returns their nodes.
func (s *Switches) addSwitches(n int) (nodes []int) {
	for i := range n {
		nodes = append(nodes, s.Topology.AddNode(fmt.Sprint("switch", i), true))
	}
	return nodes
}

// addNICs connects the NICs to switches in turn. Some ports are slower than the others.
func (s *Switches) addNICs(n int, switches []int, r *rand.Rand) {
	rate, delay := portRates[r.IntN(len(portRates))], r.Int64N(maxCableDelay)
	for i := range n {
		k := s.Topology.AddNode(nicName(i), false)
		own := rate
		if r.IntN(6) == 0 {
			own = portRates[r.IntN(len(portRates))]
		}
		s.Topology.Links = append(s.Topology.Links, network.Link{A: switches[i%len(switches)], B: k, Rate: own, Delay: delay})
	}
}

// connect connects two switches.
func (s *Switches) connect(a, b int, r *rand.Rand) {
	s.Topology.Links = append(s.Topology.Links,
		network.Link{A: a, B: b, Rate: portRates[r.IntN(len(portRates))], Delay: r.Int64N(maxCableDelay)})
}

func (s *Switches) drawStar(nics int, r *rand.Rand) { s.addNICs(nics, s.addSwitches(1), r) }

func (s *Switches) drawTwoSwitches(nics int, r *rand.Rand) {
	l := s.addSwitches(2)
	s.connect(l[0], l[1], r)
	s.addNICs(nics, l, r)
}

// drawLeafSpine draws a network with two paths between leaves. As long as no cable is down, all go
// up and down once, so that lossless queues cannot wait for each other in a circle.
func (s *Switches) drawLeafSpine(nics int, r *rand.Rand) {
	l := s.addSwitches(4 + r.IntN(2))
	spines, leaves := l[:2], l[2:]
	for _, leaf := range leaves {
		for _, spine := range spines {
			s.connect(leaf, spine, r)
		}
	}
	s.addNICs(nics, leaves, r)
}

// drawRing draws a ring of five switches. Each NIC and the next one are two switches apart, so that
// packets of lossless priorities can wait for each other all the way around.
func (s *Switches) drawRing(nics int, r *rand.Rand) {
	l := s.addSwitches(5)
	for i := range l {
		s.connect(l[i], l[(i+1)%len(l)], r)
	}
	s.addNICs(nics, []int{l[0], l[2], l[4], l[1], l[3]}, r)
	s.Cyclic = true
}

// drawTraffic draws the traffic classes and the congestion control.
func (s *Switches) drawTraffic(r *rand.Rand) {
	for range 1 + r.IntN(3) {
		ecn := []uint8{0, 1, 2, 2, 2, 2}[r.IntN(6)] // not ECN-capable, ECT(1), ECT(0)
		s.TClasses = append(s.TClasses, uint8(r.IntN(64))<<2|ecn)
	}
	s.Congestion = congestion.Defaults()
	names := congestion.Algorithms()
	if err := s.Congestion.SetText("algorithm", names[r.IntN(len(names))]); err != nil {
		panic(err)
	}
	s.Congestion.CNPDSCP = uint32(r.IntN(64))
}

// drawConfig draws the configuration of the switches. Small buffers drop.
func (s *Switches) drawConfig(r *rand.Rand) {
	c := &s.Topology.Switch
	c.Buffer = network.MaxSize * (1 + r.IntN(1<<r.IntN(8)))
	c.Queue = max(network.MaxSize, c.Buffer/(1+r.IntN(4)))
	if r.IntN(2) == 0 {
		kmin := r.IntN(c.Buffer / 2)
		c.ECN = &network.ECN{Kmin: kmin, Kmax: kmin + r.IntN(c.Buffer/2), Pmax: r.Float64()}
	}
	if r.IntN(2) == 0 {
		xoff := r.IntN(c.Buffer)
		c.PFC = &network.PFC{XOff: xoff, XOn: r.IntN(xoff + 1), Headroom: s.headroom()}
		lossless := func(tclass uint8) { c.PFC.Priorities[tclass>>5] = true }
		lossless(s.TClasses[0])
		if r.IntN(2) == 0 {
			for _, t := range s.used() {
				lossless(t)
			}
		}
	}
	if r.IntN(3) == 0 {
		for i := range c.Weights {
			c.Weights[i] = r.IntN(4)
		}
	}
}

// headroom returns the least headroom that suffices for PFC: three packets, and what the cable
// carries in twice its delay.
func (s *Switches) headroom() int {
	n := 0
	for _, l := range s.Topology.Links {
		n = max(n, int(2*l.Delay*l.Rate/8e9))
	}
	return max(network.MaxSize, n+3*(4096+packet.EthernetLen+frameOverhead+packet.MaxHeaderLen))
}

// used returns the traffic classes of all packets, those of CNPs included.
func (s *Switches) used() []uint8 {
	l := slices.Clone(s.TClasses)
	if s.Congestion.Algorithm != congestion.None {
		l = append(l, uint8(s.Congestion.CNPDSCP)<<2)
	}
	return l
}

// lossless reports whether switches may drop nothing: all priorities that are used have PFC, and
// no cable fails.
func (s *Switches) lossless() bool {
	pfc := s.Topology.Switch.PFC
	return pfc != nil && len(s.Failures) == 0 && !slices.ContainsFunc(s.used(), func(t uint8) bool { return !pfc.Priorities[t>>5] })
}

// drawFailures draws failures of some cables and switches, one of each at most.
func (s *Switches) drawFailures(r *rand.Rand) {
	links := r.Perm(len(s.Topology.Links))
	for i := range min(1+r.IntN(3), len(links)) {
		f := network.Failure{Kind: network.LinkDown, Link: links[i], Start: r.Int64N(1e6)}
		switch r.IntN(4) {
		case 0:
			f.Kind, f.Probability = network.Loss, r.Float64()*0.1
		case 1:
			f.Kind, f.Node = network.ECNOff, i // the first nodes are switches
			if !s.Topology.Nodes[i].Switch {
				continue
			}
		}
		f.End = f.Start + 1 + r.Int64N(1<<(10+r.IntN(17)))
		s.Failures = append(s.Failures, f)
	}
}

// acyclic reports whether a PFC deadlock is impossible. Where a cable of a network with several
// paths is down, packets take paths that can be part of a circle.
func (s *Switches) acyclic() bool {
	down := slices.ContainsFunc(s.Failures, func(f network.Failure) bool { return f.Kind == network.LinkDown })
	return !s.Cyclic && (!down || len(s.Topology.Links) < len(s.Topology.Nodes))
}

// withoutFailures returns s without failures.
func (s *Switches) withoutFailures() *Switches {
	if s == nil {
		return nil
	}
	c := *s
	c.Failures = nil
	return &c
}

// withoutDrops returns s with PFC for all priorities.
func (s *Switches) withoutDrops() *Switches {
	if s == nil {
		return nil
	}
	c := *s
	pfc := network.PFC{XOff: c.Topology.Switch.Buffer / 4, XOn: c.Topology.Switch.Buffer / 8}
	if c.Topology.Switch.PFC != nil {
		pfc = *c.Topology.Switch.PFC
	}
	pfc.Headroom = c.headroom()
	for i := range pfc.Priorities {
		pfc.Priorities[i] = true
	}
	c.Topology.Switch.PFC = &pfc
	return &c
}

// tclass draws a traffic class; 0 without switches.
func (sim *simulation) tclass(r *rand.Rand) uint8 {
	if sim.network == nil {
		return 0
	}
	l := sim.profile.Switches.TClasses
	return l[r.IntN(len(l))]
}
