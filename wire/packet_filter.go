package wire

import (
	"os"

	"golang.org/x/sys/unix"
)

// Offsets in an Ethernet frame, as the socket filter sees it: the kernel has taken a
// VLAN tag out by then.
const (
	filterEtherType = 12
	filterIP        = 14
	filterIPv4Frag  = filterIP + 6
	filterIPv4Proto = filterIP + 9
	filterIPv6Next  = filterIP + 6
	filterIPv6Port  = filterIP + ipv6Len + 2
)

// Data about a frame that a filter can load (linux/filter.h).
const (
	skfPacketType = 0xfffff000 + 4  // SKF_AD_PKTTYPE: PACKET_HOST, PACKET_MULTICAST …
	skfVLANTag    = 0xfffff000 + 44 // SKF_AD_VLAN_TAG
	skfVLANThere  = 0xfffff000 + 48 // SKF_AD_VLAN_TAG_PRESENT
)

// roceFilter accepts IPv4 and IPv6 packets for UDP port 4791 with the interface's own
// destination MAC, or a multicast one. Those of a VLAN belong to the VLAN's interface, unless the tag is
// only for priority (VLAN 0). Of IPv4 fragments, the first passes and is counted by
// the link; the others show no port.
func roceFilter() []unix.SockFilter {
	const (
		byteAt  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		halfAt  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		halfAtX = unix.BPF_LD | unix.BPF_H | unix.BPF_IND // k bytes behind X
		ihlToX  = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
		equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		anySet  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret     = unix.BPF_RET | unix.BPF_K

		next, vlan, ethernet, ipv6, accept, reject = 0, 3, 7, 17, 21, 22 // places below
	)
	program := []struct {
		code    uint16
		k       uint32
		yes, no int // where a comparison goes
	}{
		{code: byteAt, k: skfPacketType},
		{equal, unix.PACKET_HOST, vlan, next},
		{equal, unix.PACKET_MULTICAST, next, reject},
		vlan: {code: byteAt, k: skfVLANThere},
		4:    {equal, 0, ethernet, next},
		5:    {code: halfAt, k: skfVLANTag},
		6:    {anySet, 0xfff, reject, next},

		ethernet: {code: halfAt, k: filterEtherType},
		8:        {equal, unix.ETH_P_IPV6, ipv6, next},
		9:        {equal, unix.ETH_P_IP, next, reject},

		10: {code: byteAt, k: filterIPv4Proto},
		11: {equal, unix.IPPROTO_UDP, next, reject},
		12: {code: halfAt, k: filterIPv4Frag},
		13: {anySet, 0x1fff, reject, next},
		14: {code: ihlToX, k: filterIP},
		15: {code: halfAtX, k: filterIP + 2},
		16: {equal, Port, accept, reject},

		ipv6: {code: byteAt, k: filterIPv6Next},
		18:   {equal, unix.IPPROTO_UDP, next, reject},
		19:   {code: halfAt, k: filterIPv6Port},
		20:   {equal, Port, accept, reject},

		accept: {code: ret, k: 1 << 20}, // the bytes to keep: all
		reject: {code: ret, k: 0},
	}
	filter := make([]unix.SockFilter, len(program))
	for i, p := range program {
		distance := func(place int) uint8 {
			if place == next {
				return 0
			}
			return uint8(place - i - 1)
		}
		filter[i] = unix.SockFilter{Code: p.code, K: p.k}
		if p.code == equal || p.code == anySet {
			filter[i].Jt, filter[i].Jf = distance(p.yes), distance(p.no)
		}
	}
	return filter
}

func attachFilter(fd int) error {
	f := roceFilter()
	p := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	return os.NewSyscallError("SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &p))
}
