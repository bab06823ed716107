package capture

import (
	"fmt"
	"time"

	"softroce/packet"
)

// AppendText appends the packet's line of text to b, without a newline: number, seconds since
// start, addresses and opcode, then each field of each header as name=value, transport headers
// first. Reserved bits are shown if they are not zero.
func (p *Packet) AppendText(b []byte, start time.Time) []byte {
	b = fmt.Appendf(b, "%d %s %v > %v %v", p.No, seconds(p.Time.Sub(start)), p.Src, p.Dst, p.Opcode)
	b = p.appendBTH(b)
	if p.Err == nil {
		b = p.appendExtended(b, p.Opcode.Info().Headers)
		b = fmt.Appendf(b, " payload_len=%d", p.payloadLen())
		b = p.appendMAD(b)
	}
	if p.Cut {
		b = fmt.Appendf(b, " cut=%d/%d", len(p.Data), p.Length)
	} else {
		b = fmt.Appendf(b, " icrc=%#08x(%s)", p.ICRC(), word(p.ICRCOK(), "ok", "BAD"))
	}
	b = p.appendAddressing(b)
	if p.Err != nil {
		b = fmt.Appendf(b, " error=%q", p.Err)
	}
	for _, c := range p.Comments {
		b = fmt.Appendf(b, " comment=%q", c)
	}
	return b
}

// seconds formats a duration as seconds with nine decimals.
func seconds(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	return fmt.Sprintf("%s%d.%09d", sign, d/time.Second, d%time.Second)
}

func word(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

func bit(cond bool) int {
	if cond {
		return 1
	}
	return 0
}

func (p *Packet) appendBTH(b []byte) []byte {
	h := &p.BTH
	b = fmt.Appendf(b, " dest_qp=%#x psn=%d ack_req=%d se=%d migreq=%d pad=%d tver=%d pkey=%#04x fecn=%d becn=%d",
		h.DestQP, h.PSN, bit(h.AckReq), bit(h.Solicited), bit(h.MigReq), h.Pad, h.TVer, h.PKey, bit(h.FECN), bit(h.BECN))
	if h.Reserved6 != 0 {
		b = fmt.Appendf(b, " resv6=%#x", h.Reserved6)
	}
	if h.Reserved7 != 0 {
		b = fmt.Appendf(b, " resv7=%#x", h.Reserved7)
	}
	return b
}

// appendExtended appends the extended headers in their order on the wire.
func (p *Packet) appendExtended(b []byte, has packet.Headers) []byte {
	h := &p.Header
	if has&packet.HasXRCETH != 0 {
		b = fmt.Appendf(b, " xrceth.srq=%#x", h.XRCSRQ)
	}
	if has&packet.HasDETH != 0 {
		b = fmt.Appendf(b, " deth.qkey=%#x deth.src_qp=%#x", h.DETH.QKey, h.DETH.SrcQP)
	}
	if has&packet.HasFETH != 0 {
		b = fmt.Appendf(b, " feth.placement=%d feth.selectivity=%d", h.FETH.Placement, h.FETH.Selectivity)
	}
	if has&packet.HasRETH != 0 {
		b = fmt.Appendf(b, " reth.va=%#x reth.rkey=%#x reth.length=%d", h.RETH.VA, h.RETH.RKey, h.RETH.Length)
	}
	if has&packet.HasAtomicETH != 0 {
		b = fmt.Appendf(b, " atomiceth.va=%#x atomiceth.rkey=%#x atomiceth.swap_add=%#x atomiceth.compare=%#x",
			h.Atomic.VA, h.Atomic.RKey, h.Atomic.SwapAdd, h.Atomic.Compare)
	}
	if has&packet.HasAETH != 0 {
		b = fmt.Appendf(b, " aeth.syndrome=%#02x(%v) aeth.msn=%d", uint8(h.AETH.Syndrome), h.AETH.Syndrome, h.AETH.MSN)
	}
	if has&packet.HasAtomicAckETH != 0 {
		b = fmt.Appendf(b, " atomicacketh.original=%#x", h.OrigData)
	}
	if has&packet.HasImmDt != 0 {
		b = fmt.Appendf(b, " immdt=%#x", h.Imm)
	}
	if has&packet.HasIETH != 0 {
		b = fmt.Appendf(b, " ieth.rkey=%#x", h.Invalidate)
	}
	return b
}

func (p *Packet) appendAddressing(b []byte) []byte {
	a := &p.Addressing
	b = fmt.Appendf(b, " udp=%d>%d tclass=%#02x hop_limit=%d", a.SrcPort, a.DstPort, a.TClass, a.HopLimit)
	if a.Src.Is4() {
		b = fmt.Appendf(b, " ip_id=%#04x df=%d", a.ID, bit(!a.MayFragment))
	} else {
		b = fmt.Appendf(b, " flow_label=%#05x", a.FlowLabel)
	}
	if a.UDPChecksum != 0 {
		b = fmt.Appendf(b, " udp_checksum=%#04x", a.UDPChecksum)
	}
	if p.LinkType == Ethernet {
		b = fmt.Appendf(b, " eth=%s>%s", mac(a.SrcMAC), mac(a.DstMAC))
	}
	if a.Tagged {
		b = fmt.Appendf(b, " vlan=%d pcp=%d dei=%d", a.TCI&0xfff, a.TCI>>13, a.TCI>>12&1)
	}
	return b
}

func mac(m [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}
