package wire

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"softroce/packet"
)

// to returns a frame to a queue pair, with its number as PSN too.
func to(p *Path, qpn uint32) TxFrame {
	h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle, PKey: packet.DefaultPKey, DestQP: qpn, PSN: qpn}}
	f := TxFrame{Path: p}
	f.Set(&h, []byte("payload"))
	return f
}

// slicesOf returns the PSNs that each link receives.
func slicesOf[L Link](t *testing.T, links []L) (l [][]uint32) {
	t.Helper()
	for _, k := range links {
		l = append(l, psns(t, receive(t, k, 2)))
	}
	return l
}

func TestFabricFramesReachTheSliceOfTheirQueuePair(t *testing.T) {
	f := NewFabric()
	a := f.NewLink("one", addrA)
	slices := f.NewLink("one", addrB).Split("two", "three")
	mustSend(t, a, 1, to(aToB, 1), to(aToB, 16), to(aToB, 17), to(aToB, 18), to(aToB, 20), to(aToB, 21), to(aToB, 22))
	if got := fmt.Sprint(slicesOf(t, slices)); got != "[[1 18 21] [16 22] [17 20]]" {
		t.Errorf("the slices received %v", got)
	}
	// Between slices, and back to the sender.
	bToB := &Path{Src: addrB, Dst: addrB}
	mustSend(t, slices[2], 1, to(bToB, 17), to(bToB, 16))
	if got := fmt.Sprint(slicesOf(t, slices)); got != "[[] [16] [17]]" {
		t.Errorf("the slices received %v from one of them", got)
	}
	mustSend(t, slices[1], 1, to(&Path{Src: addrB, Dst: addrA}, 7))
	if got := receive(t, a, 2); len(got) != 1 {
		t.Errorf("the peer received %d frames of a slice, want 1", len(got))
	}
	group := netip.MustParseAddr("224.0.0.99")
	must(t, slices[1].Join(group))
	must(t, slices[2].Join(group))
	mustSend(t, a, 1, to(&Path{Src: addrA, Dst: group}, 5))
	if got := fmt.Sprint(slicesOf(t, slices)); got != "[[] [5] [5]]" {
		t.Errorf("of a multicast frame the slices received %v", got)
	}
}

// loopbackSlices returns the links of a NIC at addrA, each around a link of its own, which stands
// for a socket, and for each of these a link that sends to it.
func loopbackSlices(n int) (slices []*LoopbackLink, media []*FabricLink) {
	for range n {
		l, m := loopbackAt()
		slices, media = append(slices, l), append(media, m)
	}
	Slices(slices)
	return slices, media
}

func TestFramesThatTheMediumGaveToAnotherSliceArePassedOn(t *testing.T) {
	slices, media := loopbackSlices(2)
	bToA := &Path{Src: addrB, Dst: addrA}
	mustSend(t, media[0], 1, to(bToA, 16), to(bToA, 17), to(bToA, 18), to(bToA, 19), to(bToA, 1))
	woken := 0
	slices[1].OnReady(func() { woken++ })
	if got := fmt.Sprint(slicesOf(t, slices)); got != "[[16 18 1] [17 19]]" {
		t.Errorf("the slices received %v", got)
	}
	if woken == 0 {
		t.Error("the other slice was not woken")
	}
}

func TestLoopedBackFramesReachTheSliceOfTheirQueuePair(t *testing.T) {
	slices, _ := loopbackSlices(2)
	mustSend(t, slices[0], 1, to(aToA, 16), to(aToA, 17), to(aToA, 19), to(aToA, 18))
	if got := fmt.Sprint(slicesOf(t, slices)); got != "[[16 18] [17 19]]" {
		t.Errorf("the slices received %v", got)
	}
	full := make([]TxFrame, loopbackQueue+1)
	for i := range full {
		full[i] = to(aToA, 17)
	}
	if n, _ := slices[0].Send(1, full); n != loopbackQueue {
		t.Errorf("a slice whose peer does not receive took %d frames, want %d", n, loopbackQueue)
	}
	woken := false
	slices[0].OnReady(func() { woken = true })
	if got := len(receive(t, slices[1], 2)); got != loopbackQueue || !woken {
		t.Errorf("received %d frames, the sender was woken: %v", got, woken)
	}
	group := netip.MustParseAddr("224.0.0.99")
	slices[0].inner, slices[1].inner = &sinkLink{Link: slices[0].inner}, &sinkLink{Link: slices[1].inner}
	must(t, slices[0].Join(group))
	must(t, slices[1].Join(group))
	mustSend(t, slices[0], 1, to(&Path{Src: addrA, Dst: group}, 5))
	if got := fmt.Sprint(slicesOf(t, slices)); got != "[[5] [5]]" {
		t.Errorf("of a multicast frame the slices received %v", got)
	}
}

// The kernel steers packets to the links of slices, over both address families, and multicast
// packets to those that have joined the group.
func TestKernelSteersPacketsToSlices(t *testing.T) {
	for _, kind := range []string{"packet", "udp", "xdp", "xdp, generic"} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, IPv6 %v", kind, v6), func(t *testing.T) {
				l := newVethPair(t)
				const n = 3
				slices := l.b.slices(kind, n)
				tx := l.a.linkOf("packet")
				p := l.a.path(l.b, v6)
				var batch []TxFrame
				var want [n]string
				for _, qpn := range []uint32{1, 17, 16, 300, 18, 0xabcdef} {
					batch = append(batch, to(p, qpn))
					s := SliceOf(qpn, n)
					want[s] += fmt.Sprint(" ", qpn)
				}
				for i := range batch { // one by one: no super-packets, which the first packet steers
					sendAll(t, tx, batch[i:i+1])
				}
				for i, s := range slices {
					got := ""
					for _, f := range collect(t, s, len(strings.Fields(want[i]))) {
						h := bth(t, &f)
						got += fmt.Sprint(" ", h.DestQP)
					}
					expectNone(t, s)
					if got != want[i] {
						t.Errorf("slice %d received packets to%s, want%s", i, got, want[i])
					}
				}
				loops := loopbacks(slices)
				for _, s := range loops[1:] {
					must(t, Join(s, group(v6)))
				}
				f := to(l.a.to(v6), 0xffffff)
				sendAll(t, tx, []TxFrame{f})
				if strings.HasPrefix(kind, "xdp") {
					collect(t, loops[0], 1) // and passes copies on
				}
				for i, s := range loops[1:] {
					if got := collect(t, s, 1); len(got) != 1 {
						t.Errorf("slice %d received %d multicast packets, want 1", 1+i, len(got))
					}
				}
			})
		}
	}
}

