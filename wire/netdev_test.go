package wire

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestOpenNetdevErrorListsInterfaces(t *testing.T) {
	l := newVethPair(t)
	var err error
	l.a.do(func() { _, err = OpenNetdev("eth7") })
	if !errors.Is(err, ErrNoInterface) {
		t.Fatal(err)
	}
	for _, name := range []string{"eth7", "lo", l.a.name} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q does not name %s", err, name)
		}
	}
}

func TestNetdevProperties(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	if n.Name() != l.a.name || n.MTU() != vethMTU || !n.Up() {
		t.Errorf("%s, MTU %d, up %v", n.Name(), n.MTU(), n.Up())
	}
	if mac := n.MAC(); net.HardwareAddr(mac[:]).String() != l.a.link().Attrs().HardwareAddr.String() {
		t.Errorf("MAC % x", mac)
	}
	for i, want := range []netip.Prefix{netip.PrefixFrom(l.a.v4, 24), netip.PrefixFrom(l.a.v6, 64)} {
		if !slices.Contains(n.Addresses(), want) {
			t.Errorf("address %d, %v, is missing in %v", i, want, n.Addresses())
		}
	}
}

func TestNetdevFollowsAddresses(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	var changes atomic.Int32
	n.OnChange(func() { changes.Add(1) })
	second := netip.MustParsePrefix("198.51.100.77/24")
	sixth := netip.MustParsePrefix("2001:db8::77/64")
	for _, p := range []netip.Prefix{second, sixth} {
		before := changes.Load()
		l.a.addAddr(p)
		eventually(t, p.String()+" to appear", func() bool { return slices.Contains(n.Addresses(), p) })
		must(t, l.a.nl.AddrDel(l.a.link(), l.a.addr(p)))
		eventually(t, p.String()+" to go", func() bool { return !slices.Contains(n.Addresses(), p) })
		eventually(t, "both changes to be reported", func() bool { return changes.Load() >= before+2 })
	}
}

func TestNetdevIgnoresTentativeAddress(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	p := netip.MustParsePrefix("2001:db8::99/64")
	a := l.a.addr(p)
	a.Flags = 0 // enables duplicate address detection
	must(t, l.a.nl.AddrAdd(l.a.link(), a))
	for tentative := true; tentative; {
		listed := slices.Contains(n.Addresses(), p)
		addrs, err := l.a.nl.AddrList(l.a.link(), netlink.FAMILY_V6)
		must(t, err)
		for _, a := range addrs {
			if a.IP.Equal(p.Addr().AsSlice()) {
				tentative = a.Flags&unix.IFA_F_TENTATIVE != 0
			}
		}
		if listed && tentative {
			t.Fatal("a tentative address is listed")
		}
	}
	eventually(t, "the address to be listed after its check", func() bool { return slices.Contains(n.Addresses(), p) })
}

func TestNetdevRecoversFromLostEvents(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	must(t, n.events.SetReceiveBufferSize(1, false)) // the kernel uses its minimum
	release, blocked := make(chan struct{}), make(chan struct{}, 100)
	n.OnChange(func() {
		blocked <- struct{}{}
		<-release
	})
	l.a.addAddr(netip.MustParsePrefix("198.51.100.50/24"))
	<-blocked // the watcher is blocked and reads no events
	for i := range byte(30) {
		l.a.addAddr(netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, 100 + i}), 24))
	}
	close(release)
	eventually(t, "all 32 IPv4 addresses", func() bool {
		v4 := slices.DeleteFunc(slices.Clone(n.Addresses()), func(p netip.Prefix) bool { return !p.Addr().Is4() })
		return len(v4) == 32
	})
}

func TestNetdevFollowsMTUAndState(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	must(t, l.a.nl.LinkSetMTU(l.a.link(), 1500))
	eventually(t, "MTU 1500", func() bool { return n.MTU() == 1500 })
	must(t, l.b.nl.LinkSetDown(l.b.link()))
	eventually(t, "down, like the peer", func() bool { return !n.Up() })
	must(t, l.b.nl.LinkSetUp(l.b.link()))
	eventually(t, "up again", n.Up)
}

