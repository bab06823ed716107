package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// A PacketLink is a link through an AF_PACKET socket: it sees and writes whole Ethernet
// frames, so the ICRC is exact in both directions. It needs CAP_NET_RAW.
//
// On the way out (Send):
//
//  1. Consecutive frames of one path and equal length become a super-packet: one set
//     of headers, behind a virtio-net header that tells the kernel where to cut. The
//     kernel gives segment i the Identification of the first plus i, and ICRC i is
//     computed with that.
//  2. Headers, BTHs, payload where it lies, pads and ICRCs are gathered by the kernel;
//     several super-packets go with one sendmmsg.
//
// On the way in (Receive):
//
//  3. A filter in the kernel lets RoCEv2 packets to this interface pass, in the form in
//     which they came: a super-packet of a peer on this host, or one that the kernel's
//     receive offload made, comes whole.
//  4. Headers are checked, the super-packet is cut, and each packet's ICRC is compared.
//
// UDP checksums: single packets carry 0, on IPv6 too, as rdma_rxe sends them. A
// super-packet's segments get right ones: the kernel cuts in no other way. What is
// received may carry 0 or the right one; a checksum that the kernel or the hardware
// vouches for is not computed again.
//
// A UDP socket holds the port on the interface, so that the kernel does not answer
// "port unreachable". It is never read: what it queues or drops are copies.
//
// VLAN interfaces on the interface are the link's, too: frames of a path in a VLAN get their tag here, the
// kernel takes the tags of received ones out of the frame and tells them apart.
type PacketLink struct {
	iface    *Netdev
	fd       int
	holders  []int
	gso      bool // the kernel knows UDP segmentation in virtio-net headers (Linux 6.2)
	id       uint16
	out      *outbox
	in       *intake
	cut      splitter
	counters LinkCounters

	mu     sync.Mutex // for rebind, which the interface's watcher calls
	index  int
	groups map[netip.Addr]bool
	vlans  map[string]vlanPort // by the names of their interfaces
	closed bool
}

// Socket buffers. The receive buffer takes what peers may have in flight: their
// windows together.
const (
	packetReceiveBuffer = 32 << 20
	packetSendBuffer    = 8 << 20
)

// NewPacketLink opens a packet link on an interface. The calling thread must be in the
// interface's network namespace.
func NewPacketLink(iface *Netdev) (*PacketLink, error) {
	l := &PacketLink{iface: iface, fd: -1, gso: true, out: newOutbox(), in: newIntake(packetControlLen, false), groups: map[netip.Addr]bool{}, vlans: map[string]vlanPort{}}
	if err := l.open(); err != nil {
		l.closeSockets()
		return nil, fmt.Errorf("packet link on %s: %w", iface.Name(), err)
	}
	iface.OnChange(l.rebind)
	return l, nil
}

func (l *PacketLink) open() (err error) {
	if l.holders, err = holdPort(l.iface.Name()); err != nil {
		return err
	}
	// Protocol 0: nothing is received before the filter is there and bind names ETH_P_ALL.
	l.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("CAP_NET_RAW is needed (the udp link needs no privilege): %w", err)
		}
		return os.NewSyscallError("socket", err)
	}
	for _, o := range []int{unix.PACKET_VNET_HDR, unix.PACKET_IGNORE_OUTGOING, unix.PACKET_AUXDATA} {
		if err := unix.SetsockoptInt(l.fd, unix.SOL_PACKET, o, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	setBuffers(l.fd, packetReceiveBuffer, packetSendBuffer)
	if err := l.serveVLANs(); err != nil {
		return err
	}
	l.index = l.iface.Index()
	return l.bind()
}

func (l *PacketLink) bind() error {
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	return os.NewSyscallError("bind", unix.Bind(l.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.index}))
}

// rebind follows an interface that was made anew under its name, and the VLANs on it.
func (l *PacketLink) rebind() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.serveVLANs()
	if i := l.iface.Index(); i != 0 && i != l.index {
		l.index = i
		l.bind()
		for _, fd := range l.holders {
			unix.BindToDevice(fd, l.iface.Name())
		}
		l.rejoin()
	}
}

// holdPort binds UDP sockets to the port on an interface. They refuse nothing and take
// next to nothing: the smallest buffer, and UDP_GRO so that the kernel does not cut
// super-packets for a socket that nobody reads.
func holdPort(device string) (fds []int, err error) {
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

// bindPort binds a UDP socket to RoCE's port on one interface, for all its addresses.
func bindPort(fd, family int, device string) error {
	if err := unix.BindToDevice(fd, device); err != nil {
		return fmt.Errorf("binding to the interface (without privilege, Linux 5.7 allows it): %w", err)
	}
	var any unix.Sockaddr = &unix.SockaddrInet4{Port: Port}
	if family == unix.AF_INET6 {
		any = &unix.SockaddrInet6{Port: Port}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		// RoCEv2 senders leave the checksum 0.
		if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	err := unix.Bind(fd, any)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("UDP port %d of %s is held by another daemon or by rdma_rxe: %w", Port, device, err)
	}
	return os.NewSyscallError("bind", err)
}

// FD implements Link.
func (l *PacketLink) FD() int { return l.fd }

// OnReady implements Link; the link has an FD.
func (l *PacketLink) OnReady(func()) {}

// NextDeadline implements Link: nothing is ever due.
func (l *PacketLink) NextDeadline() int64 { return 0 }

// Capabilities implements Link. The MTU is the interface's at the moment.
func (l *PacketLink) Capabilities() Capabilities {
	return Capabilities{MTU: l.iface.MTU(), ICRC: true, MaxBatch: sendBatch}
}

// Counters implements Counted. It asks the kernel what it dropped.
func (l *PacketLink) Counters() *LinkCounters {
	if !l.closed {
		// Reading the statistics sets them to 0.
		if s, err := unix.GetsockoptTpacketStats(l.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			l.counters.Drops[DropOverrun] += uint64(s.Drops)
		}
	}
	return &l.counters
}

// Close implements Link.
func (l *PacketLink) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.closed = true
	l.closeSockets()
	return nil
}

