package wire

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// A sniffer is a packet socket that receives and sends whole frames on a host's interface, as
// tcpdump does.
type sniffer struct {
	t  testing.TB
	fd int
}

func (s *netnsHost) tap() *sniffer {
	s.t.Helper()
	p := &sniffer{s.t, -1}
	s.do(func() {
		var err error
		p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		must(s.t, err)
		setBuffers(p.fd, 32<<20, 1<<20)
		must(s.t, unix.Bind(p.fd, &unix.SockaddrLinklayer{
			Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: s.link().Attrs().Index,
		}))
	})
	s.t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

func (p *sniffer) send(frame []byte) {
	p.t.Helper()
	_, err := unix.Write(p.fd, frame)
	must(p.t, err)
}

// frames returns the frames that arrived, or left if outgoing is set, until none do for a while.
func (p *sniffer) frames(outgoing bool) (frames [][]byte) {
	p.t.Helper()
	b := make([]byte, 1<<17)
	for quiet := time.Now(); time.Since(quiet) < 200*time.Millisecond; {
		n, from, err := unix.Recvfrom(p.fd, b, 0)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		out := from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING
		if out == outgoing {
			frames = append(frames, append([]byte(nil), b[:n]...))
			quiet = time.Now()
		}
	}
	return frames
}

func TestFramesOnTheWireAreRoCEv2(t *testing.T) {
	for _, kind := range []string{"packet", "udp", "xdp"} {
		for _, v6 := range []bool{false, true} {
			t.Run(kind+"/"+family(v6), func(t *testing.T) {
				l := newVethPair(t)
				l.a.offload(ethtoolTxChecksum, 0) // a physical medium has no super-packets
				tx := l.a.linkOf(kind)
				hold, err := []int(nil), error(nil)
				l.b.do(func() { hold, err = reservePort(l.b.name) })
				must(t, err)
				defer func() {
					for _, fd := range hold {
						unix.Close(fd)
					}
				}()
				tap := l.b.tap()
				p := l.a.path(l.b, v6)
				p.TClass, p.HopLimit = 0x6a, 17
				batch := append(message(p, 40_001, 4096), message(p, 5, 4096)...)
				sendAll(t, tx, batch)
				checkWire(t, tx, batch, tap.frames(false))
			})
		}
	}
}

// checkWire compares captured frames, without neighbor discovery, with those sent.
func checkWire(t *testing.T, tx Link, batch []TxFrame, captured [][]byte) {
	t.Helper()
	var got []packet.Frame
	for _, b := range captured {
		var f packet.Frame
		if err := packet.ParseFrame(b, &f); err == nil {
			got = append(got, f)
		} else if !errors.Is(err, packet.ErrNotRoCE) {
			t.Errorf("a frame of %d bytes: %v", len(b), err)
		}
	}
	if len(got) != len(batch) {
		t.Fatalf("%d frames on the wire, want %d", len(got), len(batch))
	}
	for i := range got {
		f, s := &got[i], &batch[i]
		p := *s.Path
		if port := tx.Capabilities().SrcPort; port != 0 {
			p.SrcPort = port
		}
		if !f.ICRCOK() || f.ICRC() != s.ICRC || !f.IPChecksumOK() {
			t.Errorf("frame %d: ICRC %#x (right: %v), TxFrame.ICRC %#x; IP checksum right: %v", i, f.ICRC(), f.ICRCOK(), s.ICRC, f.IPChecksumOK())
		}
		if f.UDPChecksum != 0 && !udpChecksumOK(f) {
			t.Errorf("frame %d: UDP checksum %#x", i, f.UDPChecksum)
		}
		if f.ID != s.ID || f.MayFragment || f.TClass != p.TClass || f.HopLimit != p.HopLimit || f.SrcPort != p.SrcPort || f.Src != p.Src || f.Dst != p.Dst {
			t.Errorf("frame %d: %+v, sent with ID %d over %+v", i, f.Addressing, s.ID, p)
		}
		if string(f.Transport[:len(f.Transport)-packet.ICRCLen]) != string(wireBytes(s)) || len(f.Trailer) > 0 && len(f.IP) > 46 {
			t.Errorf("frame %d: %d bytes of transport, %d of trailer", i, len(f.Transport), len(f.Trailer))
		}
	}
}

func TestSuperPacketCrossesVethWhole(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		l := newVethPair(t)
		tx, rx := l.a.packetLink(), l.b.packetLink()
		for _, size := range []int{1024, 4096} { // 63 times 1024 bytes fit in an IPv6 packet, but not in a device's segmentation offload
			batch := frames(l.a.path(l.b, v6), maxSegments, size)
			batch = batch[:runLength(batch, runLimit(!v6))]
			sendAll(t, tx, batch)
			checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
			tx.Send(0, batch)
			ready(rx, waitTimeout)
			n, _ := rx.Receive(0, make([]RxFrame, 1))
			if n != 1 || rx.rx.n != 1 {
				t.Errorf("IPv6 %v, %d times %d bytes: %d frames, %d messages; want 1 of 1", v6, len(batch), size, n, rx.rx.n)
			}
			collect(t, rx, len(batch)-n)
		}
	}
}

