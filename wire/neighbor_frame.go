package wire

import (
	"encoding/binary"
	"net/netip"
)

// A stationMAC is the MAC of the station that sends ARP and neighbor discovery frames.
type stationMAC [6]byte

// appendSolicitation appends the frame that requests the MAC of dst, an address on the link. Here
// and below, a VLAN that is not 0 becomes a tag.
func (e stationMAC) appendSolicitation(b []byte, vlan uint16, src, dst netip.Addr) []byte {
	if dst.Is4() {
		return e.appendARP(b, vlan, arpRequest, broadcast, src, dst, [6]byte{})
	}
	group := solicitedNode(dst)
	return e.appendNeighbor(b, vlan, multicastMAC(group), src, group, neighborSolicitation, 0, dst)
}

// appendARP appends an ARP frame to a MAC.
func (e stationMAC) appendARP(b []byte, vlan, operation uint16, to [6]byte, sender, target netip.Addr, targetMAC [6]byte) []byte {
	be := binary.BigEndian
	b = e.ethernet(b, vlan, to, etherARP)
	b = be.AppendUint64(b, arpIPEthernet<<16|uint64(operation))
	b = append(b, e[:]...)
	b = append(b, sender.AsSlice()...)
	b = append(b, targetMAC[:]...)
	return append(b, target.AsSlice()...)
}

func (e stationMAC) ethernet(b []byte, vlan uint16, to [6]byte, kind uint16) []byte {
	b = append(b, to[:]...)
	b = append(b, e[:]...)
	if vlan != 0 {
		b = binary.BigEndian.AppendUint16(b, etherVLAN)
		b = binary.BigEndian.AppendUint16(b, vlan)
	}
	return binary.BigEndian.AppendUint16(b, kind)
}

// appendNeighbor appends a neighbor solicitation or advertisement with the station's MAC.
func (e stationMAC) appendNeighbor(b []byte, vlan uint16, to [6]byte, src, dst netip.Addr, kind, flags byte, target netip.Addr) []byte {
	const n = neighborLen + optionLen
	b = e.appendIPv6(b, vlan, to, src, dst, neighborHops, n)
	at := len(b)
	b = append(b, kind, 0, 0, 0, flags, 0, 0, 0)
	b = append(b, target.AsSlice()...)
	option := byte(optionTarget)
	if kind == neighborSolicitation {
		option = optionSource
	}
	b = append(b, option, optionLen/8)
	b = append(b, e[:]...)
	putChecksum(b[at+2:], b[at:], pseudo6(src, dst, n))
	return b
}

// appendIPv6 appends the headers in front of n bytes of ICMPv6.
func (e stationMAC) appendIPv6(b []byte, vlan uint16, to [6]byte, src, dst netip.Addr, hops byte, n int) []byte {
	b = e.ethernet(b, vlan, to, etherIPv6)
	b = append(b, 6<<4, 0, 0, 0, byte(n>>8), byte(n), protocolICMPv6, hops)
	b = append(b, src.AsSlice()...)
	return append(b, dst.AsSlice()...)
}

// solicitedNode returns the solicited-node multicast address of an IPv6 address (RFC 4291, 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 0xff, b[13], b[14], b[15]})
}

// pseudo6 returns the sum over the pseudo-header of n bytes of ICMPv6.
func pseudo6(src, dst netip.Addr, n int) uint16 {
	var p [40]byte
	s, d := src.As16(), dst.As16()
	copy(p[:], s[:])
	copy(p[16:], d[:])
	binary.BigEndian.PutUint32(p[32:], uint32(n))
	p[39] = protocolICMPv6
	return onesComplementSum(p[:], 0)
}
