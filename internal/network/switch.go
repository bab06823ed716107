package network

import "softroce/packet"

// A SwitchConfig is the configuration of all switches of a network. Sizes are in bytes.
type SwitchConfig struct {
	Buffer  int                    // shared by all queues of a switch
	Queue   int                    // the longest queue of a port and priority without PFC
	ECN     *ECN                   // nil: nothing is marked
	PFC     *PFC                   // nil: nothing is paused
	Weights [packet.Priorities]int // in the schedule; 0: the priority precedes all that have one
}

// ECN says which frames are marked: none that leave a queue of up to Kmin, all beyond Kmax, and
// between them a share that grows from 0 to Pmax. A frame that leaves carries the news of what has
// joined the queue behind it, which does not wait in the queue itself.
//
// With a Rate, Kmin and Kmax are those of ports of that rate, in b/s, and in proportion to their
// rates those of others.
type ECN struct {
	Kmin, Kmax int
	Pmax       float64
	Rate       int64
}

// PFC is priority flow control, of the priorities that are lossless. A port whose frames of a
// priority occupy more than XOff pauses its peer, until they occupy XOn or less and no headroom.
// Headroom, which each port has for each priority, takes what arrives meanwhile.
type PFC struct {
	Priorities          [packet.Priorities]bool
	XOff, XOn, Headroom int
}

// chance returns the chance that a frame is marked that leaves a queue, itself included, of a port
// with a rate.
func (e *ECN) chance(queue int, rate int64) float64 {
	if e.Rate != 0 {
		queue = int(float64(queue) * float64(e.Rate) / float64(rate))
	}
	switch {
	case queue <= e.Kmin:
		return 0
	case queue > e.Kmax:
		return 1
	}
	return e.Pmax * float64(queue-e.Kmin) / float64(e.Kmax-e.Kmin)
}

// admit puts a frame that arrived at a port of a switch in a queue, or drops it.
func (n *Network) admit(in *Port, f *Frame) {
	c, s := &n.topology.Switch, in.node
	out := n.route(s, f)
	if out == nil {
		n.loseTo(f, s.cutBy[n.exits[f.Dst].at])
		return
	}
	q, g := &out.queues[f.Priority], &in.ingress[f.Priority]
	lossless := c.PFC != nil && c.PFC.Priorities[f.Priority]
	shared := s.used+f.Size <= c.Buffer
	switch {
	case lossless && (g.xoff || !shared):
		if g.headroom+f.Size > c.PFC.Headroom {
			n.drop(out, f)
			return
		}
		g.headroom += f.Size
	case !shared, !lossless && q.bytes+f.Size > c.Queue:
		n.drop(out, f)
		return
	default:
		s.used += f.Size
	}
	f.arrived = in
	g.bytes += f.Size
	if lossless && !g.xoff && (g.bytes > c.PFC.XOff || !shared) {
		n.sendPause(in, f.Priority, true)
	}
	n.enqueue(out, f)
}

func (n *Network) drop(at *Port, f *Frame) {
	at.stats.Dropped++
	n.discard(f)
}

// mark marks a frame that leaves a queue of a switch, in which the others are left.
func (n *Network) mark(p *Port, f *Frame) {
	e := n.topology.Switch.ECN
	if e == nil || !f.ECT || f.CE || f.arrived == nil {
		return
	}
	chance := e.chance(p.queues[f.Priority].bytes+f.Size, p.Rate)
	if chance > 0 && (chance >= 1 || n.rnd.Float64() < chance) {
		if by := p.node.unmarkedBy; by != nil {
			by.stats.Unmarked++
			return
		}
		f.CE = true
		p.stats.Marked++
	}
}

func (n *Network) enqueue(out *Port, f *Frame) {
	out.account(n.now)
	out.queues[f.Priority].push(f)
	out.queued |= 1 << f.Priority
	out.bytes += f.Size
	out.stats.MaxQueue = max(out.stats.MaxQueue, out.bytes)
	out.peak = max(out.peak, out.bytes)
	n.transmit(out)
}

// leave releases the room that a frame has occupied in a switch, that of the headroom first. A
// pause ends when the headroom is empty: the next pause needs all of it again.
func (n *Network) leave(s *node, f *Frame) {
	in := f.arrived
	g := &in.ingress[f.Priority]
	headroom := min(f.Size, g.headroom)
	g.headroom -= headroom
	s.used -= f.Size - headroom
	f.arrived = nil
	g.bytes -= f.Size
	if g.xoff && g.headroom == 0 && g.bytes <= n.topology.Switch.PFC.XOn {
		n.sendPause(in, f.Priority, false)
	}
}

// sendPause sends a pause frame. A pause lasts until it is ended: the model leaves out the frames
// by which a switch prolongs it.
func (n *Network) sendPause(p *Port, priority uint8, xoff bool) {
	p.ingress[priority].xoff = xoff
	f := n.Frame()
	f.Size, f.Priority, f.Pause, f.XOff = pauseSize, priority, true, xoff
	p.control.push(f)
	n.transmit(p)
}

// route returns the port by which a frame leaves a switch, nil if failures have left no path.
func (n *Network) route(s *node, f *Frame) *Port {
	to := &n.exits[f.Dst]
	if int(to.at) == s.index {
		return to.port
	}
	return s.choose(s.next[to.at], f.Hash)
}

// choose returns one of the ports for a flow, nil if there is none.
func (s *node) choose(hops []*Port, hash uint32) *Port {
	switch len(hops) {
	case 0:
		return nil
	case 1:
		return hops[0]
	}
	return hops[mix(hash^s.salt)%uint32(len(hops))]
}

// mix spreads the bits of a hash (the finalizer of MurmurHash3).
func mix(h uint32) uint32 {
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}
