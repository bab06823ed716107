package capture

import (
	"fmt"
	"time"

	"softroce/packet"
)

// AppendShort appends a line of text that is shorter than that of AppendText, without a newline:
// number, seconds since start, addresses, and what distinguishes the packet from others of its
// connection. Values are named as in filters: see ParseFilter. Fields that usually never change are
// shown if they have another value: the P_Key, ECN, a VLAN, reserved bits, and the ICRC if it is
// wrong.
func (p *Packet) AppendShort(b []byte, start time.Time) []byte {
	b = fmt.Appendf(b, "%d %s %v > %v qp %#x psn %d %v", p.No, seconds(p.Time.Sub(start)), p.Src, p.Dst, p.DestQP, p.PSN, p.Opcode)
	if p.Err == nil {
		b = p.appendShortExtended(b)
	}
	for _, f := range []struct {
		shown bool
		text  string
	}{
		{p.AckReq, "ack_req"}, {p.Solicited, "se"}, {p.FECN, "fecn"}, {p.BECN, "becn"}, {p.IsCE(), "ce"},
		{p.TVer != 0, fmt.Sprintf("tver %d", p.TVer)}, {p.PKey != packet.DefaultPKey, fmt.Sprintf("pkey %#04x", p.PKey)},
		{p.Reserved6 != 0, fmt.Sprintf("resv6 %#x", p.Reserved6)}, {p.Reserved7 != 0, fmt.Sprintf("resv7 %#x", p.Reserved7)},
		{p.Tagged, fmt.Sprintf("vlan %d", p.TCI&0xfff)}, {p.MayFragment, "df 0"},
		{p.Network == packet.RoCEv1, "RoCE v1"}, {p.Network == packet.InfiniBand && p.HasGRH(), fmt.Sprintf("lid %d > %d", p.LRH.SLID, p.LRH.DLID)}, {p.LRH.SL != 0, fmt.Sprintf("sl %d", p.LRH.SL)},
		{p.Cut, "cut"}, {!p.Cut && !p.ICRCOK(), "ICRC BAD"}, {!p.Cut && !p.VCRCOK(), "VCRC BAD"},
		{p.Err != nil, fmt.Sprintf("error %q", fmt.Sprint(p.Err))},
	} {
		if f.shown {
			b = append(append(b, ' '), f.text...)
		}
	}
	for _, c := range p.Comments {
		b = fmt.Appendf(b, " comment %q", c)
	}
	return b
}

// appendShortExtended appends what the extended headers say, and the payload's length.
func (p *Packet) appendShortExtended(b []byte) []byte {
	in, h := p.Opcode.Info(), &p.Header
	has := in.Headers
	if has&packet.HasXRCETH != 0 {
		b = fmt.Appendf(b, " srq %#x", h.XRCSRQ)
	}
	if has&packet.HasDETH != 0 {
		b = fmt.Appendf(b, " src_qp %#x", h.DETH.SrcQP)
	}
	if has&packet.HasRETH != 0 {
		b = fmt.Appendf(b, " va %#x rkey %#x length %d", h.RETH.VA, h.RETH.RKey, h.RETH.Length)
	}
	if has&packet.HasAtomicETH != 0 {
		b = fmt.Appendf(b, " va %#x rkey %#x swap_add %#x compare %#x", h.Atomic.VA, h.Atomic.RKey, h.Atomic.SwapAdd, h.Atomic.Compare)
	}
	if in.Kind == packet.KindAck {
		b = fmt.Appendf(b, " %v msn %d", h.AETH.Syndrome, h.AETH.MSN)
	}
	if has&packet.HasAtomicAckETH != 0 {
		b = fmt.Appendf(b, " original %#x", h.OrigData)
	}
	if has&packet.HasImmDt != 0 {
		b = fmt.Appendf(b, " imm %#x", h.Imm)
	}
	if has&packet.HasIETH != 0 {
		b = fmt.Appendf(b, " invalidate %#x", h.Invalidate)
	}
	if d, ok := p.MAD(); ok {
		return fmt.Appendf(b, " %s tid %#x", d.Message, d.TID)
	}
	if n := p.payloadLen(); n > 0 {
		b = fmt.Appendf(b, " payload %d", n)
	}
	return b
}
