package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Netdev is an Interface of the host, which it watches through netlink. It belongs to the network
// namespace of the thread that called OpenNetdev, whichever thread calls its methods. A deleted
// interface is down and has no addresses until one of its name exists again.
type Netdev struct {
	name          string
	namespace     *os.File
	handle        *netlink.Handle
	events        *nl.NetlinkSocket
	probeSockets  [4]int // UDP sockets for IPv4 and IPv6 that trigger the kernel's neighbor resolution; the last two for VLANs
	solicitSocket int    // packet socket for solicitations; -1 without the privilege
	state         atomic.Pointer[netdevState]
	done          chan struct{} // closed when the watcher has ended
	probes        chan Station
	proberDone    chan struct{} // closed when runProber has ended

	mu         sync.Mutex
	onChange   []func()
	onNeighbor []func(Station, [6]byte)
	hops       map[Station]hop // next hops that Resolve returned, by destination

	tables sync.Map // sharedRead of a neighbor table, by tableKey
}

// netdevState is a consistent snapshot of the interface. It is replaced, never modified.
type netdevState struct {
	index int
	mac   [6]byte
	mtu   int
	up    bool
	noARP bool // has no neighbors to resolve: loopback, point-to-point
	addrs []netip.Prefix

	queues int // in use; 0 if the driver does not say
	name   string
	id     uint16         // of a VLAN
	egress Egress         // of a VLAN
	vlans  []*netdevState // the VLAN interfaces on it
}

func (s *netdevState) equal(t *netdevState) bool {
	return s.index == t.index && s.mac == t.mac && s.mtu == t.mtu && s.up == t.up && s.queues == t.queues &&
		slices.Equal(s.addrs, t.addrs) && s.name == t.name && s.id == t.id && s.egress == t.egress &&
		slices.EqualFunc(s.vlans, t.vlans, (*netdevState).equal)
}

// OpenNetdev returns the host's interface with a name, or ErrNoInterface with the names of those
// that exist. Close stops watching it.
func OpenNetdev(name string) (*Netdev, error) {
	n := &Netdev{name: name, probeSockets: [4]int{-1, -1, -1, -1}, solicitSocket: -1, done: make(chan struct{}), hops: make(map[Station]hop),
		probes: make(chan Station, maxProbes), proberDone: make(chan struct{})}
	if err := n.open(); err != nil {
		n.closeSockets()
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	go n.watch()
	go n.runProber()
	return n, nil
}

// open creates all sockets in the calling thread's network namespace.
func (n *Netdev) open() (err error) {
	if n.namespace, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	// Subscribe before reading the state, so that no change is missed.
	n.events, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return err
	}
	s, err := n.readState()
	if err != nil {
		return err
	}
	if s.index == 0 {
		return fmt.Errorf("%w (have: %s)", ErrNoInterface, n.interfaceNames())
	}
	n.state.Store(s)
	n.openSolicitSocket()
	return n.openProbeSockets()
}

// inNamespace runs f in the interface's network namespace: the Netdev's watcher may be in another
// one. To enter it requires CAP_SYS_ADMIN.
func (n *Netdev) inNamespace(f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		there, _ := n.namespace.Stat()
		here, e := os.Stat("/proc/thread-self/ns/net")
		if e == nil && os.SameFile(here, there) {
			defer runtime.UnlockOSThread()
		} else if err = os.NewSyscallError("setns", unix.Setns(int(n.namespace.Fd()), unix.CLONE_NEWNET)); err != nil {
			return
		}
		err = f()
	}()
	<-done
	return err
}

// interfaceNames lists the existing interfaces for an error message.
func (n *Netdev) interfaceNames() string {
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

// readState reads the interface's state. A missing interface has index 0.
func (n *Netdev) readState() (*netdevState, error) {
	link, err := n.handle.LinkByName(n.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		return &netdevState{}, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := n.readLink(link)
	if err != nil {
		return nil, err
	}
	s.queues = n.queuesInUse()
	s.vlans, err = n.readVLANs(s)
	return s, err
}

// queuesInUse returns how many queues the interface uses, or 0 if its driver does not say. A change
// (ethtool -L) is seen with the next event of the interface, which most drivers cause by it.
func (n *Netdev) queuesInUse() int {
	c := ethtoolChannels{command: ethtoolGetChannels}
	if ethtool(n.events.GetFd(), n.name, unsafe.Pointer(&c)) != nil {
		return 0
	}
	return int(c.combined + max(c.rx, c.tx))
}

// ethtoolChannels is struct ethtool_channels.
type ethtoolChannels struct {
	command, maxRx, maxTx, maxOther, maxCombined, rx, tx, other, combined uint32
}

const ethtoolGetChannels = 0x3c

// ethtool performs a command of linux/ethtool.h for an interface, in the network namespace of a
// socket.
func ethtool(fd int, name string, command unsafe.Pointer) error {
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: command}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); e != 0 {
		return e
	}
	return nil
}

