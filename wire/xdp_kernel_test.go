//go:build guest

package wire

// These tests require a certain kernel, and one of them a certain NIC. e2e runs them in virtual
// machines.

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"softroce/packet"
)

// Before Linux 6.6, a frame is received in one chunk.
func TestXDPLinkWithoutSG(t *testing.T) {
	l := newVethPair(t)
	n := l.a.iface()
	setMTU := func(mtu int) {
		t.Helper()
		for _, s := range []*netnsHost{l.a, l.b} {
			must(t, s.nl.LinkSetMTU(s.link(), mtu))
		}
		eventually(t, fmt.Sprintf("MTU %d", mtu), func() bool { return n.MTU() == mtu })
	}
	for _, mtu := range []int{vethMTU, xdpOneChunkMTU + 1} {
		setMTU(mtu)
		want := fmt.Sprintf("MTU %d is too large: this kernel or interface receives frames in one buffer (XDP_USE_SG requires Linux 6.6), which takes at most 3822", mtu)
		l.a.do(func() {
			if _, err := NewXDPLink(n); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
		if l.a.xdpAttached() {
			t.Error("a program is attached")
		}
	}
	for _, c := range []struct {
		mtu, pathMTU int
		mode         XDPMode
		from         string
	}{
		{1500, 1024, XDPNative, "xdp"},
		{1500, 1024, XDPGeneric, "packet"},
		{xdpOneChunkMTU, 2048, XDPNative, "packet"},
	} {
		t.Run(fmt.Sprintf("MTU %d, from %s to %s", c.mtu, c.from, c.mode), func(t *testing.T) {
			setMTU(c.mtu)
			tx, rx := l.a.linkOf(c.from), l.b.xdpLinkIn(c.mode)
			defer tx.Close()
			defer rx.Close()
			if rx.Mode() != c.mode || rx.Capabilities().MTU != c.mtu {
				t.Errorf("mode %s, MTU %d", rx.Mode(), rx.Capabilities().MTU)
			}
			batch := message(l.a.path(l.b, false), 100_001, c.pathMTU)
			sendAll(t, tx, batch)
			checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
		})
	}
}

// The guest's interface offers zero-copy for frames in one buffer. Its driver sends only what it is
// woken for, and when the fill ring was empty, it receives again only after it was woken. The test
// does not wait with poll, which would wake it too. At the other end of the network, echo runs.
func TestXDPLinkZeroCopy(t *testing.T) {
	if name := os.Getenv("SOFTROCE_ECHO"); name != "" {
		echo(t, name)
	}
	h := thisHost(t, "eth0")
	p := &Path{Src: netip.MustParseAddr("10.77.0.11"), Dst: netip.MustParseAddr("10.77.0.10"), SrcPort: 0xc123, HopLimit: 64}
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	must(t, h.iface().Resolve(ctx, p))
	const floodQPN, lastQPN = 50, 51
	flood := make([]TxFrame, 64)
	for i := range flood {
		flood[i] = to(p, floodQPN)
	}
	room := make([]RxFrame, 64)
	receive := func(l Link) []RxFrame {
		t.Helper()
		n, err := l.Receive(0, room)
		must(t, err)
		return room[:n]
	}
	exchange := func(l Link, batch []TxFrame) {
		t.Helper()
		sendAll(t, l, batch)
		var got []RxFrame
		eventually(t, "frames to come back", func() bool {
			for _, f := range receive(l) {
				if bth(t, &f).DestQP != lastQPN {
					got = append(got, clone(&f))
				}
			}
			return len(got) >= len(batch)
		})
		for i := range got {
			if got[i].BadICRC || !bytes.Equal(got[i].Head, wireBytes(&batch[i])) {
				t.Fatalf("frame %d of %d: wrong ICRC %v, % .64x", i, len(batch), got[i].BadICRC, got[i].Head)
			}
		}
	}

	links := h.slices("xdp", 2)
	for k, l := range links {
		if m := l.(*XDPLink).Mode(); m != XDPZeroCopy {
			t.Fatalf("mode %q", m)
		}
		exchange(l, []TxFrame{to(p, firstQPN+uint32(k)), to(p, firstQPN+uint32(k))})
	}
	for _, l := range links {
		must(t, l.Close())
	}

	l := h.xdpLinkIn(XDPZeroCopy)
	if l.Mode() != XDPZeroCopy || l.Capabilities().MTU != 1500 {
		t.Fatalf("mode %q, MTU %d", l.Mode(), l.Capabilities().MTU)
	}
	exchange(l, message(p, 100_000, 1024))
	s := l.socket()
	if !s.tx.needsWakeup() || s.fill.needsWakeup() {
		t.Errorf("the driver waits to be woken for frames: %v, for chunks: %v; want the first only", s.tx.needsWakeup(), s.fill.needsWakeup())
	}
	eventually(t, "all chunks to be used", func() bool {
		sendAll(t, l, flood)
		return s.fill.needsWakeup() && s.rx.ready()+len(s.held) == s.rxChunks
	})
	eventually(t, "the driver to be woken for the chunks that come back", func() bool {
		return len(receive(l)) == 0 && !s.fill.needsWakeup()
	})
	// Frames stay in order: those that are on their way would take the room of others.
	eventually(t, "the end of the flood", func() bool {
		sendAll(t, l, []TxFrame{to(p, lastQPN)})
		return slices.ContainsFunc(receive(l), func(f RxFrame) bool { return bth(t, &f).DestQP == lastQPN })
	})
	exchange(l, message(p, 100_000, 1024))
	sendAll(t, l, []TxFrame{to(p, lastQPN)})
	if !ready(l, waitTimeout) {
		t.Error("the link's descriptor does not show that a frame has arrived")
	}

	must(t, h.nl.LinkSetDown(h.link()))
	eventually(t, "the link to see the interface down", func() bool { return !l.iface.Up() })
	must(t, h.nl.LinkSetUp(h.link()))
	eventually(t, "the link to see the interface up", l.iface.Up)
	exchange(l, message(p, 100_000, 1024))
	must(t, l.Close())

	// A driver may offer zero-copy for frames in one buffer only.
	must(t, h.nl.LinkSetMTU(h.link(), vethMTU))
	defer func() { must(t, h.nl.LinkSetMTU(h.link(), 1500)) }()
	l = h.xdpLink()
	if l.Mode() == XDPGeneric || l.Capabilities().MTU <= xdpOneChunkMTU {
		t.Errorf("mode %q, MTU %d", l.Mode(), l.Capabilities().MTU)
	}
	exchange(l, message(p, 100_000, 1024))
}

// thisHost returns the host of this process's network namespace.
func thisHost(t *testing.T, name string) *netnsHost {
	t.Helper()
	ns, err := netns.Get()
	must(t, err)
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	return &netnsHost{t: t, ns: ns, nl: nl, name: name}
}

// echo returns what a packet link on an interface receives, until the process is killed.
func echo(t *testing.T, name string) {
	h := thisHost(t, name)
	n, l := h.iface(), h.packetLink()
	paths := map[netip.Addr]*Path{}
	os.Stdout.WriteString("open\n")
	for got := make([]RxFrame, 64); ; {
		ready(l, time.Hour)
		k, err := l.Receive(0, got)
		must(t, err)
		back := make([]TxFrame, k)
		for i := range back {
			f := &got[i]
			if f.BadICRC {
				t.Fatal("wrong ICRC")
			}
			if paths[f.Src] == nil {
				p := &Path{Src: f.Dst, Dst: f.Src, SrcPort: f.SrcPort, HopLimit: 64}
				must(t, n.Resolve(t.Context(), p))
				paths[f.Src] = p
			}
			var h packet.Header
			at, err := h.Parse(f.Head)
			must(t, err)
			size, err := h.PayloadLen(len(f.Head))
			must(t, err)
			back[i].Path = paths[f.Src]
			back[i].Set(&h, f.Head[at:at+size])
		}
		sendAll(t, l, back)
	}
}
