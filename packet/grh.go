package packet

import (
	"encoding/binary"
	"net/netip"
)

// GRH is the first 40 bytes of a UD receive buffer. On RoCEv2 it holds the received IP header: an
// IPv6 header, or 20 zero bytes and an IPv4 header. On RoCE v1 and InfiniBand it is the GRH of the
// packet.
type GRH [GRHLen]byte

// Put fills g with the IP header, or the GRH, of a packet whose addressing is a. udpPayloadLen is
// the length from BTH to ICRC.
func (g *GRH) Put(a *Addressing, udpPayloadLen int) {
	switch {
	case a.Network != RoCEv2:
		a.putIPv6(g[:], udpPayloadLen, NextHeaderBTH)
		return
	case !a.Src.Is4():
		a.putIPv6(g[:], UDPLen+udpPayloadLen, protocolUDP)
		return
	}
	clear(g[:GRHLen-IPv4Len])
	a.putIPv4(g[GRHLen-IPv4Len:], udpPayloadLen)
}

// Is4 reports whether g holds an IPv4 header.
func (g *GRH) Is4() bool { return g[0]>>4 != 6 && g[GRHLen-IPv4Len]>>4 == 4 }

// IsIP reports whether g holds an IP header, of a RoCEv2 packet. Otherwise it is a GRH.
func (g *GRH) IsIP() bool { return g.Is4() || g[6] != NextHeaderBTH }

// Src returns the source address. Of a GRH it is the GID, or the IPv4 address that it maps.
func (g *GRH) Src() netip.Addr {
	if g.Is4() {
		return netip.AddrFrom4([4]byte(g[32:36]))
	}
	return netip.AddrFrom16([16]byte(g[8:24])).Unmap()
}

// Dst returns the destination address, which may be a multicast group.
func (g *GRH) Dst() netip.Addr {
	if g.Is4() {
		return netip.AddrFrom4([4]byte(g[36:40]))
	}
	return netip.AddrFrom16([16]byte(g[24:40])).Unmap()
}

// TClass returns the traffic class or type of service.
func (g *GRH) TClass() uint8 {
	if g.Is4() {
		return g[21]
	}
	return uint8(binary.BigEndian.Uint16(g[:]) >> 4)
}

// FlowLabel returns the IPv6 flow label, 20 bits, or 0 for IPv4.
func (g *GRH) FlowLabel() uint32 {
	if g.Is4() {
		return 0
	}
	return binary.BigEndian.Uint32(g[:]) & 0xfffff
}

// HopLimit returns the hop limit or time to live on arrival.
func (g *GRH) HopLimit() uint8 {
	if g.Is4() {
		return g[28]
	}
	return g[7]
}
