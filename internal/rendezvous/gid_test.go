package rendezvous

import (
	"net/netip"
	"slices"
	"testing"

	"softroce/verbs"
)

func TestPickGIDReachesPeer(t *testing.T) {
	var gids []verbs.GIDEntry
	for i, a := range []string{"fe80::5054:ff:fe00:1", "10.0.0.1", "192.0.2.1", "2001:db8::1"} {
		gids = append(gids, verbs.GIDEntry{Index: i, GID: verbs.GIDFromAddr(netip.MustParseAddr(a))})
	}
	for i, g := range gids { // in front of each the same of RoCE v1
		g.Index, g.RoCEv1 = 10+i, true
		gids = slices.Insert(gids, 2*i, g)
	}
	for _, c := range []struct {
		tcp, peer string
		want      int
	}{
		{"127.0.0.1", "", verbs.AnyGID},
		{"192.0.2.1", "", 2},
		{"192.0.2.1", "192.0.2.9", 2},
		{"127.0.0.1", "192.0.2.9", 1},
		{"192.0.2.1", "2001:db8::9", 3},
		{"192.0.2.1", "fe80::1", 0},
		{"2001:db8::1", "10.0.0.2", 1},
	} {
		var peer netip.Addr
		if c.peer != "" {
			peer = netip.MustParseAddr(c.peer)
		}
		if got := PickGID(gids, netip.MustParseAddr(c.tcp), peer); got != c.want {
			t.Errorf("TCP at %s, peer %q: picked %d, want %d", c.tcp, c.peer, got, c.want)
		}
	}
}
