package check

import "softroce/internal/conversation"

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
	return l
}
