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

// A DgramLink is a link that carries each Ethernet frame in one UDP datagram, as QEMU's
// -netdev dgram does: a virtual machine's NIC, or another Dgram, is at the other end of
// the cable. There is no kernel interface behind it, so that it is one itself (Interface),
// answers ARP, neighbour solicitations and pings for its addresses, and asks for those
// of others.
//
// The way of a received datagram:
//
//  1. Frames for other stations are dropped. A VLAN tag is taken off and remembered.
//  2. ARP, ICMP and ICMPv6 are answered or learnt from, and go no further.
//  3. The rest must be RoCEv2 for one of the link's addresses: lengths, IPv4 header
//     checksum, and the UDP checksum unless it is 0.
//  4. The ICRC is compared, and a packet with a wrong one handed on, marked.
type DgramLink struct {
	ether
	c        DgramConfig
	fd       int
	id       uint16
	out      *outbox
	in       *intake
	own      map[Station]bool       // whom it answers for
	vlans    map[uint16]bool        // those of own
	groups   map[netip.Addr][6]byte // joined
	frame    packet.Frame
	tagged   bool // of the frame at hand, which has lost its tag
	tci      uint16
	reply    []byte
	counters LinkCounters
	answered uint64
	near     neighbours
}

// DgramConfig says between which UDP ports the cable runs, and who is at this end.
type DgramConfig struct {
	Name          string         // for messages; "" is made from Local
	Local, Remote netip.AddrPort // of one family
	MAC           [6]byte
	MTU           int // largest IP packet in bytes, 0 is 1500
	Addrs         []netip.Prefix
	VLANs         []VLANAddress // more, whose frames are tagged
}

const (
	dgramMTU    = 1500
	minMTU      = 576
	maxDatagram = 65507 // over IPv4
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
		return fmt.Errorf("from %v to %v: both ends must be an address and a port, of one family", c.Local, c.Remote)
	case c.Remote.Port() == 0 || c.Remote.Addr().IsUnspecified():
		return fmt.Errorf("remote end %v: the address and the port must be given", c.Remote)
	case c.MAC[0]&1 != 0 || c.MAC == [6]byte{}:
		return fmt.Errorf("MAC %x: must be that of one station", c.MAC)
	case c.MTU < minMTU || c.MTU > limit:
		return fmt.Errorf("MTU %d: must be from %d to %d", c.MTU, minMTU, limit)
	case len(c.Addrs)+len(c.VLANs) == 0:
		return errors.New("no IP address given: it needs one at least, such as 10.0.0.2/24")
	}
	addrs := slices.Clone(c.Addrs)
	for _, v := range c.VLANs {
		if v.VLAN < MinVLAN || v.VLAN > MaxVLAN {
			return fmt.Errorf("VLAN %d: must be from %d to %d", v.VLAN, MinVLAN, MaxVLAN)
		}
		addrs = append(addrs, v.Prefix)
	}
	for _, a := range addrs {
		if ip := a.Addr(); !a.IsValid() || ip.Is4In6() || ip.IsUnspecified() || ip.IsMulticast() {
			return fmt.Errorf("address %v: must be that of one host with its prefix length", a)
		}
	}
	return nil
}

// NewDgramLink opens the link. It is not an error that nobody is at the other end.
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
	l := &DgramLink{ether: c.MAC, c: c, fd: -1, own: map[Station]bool{{Addr: linkLocal(c.MAC)}: true},
		vlans: map[uint16]bool{0: true}, groups: map[netip.Addr][6]byte{}}
	for _, a := range c.Addrs {
		l.own[Station{Addr: a.Addr()}] = true
	}
	for _, a := range c.VLANs {
		l.own[Station{a.Addr(), a.VLAN}], l.vlans[a.VLAN] = true, true
	}
	l.near.init(l)
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
	// Connected, it takes datagrams of that end alone.
	if err := unix.Connect(fd, sockaddr(l.c.Remote)); err != nil {
		unix.Close(fd)
		return fmt.Errorf("to %v: %w", l.c.Remote, os.NewSyscallError("connect", err))
	}
	l.fd, l.out, l.in = fd, newOutbox(), newIntake(0, false)
	return nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// linkLocal returns the address of a MAC's EUI-64, which a NIC always has.
