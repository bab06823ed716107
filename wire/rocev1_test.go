package wire

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// pathV1 is path for RoCE v1.
func (s *netnsHost) pathV1(peer *netnsHost, v6 bool) *Path {
	p := s.path(peer, v6)
	p.Network, p.SrcPort, p.TClass, p.HopLimit, p.FlowLabel = packet.RoCEv1, 0, 0x6a, 17, 0x12345
	return p
}

// Packets of RoCE v1 leave one by one, whole and in order, and arrive so.
func TestLinksCarryRoCEv1(t *testing.T) {
	for _, kind := range []string{"packet", "xdp"} {
		for _, v6 := range []bool{false, true} {
			t.Run(kind+"/"+family(v6), func(t *testing.T) {
				l := newVethPair(t)
				tx, rx := l.a.linkOf(kind), l.b.linkOf(kind)
				for _, size := range []int{0, 1, 4095, 40_001} {
					batch := message(l.a.pathV1(l.b, v6), size, 4096)
					batch = append(batch, message(l.a.path(l.b, v6), size, 4096)...)
					sendAll(t, tx, batch)
					got := collect(t, rx, len(batch))
					for i := range got {
						if got[i].Network != batch[i].Path.Network {
							t.Errorf("frame %d is of %v", i, got[i].Network)
						}
						got[i].Network = packet.RoCEv2 // checkFrames compares the rest
					}
					for i := range batch {
						if batch[i].ID != 0 && batch[i].Path.Network == packet.RoCEv1 {
							t.Errorf("frame %d has the Identification %d", i, batch[i].ID)
						}
					}
					half := len(batch) / 2
					if !v6 { // checkFrames takes the Identification of IPv4 from the frame
						checkFrames(t, l, tx, batch[:half], got[:half])
					}
					checkFrames(t, l, tx, batch[half:], got[half:])
				}
			})
		}
	}
}

func TestFramesOnTheWireAreRoCEv1(t *testing.T) {
	for _, kind := range []string{"packet", "xdp"} {
		t.Run(kind, func(t *testing.T) {
			l := newVethPair(t)
			tx, tap := l.a.linkOf(kind), l.b.tap()
			batch := append(message(l.a.pathV1(l.b, false), 10_001, 4096), message(l.a.pathV1(l.b, true), 5, 4096)...)
			sendAll(t, tx, batch)
			var got []packet.Frame
			for _, b := range tap.frames(false) {
				var f packet.Frame
				if packet.ParseFrame(b, &f) == nil {
					got = append(got, f)
				}
			}
			if len(got) != len(batch) {
				t.Fatalf("%d frames on the wire, want %d", len(got), len(batch))
			}
			for i := range got {
				f, p := &got[i], batch[i].Path
				if f.Network != packet.RoCEv1 || f.Src != p.Src || f.Dst != p.Dst || f.TClass != p.TClass || f.HopLimit != p.HopLimit || f.FlowLabel != p.FlowLabel || f.DstMAC != p.DstMAC {
					t.Errorf("frame %d: %+v", i, f.Addressing)
				}
				if !f.ICRCOK() || f.ICRC() != batch[i].ICRC || string(f.Transport[:len(f.Transport)-packet.ICRCLen]) != string(wireBytes(&batch[i])) {
					t.Errorf("frame %d: ICRC %#x (right: %v), TxFrame.ICRC %#x", i, f.ICRC(), f.ICRCOK(), batch[i].ICRC)
				}
			}
		})
	}
}

func TestLinksReceiveOnlyTheirRoCEv1(t *testing.T) {
	for _, kind := range []string{"packet", "xdp"} {
		t.Run(kind, func(t *testing.T) {
			l := newVethPair(t)
			rx, tap := l.b.linkOf(kind), l.a.tap()
			p := l.a.pathV1(l.b, false)
			a := p.addressing(false)
			copy(a.SrcMAC[:], l.a.link().Attrs().HardwareAddr)
			good := packet.AppendFrame(nil, &a, &frames(p, 1, 64)[0].Tx)
			for _, c := range []struct {
				name  string
				frame []byte
				want  int
			}{
				{"to the interface", good, 1},
				{"with a priority tag", tagged(good, 0x6000), 1},
				{"of VLAN 5", tagged(good, 0x6005), 0},
				{"to another MAC", change(good, 0, 2, 9, 9, 9, 9, 9), 0},
				{"to broadcast", change(good, 0, 255, 255, 255, 255, 255, 255), 0},
				{"without a BTH", change(good, packet.EthernetLen+6, 0x3b), 0},
			} {
				tap.send(c.frame)
				if got := collectFor(t, rx, 1, 100*time.Millisecond); len(got) != c.want {
					t.Errorf("a frame %s: received %d", c.name, len(got))
				}
			}
			tap.send(good[:80])                                      // shorter than its GRH says
			tap.send(change(good, packet.EthernetLen+4, 0, 15))      // too short for BTH and ICRC
			tap.send(change(good, packet.EthernetLen, 0x40))         // version
			tap.send(change(good, len(good)-1, good[len(good)-1]^1)) // ICRC
			if got := collectFor(t, rx, 2, 200*time.Millisecond); len(got) != 1 || !got[0].BadICRC {
				t.Errorf("received %d frames; want one, with a wrong ICRC", len(got))
			}
			want := [NumDrops]uint64{DropTruncated: 1, DropUDPLength: 1, DropIPHeader: 1}
			if c := linkCounters(rx).Drops; c != want {
				t.Errorf("drops %v, want %v", c, want)
			}
		})
	}
}

