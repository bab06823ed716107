package cm

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"softroce/internal/ib"
)

type idState uint8

// States of an identifier.
const (
	idIdle idState = iota
	idBound
	idAddrQuery
	idAddrResolved
	idRouteResolved
	idConnect // see the state of its connection
	idListen
)

var idStates = [...]string{"idle", "bound", "resolving", "address resolved", "route resolved", "connecting", "listening"}

func (s idState) String() string { return idStates[s] }

// An ID is an identifier: struct rdma_cm_id.
type ID struct {
	session *Session
	handle  uint32
	channel *Channel
	ps      PortSpace
	qpType  ib.QPType
	state   idState

	nic      NIC     // nil if not bound to a device
	local    Address // that the identifier is bound to; valid if nic is not nil
	src, dst netip.AddrPort
	bound    bool // src is registered in Manager.ports
	route    Route
	psn      uint32 // the first PSN of the peer
	qkey     uint32

	// Options.
	tos        uint8
	reuse      bool
	afOnly     bool
	ackTimeout uint8 // code, 0 for the default

	// A listener: the requests that are queued for the program, at most room, and those accepted.
	room             int
	queued, accepted backlog
	halfOpen         *backlog // of a connection request: the listener's accepted
	member           *member  // of a connection request: its place in a backlog

	// A connection.
	conn    *Conn
	passive bool
	qpn     uint32
	req     *REQ // sent or received
	rep     *REP // received
	sidr    *SIDRREQ
	groups  []netip.Addr
	moved   bool
}

// NewID creates an identifier. Errors are EINVAL and ENOMEM.
func (s *Session) NewID(ch *Channel, ps PortSpace, qpType ib.QPType) (*ID, error) {
	if ch == nil || ch.session != s || ch.closed {
		return nil, errnoError(syscall.EINVAL, "an identifier needs an event channel")
	}
	switch ps {
	case PortSpaceTCP, PortSpaceUDP, PortSpaceIB, PortSpaceIPoIB:
	default:
		return nil, errnoError(syscall.EINVAL, "unknown port space %#x", uint16(ps))
	}
	switch qpType {
	case ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD, ib.QPTypeXRCSend, ib.QPTypeXRCRecv:
	default:
		return nil, errnoError(syscall.EINVAL, "unsupported queue pair type %d", uint32(qpType))
	}
	if len(s.ids) >= MaxIDs {
		return nil, errnoError(syscall.ENOMEM, "the program has the maximum of %d identifiers", MaxIDs)
	}
	if err := s.share.check("identifiers", s.share.ids, s.manager.ids, maxAllIDs); err != nil {
		return nil, err
	}
	id := &ID{session: s, channel: ch, ps: ps, qpType: qpType}
	for id.handle == 0 || s.ids[id.handle] != nil {
		s.last++
		id.handle = s.last
	}
	s.ids[id.handle] = id
	s.share.ids++
	s.manager.ids++
	ch.users++
	id.psn = s.manager.agent.StartingPSN()
	return id, nil
}

// Handle returns the number by which the program names the identifier.
func (id *ID) Handle() uint32 { return id.handle }

// PortSpace returns the port space.
func (id *ID) PortSpace() PortSpace { return id.ps }

// QPType returns the type of the identifier's queue pair.
func (id *ID) QPType() ib.QPType { return id.qpType }

// Netdev returns the network interface of the identifier's address, "" for none.
func (id *ID) Netdev() string { return id.local.Netdev }

// NIC returns the device that the identifier is bound to, or nil.
func (id *ID) NIC() NIC { return id.nic }

// Addresses returns the source and the destination, as far as they are known.
func (id *ID) Addresses() (src, dst netip.AddrPort) { return id.src, id.dst }

// datagrams reports whether the identifier is for a UD queue pair.
func (id *ID) datagrams() bool { return id.qpType == ib.QPTypeUD }

// Destroy destroys the identifier and ends its connection. It returns how many of the queued events
// were the identifier's, so that the program can discard their signals.
func (id *ID) Destroy() (removed int) {
	s := id.session
	if s.ids[id.handle] != id {
		return 0
	}
	delete(s.ids, id.handle)
	s.share.ids--
	s.manager.ids--
	id.leaveBacklog()
	removed = id.purge()
	id.release()
	if c := id.conn; c != nil {
		id.conn = nil
		c.Close(s.manager.now)
	}
	id.channel.users--
	return removed
}

// Bind binds the identifier to a source address and port. The address may be a wildcard, and the
// port 0. Errors are EINVAL, EADDRNOTAVAIL, EADDRINUSE and EACCES.
func (id *ID) Bind(a netip.AddrPort) error {
	if id.state != idIdle {
		return errnoError(syscall.EINVAL, "the identifier is %v, want idle", id.state)
	}
	n, local, err := id.find(a.Addr())
	if err != nil {
		return err
	}
	if err := id.takePort(a); err != nil {
		return err
	}
	id.nic, id.local, id.state = n, local, idBound
	return nil
}

