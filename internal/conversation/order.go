package conversation

import (
	"cmp"
	"slices"

	"softroce/capture"
)

// The network delays and duplicates packets. The IPv4 Identification distinguishes such packets
// from retransmissions: many senders increment it with every packet, retransmissions included.

// A Lateness says whether a packet arrived in the order in which its sender sent it.
type Lateness uint8

const (
	LatenessUnknown Lateness = iota // its Identification does not show it
	OnTime
	Late // packets that were sent after it arrived before it
)

const (
	// maxLateIDs is by how much the Identification of a reordered packet may be behind the newest.
	// Larger steps back are wraps, or random.
	maxLateIDs = 1024

	// MinTimeout is the shortest local ACK timeout in nanoseconds: 4.096 µs · 2 (IBTA 9.7.6.1.3).
	MinTimeout = 8192

	// minIdentifications is how many packets are needed to see that Identifications count up.
	minIdentifications = 4
)

// An Identifications follows the IPv4 Identifications of one sender. It reads one packet at a time
// and keeps none. The zero value has seen no packet.
type Identifications struct {
	newest  int64 // unwrapped
	packets int
	up      int  // packets with a newer Identification than all before
	erratic bool // one went back further than reordering explains, or a packet had none
}

// Add returns the unwrapped Identification of the next captured packet, and what it says about the
// packet's lateness. A sender that does not number its packets may set it to zero, which a counter
// passes too: the caller decides whether to add such a packet.
func (ids *Identifications) Add(p *capture.Packet) (id int64, l Lateness) {
	if !p.IsIPv4() {
		ids.erratic = true
		return 0, LatenessUnknown
	}
	ids.packets++
	if ids.packets == 1 {
		ids.newest = int64(p.ID) + 1<<16 // so that older ones are positive
		return ids.newest, OnTime
	}
	id = ids.newest + int64(int16(p.ID-uint16(ids.newest)))
	switch {
	case id == ids.newest:
		return id, LatenessUnknown
	case id > ids.newest:
		ids.up++
	case id >= ids.newest-maxLateIDs:
		return id, Late
	default:
		ids.erratic = true
	}
	ids.newest = id
	return id, OnTime
}

// CountUp reports whether the Identifications so far count up, so that they show the order in which
// all packets were sent.
func (ids *Identifications) CountUp() bool {
	return !ids.erratic && ids.packets >= minIdentifications && 2*ids.up > ids.packets
}

// A Fingerprint is what a packet and a copy of it made by the network have in common.
type Fingerprint struct {
	icrc uint32 // covers all that the network does not change, the IPv4 Identification too
	at   int64  // nanoseconds; 0: no packet
}

// IsZero reports whether f is the fingerprint of no packet.
func (f Fingerprint) IsZero() bool { return f.at == 0 }

// FingerprintOf returns the fingerprint of a packet with a valid ICRC.
func FingerprintOf(p *capture.Packet) Fingerprint {
	return Fingerprint{p.ICRC(), p.Time.UnixNano()}
}

// IsCopyOf reports whether f is a copy, made by the network, of the packet of g. A retransmission
// has another Identification if the sender numbers its packets. If it does not, a copy is what
// arrives in less than the shortest local ACK timeout. A network or a mirror port copies within
// microseconds. A requester repeats the packet that it sent last only after that timeout, or after
// the wait for an RNR NAK, which is longer (IBTA 9.7.5.2.8, 9.7.6.1.3).
func (f Fingerprint) IsCopyOf(g Fingerprint, numbered bool) bool {
	return f.samePacket(g) && (numbered || f.at >= g.at && f.at-g.at < MinTimeout)
}

func (f Fingerprint) samePacket(g Fingerprint) bool { return f.icrc == g.icrc }

// sendOrder returns packets of one sender in the order in which they were sent, without the copies
// that the network made. Where the IPv4 Identification counts up it shows the order, and certain is
// true; otherwise it is the order of the capture.
func sendOrder(captured []*Transmission) (sent []*Transmission, certain bool) {
	order := slices.Clone(captured)
	prints := make(map[*Transmission]Fingerprint, len(captured))
	for _, t := range captured {
		prints[t] = FingerprintOf(t.Packet)
	}
	ids, certain := identifications(captured, prints)
	if certain {
		slices.SortStableFunc(order, func(a, b *Transmission) int { return cmp.Compare(ids[a], ids[b]) })
	}
	for i, t := range order {
		if i > 0 && prints[t].IsCopyOf(prints[order[i-1]], certain) {
			t.Copy = true
			continue
		}
		sent = append(sent, t)
	}
	setSentBefore(sent)
	return sent, certain
}

// setSentBefore sets SentBefore of packets in the order in which they were sent.
func setSentBefore(sent []*Transmission) {
	for i := len(sent) - 2; i >= 0; i-- {
		sent[i].SentBefore = min(sent[i].Index, sent[i+1].SentBefore)
	}
}

// identifications unwraps the IPv4 Identifications of packets, and reports whether they count up
// and different packets have different ones.
func identifications(ts []*Transmission, prints map[*Transmission]Fingerprint) (ids map[*Transmission]int64, certain bool) {
	ids = make(map[*Transmission]int64, len(ts))
	seen := make(map[int64]*Transmission, len(ts))
	var all Identifications
	for _, t := range ts {
		id, _ := all.Add(t.Packet)
		if other := seen[id]; other != nil && !prints[t].samePacket(prints[other]) {
			return nil, false
		}
		ids[t], seen[id] = id, t
	}
	return ids, all.CountUp()
}
