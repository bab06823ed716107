package cm

import (
	"net/netip"
	"testing"

	"softroce/packet"
)

// Linux: cma_iboe_set_mgid.
func TestGIDOfGroup(t *testing.T) {
	for _, c := range []struct {
		network packet.Network
		group   string
		gid     string
		index   int
	}{
		{packet.RoCEv2, "239.1.2.3", "::ffff:239.1.2.3", 2},
		{packet.RoCEv2, "ff0e::4d:9", "ff0e::4d:9", 2},
		{packet.RoCEv1, "239.1.2.3", "ff0e::ffff:ef01:203", 34},
		{packet.RoCEv1, "ff0e::4d:9", "ff0e::4d:9", 34},
	} {
		own := Address{GIDIndex: 2, RoCEv1Index: 34, Network: c.network}
		gid, index := own.group(netip.MustParseAddr(c.group))
		if want := netip.MustParseAddr(c.gid).As16(); gid != want || index != c.index {
			t.Errorf("%v of %v: %v at index %d, want %s at %d", c.group, c.network, netip.AddrFrom16(gid), index, c.gid, c.index)
		}
	}
}
