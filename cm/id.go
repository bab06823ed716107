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

// Where an identifier stands.
const (
	idIdle idState = iota
	idBound
	idAddrQuery
	idAddrResolved
	idRouteResolved
	idConnect // the rest tells its connection
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

	nic      NIC // nil: not bound to a device
	src, dst netip.AddrPort
	bound    bool // src is in the ports of its port space
	route    Route
	psn      uint32 // at which the peer is to start
	qkey     uint32

	// Options.
	tos        uint8
	reuse      bool
	afOnly     bool
	ackTimeout uint8 // code, 0 for the default

	// A listener.
	backlog, waiting int

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

// NewID makes an identifier. Errors are EINVAL and ENOMEM.
func (s *Session) NewID(ch *Channel, ps PortSpace, qpType ib.QPType) (*ID, error) {
	if ch == nil || ch.session != s || ch.closed {
		return nil, errnoError(syscall.EINVAL, "identifier needs an event channel")
	}
	switch ps {
	case PortSpaceTCP, PortSpaceUDP, PortSpaceIB, PortSpaceIPoIB:
	default:
		return nil, errnoError(syscall.EINVAL, "port space %#x", uint16(ps))
	}
	switch qpType {
	case ib.QPTypeRC, ib.QPTypeUC, ib.QPTypeUD, ib.QPTypeXRCSend, ib.QPTypeXRCRecv:
	default:
		return nil, errnoError(syscall.EINVAL, "queue pair type %d", uint32(qpType))
	}
	if len(s.ids) >= MaxIDs {
		return nil, errnoError(syscall.ENOMEM, "program has its %d identifiers", MaxIDs)
	}
	id := &ID{session: s, channel: ch, ps: ps, qpType: qpType}
	for id.handle == 0 || s.ids[id.handle] != nil {
		s.last++
		id.handle = s.last
	}
	s.ids[id.handle] = id
	ch.users++
	id.psn = s.manager.agent.StartingPSN()
	return id, nil
}

// Handle returns what the program calls the identifier.
func (id *ID) Handle() uint32 { return id.handle }

// PortSpace returns the port space.
func (id *ID) PortSpace() PortSpace { return id.ps }

// QPType returns the type of queue pair that it is for.
func (id *ID) QPType() ib.QPType { return id.qpType }

// NIC returns the device that it is bound to, or nil.
func (id *ID) NIC() NIC { return id.nic }

// Addresses returns the source and the destination, as far as they are known.
func (id *ID) Addresses() (src, dst netip.AddrPort) { return id.src, id.dst }

// datagrams reports whether the identifier is for a queue pair of UD.
func (id *ID) datagrams() bool { return id.qpType == ib.QPTypeUD }

// Destroy ends the identifier, and whatever it is at.
func (id *ID) Destroy() { id.destroy() }

func (id *ID) destroy() {
	s := id.session
	if s.ids[id.handle] != id {
		return
	}
	delete(s.ids, id.handle)
	id.purge()
	id.release()
	if c := id.conn; c != nil {
		id.conn = nil
		c.Close(s.manager.now)
	}
	id.channel.users--
}

// Bind gives the identifier a source address and port: both may be left open (unspecified or of the loopback, 0). Errors
// are EINVAL, EADDRNOTAVAIL, EADDRINUSE and EACCES.
func (id *ID) Bind(a netip.AddrPort) error {
	if id.state != idIdle {
		return errnoError(syscall.EINVAL, "identifier is %v, not idle", id.state)
	}
	n, err := id.local(a.Addr())
	if err != nil {
		return err
	}
	if err := id.takePort(a); err != nil {
		return err
	}
	id.nic, id.state = n, idBound
	return nil
}

// open reports whether an address names no device. That of the loopback does not either, and is one like the unspecified to
// those who bind to it, as with the kernel (cma_any_addr): libfabric asks at 127.0.0.1 whether there is RDMA at all.
func isWildcard(a netip.Addr) bool { return a.IsUnspecified() || a.IsLoopback() }

// local finds the device of a source address; nil for an open one.
func (id *ID) local(a netip.Addr) (NIC, error) {
	switch {
	case !a.IsValid():
		return nil, errnoError(syscall.EINVAL, "no address")
	case isWildcard(a):
		return nil, nil
	}
	for _, n := range id.session.nics {
		if _, ok := n.GIDIndex(a.WithZone("")); ok && (a.Zone() == "" || a.Zone() == n.Netdev()) {
			return n, nil
		}
	}
	return nil, errnoError(syscall.EADDRNOTAVAIL, "%v is no address of a device", a)
}

// takePort binds the identifier to a port, any that is free if a has none.
func (id *ID) takePort(a netip.AddrPort) error {
	m := id.session.manager
	a = netip.AddrPortFrom(a.Addr().WithZone(""), a.Port())
	if a.Port() != 0 {
		if a.Port() < 1024 && !id.session.owner.Privileged {
			return errnoError(syscall.EACCES, "port %d is for privileged users", a.Port())
		}
		if err := m.portFree(id, a); err != nil {
			return err
		}
		id.usePort(a)
		return nil
	}
	for range lastPort - firstPort + 1 {
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
}

// portFree checks a port against those that others have bound.
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

// overlap reports whether something sent to one address could be for either.
func overlap(x *ID, a netip.Addr, y *ID, b netip.Addr) bool {
	if a.Is4() != b.Is4() {
		// An open IPv6 address stands for IPv4 too, unless that is turned off.
		return a.Is6() && isWildcard(a) && !x.afOnly || b.Is6() && isWildcard(b) && !y.afOnly
	}
	return a == b || isWildcard(a) || isWildcard(b)
}

// release gives the port back.
func (id *ID) release() {
	if !id.bound {
		return
	}
	id.bound = false
	m := id.session.manager
	k := portKey{id.ps, id.src.Port()}
	m.ports[k] = slices.DeleteFunc(m.ports[k], func(o *ID) bool { return o == id })
	if len(m.ports[k]) == 0 {
		delete(m.ports, k)
	}
}

// ResolveAddr finds the device and the next hop that lead to dst; an AddrResolved or AddrError event tells the
// outcome. src may be the zero AddrPort. Errors are EINVAL, ENOMEM and those of Bind.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	s := id.session
	switch {
	case id.state != idIdle && id.state != idBound:
		return errnoError(syscall.EINVAL, "identifier is %v", id.state)
	case !dst.Addr().IsValid() || dst.Addr().IsUnspecified():
		return errnoError(syscall.EINVAL, "no destination")
	case s.events >= MaxEvents:
		return errnoError(syscall.ENOMEM, "program has %d events to fetch", MaxEvents)
	case s.resolving >= maxResolving:
		return errnoError(syscall.ENOMEM, "%d resolutions are under way", maxResolving)
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
	ways := id.candidates(dst.Addr())
	id.state = idAddrQuery
	s.resolving++
	id.resolveAny(ways, timeout, errnoError(syscall.ENETUNREACH, "no device leads to %v", dst.Addr()))
	return nil
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// A way is a device and a source address that may lead to a destination.
type candidate struct {
	nic  NIC
	src  netip.Addr
	rank int // less is better
}

// ways lists how a destination may be reached, the likeliest first: what is an address of the device itself, then
// what is on its link, the longest prefix first, then what a router may know.
func (id *ID) candidates(dst netip.Addr) (l []candidate) {
	if dst.IsLoopback() {
		return nil // no device's, whatever it may think a router knows
	}
	zone := dst.Zone()
	dst = dst.WithZone("")
	for _, n := range id.session.nics {
		if id.nic != nil && n != id.nic || zone != "" && zone != n.Netdev() || !n.Up() {
			continue
		}
		for _, p := range n.Addresses() {
			a := p.Addr().WithZone("")
			if a.Is4() != dst.Is4() || a.IsLinkLocalUnicast() != dst.IsLinkLocalUnicast() && a.Is6() && !dst.IsMulticast() {
				continue
			}
			if own := id.src.Addr(); !isWildcard(own) && own != a {
				continue
			}
			switch {
			case a == dst:
				l = append(l, candidate{n, a, -1})
			case p.Contains(dst):
				l = append(l, candidate{n, a, 128 - p.Bits()})
			default:
				l = append(l, candidate{n, a, 256})
			}
		}
	}
	slices.SortStableFunc(l, func(a, b candidate) int { return a.rank - b.rank })
	return l
}

// try asks for the first of the ways, and goes on to the next where there is no route.
func (id *ID) resolveAny(ways []candidate, timeout time.Duration, failed error) {
	s := id.session
	if len(ways) == 0 {
		s.resolving--
		id.state = idBound
		id.post(&Event{Type: EventAddrError, Status: -int(errno(failed))})
		return
	}
	w := ways[0]
	r := Route{Src: w.src, Dst: id.dst.Addr().WithZone(""), HopLimit: 64, TClass: id.tos, PKey: w.nic.PKey()}
	w.nic.Resolve(r, timeout, func(r Route, err error) {
		switch {
		case s.closed || s.ids[id.handle] != id:
			s.resolving--
		case err != nil:
			if errno(err) == syscall.ETIMEDOUT {
				ways = ways[:1] // it was the way, but nobody answers
			}
			id.resolveAny(ways[1:], timeout, err)
		default:
			s.resolving--
			id.resolved(w.nic, r)
		}
	})
}

// resolved completes ResolveAddr.
func (id *ID) resolved(n NIC, r Route) {
	id.nic, id.route = n, r
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

// ResolveRoute completes the route, which on Ethernet asks nobody: a RouteResolved event follows.
func (id *ID) ResolveRoute() error {
	if id.state != idAddrResolved {
		return errnoError(syscall.EINVAL, "identifier is %v", id.state)
	}
	id.route.TClass = id.tos
	id.route.FlowLabel = id.flowLabel()
	id.state = idRouteResolved
	id.post(&Event{Type: EventRouteResolved})
	return nil
}

// flowLabel spreads connections over ways: a hash of the two ends, never 0.
func (id *ID) flowLabel() uint32 {
	v := uint32(id.src.Port())*31 + uint32(id.dst.Port())
	v = v*0x9e3779b1 + id.psn
	return v>>12 | 1
}

// Listen makes the identifier hear of connections to its address and port. Errors are EINVAL and those of Bind.
func (id *ID) Listen(backlog int) error {
	if id.state == idIdle {
		if err := id.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
			return err
		}
	}
	if id.state != idBound {
		return errnoError(syscall.EINVAL, "identifier is %v", id.state)
	}
	for _, o := range id.session.manager.ports[portKey{id.ps, id.src.Port()}] {
		if o != id && o.state == idListen && overlap(id, id.src.Addr(), o, o.src.Addr()) {
			return errnoError(syscall.EADDRINUSE, "port %d of %v has a listener", id.src.Port(), id.ps)
		}
	}
	id.backlog = backlog
	if backlog <= 0 || backlog > MaxBacklog {
		id.backlog = MaxBacklog
	}
	id.state = idListen
	return nil
}
