package check

import (
	"encoding/binary"

	"softroce/internal/conversation"
	"softroce/internal/ib"
	"softroce/packet"
)

// headers applies the rules of a single packet.
func (j *judge) headers(p *judgedPacket) {
	if p.Network == packet.InfiniBand {
		j.link(p)
	} else {
		j.network(p)
	}
	if p.TVer != 0 {
		j.violates(p, ruleTVer, "TVer %d, expected 0", p.TVer)
	}
	if p.headersCut {
		return
	}
	j.reserved(p)
	j.pad(p)
	j.lengths(p)
	j.syndrome(p)
	if p.PKey&0x7fff == 0 {
		j.violates(p, rulePKey, "P_Key %#04x, expected the key of a partition", p.PKey)
	}
	ends := p.info.Position.EndsMessage() && p.info.ConsumesRecv
	if p.Solicited && !ends {
		j.violates(p, ruleSolicited, "%v with a solicited event, expected none", p.Opcode)
	}
	noSMI := p.DestQP == ib.SMIQPN && p.Network != packet.InfiniBand
	if noSMI || (p.DestQP == ib.SMIQPN || p.DestQP == ib.GSIQPN || p.DestQP == packet.PSNMask) && p.info.Service != packet.UD {
		j.violates(p, ruleQPN, "%v to QP %#x, expected %s", p.Opcode, p.DestQP, map[bool]string{true: "another QP", false: "UD"}[noSMI])
	}
	if p.BECN && p.info.Request && p.Network == packet.RoCEv2 {
		j.violates(p, ruleBECN, "%v with BECN, expected it in a CNP only", p.Opcode)
	}
	if p.AckReq && (!p.info.Request || p.info.Service == packet.UC) {
		j.noteOn(p, noteAckReq)
	}
}

// link judges the LRH and the addresses of an InfiniBand packet.
func (j *judge) link(p *judgedPacket) {
	h := &p.LRH
	if h.LVer != 0 || h.Reserved2 != 0 || h.Reserved5 != 0 {
		j.violates(p, ruleLRH, "link version %d, reserved bits %#x and %#x, expected 0", h.LVer, h.Reserved2, h.Reserved5)
	}
	// Ports do not have LIDs before subnet management assigns them: until then, it uses the
	// permissive LID and a directed route.
	permissive := p.DestQP == ib.SMIQPN
	multicast := packet.IsMulticastLID(h.DLID)
	switch {
	case !isPortLID(h.SLID, permissive) || p.HasGRH() && (p.Src.IsMulticast() || p.Src.IsUnspecified()):
		j.violates(p, ruleAddress, "LID %d, %v sends to LID %d, expected the LID of one port", h.SLID, p.Src, h.DLID)
	case !multicast && !isPortLID(h.DLID, permissive), p.HasGRH() && p.Dst.IsMulticast() != multicast,
		multicast && p.info.Service != packet.UD, p.info.Service == packet.UD && multicast != (p.DestQP == packet.PSNMask):
		j.violates(p, ruleAddress, "%v to LID %d, %v, QP %#x", p.Opcode, h.DLID, p.Dst, p.DestQP)
	}
	if (p.DestQP == ib.SMIQPN) != (h.VL == smpVL) {
		j.violates(p, ruleSMP, "%v to QP %#x on VL %d", p.Opcode, p.DestQP, h.VL)
	}
}

// smpVL is the virtual lane of subnet management.
const smpVL = 15

// isPortLID reports whether a LID is that of one port, or the permissive one where that may be
// used.
func isPortLID(lid uint16, permissive bool) bool {
	const permissiveLID = 0xffff
	return lid != 0 && !packet.IsMulticastLID(lid) && (lid != permissiveLID || permissive)
}

func (j *judge) network(p *judgedPacket) {
	ip := len(p.IP) - len(p.Transport) - packet.UDPLen
	if !p.IPChecksumOK() {
		if binary.BigEndian.Uint16(p.IP[10:]) == 0 {
			j.noteOn(p, noteOffload)
		} else {
			j.violates(p, ruleIPChecksum, "checksum %#04x, expected %#04x", binary.BigEndian.Uint16(p.IP[10:]), ^fold(sum(sum(0, p.IP[:10]), p.IP[12:ip])))
		}
	}
	if p.UDPChecksum != 0 && !p.cut() {
		j.udpChecksum(p, p.IP[ip:])
	}
	if p.Src.IsMulticast() || p.Src.IsUnspecified() || p.Dst.IsUnspecified() {
		j.violates(p, ruleAddress, "%v sends to %v, expected unicast addresses", p.Src, p.Dst)
	}
	if p.Dst.IsMulticast() != (p.DestQP == packet.PSNMask) && p.info.Service == packet.UD || p.Dst.IsMulticast() && p.info.Service != packet.UD {
		j.violates(p, ruleAddress, "%v to %v, QP %#x", p.Opcode, p.Dst, p.DestQP)
	}
	if p.HopLimit == 0 && p.Network == packet.RoCEv2 { // a GRH may have it (IBTA 8.3)
		j.violates(p, ruleTTL, "it is 0, expected more")
	}
	if p.MayFragment {
		j.noteOn(p, noteMayFragment)
	}
}

