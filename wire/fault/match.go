package fault

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"softroce/internal/ib"
	"softroce/packet"
)

// PacketInfo is what rules know of a packet.
type PacketInfo struct {
	Direction Direction
	Network   packet.Network
	Src, Dst  netip.Addr
	Len       int           // bytes from BTH to pad
	FrameLen  int           // bytes of the Ethernet frame, without FCS
	Header    packet.Header // set by Parse

	// QPN is the queue pair of the NIC that sends or receives the packet, 0 if there is none. Owner
	// returns the program whose queue pair that is, 0 if there is none; nil: it is not known.
	QPN   uint32
	Owner func(qpn uint32) (pid int, comm string)

	hasBTH, complete bool           // what Parse found
	message          ib.CMAttribute // of the connection manager; 0: none
}

// Parse sets Header from the first bytes of a packet, as far as they hold a header. payload is what
// follows head, as far as it is available.
func (p *PacketInfo) Parse(head, payload []byte) {
	p.hasBTH, p.complete, p.message = len(head) >= packet.BTHLen, false, 0
	if !p.hasBTH {
		p.Header.BTH = packet.BTH{}
		return
	}
	n, err := p.Header.Parse(head)
	if p.complete = err == nil; p.complete && p.Header.DestQP == ib.GSIQPN {
		if n < len(head) {
			payload = head[n:]
		}
		p.message = cmMessage(payload)
	}
}

// cmMessage returns the message of the connection manager that a MAD is, 0 if it is none. The
// common MAD header has the class in its second byte, and the attribute ID in bytes 16 and 17 (IBTA
// 13.4.2).
func cmMessage(mad []byte) ib.CMAttribute {
	if len(mad) < 18 || mad[1] != ib.ClassCM {
		return 0
	}
	return ib.CMAttribute(binary.BigEndian.Uint16(mad[16:]))
}

// matches reports whether a packet meets the conditions of r, at a time since Evaluator.Begin.
func (r *Rule) matches(p *PacketInfo, since time.Duration) bool {
	switch {
	case r.Direction != 0 && r.Direction&p.Direction == 0,
		since < r.From,
		r.Until != 0 && since >= r.Until,
		r.Src.IsValid() && !r.Src.Contains(p.Src),
		r.Dst.IsValid() && !r.Dst.Contains(p.Dst),
		r.RoCE != 0 && r.RoCE != roceVersion(p.Network),
		r.Action == Mark && p.Network != packet.RoCEv2,
		r.Bit > 8*(p.Len+packet.ICRCLen),
		r.needsBTH() && !p.hasBTH,
		!r.Opcodes.empty() && !r.Opcodes.has(p.Header.Opcode),
		len(r.QPs) != 0 && !slices.Contains(r.QPs, p.Header.DestQP),
		len(r.PSNs) != 0 && !r.matchesPSN(p.Header.PSN),
		len(r.Messages) != 0 && !slices.Contains(r.Messages, p.message),
		r.Syndrome != 0 && !r.matchesSyndrome(p),
		r.Action == Set && !r.Field.in(p.Header.Opcode),
		len(r.Clients) != 0 && !p.isOf(r.Clients):
		return false
	}
	return r.Match == nil || r.Match(&p.Header)
}

// roceVersion returns the version of RoCE, 0 for InfiniBand.
func roceVersion(n packet.Network) uint8 {
	switch n {
	case packet.RoCEv1:
		return 1
	case packet.RoCEv2:
		return 2
	}
	return 0
}

// isOf reports whether the packet is one of these programs.
func (p *PacketInfo) isOf(clients []string) bool {
	if p.Owner == nil {
		return false
	}
	pid, comm := p.Owner(p.QPN)
	return pid != 0 && isClient(clients, pid, comm)
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