func TestQueuePairsShareASuperPacket(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.packetLink(), l.b.packetLink()
	batch := frames(l.a.path(l.b, false), 8, 1024)
	for i := range batch {
		path := *batch[i].Path // each queue pair has its own
		path.SrcPort += uint16(i / 4)
		batch[i].Path = &path
	}
	for i, want := range []int{4, 3, 2, 1, 4, 3, 2, 1} {
		if n := runLength(batch[i:], runLimit(true)); n != want {
			t.Errorf("a super-packet of %d from packet %d, want %d", n, i, want)
		}
	}
	sendAll(t, tx, batch)
	checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
}

// rawFrame returns the bytes of a RoCEv2 frame from a to b, with an ICRC.
func (l *vethPair) rawFrame(v6 bool) []byte {
	p := l.a.path(l.b, v6)
	a := p.addressing(false)
	copy(a.SrcMAC[:], l.a.link().Attrs().HardwareAddr)
	f := frames(p, 1, 64)[0]
	return packet.AppendFrame(nil, &a, &f.Tx)
}

// tagged adds an 802.1Q tag to a frame.
func tagged(frame []byte, tci uint16) []byte {
	b := append([]byte(nil), frame[:12]...)
	b = append(b, 0x81, 0x00, byte(tci>>8), byte(tci))
	return append(b, frame[12:]...)
}

func TestPacketLinkReceivesOnlyItsRoCEv2(t *testing.T) {
	l := newVethPair(t)
	rx, tap := l.b.packetLink(), l.a.tap()
	for _, v6 := range []bool{false, true} {
		good := l.rawFrame(v6)
		port := packet.EthernetLen + packet.IPv4Len + 2
		if v6 {
			port = packet.EthernetLen + packet.IPv6Len + 2
		}
		other := [6]byte{2, 9, 9, 9, 9, 9}
		for _, c := range []struct {
			name  string
			frame []byte
			want  int
		}{
			{"to the interface", good, 1},
			{"with a priority tag", tagged(good, 0x6000), 1},
			{"of VLAN 5", tagged(good, 0x6005), 0},
			{"to another port", change(good, port, 0x12, 0xb8), 0},
			{"to another MAC", change(good, 0, other[:]...), 0},
			{"to broadcast", change(good, 0, 255, 255, 255, 255, 255, 255), 0},
			{"of another protocol", change(good, 12, 0x88, 0xb5), 0},
		} {
			tap.send(c.frame)
			want := c.want
			wait := 100 * time.Millisecond
			if got := collectFor(t, rx, 1, wait); len(got) != want {
				t.Errorf("%s, a frame %s: received %d", family(v6), c.name, len(got))
			}
		}
	}
	// Frames that the host itself sends are not received.
	tx := frames(l.b.path(l.a, false), 3, 64)
	sendAll(t, rx, tx)
	expectNone(t, rx)
	if rx.Counters().Drops != [NumDrops]uint64{} {
		t.Error("counted drops:", rx.Counters().Drops)
	}
}

func TestFragmentsAndBadHeadersAreCounted(t *testing.T) {
	l := newVethPair(t)
	sendDamaged(t, l, l.b.packetLink(), l.a.tap())
}

