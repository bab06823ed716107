package wire

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// xdpAttached reports whether an XDP program is attached to the host's interface.
func (s *netnsHost) xdpAttached() bool {
	x := s.link().Attrs().Xdp
	return x != nil && x.Attached
}

// The kernel takes the program away when the descriptors of the link are closed, however the
// process ends.
func TestXDPProgramEndsWithItsLink(t *testing.T) {
	if os.Getenv("SOFTROCE_XDP_HOLD") != "" {
		iface, err := OpenNetdev("roceb")
		must(t, err)
		_, err = NewXDPLink(iface)
		must(t, err)
		os.Stdout.WriteString("open\n")
		select {}
	}
	l := newVethPair(t)
	rx := l.a.xdpLink()
	if !l.a.xdpAttached() {
		t.Error("no program is attached")
	}
	must(t, rx.Close())
	if l.a.xdpAttached() {
		t.Error("the program is attached after Close")
	}

	cmd := exec.Command(os.Args[0], "-test.run=^TestXDPProgramEndsWithItsLink$")
	cmd.Env = append(os.Environ(), "SOFTROCE_XDP_HOLD=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	l.b.do(func() { must(t, cmd.Start()) })
	line := make([]byte, 5)
	if _, err := out.Read(line); err != nil || string(line) != "open\n" || !l.b.xdpAttached() {
		t.Errorf("a process with a link: %q, %v, attached %v", line, err, l.b.xdpAttached())
	}
	must(t, cmd.Process.Kill())
	cmd.Wait()
	eventually(t, "the program to go with its process", func() bool { return !l.b.xdpAttached() })
	l.b.xdpLink() // the queue is free again
}

func TestXDPInterfaceHasOnlyOneOwner(t *testing.T) {
	l := newVethPair(t)
	l.a.xdpLink()
	n := l.a.iface()
	l.a.do(func() {
		for _, open := range []func() error{
			func() error { _, err := NewXDPLink(n); return err },
			func() error { _, err := NewPacketLink(n); return err },
			func() error { _, err := NewUDPLink(n); return err },
		} {
			if err := open(); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "4791 of "+l.a.name) {
				t.Error(err)
			}
		}
	})
	// The program of another process stays.
	hold := l.b.xdpLink()
	for _, fd := range hold.reservedPort.sockets {
		unix.Close(fd)
	}
	hold.reservedPort.sockets = nil
	m := l.b.iface()
	l.b.do(func() {
		if _, err := NewXDPLink(m); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "another XDP program") {
			t.Error(err)
		}
	})
	batch := frames(l.a.path(l.b, false), 3, 100)
	tap := l.a.tap()
	a := batch[0].Path.addressing(false)
	tap.send(packet.AppendFrame(nil, &a, &batch[0].Tx))
	if got := collect(t, hold, 1); len(got) != 1 {
		t.Error("the first link does not receive any more")
	}
}

func TestXDPLinkNamesMissingPrivilege(t *testing.T) {
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)) })
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: limit.Max}))
	for _, c := range []struct {
		have []uint
		want string
	}{
		{nil, "CAP_BPF"},
		{[]uint{unix.CAP_BPF, unix.CAP_NET_ADMIN}, "CAP_NET_RAW"},
		{[]uint{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}, "CAP_IPC_LOCK"},
		{[]uint{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_IPC_LOCK}, ""},
	} {
		l := newVethPair(t)
		n := l.a.iface()
		l.a.do(func() {
			keepCapabilities(t, c.have...)
			link, err := NewXDPLink(n)
			switch {
			case err == nil:
				link.Close()
				if c.want != "" {
					t.Errorf("with %v: no error, want %s", c.have, c.want)
				}
			case c.want == "" || !strings.Contains(err.Error(), c.want):
				t.Errorf("with %v: %v, want %q", c.have, err, c.want)
			}
		})
	}
}

