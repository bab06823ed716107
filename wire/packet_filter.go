package wire

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// Offsets in an Ethernet frame for the socket filter. The kernel has already removed a VLAN tag.
const (
	filterEtherType = 12
	filterIP        = 14
	filterIPv4Frag  = filterIP + 6
	filterIPv4Proto = filterIP + 9
	filterIPv6Next  = filterIP + 6
	filterIPv6Port  = filterIP + ipv6Len + 2
)

// Metadata of a frame that a filter can load (linux/filter.h).
const (
	skfPacketType = 0xfffff000 + 4  // SKF_AD_PKTTYPE: PACKET_HOST, PACKET_MULTICAST …
	skfVLANTag    = 0xfffff000 + 44 // SKF_AD_VLAN_TAG
	skfVLANThere  = 0xfffff000 + 48 // SKF_AD_VLAN_TAG_PRESENT
)

// maxFilterVLANs is the number of VLANs that a link serves. It keeps all jump distances of the
// filter within 255 instructions.
const maxFilterVLANs = 64

// A filterStep is an instruction of a filter. Its jump targets are indexes of instructions.
type filterStep struct {
	code    uint16
	k       uint32
	yes, no int // jump targets of a comparison
}

const filterNext = 0 // the next instruction

// roceFilter accepts IPv4 and IPv6 packets for UDP port 4791, and those of RoCE v1, whose
// destination MAC is the interface's or a multicast one. A tagged packet must be of one of the
// VLANs, or have a priority tag (VLAN 0). Of a fragmented IPv4 packet, the first fragment passes,
// and the link counts it; the others have no port.
//
// Of a NIC that several engines drive, it accepts only what is for queue pairs of slice number, and
// multicast packets.
func roceFilter(vlans []uint16, number, slices int) []unix.SockFilter {
	const (
		byteAt  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		halfAt  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		halfAtX = unix.BPF_LD | unix.BPF_H | unix.BPF_IND // at offset X + k
		ihlToX  = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
		wordAt  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		wordAtX = unix.BPF_LD | unix.BPF_W | unix.BPF_IND
		and     = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		modulo  = unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K
		always  = unix.BPF_JMP | unix.BPF_JA
		above   = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
		equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		anySet  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret     = unix.BPF_RET | unix.BPF_K

		next = filterNext
		vlan = 3 // index of the VLAN check
	)
	vlans = vlans[:min(len(vlans), maxFilterVLANs)]
	ethernet := 8 + len(vlans)
	ipv6, global, accept, reject := ethernet+11, ethernet+15, ethernet+17, ethernet+18
	matches4, matches6, matchesV1 := accept, accept, accept
	if slices > 1 { // what follows the rest of the program
		matches4 = reject + 1
		matches6, matchesV1 = matches4+2, matches4+4
	}
	steer := reject + 6
	program := []filterStep{
		{code: byteAt, k: skfPacketType},
		{equal, unix.PACKET_HOST, vlan, next},
		{equal, unix.PACKET_MULTICAST, next, reject},
		{code: byteAt, k: skfVLANThere},
		{equal, 0, ethernet, next},
		{code: halfAt, k: skfVLANTag},
		{code: and, k: tciVLAN},
	}
	for _, id := range vlans {
		program = append(program, filterStep{equal, uint32(id), ethernet, next})
	}
	program = append(program, []filterStep{
		{equal, 0, next, reject},

		{code: halfAt, k: filterEtherType}, // ethernet
		{equal, unix.ETH_P_IPV6, ipv6, next},
		{equal, packet.EtherTypeRoCEv1, global, next},
		{equal, unix.ETH_P_IP, next, reject},

		{code: byteAt, k: filterIPv4Proto},
		{equal, unix.IPPROTO_UDP, next, reject},
		{code: halfAt, k: filterIPv4Frag},
		{anySet, 0x1fff, reject, next},
		{code: ihlToX, k: filterIP},
		{code: halfAtX, k: filterIP + 2},
		{equal, Port, matches4, reject},

		{code: byteAt, k: filterIPv6Next}, // ipv6
		{equal, unix.IPPROTO_UDP, next, reject},
		{code: halfAt, k: filterIPv6Port},
		{equal, Port, matches6, reject},

		{code: byteAt, k: filterIPv6Next}, // global: the next header of a GRH is in the same place
		{equal, packet.NextHeaderBTH, matchesV1, reject},

		{code: ret, k: 1 << 20}, // accept the whole packet
		{code: ret, k: 0},       // reject
	}...)
	if slices > 1 {
		accept, reject := steer+5, steer+6 // jumps go forward only
		toManagement := accept
		if number > 0 {
			toManagement = reject
		}
		program = append(program, []filterStep{
			{code: wordAtX, k: filterIP + udpLen + destQPOffset}, // matches4
			{code: always, k: 3},
			{code: wordAt, k: filterIP + ipv6Len + udpLen + destQPOffset}, // matches6
			{code: always, k: 1},
			{code: wordAt, k: filterIP + ipv6Len + destQPOffset}, // matchesV1

			{code: and, k: destQPMask},        // steer
			{equal, destQPMask, accept, next}, // multicast
			{above, managementQPs, next, toManagement},
			{code: modulo, k: uint32(slices)},
			{equal, uint32(number), accept, reject},
			{code: ret, k: 1 << 20},
			{code: ret, k: 0},
		}...)
	}
	return assemble(program, equal, anySet, above)
}

// assemble converts jump targets to distances, in the instructions that jump.
func assemble(program []filterStep, jumps ...uint16) []unix.SockFilter {
	filter := make([]unix.SockFilter, len(program))
	for i, p := range program {
		distance := func(place int) uint8 {
			if place == filterNext {
				return 0
			}
			return uint8(place - i - 1)
		}
		filter[i] = unix.SockFilter{Code: p.code, K: p.k}
		if slices.Contains(jumps, p.code) {
			filter[i].Jt, filter[i].Jf = distance(p.yes), distance(p.no)
		}
	}
	return filter
}

func attachFilter(fd int, vlans []uint16, number, slices int) error {
	f := roceFilter(vlans, number, slices)
	p := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	return os.NewSyscallError("SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &p))
}
