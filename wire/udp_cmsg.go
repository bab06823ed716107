package wire

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// Control messages of a UDP socket. On send: source address, traffic class, hop limit, and the
// length of a segment. On receive: the same of the received datagram, with its destination address.

// udpControlLen is enough for the control messages of either direction and family.
const udpControlLen = 192

const (
	cmsgHeaderLen = unix.SizeofCmsghdr
	cmsgAlign     = 8

	ipv6FlowInfo = 11 // IPV6_FLOWINFO of linux/in6.h
)

// putCmsg writes the header of a control message with n bytes of data to b. It returns the part of
// b for the data, and the length of the whole message.
func putCmsg(b []byte, level, kind, n int) ([]byte, int) {
	ne := binary.NativeEndian
	ne.PutUint64(b, uint64(cmsgHeaderLen+n))
	ne.PutUint32(b[8:], uint32(level))
	ne.PutUint32(b[12:], uint32(kind))
	return b[cmsgHeaderLen : cmsgHeaderLen+n], cmsgHeaderLen + (n+cmsgAlign-1)&^(cmsgAlign-1)
}

func putCmsgInt(b []byte, level, kind, v int) int {
	d, n := putCmsg(b, level, kind, 4)
	binary.NativeEndian.PutUint32(d, uint32(v))
	return n
}

// putControl writes the control messages of a datagram to b and returns their length. segment is
// the length of a segment, or 0 for a single packet.
func putControl(b []byte, a *packet.Addressing, segment int) int {
	at := 0
	if a.Src.Is4() {
		d, n := putCmsg(b, unix.SOL_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		clear(d)
		src := a.Src.As4()
		copy(d[4:], src[:]) // Spec_dst
		at = n
		at += putCmsgInt(b[at:], unix.SOL_IP, unix.IP_TOS, int(a.TClass))
		if a.HopLimit > 0 { // the kernel rejects 0 here
			at += putCmsgInt(b[at:], unix.SOL_IP, unix.IP_TTL, int(a.HopLimit))
		}
	} else {
		d, n := putCmsg(b, unix.SOL_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
		clear(d)
		src := a.Src.As16()
		copy(d, src[:])
		at = n
		at += putCmsgInt(b[at:], unix.SOL_IPV6, unix.IPV6_TCLASS, int(a.TClass))
		if a.HopLimit > 0 {
			at += putCmsgInt(b[at:], unix.SOL_IPV6, unix.IPV6_HOPLIMIT, int(a.HopLimit))
		}
	}
	if segment > 0 {
		d, n := putCmsg(b[at:], unix.SOL_UDP, unix.UDP_SEGMENT, 2)
		binary.NativeEndian.PutUint16(d, uint16(segment))
		at += n
	}
	return at
}

// readControl sets a from the control messages in b. It returns the length of a segment, or 0 for a
// single packet.
func readControl(b []byte, a *packet.Addressing) (segment int) {
	ne := binary.NativeEndian
	for len(b) >= cmsgHeaderLen {
		n := ne.Uint64(b)
		if n < cmsgHeaderLen || n > uint64(len(b)) {
			break
		}
		level, kind, d := int(ne.Uint32(b[8:])), int(ne.Uint32(b[12:])), b[cmsgHeaderLen:n]
		b = b[min(int(n+cmsgAlign-1)&^(cmsgAlign-1), len(b)):]
		switch {
		case level == unix.SOL_IP && kind == unix.IP_PKTINFO && len(d) >= unix.SizeofInet4Pktinfo:
			a.Dst = netip.AddrFrom4([4]byte(d[8:12])) // the destination address of the IP header
		case level == unix.SOL_IP && kind == unix.IP_TOS && len(d) >= 1:
			a.TClass = d[0]
		case level == unix.SOL_IP && kind == unix.IP_TTL && len(d) >= 4:
			a.HopLimit = uint8(ne.Uint32(d))
		case level == unix.SOL_IPV6 && kind == unix.IPV6_PKTINFO && len(d) >= unix.SizeofInet6Pktinfo:
			a.Dst = netip.AddrFrom16([16]byte(d[:16]))
		case level == unix.SOL_IPV6 && kind == unix.IPV6_TCLASS && len(d) >= 4:
			a.TClass = uint8(ne.Uint32(d))
		case level == unix.SOL_IPV6 && kind == unix.IPV6_HOPLIMIT && len(d) >= 4:
			a.HopLimit = uint8(ne.Uint32(d))
		case level == unix.SOL_IPV6 && kind == ipv6FlowInfo && len(d) >= 4:
			a.FlowLabel = binary.BigEndian.Uint32(d) & 0xfffff
		case level == unix.SOL_UDP && kind == unix.UDP_GRO && len(d) >= 4:
			segment = int(ne.Uint32(d))
		}
	}
	return segment
}
