package wire

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"softroce/packet"
)

// xdpAttached reports whether an XDP program is attached to the host's interface.
func (s *netnsHost) xdpAttached() bool {
	x := s.link().Attrs().Xdp
	return x != nil && x.Attached
}

func TestXDPLinkReceivesOnlyItsRoCEv2(t *testing.T) {
	l := newVethPair(t)
	rx, tap := l.b.xdpLink(), l.a.tap()
	kernel := l.b.tap()
	passed := map[byte]bool{} // what the program has passed, by the last byte of the source MAC
	look := func() {
		b := make([]byte, 1<<16)
		for n, _, err := 0, unix.Sockaddr(nil), error(nil); err == nil; {
			if n, _, err = unix.Recvfrom(kernel.fd, b, 0); err == nil && n >= packet.EthernetLen {
				passed[b[11]] = true
			}
		}
	}
	sent := byte(0)
	mine := map[byte]string{}
	other := [6]byte{2, 9, 9, 9, 9, 9}
	for _, v6 := range []bool{false, true} {
		good := l.rawFrame(v6)
		port, dst := packet.EthernetLen+packet.IPv4Len+2, packet.EthernetLen+19
		if v6 {
			port, dst = packet.EthernetLen+packet.IPv6Len+2, packet.EthernetLen+39
		}
		multicast := change(change(good, 0, 0x01, 0x00, 0x5e), dst-3, 239)
		for _, c := range []struct {
			name  string
			frame []byte
			mine  bool
		}{
			{"to the interface", good, true},
			{"with a priority tag", tagged(good, 0x6000), true},
			{"of VLAN 5", tagged(good, 0x6005), false},
			{"with two tags", tagged(tagged(good, 0x6000), 0x6000), false},
			{"to another port", change(good, port, 0x12, 0xb8), false},
			{"to another MAC", change(good, 0, other[:]...), false},
			{"to another address, to be routed", change(good, dst, 99), false},
			{"to broadcast", change(good, 0, 255, 255, 255, 255, 255, 255), false},
			{"to a multicast MAC", multicast, true},
			{"of another protocol", change(good, 12, 0x88, 0xb5), false},
			{"of another IP protocol", change(good, packet.EthernetLen+map[bool]int{false: 9, true: 6}[v6], 6), false},
			{"with nothing behind the Ethernet header", good[:packet.EthernetLen], false},
			{"shorter than its UDP header", good[:port+1], false},
		} {
			sent++
			tap.send(change(c.frame, 6, 2, 0, 0, 0, 7, sent))
			name := family(v6) + ", a frame " + c.name
			before := rx.Counters().Drops
			taken := func() bool {
				n, err := rx.Receive(0, make([]RxFrame, 1))
				must(t, err)
				return n > 0 || rx.Counters().Drops != before
			}
			if c.mine {
				mine[sent] = name
				eventually(t, name+" to arrive", taken)
				continue
			}
			eventually(t, name+" to be passed to the kernel", func() bool { look(); return passed[sent] })
			if taken() {
				t.Errorf("%s was taken and passed", name)
			}
		}
	}
	expectNone(t, rx)
	look()
	for i, name := range mine {
		if passed[i] {
			t.Errorf("%s was taken and passed", name)
		}
	}
}

