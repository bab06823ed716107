package wire

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"softroce/packet"
)

// A vethPair is two network namespaces that a veth pair connects. The interfaces have MTU 9000.
type vethPair struct{ a, b *netnsHost }

// A netnsHost is one of the namespaces, and its end of the pair.
type netnsHost struct {
	t      testing.TB
	ns     netns.NsHandle
	nl     *netlink.Handle
	name   string
	v4, v6 netip.Addr
}

const vethMTU = 9000

// newVethPair creates the namespaces. It skips the test without root.
func newVethPair(t testing.TB) *vethPair {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("network namespaces require root, and CI must not skip tests")
		}
		t.Skip("network namespaces require root")
	}
	l := &vethPair{newHost(t, "rocea", 1), newHost(t, "roceb", 2)}
	l.connect(t)
	return l
}

func newHost(t testing.TB, name string, host byte) *netnsHost {
	t.Helper()
	s := &netnsHost{
		t: t, name: name,
		v4: netip.AddrFrom4([4]byte{198, 51, 100, host}),
		v6: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: host}),
	}
	onThread(func() {
		var err error
		if s.ns, err = netns.New(); err != nil {
			t.Errorf("new network namespace: %v", err)
			return
		}
		s.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		must(t, err)
	})
	if s.nl == nil {
		t.FailNow()
	}
	t.Cleanup(func() {
		s.nl.Close()
		s.ns.Close()
	})
	lo, err := s.nl.LinkByName("lo")
	must(t, err)
	must(t, s.nl.LinkSetUp(lo))
	return s
}

// connect creates the veth pair, with addresses, and waits until both ends are up.
func (l *vethPair) connect(t testing.TB) {
	t.Helper()
	must(t, l.a.nl.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: l.a.name, MTU: vethMTU},
		PeerName:  l.b.name, PeerMTU: vethMTU, PeerNamespace: netlink.NsFd(l.b.ns),
	}))
	for _, s := range []*netnsHost{l.a, l.b} {
		link := s.link()
		must(t, s.nl.LinkSetUp(link))
		s.addAddr(netip.PrefixFrom(s.v4, 24))
		s.addAddr(netip.PrefixFrom(s.v6, 64))
	}
	for _, s := range []*netnsHost{l.a, l.b} {
		eventually(t, "carrier and addresses on "+s.name, s.usable)
	}
}

// usable reports whether the interface has a carrier, no address is tentative, and the host accepts
// packets to its addresses. The kernel reports an IPv6 address before a work queue has added its
// route.
func (s *netnsHost) usable() bool {
	link := s.link()
	addrs, err := s.nl.AddrList(link, netlink.FAMILY_ALL)
	must(s.t, err)
	for _, a := range addrs {
		if !a.IP.IsGlobalUnicast() {
			continue
		}
		routes, err := s.nl.RouteGet(a.IP)
		if a.Flags&unix.IFA_F_TENTATIVE != 0 || err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
			return false
		}
	}
	return link.Attrs().RawFlags&unix.IFF_RUNNING != 0
}

func (s *netnsHost) link() netlink.Link {
	s.t.Helper()
	link, err := s.nl.LinkByName(s.name)
	must(s.t, err)
	return link
}

// linkLocal returns the interface's link-local address after duplicate address detection.
func (s *netnsHost) linkLocal() (addr netip.Addr) {
	s.t.Helper()
	eventually(s.t, "a link-local address on "+s.name, func() bool {
		addrs, err := s.nl.AddrList(s.link(), netlink.FAMILY_V6)
		must(s.t, err)
		for _, a := range addrs {
			if a.Flags&unix.IFA_F_TENTATIVE == 0 && a.IP.IsLinkLocalUnicast() {
				addr, _ = netip.AddrFromSlice(a.IP)
			}
		}
		return addr.IsValid()
	})
	return addr
}

