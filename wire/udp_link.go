package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// A UDPLink is a link through UDP sockets, one for each address family, bound to RoCE's
// port on an interface. It needs no privilege.
//
// A socket hides some of the headers, with these consequences:
//
//   - Every packet leaves from port 4791, whatever Path.SrcPort says: a socket has one
//     source port. Receivers accept any; only the spreading of QPs over a network's
//     paths is lost. Capabilities.SrcPort tells it.
//   - The kernel chooses the IPv4 Identification. On a socket that is not connected and
//     forbids fragmentation it is 0, and 0, 1, 2 … in one super-packet, so the ICRC is
//     exact on send.
//   - The Identification of what is received is unknown, and so is DF. The ICRC is
//     checked by packet.RecoverID, which finds it; a damaged packet passes one time in
//     32768, and only if the UDP checksum misses the damage too.
//   - The IPv6 flow label is the kernel's; the ICRC does not cover it.
//   - UDP checksums are sent: the kernel segments in no other way.
//
// On the way out (Send), runs of frames become super-packets (UDP_SEGMENT) gathered
// from where their parts lie, several in one sendmmsg. On the way in (Receive), the
// kernel hands over super-packets as they came or as its receive offload made them
// (UDP_GRO), several in one recvmmsg; they are cut, and each ICRC is checked.
type UDPLink struct {
	iface    *Netdev
	epoll    int // readable when one of the sockets is
	sockets  [2]*udpSocket
	turn     int // the socket that Receive asks first
	out      *outbox
	names    [sendMessages]unix.RawSockaddrInet6 // room for either family
	control  [sendMessages][udpControlLen]byte
	gso      bool
	doubt    bool // gso was refused; whether it was that is not known yet
	counters LinkCounters

	mu     sync.Mutex // for rebind, which the interface's watcher calls
	index  int
	closed bool
}

// A udpSocket is the half of the link that belongs to one address family.
type udpSocket struct {
	fd      int
	is4     bool
	in      *intake
	cut     udpSplitter
	dropped uint32 // by the kernel, as it last said
}

// Socket buffers; without privilege the system's limits (net.core.rmem_max) hold.
const (
	udpReceiveBuffer = 32 << 20
	udpSendBuffer    = 8 << 20
)

// NewUDPLink opens a UDP link on an interface. The calling thread must be in the
// interface's network namespace.
func NewUDPLink(iface *Netdev) (*UDPLink, error) {
	l := &UDPLink{iface: iface, epoll: -1, out: newOutbox(), gso: true}
	if err := l.open(); err != nil {
		l.closeSockets()
		return nil, fmt.Errorf("udp link on %s: %w", iface.Name(), err)
	}
	iface.OnChange(l.rebind)
	return l, nil
}

func (l *UDPLink) open() (err error) {
	l.index = l.iface.Index()
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create", err)
	}
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == unix.EAFNOSUPPORT && i == 1 {
			break
		}
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		s := &udpSocket{fd: fd, is4: i == 0, in: newIntake(udpControlLen, true)}
		l.sockets[i] = s
		if err := s.configure(fd, l.iface.Name()); err != nil {
			return err
		}
		if err := l.poll(fd); err != nil {
			return err
		}
	}
	return nil
}

// poll makes FD readable when a socket is.
func (l *UDPLink) poll(fd int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &ev))
}

// rebind follows an interface that was made anew under its name.
func (l *UDPLink) rebind() {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.iface.Index()
	if l.closed || i == 0 || i == l.index {
		return
	}
	l.index = i
	for _, s := range l.sockets {
		if s != nil && unix.BindToDevice(s.fd, l.iface.Name()) != nil {
			l.replace(s)
		}
	}
}

// replace puts a new socket in the place of one that may not be bound again, which takes
// CAP_NET_RAW. The descriptor stays, so the engine does not notice.
func (l *UDPLink) replace(s *udpSocket) {
	family := unix.AF_INET6
	if s.is4 {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return // no descriptors: the link stays without its interface, as it is
	}
	defer unix.Close(fd)
	if s.configure(fd, l.iface.Name()) == nil && unix.Dup3(fd, s.fd, unix.O_CLOEXEC) == nil {
		l.poll(s.fd)
	}
}

