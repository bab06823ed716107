package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// A UDPLink is a link through UDP sockets, one for each address family, bound to port 4791 on an
// interface. It requires no privilege.
//
// A socket does not expose all headers. As a consequence:
//
//   - Every packet is sent from port 4791, whatever Path.SrcPort is. Receivers accept
//     any port, but the network cannot spread QPs over its paths. Capabilities.SrcPort
//     says so.
//   - The kernel chooses the IPv4 Identification. On an unconnected socket that forbids
//     fragmentation it is 0, and 0, 1, 2 … in a super-packet. So the ICRC is exact on
//     send.
//   - The Identification and the DF flag of a received packet are unknown.
//     packet.RecoverID finds the Identification while it checks the ICRC. A corrupt
//     packet passes one time in 32768, and only if the UDP checksum matches too.
//   - The kernel chooses the IPv6 flow label, which the ICRC does not cover.
//   - RoCE v1, which has no UDP header, cannot be sent or received.
//   - Packets are sent with UDP checksums, because the kernel segments no others.
//
// Send makes super-packets (UDP_SEGMENT) of runs of frames. The kernel gathers their parts from
// where they are, and one sendmmsg sends several. One recvmmsg receives several super-packets,
// which a peer on this host sent or receive offload made (UDP_GRO). They are cut, and each packet's
// ICRC is checked.
type UDPLink struct {
	readiness
	iface    *Netdev
	sockets  [2]*udpSocket
	active   int   // the socket that received last
	skips    int   // how many more calls of Receive may leave out the other one
	readAt   int64 // when Receive last read that
	tx       *txBatch
	names    [txMessages]unix.RawSockaddrInet6 // room for either family
	control  [txMessages][udpControlLen]byte
	counters LinkCounters

	slices int // of the NIC, whose links share the port

	mu     sync.Mutex // for rebind, which the Netdev's watcher calls
	index  int
	groups map[netip.Addr]bool // joined
	closed bool

	failure atomic.Pointer[error] // of rebind, for Receive to return
}

// A udpSocket is the socket of one address family.
type udpSocket struct {
	fd          int
	is4         bool
	rx          *rxBatch
	decoder     udpDecoder
	kernelDrops uint32 // at the last read
}

// Sizes of socket buffers, as on a packet link. Without privilege, the system limits them
// (net.core.rmem_max).
const (
	udpReceiveBuffer = 32 << 20
	udpSendBuffer    = 1 << 20
)

// The socket of the address family that has not received last is read less often: Receive leaves it
// out until it was called quietSkips times or quietTime has passed, or the owner waits. Most NICs
// use one family at a time, and an engine that polls would make half of its system calls for the
// other one.
const (
	quietSkips = 7
	quietTime  = 10e3 // ns
)

// NewUDPLink opens a UDP link on an interface. The calling thread must be in the interface's
// network namespace.
func NewUDPLink(iface *Netdev) (*UDPLink, error) { return newUDPSlice(iface, 1) }

// NewUDPSlices opens the UDP links of the n slices of a NIC. Their sockets share the port, and a
// program passes each of them what is for its queue pairs.
func NewUDPSlices(iface *Netdev, n int) ([]*UDPLink, error) {
	alone, err := NewUDPLink(iface) // sockets of another program may not share the port
	if err != nil {
		return nil, err
	}
	alone.Close()
	return openSlices(n, func([]*UDPLink) (*UDPLink, error) { return newUDPSlice(iface, n) })
}

func newUDPSlice(iface *Netdev, slices int) (*UDPLink, error) {
	l := &UDPLink{iface: iface, slices: slices, groups: map[netip.Addr]bool{}}
	l.tx = newTxBatch(l, 0, true)
	if err := l.open(); err != nil {
		l.closeSockets()
		return nil, fmt.Errorf("udp link on %s: %w", iface.Name(), err)
	}
	iface.OnChange(l.rebind)
	return l, nil
}

func (l *UDPLink) open() (err error) {
	l.index = l.iface.Index()
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == unix.EAFNOSUPPORT && i == 1 {
			break
		}
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		s := &udpSocket{fd: fd, is4: i == 0, rx: newRxBatch(udpControlLen, true), decoder: udpDecoder{is4: i == 0}}
		l.sockets[i] = s
		if err := s.configure(fd, l.iface.Name(), l.slices); err != nil {
			return err
		}
	}
	return nil
}