// The links of all slices follow an interface that goes down, or is deleted and created again: each
// receives what is for its queue pairs, over both address families, and nothing else. They stay
// members of multicast groups, and an XDP program stays until the last of them is closed.
func TestSlicesFollowTheInterface(t *testing.T) {
	for _, kind := range []string{"packet", "udp", "xdp", "xdp, generic"} {
		t.Run(kind, func(t *testing.T) {
			l := newVethPair(t)
			a, b := l.a.slices(kind, 2), l.b.slices(kind, 2)
			must(t, Join(b[0], group4))
			must(t, Join(b[0], group6))
			pass := func(when string, slices ...int) {
				t.Helper()
				eventually(t, "each slice to receive its frames "+when, func() bool {
					for _, k := range slices {
						a[k].Receive(0, nil) // an xdp link goes over to a new interface
						b[k].Receive(0, nil)
						for _, v6 := range []bool{false, true} {
							a[k].Send(0, []TxFrame{to(l.a.path(l.b, v6), firstQPN+uint32(k))})
						}
					}
					wrong := 0
					for _, k := range slices {
						families := map[bool]bool{}
						for _, f := range collectFor(t, b[k], 3, 20*time.Millisecond) {
							if families[f.Src.Is4()] = true; bth(t, &f).DestQP != firstQPN+uint32(k) {
								wrong++
							}
						}
						wrong += 2 - len(families)
					}
					return wrong == 0
				})
			}
			recreate := func() {
				must(t, l.a.nl.LinkDel(l.a.link()))
				l.connect(t)
				eventually(t, "the interface to be a member of the groups", func() bool { return l.b.member(group4) && l.b.member(group6) })
			}
			pass("at first", 0, 1)
			must(t, l.b.nl.LinkSetDown(l.b.link()))
			must(t, l.b.nl.LinkSetUp(l.b.link()))
			l.b.addAddr(netip.PrefixFrom(l.b.v6, 64)) // which it lost
			eventually(t, "carrier", l.b.usable)
			pass("after the interface was down", 0, 1)
			recreate()
			pass("after the interface was created again", 1, 0)
			must(t, b[1].Close())
			pass("after a slice was closed", 0)
			recreate()
			pass("without the slice", 0)
			if attached := l.b.xdpAttached(); attached != strings.HasPrefix(kind, "xdp") {
				t.Errorf("an XDP program is attached: %v", attached)
			}
			must(t, b[0].Close())
			if l.b.xdpAttached() {
				t.Error("the program is attached after Close")
			}
		})
	}
}

// A slice that cannot go over to a new interface reports that, and tries again at the next change.
func TestUDPSliceReportsThatItLostTheInterface(t *testing.T) {
	l := newVethPair(t)
	links := l.b.slices("udp", 2)
	b, other := links[0].(*UDPLink), links[1].(*UDPLink)
	setNamespace := func(f *os.File) {
		b.mu.Lock()
		defer b.mu.Unlock()
		other.mu.Lock()
		defer other.mu.Unlock()
		b.iface.namespace = f
	}
	namespace := b.iface.namespace
	setNamespace(nil) // so that it cannot be entered
	l.recreateUntilReport(t, b)
	if _, err := b.Receive(0, make([]RxFrame, 1)); err == nil || !strings.Contains(err.Error(), "udp link on "+l.b.name) {
		t.Errorf("Receive returned %v", err)
	}
	setNamespace(namespace)
	l.b.addAddr(netip.MustParsePrefix("198.51.100.77/24")) // a change
	eventually(t, "the slice to go over to the interface", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.index == l.b.link().Attrs().Index
	})
}

// loopbacks returns the links of a NIC with loopback.
func loopbacks(slices []Link) (loops []*LoopbackLink) {
	for _, l := range slices {
		loops = append(loops, NewLoopbackLink(l, func(Station) bool { return false }))
	}
	Slices(loops)
	return loops
}

// slices opens the links of a NIC that n engines drive.
func (s *netnsHost) slices(kind string, n int) (links []Link) {
	s.t.Helper()
	iface := s.iface()
	s.do(func() {
		switch kind {
		case "packet":
			links = linksOf(NewPacketSlices(iface, n))(s.t)
		case "udp":
			links = linksOf(NewUDPSlices(iface, n))(s.t)
		case "xdp":
			links = linksOf(NewXDPSlices(iface, n))(s.t)
		case "xdp, generic":
			links = linksOf(newXDPSlices(iface, n, XDPGeneric))(s.t)
		}
	})
	s.t.Cleanup(func() {
		for _, l := range links {
			l.Close()
		}
	})
	return links
}

// linksOf returns the links that were opened, for a test.
func linksOf[L Link](opened []L, err error) func(testing.TB) []Link {
	return func(t testing.TB) (links []Link) {
		must(t, err)
		for _, l := range opened {
			links = append(links, l)
		}
		return links
	}
}
