package wire

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"softroce/packet"
)

func TestFabricSeparatesVLANs(t *testing.T) {
	for _, owners := range [][2]any{{"engine", "engine"}, {"one", "other"}} {
		f := NewFabric()
		a := f.NewLink(owners[0])
		a.SetStations(Station{addrA, 0}, Station{addrA, 7})
		plain, seven, eight := f.NewLink(owners[1], addrB), f.NewLink(owners[1]), f.NewLink(owners[1])
		seven.SetStations(Station{addrB, 7})
		eight.SetStations(Station{addrB, 8})
		to := func(vlan uint16) *Path {
			return &Path{Src: addrA, Dst: addrB, VLAN: vlan, Priority: 5, HopLimit: 64}
		}
		mustSend(t, a, 1, frame(to(0), 1, nil), frame(to(7), 2, []byte("x")), frame(to(8), 3, nil), frame(to(9), 4, nil))
		for _, c := range []struct {
			port *FabricLink
			psn  uint32
			vlan uint16
		}{{plain, 1, 0}, {seven, 2, 7}, {eight, 3, 8}} {
			got := receive(t, c.port, 2)
			if len(got) != 1 || bth(t, &got[0]).PSN != c.psn || got[0].VLAN() != c.vlan || got[0].Tagged != (c.vlan != 0) {
				t.Fatalf("VLAN %d: %+v", c.vlan, got)
			}
			if c.vlan != 0 && got[0].Priority() != 5 {
				t.Errorf("priority %d", got[0].Priority())
			}
		}
		if n := a.Counters().Drops[DropUnreachable]; n != 1 {
			t.Errorf("%d dropped, want the one to VLAN 9", n)
		}
	}
}

func TestMulticastStaysInItsVLAN(t *testing.T) {
	f := NewFabric()
	group := netip.MustParseAddr("239.1.1.1")
	a, seven, plain := f.NewLink("e"), f.NewLink("e"), f.NewLink("e", addrB)
	a.SetStations(Station{addrA, 7})
	seven.SetStations(Station{addrB, 7})
	for _, p := range []*FabricLink{seven, plain} {
		if err := Join(p, group); err != nil {
			t.Fatal(err)
		}
	}
	mustSend(t, a, 1, frame(&Path{Src: addrA, Dst: group, VLAN: 7}, 1, nil))
	if n, m := len(receive(t, seven, 2)), len(receive(t, plain, 2)); n != 1 || m != 0 {
		t.Errorf("%d in the VLAN, %d outside", n, m)
	}
}

func TestLoopbackSeparatesVLANs(t *testing.T) {
	f := NewFabric()
	peer := f.NewLink("e")
	peer.SetStations(Station{addrA, 8})
	inner := f.NewLink("e", addrA)
	trunk := StaticTrunk("", [6]byte{2}, 9000, []VLANAddress{{Prefix: netip.PrefixFrom(addrA, 24), VLAN: 7}}, netip.PrefixFrom(addrA, 24))
	l := NewLoopbackLink(inner, Owns(trunk))
	mustSend(t, l, 1, frame(&Path{Src: addrA, Dst: addrA, VLAN: 7}, 1, nil), frame(&Path{Src: addrA, Dst: addrA, VLAN: 8}, 2, nil),
		frame(&Path{Src: addrA, Dst: addrA}, 3, nil))
	got := receive(t, l, 2)
	if len(got) != 2 || got[0].VLAN() != 7 || got[1].VLAN() != 0 || len(receive(t, peer, 2)) != 1 {
		t.Errorf("received %+v", got)
	}
}

func TestCaptureWritesTags(t *testing.T) {
	f := NewFabric()
	inner, peer := f.NewLink("e"), f.NewLink("e")
	inner.SetStations(Station{addrA, 100})
	peer.SetStations(Station{addrB, 100})
	list := &frameList{}
	c := NewCaptureLink(inner, list, CaptureOptions{})
	mustSend(t, c, 1, frame(&Path{Src: addrA, Dst: addrB, VLAN: 100, Priority: 3}, 1, []byte("there")))
	mustSend(t, peer, 2, frame(&Path{Src: addrB, Dst: addrA, VLAN: 100, Priority: 4}, 2, []byte("back")))
	receive(t, c, 3)
	for i, tci := range []uint16{3<<13 | 100, 4<<13 | 100} {
		var got packet.Frame
		if err := packet.ParseFrame(list.frames[i], &got); err != nil || !got.Tagged || got.TCI != tci || !got.ICRCOK() {
			t.Errorf("frame %d: %v, tagged %v, TCI %#x, want %#x", i, err, got.Tagged, got.TCI, tci)
		}
	}
}

