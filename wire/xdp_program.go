package wire

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"softroce/packet"
)

// An xdpFilter is what the XDP program of a link accepts.
type xdpFilter struct {
	mac   [6]byte
	v4    [][4]byte // addresses of the interface and its VLANs
	v6    [][16]byte
	vlans []uint16
}

// maxFilterAddrs is the number of addresses of each family that a link serves. It keeps all jump
// distances of the program within 32767 instructions.
const maxFilterAddrs = 4096

// filter returns the filter for an interface in state s.
func (s *netdevState) filter() (f xdpFilter) {
	f.mac, f.vlans = s.mac, s.ids()
	for _, i := range append([]*netdevState{s}, s.vlans...) {
		for _, a := range i.addrs {
			if a := a.Addr(); a.Is4() {
				f.v4 = append(f.v4, a.As4())
			} else {
				f.v6 = append(f.v6, a.As16())
			}
		}
	}
	f.v4, f.v6 = f.v4[:min(len(f.v4), maxFilterAddrs)], f.v6[:min(len(f.v6), maxFilterAddrs)]
	return f
}

func (f *xdpFilter) equal(g *xdpFilter) bool {
	return f.mac == g.mac && slices.Equal(f.v4, g.v4) && slices.Equal(f.v6, g.v6) && slices.Equal(f.vlans, g.vlans)
}

// Offsets in an Ethernet frame without a tag, for the XDP program.
const (
	xdpTCI      = 14 // of a frame with a tag
	xdpIPv4Dst  = filterIP + 16
	xdpIPv6Dst  = filterIP + 24
	xdpIPv4Port = filterIP + ipv4Len + 2
	xdpIPv4Room = filterIP + ipv4Len + 8 // what must be there to look at an IPv4 packet
	xdpIPv6Room = filterIP + ipv6Len + 8
)

// Fields of struct xdp_md.
const (
	xdpData    = 0
	xdpDataEnd = 4
	xdpQueue   = 16 // rx_queue_index
)

// xdpPass is the program's result for frames of the kernel (XDP_PASS).
const xdpPass = 2

// steer loads the destination queue pair of a packet whose BTH is at an offset. Multicast packets
// go to slice 0, as does what is too short for a BTH.
func steer(place string, bth int32) asm.Instructions {
	return asm.Instructions{
		asm.JNE.Imm(asm.R8, 0, "redirect").WithSymbol("steer " + place),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, bth+destQPOffset+4),
		asm.JGT.Reg(asm.R4, asm.R3, "redirect"),
		asm.LoadMem(asm.R6, asm.R2, int16(bth+destQPOffset), asm.Word),
		asm.Ja.Label("queue pair"),
	}
}

