package wire

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Address resolution:
//
//  1. The interface's own addresses and multicast addresses need no lookup.
//  2. The kernel's routing table gives the next hop for the interface and the source
//     address (route).
//  3. The kernel's neighbor table gives the MAC of the next hop (neighbors).
//  4. If there is no entry, a datagram to the next hop's discard port makes the kernel
//     resolve it (triggerResolution). Resolve polls the table until it has the entry or
//     resolution failed.
//  5. Later, netlink events make the watcher repeat 2 and 3 for all resolved
//     destinations (refreshHops), so that it notices a neighbor's new MAC.

const (
	// maxHops bounds the destinations that the watcher follows. Further ones resolve, but are not
	// followed.
	maxHops = 4096

	// discardPort is the port of the discard service (RFC 863).
	discardPort = 9

	// The interval between two reads of the neighbor table grows from minPoll to maxPoll. A
	// neighbor on a LAN replies within the first few reads.
	minPoll = 500 * time.Microsecond
	maxPoll = 50 * time.Millisecond
)

// A hop is the next hop to a destination.
type hop struct {
	src netip.Addr
	via netip.Addr
	mac [6]byte
}

// usable is the states of a neighbor entry whose MAC the kernel itself uses. That includes stale
// entries: the kernel sends to the old MAC while it verifies it.
const usable = unix.NUD_REACHABLE | unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_STALE |
	unix.NUD_DELAY | unix.NUD_PROBE

// openProbeSockets creates the sockets of triggerResolution.
func (n *Netdev) openProbeSockets() error {
	for i, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue // the kernel has no IPv6
		}
		if err != nil {
			return err
		}
		n.probeSockets[i] = fd
	}
	n.bindProbeSockets()
	return nil
}

// bindProbeSockets binds the sockets of triggerResolution to the interface. Linux before 5.7 allows
// only root to do so. Without it, the routing table chooses the interface, which is this one unless
// two lead to the address.
func (n *Netdev) bindProbeSockets() {
	for _, fd := range n.probeSockets[:2] {
		if fd >= 0 {
			unix.BindToDevice(fd, n.name)
		}
	}
}

// Resolve implements Interface.
func (n *Netdev) Resolve(ctx context.Context, p *Path) error {
	if err := checkPath(n.name, p); err != nil {
		return err
	}
	s := n.state.Load().vlan(p.VLAN)
	if s == nil {
		return fmt.Errorf("%v through %s: %w: no VLAN %d", p.Dst, n.name, ErrNoRoute, p.VLAN)
	}
	if !s.has(p.Src) {
		return fmt.Errorf("%v from %v: %w: %s does not have the source address", p.Dst, p.Src, ErrNoRoute, s.name)
	}
	h := hop{src: p.Src}
	var err error
	switch {
	case s.has(p.Dst):
		h.mac = s.mac
	case p.Dst.IsMulticast():
		h.mac = multicastMAC(p.Dst)
	default:
		if h.via, err = n.route(s, p.Src, p.Dst); err != nil {
			return err
		}
		if s.noARP || !h.via.IsValid() {
			h.mac = s.mac
			break
		}
		room := maxHops
		if h.mac, err = n.neighborMAC(ctx, s, h.via, p.DstMAC); err != nil {
			if h.via != p.Dst {
				err = fmt.Errorf("%v: next hop %w", p.Dst, err)
			}
			return err
		}
		if p.DstMAC != [6]byte{} {
			room /= 2 // the rest is for those that did not choose their addresses themselves
		}
		n.remember(p.station(), h, room)
	}
	p.DstMAC = h.mac
	return nil
}

func (s *netdevState) has(a netip.Addr) bool {
	for _, p := range s.addrs {
		if p.Addr() == a {
			return true
		}
	}
	return false
}

