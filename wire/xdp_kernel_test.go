//go:build guest

package wire

// These tests require a certain kernel. e2e runs them in a virtual machine.

import (
	"fmt"
	"strings"
	"testing"
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
