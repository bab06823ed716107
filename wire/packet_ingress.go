package wire

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The kernel gives a packet to the packet socket first, and then takes it through its own IP and
// UDP layers to the socket that reserves the port, which drops it. A program at the ingress of the
// interface (tcx, Linux 6.6) drops the packet before those layers. It needs CAP_BPF and
// CAP_NET_ADMIN; without them, packets are dropped at the socket. It disappears with the link's
// descriptor.

// An ingress is the program of an interface. Its zero value is one that is not attached.
type ingress struct {
	link  link.Link // nil if not attached
	index int       // of the interface
	addrs []netip.Addr
}

// maxIngressAddresses is how many addresses of a family the program knows.
const maxIngressAddresses = 64

// follow attaches or updates the program: it drops what is for these addresses of the interface.
func (g *ingress) follow(index int, prefixes []netip.Prefix) {
	addrs := make([]netip.Addr, len(prefixes))
	for i, p := range prefixes {
		addrs[i] = p.Addr()
	}
	if g.link != nil && g.index == index && slices.Equal(addrs, g.addrs) {
		return
	}
	if g.index != index {
		g.close()
	}
	if g.attach(index, addrs) != nil {
		g.close() // rather than drop what is for addresses that the interface has lost
	}
}

// attach attaches the program, or replaces the one that is attached.
func (g *ingress) attach(index int, addrs []netip.Addr) error {
	program, err := ebpf.NewProgram(ingressProgram(addrs))
	if err != nil {
		return err
	}
	defer program.Close()
	if g.link != nil {
		err = g.link.Update(program)
	} else {
		g.link, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress})
	}
	if err != nil {
		return err
	}
	g.index, g.addrs = index, addrs
	return nil
}

func (g *ingress) close() {
	if g.link != nil {
		g.link.Close()
	}
	*g = ingress{}
}

const (
	tcxNext = -1 // TCX_NEXT: as if the program were not there
	tcxDrop = 2  // TCX_DROP

	// No RoCEv2 frame is shorter. A load from beyond the end of a frame would end the programs of
	// others as well.
	minIngressFrame = filterIPv6Port + 2

	// Offsets in struct __sk_buff.
	skbLen         = 0
	skbPacketType  = 4
	skbVLANPresent = 20
)

// ingressProgram drops unfragmented RoCEv2 packets without a tag, for the interface's MAC and one
// of the addresses: the packet socket has them. What is for other addresses the host may forward.
// R6 is the packet.
func ingressProgram(addrs []netip.Addr) *ebpf.ProgramSpec {
	const (
		ipv4Dst    = filterIP + 16
		ipv4Port   = filterIP + ipv4Len + 2
		ipv6Dst    = filterIP + 24
		moreOrLate = 0x3fff // more fragments, or a fragment offset
	)
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R0, asm.R6, skbLen, asm.Word),
		asm.JLT.Imm(asm.R0, minIngressFrame, "pass"),
		asm.LoadMem(asm.R0, asm.R6, skbPacketType, asm.Word),
		asm.JNE.Imm(asm.R0, unix.PACKET_HOST, "pass"),
		asm.LoadMem(asm.R0, asm.R6, skbVLANPresent, asm.Word),
		asm.JNE.Imm(asm.R0, 0, "pass"),
		asm.LoadAbs(filterEtherType, asm.Half),
		asm.JEq.Imm(asm.R0, unix.ETH_P_IPV6, "ipv6"),
		asm.JNE.Imm(asm.R0, unix.ETH_P_IP, "pass"),

		asm.LoadAbs(filterIP, asm.Byte),
		asm.JNE.Imm(asm.R0, 0x45, "pass"), // with options
		asm.LoadAbs(filterIPv4Proto, asm.Byte),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, "pass"),
		asm.LoadAbs(filterIPv4Frag, asm.Half),
		asm.JSet.Imm(asm.R0, moreOrLate, "pass"),
		asm.LoadAbs(ipv4Port, asm.Half),
		asm.JNE.Imm(asm.R0, Port, "pass"),
		asm.LoadAbs(ipv4Dst, asm.Word),
	}
	n := 0
	for _, a := range addrs {
		if a.Is4() && n < maxIngressAddresses {
			b := a.As4()
			code = append(code, asm.JEq.Imm32(asm.R0, int32(binary.BigEndian.Uint32(b[:])), "drop"))
			n++
		}
	}
	code = append(code,
		asm.Ja.Label("pass"),

		asm.LoadAbs(filterIPv6Next, asm.Byte).WithSymbol("ipv6"),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, "pass"),
		asm.LoadAbs(filterIPv6Port, asm.Half),
		asm.JNE.Imm(asm.R0, Port, "pass"),
	)
	n = 0
	for _, a := range addrs {
		if a.Is4() || n == maxIngressAddresses {
			continue
		}
		n++
		next := "after " + a.String()
		b := a.As16()
		for i := 0; i < len(b); i += 4 {
			code = append(code,
				asm.LoadAbs(int32(ipv6Dst+i), asm.Word),
				asm.JNE.Imm32(asm.R0, int32(binary.BigEndian.Uint32(b[i:])), next))
		}
		code = append(code, asm.Ja.Label("drop"), asm.Mov.Imm(asm.R0, 0).WithSymbol(next))
	}
	code = append(code,
		asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("pass"),
		asm.Return(),
	)
	if len(addrs) > 0 { // the kernel refuses code that nothing jumps to
		code = append(code,
			asm.Mov.Imm(asm.R0, tcxDrop).WithSymbol("drop"),
			asm.Return(),
		)
	}
	return &ebpf.ProgramSpec{Name: "softroce", Type: ebpf.SchedCLS, License: "GPL", Instructions: code}
}