// sendDamaged sends frames that a link drops and counts, each for one reason, and one whose ICRC is
// wrong, which it receives.
func sendDamaged(t *testing.T, l *vethPair, rx Link, tap *sniffer) {
	t.Helper()
	good := l.rawFrame(false)
	ip := packet.EthernetLen
	tap.send(change(good, ip+6, 0x20))           // first fragment, whose header checksum is wrong too
	tap.send(change(good, ip+7, 0x10))           // a later fragment is not the link's
	tap.send(change(good, ip+10, 0, 0))          // IPv4 header checksum
	tap.send(change(good, ip+25, good[ip+25]-4)) // UDP length
	tap.send(change(good, ip+26, 0xab, 0xcd))    // UDP checksum
	tap.send(change(good, len(good)-1, good[len(good)-1]^1))
	got := collectFor(t, rx, 2, 200*time.Millisecond)
	if len(got) != 1 || !got[0].BadICRC {
		t.Errorf("received %d frames; want one, with a wrong ICRC", len(got))
	}
	want := [NumDrops]uint64{DropFragment: 1, DropIPChecksum: 1, DropUDPLength: 1, DropUDPChecksum: 1}
	if c := linkCounters(rx).Drops; c != want {
		t.Errorf("drops %v, want %v", c, want)
	}
}

func TestInterfaceHasOnlyOneLink(t *testing.T) {
	l := newVethPair(t)
	l.a.packetLink()
	n := l.a.iface()
	l.a.do(func() {
		for _, open := range []func() error{
			func() error { _, err := NewPacketLink(n); return err },
			func() error { _, err := NewUDPLink(n); return err },
		} {
			if err := open(); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "4791 of "+l.a.name) {
				t.Error(err)
			}
		}
	})
}

func TestFramesForDownInterfaceAreDropped(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.packetLink(), l.b.packetLink()
	batch := frames(l.a.path(l.b, false), 20, 1024)
	must(t, l.a.nl.LinkSetDown(l.a.link()))
	sendAll(t, tx, batch)
	if n := tx.Counters().Drops[DropSend]; n != 20 {
		t.Errorf("%d frames dropped, want 20", n)
	}
	if n, err := tx.Receive(0, make([]RxFrame, 1)); n != 0 || err != nil {
		t.Error("Receive:", n, err)
	}
	must(t, l.a.nl.LinkSetUp(l.a.link()))
	eventually(t, "carrier", l.a.usable)
	sendAll(t, tx, batch)
	checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
}

func TestLinksFollowRecreatedInterface(t *testing.T) {
	type link struct {
		Link
		iface *Netdev
	}
	for name, open := range map[string]func(*netnsHost) link{
		"packet": func(s *netnsHost) link { l := s.packetLink(); return link{l, l.iface} },
		"udp":    func(s *netnsHost) link { l := s.udpLink(); return link{l, l.iface} },
		"xdp":    func(s *netnsHost) link { l := s.xdpLink(); return link{l, l.iface} },
	} {
		t.Run(name, func(t *testing.T) {
			l := newVethPair(t)
			tx, rx := open(l.a), open(l.b)
			var groups []netip.Addr // more than half of what a socket may join
			for i := range byte(11) {
				groups = append(groups, netip.AddrFrom4([4]byte{239, 129, 2, i}))
				must(t, Join(rx.Link, groups[i]))
			}
			must(t, l.a.nl.LinkDel(l.a.link()))
			l.connect(t)
			eventually(t, "both links to know the new interfaces", func() bool {
				return tx.iface.Up() && rx.iface.Up() && tx.iface.Index() == l.a.link().Attrs().Index && rx.iface.Index() == l.b.link().Attrs().Index
			})
			eventually(t, "the new interface to be a member of the groups", func() bool {
				return !slices.ContainsFunc(groups, func(g netip.Addr) bool { return !l.b.member(g) })
			})
			for _, there := range []bool{true, false} {
				from, to, s, r := l.a, l.b, tx, rx
				if !there {
					from, to, s, r = l.b, l.a, rx, tx
				}
				batch := frames(from.path(to, false), 5, 1024)
				eventually(t, "frames to pass again", func() bool {
					_, err := s.Receive(0, nil) // an xdp link goes over to the new interface in Receive
					must(t, err)
					s.Send(0, batch)
					return len(collectFor(t, r, len(batch), 50*time.Millisecond)) == len(batch)
				})
			}
		})
	}
}

