package packet

import (
	"encoding/binary"
	"net/netip"
)

// Lengths in bytes of the headers that enclose the transport part, and the values of their fields.
const (
	EthernetLen = 14
	VLANLen     = 4
	IPv4Len     = 20
	IPv6Len     = 40
	UDPLen      = 8

	// MaxFrameHeaderLen is the most bytes that PutHeaders writes.
	MaxFrameHeaderLen = EthernetLen + VLANLen + IPv6Len + UDPLen

	// UDPPort is the UDP destination port of RoCEv2.
	UDPPort = 4791

	// EtherTypeRoCEv1 is the EtherType of RoCE v1, whose GRH follows the Ethernet header (annex
	// A16).
	EtherTypeRoCEv1 = 0x8915

	// NextHeaderBTH is the next header in a GRH before a BTH (IBTA 8.3).
	NextHeaderBTH = 0x1b

	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100
	protocolUDP   = 17

	flagDF       = 0x4000 // in the 16 bits of IPv4 flags and fragment offset
	flagReserved = 0x8000
)

// A Network is what carries packets. It says which headers come before the BTH.
type Network uint8

const (
	RoCEv2     Network = iota // Ethernet, IP and UDP (annex A17)
	InfiniBand                // LRH, and GRH if the LRH says so
	RoCEv1                    // Ethernet and GRH (annex A16)
)

func (n Network) String() string {
	switch n {
	case InfiniBand:
		return "InfiniBand"
	case RoCEv1:
		return "RoCE v1"
	}
	return "RoCE v2"
}

// Addressing holds every field of the headers before the BTH, except the lengths and what follows
// from them: those of RoCEv2, unless Network names another. Together with the payload length it
// reproduces the headers bit by bit.
type Addressing struct {
	Network Network
	LRH     LRH // of InfiniBand

	SrcMAC, DstMAC [6]byte
	Tagged         bool   // the frame has an 802.1Q tag
	TCI            uint16 // tag control information: priority, DEI and VLAN ID

	// Src and Dst are IP addresses of the same family; IPv4-mapped IPv6 addresses are not allowed.
	// In a GRH they are GIDs, where an IPv4 address stands for the IPv4-mapped GID. Without a GRH
	// they are those of the LIDs: see LIDAddr.
	Src, Dst    netip.Addr
	TClass      uint8  // IPv6 traffic class or IPv4 type of service, including the ECN bits
	HopLimit    uint8  // IPv6 hop limit or IPv4 time to live
	FlowLabel   uint32 // IPv6, 20 bits
	ID          uint16 // IPv4 Identification
	MayFragment bool   // IPv4: the DF bit is clear; RoCEv2 senders set it

	SrcPort     uint16
	DstPort     uint16 // 0 means UDPPort
	UDPChecksum uint16 // written as given; RoCEv2 senders use 0, also on IPv6
}

// HeaderLen returns the number of bytes that PutHeaders writes.
func (a *Addressing) HeaderLen() int { return a.linkLen() + a.IPHeaderLen() }

// IPHeaderLen returns the number of bytes that PutIP writes: IP and UDP header, or the GRH.
func (a *Addressing) IPHeaderLen() int {
	switch {
	case a.IsIPv4():
		return IPv4Len + UDPLen
	case a.Network == RoCEv2:
		return IPv6Len + UDPLen
	case a.HasGRH():
		return GRHLen
	}
	return 0
}

// IsIPv4 reports whether the packet has an IPv4 header.
func (a *Addressing) IsIPv4() bool { return a.Network == RoCEv2 && a.Src.Is4() }

// IsCE reports whether the network marked the packet as having met congestion, in its IP header
// (RFC 3168).
func (a *Addressing) IsCE() bool { return a.Network == RoCEv2 && a.TClass&3 == 3 }

// HasGRH reports whether the packet has a GRH.
func (a *Addressing) HasGRH() bool {
	return a.Network == RoCEv1 || a.Network == InfiniBand && a.LRH.LNH == LNHGlobal
}

func (a *Addressing) linkLen() int {
	switch {
	case a.Network == InfiniBand:
		return LRHLen
	case a.Tagged:
		return EthernetLen + VLANLen
	}
	return EthernetLen
}

