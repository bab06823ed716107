package capture

import (
	"fmt"
	"strconv"
	"time"

	"softroce/packet"
)

// AppendText appends the packet's line of text to b, without a newline: number, seconds since
// start, addresses and opcode, then each field of each header as name=value, transport headers
// first. Reserved bits are shown if they are not zero.
func (p *Packet) AppendText(b []byte, start time.Time) []byte {
	b = append(strconv.AppendInt(b, int64(p.No), 10), ' ')
	b = append(appendSeconds(b, p.Time.Sub(start)), ' ')
	b = append(p.Src.AppendTo(b), " > "...)
	b = append(p.Dst.AppendTo(b), ' ')
	b = append(b, p.Opcode.String()...)
	b = p.appendBTH(b)
	if p.Err == nil {
		b = p.appendExtended(b, p.Opcode.Info().Headers)
		b = appendDec(b, " payload_len=", p.payloadLen())
		b = p.appendMAD(b)
	}
	if p.Cut {
		b = fmt.Appendf(b, " cut=%d/%d", len(p.Data), p.Length)
	} else {
		b = append(appendHex(b, " icrc=", p.ICRC(), 8), word(p.ICRCOK(), "(ok)", "(BAD)")...)
		if vcrc, ok := p.VCRC(); ok {
			b = append(appendHex(b, " vcrc=", vcrc, 4), word(p.VCRCOK(), "(ok)", "(BAD)")...)
		}
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

// The fields of every packet are appended without fmt, whose cost dominates in long captures.

// appendDec appends a name and a decimal number.
func appendDec[T int | uint8 | uint16 | uint32](b []byte, name string, v T) []byte {
	return strconv.AppendInt(append(b, name...), int64(v), 10)
}

// appendHex appends a name and a hexadecimal number with at least so many digits.
func appendHex[T uint8 | uint16 | uint32 | uint64](b []byte, name string, v T, digits int) []byte {
	b = append(append(b, name...), "0x"...)
	for n := digits - 1; n > 0 && uint64(v)>>(4*n) == 0; n-- {
		b = append(b, '0')
	}
	return strconv.AppendUint(b, uint64(v), 16)
}

// seconds formats a duration as seconds with nine decimals.
func seconds(d time.Duration) string { return string(appendSeconds(nil, d)) }

// appendSeconds is seconds, appended to b.
func appendSeconds(b []byte, d time.Duration) []byte {
	if d < 0 {
		b, d = append(b, '-'), -d
	}
	b = append(strconv.AppendInt(b, int64(d/time.Second), 10), '.')
	for f, unit := d%time.Second, time.Second/10; unit > 0; unit /= 10 {
		b = append(b, '0'+byte(f/unit%10))
	}
	return b
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
	b = appendHex(b, " dest_qp=", h.DestQP, 1)
	b = appendDec(b, " psn=", h.PSN)
	b = appendDec(b, " ack_req=", bit(h.AckReq))
	b = appendDec(b, " se=", bit(h.Solicited))
	b = appendDec(b, " migreq=", bit(h.MigReq))
	b = appendDec(b, " pad=", h.Pad)
	b = appendDec(b, " tver=", h.TVer)
	b = appendHex(b, " pkey=", h.PKey, 4)
	b = appendDec(b, " fecn=", bit(h.FECN))
	b = appendDec(b, " becn=", bit(h.BECN))
	if h.Reserved6 != 0 {
		b = appendHex(b, " resv6=", h.Reserved6, 1)
	}
	if h.Reserved7 != 0 {
		b = appendHex(b, " resv7=", h.Reserved7, 1)
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
		b = append(appendHex(b, " aeth.syndrome=", uint8(h.AETH.Syndrome), 2), '(')
		b = append(append(b, h.AETH.Syndrome.String()...), ')')
		b = appendDec(b, " aeth.msn=", h.AETH.MSN)
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
	if a.Network == packet.RoCEv2 {
		b = appendDec(b, " udp=", a.SrcPort)
		b = appendDec(b, ">", a.DstPort)
	}
	if a.Network == packet.RoCEv2 || a.HasGRH() {
		b = appendHex(b, " tclass=", a.TClass, 2)
		b = appendDec(b, " hop_limit=", a.HopLimit)
		if a.IsIPv4() {
			b = appendHex(b, " ip_id=", a.ID, 4)
			b = appendDec(b, " df=", bit(!a.MayFragment))
		} else {
			b = appendHex(b, " flow_label=", a.FlowLabel, 5)
		}
	}
	if a.Network == packet.RoCEv1 {
		b = append(b, " roce=v1"...)
	}
	if a.Network == packet.InfiniBand {
		b = appendLRH(b, &a.LRH)
	}
	if a.UDPChecksum != 0 {
		b = appendHex(b, " udp_checksum=", a.UDPChecksum, 4)
	}
	if p.LinkType == Ethernet {
		b = appendMAC(append(b, " eth="...), a.SrcMAC)
		b = appendMAC(append(b, '>'), a.DstMAC)
	}
	if a.Tagged {
		b = appendDec(b, " vlan=", a.TCI&0xfff)
		b = appendDec(b, " pcp=", a.TCI>>13)
		b = appendDec(b, " dei=", a.TCI>>12&1)
	}
	return b
}

func appendLRH(b []byte, h *packet.LRH) []byte {
	b = fmt.Appendf(b, " lid=%d>%d vl=%d sl=%d lver=%d lnh=%d", h.SLID, h.DLID, h.VL, h.SL, h.LVer, h.LNH)
	if h.Reserved2 != 0 {
		b = fmt.Appendf(b, " lrh.resv2=%#x", h.Reserved2)
	}
	if h.Reserved5 != 0 {
		b = fmt.Appendf(b, " lrh.resv5=%#x", h.Reserved5)
	}
	return b
}

func mac(m [6]byte) string { return string(appendMAC(nil, m)) }

func appendMAC(b []byte, m [6]byte) []byte {
	const digits = "0123456789abcdef"
	for i, v := range m {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, digits[v>>4], digits[v&15])
	}
	return b
}
