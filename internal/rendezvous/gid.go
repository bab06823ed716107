// Package rendezvous settles what two programs that met over TCP tell each other before
// they talk RDMA: by which of its GIDs the peer is to know this end.
package rendezvous

import (
	"net"
	"net/netip"

	"softroce/verbs"
)

// PickGID returns the index of the GID to use for a peer: the one of the address that the
// TCP connection has here, else the first that can reach the peer's GID. Before the peer's
// GID is known, peer is the zero Addr. verbs.AnyGID means that nothing speaks for one.
func PickGID(gids []verbs.GIDEntry, tcp, peer netip.Addr) int {
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

// LocalAddr returns the address that a TCP connection has here, without its zone; the
// zero Addr for other connections.
func LocalAddr(conn net.Conn) netip.Addr {
	if a, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