// rebind follows an interface that was deleted and created again.
func (l *UDPLink) rebind() {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.iface.Index()
	if l.closed || i == 0 || i == l.index {
		return
	}
	var err error
	for _, s := range l.sockets {
		if s != nil && (l.slices > 1 || unix.BindToDevice(s.fd, l.iface.Name()) != nil) {
			err = errors.Join(err, l.iface.inNamespace(func() error { return l.replace(s) }))
		}
	}
	for g := range l.groups {
		err = errors.Join(err, moveMembership(l.socket(g.Is4()).fd, l.index, i, g))
	}
	if err != nil { // the next change is another try
		err = fmt.Errorf("udp link on %s: %w", l.iface.Name(), err)
		l.failure.Store(&err)
		l.ready() // so that an engine that sleeps reports it
		return
	}
	l.index = i
}

// replace replaces a socket that cannot be bound again: without CAP_NET_RAW, or because it would
// not be among those that share the port any more. The number of the descriptor stays. The calling
// thread must be in the interface's network namespace.
func (l *UDPLink) replace(s *udpSocket) error {
	family := unix.AF_INET6
	if s.is4 {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := s.configure(fd, l.iface.Name(), l.slices); err != nil {
		return err
	}
	if err := unix.Dup3(fd, s.fd, unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("dup3", err)
	}
	l.ready() // an epoll set has lost the old socket
	return nil
}

// configure sets a socket's options and binds it.
func (s *udpSocket) configure(fd int, device string, slices int) error {
	type option struct{ level, name, value int }
	options := []option{
		{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
		{unix.SOL_IP, unix.IP_PKTINFO, 1},
		{unix.SOL_IP, unix.IP_MULTICAST_LOOP, 0}, // LoopbackLink does that
		{unix.SOL_IP, unix.IP_MULTICAST_ALL, 0},  // only groups that this socket joined
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
			{unix.SOL_IPV6, unix.IPV6_AUTOFLOWLABEL, 0}, // as rdma_rxe, send flow label 0
		}
	}
	options = append(options, option{unix.SOL_UDP, unix.UDP_GRO, 1})
	if slices > 1 {
		options = append(options, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	}
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
	if err := bindPort(fd, family, device); err != nil || slices == 1 {
		return err
	}
	return attachSteering(fd, slices)
}

// attachSteering makes the kernel choose among the sockets that share the port by the destination
// QP, in the order in which they were bound. rebind replaces them in this order. Until it has
// replaced the last one, the links pass packets on to each other.
func attachSteering(fd, slices int) error {
	program := assemble([]filterStep{
		{code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, k: destQPOffset}, // from the end of the UDP header
		{code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, k: destQPMask},
		{unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, managementQPs, filterNext, 5},
		{code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, k: uint32(slices)},
		{code: unix.BPF_RET | unix.BPF_A},
		{code: unix.BPF_RET | unix.BPF_K, k: 0},
	}, unix.BPF_JMP|unix.BPF_JGT|unix.BPF_K)
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return os.NewSyscallError("SO_ATTACH_REUSEPORT_CBPF", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &p))
}

// AppendFDs implements Link.
func (l *UDPLink) AppendFDs(fds []unix.PollFd) []unix.PollFd {
	l.skips = 0 // what ends the wait is found at once
	for _, s := range l.sockets {
		if s != nil {
			fds = appendFD(fds, s.fd)
		}
	}
	return fds
}

// CopyPayload implements Link: Send has copied the payload.
func (l *UDPLink) CopyPayload() {}

// NextDeadline implements Link: nothing is ever due.
func (l *UDPLink) NextDeadline() int64 { return 0 }

// Capabilities implements Link. The MTU is the interface's current one.
func (l *UDPLink) Capabilities() Capabilities {
	return Capabilities{MTU: l.iface.MTU(), ICRC: true, MaxBatch: txBatchSize, Lag: quietTime, SrcPort: Port, SuperPackets: true}
}

// Counters implements Counted. It includes the datagrams that the kernel dropped.
func (l *UDPLink) Counters() *LinkCounters {
	for _, s := range l.sockets {
		if s == nil || l.closed {
			continue
		}
		if n, ok := kernelDrops(s.fd); ok {
			if n < s.kernelDrops { // the socket was replaced
				s.kernelDrops = 0
			}
			l.counters.Drops[DropOverrun] += uint64(n - s.kernelDrops)
			s.kernelDrops = n
		}
	}
	return &l.counters
}

// kernelDrops returns the number of datagrams that the kernel dropped at a socket.
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
}

// Send implements Link.
func (l *UDPLink) Send(_ int64, batch []TxFrame) (taken int, err error) {
	if l.closed {
		return 0, ErrClosed
	}
	mtu := l.iface.MTU()
	for taken < len(batch) {
		s, n := l.sameSocket(batch[taken:])
		if s == nil {
			d, ok := checkTx(&batch[taken], mtu)
			if ok {
				d = DropUnreachable
			}
			l.counters.dropTx(&batch[taken], d)
			taken++
			continue
		}
		sent := l.tx.send(s.fd, mtu, batch[taken:taken+n], &l.counters)
		taken += sent
		if sent < n {
			break
		}
	}
	return taken, nil
}

