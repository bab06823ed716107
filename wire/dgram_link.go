package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// A DgramLink carries each Ethernet frame in one UDP datagram, as QEMU's -netdev dgram does. The
// peer is a virtual machine's NIC or another DgramLink. No kernel interface is involved: the link
// is also the NIC's Interface. It replies to ARP, neighbor solicitations and pings for its
// addresses, and resolves those of others.
//
// A received datagram takes these steps:
//
//  1. Frames for other stations are dropped. A VLAN tag is removed and noted.
//  2. ARP, ICMP and ICMPv6 frames are handled, and are not packets for the NIC.
//  3. Other frames must be RoCEv2 for one of the link's addresses, with valid lengths
//     and checksums. A UDP checksum of 0 is valid.
//  4. The ICRC is checked. A packet with a wrong one is passed on, marked.
type DgramLink struct {
	stationMAC
	c             DgramConfig
	fd            int
	tx            *txBatch
	rx            *rxBatch
	localStations map[Station]bool       // its addresses
	vlans         map[uint16]bool        // VLANs of localStations
	groups        map[netip.Addr][6]byte // joined
	counters      LinkCounters
	handled       uint64 // ARP and ICMP frames that were answered or learned from
	reply         []byte // the last frame that it sent itself

	// The loaded frame.
	frame  packet.Frame
	loaded bool // it is a packet that next has not returned
	tagged bool // it had a VLAN tag, which was removed
	tci    uint16

	neighbors neighbors
}

// DgramConfig configures a DgramLink: the UDP endpoints, and the station at this end.
type DgramConfig struct {
	Name          string         // for messages; "" means dgram:Local
	Local, Remote netip.AddrPort // of one family
	MAC           [6]byte
	MTU           int // largest IP packet in bytes; 0 means 1500
	Addrs         []netip.Prefix
	VLANs         []VLANAddress // further addresses, of tagged frames
}

const (
	dgramMTU    = 1500
	minMTU      = 576
	maxDatagram = 65507 // the largest UDP payload over IPv4
)

func (c *DgramConfig) check() error {
	if c.MTU == 0 {
		c.MTU = dgramMTU
	}
	if c.Name == "" {
		c.Name = "dgram:" + c.Local.String()
	}
	limit := maxDatagram - packet.EthernetLen
	switch {
	case !c.Local.IsValid() || !c.Remote.IsValid() || c.Local.Addr().Is4() != c.Remote.Addr().Is4():
		return fmt.Errorf("local %v, remote %v: want an address and a port each, of one address family", c.Local, c.Remote)
	case c.Remote.Port() == 0 || c.Remote.Addr().IsUnspecified():
		return fmt.Errorf("remote %v: want an address and a port", c.Remote)
	case c.MAC[0]&1 != 0 || c.MAC == [6]byte{}:
		return fmt.Errorf("MAC %x: want a unicast address", c.MAC)
	case c.MTU < minMTU || c.MTU > limit:
		return fmt.Errorf("MTU %d: want %d to %d", c.MTU, minMTU, limit)
	case len(c.Addrs)+len(c.VLANs) == 0:
		return errors.New("no IP address: want at least one, such as 10.0.0.2/24")
	}
	addrs := slices.Clone(c.Addrs)
	for _, v := range c.VLANs {
		if v.VLAN < MinVLAN || v.VLAN > MaxVLAN {
			return fmt.Errorf("VLAN %d: want %d to %d", v.VLAN, MinVLAN, MaxVLAN)
		}
		addrs = append(addrs, v.Prefix)
	}
	for _, a := range addrs {
		if ip := a.Addr(); !a.IsValid() || ip.Is4In6() || ip.IsUnspecified() || ip.IsMulticast() {
			return fmt.Errorf("address %v: want a unicast address with its prefix length", a)
		}
	}
	return nil
}

// NewDgramLink opens the link. The peer need not exist yet.
func NewDgramLink(c DgramConfig) (*DgramLink, error) {
	l, err := newDgram(c)
	if err == nil {
		err = l.open()
	}
	if err != nil {
		return nil, fmt.Errorf("dgram link %v: %w", c.Local, err)
	}
	return l, nil
}