// The udp link has no way to send a packet without IP header.
func TestUDPLinkDropsRoCEv1(t *testing.T) {
	l := newVethPair(t)
	tx, rx := l.a.udpLink(), l.b.udpLink()
	if tx.Capabilities().RoCEv1 {
		t.Error("the link claims to carry RoCE v1")
	}
	batch := append(frames(l.a.pathV1(l.b, false), 2, 64), frames(l.a.path(l.b, false), 1, 64)...)
	sendAll(t, tx, batch)
	if got := collect(t, rx, 1); len(got) != 1 || tx.Counters().Drops[DropUnreachable] != 2 || !batch[0].Dropped {
		t.Errorf("received %d frames, dropped %v", len(got), tx.Counters().Drops)
	}
}

// roceV1Frame is roceFrame of RoCE v1.
func roceV1Frame(v6 bool) []byte {
	a := packet.Addressing{Network: packet.RoCEv1, SrcMAC: vmMAC, DstMAC: dgMAC, Src: vmAddr, Dst: dgAddr, HopLimit: 64, TClass: 2}
	if v6 {
		a.Src, a.Dst, a.FlowLabel = vm6, dg6, 5
	}
	f := frame(aToB, 9, []byte("payload"))
	return packet.AppendFrame(nil, &a, &f.Tx)
}

// sgidAt is where the source GID of a frame of RoCE v1 is.
const sgidAt = packet.EthernetLen + 8

func TestDgramReceivesRoCEv1(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		good := roceV1Frame(v6)
		mixed := changed(good, sgidAt, 0x20) // no longer an IPv4 address
		if v6 {
			mixed = changed(good, sgidAt, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff)
		}
		for _, c := range []struct {
			name  string
			frame []byte
			want  Drop // NumDrops: received
		}{
			{"whole", good, NumDrops},
			{"padded", append(good[:len(good):len(good)], make([]byte, 10)...), NumDrops},
			{"half a GRH", good[:30], DropTruncated},
			{"half a packet", good[:70], DropTruncated},
			{"version 4", changed(good, 14, 0x40), DropIPHeader},
			{"GIDs of two kinds", mixed, DropIPAddress},
			{"other GID", changed(good, 14+39, 99), DropIPAddress},
			{"without a BTH", changed(good, 20, 0x3b), DropIPProtocol},
			{"no room for BTH and ICRC", changed(good, 18, 0, 15), DropUDPLength},
		} {
			l := newUnconnectedDgram(t)
			var rx RxFrame
			if ok := l.input(c.frame, &rx); ok != (c.want == NumDrops) || !ok && l.counters.Drops[c.want] != 1 {
				t.Errorf("%s: received %v, drops %v", c.name, ok, l.counters.Drops)
			} else if ok && (rx.Network != packet.RoCEv1 || rx.BadICRC || rx.CE() || rx.SrcMAC != vmMAC) {
				t.Errorf("%s: received %+v", c.name, rx)
			}
		}
	}
}

// The data path does not allocate, whatever its links.
func TestRoCEv1DoesNotAllocate(t *testing.T) {
	path := &Path{Network: packet.RoCEv1, Src: dgAddr, Dst: vmAddr, DstMAC: vmMAC}
	fabric := NewFabric()
	vm, dg := newDgramPair(t)
	for name, c := range map[string]struct{ tx, rx Link }{
		"dgram":  {dg, vm},
		"fabric": {fabric.NewLink("same", dgAddr), fabric.NewLink("same", vmAddr)},
		"copies": {fabric.NewLink(nil, dg6), fabric.NewLink(nil, vm6)},
	} {
		p := *path
		if name == "copies" {
			p.Src, p.Dst = dg6, vm6
		}
		tx := []TxFrame{frame(&p, 0, make([]byte, 1024)), frame(&p, 0, nil), frame(&p, 0, make([]byte, 4096))}
		var rx [8]RxFrame
		round := func() {
			c.tx.Send(0, tx)
			for got := 0; got < len(tx); {
				n, _ := c.rx.Receive(0, rx[:])
				for i := range n {
					if rx[i].Network != packet.RoCEv1 {
						t.Fatalf("%s: received a packet of %v", name, rx[i].Network)
					}
				}
				got += n
			}
		}
		for range 10 { // the buffers reach their size
			round()
		}
		if n := testing.AllocsPerRun(50, round); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// A capture shows a packet of RoCE v1 as it is on the wire, whether or not the link serializes it.
func TestCaptureOfRoCEv1(t *testing.T) {
	f := NewFabric()
	var sent, received frameLog
	a := NewCaptureLink(f.NewLink("same", addrA), &sent, CaptureOptions{MAC: func() [6]byte { return [6]byte{2, 1} }})
	b := NewCaptureLink(f.NewLink("same", addrB), &received, CaptureOptions{MAC: func() [6]byte { return [6]byte{2, 2} }})
	p := *aToB
	p.Network = packet.RoCEv1
	mustSend(t, a, 1, frame(&p, 1, []byte("payload")))
	receive(t, b, 1)
	for _, l := range []frameLog{sent, received} {
		var got packet.Frame
		if len(l) != 1 || packet.ParseFrame(l[0], &got) != nil || got.Network != packet.RoCEv1 || !got.ICRCOK() || got.Src != addrA || got.Dst != addrB {
			t.Errorf("captured %x", l)
		}
	}
}

type frameLog [][]byte

func (l *frameLog) WriteFrame(_ int64, _ int, b []byte) error {
	*l = append(*l, append([]byte(nil), b...))
	return nil
}

// The filter of a link with as many VLANs as it serves is one that the kernel takes.
func TestFilterOfManyVLANsIsLoaded(t *testing.T) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skip("packet sockets require a privilege:", err)
	}
	defer unix.Close(fd)
	vlans := make([]uint16, 2*maxFilterVLANs)
	for i := range vlans {
		vlans[i] = uint16(i + 1)
	}
	must(t, attachFilter(fd, vlans, 0, 1))
}