// trunkOf returns dgConfig with the link's addresses in VLAN 7 too.
func trunkOf() DgramConfig {
	c := dgConfig
	c.VLANs = []VLANAddress{{Prefix: netip.PrefixFrom(dgAddr, 24), VLAN: 7}, {Prefix: netip.PrefixFrom(dg6, 64), VLAN: 7}}
	return c
}

func TestDgramRepliesInTheVLANOfTheRequest(t *testing.T) {
	for _, c := range []struct {
		name    string
		request []byte
	}{
		{"ARP", arpFrame(arpRequest, vmAddr, dgAddr)},
		{"solicitation", solicitFrame(vm6, dg6)},
		{"ping", echoFrame(icmpEcho)},
	} {
		l, err := newDgram(trunkOf())
		must(t, err)
		var rx RxFrame
		l.input(tagged(c.request, 0x6007), &rx)
		if l.handled != 1 || len(l.reply) < 18 || string(l.reply[12:16]) != "\x81\x00\x00\x07" {
			t.Errorf("%s: handled %d, replied with % x", c.name, l.handled, l.reply)
		}
		plain, err := newDgram(trunkOf())
		must(t, err)
		plain.input(c.request, &rx)
		if got := slices.Delete(slices.Clone(l.reply), 12, 16); string(got) != string(plain.reply) {
			t.Errorf("%s: % x, without a VLAN % x", c.name, got, plain.reply)
		}
		l.input(tagged(c.request, 9), &rx)
		if l.handled != 1 || l.counters.Drops[DropVLAN] != 1 {
			t.Errorf("%s: replied in VLAN 9", c.name)
		}
	}
}

func TestDgramAcceptsPacketsOfItsVLANs(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		l, err := newDgram(trunkOf())
		must(t, err)
		var rx RxFrame
		if !l.input(tagged(roceFrame(v6), 5<<13|7), &rx) || rx.VLAN() != 7 || rx.Priority() != 5 || rx.BadICRC {
			t.Errorf("received %+v", rx)
		}
		if !l.input(tagged(roceFrame(v6), 5<<13), &rx) || rx.VLAN() != 0 || !rx.Tagged {
			t.Errorf("with a priority tag: %+v", rx)
		}
		if !l.input(roceFrame(v6), &rx) || rx.Tagged {
			t.Errorf("without a tag: %+v", rx)
		}
		if l.input(tagged(roceFrame(v6), 8), &rx) || l.counters.Drops[DropVLAN] != 1 {
			t.Errorf("VLAN 8: %v", l.counters.Drops)
		}
		if l.input(tagged(roceFrame(v6), 7)[:17], &rx) {
			t.Error("accepted a frame that ends in its tag")
		}
	}
}