// isWildcard reports whether an address names no device. The loopback address counts as a wildcard
// when binding, as in the kernel (cma_any_addr): libfabric binds to 127.0.0.1 to find out whether
// there is RDMA.
func isWildcard(a netip.Addr) bool { return a.IsUnspecified() || a.IsLoopback() }

// find returns the device of a source address, nil for a wildcard. If an address exists in several
// VLANs, its zone or else the GID table decides.
func (id *ID) find(a netip.Addr) (NIC, Address, error) {
	switch {
	case !a.IsValid():
		return nil, Address{}, errnoError(syscall.EINVAL, "the address is missing")
	case isWildcard(a):
		return nil, Address{}, nil
	}
	for _, n := range id.session.nics {
		for _, own := range n.Addresses() {
			if own.Addr() == a.WithZone("") && (a.Zone() == "" || a.Zone() == own.Netdev) {
				return n, own, nil
			}
		}
	}
	return nil, Address{}, errnoError(syscall.EADDRNOTAVAIL, "no device has the address %v", a)
}

// takePort binds the identifier to a port; for port 0 it chooses one that is free.
func (id *ID) takePort(a netip.AddrPort) error {
	m := id.session.manager
	a = netip.AddrPortFrom(a.Addr().WithZone(""), a.Port())
	if a.Port() != 0 {
		if a.Port() < 1024 && !id.session.owner.Privileged {
			return errnoError(syscall.EACCES, "port %d requires a privileged user", a.Port())
		}
		if err := m.portFree(id, a); err != nil {
			return err
		}
		id.usePort(a)
		return nil
	}
	const ports = lastPort - firstPort + 1
	if err := id.session.share.check("ephemeral ports", id.session.share.ports[id.ps], m.bound[id.ps], ports); err != nil {
		return errnoError(syscall.EADDRNOTAVAIL, "%v", err.(*Error).Text)
	}
	for range ports {
		m.nextPort++
		if m.nextPort > lastPort || m.nextPort < firstPort {
			m.nextPort = firstPort
		}
		if len(m.ports[portKey{id.ps, m.nextPort}]) == 0 {
			id.usePort(netip.AddrPortFrom(a.Addr(), m.nextPort))
			return nil
		}
	}
	return errnoError(syscall.EADDRNOTAVAIL, "no port is free")
}

func (id *ID) usePort(a netip.AddrPort) {
	m := id.session.manager
	k := portKey{id.ps, a.Port()}
	id.src, id.bound = a, true
	m.ports[k] = append(m.ports[k], id)
	if k.ephemeral() {
		id.session.share.ports[k.ps]++
		if len(m.ports[k]) == 1 {
			m.bound[k.ps]++
		}
	}
}

// portFree checks a port against those that other identifiers are bound to.
func (m *Manager) portFree(id *ID, a netip.AddrPort) error {
	for _, o := range m.ports[portKey{id.ps, a.Port()}] {
		switch {
		case o == id:
		case o.reuse && id.reuse && o.state != idListen:
		case !overlap(id, a.Addr(), o, o.src.Addr()):
		default:
			return errnoError(syscall.EADDRINUSE, "port %d of %v is in use", a.Port(), id.ps)
		}
	}
	return nil
}

// overlap reports whether two bindings cover a common address.
func overlap(x *ID, a netip.Addr, y *ID, b netip.Addr) bool {
	if a.Is4() != b.Is4() {
		// An IPv6 wildcard covers IPv4 too, unless the identifier is for IPv6 only.
		return a.Is6() && isWildcard(a) && !x.afOnly || b.Is6() && isWildcard(b) && !y.afOnly
	}
	return a == b || isWildcard(a) || isWildcard(b)
}

// release frees the port.
func (id *ID) release() {
	if !id.bound {
		return
	}
	id.bound = false
	m := id.session.manager
	k := portKey{id.ps, id.src.Port()}
	m.ports[k] = slices.DeleteFunc(m.ports[k], func(o *ID) bool { return o == id })
	if k.ephemeral() {
		id.session.share.ports[k.ps]--
	}
	if len(m.ports[k]) == 0 {
		delete(m.ports, k)
		if k.ephemeral() {
			m.bound[k.ps]--
		}
	}
}

// ResolveAddr finds the device and the next hop for dst; EventAddrResolved or EventAddrError
// reports the outcome. src may be the zero AddrPort. Errors are EINVAL, ENOMEM and those of Bind.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	s := id.session
	switch {
	case id.state != idIdle && id.state != idBound:
		return errnoError(syscall.EINVAL, "the identifier is %v", id.state)
	case !dst.Addr().IsValid() || dst.Addr().IsUnspecified():
		return errnoError(syscall.EINVAL, "the destination is missing")
	case s.resolving >= maxResolving:
		return errnoError(syscall.ENOMEM, "the program has the maximum of %d outstanding resolutions", maxResolving)
	}
	if err := s.checkEvents(); err != nil {
		return err
	}
	if id.state == idIdle {
		if !src.Addr().IsValid() {
			src = netip.AddrPortFrom(unspecified(dst.Addr()), 0)
		}
		if err := id.Bind(src); err != nil {
			return err
		}
	}
	if id.src.Addr().Is4() != dst.Addr().Is4() {
		return errnoError(syscall.EINVAL, "%v and %v are of different address families", id.src.Addr(), dst.Addr())
	}
	id.dst = dst
	candidates := id.candidates(dst.Addr())
	id.state = idAddrQuery
	s.resolving++
	id.resolveAny(candidates, timeout, errnoError(syscall.ENETUNREACH, "no device has a route to %v", dst.Addr()))
	return nil
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// A candidate is a device and a source address from which a destination may be reachable.
type candidate struct {
	nic  NIC
	src  Address
	rank int // the lowest is the best
}

