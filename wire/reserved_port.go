package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A reservedPort keeps the kernel away from the port on an interface and its VLAN interfaces, for a
// link that receives frames by another way: without a socket there, the kernel would reply "port
// unreachable". The sockets are also the members of the link's multicast groups. They are never
// read.
type reservedPort struct {
	iface *Netdev

	mu      sync.Mutex // for follow, which the Netdev's watcher calls
	index   int        // of the interface
	sockets []int
	groups  map[netip.Addr]map[*reservedPort]bool // with the slices that have joined
	vlans   map[string]vlanPort                   // by interface name
	closed  bool                                  // of the link

	first *reservedPort // of a slice other than the first of its NIC, which has no sockets: that of the first
}

// reserve opens the sockets. The calling thread must be in the interface's network namespace.
func (r *reservedPort) reserve(iface *Netdev) (err error) {
	r.iface, r.index = iface, iface.Index()
	r.groups, r.vlans = map[netip.Addr]map[*reservedPort]bool{}, map[string]vlanPort{}
	if r.sockets, err = reservePort(iface.Name()); err != nil {
		return err
	}
	return r.updateVLANs()
}

// share makes r the port of another slice of the NIC that has first.
func (r *reservedPort) share(first *reservedPort) {
	r.iface, r.index, r.first = first.iface, first.iface.Index(), first
}

// owner returns the port that has the sockets.
func (r *reservedPort) owner() *reservedPort {
	if r.first != nil {
		return r.first
	}
	return r
}

// release closes the sockets.
func (r *reservedPort) release() {
	for _, fd := range r.sockets {
		unix.Close(fd)
	}
	for _, v := range r.vlans {
		v.close()
	}
}

// follow follows changes of VLANs, and an interface that was deleted and created again. After an
// error the next change is another try. The caller holds mu.
func (r *reservedPort) follow() error {
	err := r.iface.inNamespace(r.updateVLANs)
	i := r.iface.Index()
	if i == 0 || i == r.index {
		return err
	}
	for _, fd := range r.sockets {
		err = errors.Join(err, os.NewSyscallError("SO_BINDTODEVICE", unix.BindToDevice(fd, r.iface.Name())))
	}
	for g := range r.groups {
		if fd, ok := socketFor(r.sockets, g); ok {
			err = errors.Join(err, moveMembership(fd, r.index, i, g))
		}
	}
	if err == nil {
		r.index = i
	}
	return err
}

// reservePort binds UDP sockets to the port on an interface. The sockets are never read. They have
// the smallest buffer, and UDP_GRO so that the kernel does not segment super-packets for them. Both
// only save work, so a kernel that refuses them is no error.
func reservePort(device string) (fds []int, err error) {
	defer func() {
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			fds = nil
		}
	}()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if family == unix.AF_INET6 && errors.Is(err, unix.EAFNOSUPPORT) {
			break
		}
		if err != nil {
			return fds, os.NewSyscallError("socket", err)
		}
		fds = append(fds, fd)
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0)
		unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
		if err := bindPort(fd, family, device); err != nil {
			return fds, err
		}
	}
	return fds, nil
}

// bindPort binds a UDP socket to port 4791 on one interface, for all addresses.
func bindPort(fd, family int, device string) error {
	if err := unix.BindToDevice(fd, device); err != nil {
		return fmt.Errorf("bind to the interface (without privilege this requires Linux 5.7): %w", err)
	}
	var any unix.Sockaddr = &unix.SockaddrInet4{Port: Port}
	if family == unix.AF_INET6 {
		any = &unix.SockaddrInet6{Port: Port}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		// RoCEv2 senders leave the checksum at 0.
		if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	err := unix.Bind(fd, any)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("UDP port %d of %s is in use by another daemon or by rdma_rxe: %w", Port, device, err)
	}
	return os.NewSyscallError("bind", err)
}

// Join implements Multicaster, with the sockets that reserve the port.
func (r *reservedPort) Join(group netip.Addr) error {
	o := r.owner()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ErrClosed
	}
	fd, ok := socketFor(o.sockets, group)
	if !ok {
		return groupError(group, unix.EAFNOSUPPORT)
	}
	if err := o.join(fd, group); err != nil {
		if len(o.groups[group]) == 0 {
			o.leave(fd, group)
		}
		return err
	}
	if o.groups[group] == nil {
		o.groups[group] = map[*reservedPort]bool{}
	}
	o.groups[group][r] = true
	return nil
}