func TestNetdevFollowsRecreatedInterface(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	old := n.Index()
	must(t, l.a.nl.LinkDel(l.a.link()))
	eventually(t, "no interface", func() bool { return n.Index() == 0 && !n.Up() && len(n.Addresses()) == 0 })
	l.connect(t)
	eventually(t, "the new interface", func() bool {
		return n.Index() != 0 && n.Up() && slices.Contains(n.Addresses(), netip.PrefixFrom(l.a.v4, 24))
	})
	if n.Index() == old {
		t.Log("the kernel reused the index")
	}
}

// resolve resolves dst, within two seconds.
func resolve(n *Netdev, src, dst netip.Addr) ([6]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	p := &Path{Src: src, Dst: dst}
	err := n.Resolve(ctx, p)
	return p.DstMAC, err
}

func TestResolveUnknownNeighbor(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	want := [6]byte(l.b.link().Attrs().HardwareAddr)
	for range 2 { // the second time, the neighbor table has an entry
		if mac, err := resolve(n, l.a.v4, l.b.v4); err != nil || mac != want {
			t.Errorf("IPv4: % x, %v; want % x", mac, err, want)
		}
		if mac, err := resolve(n, l.a.v6, l.b.v6); err != nil || mac != want {
			t.Errorf("IPv6: % x, %v; want % x", mac, err, want)
		}
	}
}

func TestResolveOwnMulticastAndLoopbackAddresses(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	if mac, err := resolve(n, l.a.v4, l.a.v4); err != nil || mac != n.MAC() {
		t.Errorf("own address: % x, %v", mac, err)
	}
	group := netip.MustParseAddr("239.129.2.3")
	if mac, err := resolve(n, l.a.v4, group); err != nil || mac != [6]byte{1, 0, 0x5e, 1, 2, 3} {
		t.Errorf("multicast: % x, %v", mac, err)
	}
	var lo *Netdev
	var err error
	l.a.do(func() { lo, err = OpenNetdev("lo") })
	must(t, err)
	defer lo.Close()
	home, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	if mac, err := resolve(lo, home, other); err != nil || mac != [6]byte{} {
		t.Errorf("loopback: % x, %v", mac, err)
	}
}

func TestResolveThroughNextHop(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	for _, c := range []struct{ net, via, src, dst string }{
		{"203.0.113.0/24", l.b.v4.String(), l.a.v4.String(), "203.0.113.9"},
		{"2001:db8:9::/64", l.b.v6.String(), l.a.v6.String(), "2001:db8:9::9"},
	} {
		_, dst, _ := net.ParseCIDR(c.net)
		must(t, l.a.nl.RouteAdd(&netlink.Route{LinkIndex: n.Index(), Dst: dst, Gw: net.ParseIP(c.via)}))
		mac, err := resolve(n, netip.MustParseAddr(c.src), netip.MustParseAddr(c.dst))
		if err != nil || mac != [6]byte(l.b.link().Attrs().HardwareAddr) {
			t.Errorf("%s via %s: % x, %v", c.dst, c.via, mac, err)
		}
		if known := n.Neighbor(Station{Addr: netip.MustParseAddr(c.dst)}); known != mac {
			t.Errorf("the neighbor of %s is % x, want % x", c.dst, known, mac)
		}
	}
	if n.Neighbor(Station{Addr: l.a.v4}) != n.MAC() || n.Neighbor(Station{Addr: l.b.v4}) != [6]byte{} {
		t.Error("neighbors that are this host, or were not resolved")
	}
}

func TestResolveWithoutRoute(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	for _, c := range []struct{ src, dst netip.Addr }{
		{l.a.v4, netip.MustParseAddr("203.0.113.9")},
		{l.a.v6, netip.MustParseAddr("2001:db8:9::9")},
		{netip.MustParseAddr("198.51.100.200"), l.b.v4}, // the host does not have the source address
		{l.a.v4, l.b.v6},
		{l.a.v4, netip.Addr{}},
		{l.a.v4, netip.MustParseAddr("0.0.0.0")},
	} {
		_, err := resolve(n, c.src, c.dst)
		if !errors.Is(err, ErrNoRoute) || !strings.Contains(err.Error(), c.dst.String()) {
			t.Errorf("%v from %v: %v", c.dst, c.src, err)
		}
	}
}

