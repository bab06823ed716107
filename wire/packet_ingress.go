package wire

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"softroce/packet"
)

// The kernel gives a packet to the packet socket first, and then takes it through its own IP and
// UDP layers to the socket that reserves the port, which drops it. Between them is a program at the
// ingress of the interface (tcx, Linux 6.6). It does two things:
//
//   - It drops the packet before those layers.
//   - It counts the packets that the packet socket may have got, in memory that the link reads. So
//     an engine that polls makes few system calls until one has arrived.
//
// It needs CAP_BPF and CAP_NET_ADMIN; without them, packets are dropped at the socket, and each
// poll is a system call. It disappears with the link's descriptor.

// An ingress is the program of an interface. Its zero value is one that is not attached.
type ingress struct {
	link     link.Link // nil if not attached
	index    int       // of the interface
	addrs    []netip.Addr
	arrivals *ebpf.Map                   // of one number: the packets counted
	counter  atomic.Pointer[ebpf.Memory] // of arrivals; nil if the program is not attached
}

// maxIngressAddresses is how many addresses of a family the program knows.
const maxIngressAddresses = 64

// follow attaches or updates the program: it drops what is for the addresses of the interface. No
// error is harmful, since the link works without the program, too. After one the next change of
// the interface is another try.
func (g *ingress) follow(iface *Netdev) {
	s := iface.state.Load()
	index, addrs := s.index, make([]netip.Addr, len(s.addrs))
	for i, p := range s.addrs {
		addrs[i] = p.Addr()
	}
	if g.link != nil && g.index == index && slices.Equal(addrs, g.addrs) {
		return
	}
	if g.index != index {
		g.close()
	}
	if iface.inNamespace(func() error { return g.attach(index, addrs) }) != nil {
		g.close() // rather than drop what is for addresses that the interface has lost
	}
}