func TestXDPLinkCountsFragmentsAndBadHeaders(t *testing.T) {
	l := newVethPair(t)
	rx, tap := l.b.xdpLink(), l.a.tap()
	good := l.rawFrame(false)
	ip := packet.EthernetLen
	options := append(append(bytes.Clone(good[:ip+20]), 1, 1, 1, 1), good[ip+20:]...)
	tap.send(change(options, ip, 0x46))          // IPv4 options: goes to the kernel
	tap.send(change(good, ip+6, 0x20))           // first fragment
	tap.send(change(good, ip+7, 0x10))           // a later fragment goes to the kernel
	tap.send(change(good, ip+10, 0, 0))          // IPv4 header checksum
	tap.send(change(good, ip+25, good[ip+25]-4)) // UDP length
	tap.send(change(good, ip+26, 0xab, 0xcd))    // UDP checksum
	tap.send(change(good, len(good)-1, good[len(good)-1]^1))
	got := collect(t, rx, 1)
	if len(got) != 1 || !got[0].BadICRC {
		t.Errorf("received %d frames; want one, with a wrong ICRC", len(got))
	}
	want := [NumDrops]uint64{DropFragment: 1, DropIPChecksum: 1, DropUDPLength: 1, DropUDPChecksum: 1}
	if c := rx.Counters().Drops; c != want {
		t.Errorf("drops %v, want %v", c, want)
	}
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

func TestXDPLinkServesAllQueues(t *testing.T) {
	l := newVethPair(t)
	must(t, l.a.nl.LinkDel(l.a.link()))
	must(t, l.a.nl.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: l.a.name, MTU: vethMTU, NumTxQueues: 4, NumRxQueues: 4},
		PeerName:  l.b.name, PeerMTU: vethMTU, PeerNamespace: netlink.NsFd(l.b.ns), PeerNumTxQueues: 4, PeerNumRxQueues: 4,
	}))
	for _, s := range []*netnsHost{l.a, l.b} {
		must(t, s.nl.LinkSetUp(s.link()))
		s.addAddr(netip.PrefixFrom(s.v4, 24))
	}
	for _, s := range []*netnsHost{l.a, l.b} {
		eventually(t, "carrier on "+s.name, s.usable)
	}
	rx := l.b.xdpLink()
	rx.Receive(0, nil)
	if n := len(rx.port.sockets); n != 4 {
		t.Fatalf("%d sockets for 4 queues", n)
	}
	// The queue at the other end follows from the packet's flow.
	tx := l.a.packetLink()
	var batch []TxFrame
	for i := range 64 {
		p := l.a.path(l.b, false)
		p.SrcPort = uint16(0xc000 + i)
		batch = append(batch, frames(p, 1, 100)...)
	}
	sendAll(t, tx, batch)
	if got := collect(t, rx, len(batch)); len(got) != len(batch) {
		t.Errorf("received %d of %d", len(got), len(batch))
	}
	rx.Receive(0, nil) // recycles
	used := 0
	for _, s := range rx.port.sockets {
		if s.fill.mine > uint32(s.rxChunks) {
			used++
		}
	}
	if used < 2 {
		t.Errorf("frames came through %d queues, want several", used)
	}
}

// A veth interface has no zero-copy, up or down.
func TestZeroCopyXDPLinkTakesNoOtherMode(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	refused := func(want string) {
		t.Helper()
		l.a.do(func() {
			if _, err := NewZeroCopyXDPLink(n); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
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
	return l.port.sockets[0]
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
		s.reap()
		return len(s.free) == xdpSlots
	})
}

// The fill ring may look full because the kernel says late what it has consumed.
func TestXDPSocketLosesNoChunk(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.xdpLink(), l.b.xdpLink()
	s := rx.socket()
	batch := frames(l.a.path(l.b, false), 50, 100)
	sendAll(t, tx, batch)
	if n := len(collect(t, rx, len(batch))); n != len(batch) {
		t.Fatalf("received %d of %d", n, len(batch))
	}
	held := len(s.held)
	consumed := s.fill.other
	lagging := s.fill.mine - uint32(s.rxChunks)
	s.fill.other = &lagging
	if s.recycle(); held == 0 || len(s.held) != held {
		t.Errorf("%d of %d chunks wait for the fill ring", len(s.held), held)
	}
	s.fill.other = consumed
	before := s.fill.mine
	if s.recycle(); len(s.held) != 0 || s.fill.mine != before+uint32(held) {
		t.Errorf("%d of %d chunks wait for the fill ring, which has room", len(s.held), held)
	}
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

// Frames that were received before KeepReceived keep their bytes.
func TestXDPKeepReceived(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.xdpLink(), l.b.xdpLink()
	p := l.a.path(l.b, false)
	kept := append(frames(p, 3, 100), frames(p, 3, 4096)...)
	sendAll(t, tx, kept)
	got := make([]RxFrame, len(kept))
	for n := 0; n < len(kept); {
		if !ready(rx, waitTimeout) {
			t.Fatalf("%d of %d frames", n, len(kept))
		}
		k, _ := rx.Receive(0, got[n:])
		for i := n; i < n+k; i++ { // of several calls, only the last one's bytes are kept
			if n+k < len(kept) {
				got[i] = clone(&got[i])
			}
		}
		n += k
	}
	KeepReceived(rx)
	other := make([]byte, 4096)
	for i := range other {
		other[i] = 0xee
	}
	for range 40 { // through all chunks
		batch := frames(p, 250, 0)
		for i := range batch {
			h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle, PKey: packet.DefaultPKey, DestQP: 0x11}}
			batch[i].Set(&h, other)
		}
		sendAll(t, tx, batch)
		if n := len(collect(t, rx, len(batch))); n != len(batch) {
			t.Fatalf("received %d frames after KeepReceived", n)
		}
	}
	for i := range got {
		if !bytes.Equal(got[i].Head, wireBytes(&kept[i])) {
			t.Errorf("frame %d was overwritten", i)
		}
	}
}

