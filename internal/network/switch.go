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
func (n *Network) admit(in *Port, e *entry) {
	c, s := &n.topology.Switch, in.node
	out := n.route(s, e)
	if out == nil {
		n.loseTo(e, s.cutBy[n.exits[e.dst].at])
		return
	}
	k, size := &in.classes[e.priority], int(e.size)
	lossless := c.PFC != nil && c.PFC.Priorities[e.priority]
	shared := s.used+size <= c.Buffer
	switch {
	case lossless && (k.xoff || !shared):
		if k.headroom+size > c.PFC.Headroom {
			n.drop(out, e)
			return
		}
		k.headroom += size
	case !shared, !lossless && out.classes[e.priority].bytes+size > c.Queue:
		n.drop(out, e)
		return
	default:
		s.used += size
	}
	e.from = in.index
	k.held += size
	if lossless && !k.xoff && (k.held > c.PFC.XOff || !shared) {
		n.sendPause(in, e.priority, true)
	}
	n.enqueue(out, e)
}

func (n *Network) drop(at *Port, e *entry) {
	at.stats.Dropped++
	n.discard(e)
}

// mark marks a frame that leaves a queue of a switch, in which the others are left.
func (n *Network) mark(p *Port, e *entry) {
	c := n.topology.Switch.ECN
	if c == nil || e.flags&(flagECT|flagCE) != flagECT || e.from == none {
		return
	}
	chance := c.chance(p.classes[e.priority].bytes+int(e.size), p.Rate)
	if chance > 0 && (chance >= 1 || n.rnd.Float64() < chance) {
		if by := p.node.unmarkedBy; by != nil {
			by.stats.Unmarked++
			return
		}
		e.flags |= flagCE
		p.stats.Marked++
	}
}

func (n *Network) enqueue(out *Port, e *entry) {
	out.account(n.now)
	k := &out.classes[e.priority]
	k.queue.push(e)
	k.bytes += int(e.size)
	out.queued |= 1 << e.priority
	out.bytes += int(e.size)
	out.peak = max(out.peak, out.bytes)
	n.transmit(out)
}

// leave releases the room that a frame has occupied in a switch, that of the headroom first. A
// pause ends when the headroom is empty: the next pause needs all of it again.
func (n *Network) leave(s *node, e *entry) {
	in, size := &n.slab[e.from], int(e.size)
	k := &in.classes[e.priority]
	headroom := min(size, k.headroom)
	k.headroom -= headroom
	s.used -= size - headroom
	e.from = none
	k.held -= size
	if k.xoff && k.headroom == 0 && k.held <= n.topology.Switch.PFC.XOn {
		n.sendPause(in, e.priority, false)
	}
}

// sendPause sends a pause frame. A pause lasts until it is ended: the model leaves out the frames
// by which a switch prolongs it.
func (n *Network) sendPause(p *Port, priority uint8, xoff bool) {
	p.classes[priority].xoff = xoff
	e := entry{from: none, size: pauseSize, priority: priority, flags: flagPause}
	if xoff {
		e.flags |= flagXOff
	}
	p.control.push(&e)
	p.urgent = true
	n.transmit(p)
}

// route returns the port by which a frame leaves a switch, nil if failures have left no path.
func (n *Network) route(s *node, e *entry) *Port {
	to := &n.exits[e.dst]
	if int(to.at) == s.index {
		return to.port
	}
	return s.choose(s.ways[s.way[to.number]], e.hash)
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