func (l *PacketLink) closeSockets() {
	if l.fd >= 0 {
		unix.Close(l.fd)
	}
	for _, fd := range l.holders {
		unix.Close(fd)
	}
	for _, v := range l.vlans {
		v.close()
	}
}

// Send implements Link.
func (l *PacketLink) Send(_ int64, batch []TxFrame) (int, error) {
	if l.closed {
		return 0, ErrClosed
	}
	s := l.iface.state.Load()
	taken := 0
	for taken < len(batch) {
		if d, ok := refuse(&batch[taken], s.mtu); !ok {
			l.counters.refused(&batch[taken], d)
			taken++
			continue
		}
		id := l.id
		l.fill(s, batch[taken:])
		n, again := l.flush(batch[taken:], id)
		taken += n
		if again {
			break
		}
	}
	return taken, nil
}

// refuse says why a frame cannot be sent at all, if so.
func refuse(f *TxFrame, mtu int) (Drop, bool) {
	switch {
	case !f.Path.sendable():
		return DropUnreachable, false
	case tooLong(f, mtu) || len(f.Payload) >= maxPieces:
		return DropTooLong, false
	}
	return 0, true
}

// fill makes messages of the frames at the front of batch: at least one, as the first
// is not one to refuse.
func (l *PacketLink) fill(s *netdevState, batch []TxFrame) {
	l.out.reset()
	for len(batch) > 0 {
		if _, ok := refuse(&batch[0], s.mtu); !ok {
			return
		}
		n := 1
		if l.gso {
			n = runLength(batch, runLimit(batch[0].Path.Dst.Is4()))
		}
		if !l.out.room(batch[:n], virtioLen+packet.MaxFrameHeaderLen) {
			return
		}
		l.message(s, batch[:n])
		batch = batch[n:]
	}
}

// message makes one message, a super-packet if it is more than one frame.
func (l *PacketLink) message(s *netdevState, run []TxFrame) {
	f := &run[0]
	a := f.Path.addressing(f.CE)
	a.SrcMAC, a.ID = s.mac, l.id
	size := 0
	for i := range run {
		size += run[i].Len + packet.ICRCLen
	}
	b := l.out.begin(virtioLen + a.HeaderLen())
	v := virtioHeader{}
	if len(run) > 1 {
		v.segment(&a, f.Len+packet.ICRCLen)
		a.UDPChecksum = pseudoChecksum(&a, size)
	}
	v.put(b)
	a.PutHeaders(b[virtioLen:], size)
	for i := range run {
		l.out.segment(&run[i], &a)
		a.ID++
	}
	l.out.end(len(run))
	l.id = a.ID
}

// flush gives the messages to the kernel. It returns how many frames were taken, and
// whether the medium is full. id is the Identification of the first.
func (l *PacketLink) flush(batch []TxFrame, id uint16) (taken int, again bool) {
	o := l.out
	for i := 0; i < o.n; {
		n, e := o.send(l.fd, i)
		for range n {
			for range o.runs[i] {
				l.counters.sent(&batch[taken])
				taken++
			}
			i++
		}
		switch {
		case e == 0:
			continue
		case e == unix.EAGAIN || e == unix.ENOBUFS || e == unix.ENOMEM:
			again = true
		case e == unix.EINVAL && o.runs[i] > 1 && l.gso:
			l.gso = false
		default: // the interface is down or gone
			for range o.runs[i] {
				l.counters.refused(&batch[taken], DropSend)
				taken++
			}
			i++
			continue
		}
		break
	}
	l.id = id + uint16(taken)
	o.reset()
	return taken, again
}

// Receive implements Link. Where it filled the batch there may be more that FD does
// not show: it has to be called again before waiting.
func (l *PacketLink) Receive(_ int64, batch []RxFrame) (n int, err error) {
	if l.closed {
		return 0, ErrClosed
	}
	for tries := 0; n < len(batch); {
		if l.cut.next(&batch[n]) {
			l.counters.received(len(batch[n].Head), batch[n].Dst.Is4())
			n++
			continue
		}
		l.counters.Drops[DropUDPLength] += l.cut.runts()
		if b, m, i := l.in.take(); m != nil {
			d, ok := l.cut.load(b)
			if !ok {
				l.counters.Drops[d]++
			}
			l.cut.tag(l.in.control[i*packetControlLen:][:m.Controllen])
			continue
		}
		// The bytes of the frames in batch are where new ones would be written.
		if tries++; n > 0 || tries > receiveTries {
			break
		}
		e := l.in.fill(l.fd)
		if e == unix.EINVAL {
			// A kernel before 6.2 has thrown away a super-packet that it cannot describe.
			l.counters.Drops[DropTruncated]++
		}
		if l.in.n == 0 {
			break // nothing, or the interface went down
		}
	}
	return n, nil
}