func TestResolveMissingNeighborFails(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	absent := netip.MustParseAddr("198.51.100.200")

	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := n.Resolve(ctx, &Path{Src: l.a.v4, Dst: absent})
	if !errors.Is(err, ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error("when the context ended:", err)
	}

	// Three solicitations, 20 ms apart instead of a second.
	l.a.do(func() {
		must(t, os.WriteFile("/proc/sys/net/ipv4/neigh/"+l.a.name+"/retrans_time_ms", []byte("20"), 0))
	})
	for range 2 { // the second time, the neighbor table has a failed entry
		start := time.Now()
		_, err = resolve(n, l.a.v4, absent)
		if !errors.Is(err, ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), absent.String()) {
			t.Errorf("when the kernel gave up: %v after %v", err, time.Since(start))
		}
	}
}

// The MAC of a received frame is used for a neighbor that the kernel does not know, which may not
// exist: nothing is sent to it, and the kernel's table gets no entry.
func TestResolveUsesMACOfReceivedFrame(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	absent, sender := netip.MustParseAddr("198.51.100.200"), [6]byte{2, 0, 0, 0, 0, 0x42}
	p := Path{Src: l.a.v4, Dst: absent, DstMAC: sender}
	if err := n.Resolve(t.Context(), &p); err != nil || p.DstMAC != sender {
		t.Errorf("unknown neighbor: MAC % x, %v; want % x", p.DstMAC, err, sender)
	}
	entries, err := l.a.nl.NeighList(n.Index(), unix.AF_INET)
	must(t, err)
	for _, e := range entries {
		if e.IP.Equal(absent.AsSlice()) {
			t.Errorf("the kernel has an entry for %v: %v", absent, e)
		}
	}
	known, err := resolve(n, l.a.v4, l.b.v4)
	must(t, err)
	p = Path{Src: l.a.v4, Dst: l.b.v4, DstMAC: sender}
	if err := n.Resolve(t.Context(), &p); err != nil || p.DstMAC != known {
		t.Errorf("known neighbor: MAC % x, %v; want % x", p.DstMAC, err, known)
	}

	// It is replaced when the kernel learns another one.
	reported := make(chan [6]byte, 10)
	n.OnNeighbor(func(_ Station, mac [6]byte) { reported <- mac })
	moved := [6]byte{2, 0, 0, 0, 0, 0x43}
	must(t, l.a.nl.NeighSet(&netlink.Neigh{LinkIndex: n.Index(), IP: absent.AsSlice(), HardwareAddr: moved[:], State: unix.NUD_REACHABLE}))
	select {
	case mac := <-reported:
		if mac != moved {
			t.Errorf("MAC % x was reported, want % x", mac, moved)
		}
	case <-time.After(waitTimeout):
		t.Error("OnNeighbor was not called")
	}
}

func TestNetdevFollowsNeighborMAC(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	type change struct {
		dst netip.Addr
		mac [6]byte
	}
	reported := make(chan change, 10)
	n.OnNeighbor(func(dst Station, mac [6]byte) { reported <- change{dst.Addr, mac} })

	far := netip.MustParseAddr("203.0.113.9")
	_, dst, _ := net.ParseCIDR("203.0.113.0/24")
	must(t, l.a.nl.RouteAdd(&netlink.Route{LinkIndex: n.Index(), Dst: dst, Gw: l.b.v4.AsSlice()}))
	for _, a := range []netip.Addr{l.b.v4, far} {
		_, err := resolve(n, l.a.v4, a)
		must(t, err)
	}
	moved := [6]byte{2, 0, 0, 0, 0, 0x42}
	must(t, l.a.nl.NeighSet(&netlink.Neigh{
		LinkIndex: n.Index(), IP: l.b.v4.AsSlice(), HardwareAddr: moved[:], State: unix.NUD_REACHABLE,
	}))
	seen := map[netip.Addr]bool{}
	for len(seen) < 2 {
		select {
		case m := <-reported:
			if m.mac != moved {
				t.Fatalf("%v has MAC % x", m.dst, m.mac)
			}
			seen[m.dst] = true
		case <-time.After(waitTimeout):
			t.Fatal("OnNeighbor was called only for", seen)
		}
	}
}

