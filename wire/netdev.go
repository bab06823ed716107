package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Netdev is an Interface of the host, watched through netlink. It keeps to the
// network namespace of the thread that called NetInterface, whichever thread calls
// its methods. An interface that is deleted is down and without addresses until one
// of that name is there again.
type Netdev struct {
	name   string
	handle *netlink.Handle
	events *nl.NetlinkSocket
	kick   [4]int // UDP sockets, IPv4 and IPv6, whose datagrams make the kernel resolve; the last two for VLANs
	asker  int    // packet socket that asks neighbours, -1 without the privilege
	state  atomic.Pointer[netdevState]
	done   chan struct{} // closed when the watcher has ended
	doubts chan Station
	sure   chan struct{} // closed when nobody listens to doubts any more

	mu          sync.Mutex
	onChange    []func()
	onNeighbour []func(Station, [6]byte)
	hops        map[Station]hop // what Resolve answered, by destination
}

// netdevState is one consistent look at the interface. It is not changed, only replaced.
type netdevState struct {
	index    int
	mac      [6]byte
	mtu      int
	up       bool
	noARP    bool // there are no neighbours to ask: loopback, point to point
	loopback bool
	addrs    []netip.Prefix

	name  string
	id    uint16         // of a VLAN
	vlans []*netdevState // the VLAN interfaces that stand on it
}

func (s *netdevState) equal(t *netdevState) bool {
	return s.index == t.index && s.mac == t.mac && s.mtu == t.mtu && s.up == t.up &&
		slices.Equal(s.addrs, t.addrs) && s.name == t.name && s.id == t.id &&
		slices.EqualFunc(s.vlans, t.vlans, (*netdevState).equal)
}

// NetInterface returns the host's interface of that name; ErrNoInterface, with the
// names of those that exist, if there is none. Close ends the watching.
func OpenNetdev(name string) (*Netdev, error) {
	n := &Netdev{name: name, kick: [4]int{-1, -1, -1, -1}, asker: -1, done: make(chan struct{}), hops: make(map[Station]hop),
		doubts: make(chan Station, maxDoubts), sure: make(chan struct{})}
	if err := n.open(); err != nil {
		n.closeSockets()
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	go n.watch()
	go n.verify()
	return n, nil
}

// open makes every socket in the calling thread's network namespace.
func (n *Netdev) open() (err error) {
	if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	// Subscribed before the first look, so that nothing between the two is missed.
	n.events, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return err
	}
	s, err := n.look()
	if err != nil {
		return err
	}
	if s.index == 0 {
		return fmt.Errorf("%w; there are %s", ErrNoInterface, n.others())
	}
	n.state.Store(s)
	n.openAsker()
	return n.openKick()
}

// others lists the interfaces that exist, for an error message.
func (n *Netdev) others() string {
	links, err := n.handle.LinkList()
	if err != nil || len(links) == 0 {
		return "none"
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return strings.Join(names, ", ")
}

// look reads the interface's state. An interface that is gone has index 0.
func (n *Netdev) look() (*netdevState, error) {
	link, err := n.handle.LinkByName(n.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		return &netdevState{}, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := n.lookAt(link)
	if err != nil {
		return nil, err
	}
	s.vlans, err = n.lookForVLANs(s)
	return s, err
}

// lookAt reads the state of one interface.
func (n *Netdev) lookAt(link netlink.Link) (*netdevState, error) {
	a := link.Attrs()
	s := &netdevState{
		index: a.Index, mtu: a.MTU, name: a.Name,
		up:       a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0,
		noARP:    a.RawFlags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) != 0,
		loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
	}
	copy(s.mac[:], a.HardwareAddr)
	addrs, err := dump(func() ([]netlink.Addr, error) { return n.handle.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		// An address that is still being checked for duplicates cannot be used; the end
		// of the check is an event of its own.
		if a.Flags&unix.IFA_F_DADFAILED != 0 ||
			a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0 {
			continue
		}
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			ones, _ := a.Mask.Size()
			s.addrs = append(s.addrs, netip.PrefixFrom(ip.Unmap(), ones))
		}
	}
	return s, nil
}

// dump repeats a netlink dump that was interrupted by a change, a few times.
func dump[T any](list func() ([]T, error)) (r []T, err error) {
	for range 10 {
		if r, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return r, err
		}
	}
	return r, nil // the change that interrupts brings an event, and another look
}

