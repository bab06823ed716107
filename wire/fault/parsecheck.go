package fault

import (
	"slices"

	"softroce/internal/ib"
	"softroce/packet"
)

// check reports mistakes that only the whole rule shows: that it cannot match a packet, or cannot
// change one that it matches.
func (p *parser) check(r *Rule) {
	restricted := slices.Contains(p.clauses, "opcode") || slices.Contains(p.clauses, "kind")
	if restricted && r.Opcodes.empty() {
		p.fail("", "no packet meets all of opcode, kind and syndrome")
	}
	if r.Action == Stall && r.Until == 0 {
		p.fail("", "stall needs the time when it ends, such as time 5s..7s or time ..2s")
	}
	if r.Action == Mark && r.RoCE == 1 {
		p.fail("", "packets of RoCE v1 have no ECN bits to mark")
	}
	if r.Src.IsValid() && r.Dst.IsValid() && r.Src.Addr().Is4() != r.Dst.Addr().Is4() {
		p.fail(r.Dst.String(), "no packet has a source in %v and such a destination: one is IPv4, the other IPv6", r.Src)
	}
	opcodes := r.Opcodes
	if len(r.Messages) > 0 {
		const datagram = packet.Opcode(packet.UD) | packet.SendOnly
		switch {
		case restricted && !opcodes.has(datagram):
			p.fail("", "messages of the connection manager have opcode %v", datagram)
		case len(r.QPs) > 0 && !slices.Contains(r.QPs, ib.GSIQPN):
			p.fail("", "messages of the connection manager are for QP %d", ib.GSIQPN)
		case len(r.Clients) > 0:
			p.fail("", "messages of the connection manager are of no client")
		}
		opcodes = Opcodes(datagram)
	}
	if r.Action == Set && !opcodes.empty() && !opcodes.any(r.Field.in) {
		p.fail("", "packets of opcode %v have no %v", opcodes, r.Field)
	}
	p.checkSelection(&r.Selection)
}

// checkSelection reports a selection that picks nothing.
func (p *parser) checkSelection(s *Selection) {
	if len(s.Nth) > 0 && s.Every > 0 && !slices.ContainsFunc(s.Nth, func(n uint64) bool { return n%s.Every == 0 }) {
		p.fail("", "no number of nth is a multiple of %d, as every demands", s.Every)
	}
}