// A link that cannot move its groups to a new interface reports that, to an engine that sleeps too,
// and tries again at the next change. What does not depend on the groups follows.
func TestLinksReportThatTheyLostTheInterface(t *testing.T) {
	for _, kind := range []string{"packet", "udp", "xdp"} {
		t.Run(kind, func(t *testing.T) {
			l := newVethPair(t)
			rx := l.b.linkOf(kind)
			must(t, Join(rx, group4))
			ingress := false // not every kernel has tcx
			if p, ok := rx.(*PacketLink); ok {
				ingress = p.kernel.link != nil
			}
			reports := make(chan bool, 10)
			rx.OnReady(func() { reports <- true })
			var repair func()
			if u, ok := rx.(*UDPLink); ok {
				fd := u.sockets[0].fd
				set := func(fd int) {
					u.mu.Lock()
					defer u.mu.Unlock()
					u.sockets[0].fd = fd
				}
				set(-1)
				repair = func() { set(fd) }
			} else {
				port := reservedPortOf(rx)
				sockets := port.sockets
				set := func(fds []int) {
					port.mu.Lock()
					defer port.mu.Unlock()
					port.sockets = fds
				}
				set([]int{-1, -1})
				repair = func() { set(sockets) }
			}
			must(t, l.a.nl.LinkDel(l.a.link()))
			l.connect(t)
			reported := func() bool {
				for {
					select {
					case <-reports:
					case <-time.After(waitTimeout):
						return false
					}
					if _, err := rx.Receive(0, nil); err != nil {
						if !errors.Is(err, unix.EBADF) || !strings.Contains(err.Error(), kind+" link on "+l.b.name) {
							t.Errorf("Receive returned %v", err)
						}
						return true
					}
				}
			}
			if !reported() {
				t.Error("has not reported that its groups did not move")
			}
			if kind != "udp" {
				tap := l.a.tap()
				eventually(t, "frames on the new interface", func() bool {
					tap.send(l.rawFrame(false))
					n, _ := rx.Receive(0, make([]RxFrame, 1))
					return n == 1
				})
			}
			if p, ok := rx.(*PacketLink); ok && ingress {
				p.mu.Lock()
				if p.kernel.link == nil || p.kernel.index != p.bound {
					t.Error("no program is at the ingress of the new interface")
				}
				p.mu.Unlock()
			}
			repair()
			l.b.addAddr(netip.MustParsePrefix("198.51.100.77/24")) // a change
			eventually(t, "the new interface to be a member of the group", func() bool { return l.b.member(group4) })
		})
	}
}

// Without privilege a socket cannot be bound to another interface, so the link replaces its
// sockets, and reports that: an engine that sleeps waits for the old ones.
func TestUDPLinkReplacesSockets(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.udpLink(), l.b.udpLink()
	reports := 0
	rx.OnReady(func() { reports++ })
	l.b.do(func() {
		for i, s := range rx.sockets {
			must(t, unix.BindToDevice(s.fd, "lo")) // another interface
			rx.replace(s)
			if reports != i+1 {
				t.Errorf("%d reports of %d replaced sockets", reports, i+1)
			}
		}
	})
	for _, v6 := range []bool{false, true} {
		batch := frames(l.a.path(l.b, v6), 5, 1024)
		sendAll(t, tx, batch)
		checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
	}
}

func TestPacketLinkNamesMissingPrivilege(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	l.a.do(func() {
		keepCapabilities(t)
		_, err := NewPacketLink(n)
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
			t.Error(err)
		}
	})
}

func TestUDPLinkRequiresNoPrivilege(t *testing.T) {
	l := newVethPair(t)
	var tx, rx *UDPLink
	var na, nb *Netdev
	open := func(s *netnsHost, n **Netdev, u **UDPLink) {
		s.do(func() {
			keepCapabilities(t)
			var err error
			*n, err = OpenNetdev(s.name)
			must(t, err)
			*u, err = NewUDPLink(*n)
			must(t, err)
		})
	}
	open(l.a, &na, &tx)
	defer na.Close()
	defer tx.Close()
	open(l.b, &nb, &rx)
	defer nb.Close()
	defer rx.Close()
	for _, v6 := range []bool{false, true} {
		p := l.a.path(l.b, v6)
		mac, err := resolve(na, p.Src, p.Dst)
		if err != nil || mac != p.DstMAC {
			t.Errorf("%s: resolved % x, %v", family(v6), mac, err)
		}
		p.DstMAC = [6]byte{} // a udp link does not need it
		batch := message(p, 100_000, 4096)
		sendAll(t, tx, batch)
		checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
	}
}