// join makes the socket of a group's address family, and those on VLANs, members of the group. The
// caller holds mu.
func (r *reservedPort) join(fd int, group netip.Addr) error {
	err := setMembership(fd, r.index, group, true)
	for name, v := range r.vlans {
		err = errors.Join(err, v.join(name, group))
	}
	return err
}

// leave undoes join. That a socket is not a member, or its interface has been deleted, is no error.
// The caller holds mu.
func (r *reservedPort) leave(fd int, group netip.Addr) {
	setMembership(fd, r.index, group, false)
	for _, v := range r.vlans {
		if fd, ok := socketFor(v.portSockets, group); ok {
			setMembership(fd, v.index, group, false)
		}
	}
}

// Leave implements Multicaster.
func (r *reservedPort) Leave(group netip.Addr) {
	o := r.owner()
	o.mu.Lock()
	defer o.mu.Unlock()
	if delete(o.groups[group], r); len(o.groups[group]) > 0 {
		return
	}
	delete(o.groups, group)
	if fd, ok := socketFor(o.sockets, group); ok && !o.closed {
		o.leave(fd, group)
	}
}

// socketFor returns the socket of a group's address family, of those that reservePort has returned.
func socketFor(sockets []int, group netip.Addr) (fd int, ok bool) {
	i := 1
	if group.Is4() {
		i = 0
	}
	if i >= len(sockets) {
		return -1, false
	}
	return sockets[i], true
}

// A vlanPort is the sockets of a link on a VLAN interface. They reserve the port there, and are
// members of its multicast groups. Frames go through the link's own socket.
type vlanPort struct {
	index       int
	portSockets []int
}

// reserved reports whether the port is the link's on the VLAN.
func (v vlanPort) reserved() bool { return len(v.portSockets) > 0 }

func (v vlanPort) close() {
	for _, fd := range v.portSockets {
		unix.Close(fd)
	}
}

// join makes the sockets on the VLAN interface of a name members of a group. An interface that was
// deleted meanwhile is no error (ENODEV), since that is another change, nor is one without the
// group's address family (ENODEV or EINVAL), which has no address to receive the group at.
func (v vlanPort) join(name string, group netip.Addr) error {
	fd, ok := socketFor(v.portSockets, group)
	if !ok {
		return nil
	}
	err := setMembership(fd, v.index, group, true)
	if err == nil || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return fmt.Errorf("VLAN interface %s: %w", name, err)
}

// updateVLANs follows the VLANs on the interface. After an error the next change is another try.
// The caller holds mu, or is the only user of r. The calling thread must be in the interface's
// network namespace.
func (r *reservedPort) updateVLANs() (err error) {
	s := r.iface.state.Load()
	present := map[string]bool{}
	for _, v := range s.vlans {
		present[v.name] = true
		p := r.vlans[v.name]
		if p.index != v.index || !p.reserved() {
			p.close()
			sockets, e := reservePort(v.name)
			switch {
			case errors.Is(e, unix.EADDRINUSE): // another daemon's NIC reserves the port
			case errors.Is(e, unix.ENODEV): // deleted meanwhile, which is another change
			case e != nil:
				err = errors.Join(err, fmt.Errorf("VLAN interface %s: %w", v.name, e))
			}
			p = vlanPort{v.index, sockets}
			r.vlans[v.name] = p
		}
		for g := range r.groups { // also those that a member could not join before
			err = errors.Join(err, p.join(v.name, g))
		}
	}
	for name, p := range r.vlans {
		if !present[name] {
			p.close()
			delete(r.vlans, name)
		}
	}
	return err
}

// served returns the interface's state without the VLANs where another daemon has the port. The
// caller holds mu, or is the only user of r.
func (r *reservedPort) served() *netdevState {
	s := *r.iface.state.Load()
	s.vlans = slices.DeleteFunc(slices.Clone(s.vlans), func(v *netdevState) bool { return !r.vlans[v.name].reserved() })
	return &s
}