func linkLocal(mac [6]byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

// Send implements Link.
func (l *DgramLink) Send(_ int64, batch []TxFrame) (taken int, err error) {
	if l.fd < 0 {
		return 0, ErrClosed
	}
	for again := false; taken < len(batch) && !again; {
		if d, ok := refuse(&batch[taken], l.c.MTU); !ok {
			l.counters.refused(&batch[taken], d)
			taken++
			continue
		}
		l.fill(batch[taken:])
		var n int
		n, again = l.flush(batch[taken:])
		taken += n
	}
	return taken, nil
}

// fill makes a message of each frame at the front of batch, as many as there is room for.
func (l *DgramLink) fill(batch []TxFrame) {
	l.out.reset()
	id := l.id
	for i := range batch {
		f := &batch[i]
		if _, ok := refuse(f, l.c.MTU); !ok || !l.out.room(batch[i:i+1], packet.MaxFrameHeaderLen) {
			return
		}
		a := f.Path.addressing(f.CE)
		a.SrcMAC, a.ID = l.c.MAC, id
		a.PutHeaders(l.out.begin(a.HeaderLen()), f.Len+packet.ICRCLen)
		l.out.segment(f, &a)
		l.out.end(1)
		id++
	}
}

// maxRefused bounds how often a message is tried that the other end's host refuses: each
// error that it is told of belongs to an earlier message.
const maxRefused = 3

// flush gives the messages to the kernel. It returns how many frames were taken, and
// whether the socket is full.
func (l *DgramLink) flush(batch []TxFrame) (taken int, again bool) {
	o := l.out
	for refused := 0; taken < o.n && !again; {
		n, e := o.send(l.fd, taken)
		for range n {
			l.counters.sent(&batch[taken])
			taken++
		}
		l.id += uint16(n)
		switch {
		case e == 0:
		case e == unix.ECONNREFUSED && refused < maxRefused:
			refused++
		case e == unix.EAGAIN || e == unix.ENOBUFS || e == unix.ENOMEM:
			again = true
		default:
			l.counters.refused(&batch[taken], DropSend)
			taken++
			l.id++
		}
	}
	o.reset()
	return taken, again
}

// Receive implements Link.
func (l *DgramLink) Receive(_ int64, batch []RxFrame) (n int, err error) {
	if l.fd < 0 {
		return 0, ErrClosed
	}
	for tries := 0; n < len(batch); {
		if b, m, _ := l.in.take(); m != nil {
			if l.input(b, &batch[n]) {
				n++
			}
			continue
		}
		// The bytes of the frames in batch are where new ones would be written.
		if tries++; n > 0 || tries > receiveTries {
			break
		}
		// ECONNREFUSED tells of an earlier Send; behind it there may be frames.
		if e := l.in.fill(l.fd); l.in.n == 0 && e != unix.ECONNREFUSED {
			break
		}
	}
	return n, nil
}

// FD implements Link.
func (l *DgramLink) FD() int { return l.fd }

// OnReady implements Link; the link has an FD.
func (l *DgramLink) OnReady(func()) {}

// NextDeadline implements Link: nothing is ever due.
func (l *DgramLink) NextDeadline() int64 { return 0 }

// Capabilities implements Link.
func (l *DgramLink) Capabilities() Capabilities {
	return Capabilities{MTU: l.c.MTU, ICRC: true, MaxBatch: sendBatch}
}

// Counters implements Counted.
func (l *DgramLink) Counters() *LinkCounters { return &l.counters }

// Close implements Link.
func (l *DgramLink) Close() error {
	l.near.mu.Lock() // Resolve may be sending
	defer l.near.mu.Unlock()
	if l.fd < 0 {
		return ErrClosed
	}
	unix.Close(l.fd)
	l.fd = -1
	return nil
}