// PutHeaders writes the headers before the BTH to b and returns their length. udpPayloadLen is the
// length from BTH to ICRC; for a super-packet, that of all its segments together. b needs room for
// MaxFrameHeaderLen bytes.
func (a *Addressing) PutHeaders(b []byte, udpPayloadLen int) int {
	var n int
	if a.Network == InfiniBand {
		n = a.LRH.put(b, a.HeaderLen()+udpPayloadLen)
	} else {
		n = a.putEthernet(b)
	}
	return n + a.PutIP(b[n:], udpPayloadLen)
}

func (a *Addressing) putEthernet(b []byte) int {
	be := binary.BigEndian
	copy(b[0:6], a.DstMAC[:])
	copy(b[6:12], a.SrcMAC[:])
	n := 12
	if a.Tagged {
		be.PutUint16(b[12:], etherTypeVLAN)
		be.PutUint16(b[14:], a.TCI)
		n = 16
	}
	kind := uint16(etherTypeIPv6)
	switch {
	case a.IsIPv4():
		kind = etherTypeIPv4
	case a.Network == RoCEv1:
		kind = EtherTypeRoCEv1
	}
	be.PutUint16(b[n:], kind)
	return n + 2
}

// PutIP writes the IP and UDP headers, or the GRH, to b and returns their length. See PutHeaders
// for udpPayloadLen.
func (a *Addressing) PutIP(b []byte, udpPayloadLen int) int {
	n := 0
	switch {
	case a.IsIPv4():
		n = a.putIPv4(b, udpPayloadLen)
	case a.Network == RoCEv2:
		n = a.putIPv6(b, UDPLen+udpPayloadLen, protocolUDP)
	case a.HasGRH():
		return a.putIPv6(b, udpPayloadLen, NextHeaderBTH)
	default:
		return 0
	}
	a.putUDP(b[n:], udpPayloadLen)
	return n + UDPLen
}

func (a *Addressing) putIPv4(b []byte, udpPayloadLen int) int {
	_ = b[IPv4Len-1]
	be := binary.BigEndian
	b[0], b[1] = 0x45, a.TClass
	be.PutUint16(b[2:], uint16(IPv4Len+UDPLen+udpPayloadLen))
	be.PutUint16(b[4:], a.ID)
	be.PutUint16(b[6:], a.fragmentField())
	b[8], b[9] = a.HopLimit, protocolUDP
	be.PutUint16(b[10:], 0)
	src, dst := a.Src.As4(), a.Dst.As4()
	copy(b[12:16], src[:])
	copy(b[16:20], dst[:])
	be.PutUint16(b[10:], ipv4Checksum(b))
	return IPv4Len
}

func (a *Addressing) fragmentField() uint16 {
	if a.MayFragment {
		return 0
	}
	return flagDF
}

// putIPv6 writes an IPv6 header or a GRH, which has the same layout, before payloadLen bytes of the
// header with number next.
func (a *Addressing) putIPv6(b []byte, payloadLen int, next uint8) int {
	_ = b[IPv6Len-1]
	be := binary.BigEndian
	be.PutUint32(b, 6<<28|uint32(a.TClass)<<20|a.FlowLabel&0xfffff)
	be.PutUint16(b[4:], uint16(payloadLen))
	b[6], b[7] = next, a.HopLimit
	src, dst := a.Src.As16(), a.Dst.As16()
	copy(b[8:24], src[:])
	copy(b[24:40], dst[:])
	return IPv6Len
}

func (a *Addressing) putUDP(b []byte, udpPayloadLen int) {
	_ = b[UDPLen-1]
	be := binary.BigEndian
	be.PutUint16(b, a.SrcPort)
	be.PutUint16(b[2:], a.dstPort())
	be.PutUint16(b[4:], uint16(UDPLen+udpPayloadLen))
	be.PutUint16(b[6:], a.UDPChecksum)
}

func (a *Addressing) dstPort() uint16 {
	if a.DstPort == 0 {
		return UDPPort
	}
	return a.DstPort
}

// ipv4Checksum returns the checksum of an IPv4 header without options whose checksum field is 0.
// Over a header with a correct checksum it returns 0.
func ipv4Checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < IPv4Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}
