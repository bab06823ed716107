package wire

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
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

// openOnly lets the process open n more descriptors only, until the test calls the function that is
// returned, or ends.
func openOnly(t testing.TB, n int) (more func()) {
	t.Helper()
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	next := make([]int, n+1) // the lowest that are free, of which a file gets the first
	for i := range next {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		next[i] = fd
	}
	more = func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }
	t.Cleanup(more)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next[n]), Max: limit.Max}))
	return more
}

// reservedPortOf returns that of a link.
func reservedPortOf(l Link) *reservedPort {
	if x, ok := l.(*XDPLink); ok {
		return &x.reservedPort
	}
	return &l.(*PacketLink).reservedPort
}

// A link that has not got the port on a VLAN interface, or its multicast groups there, reports
// that, and tries again at the next change. If another daemon has the port, or the interface is
// gone, that is no error.
func TestLinksReportWhatTheyLackOnAVLAN(t *testing.T) {
	for _, kind := range []string{"packet", "xdp"} {
		t.Run(kind, func(t *testing.T) {
			l := newVethPair(t)
			rx := l.b.linkOf(kind)
			port, iface := reservedPortOf(rx), netdevOf(rx)
			l.b.stopWatching(iface)
			lo, err := l.b.nl.LinkByName("lo")
			must(t, err)
			vlan := &netdevState{name: "lo", id: 7, index: lo.Attrs().Index}
			follow := func(want error) {
				t.Helper()
				l.b.change(iface, func(s *netdevState) { s.vlans = []*netdevState{vlan} })
				_, err := rx.Receive(0, make([]RxFrame, 1))
				if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), kind+" link on "+l.b.name+": VLAN interface lo: ") {
					t.Errorf("reports %v, want %v", err, want)
				}
			}
			must(t, Join(rx, group4))

			more := openOnly(t, 0)
			follow(unix.EMFILE)
			more()
			follow(nil)
			mine := port.vlans["lo"]
			if !mine.reserved() {
				t.Fatal("the port on the VLAN interface is not reserved")
			}

			port.vlans["lo"] = vlanPort{vlan.index, []int{-1, -1}} // which can join no group
			must(t, setMembership(mine.portSockets[0], vlan.index, group4, false))
			follow(unix.EBADF)
			port.vlans["lo"] = mine
			follow(nil)
			if setMembership(mine.portSockets[0], vlan.index, group4, false) != nil {
				t.Error("is not a member of the group on the VLAN interface")
			}

			port.vlans["lo"] = vlanPort{vlan.index, []int{-1, -1}}
			if err := Join(rx, group6); !errors.Is(err, unix.EBADF) || !strings.Contains(err.Error(), "VLAN interface lo: ") {
				t.Errorf("Join returned %v", err)
			}
			if setMembership(port.sockets[1], port.index, group6, false) == nil {
				t.Error("is a member of a group that Join returned an error for")
			}
			Join(rx, group4) // again, for another queue pair
			if setMembership(port.sockets[0], port.index, group4, false) != nil {
				t.Error("is no member any more of a group that was joined before")
			}
			mine.close()

			var other []int
			l.b.do(func() { other, err = reservePort("lo") })
			must(t, err)
			delete(port.vlans, "lo")
			follow(nil)
			vlanPort{portSockets: other}.close()
			vlan = &netdevState{name: "gone", id: 7, index: vlan.index + 1000}
			follow(nil)
		})
	}
}

// A link is not opened without the port on a VLAN interface.
func TestLinkIsOpenedWithItsVLANs(t *testing.T) {
	l := newVethPair(t)
	iface := l.b.iface()
	l.b.stopWatching(iface)
	vlan := &netdevState{name: "lo", id: 7, index: 1}
	l.b.change(iface, func(s *netdevState) { s.vlans = []*netdevState{vlan} })
	l.b.do(func() {
		more := openOnly(t, 2) // for the port on the interface
		if _, err := NewPacketLink(iface); !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "VLAN interface lo: ") {
			t.Error(err)
		}
		more()
		rx, err := NewPacketLink(iface) // the port is free
		must(t, err)
		must(t, rx.Close())
	})
}
