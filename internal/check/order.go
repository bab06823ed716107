package check

// lateness is whether a packet arrived in the order in which its flow was sent.
type lateness uint8

const (
	unknown lateness = iota // the Identification does not count up
	onTime
	late // packets that were sent after it arrived before it
)

// An arrivalOrder distinguishes late packets of a flow, and copies made by the network, from
// retransmissions, by the IPv4 Identification where it counts up.
type arrivalOrder struct {
	id     uint16
	known  bool
	recent [32]fingerprint // of the newest replies
	next   int
}

// A fingerprint is what a packet and a copy of it made by the network have in common.
type fingerprint struct {
	id   uint16
	icrc uint32
	at   int64
}

func (p *judgedPacket) mark() fingerprint { return fingerprint{p.ID, p.ICRC(), p.at} }

// isCopyOf reports whether m is certainly a copy of the packet of n. The ICRC covers the
// Identification. Where that is zero, a copy is a packet that arrives sooner than a retransmission
// can.
func (m fingerprint) isCopyOf(n fingerprint) bool {
	return m.icrc == n.icrc && m.id == n.id && (m.id != 0 || m.at >= n.at && m.at-n.at < minTimeout)
}

// doubled reports whether p is a copy of one of the newest replies.
func (o *arrivalOrder) doubled(p *judgedPacket) bool {
	m := p.mark()
	for _, n := range o.recent {
		if n.at != 0 && m.isCopyOf(n) {
			return true
		}
	}
	o.recent[o.next%len(o.recent)] = m
	o.next++
	return false
}

// late returns the lateness of p, the next packet of the flow.
func (o *arrivalOrder) late(p *judgedPacket) lateness {
	if !p.Src.Is4() || p.ID == 0 {
		return unknown
	}
	if !o.known {
		o.id, o.known = p.ID, true
		return onTime
	}
	switch d := int16(p.ID - o.id); {
	case d == 0:
		return unknown
	case d < 0 && d >= -maxLateIDs:
		return late
	}
	o.id = p.ID
	return onTime
}
