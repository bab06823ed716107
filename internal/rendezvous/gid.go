// Package rendezvous chooses the GID that a program announces to a peer over TCP before the two
// connect their queue pairs.
package rendezvous

import (
	"net"
	"net/netip"
	"slices"

	"softroce/verbs"
)

// PickGID returns the index of the GID to use with a peer: the GID of tcp, the local address of the
// TCP connection, if it can reach the peer's GID, else the first that can. peer is the zero Addr
// while the peer's GID is unknown. The result is verbs.AnyGID if no GID qualifies. GIDs of RoCE v1
// do not.
func PickGID(gids []verbs.GIDEntry, tcp, peer netip.Addr) int {
	gids = slices.DeleteFunc(slices.Clone(gids), func(g verbs.GIDEntry) bool { return g.RoCEv1 })
	reaches := func(a netip.Addr) bool {
		return !peer.IsValid() || a.Is4() == peer.Is4() && a.IsLinkLocalUnicast() == peer.IsLinkLocalUnicast()
	}
	for _, g := range gids {
		if a := g.GID.Addr(); a == tcp && reaches(a) {
			return g.Index
		}
	}
	for _, g := range gids {
		if peer.IsValid() && reaches(g.GID.Addr()) {
			return g.Index
		}
	}
	return verbs.AnyGID
}

// LocalAddr returns the local address of a TCP connection without its zone, or the zero Addr for
// other connections.
func LocalAddr(conn net.Conn) netip.Addr {
	if a, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