// sameSocket returns how many frames from the front of batch leave through one socket, and the
// socket; nil and 1 if there is none for the first frame.
func (l *UDPLink) sameSocket(batch []TxFrame) (s *udpSocket, n int) {
	path := batch[0].Path
	if path == nil || path.Network == packet.RoCEv1 {
		return nil, 1
	}
	is4 := path.Dst.Is4()
	if s = l.socket(is4); s == nil {
		return nil, 1
	}
	for n = 1; n < len(batch); n++ {
		p := batch[n].Path
		if p != path && (p == nil || p.Network != path.Network || p.Dst.Is4() != is4) {
			break
		}
	}
	return s, n
}

func (l *UDPLink) socket(is4 bool) *udpSocket {
	if is4 {
		return l.sockets[0]
	}
	return l.sockets[1]
}

// encode implements txEncoder: a datagram, or a super-packet. Its address and control messages tell
// the kernel the rest of the headers.
func (l *UDPLink) encode(run []TxFrame) {
	a := run[0].Path.addressing(run[0].CE)
	a.SrcPort = Port
	l.tx.beginMessage(0)
	for i := range run {
		a.ID = uint16(i)
		l.tx.addSegment(&run[i], &a)
	}
	m, i := l.tx.endMessage(len(run))
	segment := 0
	if len(run) > 1 {
		segment = run[0].Len + packet.ICRCLen
	}
	m.Name = (*byte)(unsafe.Pointer(&l.names[i]))
	m.Namelen = putName(&l.names[i], a.Dst)
	m.Control = &l.control[i][0]
	m.SetControllen(putControl(l.control[i][:], &a, segment))
}

// onError implements txEncoder. A super-packet is rejected if the kernel does not segment on this
// path (no checksum offload, a tunnel) or if the datagram itself is at fault. Sending its packets
// one by one shows which: if the first fails too, segmentation was not the cause and is turned on
// again.
func (l *UDPLink) onError(e unix.Errno, frames, _ int) (txAction, Drop) {
	t := l.tx
	if (e == unix.EINVAL || e == unix.EIO) && frames > 1 && t.gso {
		t.gso, t.gsoSuspect = false, true
		return txRebuild, 0
	}
	if t.gsoSuspect {
		t.gso, t.gsoSuspect = true, false
	}
	switch e {
	case unix.EMSGSIZE:
		return txDrop, DropTooLong
	case unix.ENETUNREACH, unix.EHOSTUNREACH:
		return txDrop, DropUnreachable
	}
	return txDrop, DropSend
}

// Receive implements Link. If it filled the batch there may be more packets, which no descriptor
// shows: call it again before waiting.
func (l *UDPLink) Receive(now int64, batch []RxFrame) (n int, err error) {
	if l.closed {
		return 0, ErrClosed
	}
	if l.failure.Load() != nil {
		return 0, *l.failure.Swap(nil)
	}
	active := l.active
	var ofOther int
	var unread error
	if l.skips--; l.skips < 0 || now-l.readAt > quietTime { // first, so that the other one cannot starve it
		l.skips, l.readAt = quietSkips, now
		if ofOther, unread = l.receive(now, active^1, batch); ofOther > 0 {
			l.active = active ^ 1
		}
	}
	n, err = l.receive(now, active, batch[ofOther:])
	if n += ofOther; n == len(batch) || ofOther > 0 && n > ofOther || unread != nil || err != nil {
		l.skips = 0 // either of them may have more
	}
	if n > 0 {
		return n, nil
	}
	return 0, cmp.Or(unread, err)
}

// receive receives from a socket.
func (l *UDPLink) receive(now int64, i int, batch []RxFrame) (int, error) {
	s := l.sockets[i]
	if s == nil {
		return 0, nil
	}
	return s.rx.receive(now, s.fd, &s.decoder, batch, &l.counters)
}

// putName writes the socket address of port 4791 at dst and returns its length.
func putName(name *unix.RawSockaddrInet6, dst netip.Addr) uint32 {
	if dst.Is4() {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		*v4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: networkOrder(Port), Addr: dst.As4()}
		return unix.SizeofSockaddrInet4
	}
	*name = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: networkOrder(Port), Addr: dst.As16()}
	return unix.SizeofSockaddrInet6
}

// networkOrder converts v from host to network byte order.
func networkOrder(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}
