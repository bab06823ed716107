package wire

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel gives a packet to the packet socket first, and then takes it through its own IP and
// UDP layers to the socket that reserves the port, which drops it. A program at the ingress of the
// interface (tcx, Linux 6.6) drops the packet before those layers. It needs CAP_BPF and
// CAP_NET_ADMIN; without them, packets are dropped at the socket. It disappears with the link's
// descriptor.

// An ingress is the program of an interface. Its zero value is one that is not attached.
type ingress struct {
	link  int // descriptor, 0 if not attached
	index int // of the interface
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
	if g.link != 0 && g.index == index && slices.Equal(addrs, g.addrs) {
		return
	}
	program, err := loadIngress(addrs)
	if err != 0 {
		g.close() // rather than drop what is for addresses that the interface has lost
		return
	}
	defer unix.Close(program)
	if g.link != 0 && g.index == index && updateLink(g.link, program) == 0 {
		g.addrs = addrs
		return
	}
	g.close()
	if link, err := createLink(program, index); err == 0 {
		*g = ingress{link, index, addrs}
	}
}

func (g *ingress) close() {
	if g.link != 0 {
		unix.Close(g.link)
	}
	*g = ingress{}
}

// A bpfInstruction is struct bpf_insn.
type bpfInstruction struct {
	code   uint8
	regs   uint8 // destination, and source times 16
	offset int16
	value  int32
}

const (
	bpfPass = -1 // TCX_NEXT: as if the program were not there
	bpfDrop = 2  // TCX_DROP

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
func ingressProgram(addrs []netip.Addr) (program []bpfInstruction) {
	const (
		jump       = 0x06 // BPF_JMP32
		toPass     = 1 << 14
		toDrop     = toPass + 1
		toIPv6     = toPass + 2
		loadWord   = unix.BPF_LDX | unix.BPF_W | unix.BPF_MEM
		byteAt     = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS // to register 0, of the packet of register 6
		halfAt     = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		wordAt     = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		set        = unix.BPF_ALU64 | unix.BPF_MOV
		ipv4       = filterIP
		ipv4Dst    = ipv4 + 16
		ipv4Port   = ipv4 + ipv4Len + 2
		ipv6Dst    = filterIP + 24
		moreOrLate = 0x3fff // more fragments, or a fragment offset
	)
	add := func(code, regs uint8, offset int16, value uint32) {
		program = append(program, bpfInstruction{code, regs, offset, int32(value)})
	}
	load := func(code uint8, at uint32) { add(code, 0, 0, at) }
	unless := func(value uint32) { add(jump|unix.BPF_JNE, 0, toPass, value) }

	add(set|unix.BPF_X, 1<<4|6, 0, 0)
	add(loadWord, 6<<4, skbLen, 0)
	add(jump|unix.BPF_JLT, 0, toPass, minIngressFrame)
	add(loadWord, 6<<4, skbPacketType, 0)
	unless(unix.PACKET_HOST)
	add(loadWord, 6<<4, skbVLANPresent, 0)
	unless(0)
	load(halfAt, filterEtherType)
	add(jump|unix.BPF_JEQ, 0, toIPv6, unix.ETH_P_IPV6)
	unless(unix.ETH_P_IP)
	load(byteAt, ipv4)
	unless(0x45) // no options
	load(byteAt, filterIPv4Proto)
	unless(unix.IPPROTO_UDP)
	load(halfAt, filterIPv4Frag)
	add(jump|unix.BPF_JSET, 0, toPass, moreOrLate)
	load(halfAt, ipv4Port)
	unless(Port)
	load(wordAt, ipv4Dst)
	n := 0
	for _, a := range addrs {
		if a.Is4() && n < maxIngressAddresses {
			b := a.As4()
			add(jump|unix.BPF_JEQ, 0, toDrop, binary.BigEndian.Uint32(b[:]))
			n++
		}
	}
	add(unix.BPF_JMP|unix.BPF_JA, 0, toPass, 0)

	startIPv6 := len(program)
	load(byteAt, filterIPv6Next)
	unless(unix.IPPROTO_UDP)
	load(halfAt, filterIPv6Port)
	unless(Port)
	n = 0
	for _, a := range addrs {
		if a.Is4() || n == maxIngressAddresses {
			continue
		}
		b := a.As16()
		for i := 0; i < 16; i += 4 {
			load(wordAt, uint32(ipv6Dst+i))
			add(jump|unix.BPF_JNE, 0, int16(2*(3-i/4)+1), binary.BigEndian.Uint32(b[i:])) // to the next address
		}
		add(unix.BPF_JMP|unix.BPF_JA, 0, toDrop, 0)
		n++
	}
	pass := len(program)
	add(set|unix.BPF_K, 0, 0, 1<<32+bpfPass)
	add(unix.BPF_JMP|unix.BPF_EXIT, 0, 0, 0)
	drop := len(program)
	add(set|unix.BPF_K, 0, 0, bpfDrop)
	add(unix.BPF_JMP|unix.BPF_EXIT, 0, 0, 0)
	for i := range program {
		for to, place := range map[int16]int{toPass: pass, toDrop: drop, toIPv6: startIPv6} {
			if program[i].offset == to {
				program[i].offset = int16(place - i - 1)
			}
		}
	}
	return program
}

// loadIngress gives the kernel the program for the addresses, and returns its descriptor.
func loadIngress(addrs []netip.Addr) (fd int, err unix.Errno) {
	program, license := ingressProgram(addrs), new([1]byte)
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&program[0])
	pins.Pin(license)
	attr := struct {
		kind, count                  uint32
		program, license             uint64
		logLevel, logSize            uint32
		logBuffer                    uint64
		kernelVersion, flags         uint32
		name                         [16]byte
		interfaceIndex, expectedType uint32
	}{
		kind: unix.BPF_PROG_TYPE_SCHED_CLS, count: uint32(len(program)),
		program: uint64(uintptr(unsafe.Pointer(&program[0]))), license: uint64(uintptr(unsafe.Pointer(license))),
		name: [16]byte{'s', 'o', 'f', 't', 'r', 'o', 'c', 'e'},
	}
	return bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// createLink attaches a program behind those that are at the ingress of the interface already.
func createLink(program, index int) (fd int, err unix.Errno) {
	attr := struct {
		program, index, place, flags uint32
		relative, unused             uint32
		revision                     uint64
	}{program: uint32(program), index: uint32(index), place: unix.BPF_TCX_INGRESS}
	return bpf(unix.BPF_LINK_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// updateLink replaces the program of a link.
func updateLink(link, program int) unix.Errno {
	attr := struct{ link, program, flags, old uint32 }{link: uint32(link), program: uint32(program)}
	_, err := bpf(unix.BPF_LINK_UPDATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return err
}

func bpf(command uintptr, attr unsafe.Pointer, size uintptr) (int, unix.Errno) {
	r, _, err := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size)
	return int(r), err
}
