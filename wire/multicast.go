package wire

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Multicaster is a link that can receive the packets of multicast groups. A NIC also receives
// what it sends to a group that it joined. Joins are not counted: one Leave undoes all. The
// goroutine that calls Send and Receive calls both methods.
type Multicaster interface {
	Join(group netip.Addr) error
	Leave(group netip.Addr)
}

// ErrNoMulticast is returned by Join for a link without multicast. It is EOPNOTSUPP.
var ErrNoMulticast = fmt.Errorf("link has no multicast: %w", unix.EOPNOTSUPP)

// Join makes l receive the packets of a multicast group. Its errors are ErrNoMulticast and those of
// the system: ENODEV, and ENOBUFS if a socket is a member of as many groups as it may be
// (net.ipv4.igmp_max_memberships, 20 by default).
func Join(l Link, group netip.Addr) error {
	if m, ok := l.(Multicaster); ok {
		return m.Join(group)
	}
	return ErrNoMulticast
}

// Leave ends the membership.
func Leave(l Link, group netip.Addr) {
	if m, ok := l.(Multicaster); ok {
		m.Leave(group)
	}
}

// Join implements Multicaster.
func (c *CaptureLink) Join(group netip.Addr) error { return Join(c.inner, group) }

// Leave implements Multicaster.
func (c *CaptureLink) Leave(group netip.Addr) { Leave(c.inner, group) }

// setMembership joins or leaves a group, with a socket, on the interface with an index. The kernel
// informs the network (IGMP, MLD) and the interface's hardware.
func setMembership(fd, index int, group netip.Addr, join bool) error {
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

// moveMembership makes a socket a member of a group on another interface. The kernel keeps that on
// an interface that was deleted, and a socket has few. That it is none there any more, after
// another try, is no error.
func moveMembership(fd, from, to int, group netip.Addr) error {
	setMembership(fd, from, group, false)
	return setMembership(fd, to, group, true)
}

func groupError(group netip.Addr, err error) error {
	if err == nil || err == unix.EADDRINUSE { // already a member
		return nil
	}
	return fmt.Errorf("join multicast group %v: %w", group, err)
}

// Join implements Multicaster.
func (l *UDPLink) Join(group netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.socket(group.Is4())
	switch {
	case l.closed:
		return ErrClosed
	case s == nil:
		return groupError(group, unix.EAFNOSUPPORT)
	}
	if err := setMembership(s.fd, l.index, group, true); err != nil {
		return err
	}
	l.groups[group] = true
	return nil
}

// Leave implements Multicaster.
func (l *UDPLink) Leave(group netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.groups, group)
	if s := l.socket(group.Is4()); s != nil && !l.closed {
		setMembership(s.fd, l.index, group, false)
	}
}

// Join implements Multicaster. The point-to-point medium has no switch that needs a report.
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

// joined reports whether a MAC is that of a group that the link joined.
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

// copyToSelf loops back frames that the link took, as far as there is room.
func (l *LoopbackLink) copyToSelf(batch []TxFrame) {
	for i := range batch {
		f := &batch[i]
		if f.Dropped {
			continue
		}
		if l.groups[f.Path.Dst] && !l.ring.push(f, f.Path.DstMAC) {
			l.own.Drops[DropOverrun]++
		}
		if l.crossing != nil {
			l.copyToOthers(f)
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

// sendToGroup sends a frame to every link that joined its group, including the sender. A link
// without room misses the frame, so that a slow one does not block the others.
func (p *FabricLink) sendToGroup(group []*FabricLink, frame []TxFrame) {
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
