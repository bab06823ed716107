package conversation

import "softroce/packet"

// A Part is a packet as a part of a message. It does not hold the packet, so that many can be kept
// in bounded memory.
//
// The judges group parts in different ways. Replay has the whole stream and assembles its messages
// in the order of PSNs (message.go). Check judges each part once, at its arrival, by the parts that
// it has next to it on either side: a missing part may never arrive, and check cannot keep those
// after it until the end. If check grouped in the order of PSNs too, it would find fault with
// another packet wherever packets are reordered.
type Part struct {
	Info    *packet.Info
	Seq     int64 // unwrapped PSN
	NumPSNs int64 // PSNs that it takes; 0: it is a READ and the path MTU is not known
	AckReq  bool
}

// NewPart returns the packet with a header and an unwrapped PSN. See ReadPSNs for the path MTU.
func NewPart(h *packet.Header, seq int64, mtu, atLeast int) Part {
	p := Part{Info: h.Opcode.Info(), Seq: seq, NumPSNs: 1, AckReq: h.AckReq}
	if p.Info.Kind == packet.KindRead {
		p.NumPSNs = ReadPSNs(h.RETH.Length, mtu, atLeast)
	}
	return p
}

// ReadPSNs returns the number of PSNs that a READ of length bytes takes. If mtu is 0 the path MTU
// is only known to be atLeast as large; then ReadPSNs returns 0 for a READ that may take more than
// one.
func ReadPSNs(length uint32, mtu, atLeast int) int64 {
	switch {
	case mtu != 0:
		return int64(packet.PSNCount(length, mtu))
	case int64(length) <= int64(atLeast):
		return 1
	}
	return 0
}

// End returns the unwrapped PSN after the part's last, as far as it is known.
func (p *Part) End() int64 { return p.Seq + max(p.NumPSNs, 1) }

// ExpectsReply reports whether a responder has to reply to the part of a reliable service.
func (p *Part) ExpectsReply() bool { return p.AckReq || p.Info.Kind.HasOwnResponse() }

// Adjoins reports whether the PSNs of next certainly begin where those of p end.
func (p *Part) Adjoins(next *Part) bool { return p.NumPSNs != 0 && p.End() == next.Seq }

// ContinuedBy reports whether next may follow p as the next packet of the same message.
func (p *Part) ContinuedBy(next *Part) bool {
	return !p.Info.Position.EndsMessage() && !next.Info.Position.StartsMessage() && p.Info.Kind == next.Info.Kind
}

// FollowedBy reports whether next may follow p: as the next packet of the same message, or as the
// first packet of the next one.
func (p *Part) FollowedBy(next *Part) bool {
	return p.ContinuedBy(next) || p.Info.Position.EndsMessage() && next.Info.Position.StartsMessage()
}