// A kernel without a feature, or a service without a permission, is a filter that refuses the first
// system call which needs it.
func TestXDPLinkNamesMissingFeature(t *testing.T) {
	newVethPair(t).a.xdpLink()          // package ebpf finds out once what the kernel has
	const mapCreate, linkCreate = 0, 28 // commands of bpf
	const native = "driver does not offer native XDP"
	all := []XDPMode{XDPNative, XDPGeneric}
	for _, c := range []struct {
		call, arg uint32
		refuse    unix.Errno
		modes     []XDPMode
		want      string
	}{
		{unix.SYS_BPF, mapCreate, unix.ENOSYS, all, "CONFIG_BPF_SYSCALL"},
		{unix.SYS_BPF, mapCreate, unix.EPERM, all, "SystemCallFilter="},
		{unix.SYS_BPF, mapCreate, unix.EINVAL, all, "CONFIG_XDP_SOCKETS"},
		{unix.SYS_BPF, linkCreate, unix.EINVAL, all, "links require Linux 5.9"},
		{unix.SYS_BPF, linkCreate, unix.EOPNOTSUPP, all[:1], native},
		{unix.SYS_BPF, linkCreate, unix.EOPNOTSUPP, []XDPMode{XDPZeroCopy}, native},
		{unix.SYS_BPF, linkCreate, unix.EOPNOTSUPP, all, "attach the XDP program"}, // generic mode failed, too
		{unix.SYS_SOCKET, unix.AF_XDP, unix.EAFNOSUPPORT, all, "RestrictAddressFamilies="},
	} {
		l := newVethPair(t)
		n := l.a.iface()
		l.a.do(func() {
			refuse(t, c.call, c.arg, c.refuse)
			_, err := newXDPLink(n, c.modes...)
			if !errors.Is(err, c.refuse) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("modes %v: %v, want %q", c.modes, err, c.want)
			}
		})
		if l.a.xdpAttached() {
			t.Error("a program is attached")
		}
		l.a.packetLink() // the port is free
	}
}