// Name returns the interface's name.
func (n *Netdev) Name() string { return n.name }

// MAC returns the interface's hardware address; zeros where it has none.
func (n *Netdev) MAC() [6]byte { return n.state.Load().mac }

// MTU returns the interface's MTU in bytes.
func (n *Netdev) MTU() int { return n.state.Load().mtu }

// Up reports whether the interface is up and has a carrier.
func (n *Netdev) Up() bool { return n.state.Load().up }

// Index returns the interface's number; 0 while it does not exist.
func (n *Netdev) Index() int { return n.state.Load().index }

// Addresses returns the usable addresses, in the kernel's order.
func (n *Netdev) Addresses() []netip.Prefix { return n.state.Load().addrs }

// VLANAddresses implements Trunk.
func (n *Netdev) VLANAddresses() (l []VLANAddress) {
	for _, v := range n.state.Load().vlans {
		for _, a := range v.addrs {
			l = append(l, VLANAddress{a, v.id, v.name})
		}
	}
	return l
}

// OnChange implements Interface.
func (n *Netdev) OnChange(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.onChange = append(n.onChange, f)
}

// OnNeighbour implements Interface.
func (n *Netdev) OnNeighbour(f func(Station, [6]byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.onNeighbour = append(n.onNeighbour, f)
}

// Close ends the watching. The functions of OnChange and OnNeighbour are not called
// after it returns; Resolve then fails.
func (n *Netdev) Close() error {
	n.events.Close()
	<-n.done
	<-n.sure
	n.closeSockets()
	return nil
}

func (n *Netdev) closeSockets() {
	if n.handle != nil {
		n.handle.Close()
	}
	if n.events != nil {
		n.events.Close()
	}
	if n.asker >= 0 {
		unix.Close(n.asker)
		n.asker = -1
	}
	for i, fd := range n.kick {
		if fd >= 0 {
			unix.Close(fd)
			n.kick[i] = -1
		}
	}
}

// watch takes each event as a hint that something of a kind changed and looks for
// itself: what it then knows is right even if events were lost.
func (n *Netdev) watch() {
	defer close(n.done)
	for {
		msgs, _, err := n.events.Receive()
		changed, hops, routes := n.concerns(msgs)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, syscall.EINVAL): // overflow; cut off
			changed, hops, routes = true, true, true
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		default:
			return // closed
		}
		if changed {
			n.refresh()
		}
		if changed || hops || routes {
			n.renew(changed || routes)
		}
	}
}

// concerns says whether events may have changed the interface itself, a neighbour's
// MAC, or a route.
func (n *Netdev) concerns(msgs []syscall.NetlinkMessage) (changed, hops, routes bool) {
	s := n.state.Load()
	for _, m := range msgs {
		switch m.Header.Type {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
			// A new interface may have our name, so all links count while we have none.
			// And a VLAN may be made of ours.
			if s.index == 0 || m.Header.Type == unix.RTM_NEWLINK || s.isOrHas(eventIndex(m.Data)) {
				changed = true
			}
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			hops = hops || s.isOrHas(eventIndex(m.Data))
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			routes = true
		}
	}
	return changed, hops, routes
}

// eventIndex returns the interface number of a link, address or neighbour message: all
// three have it at the same place.
func eventIndex(b []byte) int {
	if len(b) < 8 {
		return 0
	}
	return int(int32(nl.NativeEndian().Uint32(b[4:])))
}

// refresh looks at the interface again and tells of changes.
func (n *Netdev) refresh() {
	s, err := n.look()
	if err != nil {
		// The kernel is out of memory or the interface is going away just now. Either
		// brings more events; the pause keeps them from making this a busy loop.
		time.Sleep(10 * time.Millisecond)
		return
	}
	if s.equal(n.state.Load()) {
		return
	}
	if old := n.state.Swap(s); old.index != s.index && s.index != 0 {
		n.bindKick()
	}
	n.mu.Lock()
	fs := slices.Clone(n.onChange)
	n.mu.Unlock()
	for _, f := range fs {
		f()
	}
}

// hardwareAddr returns the MAC of a neighbour entry, if it is one of six bytes.
func hardwareAddr(a net.HardwareAddr) (mac [6]byte, ok bool) {
	return mac, copy(mac[:], a) == 6 && len(a) == 6
}
