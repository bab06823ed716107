package nic

import (
	"net/netip"
	"slices"
)

// A GID is a port address: an IPv6 address, or an IPv4 address mapped into one.
type GID [16]byte

// Addr returns the IP address behind g, IPv4 where it is a mapped one.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

func (g GID) String() string { return netip.AddrFrom16(g).StringExpanded() }

// MarshalText gives the textual form, for JSON.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// GIDOf returns the GID of an IP address.
func GIDOf(a netip.Addr) GID { return a.As16() }

// A GIDEntry is a row of a device's GID table. All are RoCE v2.
type GIDEntry struct {
	Index  int    `json:"index"`
	GID    GID    `json:"gid"`
	Netdev string `json:"netdev"`
	VLAN   int    `json:"vlan,omitempty"` // VLAN ID, 0 for none
}

// gidTable follows the addresses of an interface. A GID keeps its index while its
// address is there; an index that became free goes to the next new address. Queue pairs
// keep the addresses that they were given, whatever happens to the table.
type gidTable struct {
	entries []GID // the zero GID marks a free index
	max     int
}

// linkLocal returns the EUI-64 link-local address of a MAC.
func linkLocal(mac [6]byte) GID {
	return GID{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
}

// update makes the table that of an interface with this MAC and these addresses, and
// reports whether anything changed. Index 0 is the MAC's, whatever the addresses are.
func (t *gidTable) update(mac [6]byte, addrs []netip.Prefix) bool {
	before := slices.Clone(t.entries)
	first := linkLocal(mac)
	want := map[GID]bool{}
	var order []GID
	for _, a := range addrs {
		g := GIDOf(a.Addr().WithZone(""))
		if g != first && g != (GID{}) && !want[g] {
			want[g] = true
			order = append(order, g)
		}
	}
	if len(t.entries) == 0 {
		t.entries = append(t.entries, first)
	}
	t.entries[0] = first
	for i, g := range t.entries[1:] {
		if !want[g] {
			t.entries[1+i] = GID{}
		}
		delete(want, g)
	}
	for _, g := range order {
		if want[g] {
			t.add(g)
		}
	}
	return !slices.Equal(before, t.entries)
}

// add puts g in the lowest free index; a full table leaves it out.
func (t *gidTable) add(g GID) {
	for i, e := range t.entries {
		if e == (GID{}) {
			t.entries[i] = g
			return
		}
	}
	if len(t.entries) < t.max {
		t.entries = append(t.entries, g)
	}
}

// at returns the GID at index i, if there is one.
func (t *gidTable) at(i int) (GID, bool) {
	if i < 0 || i >= len(t.entries) || t.entries[i] == (GID{}) {
		return GID{}, false
	}
	return t.entries[i], true
}

func (t *gidTable) list(netdev string) (l []GIDEntry) {
	for i, g := range t.entries {
		if g != (GID{}) {
			l = append(l, GIDEntry{Index: i, GID: g, Netdev: netdev})
		}
	}
	return l
}
