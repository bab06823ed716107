package conversation

import "softroce/capture"

// A capture of several interfaces may hold a packet once for each: where it was sent and where it
// was received, or on both sides of a bridge. These are views of one packet, of which the first is
// judged: it was captured before anything that the packet caused. The interfaces of a capture
// belong to one network, and share a clock.

// maxViews bounds the packets whose views are remembered; twice as many for a short time.
const maxViews = 1 << 16

// Views recognizes packets that were captured before on another interface. It reads one packet at a
// time, in bounded memory.
//
// Views have the same ICRC, which covers all that the network does not change. A sender that does
// not number its packets sends the same packet again where it retransmits: the n-th on one
// interface is a view of the n-th on another.
type Views struct {
	alone       []viewKey       // the newest packets, while all are of one interface: there are no views among them
	seen, older map[viewKey]int // how often, once there are two interfaces; older is the generation before
}

// A viewKey is what the views of a packet have in common, and the interface.
type viewKey struct {
	icrc, qpn, psn uint32
	id             uint16
	iface          int // anyInterface: the most of all interfaces
}

const anyInterface = -1

// NewViews returns Views that have seen no packet.
func NewViews() *Views { return &Views{} }

// IsAnother reports whether the next packet of the capture is another view of one before.
func (v *Views) IsAnother(p *capture.Packet) bool {
	k := viewKey{p.ICRC(), p.DestQP, p.PSN, p.ID, p.Interface}
	if v.seen == nil {
		if len(v.alone) == 0 || v.alone[0].iface == k.iface {
			if len(v.alone) == 2*maxViews {
				v.alone = v.alone[:copy(v.alone, v.alone[maxViews:])]
			}
			v.alone = append(v.alone, k)
			return false
		}
		v.seen = map[viewKey]int{}
		for _, k := range v.alone {
			v.add(k)
		}
		v.alone = nil
	}
	return v.add(k)
}

// add counts a packet, and reports whether it is another view.
func (v *Views) add(k viewKey) bool {
	n := v.count(k) + 1
	v.seen[k] = n
	k.iface = anyInterface
	if n <= v.count(k) {
		return true
	}
	if len(v.seen) >= 2*maxViews {
		v.older, v.seen = v.seen, map[viewKey]int{}
	}
	v.seen[k] = n
	return false
}

func (v *Views) count(k viewKey) int {
	if n, ok := v.seen[k]; ok {
		return n
	}
	return v.older[k]
}
