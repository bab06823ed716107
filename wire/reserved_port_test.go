package wire

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// withOptions adds options to the header of an IPv4 packet, or an extension header to an IPv6
// packet.
func withOptions(frame []byte, v6 bool) []byte {
	const ip = packet.EthernetLen
	udp, added := ip+packet.IPv4Len, []byte{1, 1, 1, 1} // no operation
	if v6 {
		udp, added = ip+packet.IPv6Len, []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0} // PadN
	}
	b := slices.Concat(frame[:udp], added, frame[udp:])
	if v6 {
		b[ip+6] = unix.IPPROTO_DSTOPTS
		binary.BigEndian.PutUint16(b[ip+4:], uint16(len(b)-udp))
		return b
	}
	b[ip] = 0x40 | packet.IPv4Len/4 + 1
	binary.BigEndian.PutUint16(b[ip+2:], uint16(len(b)-ip))
	putChecksum(b[ip+10:], b[ip:udp+len(added)], 0)
	return b
}

// A refusedPacket is what an ICMP error "port unreachable" says of the packet.
type refusedPacket struct {
	v6, options bool
	port        uint16
}

// refused returns the packet that a frame reports as refused, if it is such an ICMP error.
func refused(b []byte) (r refusedPacket, ok bool) {
	const icmpLen = 8
	ip := b[packet.EthernetLen:]
	udp := 0
	switch kind := binary.BigEndian.Uint16(b[12:]); {
	case kind == unix.ETH_P_IP && ip[9] == unix.IPPROTO_ICMP && ip[packet.IPv4Len] == 3:
		ip = ip[packet.IPv4Len+icmpLen:]
		udp = int(ip[0]&0xf) * 4
		r.options = udp > packet.IPv4Len
	case kind == unix.ETH_P_IPV6 && ip[6] == unix.IPPROTO_ICMPV6 && ip[packet.IPv6Len] == 1:
		ip = ip[packet.IPv6Len+icmpLen:]
		udp, r.v6, r.options = packet.IPv6Len, true, ip[6] == unix.IPPROTO_DSTOPTS
		if r.options {
			udp += 8
		}
	default:
		return r, false
	}
	r.port = binary.BigEndian.Uint16(ip[udp+2:])
	return r, true
}

// An xdp link takes most packets before the kernel, which still gets those with options.
func TestReservedPortPreventsPortUnreachable(t *testing.T) {
	const otherPort = Port + 1
	for _, kind := range []string{"no", "packet", "udp", "xdp"} {
		t.Run(kind+" link", func(t *testing.T) {
			l := newVethPair(t)
			want := []refusedPacket{{port: otherPort}, {v6: true, port: otherPort}} // of the last packets
			if kind == "no" {
				want = []refusedPacket{{false, false, Port}, {false, true, Port}, {true, false, Port}, {true, true, Port}}
			} else {
				l.b.linkOf(kind)
			}
			tap := l.a.tap()
			var last [][]byte
			for _, v6 := range []bool{false, true} {
				// The reply must not wait for neighbor discovery.
				_, err := resolve(l.b.iface(), l.b.path(l.a, v6).Src, l.b.path(l.a, v6).Dst)
				must(t, err)
				good := l.rawFrame(v6)
				f := checksummed(good, 0) // without a checksum, the kernel drops IPv6 packets silently
				for range 3 {             // the kernel limits the rate of its errors
					tap.send(f)
					tap.send(withOptions(f, v6))
				}
				udp := packet.EthernetLen + packet.IPv4Len
				if v6 {
					udp = packet.EthernetLen + packet.IPv6Len
				}
				last = append(last, change(checksummed(good, 0xffff), udp+2, byte(otherPort>>8), byte(otherPort&0xff)))
			}
			got := map[refusedPacket]int{}
			eventually(t, "ICMP errors", func() bool {
				for _, f := range last { // again, since the kernel may not send an error for each
					tap.send(f)
				}
				for _, b := range tap.frames(false) {
					if r, ok := refused(b); ok {
						got[r]++
					}
				}
				return !slices.ContainsFunc(want, func(r refusedPacket) bool { return got[r] == 0 })
			})
			for r, n := range got {
				if kind != "no" && r.port == Port {
					t.Errorf("%d ICMP errors for packets such as %+v", n, r)
				}
			}
		})
	}
}