// configure sets a socket's options and binds it.
func (s *udpSocket) configure(fd int, device string) error {
	type option struct{ level, name, value int }
	options := []option{
		{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
		{unix.SOL_IP, unix.IP_PKTINFO, 1},
		{unix.SOL_IP, unix.IP_MULTICAST_LOOP, 0}, // Loopback does it
		{unix.SOL_IP, unix.IP_MULTICAST_ALL, 0},  // no groups of others
		{unix.SOL_IP, unix.IP_RECVTOS, 1},
		{unix.SOL_IP, unix.IP_RECVTTL, 1},
	}
	if !s.is4 {
		options = []option{
			{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO},
			{unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1},
			{unix.SOL_IPV6, unix.IPV6_MULTICAST_LOOP, 0},
			{unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1},
			{unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
			{unix.SOL_IPV6, ipv6FlowInfo, 1},
			{unix.SOL_IPV6, unix.IPV6_AUTOFLOWLABEL, 0}, // rdma_rxe sends flow label 0, too
		}
	}
	options = append(options, option{unix.SOL_UDP, unix.UDP_GRO, 1})
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("socket option %d of level %d: %w", o.name, o.level, err)
		}
	}
	setBuffers(fd, udpReceiveBuffer, udpSendBuffer)
	family := unix.AF_INET6
	if s.is4 {
		family = unix.AF_INET
	}
	return bindPort(fd, family, device)
}

// FD implements Link.
func (l *UDPLink) FD() int { return l.epoll }

// OnReady implements Link; the link has an FD.
func (l *UDPLink) OnReady(func()) {}

// NextDeadline implements Link: nothing is ever due.
func (l *UDPLink) NextDeadline() int64 { return 0 }

// Capabilities implements Link. The MTU is the interface's at the moment.
func (l *UDPLink) Capabilities() Capabilities {
	return Capabilities{MTU: l.iface.MTU(), ICRC: true, MaxBatch: sendBatch, SrcPort: Port}
}

// Counters implements Counted. It asks the kernel what it dropped.
func (l *UDPLink) Counters() *LinkCounters {
	for _, s := range l.sockets {
		if s == nil || l.closed {
			continue
		}
		if n, ok := kernelDrops(s.fd); ok {
			if n < s.dropped { // another socket's
				s.dropped = 0
			}
			l.counters.Drops[DropOverrun] += uint64(n - s.dropped)
			s.dropped = n
		}
	}
	return &l.counters
}

// kernelDrops returns how many datagrams the kernel dropped at a socket.
func kernelDrops(fd int) (uint32, bool) {
	var info [9]uint32     // SK_MEMINFO_VARS
	const memInfoDrops = 8 // SK_MEMINFO_DROPS
	n := uint32(unsafe.Sizeof(info))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&n)), 0)
	return info[memInfoDrops], e == 0
}

// Close implements Link.
func (l *UDPLink) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.closed = true
	l.closeSockets()
	return nil
}

func (l *UDPLink) closeSockets() {
	for _, s := range l.sockets {
		if s != nil {
			unix.Close(s.fd)
		}
	}
	if l.epoll >= 0 {
		unix.Close(l.epoll)
	}
}

// Send implements Link.
func (l *UDPLink) Send(_ int64, batch []TxFrame) (int, error) {
	if l.closed {
		return 0, ErrClosed
	}
	mtu := l.iface.MTU()
	taken := 0
	for taken < len(batch) {
		f := &batch[taken]
		if d, ok := l.refuse(f, mtu); !ok {
			l.counters.refused(f, d)
			taken++
			continue
		}
		is4 := f.Path.Dst.Is4()
		l.fill(is4, mtu, batch[taken:])
		n, again := l.flush(l.socket(is4), batch[taken:])
		taken += n
		if again {
			break
		}
	}
	return taken, nil
}

func (l *UDPLink) socket(is4 bool) *udpSocket {
	if is4 {
		return l.sockets[0]
	}
	return l.sockets[1]
}

func (l *UDPLink) refuse(f *TxFrame, mtu int) (Drop, bool) {
	d, ok := refuse(f, mtu)
	if ok && l.socket(f.Path.Dst.Is4()) == nil {
		return DropUnreachable, false
	}
	return d, ok
}