func newDgram(c DgramConfig) (*DgramLink, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	l := &DgramLink{stationMAC: c.MAC, c: c, fd: -1, localStations: map[Station]bool{{Addr: linkLocal(c.MAC)}: true},
		vlans: map[uint16]bool{0: true}, groups: map[netip.Addr][6]byte{}}
	for _, a := range c.Addrs {
		l.localStations[Station{Addr: a.Addr()}] = true
	}
	for _, a := range c.VLANs {
		l.localStations[Station{a.Addr(), a.VLAN}], l.vlans[a.VLAN] = true, true
	}
	l.neighbors.init(l)
	return l, nil
}

func (l *DgramLink) open() (err error) {
	family := unix.AF_INET
	if l.c.Local.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	setBuffers(fd, packetReceiveBuffer, packetSendBuffer)
	if err := unix.Bind(fd, sockaddr(l.c.Local)); err != nil {
		unix.Close(fd)
		return os.NewSyscallError("bind", err)
	}
	// A connected socket receives datagrams from the peer only.
	if err := unix.Connect(fd, sockaddr(l.c.Remote)); err != nil {
		unix.Close(fd)
		return fmt.Errorf("to %v: %w", l.c.Remote, os.NewSyscallError("connect", err))
	}
	l.fd, l.tx, l.rx = fd, newTxBatch(l, packet.MaxFrameHeaderLen, false), newRxBatch(0, false)
	return nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// linkLocal returns the IPv6 link-local address of a MAC (EUI-64), which every NIC has.
func linkLocal(mac [6]byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

// Send implements Link.
func (l *DgramLink) Send(_ int64, batch []TxFrame) (int, error) {
	if l.fd < 0 {
		return 0, ErrClosed
	}
	return l.tx.send(l.fd, l.c.MTU, batch, &l.counters), nil
}

// encode implements txEncoder: a datagram with one frame.
func (l *DgramLink) encode(run []TxFrame) {
	f := &run[0]
	a := f.Path.addressing(f.CE)
	a.SrcMAC, a.ID = l.c.MAC, l.tx.id
	a.PutHeaders(l.tx.beginMessage(a.HeaderLen()), f.Len+packet.ICRCLen)
	l.tx.addSegment(f, &a)
	l.tx.endMessage(1)
	l.tx.id++
}

// maxRefused is the number of times that a batch is retried after the peer's host refused a
// datagram (ICMP port unreachable). Each such error belongs to a datagram that was sent before.
const maxRefused = 3

// onError implements txEncoder.
func (l *DgramLink) onError(e unix.Errno, _, retries int) (txAction, Drop) {
	if e == unix.ECONNREFUSED && retries < maxRefused {
		return txRetry, 0
	}
	return txDrop, DropSend
}

// Receive implements Link.
func (l *DgramLink) Receive(now int64, batch []RxFrame) (int, error) {
	if l.fd < 0 {
		return 0, ErrClosed
	}
	return l.rx.receive(now, l.fd, l, batch, &l.counters)
}

// AppendFDs implements Link.
func (l *DgramLink) AppendFDs(fds []unix.PollFd) []unix.PollFd { return appendFD(fds, l.fd) }

// OnReady implements Link; the descriptor shows every frame, and stays.
func (l *DgramLink) OnReady(func()) {}

// CopyPayload implements Link: Send has copied the payload.
func (l *DgramLink) CopyPayload() {}

// NextDeadline implements Link: nothing is ever due.
func (l *DgramLink) NextDeadline() int64 { return 0 }

// Capabilities implements Link.
func (l *DgramLink) Capabilities() Capabilities {
	return Capabilities{MTU: l.c.MTU, ICRC: true, MaxBatch: txBatchSize, RoCEv1: true}
}

// Counters implements Counted.
func (l *DgramLink) Counters() *LinkCounters { return &l.counters }

// Close implements Link.
func (l *DgramLink) Close() error {
	l.neighbors.mu.Lock() // Resolve may be sending
	defer l.neighbors.mu.Unlock()
	if l.fd < 0 {
		return ErrClosed
	}
	unix.Close(l.fd)
	l.fd = -1
	return nil
}