// candidates returns where a destination may be reachable from, the best first: the device whose
// own address it is, then devices on its subnet, the longest prefix first, then those that may have
// a router.
func (id *ID) candidates(dst netip.Addr) (l []candidate) {
	if dst.IsLoopback() {
		return nil // not reachable from any device, even through a router
	}
	zone := dst.Zone()
	dst = dst.WithZone("")
	for _, n := range id.session.nics {
		if id.nic != nil && n != id.nic || !n.Up() {
			continue
		}
		for _, own := range n.Addresses() {
			a := own.Addr()
			if a.Is4() != dst.Is4() || a.IsLinkLocalUnicast() != dst.IsLinkLocalUnicast() && a.Is6() && !dst.IsMulticast() {
				continue
			}
			if id.nic != nil && (a != id.local.Addr() || own.VLAN != id.local.VLAN) || zone != "" && zone != own.Netdev {
				continue
			}
			switch {
			case a == dst:
				l = append(l, candidate{n, own, -1})
			case own.Contains(dst):
				l = append(l, candidate{n, own, 128 - own.Bits()})
			default:
				l = append(l, candidate{n, own, 256})
			}
		}
	}
	slices.SortStableFunc(l, func(a, b candidate) int { return a.rank - b.rank })
	return l
}

// resolveAny resolves the destination from the first candidate, and from the next one if there is
// no route.
func (id *ID) resolveAny(candidates []candidate, timeout time.Duration, failed error) {
	s := id.session
	if len(candidates) == 0 {
		s.resolving--
		id.state = idBound
		id.post(&Event{Type: EventAddrError, Status: -int(errno(failed))})
		return
	}
	c := candidates[0]
	r := Route{Network: c.src.Network, Src: c.src.Addr(), Dst: id.dst.Addr().WithZone(""), VLAN: c.src.VLAN, HopLimit: 64, TClass: id.tos, PKey: c.nic.PKey()}
	c.nic.Resolve(r, timeout, func(r Route, err error) {
		switch {
		case s.closed || s.ids[id.handle] != id:
			s.resolving--
		case err != nil:
			if errno(err) == syscall.ETIMEDOUT {
				candidates = candidates[:1] // there is a route, but the next hop did not reply
			}
			id.resolveAny(candidates[1:], timeout, err)
		default:
			s.resolving--
			id.resolved(c, r)
		}
	})
}

// resolved completes ResolveAddr.
func (id *ID) resolved(c candidate, r Route) {
	id.nic, id.local, id.route = c.nic, c.src, r
	id.src = netip.AddrPortFrom(r.Src, id.src.Port())
	id.state = idAddrResolved
	id.post(&Event{Type: EventAddrResolved})
}

func errno(err error) syscall.Errno {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return syscall.EHOSTUNREACH
}

// ResolveRoute completes the route, which on Ethernet needs no query: EventRouteResolved follows.
func (id *ID) ResolveRoute() error {
	if id.state != idAddrResolved {
		return errnoError(syscall.EINVAL, "the identifier is %v", id.state)
	}
	own, _ := findAddress(id.nic, station{id.local.Addr(), id.local.VLAN})
	id.route.TClass, id.route.SL = id.tos, own.serviceLevel(id.tos)
	id.route.FlowLabel = id.flowLabel()
	id.state = idRouteResolved
	id.post(&Event{Type: EventRouteResolved})
	return nil
}

// flowLabel spreads connections over paths: it is a hash of both addresses, never 0.
func (id *ID) flowLabel() uint32 {
	v := uint32(id.src.Port())*31 + uint32(id.dst.Port())
	v = v*0x9e3779b1 + id.psn
	return v>>12 | 1
}

// Listen makes the identifier accept connection requests for its address and port. Errors are
// EINVAL and those of Bind.
func (id *ID) Listen(backlog int) error {
	if id.state == idIdle {
		if err := id.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
			return err
		}
	}
	if id.state != idBound {
		return errnoError(syscall.EINVAL, "the identifier is %v", id.state)
	}
	for _, o := range id.session.manager.ports[portKey{id.ps, id.src.Port()}] {
		if o != id && o.state == idListen && overlap(id, id.src.Addr(), o, o.src.Addr()) {
			return errnoError(syscall.EADDRINUSE, "port %d of %v has a listener", id.src.Port(), id.ps)
		}
	}
	id.room = backlog
	if backlog <= 0 || backlog > MaxBacklog {
		id.room = MaxBacklog
	}
	id.state = idListen
	return nil
}