// A neighbor may get a new MAC without announcing it.
func TestProbeFindsNewNeighborMAC(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(family(v6), func(t *testing.T) {
			l := newVethPair(t)
			n := l.a.iface()
			reported := make(chan [6]byte, 10)
			n.OnNeighbor(func(_ Station, mac [6]byte) { reported <- mac })
			p := l.a.path(l.b, v6)
			_, err := resolve(n, p.Src, p.Dst)
			must(t, err)
			moved := [6]byte{2, 0, 0, 0, 0, 0x42}
			must(t, l.b.nl.LinkSetHardwareAddr(l.b.link(), moved[:]))
			n.ProbeNeighbor(Station{Addr: netip.MustParseAddr("198.51.100.77")}) // was never resolved
			limit := time.After(waitTimeout)
			for {
				// The kernel ignores a second reply within a second.
				n.ProbeNeighbor(p.station())
				select {
				case mac := <-reported:
					if mac != moved {
						t.Fatalf("MAC is % x", mac)
					}
					return
				case <-time.After(20 * time.Millisecond):
				case <-limit:
					t.Fatal("OnNeighbor was not called")
				}
			}
		})
	}
}

func TestNetdevFollowsRoutes(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	reported := make(chan [6]byte, 10)
	n.OnNeighbor(func(_ Station, mac [6]byte) { reported <- mac })
	_, dst, _ := net.ParseCIDR("203.0.113.0/24")
	route := &netlink.Route{LinkIndex: n.Index(), Dst: dst, Gw: l.b.v4.AsSlice()}
	must(t, l.a.nl.RouteAdd(route))
	_, err := resolve(n, l.a.v4, netip.MustParseAddr("203.0.113.9"))
	must(t, err)

	other := [6]byte{2, 0, 0, 0, 0, 0x43}
	must(t, l.a.nl.NeighSet(&netlink.Neigh{
		LinkIndex: n.Index(), IP: net.IPv4(198, 51, 100, 3), HardwareAddr: other[:], State: unix.NUD_PERMANENT,
	}))
	route.Gw = net.IPv4(198, 51, 100, 3)
	must(t, l.a.nl.RouteReplace(route))
	select {
	case mac := <-reported:
		if mac != other {
			t.Errorf("the new next hop has MAC % x", mac)
		}
	case <-time.After(waitTimeout):
		t.Error("OnNeighbor was not called")
	}
}

func TestStaticInterfaceResolvesEveryAddress(t *testing.T) {
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	own := netip.MustParsePrefix("192.0.2.1/24")
	var i Interface = StaticInterface("softroce0", mac, 4200, own)
	if i.Name() != "softroce0" || i.MAC() != mac || i.MTU() != 4200 || !i.Up() || !slices.Equal(i.Addresses(), []netip.Prefix{own}) {
		t.Errorf("interface %+v", i)
	}
	for _, c := range []struct {
		dst string
		mac [6]byte
	}{
		{"192.0.2.1", mac},
		{"192.0.2.2", [6]byte{2, 0, 192, 0, 2, 2}},
		{"239.1.2.3", [6]byte{1, 0, 0x5e, 1, 2, 3}},
	} {
		p := &Path{Src: own.Addr(), Dst: netip.MustParseAddr(c.dst)}
		if err := i.Resolve(context.Background(), p); err != nil || p.DstMAC != c.mac {
			t.Errorf("%s: % x, %v", c.dst, p.DstMAC, err)
		}
	}
	if err := i.Resolve(context.Background(), &Path{Src: own.Addr(), Dst: netip.MustParseAddr("2001:db8::2")}); !errors.Is(err, ErrNoRoute) {
		t.Error("from IPv4 to IPv6:", err)
	}
}