// receiveQueues returns the number of receive queues that the interface can have.
func (n *Netdev) receiveQueues() (int, error) {
	link, err := n.handle.LinkByName(n.name)
	if err != nil {
		return 0, err
	}
	return max(1, link.Attrs().NumRxQueues), nil
}

// readLink reads the state of one interface.
func (n *Netdev) readLink(link netlink.Link) (*netdevState, error) {
	a := link.Attrs()
	s := &netdevState{
		index: a.Index, mtu: a.MTU, name: a.Name,
		up:    a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0,
		noARP: a.RawFlags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) != 0,
	}
	copy(s.mac[:], a.HardwareAddr)
	addrs, err := dump(func() ([]netlink.Addr, error) { return n.handle.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		// A tentative address cannot be used yet. The end of duplicate address detection is another
		// event.
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

// dump repeats a netlink dump, up to ten times, if a change interrupted it.
func dump[T any](list func() ([]T, error)) (r []T, err error) {
	for range 10 {
		if r, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return r, err
		}
	}
	return r, nil // the interrupting change brings an event, which reads again
}

// Name returns the interface's name.
func (n *Netdev) Name() string { return n.name }

// MAC returns the interface's hardware address, or zeros if it has none.
func (n *Netdev) MAC() [6]byte { return n.state.Load().mac }

// MTU returns the interface's MTU in bytes.
func (n *Netdev) MTU() int { return n.state.Load().mtu }

// Up reports whether the interface is up and has a carrier.
func (n *Netdev) Up() bool { return n.state.Load().up }

// Index returns the interface's number, or 0 while it does not exist.
func (n *Netdev) Index() int { return n.state.Load().index }

// Addresses returns the usable addresses, in the kernel's order.
func (n *Netdev) Addresses() []netip.Prefix { return n.state.Load().addrs }

// VLANAddresses implements Trunk.
func (n *Netdev) VLANAddresses() (l []VLANAddress) {
	for _, v := range n.state.Load().vlans {
		for _, a := range v.addrs {
			l = append(l, VLANAddress{a, v.id, v.name, v.egress})
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

// OnNeighbor implements Interface.
func (n *Netdev) OnNeighbor(f func(Station, [6]byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.onNeighbor = append(n.onNeighbor, f)
}

// Close stops watching. After it returns, the functions of OnChange and OnNeighbor are not called,
// and Resolve fails.
func (n *Netdev) Close() error {
	n.events.Close()
	<-n.done
	<-n.proberDone
	n.closeSockets()
	return nil
}

func (n *Netdev) closeSockets() {
	n.namespace.Close()
	if n.handle != nil {
		n.handle.Close()
	}
	if n.events != nil {
		n.events.Close()
	}
	if n.solicitSocket >= 0 {
		unix.Close(n.solicitSocket)
		n.solicitSocket = -1
	}
	for i, fd := range n.probeSockets {
		if fd >= 0 {
			unix.Close(fd)
			n.probeSockets[i] = -1
		}
	}
}

// watch uses events only as a hint to read the state again. So the state is right even if events
// were lost.
func (n *Netdev) watch() {
	defer close(n.done)
	for {
		msgs, _, err := n.events.Receive()
		changed, hops, routes := n.classify(msgs)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, syscall.EINVAL): // events were lost, or truncated
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
			n.refreshHops(changed || routes)
		}
	}
}

// classify reports whether events may have changed the interface, a neighbor's MAC, or a route.
func (n *Netdev) classify(msgs []syscall.NetlinkMessage) (changed, hops, routes bool) {
	s := n.state.Load()
	for _, m := range msgs {
		switch m.Header.Type {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
			// A new link may be ours while we have none, or a VLAN on ours.
			if s.index == 0 || m.Header.Type == unix.RTM_NEWLINK || s.hasIndex(eventIndex(m.Data)) {
				changed = true
			}
		case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
			hops = hops || s.hasIndex(eventIndex(m.Data))
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			routes = true
		}
	}
	return changed, hops, routes
}

// eventIndex returns the interface number in a link, address or neighbor message, which have it at
// the same offset.
func eventIndex(b []byte) int {
	if len(b) < 8 {
		return 0
	}
	return int(int32(nl.NativeEndian().Uint32(b[4:])))
}

// refresh reads the interface again and reports changes.
func (n *Netdev) refresh() {
	s, err := n.readState()
	if err != nil {
		// The kernel is out of memory, or the interface is being deleted. Both bring more events.
		// The pause avoids a busy loop.
		time.Sleep(10 * time.Millisecond)
		return
	}
	if s.equal(n.state.Load()) {
		return
	}
	if old := n.state.Swap(s); old.index != s.index && s.index != 0 {
		n.bindProbeSockets()
	}
	n.mu.Lock()
	callbacks := slices.Clone(n.onChange)
	n.mu.Unlock()
	for _, f := range callbacks {
		f()
	}
}

// hardwareAddr returns the MAC of a neighbor entry, if it has six bytes.
func hardwareAddr(a net.HardwareAddr) (mac [6]byte, ok bool) {
	return mac, copy(mac[:], a) == 6 && len(a) == 6
}
