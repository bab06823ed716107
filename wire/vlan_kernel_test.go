//go:build guest

package wire

// These tests require a kernel with VLAN interfaces. e2e runs them in a virtual machine.

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// addVLAN adds a VLAN interface with an address to a host's interface.
func (s *netnsHost) addVLAN(name string, id int, addr netip.Prefix) {
	s.t.Helper()
	v := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: s.link().Attrs().Index}, VlanId: id,
		VlanProtocol: netlink.VLAN_PROTOCOL_8021Q, EgressQosMap: map[uint32]uint32{2: 5, 9: 1}}
	must(s.t, s.nl.LinkAdd(v))
	must(s.t, s.nl.LinkSetUp(v))
	must(s.t, s.nl.AddrAdd(v, s.addr(addr)))
}

func TestPacketLinkFollowsVLANs(t *testing.T) {
	testVLANs(t, vethMTU, 4096, func(s *netnsHost) (Link, *Netdev) { l := s.packetLink(); return l, l.iface })
}

// Before Linux 6.6, an xdp link receives no packets of 4 KiB.
func TestXDPLinkFollowsVLANs(t *testing.T) {
	testVLANs(t, 1500, 1024, func(s *netnsHost) (Link, *Netdev) { l := s.xdpLink(); return l, l.iface })
}

func testVLANs(t *testing.T, mtu, pathMTU int, open func(*netnsHost) (Link, *Netdev)) {
	l := newVethPair(t)
	for _, s := range []*netnsHost{l.a, l.b} {
		must(t, s.nl.LinkSetMTU(s.link(), mtu))
	}
	p := netip.MustParsePrefix
	l.a.addVLAN("v7", 7, p("198.51.107.1/24"))
	l.b.addVLAN("v7", 7, p("198.51.107.2/24"))
	tx, iface := open(l.a)
	rx, _ := open(l.b)
	path := &Path{Src: p("198.51.107.1/24").Addr(), Dst: p("198.51.107.2/24").Addr(), SrcPort: 0xc001, HopLimit: 64, VLAN: 7, Priority: 5}
	eventually(t, "the address in VLAN 7", func() bool {
		return slices.ContainsFunc(iface.VLANAddresses(), func(a VLANAddress) bool {
			return a.VLAN == 7 && a.Netdev == "v7" && a.Addr() == path.Src && a.Egress == Egress{2: 5}
		})
	})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	must(t, iface.Resolve(ctx, path))
	if got := l.b.link().Attrs().HardwareAddr; string(got) != string(path.DstMAC[:]) {
		t.Fatalf("resolved to %x, not %v", path.DstMAC, got)
	}
	if err := iface.Resolve(ctx, &Path{Src: path.Src, Dst: path.Dst, VLAN: 9}); !errors.Is(err, ErrNoRoute) {
		t.Errorf("VLAN 9: %v", err)
	}

	batch := append(message(path, 100_001, pathMTU), message(path, 100, pathMTU)...)
	sendAll(t, tx, batch)
	got := collect(t, rx, len(batch))
	checkFrames(t, l, tx, batch, got)
	for i := range got {
		if got[i].VLAN() != 7 || got[i].Priority() != 5 {
			t.Fatalf("frame %d has tag %v %#x", i, got[i].Tagged, got[i].TCI)
		}
	}
	plain := message(l.a.path(l.b, false), 100, pathMTU)
	sendAll(t, tx, plain)
	if got := collect(t, rx, 1); len(got) != 1 || got[0].Tagged {
		t.Errorf("without a VLAN: %+v", got)
	}

	// The link follows VLANs that are added and deleted.
	l.b.addVLAN("v8", 8, p("198.51.108.2/24"))
	later := *path
	later.VLAN, later.Dst = 8, p("198.51.108.2/24").Addr()
	served := func() bool {
		sendAll(t, tx, message(&later, 100, pathMTU))
		return len(collectFor(t, rx, 1, 50*time.Millisecond)) == 1
	}
	eventually(t, "VLAN 8", served)
	vlan, err := l.b.nl.LinkByName("v8")
	must(t, err)
	must(t, l.b.nl.LinkDel(vlan))
	eventually(t, "no VLAN 8", func() bool { return !served() && !served() && !served() })
}
