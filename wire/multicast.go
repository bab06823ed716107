package wire

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Multicaster is a link, or middleware, that can receive what is sent to multicast groups. A
// NIC that has joined a group gets what itself sends there, too. Joins are not counted: one
// Leave ends them. Both methods are for the goroutine that calls Send and Receive.
type Multicaster interface {
	Join(group netip.Addr) error
	Leave(group netip.Addr)
}

// ErrNoMulticast is returned by Join for a link that has none. It is EOPNOTSUPP.
var ErrNoMulticast = fmt.Errorf("link has no multicast: %w", unix.EOPNOTSUPP)

// Join makes l receive what is sent to a multicast group. Errors are ErrNoMulticast and
// those of the system: ENOBUFS where a socket has as many groups as it may
// (net.ipv4.igmp_max_memberships, 20 unless set otherwise), ENODEV.
func Join(l Link, group netip.Addr) error {
	if m, ok := l.(Multicaster); ok {
		return m.Join(group)
	}
	return ErrNoMulticast
}

// Leave ends it.
func Leave(l Link, group netip.Addr) {
	if m, ok := l.(Multicaster); ok {
		m.Leave(group)
	}
}

// Join implements Multicaster.
func (c *CaptureLink) Join(group netip.Addr) error { return Join(c.inner, group) }

// Leave implements Multicaster.
func (c *CaptureLink) Leave(group netip.Addr) { Leave(c.inner, group) }

// member makes a socket, on the interface with this index, a member of a group or ends it. The
// kernel tells the network (IGMP, MLD), and the interface's hardware.
func member(fd, index int, group netip.Addr, join bool) error {
	if group.Is4() {
		name := unix.IP_DROP_MEMBERSHIP
		if join {
			name = unix.IP_ADD_MEMBERSHIP
		}
		return groupError(group, unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, name,
			&unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(index)}))
	}
	name := unix.IPV6_LEAVE_GROUP
	if join {
		name = unix.IPV6_JOIN_GROUP
	}
	return groupError(group, unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, name,
		&unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)}))
}

func groupError(group netip.Addr, err error) error {
	if err == nil || err == unix.EADDRINUSE { // is a member
		return nil
	}
	return fmt.Errorf("joining %v: %w", group, err)
}

// Join implements Multicaster: the sockets that hold the port are the members.
func (l *PacketLink) Join(group netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	fd, ok := l.holder(group)
	if !ok {
		return groupError(group, unix.EAFNOSUPPORT)
	}
	if err := member(fd, l.index, group, true); err != nil {
		return err
	}
	for _, v := range l.vlans {
		v.member(group, true)
	}
	l.groups[group] = true
	return nil
}

// Leave implements Multicaster.
func (l *PacketLink) Leave(group netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.groups, group)
	if fd, ok := l.holder(group); ok && !l.closed {
		member(fd, l.index, group, false)
		for _, v := range l.vlans {
			v.member(group, false)
		}
	}
}

// holder is the socket of a group's address family.
func (l *PacketLink) holder(group netip.Addr) (fd int, ok bool) {
	i := 1
	if group.Is4() {
		i = 0
	}
	if i >= len(l.holders) {
		return -1, false
	}
	return l.holders[i], true
}

// rejoin follows an interface that was made anew. The caller holds mu.
func (l *PacketLink) rejoin() {
	for g := range l.groups {
		if fd, ok := l.holder(g); ok {
			member(fd, l.index, g, true)
		}
	}
}

// Join implements Multicaster.
func (l *UDPLink) Join(group netip.Addr) error {
	s := l.socket(group.Is4())
	switch {
	case l.closed:
		return ErrClosed
	case s == nil:
		return groupError(group, unix.EAFNOSUPPORT)
	}
	return member(s.fd, l.iface.Index(), group, true)
}

// Leave implements Multicaster.
func (l *UDPLink) Leave(group netip.Addr) {
	if s := l.socket(group.Is4()); s != nil && !l.closed {
		member(s.fd, l.iface.Index(), group, false)
	}
}

// Join implements Multicaster. The cable has one other end, and nobody between who would
// want to hear of it.
func (l *DgramLink) Join(group netip.Addr) error {
	l.groups[group] = multicastMAC(group)
	return nil
}

// Leave implements Multicaster.
func (l *DgramLink) Leave(group netip.Addr) { delete(l.groups, group) }

func (l *DgramLink) member(group netip.Addr) bool {
	_, ok := l.groups[group]
	return ok
}

// joined reports whether frames to a MAC may be for a group that the link has joined.
func (l *DgramLink) joined(mac [6]byte) bool {
	for _, m := range l.groups {
		if m == mac {
			return true
		}
	}
	return false
}

// Join implements Multicaster.
func (l *LoopbackLink) Join(group netip.Addr) error {
	if err := Join(l.inner, group); err != nil {
		return err
	}
	l.groups[group] = true
	return nil
}

// Leave implements Multicaster.
func (l *LoopbackLink) Leave(group netip.Addr) {
	delete(l.groups, group)
	Leave(l.inner, group)
}

// echo gives the NIC its copy of frames that the link has taken, as far as there is room.
func (l *LoopbackLink) echo(batch []TxFrame) {
	for i := range batch {
		f := &batch[i]
		if !f.Dropped && !l.ring.push(f, f.Path.DstMAC) {
			l.own.Drops[DropOverrun]++
		}
	}
}

// Join implements Multicaster.
func (p *FabricLink) Join(group netip.Addr) error {
	f := p.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.groups[group] = true
	f.rebuild()
	return nil
}

// Leave implements Multicaster.
func (p *FabricLink) Leave(group netip.Addr) {
	f := p.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(p.groups, group)
	f.rebuild()
}

// spread sends a frame to every port that has joined its group, the sender's own among them. A
// port without room misses it: one that is slow does not hold up the others.
func (p *FabricLink) spread(group []*FabricLink, frame []TxFrame) {
	id := p.nextID
	for _, to := range group {
		p.nextID = id
		if p.sendTo(to, frame) == 0 {
			p.counters.Drops[DropOverrun]++
		}
	}
	frame[0].ID, frame[0].ICRC = id, 0
	p.nextID = id + 1
}