// superFrame returns a super-packet as AF_XDP delivers it: without the length of its packets.
func superFrame(a packet.Addressing, sameID bool, payloads ...int) []byte {
	return delivered(a, 0, sameID, payloads...)[virtioLen:]
}

func TestXDPDecoderFindsPackets(t *testing.T) {
	for _, c := range []struct {
		name     string
		a        packet.Addressing
		payloads []int
	}{
		{"one", splitV4, []int{1000}},
		{"equal", splitV4, []int{1024, 1024, 1024}},
		{"last shorter", splitV6, []int{1024, 1024, 1024, 12}},
		{"longer than any packet", splitV4, []int{4096, 4096, 4096, 4096, 8}},
		{"many small", splitV6, make([]int, maxSegments)},
	} {
		var d xdpDecoder
		for range 2 { // the second one finds the length that the first did
			if reason, ok := d.load(superFrame(c.a, false, c.payloads...)); !ok {
				t.Fatalf("%s: rejected: %v", c.name, reason)
			}
			var f RxFrame
			for i, n := range c.payloads {
				if !d.next(&f) || f.BadICRC || len(f.Head) != packet.BTHLen+n {
					t.Fatalf("%s: packet %d: wrong ICRC %v, %d bytes", c.name, i, f.BadICRC, len(f.Head))
				}
			}
			if d.next(&f) {
				t.Errorf("%s: more packets than segments", c.name)
			}
		}
	}
}

// FuzzXDPReceive decodes arbitrary frames. The decoder must return or count every byte, and access
// no others.
func FuzzXDPReceive(f *testing.F) {
	f.Add(superFrame(splitV4, false, 64))
	f.Add(superFrame(splitV4, false, 256, 256, 256, 1))
	f.Add(superFrame(splitV6, true, 1024, 1024, 3))
	f.Add([]byte{})
	var d xdpDecoder
	f.Fuzz(func(t *testing.T, b []byte) {
		given := bytes.Clone(b)
		_, ok := d.load(b)
		total, n := 0, 0
		var f RxFrame
		for d.next(&f) {
			n++
			total += len(f.Head) + packet.ICRCLen
			if len(f.Head) < packet.BTHLen || !bytes.Contains(b, f.Head) {
				t.Fatalf("invalid packet %+v", f)
			}
		}
		if ok != (n > 0) || total > len(b) || !bytes.Equal(b, given) {
			t.Fatalf("accepted %v: %d packets with %d of %d bytes", ok, n, total, len(b))
		}
	})
}

// What the kernel writes to the rings is not trusted.
func TestXDPRingsAreBounded(t *testing.T) {
	l := newVethPair(t)
	rx := l.b.xdpLink()
	rx.Receive(0, nil)
	s := rx.port.sockets[0]
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