func TestUDPLinkAcceptsEveryIdentification(t *testing.T) {
	l := newVethPair(t)
	rx, tap := l.b.udpLink(), l.a.tap()
	f := frames(l.a.path(l.b, false), 1, 999)[0]
	a := f.Path.addressing(false)
	copy(a.SrcMAC[:], l.a.link().Attrs().HardwareAddr)
	for _, id := range []uint16{0, 1, 0x1234, 0xffff} {
		for _, df := range []bool{true, false} {
			a.ID, a.MayFragment = id, !df
			tap.send(packet.AppendFrame(nil, &a, &f.Tx))
			got := collect(t, rx, 1)
			if len(got) != 1 || got[0].BadICRC || got[0].ID != id {
				t.Errorf("ID %#x, DF %v: %d frames, %+v", id, df, len(got), got)
			}
		}
	}
	a.ID = 7
	b := packet.AppendFrame(nil, &a, &f.Tx)
	b[300] ^= 0x10
	tap.send(b)
	if got := collect(t, rx, 1); len(got) != 1 || !got[0].BadICRC {
		t.Error("a corrupt packet was accepted")
	}
}

func TestUDPLinkDropsShortPackets(t *testing.T) {
	l := newVethPair(t)
	rx := l.b.udpLink()
	l.a.do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		for n := range packet.BTHLen + packet.ICRCLen {
			must(t, unix.Sendto(fd, make([]byte, n), 0, &unix.SockaddrInet4{Port: Port, Addr: l.b.v4.As4()}))
		}
	})
	eventually(t, "sixteen datagrams to be dropped", func() bool {
		n, err := rx.Receive(0, make([]RxFrame, 4))
		must(t, err)
		return n == 0 && rx.Counters().Drops[DropUDPLength] == 16
	})
}

// NICs do not send a packet without a whole BTH, but a test may.
func TestLinksSendTruncatedBTH(t *testing.T) {
	for _, kind := range []string{"packet", "udp", "xdp"} {
		l := newVethPair(t)
		tx, rx := l.a.linkOf(kind), l.b.packetLink()
		whole := frames(l.a.path(l.b, false), 1, 0)[0]
		var batch []TxFrame
		for n := range packet.BTHLen {
			f := TxFrame{Tx: whole.Tx, Path: whole.Path}
			f.HeadLen, f.Len, f.Payload = uint8(n), n, nil
			batch = append(batch, f)
		}
		sendAll(t, tx, batch)
		eventually(t, "each to be dropped", func() bool {
			n, err := rx.Receive(0, make([]RxFrame, 4))
			must(t, err)
			return n == 0 && rx.Counters().Drops[DropUDPLength] == packet.BTHLen
		})
	}
}

func TestWithoutSegmentationPacketsAreSentSingly(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.packetLink(), l.b.packetLink()
	tx.tx.gso = false // as after the first EINVAL of a kernel before 6.2
	batch := frames(l.a.path(l.b, false), 30, 1000)
	sendAll(t, tx, batch)
	checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
}

// Some processors, such as Zen 3, copy slowly to a place in a page that is shortly behind that of
// the source.
func TestPlacesOfPayloadInTheKernel(t *testing.T) {
	const slow, page = 32, 4096
	memory, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	defer unix.Munmap(memory)
	path := &Path{Src: netip.MustParseAddr("198.51.100.1"), Dst: netip.MustParseAddr("198.51.100.2")}
	for _, mtu := range []int{1024, 2048, 4096} {
		for _, packets := range []int{1, 2, 15, 40} {
			l := &PacketLink{}
			l.tx = newTxBatch(l, virtioLen+packet.MaxFrameHeaderLen, true)
			var frames []TxFrame
			for i := range packets {
				f := TxFrame{Path: path}
				h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle}}
				if i == 0 {
					h.Opcode = packet.WriteFirst
				}
				f.Set(&h, memory[i*mtu:][:mtu])
				frames = append(frames, f)
			}
			l.tx.fill(vethMTU, frames)
			payload := 0
			for i := range l.tx.n {
				pieces := unsafe.Slice(l.tx.msgs[i].Iov, l.tx.msgs[i].Iovlen)
				var v virtioHeader
				v.parse(unsafe.Slice(pieces[0].Base, virtioLen))
				at := -virtioLen - int(v.hdrLen)
				for _, p := range pieces {
					from := uintptr(unsafe.Pointer(p.Base))
					behind := (at - int(from%page) + 2*page) % page
					if p.Len == uint64(mtu) {
						payload += mtu
						if behind > 0 && behind < slow {
							t.Errorf("MTU %d, %d packets: payload is copied to %d bytes behind its place in a page", mtu, packets, behind)
						}
					}
					at += int(p.Len)
				}
			}
			if payload != packets*mtu {
				t.Errorf("MTU %d, %d packets: %d bytes of payload", mtu, packets, payload)
			}
		}
	}
}
