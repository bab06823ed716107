package fault

import (
	"net/netip"
	"slices"
	"time"

	"softroce/packet"
)

// PacketInfo is what rules know of a packet.
type PacketInfo struct {
	Direction Direction
	Src, Dst  netip.Addr
	Len       int           // bytes from BTH to pad
	FrameLen  int           // bytes of the Ethernet frame, without FCS
	Header    packet.Header // set by Parse

	hasBTH, complete bool // what Parse found
}

// Parse sets Header from the first bytes of a packet, as far as they hold a header.
func (p *PacketInfo) Parse(head []byte) {
	p.hasBTH, p.complete = len(head) >= packet.BTHLen, false
	if !p.hasBTH {
		p.Header.BTH = packet.BTH{}
		return
	}
	_, err := p.Header.Parse(head)
	p.complete = err == nil
}

// matches reports whether a packet meets the conditions of r, at a time since Evaluator.Begin.
func (r *Rule) matches(p *PacketInfo, since time.Duration) bool {
	switch {
	case r.Direction != 0 && r.Direction&p.Direction == 0,
		since < r.From,
		r.Until != 0 && since >= r.Until,
		r.Src.IsValid() && !r.Src.Contains(p.Src),
		r.Dst.IsValid() && !r.Dst.Contains(p.Dst),
		r.needsBTH() && !p.hasBTH,
		!r.Opcodes.empty() && !r.Opcodes.has(p.Header.Opcode),
		len(r.QPs) != 0 && !slices.Contains(r.QPs, p.Header.DestQP),
		len(r.PSNs) != 0 && !r.matchesPSN(p.Header.PSN),
		r.Syndrome != 0 && !r.matchesSyndrome(p),
		r.Action == Set && !r.Field.in(p.Header.Opcode):
		return false
	}
	return r.Match == nil || r.Match(&p.Header)
}

func (r *Rule) needsBTH() bool {
	return !r.Opcodes.empty() || len(r.QPs) != 0 || len(r.PSNs) != 0 || r.Syndrome != 0 || r.Match != nil ||
		r.Action == Set
}

func (r *Rule) matchesPSN(psn uint32) bool {
	for _, p := range r.PSNs {
		if p.contains(psn) {
			return true
		}
	}
	return false
}

// matchesSyndrome reports whether an ACKNOWLEDGE is of one of the rule's classes. Other packets
// match.
func (r *Rule) matchesSyndrome(p *PacketInfo) bool {
	if p.Header.Opcode.Info().Kind != packet.KindAck {
		return true
	}
	if !p.complete {
		return false
	}
	switch syn := p.Header.AETH.Syndrome; {
	case syn.IsACK():
		return r.Syndrome&SyndromeACK != 0
	case syn.IsRNR():
		return r.Syndrome&SyndromeRNR != 0
	case syn.IsNAK():
		return r.Syndrome&SyndromeNAK != 0
	}
	return false
}