// refuse makes a system call fail, if it has a first argument, for the rest of the calling thread.
func refuse(t testing.TB, call, arg uint32, e unix.Errno) {
	t.Helper()
	const numberAt, argAt = 0, 16 // in struct seccomp_data
	load := uint16(unix.BPF_LD | unix.BPF_W | unix.BPF_ABS)
	equal := uint16(unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K)
	filter := []unix.SockFilter{
		{Code: load, K: numberAt},
		{Code: equal, Jf: 3, K: call},
		{Code: load, K: argAt},
		{Code: equal, Jf: 1, K: arg},
		{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ERRNO | uint32(e)},
		{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	must(t, unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
}

// keepCapabilities drops all capabilities of the calling thread but some.
func keepCapabilities(t testing.TB, keep ...uint) {
	t.Helper()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	for _, c := range keep {
		sets[c/32].Permitted |= 1 << (c % 32)
		sets[c/32].Effective |= 1 << (c % 32)
	}
	must(t, unix.Capset(&h, &sets[0]))
}

// Some interfaces, such as a VLAN's or a macvlan's, have no driver that runs XDP programs.
func TestXDPGenericMode(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		l := newVethPair(t)
		tx, rx := l.a.xdpLinkIn(XDPGeneric), l.b.xdpLinkIn(XDPGeneric)
		if tx.Mode() != XDPGeneric || rx.Mode() != XDPGeneric {
			t.Fatalf("modes %s and %s", tx.Mode(), rx.Mode())
		}
		batch := append(message(l.a.path(l.b, v6), 300_001, 4096), message(l.a.path(l.b, v6), 100, 256)...)
		sendAll(t, tx, batch)
		checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
	}
}

// A veth interface has no zero-copy, up or down.
func TestZeroCopyXDPLinkTakesNoOtherMode(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	refused := func(want string) {
		t.Helper()
		l.a.do(func() {
			for _, slices := range []int{1, 2} {
				if _, err := NewZeroCopyXDPSlices(n, slices); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%d slices: %v, want %q", slices, err, want)
				}
			}
		})
		if l.a.xdpAttached() {
			t.Error("a program is attached")
		}
	}
	refused("zero-copy is not offered")
	must(t, l.a.nl.LinkSetDown(l.a.link()))
	refused("zero-copy is not offered")
	l.a.packetLink() // the port is free
}

// socket returns the socket through which the link sends.
func (l *XDPLink) socket() *xdpSocket {
	l.Receive(0, nil)
	return l.queues[0]
}

func TestXDPLinkOffersQueuedFramesAgain(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.xdpLink(), l.b.xdpLink()
	s, raw := tx.socket(), l.rawFrame(false)
	if tx.NextDeadline() != 0 {
		t.Error("a deadline without frames")
	}
	tx.retryAt = 1000
	copy(s.push(len(raw)), raw)
	if d := tx.NextDeadline(); d != 1000 || HoldsReferences(tx) {
		t.Errorf("deadline %d, references %v; want 1000, and none", d, HoldsReferences(tx))
	}
	if tx.Receive(999, nil); !s.waits() {
		t.Error("offered before the deadline")
	}
	if tx.Receive(1000, nil); s.waits() {
		t.Error("not offered at the deadline")
	}
	if got := collect(t, rx, 1); len(got) != 1 {
		t.Error("the frame did not arrive")
	}
	copy(s.push(len(raw)), raw)
	must(t, l.a.nl.LinkSetDown(l.a.link()))
	eventually(t, "no deadline while the interface is down", func() bool { return tx.NextDeadline() == 0 })
	batch := frames(l.a.path(l.b, false), 1, 100)
	sendAll(t, tx, batch)
	if !batch[0].Dropped {
		t.Error("a frame was sent through an interface that is down")
	}
}

// A driver with zero-copy may look at the ring at any time.
func TestXDPSocketPublishesFramesThatAreWritten(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.xdpLink(), l.b.xdpLink()
	s, raw := tx.socket(), l.rawFrame(false)
	published := func() uint32 { return atomic.LoadUint32(s.tx.own) }
	before := published()
	room := s.push(len(raw))
	if published() != before || s.tx.pending() != 1 {
		t.Errorf("%d frames are published and %d queued before the bytes are written, want 0 and 1", published()-before, s.tx.pending())
	}
	copy(room, raw)
	if s.kick(); published() != before+1 {
		t.Errorf("%d frames are published, want 1", published()-before)
	}
	if got := collect(t, rx, 1); len(got) != 1 || got[0].BadICRC {
		t.Errorf("received %+v", got)
	}
}

// The kernel drops a frame when there is no carrier, and says only at the next call how many it has
// consumed.
func TestXDPLinkSendsAfterLostCarrier(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.xdpLink(), l.b.xdpLink()
	s, raw := tx.socket(), l.rawFrame(false)
	must(t, l.b.nl.LinkSetDown(l.b.link()))
	for range 40 {
		copy(s.push(len(raw)), raw)
	}
	s.kick()
	must(t, l.a.nl.LinkSetDown(l.a.link()))
	s.kick()
	for _, h := range []*netnsHost{l.a, l.b} {
		must(t, h.nl.LinkSetUp(h.link()))
	}
	const payload = 333
	eventually(t, "a frame to arrive after the carrier is back", func() bool {
		sendAll(t, tx, frames(l.a.path(l.b, false), 1, payload))
		got := collectFor(t, rx, 100, 20*time.Millisecond)
		return slices.ContainsFunc(got, func(f RxFrame) bool { return len(f.Head) > payload && !f.BadICRC })
	})
	eventually(t, "all slots to be free", func() bool {
		tx.Receive(tx.retryAt, nil)
		s.reap(s)
		return len(s.free) == xdpSlots
	})
}

func TestReservedPortServesItsVLANs(t *testing.T) {
	mine, other := &netdevState{name: "mine"}, &netdevState{name: "another daemon's"}
	iface := &Netdev{}
	iface.state.Store(&netdevState{vlans: []*netdevState{mine, other}})
	r := reservedPort{iface: iface, vlans: map[string]vlanPort{mine.name: {portSockets: []int{-1}}, other.name: {}}}
	if v := r.served().vlans; len(v) != 1 || v[0] != mine {
		t.Errorf("serves %d VLANs, want the one whose port is reserved", len(v))
	}
}

func TestXDPLinkFollowsAddressesAndState(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.xdpLink(), l.b.xdpLink()
	added := netip.MustParsePrefix("198.51.100.77/24")
	path := *l.a.path(l.b, false)
	path.Dst = added.Addr()
	passes := func(p *Path) bool {
		sendAll(t, tx, frames(p, 1, 100))
		return len(collectFor(t, rx, 1, 20*time.Millisecond)) == 1
	}
	if passes(&path) {
		t.Error("received a packet for an address that the interface does not have")
	}
	l.b.addAddr(added)
	eventually(t, "packets for a new address", func() bool { return passes(&path) })
	must(t, l.b.nl.AddrDel(l.b.link(), l.b.addr(added)))
	eventually(t, "no packets for a deleted address", func() bool { return !passes(&path) })

	mac := [6]byte{2, 0, 0, 0, 0, 0x42}
	must(t, l.b.nl.LinkSetHardwareAddr(l.b.link(), mac[:]))
	moved := *l.a.path(l.b, false)
	moved.DstMAC = mac
	eventually(t, "packets for a new MAC", func() bool { return passes(&moved) })

	must(t, l.b.nl.LinkSetDown(l.b.link()))
	must(t, l.b.nl.LinkSetUp(l.b.link()))
	eventually(t, "packets after the interface was down", func() bool { return l.b.usable() && passes(&moved) })

	for _, s := range []*netnsHost{l.a, l.b} {
		must(t, s.nl.LinkSetMTU(s.link(), 1500))
	}
	eventually(t, "the new MTU", func() bool { return tx.Capabilities().MTU == 1500 })
	big := frames(&moved, 1, 4096)
	sendAll(t, tx, big)
	if !big[0].Dropped {
		t.Error("a frame beyond the MTU was sent")
	}
}

func TestXDPLinkOpensOnInterfaceThatIsDown(t *testing.T) {
	l := newVethPair(t)
	tx := l.a.packetLink()
	must(t, l.b.nl.LinkSetDown(l.b.link()))
	rx := l.b.xdpLink()
	batch := frames(l.b.path(l.a, false), 2, 100)
	sendAll(t, rx, batch)
	if drops := rx.Counters().Drops; drops[DropSend] != 2 {
		t.Errorf("drops %v, want two frames that could not be sent", drops)
	}
	must(t, l.b.nl.LinkSetUp(l.b.link()))
	eventually(t, "frames to pass", func() bool {
		tx.Send(0, frames(l.a.path(l.b, false), 1, 100))
		return len(collectFor(t, rx, 1, 20*time.Millisecond)) == 1
	})
}

// What the kernel writes to the rings is not trusted.
func TestXDPRingsAreBounded(t *testing.T) {
	l := newVethPair(t)
	rx := l.b.xdpLink()
	rx.Receive(0, nil)
	s := rx.queues[0]
	for _, d := range []unix.XDPDesc{
		{Addr: 1 << 63, Len: 100}, {Addr: 4095, Len: 1 << 31}, {Addr: uint64(len(s.umem)) - 1, Len: 2}, {Addr: ^uint64(0), Len: ^uint32(0)},
	} {
		if p := s.piece(d); len(p) > xdpChunk || s.chunk(d)+xdpChunk > uint64(s.rxChunks*xdpChunk) {
			t.Errorf("%+v: %d bytes of chunk %#x", d, len(p), s.chunk(d))
		}
	}
	before := len(s.free)
	for _, addr := range []uint64{0, uint64(s.rxChunks * xdpChunk), ^uint64(0)} {
		s.finish(addr) // of nothing in flight
	}
	if len(s.free) != before {
		t.Error("a slot was freed twice")
	}
	index := uint32(1 << 31)
	rings := xdpRing[uint64]{entries: make([]uint64, 8), mask: 7, other: &index}
	if n := rings.ready(); n != 8 {
		t.Errorf("%d entries ready in a ring of 8", n)
	}
	rings.produces = true
	if n := rings.ready(); n != 8 {
		t.Errorf("room for %d entries in a ring of 8", n)
	}
}
