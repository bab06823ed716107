package wire

import (
	"encoding/binary"
	"net/netip"

	"softroce/packet"
)

// ICMP messages that the link handles (RFC 792, RFC 4443, RFC 4861).
const (
	icmpEcho, icmpEchoReply   = 8, 0
	icmp6Echo, icmp6EchoReply = 128, 129
	neighborSolicitation      = 135
	neighborAdvertisement     = 136

	icmpLen        = 8  // of an echo without data
	neighborLen    = 24 // of a solicitation or advertisement without options
	neighborTarget = 8  // of the target in them
	optionSource   = 1  // option type: source link-layer address
	optionTarget   = 2
	optionLen      = 8 // of either, on Ethernet
	flagSolicited  = 0x40
	flagOverride   = 0x20

	// neighborHops is the hop limit of neighbor discovery (RFC 4861, 4.3), which shows that no
	// router forwarded the packet.
	neighborHops = 255
	replyHops    = 64
)

var allNodes = netip.MustParseAddr("ff02::1")

// icmp replies to an echo request.
func (l *DgramLink) icmp(b []byte) Drop {
	ip := b[packet.EthernetLen:]
	total := int(binary.BigEndian.Uint16(ip[2:]))
	const fragment = 0x3fff // more fragments, or a fragment offset
	switch {
	case ip[0] != 0x45:
		return DropIPHeader
	case onesComplementSum(ip[:packet.IPv4Len], 0) != 0xffff:
		return DropIPChecksum
	case !l.has(addr4(ip[16:])):
		return DropIPAddress
	case binary.BigEndian.Uint16(ip[6:])&fragment != 0:
		return DropFragment
	case total > len(ip) || total < packet.IPv4Len+icmpLen:
		return DropTruncated
	}
	m := ip[packet.IPv4Len:total]
	if m[0] != icmpEcho || onesComplementSum(m, 0) != 0xffff {
		return DropICMP
	}
	r := l.ethernet(l.reply[:0], l.vlan(), [6]byte(b[6:]), etherIPv4)
	at := len(r)
	r = append(r, ip[:total]...)
	h := r[at:]
	copy(h[12:16], ip[16:20])
	copy(h[16:20], ip[12:16])
	h[8] = replyHops
	putChecksum(h[10:], h[:packet.IPv4Len], 0)
	h = h[packet.IPv4Len:]
	h[0] = icmpEchoReply
	putChecksum(h[2:], h, 0)
	l.send(r)
	return handled
}

// putChecksum writes the checksum of b to at, which is part of b. start is the sum of the
// pseudo-header.
func putChecksum(at, b []byte, start uint16) {
	at[0], at[1] = 0, 0
	binary.BigEndian.PutUint16(at, ^onesComplementSum(b, start))
}

// icmp6 replies to echo requests and neighbor solicitations, and learns from advertisements.
func (l *DgramLink) icmp6(b []byte) Drop {
	ip := b[packet.EthernetLen:]
	n := int(binary.BigEndian.Uint16(ip[4:]))
	src, dst := addr16(ip[8:]), addr16(ip[24:])
	switch {
	case ip[0]>>4 != 6:
		return DropIPHeader
	case !l.has(dst) && !l.inSolicitedGroup(dst):
		return DropIPAddress
	case packet.IPv6Len+n > len(ip):
		return DropTruncated
	}
	m := ip[packet.IPv6Len : packet.IPv6Len+n]
	if n < icmpLen || onesComplementSum(m, pseudo6(src, dst, n)) != 0xffff {
		return DropICMP
	}
	switch {
	case m[0] == icmp6Echo && l.has(dst):
		l.replyEcho6([6]byte(b[6:]), dst, src, m)
		return handled
	case ip[7] != neighborHops || m[1] != 0 || n < neighborLen:
		return DropICMP
	case m[0] == neighborSolicitation:
		return l.handleSolicitation([6]byte(b[6:]), src, m)
	case m[0] == neighborAdvertisement:
		if mac, ok := linkLayer(m[neighborLen:], optionTarget); ok {
			l.neighbors.learn(Station{addr16(m[neighborTarget:]), l.vlan()}, mac, false)
			return handled
		}
	}
	return DropICMP
}

// inSolicitedGroup reports whether dst is all-nodes or a solicited-node group of the link's
// addresses.
func (l *DgramLink) inSolicitedGroup(dst netip.Addr) bool {
	if dst == allNodes {
		return true
	}
	for s := range l.localStations {
		if s.VLAN == l.vlan() && s.Addr.Is6() && solicitedNode(s.Addr) == dst {
			return true
		}
	}
	return false
}

func (l *DgramLink) replyEcho6(to [6]byte, src, dst netip.Addr, m []byte) {
	r := l.appendIPv6(l.reply[:0], l.vlan(), to, src, dst, replyHops, len(m))
	at := len(r)
	r = append(r, m...)
	r[at] = icmp6EchoReply
	putChecksum(r[at+2:], r[at:], pseudo6(src, dst, len(m)))
	l.send(r)
}

// handleSolicitation replies to a solicitation of one of the link's addresses.
func (l *DgramLink) handleSolicitation(from [6]byte, src netip.Addr, m []byte) Drop {
	target := addr16(m[neighborTarget:])
	if !l.has(target) || l.has(src) {
		return DropICMP
	}
	dst, flags := src, byte(flagSolicited|flagOverride)
	if src.IsUnspecified() { // duplicate address detection (RFC 4862)
		dst, flags, from = allNodes, flagOverride, multicastMAC(allNodes)
	} else if mac, ok := linkLayer(m[neighborLen:], optionSource); ok {
		l.neighbors.learn(Station{src, l.vlan()}, mac, true)
	}
	l.send(l.appendNeighbor(l.reply[:0], l.vlan(), from, target, dst, neighborAdvertisement, flags, target))
	return handled
}

// linkLayer returns the MAC in an option of neighbor discovery.
func linkLayer(options []byte, kind byte) (mac [6]byte, ok bool) {
	for len(options) >= optionLen {
		n := 8 * int(options[1])
		if n == 0 || n > len(options) {
			return mac, false
		}
		if options[0] == kind && n == optionLen {
			return [6]byte(options[2:]), true
		}
		options = options[n:]
	}
	return mac, false
}
