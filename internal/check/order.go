package check

// lateness is what can be said of a packet's place among those of its flow.
type lateness uint8

const (
	unknown lateness = iota // no Identification that counts
	onTime
	late // sent before others that came before it
)

// order tells late packets of a flow, and those that were doubled on their way, from
// those that were sent again. The IPv4 Identification does, where it counts upward.
type arrivalOrder struct {
	id     uint16
	known  bool
	recent [32]fingerprint // of the newest replies
	next   int
}

// A mark is what a packet and its double have in common.
type fingerprint struct {
	id   uint16
	icrc uint32
	at   int64
}

func (p *judgedPacket) mark() fingerprint { return fingerprint{p.ID, p.ICRC(), p.at} }

// doubles reports whether m can be told to be the packet of n, doubled: the ICRC covers the
// Identification. Without one, a double is what comes sooner than anything is sent again.
func (m fingerprint) isCopyOf(n fingerprint) bool {
	return m.icrc == n.icrc && m.id == n.id && (m.id != 0 || m.at >= n.at && m.at-n.at < minTimeout)
}

// doubled reports whether p is the double of one of the newest replies.
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

// late places p, and remembers it.
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
