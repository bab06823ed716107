package network

import "math/rand/v2"

// A FailureKind is what fails.
type FailureKind uint8

const (
	LinkDown FailureKind = iota // a cable carries nothing, in either direction
	Loss                        // a cable loses frames at random, in both directions
	ECNOff                      // a switch does not mark
)

// A Failure is something that does not work for a time.
type Failure struct {
	Kind        FailureKind
	Link        int     // LinkDown and Loss: index in Topology.Links
	Node        int     // ECNOff: index of the switch in Topology.Nodes
	Probability float64 // Loss: of each frame
	Start, End  int64   // ns; End is 0 if it lasts forever
}

// FailureStats are what a failure has done.
type FailureStats struct {
	Frames, Bytes uint64 // lost, pause frames included
	Unmarked      uint64 // frames that would have been marked
}

// A failure is a Failure and what it has done.
type failure struct {
	Failure
	active bool
	stats  FailureStats
}

// A fault is what failures do to the cable at a port. A nil fault does nothing.
type fault struct {
	downBy, lossBy *failure
	cutBy          *failure // the cable was down while the port was sending what it is sending
}

func (c *fault) isDown() bool { return c != nil && c.downBy != nil }

// loses reports whether the frame that is being sent does not get through.
func (c *fault) loses() bool { return c != nil && (c.downBy != nil || c.cutBy != nil) }

// Fail makes a failure occur. It begins no earlier than now, and does not overlap another one of
// its kind at the same cable or switch.
//
// When a cable goes down, what is on it is lost, and so is what the ports at its ends send from
// then on, at their rate: their queues do not block. Pauses end, as they do when a link is
// established again. Switches use other shortest paths at once, if there are any.
//
// Pause frames are not lost at random, since the model leaves out that a switch repeats them.
func (n *Network) Fail(f Failure) {
	i := int32(events * (len(n.ports) + len(n.failures)))
	n.events.Grow(events)
	n.failures = append(n.failures, &failure{Failure: f})
	if f.Kind == LinkDown || f.Kind == Loss {
		for _, p := range n.ends(f.Link) {
			if p.fault == nil {
				p.fault = new(fault)
			}
		}
	}
	if n.chance == nil {
		n.chance = rand.New(rand.NewPCG(n.seed, 2))
	}
	n.events.Set(i, max(f.Start, n.now, 1))
	if f.End != 0 {
		n.events.Set(i+1, max(f.End, n.now, 1))
	}
}

// FailureStats returns what the failures have done, in the order in which they were added.
func (n *Network) FailureStats() (l []FailureStats) {
	for _, f := range n.failures {
		l = append(l, f.stats)
	}
	return l
}

// ends returns the ports of a link.
func (n *Network) ends(link int) []*Port { return n.ports[2*link : 2*link+2] }

// change makes a failure begin or end.
func (n *Network) change(f *failure, begins bool) {
	if begins {
		n.fail(f)
	} else {
		n.mend(f)
	}
}

func (n *Network) fail(f *failure) {
	f.active = true
	switch f.Kind {
	case LinkDown:
		for _, p := range n.ends(f.Link) {
			n.cut(p, f)
		}
		n.reroute(f)
	case Loss:
		for _, p := range n.ends(f.Link) {
			p.fault.lossBy = f
		}
	case ECNOff:
		n.nodes[f.Node].unmarkedBy = f
	}
}

func (n *Network) mend(f *failure) {
	f.active = false
	switch f.Kind {
	case LinkDown:
		for _, p := range n.ends(f.Link) {
			p.fault.downBy = nil
			if p.sending.size != 0 { // its beginning did not get through
				p.fault.cutBy = f
			}
		}
		n.reroute(f)
	case Loss:
		for _, p := range n.ends(f.Link) {
			p.fault.lossBy = nil
		}
	case ECNOff:
		n.nodes[f.Node].unmarkedBy = nil
	}
}

// cut takes the cable away at which p is.
func (n *Network) cut(p *Port, f *failure) {
	p.fault.downBy = f
	if p.sending.size != 0 {
		p.fault.cutBy = f
	}
	for p.flight.n > 0 {
		e := p.flight.pop()
		n.lose(p, &e, f)
	}
	p.control, p.urgent = queue{}, false
	p.countPause(n.now)
	p.paused = 0
	n.ready(p.node)
	for i := range p.classes {
		p.classes[i].xoff = false
	}
	n.transmit(p)
}

// loser returns the failure to which a frame is lost that p has sent, nil if it is not lost.
func (n *Network) loser(p *Port, e *entry) *failure {
	c := p.fault
	if c == nil {
		return nil
	}
	if by := c.cutBy; by != nil {
		c.cutBy = nil
		return by
	}
	if c.downBy == nil && c.lossBy != nil && !e.is(flagPause) && n.chance.Float64() < c.lossBy.Probability {
		return c.lossBy
	}
	return c.downBy
}

// lose drops a frame on the cable that begins at p.
func (n *Network) lose(p *Port, e *entry, to *failure) {
	p.stats.Lost++
	n.loseTo(e, to)
}

func (n *Network) loseTo(e *entry, to *failure) {
	to.stats.Frames++
	to.stats.Bytes += uint64(e.size)
	n.discard(e)
}

// reroute finds the paths between switches again when f has begun or ended.
func (n *Network) reroute(f *failure) {
	down := f
	for _, o := range n.failures {
		if o.Kind == LinkDown && o.active {
			down = o
		}
	}
	n.findRoutes()
	for _, s := range n.nodes {
		before := s.cutBy
		s.cutBy = make([]*failure, len(n.nodes))
		for to := range n.nodes {
			switch {
			case s.nic >= 0 || n.nodes[to].nic >= 0 || s.index == to || len(s.next[to]) > 0:
			case before != nil && before[to] != nil && before[to].active:
				s.cutBy[to] = before[to]
			case f.active:
				s.cutBy[to] = f
			default:
				s.cutBy[to] = down
			}
		}
	}
}