// udpChecksum judges a checksum that is not zero. One that covers only the pseudo header is left to
// the checksum offload of the capturing host.
func (j *judge) udpChecksum(p *judgedPacket, udp []byte) {
	src, dst := p.Src.AsSlice(), p.Dst.AsSlice()
	pseudo := sum(sum(uint32(len(udp))+17, src), dst)
	switch {
	case fold(sum(pseudo, udp)) == 0xffff:
	case fold(pseudo) == p.UDPChecksum:
		j.noteOn(p, noteOffload)
	default:
		j.violates(p, ruleUDPSum, "checksum %#04x, expected 0 or %#04x", p.UDPChecksum, ^fold(sum(sum(pseudo, udp[:6]), udp[8:])))
	}
}

// sum adds the 16-bit words of b, padded with a zero byte.
func sum(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

func (j *judge) reserved(p *judgedPacket) {
	has := p.info.Headers
	switch {
	case p.Reserved6 != 0 || p.Reserved7 != 0:
		j.violates(p, ruleReserved, "BTH: %#x beside FECN and BECN, %#x beside AckReq, expected 0", p.Reserved6, p.Reserved7)
	case has&packet.HasDETH != 0 && p.DETH.Reserved != 0:
		j.violates(p, ruleReserved, "DETH: %#x, expected 0", p.DETH.Reserved)
	case has&packet.HasXRCETH != 0 && p.XRCResv != 0:
		j.violates(p, ruleReserved, "XRCETH: %#x, expected 0", p.XRCResv)
	case has&packet.HasFETH != 0 && p.FETH.Reserved != 0:
		j.violates(p, ruleReserved, "FETH: %#x, expected 0", p.FETH.Reserved)
	}
}

// pad judges the bytes between payload and ICRC.
func (j *judge) pad(p *judgedPacket) {
	end := len(p.Transport) - packet.ICRCLen
	bytes := p.Transport[end-int(p.Pad) : end]
	if (len(p.Payload)+int(p.Pad))%4 != 0 {
		j.violates(p, rulePad, "%d bytes of payload and a pad of %d, expected %d", len(p.Payload), p.Pad, (4-len(p.Payload)%4)%4)
		return
	}
	for _, b := range bytes {
		if b != 0 {
			j.violates(p, rulePad, "pad % x, expected zeros", bytes)
			return
		}
	}
}

// lengths judges the payload by opcode and path MTU.
func (j *judge) lengths(p *judgedPacket) {
	n, in := len(p.Payload), p.info
	mtu, known := 4096, false
	if p.flow != nil && p.flow.mtu != 0 {
		mtu, known = p.flow.mtu, true
	}
	segment := in.Payload && (in.Position == packet.First || in.Position == packet.Middle)
	if segment && known && !conversation.ValidMTU(mtu) {
		j.impossibleMTU(p, mtu)
	}
	switch {
	case in.Kind == packet.KindCNP:
		return
	case !in.Payload:
		if n != 0 {
			j.violates(p, rulePayload, "%v with %d bytes, expected none", p.Opcode, n)
		}
	case in.Kind == packet.KindAtomicWrite:
		if n != 8 {
			j.violates(p, rulePayload, "%v with %d bytes, expected 8", p.Opcode, n)
		}
	case segment:
		if n != mtu && known || !known && !conversation.ValidMTU(n) {
			j.violates(p, ruleLength, "%v with %d bytes, expected the path MTU, %d", p.Opcode, n, mtu)
		}
	case n > mtu || in.Position == packet.Last && n == 0:
		j.violates(p, ruleLength, "%v with %d bytes, expected up to the path MTU, %d, and in a LAST at least 1", p.Opcode, n, mtu)
	}
	j.dmaLength(p)
}

// impossibleMTU reports, once for a connection, that its packets show a path MTU that does not
// exist.
func (j *judge) impossibleMTU(p *judgedPacket, mtu int) {
	if p.flow.impossible {
		return
	}
	p.flow.impossible = true
	if p.flow.peer != nil {
		p.flow.peer.impossible = true
	}
	j.violates(p, ruleLength, "First and Middle packets of the connection have %d bytes, which is no path MTU (256, 512, 1024, 2048, 4096)", mtu)
}

// dmaLength judges the RETH. checkFollows adds up the payloads of a WRITE of several packets.
func (j *judge) dmaLength(p *judgedPacket) {
	n := uint32(len(p.Payload))
	switch {
	case p.info.Headers&packet.HasRETH == 0 || p.info.Kind == packet.KindFlush:
	case p.RETH.Length > 1<<31:
		j.violates(p, ruleDMALength, "%v of %d bytes, expected at most 2^31", p.Opcode, p.RETH.Length)
	case p.info.Kind == packet.KindWrite && p.info.Position == packet.Only && n != p.RETH.Length,
		p.info.Kind == packet.KindWrite && p.info.Position == packet.First && n >= p.RETH.Length:
		j.violates(p, ruleDMALength, "%v with %d bytes, expected %s the %d of its RETH", p.Opcode, n, map[bool]string{true: "all of", false: "less than"}[p.info.Position == packet.Only], p.RETH.Length)
	}
}

func (j *judge) syndrome(p *judgedPacket) {
	if p.info.Headers&packet.HasAETH == 0 {
		return
	}
	s := p.AETH.Syndrome
	if !assigned(s) || p.info.Kind != packet.KindAck && !s.IsACK() {
		j.violates(p, ruleSyndrome, "%v with syndrome %#02x, expected %s", p.Opcode, uint8(s), map[bool]string{true: "one that is assigned", false: "an ACK's"}[p.info.Kind == packet.KindAck])
	}
}

func assigned(s packet.Syndrome) bool {
	return s.IsACK() || s.IsRNR() || s >= packet.NAKSequence && s <= packet.NAKRemoteOperational
}