// route returns the next hop to dst, or the zero Addr if dst is this host.
func (n *Netdev) route(s *netdevState, src, dst netip.Addr) (netip.Addr, error) {
	o := netlink.RouteGetOptions{OifIndex: s.index, SrcAddr: src.AsSlice()}
	fail := func(err error) (netip.Addr, error) {
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) ||
			errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENODEV) {
			err = ErrNoRoute
		}
		return netip.Addr{}, fmt.Errorf("%v from %v through %s: %w", dst, src, s.name, err)
	}
	if dst.Is4() {
		// If an interface is given and no route matches an IPv4 address, the kernel treats the
		// address as a neighbor. FIBMatch returns the table's entry instead.
		o.FIBMatch = true
		if _, err := n.handle.RouteGetWithOptions(dst.AsSlice(), &o); err != nil {
			return fail(err)
		}
		o.FIBMatch = false
	}
	routes, err := n.handle.RouteGetWithOptions(dst.AsSlice(), &o)
	if err != nil {
		return fail(err)
	}
	if len(routes) == 0 {
		return fail(ErrNoRoute)
	}
	r := &routes[0]
	switch r.Type {
	case unix.RTN_LOCAL:
		return netip.Addr{}, nil
	case unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return fail(ErrNoRoute)
	}
	if via, ok := r.Via.(*netlink.Via); ok { // an IPv6 next hop of an IPv4 route
		if a, ok := netip.AddrFromSlice(via.Addr); ok {
			return a, nil
		}
	}
	if a, ok := netip.AddrFromSlice(r.Gw); ok {
		return a.Unmap(), nil
	}
	return dst, nil
}

// An entry is an entry of the kernel's neighbor table.
type entry struct {
	mac   [6]byte
	state int
}

func (e entry) usable() bool { return e.state&usable != 0 }

// A tableKey names a neighbor table of the kernel: of an interface and an address family.
type tableKey struct {
	index int
	v4    bool
}

// neighbors returns the kernel's neighbor table of one address family, which must not be changed.
// All that wait for a neighbor share the reads: else one client that asks for many which do not
// reply would keep the others waiting, as the kernel reads out one table at a time.
func (n *Netdev) neighbors(s *netdevState, v4 bool) (map[netip.Addr]entry, error) {
	table, _ := n.tables.LoadOrStore(tableKey{s.index, v4}, new(sharedRead[map[netip.Addr]entry]))
	return table.(*sharedRead[map[netip.Addr]entry]).do(func() (map[netip.Addr]entry, error) { return n.readNeighbors(s, v4) })
}

func (n *Netdev) readNeighbors(s *netdevState, v4 bool) (map[netip.Addr]entry, error) {
	family := unix.AF_INET6
	if v4 {
		family = unix.AF_INET
	}
	list, err := dump(func() ([]netlink.Neigh, error) { return n.handle.NeighList(s.index, family) })
	if err != nil {
		return nil, err
	}
	table := make(map[netip.Addr]entry, len(list))
	for i := range list {
		e := entry{state: list[i].State}
		var ok bool
		if e.mac, ok = hardwareAddr(list[i].HardwareAddr); !ok {
			e.state &^= usable
		}
		if a, ok := netip.AddrFromSlice(list[i].IP); ok {
			table[a.Unmap()] = e
		}
	}
	return table, nil
}

// neighborMAC returns the MAC of a neighbor, which it makes the kernel resolve if necessary. If
// sender is set, it is the MAC to use for a neighbor that the kernel does not know. The kernel is
// not made to resolve that one, or forged requests would fill its table.
func (n *Netdev) neighborMAC(ctx context.Context, s *netdevState, via netip.Addr, sender [6]byte) ([6]byte, error) {
	fail := func(err error) ([6]byte, error) {
		return [6]byte{}, fmt.Errorf("%v on %s: %w", via, s.name, err)
	}
	triggered := false
	for wait := minPoll; ; wait = min(2*wait, maxPoll) {
		table, err := n.neighbors(s, via.Is4())
		if err != nil {
			return fail(err)
		}
		e := table[via]
		if e.state&unix.NUD_STALE != 0 {
			n.triggerResolution(s, via) // to verify it; a change is reported to OnNeighbor
		}
		if e.usable() {
			return e.mac, nil
		}
		if sender != [6]byte{} {
			return sender, nil
		}
		if !triggered { // also if it failed before
			if err := n.triggerResolution(s, via); err != nil {
				return fail(fmt.Errorf("%w (%w)", ErrUnreachable, err))
			}
			triggered = true
		} else if e.state&unix.NUD_FAILED != 0 {
			return fail(ErrUnreachable)
		}
		select {
		case <-ctx.Done():
			return fail(fmt.Errorf("%w (%w)", ErrUnreachable, ctx.Err()))
		case <-time.After(wait):
		}
	}
}