func (s *netnsHost) addr(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{
		IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
	}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

func (s *netnsHost) addAddr(p netip.Prefix) {
	s.t.Helper()
	must(s.t, s.nl.AddrAdd(s.link(), s.addr(p)))
}

// do runs f in the namespace.
func (s *netnsHost) do(f func()) {
	s.t.Helper()
	onThread(func() {
		if err := netns.Set(s.ns); err != nil {
			s.t.Errorf("enter the namespace of %s: %v", s.name, err)
			return
		}
		f()
	})
}

// iface opens the host's interface.
func (s *netnsHost) iface() *Netdev {
	s.t.Helper()
	var n *Netdev
	var err error
	s.do(func() { n, err = OpenNetdev(s.name) })
	must(s.t, err)
	s.t.Cleanup(func() { n.Close() })
	return n
}

// packetLink opens a packet link on the host's interface.
func (s *netnsHost) packetLink() *PacketLink {
	s.t.Helper()
	n := s.iface()
	var l *PacketLink
	var err error
	s.do(func() { l, err = NewPacketLink(n) })
	must(s.t, err)
	s.t.Cleanup(func() { l.Close() })
	return l
}

// udpLink opens a udp link on the host's interface.
func (s *netnsHost) udpLink() *UDPLink {
	s.t.Helper()
	n := s.iface()
	var l *UDPLink
	var err error
	s.do(func() { l, err = NewUDPLink(n) })
	must(s.t, err)
	s.t.Cleanup(func() { l.Close() })
	return l
}

// linkOf opens a link of a kind on the host's interface.
func (s *netnsHost) linkOf(kind string) Link {
	s.t.Helper()
	switch kind {
	case "packet":
		return s.packetLink()
	case "udp":
		return s.udpLink()
	case "xdp":
		return s.xdpLink()
	}
	s.t.Fatal("no link ", kind)
	return nil
}

// xdpLink opens an xdp link on the host's interface.
func (s *netnsHost) xdpLink() *XDPLink { return s.xdpLinkIn(XDPNative) }

// xdpLinkIn opens an xdp link in a mode.
func (s *netnsHost) xdpLinkIn(m XDPMode) *XDPLink {
	s.t.Helper()
	n := s.iface()
	var l *XDPLink
	var err error
	s.do(func() { l, err = newXDPLink(n, m) })
	must(s.t, err)
	s.t.Cleanup(func() { l.Close() })
	return l
}

// offload switches an offload of the interface by its ethtool command.
func (s *netnsHost) offload(command, on uint32) {
	s.t.Helper()
	value := [2]uint32{command, on}
	s.ethtool(unsafe.Pointer(&value))
}

// setQueues sets how many queues the interface uses.
func (s *netnsHost) setQueues(n uint32) {
	s.t.Helper()
	const ethtoolSetChannels = 0x3d
	s.ethtool(unsafe.Pointer(&ethtoolChannels{command: ethtoolSetChannels, rx: n, tx: n}))
}

// ethtool performs a command of linux/ethtool.h for the interface.
func (s *netnsHost) ethtool(command unsafe.Pointer) {
	s.t.Helper()
	s.do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		must(s.t, err)
		defer unix.Close(fd)
		if err := ethtool(fd, s.name, command); err != nil {
			s.t.Errorf("ethtool command %#x on %s: %v", *(*uint32)(command), s.name, err)
		}
	})
}

// slow limits the interface to rate bits per second, with a queue of limit bytes.
func (s *netnsHost) slow(rate uint64, limit uint32) {
	s.t.Helper()
	must(s.t, s.nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: s.link().Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate / 8, Limit: limit, Buffer: uint32(netlink.Xmittime(rate/8, 256<<10)),
	}))
}

// onThread runs f on a thread that ends with f, which may change the state of the thread.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitTimeout is how long tests wait for an event. The machine may be busy.
const waitTimeout = 20 * time.Second

// eventually waits until ok returns true.
func eventually(t testing.TB, claim string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(waitTimeout); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout after %v: %s", waitTimeout, claim)
		}
	}
}

// path returns the path from s to peer that a NIC uses.
func (s *netnsHost) path(peer *netnsHost, v6 bool) *Path {
	p := &Path{Src: s.v4, Dst: peer.v4, SrcPort: 0xc123, HopLimit: 64}
	if v6 {
		p.Src, p.Dst = s.v6, peer.v6
	}
	copy(p.DstMAC[:], peer.link().Attrs().HardwareAddr)
	return p
}

// frames returns n MIDDLE packets with size bytes each.
func frames(p *Path, n, size int) []TxFrame {
	batch := make([]TxFrame, n)
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	for i := range batch {
		h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle, PKey: packet.DefaultPKey, DestQP: 0x11, PSN: uint32(i)}}
		batch[i].Set(&h, payload)
		batch[i].Path = p
	}
	return batch
}
