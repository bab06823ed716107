package check

import (
	"net/netip"

	"softroce/internal/conversation"
)

// recentReplies is how many of a flow's newest replies may still have a copy in the network.
const recentReplies = 32

// An arrivalOrder distinguishes late packets of a flow, and copies made by the network, from
// retransmissions: see conversation.Identifications. It keeps the newest replies only, where replay
// sorts all packets before it looks for copies.
type arrivalOrder struct {
	ids    conversation.Identifications
	recent [recentReplies]conversation.Fingerprint
	next   int
}

func (p *judgedPacket) fingerprint() conversation.Fingerprint {
	return conversation.FingerprintOf(p.Packet)
}

// isCopyOf reports whether p is certainly a copy of the packet of f.
func (p *judgedPacket) isCopyOf(f conversation.Fingerprint) bool {
	return p.fingerprint().IsCopyOf(f, p.ID != 0)
}

// isDuplicate reports whether p is a copy of one of the newest replies.
func (o *arrivalOrder) isDuplicate(p *judgedPacket) bool {
	for _, f := range o.recent {
		if !f.IsZero() && p.isCopyOf(f) {
			return true
		}
	}
	o.recent[o.next%len(o.recent)] = p.fingerprint()
	o.next++
	return false
}

// lateness returns the lateness of p, the next packet of the flow.
func (o *arrivalOrder) lateness(p *judgedPacket) conversation.Lateness {
	if p.ID == 0 {
		return conversation.LatenessUnknown
	}
	_, l := o.ids.Add(p.Packet)
	if l == conversation.OnTime && !o.ids.CountUp() {
		return conversation.LatenessUnknown
	}
	return l
}

// An identifications follows the Identifications of all packets between each two hosts.
type identifications map[hostPair]*counter

type hostPair struct{ src, dst netip.Addr }

// maxCounters bounds the pairs of hosts whose Identifications are followed.
const maxCounters = 1 << 16

// A counter is the Identifications of packets from one host to another.
type counter struct {
	packets int
	newest  uint16
	broken  int // the last packet whose Identification is not one more than that before
}

// add follows the Identification of p, the next packet of the capture.
func (ids identifications) add(p *judgedPacket) {
	k := hostPair{p.Src, p.Dst}
	c := ids[k]
	if c == nil {
		if len(ids) == maxCounters {
			return
		}
		c = &counter{}
		ids[k] = c
	}
	c.packets++
	if p.ID != c.newest+1 {
		c.broken = c.packets
	}
	c.newest = p.ID
	p.counter, p.counted = c, c.packets
}

// nothingBetween reports whether the sender of p certainly sent no packet between the counted-th
// one and p that the capture lacks: all Identifications since then are consecutive.
func (p *judgedPacket) nothingBetween(c *counter, counted int) bool {
	return p.counter != nil && p.counter == c && c.broken <= counted
}