// fill makes messages of the frames of one family at the front of batch.
func (l *UDPLink) fill(is4 bool, mtu int, batch []TxFrame) {
	l.out.reset()
	for len(batch) > 0 {
		if _, ok := l.refuse(&batch[0], mtu); !ok || batch[0].Path.Dst.Is4() != is4 {
			return
		}
		n := 1
		if l.gso {
			n = runLength(batch, runLimit(is4))
		}
		if !l.out.room(batch[:n], 0) {
			return
		}
		l.message(batch[:n])
		batch = batch[n:]
	}
}

// message makes one datagram, a super-packet if it is more than one frame.
func (l *UDPLink) message(run []TxFrame) {
	a := run[0].Path.addressing(run[0].CE)
	a.SrcPort = Port
	l.out.begin(0)
	for i := range run {
		a.ID = uint16(i)
		l.out.segment(&run[i], &a)
	}
	i := l.out.n
	m := l.out.end(len(run))
	segment := 0
	if len(run) > 1 {
		segment = run[0].Len + packet.ICRCLen
	}
	m.Name = (*byte)(unsafe.Pointer(&l.names[i]))
	m.Namelen = putName(&l.names[i], a.Dst)
	m.Control = &l.control[i][0]
	m.SetControllen(putControl(l.control[i][:], &a, segment))
}

// flush gives the messages to the kernel. It returns how many frames were taken, and
// whether the medium is full.
func (l *UDPLink) flush(s *udpSocket, batch []TxFrame) (taken int, again bool) {
	o := l.out
	defer o.reset()
	for i := 0; i < o.n; {
		n, e := o.send(s.fd, i)
		for range n {
			for range o.runs[i] {
				l.counters.sent(&batch[taken])
				taken++
			}
			i++
			l.doubt = false
		}
		switch e {
		case 0:
			continue
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return taken, true
		case unix.EINVAL, unix.EIO:
			// Either the kernel does not segment here (no checksum offload, a tunnel) or the
			// datagram is wrong in itself: one packet at a time shows which.
			if o.runs[i] > 1 && l.gso {
				l.gso, l.doubt = false, true
				return taken, false
			}
		}
		if l.doubt {
			l.gso, l.doubt = true, false
		}
		for range o.runs[i] {
			l.counters.refused(&batch[taken], sendDrop(e))
			taken++
		}
		i++
	}
	return taken, false
}

// sendDrop names the reason behind an error of sendmmsg.
func sendDrop(e unix.Errno) Drop {
	switch e {
	case unix.EMSGSIZE:
		return DropTooLong
	case unix.ENETUNREACH, unix.EHOSTUNREACH:
		return DropUnreachable
	}
	return DropSend
}

// Receive implements Link. Where it filled the batch there may be more that FD does
// not show: it has to be called again before waiting.
func (l *UDPLink) Receive(_ int64, batch []RxFrame) (n int, err error) {
	if l.closed {
		return 0, ErrClosed
	}
	l.turn ^= 1 // a flood in one family leaves the other its share
	for i := range l.sockets {
		if s := l.sockets[l.turn^i]; s != nil {
			n += s.receive(&l.counters, batch[n:])
		}
	}
	return n, nil
}

// receive fills batch with what is left of the last recvmmsg, or of a new one.
func (s *udpSocket) receive(c *LinkCounters, batch []RxFrame) (n int) {
	for tries := 0; n < len(batch); {
		if s.cut.next(&batch[n]) {
			c.received(len(batch[n].Head), s.is4)
			n++
			continue
		}
		c.Drops[DropUDPLength] += s.cut.runts()
		b, m, i := s.in.take()
		if m != nil {
			if d, ok := s.cut.load(s.is4, &s.in.names[i], s.in.control[i*udpControlLen:][:m.Controllen], b); !ok {
				c.Drops[d]++
			}
			continue
		}
		// The bytes of the frames in batch are where new ones would be written.
		if tries++; n > 0 || tries > receiveTries {
			break
		}
		if s.in.fill(s.fd); s.in.n == 0 {
			break
		}
	}
	return n
}

// putName writes the socket address of RoCE's port at dst and returns its length.
func putName(name *unix.RawSockaddrInet6, dst netip.Addr) uint32 {
	if dst.Is4() {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		*v4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: networkOrder(Port), Addr: dst.As4()}
		return unix.SizeofSockaddrInet4
	}
	*name = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: networkOrder(Port), Addr: dst.As16()}
	return unix.SizeofSockaddrInet6
}

// networkOrder returns the number whose bytes in memory are those of v, the highest first.
func networkOrder(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}