func TestDgramResolvesInAVLAN(t *testing.T) {
	ports := freePorts(t, 2)
	end := func(i int, mac [6]byte, addr string) *DgramLink {
		l, err := NewDgramLink(DgramConfig{Local: ports[i], Remote: ports[1-i], MAC: mac,
			VLANs: []VLANAddress{{Prefix: netip.MustParsePrefix(addr), VLAN: 7}}})
		must(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	a, b := end(0, vmMAC, "10.77.0.11/24"), end(1, dgMAC, "10.77.0.12/24")
	there := &Path{Src: vmAddr, Dst: dgAddr, VLAN: 7, Priority: 2}
	must(t, resolveOver(t, []*DgramLink{a, b}, a, there))
	if there.DstMAC != dgMAC {
		t.Errorf("MAC %x", there.DstMAC)
	}
	mustSend(t, a, 0, frame(there, 1, []byte("tagged")))
	eventually(t, "the packet", func() bool {
		for _, f := range receive(t, b, 0) {
			return f.VLAN() == 7 && f.Priority() == 2 && !f.BadICRC
		}
		return false
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Resolve(ctx, &Path{Src: vmAddr, Dst: dgAddr, VLAN: 8}); !errors.Is(err, ErrNoRoute) {
		t.Errorf("VLAN 8: %v", err)
	}
}

// netdevOf returns the interface of a link.
func netdevOf(l Link) *Netdev {
	switch l := l.(type) {
	case *PacketLink:
		return l.iface
	case *XDPLink:
		return l.iface
	}
	return nil
}

// serveVLAN makes the links of a NIC on the host's interface serve an address in a VLAN. Not every
// kernel has VLAN interfaces: lo takes the place of one, and the links get no further changes.
func (s *netnsHost) serveVLAN(links []Link, id uint16, addr netip.Prefix) {
	s.t.Helper()
	iface := netdevOf(links[0])
	s.stopWatching(iface) // it would find that there is no VLAN
	vlan := *iface.state.Load()
	vlan.id, vlan.addrs, vlan.name, vlan.vlans = id, []netip.Prefix{addr}, "lo", nil
	s.change(iface, func(s *netdevState) { s.vlans = []*netdevState{&vlan} })
}

// stopWatching makes the changes of an interface those that the test makes.
func (s *netnsHost) stopWatching(iface *Netdev) {
	s.t.Helper()
	must(s.t, iface.Close())
	s.do(func() {
		var err error
		iface.namespace, err = os.Open("/proc/thread-self/ns/net") // Close has closed it
		must(s.t, err)
	})
}

// change changes the state of an interface that is not watched.
func (s *netnsHost) change(iface *Netdev, change func(*netdevState)) {
	s.t.Helper()
	state := *iface.state.Load()
	change(&state)
	iface.state.Store(&state)
	s.do(func() {
		for _, changed := range iface.onChange {
			changed()
		}
	})
}

func TestLinksServeVLANs(t *testing.T) {
	const id, priority = 7, 5
	inVLAN := map[bool]netip.Prefix{false: netip.MustParsePrefix("198.51.107.2/24"), true: netip.MustParsePrefix("2001:db8:7::2/64")}
	for _, c := range []struct {
		kind   string
		slices int
	}{{"packet", 1}, {"packet", 2}, {"xdp", 1}, {"xdp", 2}, {"xdp, generic", 2}} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, %d engines/%s", c.kind, c.slices, family(v6)), func(t *testing.T) {
				l := newVethPair(t)
				tx, rx := l.a.slices(c.kind, c.slices), l.b.slices(c.kind, c.slices)
				plain := l.a.path(l.b, v6)
				path := *plain
				path.Dst, path.VLAN, path.Priority = inVLAN[v6].Addr(), id, priority
				v1, other := path, path
				v1.Network, other.VLAN = packet.RoCEv1, id+1
				exchange := func(sent, want []*Path) {
					t.Helper()
					for k := range tx {
						qpn := firstQPN + uint32(k)
						for _, p := range sent {
							sendAll(t, tx[k], []TxFrame{to(p, qpn)})
						}
						got := collect(t, rx[k], len(want))
						if len(got) != len(want) {
							t.Fatalf("slice %d received %d frames, want %d", k, len(got), len(want))
						}
						for i, p := range want {
							f := &got[i]
							if bth(t, f).DestQP != qpn || f.BadICRC || f.Network != p.Network || f.Dst != p.Dst {
								t.Errorf("slice %d received %+v, sent over %+v", k, f, p)
							}
							if f.Tagged != (p.VLAN != 0) || f.VLAN() != p.VLAN || f.Priority() != p.Priority {
								t.Errorf("slice %d received tag %v %#x, sent over %+v", k, f.Tagged, f.TCI, p)
							}
						}
					}
				}
				all := []*Path{&path, &v1, &other, plain}
				exchange(all, []*Path{plain})
				l.b.serveVLAN(rx, id, inVLAN[v6])
				exchange(all, []*Path{&path, &v1, plain})
				batch := append(message(&path, 100_001, 4096), message(&path, 100, 4096)...)
				k := SliceOf(destQP(batch[0].Head[:]), c.slices)
				sendAll(t, tx[k], batch)
				checkFrames(t, l, tx[k], batch, collect(t, rx[k], len(batch)))
				l.b.serveVLAN(rx, other.VLAN, inVLAN[v6]) // instead
				exchange(all, []*Path{&other, plain})
				for i := range tx {
					if n := linkCounters(tx[i]).Drops; n != [NumDrops]uint64{} {
						t.Errorf("slice %d dropped: %v", i, n)
					}
				}
			})
		}
	}
}

func TestFilterPassesEveryServedVLAN(t *testing.T) {
	var ids []uint16
	for i := range uint16(maxFilterVLANs + 10) {
		ids = append(ids, i+1)
	}
	l := newVethPair(t)
	rx, tap := l.b.packetLink(), l.a.tap()
	must(t, attachFilter(rx.fd, ids, 0, 1))
	good := l.rawFrame(false)
	for _, c := range []struct {
		tci  uint16
		want int
	}{{1, 1}, {maxFilterVLANs, 1}, {maxFilterVLANs + 1, 0}, {0x6000, 1}, {0xe000 | 5, 1}, {4094, 0}} {
		tap.send(tagged(good, c.tci))
		if got := collectFor(t, rx, 1, 100*time.Millisecond); len(got) != c.want {
			t.Errorf("TCI %#x: received %d", c.tci, len(got))
		}
	}
}
