package nic

import (
	"net/netip"
	"slices"

	"softroce/packet"
	"softroce/wire"
)

// A GID is a port address: an IPv6 address or an IPv4-mapped one.
type GID [16]byte

// Addr returns the IP address of g; IPv4 if it is a mapped one.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

func (g GID) String() string { return netip.AddrFrom16(g).StringExpanded() }

// MarshalText returns the textual form, for JSON.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// GIDOf returns the GID of an IP address.
func GIDOf(a netip.Addr) GID { return a.As16() }

// A GIDEntry is an entry of a device's GID table: of RoCE v2, unless RoCEv1 is set.
type GIDEntry struct {
	Index  int    `json:"index"`
	GID    GID    `json:"gid"`
	Netdev string `json:"netdev"`
	VLAN   int    `json:"vlan,omitempty"` // VLAN ID, 0 for none
	RoCEv1 bool   `json:"roce_v1,omitempty"`
}

// RoCEv1GIDs says which GIDs of RoCE v1 a GID table has.
type RoCEv1GIDs uint8

// Places of the GIDs of RoCE v1.
const (
	// RoCEv1GIDsBehind are behind the first 32 indices: that of the address whose GID of RoCE v2
	// has index i is at i + 32, and in a table of less than 64 at i plus half its length. Programs
	// that count on the indices of a table without RoCE v1 find the same. If there are so many
	// addresses that RoCE v2 needs the index, it is not of RoCE v1.
	RoCEv1GIDsBehind RoCEv1GIDs = iota

	RoCEv1GIDsBefore // each in front of that of RoCE v2, the order of most kernel drivers
	NoRoCEv1GIDs
)

// A gidTable holds the addresses of an interface and of its VLANs. A GID keeps its index while its
// address exists; a free index goes to the next new address. Queue pairs keep the addresses they
// were connected with when the table changes.
type gidTable struct {
	entries []gidEntry // the zero GID marks a free index
	max     int
	roceV1  RoCEv1GIDs // those behind are not in entries
}

// A gidEntry is a GID, its VLAN and its type. One address may exist in several VLANs.
type gidEntry struct {
	gid    GID
	vlan   uint16
	netdev string
	roceV1 bool
}

// types returns the entries of an address, given that of RoCE v2, in the order of the kernel.
func (t *gidTable) types(e gidEntry) []gidEntry {
	if t.roceV1 != RoCEv1GIDsBefore {
		return []gidEntry{e}
	}
	v1 := e
	v1.roceV1 = true
	return []gidEntry{v1, e}
}

// linkLocal returns the EUI-64 link-local address of a MAC.
func linkLocal(mac [6]byte) GID {
	return GID{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
}

// update sets the table to an interface's addresses, and reports whether it changed. The first
// entries are those of the link-local GID of the MAC, whether or not the interface has that
// address.
func (t *gidTable) update(iface wire.Interface) bool {
	before := slices.Clone(t.entries)
	own := gidEntry{gid: linkLocal(iface.MAC()), netdev: iface.Name()}
	want := map[gidEntry]bool{}
	var order []gidEntry
	for _, a := range addressesOf(iface) {
		if a == own || a.gid == (GID{}) || want[a] {
			continue
		}
		for _, e := range t.types(a) {
			want[e] = true
			order = append(order, e)
		}
	}
	first := t.types(own)
	if len(t.entries) == 0 {
		t.entries = make([]gidEntry, len(first))
	}
	rest := t.entries[copy(t.entries, first):]
	for i, e := range rest {
		if !want[e] {
			rest[i] = gidEntry{}
		}
		delete(want, e)
	}
	for _, e := range order {
		if want[e] {
			t.add(e)
		}
	}
	return !slices.Equal(before, t.entries)
}

// addressesOf lists the GIDs of an interface's addresses; those of its VLANs come last.
func addressesOf(iface wire.Interface) (l []gidEntry) {
	for _, a := range iface.Addresses() {
		l = append(l, gidEntry{gid: GIDOf(a.Addr().WithZone("")), netdev: iface.Name()})
	}
	for _, a := range wire.VLANAddresses(iface) {
		l = append(l, gidEntry{gid: GIDOf(a.Addr().WithZone("")), vlan: a.VLAN, netdev: a.Netdev})
	}
	return l
}

// add stores e at the lowest free index, unless the table is full.
func (t *gidTable) add(e gidEntry) {
	for i := range t.entries {
		if t.entries[i].gid == (GID{}) {
			t.entries[i] = e
			return
		}
	}
	if len(t.entries) < t.max {
		t.entries = append(t.entries, e)
	}
}

// at returns the entry at index i, if there is one.
func (t *gidTable) at(i int) (gidEntry, bool) {
	if t.uses(i) {
		return t.entries[i], true
	}
	if j := i - t.behind(); j < t.behind() && t.uses(j) && t.roceV1 == RoCEv1GIDsBehind {
		e := t.entries[j]
		e.roceV1 = true
		return e, true
	}
	return gidEntry{}, false
}

// uses reports whether index i is in use by an entry of its own.
func (t *gidTable) uses(i int) bool { return i >= 0 && i < len(t.entries) && t.entries[i].gid != GID{} }

// behind returns what RoCEv1GIDsBehind adds to the index of an address.
func (t *gidTable) behind() int { return min(t.max/2, maxBehind) }

// has reports whether the table has an address in a VLAN, for packets of a network.
func (t *gidTable) has(a netip.Addr, vlan uint16, network packet.Network) bool {
	g, v1 := GIDOf(a), network == packet.RoCEv1
	for i := range t.entries {
		e := &t.entries[i]
		if e.gid != g || e.vlan != vlan {
			continue
		}
		if e.roceV1 == v1 || t.roceV1 == RoCEv1GIDsBehind && i < t.behind() && !t.uses(i+t.behind()) {
			return true
		}
	}
	return false
}

// carries reports whether the table has GIDs for packets of a network.
func (t *gidTable) carries(network packet.Network) bool {
	return network != packet.RoCEv1 || t.roceV1 != NoRoCEv1GIDs
}

func (t *gidTable) list() (l []GIDEntry) {
	for i := range max(len(t.entries), t.behind()+min(len(t.entries), t.behind())) {
		if e, ok := t.at(i); ok {
			l = append(l, GIDEntry{i, e.gid, e.netdev, int(e.vlan), e.roceV1})
		}
	}
	return l
}

// maxBehind leaves indices of RoCE v1 below 64, the highest that perftest takes.
const maxBehind = 32