// triggerResolution sends a datagram to a neighbor, so that the kernel resolves or verifies it.
// That requires no privilege.
func (n *Netdev) triggerResolution(s *netdevState, via netip.Addr) error {
	var err error
	sockets, pktInfo := n.probeSockets[:2], []byte(nil)
	if s.id != 0 {
		sockets, pktInfo = n.probeSockets[2:], pktinfo(via.Is4(), s.index)
	}
	if via.Is4() {
		err = unix.Sendmsg(sockets[0], nil, pktInfo, &unix.SockaddrInet4{Port: discardPort, Addr: via.As4()}, 0)
	} else {
		err = unix.Sendmsg(sockets[1], nil, pktInfo, &unix.SockaddrInet6{Port: discardPort, Addr: via.As16(), ZoneId: uint32(s.index)}, 0)
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) {
		return nil // the queue already has datagrams to the neighbor
	}
	return err
}

// remember stores the next hop to dst for refreshHops, if fewer than room are stored, and reports a
// new MAC.
func (n *Netdev) remember(dst Station, h hop, room int) {
	n.mu.Lock()
	old, ok := n.hops[dst]
	if ok || len(n.hops) < room {
		n.hops[dst] = h
	}
	callbacks := n.onNeighbor
	n.mu.Unlock()
	if ok && old.mac != h.mac {
		for _, f := range callbacks {
			f(dst, h.mac)
		}
	}
}

// Neighbor returns the MAC of the next hop to a station, as it was last resolved; zeros if it was
// not. The interface's own addresses have its MAC.
func (n *Netdev) Neighbor(of Station) [6]byte {
	if s := n.state.Load().vlan(of.VLAN); s != nil && s.has(of.Addr) {
		return s.mac
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hops[of].mac
}

// refreshHops looks up the next hops of all resolved destinations and reports changes. It never
// waits for a neighbor, whose reply is another event.
func (n *Netdev) refreshHops(routes bool) {
	s := n.state.Load()
	if s.index == 0 {
		return
	}
	n.mu.Lock()
	known := maps.Clone(n.hops)
	n.mu.Unlock()
	if len(known) == 0 {
		return
	}
	for _, face := range append([]*netdevState{s}, s.vlans...) {
		n.refreshHopsOn(face, known, routes)
	}
}

// refreshHopsOn is refreshHops for the interface itself or a VLAN on it.
func (n *Netdev) refreshHopsOn(s *netdevState, known map[Station]hop, routes bool) {
	v4, err4 := n.neighbors(s, true)
	v6, err6 := n.neighbors(s, false)
	if err4 != nil || err6 != nil {
		return
	}
	for dst, h := range known {
		if dst.VLAN != s.id {
			continue
		}
		via := h.via
		if routes {
			var err error
			if via, err = n.route(s, h.src, dst.Addr); err != nil || !via.IsValid() {
				continue // no route at present: keep sending to the last next hop
			}
		}
		e, ok := v4[via]
		if !via.Is4() {
			e, ok = v6[via]
		}
		switch {
		case e.usable() && (e.mac != h.mac || via != h.via):
			n.remember(dst, hop{h.src, via, e.mac}, 0)
		case !ok && via != h.via:
			n.triggerResolution(s, via)
		}
	}
}