// attach attaches the program, or replaces the one that is attached.
func (g *ingress) attach(index int, addrs []netip.Addr) (err error) {
	if g.arrivals == nil {
		g.arrivals, err = ebpf.NewMap(&ebpf.MapSpec{Name: "softroce", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
		if err != nil {
			return err
		}
	}
	program, err := ebpf.NewProgram(ingressProgram(addrs, g.arrivals))
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
	counter, err := g.arrivals.Memory()
	g.counter.Store(counter)
	return err
}

func (g *ingress) close() {
	g.counter.Store(nil)
	if g.link != nil {
		g.link.Close()
	}
	if g.arrivals != nil {
		g.arrivals.Close()
	}
	g.link, g.arrivals = nil, nil
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
// It counts these packets and all others that the socket may have got, unless they are too short
// for a BTH.
//
// Registers: R6 is the packet, R7 whether the kernel needs it, too, and R8 the result.
func ingressProgram(addrs []netip.Addr, arrivals *ebpf.Map) *ebpf.ProgramSpec {
	const (
		ipv4Dst    = filterIP + 16
		ipv4Port   = filterIP + ipv4Len + 2
		ipv6Dst    = filterIP + 24
		moreOrLate = 0x3fff // more fragments, or a fragment offset
	)
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Imm(asm.R7, 1),
		asm.Mov.Imm(asm.R8, tcxNext),
		asm.LoadMem(asm.R0, asm.R6, skbLen, asm.Word),
		asm.JLT.Imm(asm.R0, minIngressFrame, "end"),
		asm.LoadMem(asm.R0, asm.R6, skbPacketType, asm.Word),
		asm.JNE.Imm(asm.R0, unix.PACKET_HOST, "type"),
		asm.LoadMem(asm.R0, asm.R6, skbVLANPresent, asm.Word),
		asm.JNE.Imm(asm.R0, 0, "type"),
		asm.Mov.Imm(asm.R7, 0),

		asm.LoadAbs(filterEtherType, asm.Half).WithSymbol("type"),
		asm.JEq.Imm(asm.R0, unix.ETH_P_IPV6, "ipv6"),
		asm.JEq.Imm(asm.R0, packet.EtherTypeRoCEv1, "count"),
		asm.JNE.Imm(asm.R0, unix.ETH_P_IP, "end"),

		asm.LoadAbs(filterIPv4Proto, asm.Byte),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, "end"),
		asm.LoadAbs(filterIPv4Frag, asm.Half),
		asm.JSet.Imm(asm.R0, moreOrLate, "count"),
		asm.LoadAbs(filterIP, asm.Byte),
		asm.JNE.Imm(asm.R0, 0x45, "count"), // with options
		asm.LoadAbs(ipv4Port, asm.Half),
		asm.JNE.Imm(asm.R0, Port, "end"),
		asm.JNE.Imm(asm.R7, 0, "count"),
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
		asm.Ja.Label("count"),

		asm.LoadAbs(filterIPv6Next, asm.Byte).WithSymbol("ipv6"),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, "end"),
		asm.LoadAbs(filterIPv6Port, asm.Half),
		asm.JNE.Imm(asm.R0, Port, "end"),
		asm.JNE.Imm(asm.R7, 0, "count"),
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
	code = append(code, asm.Ja.Label("count"))
	if len(addrs) > 0 { // the kernel refuses code that nothing jumps to
		code = append(code, asm.Mov.Imm(asm.R8, tcxDrop).WithSymbol("drop"))
	}
	code = append(code,
		asm.LoadMapValue(asm.R1, arrivals.FD(), 0).WithSymbol("count"),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.Mov.Reg(asm.R0, asm.R8).WithSymbol("end"),
		asm.Return(),
	)
	return &ebpf.ProgramSpec{Name: "softroce", Type: ebpf.SchedCLS, License: "GPL", Instructions: code}
}

// An arrivalHint tells whether a socket may have got messages since a poll left it empty. Its zero
// value says that it may. If nothing counts arrivals, it says that there are none behind a message
// that was alone, in the same step: Receive is called until it finds nothing.
type arrivalHint struct {
	ingress   *ingress     // that counts what arrives; nil if none does
	counter   *ebpf.Memory // that was read before the last poll
	at        uint64       // its value then
	alone     bool         // that poll found one message
	now       int64        // the time of the step in which that poll was made
	empty     bool         // that poll left the socket empty
	skipped   int          // polls that were left out since
	uncounted bool         // what that poll found had arrived without being counted
	untrusted bool         // one poll found something so, and the counter has not changed since
}

// While the counter does not change, up to maxSkippedPolls polls are left out, for up to maxSkipped
// and until the owner waits. If a program that others have put before it at the ingress ends the
// chain, it never changes.
const (
	maxSkippedPolls = 15
	maxSkipped      = 10e3 // ns
)

// mayPoll reports whether a poll may find messages. If so, polled is to be called after the poll.
func (h *arrivalHint) mayPoll(now int64) bool {
	var counter *ebpf.Memory
	if h.ingress != nil {
		counter = h.ingress.counter.Load()
	}
	if counter == nil && h.alone && h.empty && now == h.now {
		h.alone = false // in a simulation the next step may have the same time
		return false
	}
	at := h.at
	if counter != nil {
		var b [8]byte
		counter.ReadAt(b[:], 0)
		at = binary.NativeEndian.Uint64(b[:])
	}
	changed := counter == nil || counter != h.counter || at != h.at
	h.untrusted = h.untrusted && !changed
	if !changed && h.empty && !h.untrusted && h.skipped < maxSkippedPolls && now-h.now <= maxSkipped {
		h.skipped++
		return false
	}
	h.uncounted = !changed && h.empty
	h.counter, h.at, h.now, h.skipped = counter, at, now, 0
	return true
}

// wait records that the owner is going to wait. The next poll, after that, is made.
func (h *arrivalHint) wait() { h.skipped = maxSkippedPolls }

// polled records how many messages a poll has found, and whether it left the socket empty. What
// arrived after mayPoll may have come too late for it.
func (h *arrivalHint) polled(n int, empty bool) {
	h.untrusted = h.untrusted || h.uncounted && n > 0
	h.alone, h.empty = n == 1, empty
}