// program returns the XDP program: it redirects packets for UDP port 4791 of the interface, and
// those of RoCE v1, to the socket of their queue and of the slice that serves their queue pair, and
// passes everything else to the kernel, as roceFilter does. It looks at the destination address of
// IP packets too: it takes frames away from the kernel, which may have to route those for others.
// RoCE v1 is not routed. The first fragment of an IPv4 packet is redirected, and the link counts
// it; the others have no port. A packet with IPv4 options is passed: to find its port takes
// arithmetic that Linux permits only with CAP_PERFMON.
//
// Registers: R2 is where the IP packet's Ethernet header would begin without a tag, R3 the end of
// the frame, R7 the EtherType, R8 whether the frame is a multicast, R9 the context. In the end R6
// is the slice.
func (f *xdpFilter) program(sockets *ebpf.Map, slices int) *ebpf.ProgramSpec {
	be := func(v uint16) int32 { return int32(networkOrder(v)) }
	word := func(b []byte) int32 { return int32(binary.NativeEndian.Uint32(b)) }
	half := func(b []byte) int32 { return int32(binary.NativeEndian.Uint16(b)) }
	room := func(n int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, n),
			asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		}
	}
	to := func(place string) string {
		if slices == 1 {
			return "redirect"
		}
		return "steer " + place
	}
	code := asm.Instructions{
		asm.Mov.Reg(asm.R9, asm.R1),
		asm.LoadMem(asm.R2, asm.R1, xdpData, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, xdpDataEnd, asm.Word),
	}
	code = append(code, room(xdpIPv4Room)...)
	code = append(code,
		asm.LoadMem(asm.R8, asm.R2, 0, asm.Byte),
		asm.And.Imm(asm.R8, 1),
		asm.LoadMem(asm.R4, asm.R2, 0, asm.Word),
		asm.LoadMem(asm.R5, asm.R2, 4, asm.Half),
		asm.JEq.Imm(asm.R8, 0, "unicast"),
		asm.JNE.Imm32(asm.R4, -1, "type"),
		asm.JEq.Imm(asm.R5, 0xffff, "pass"), // broadcast
		asm.Ja.Label("type"),
		asm.JNE.Imm32(asm.R4, word(f.mac[:]), "pass").WithSymbol("unicast"),
		asm.JNE.Imm(asm.R5, half(f.mac[4:]), "pass"),

		asm.LoadMem(asm.R7, asm.R2, filterEtherType, asm.Half).WithSymbol("type"),
		asm.JNE.Imm(asm.R7, be(etherVLAN), "network"),
		asm.LoadMem(asm.R4, asm.R2, xdpTCI, asm.Half),
		asm.LoadMem(asm.R7, asm.R2, filterEtherType+vlanTagLen, asm.Half),
		asm.Add.Imm(asm.R2, vlanTagLen),
		asm.And.Imm(asm.R4, be(tciVLAN)),
		asm.JEq.Imm(asm.R4, 0, "tagged"), // a priority tag
	)
	for _, id := range f.vlans[:min(len(f.vlans), maxFilterVLANs)] {
		code = append(code, asm.JEq.Imm(asm.R4, be(id), "tagged"))
	}
	code = append(code, asm.Ja.Label("pass"))
	tagged := room(xdpIPv4Room)
	tagged[0] = tagged[0].WithSymbol("tagged")
	code = append(code, tagged...)
	code = append(code,
		asm.JEq.Imm(asm.R7, be(etherIPv6), "ipv6").WithSymbol("network"),
		asm.JEq.Imm(asm.R7, be(packet.EtherTypeRoCEv1), "global"),
		asm.JNE.Imm(asm.R7, be(etherIPv4), "pass"),

		asm.LoadMem(asm.R4, asm.R2, filterIPv4Proto, asm.Byte),
		asm.JNE.Imm(asm.R4, unix.IPPROTO_UDP, "pass"),
		asm.LoadMem(asm.R4, asm.R2, filterIPv4Frag, asm.Half),
		asm.JSet.Imm(asm.R4, be(0x1fff), "pass"), // a fragment other than the first
		asm.LoadMem(asm.R5, asm.R2, xdpIPv4Dst, asm.Word),
		asm.LoadMem(asm.R4, asm.R2, filterIP, asm.Byte),
		asm.JNE.Imm(asm.R4, 0x45, "pass"), // with options, which RoCEv2 packets do not have
		asm.LoadMem(asm.R4, asm.R2, xdpIPv4Port, asm.Half),
		asm.JNE.Imm(asm.R4, be(Port), "pass"),
		asm.JNE.Imm(asm.R8, 0, "redirect"),
	)
	for _, a := range f.v4 {
		code = append(code, asm.JEq.Imm32(asm.R5, word(a[:]), to("IPv4")))
	}
	code = append(code, asm.Ja.Label("pass"))
	ipv6 := room(xdpIPv6Room)
	ipv6[0] = ipv6[0].WithSymbol("ipv6")
	code = append(code, ipv6...)
	code = append(code,
		asm.LoadMem(asm.R4, asm.R2, filterIPv6Next, asm.Byte),
		asm.JNE.Imm(asm.R4, unix.IPPROTO_UDP, "pass"),
		asm.LoadMem(asm.R4, asm.R2, filterIPv6Port, asm.Half),
		asm.JNE.Imm(asm.R4, be(Port), "pass"),
		asm.JNE.Imm(asm.R8, 0, "redirect"),
		asm.LoadMem(asm.R4, asm.R2, xdpIPv6Dst, asm.Word),
		asm.LoadMem(asm.R5, asm.R2, xdpIPv6Dst+4, asm.Word),
		asm.LoadMem(asm.R6, asm.R2, xdpIPv6Dst+8, asm.Word),
		asm.LoadMem(asm.R7, asm.R2, xdpIPv6Dst+12, asm.Word),
	)
	for i, a := range f.v6 {
		next := fmt.Sprintf("address %d", i)
		code = append(code,
			asm.JNE.Imm32(asm.R4, word(a[:]), next),
			asm.JNE.Imm32(asm.R5, word(a[4:]), next),
			asm.JNE.Imm32(asm.R6, word(a[8:]), next),
			asm.JEq.Imm32(asm.R7, word(a[12:]), to("IPv6")),
			asm.Mov.Imm(asm.R0, 0).WithSymbol(next),
		)
	}
	code = append(code,
		asm.Ja.Label("pass"),

		asm.LoadMem(asm.R4, asm.R2, filterIPv6Next, asm.Byte).WithSymbol("global"), // the same place in a GRH
		asm.JEq.Imm(asm.R4, packet.NextHeaderBTH, to("RoCE v1")),

		asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
		asm.Return(),
	)
	if slices > 1 {
		if len(f.v4) > 0 { // the kernel refuses code that nothing jumps to
			code = append(code, steer("IPv4", filterIP+ipv4Len+udpLen)...)
		}
		if len(f.v6) > 0 {
			code = append(code, steer("IPv6", filterIP+ipv6Len+udpLen)...)
		}
		code = append(code, steer("RoCE v1", filterIP+ipv6Len)...)
		code = append(code,
			asm.HostTo(asm.BE, asm.R6, asm.Word).WithSymbol("queue pair"),
			asm.And.Imm(asm.R6, destQPMask),
			asm.JLE.Imm(asm.R6, managementQPs, "redirect"),
			asm.Mod.Imm(asm.R6, int32(slices)),
			asm.Ja.Label("slice"),
		)
	}
	code = append(code,
		asm.Mov.Imm(asm.R6, 0).WithSymbol("redirect"),
		asm.LoadMapPtr(asm.R1, sockets.FD()).WithSymbol("slice"),
		asm.LoadMem(asm.R2, asm.R9, xdpQueue, asm.Word),
		asm.Mul.Imm(asm.R2, int32(slices)),
		asm.Add.Reg(asm.R2, asm.R6),
		asm.Mov.Imm(asm.R3, xdpPass), // if the queue has no socket
		asm.FnRedirectMap.Call(),
		asm.Return(),
	)
	return &ebpf.ProgramSpec{Name: "softroce", Type: ebpf.XDP, License: "GPL", Instructions: code}
}
