package wire

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// A PacketLink is a link through an AF_PACKET socket. It reads and writes whole Ethernet frames, so
// the ICRC is exact in both directions. It requires CAP_NET_RAW.
//
// Send:
//
//  1. Consecutive frames of one path and equal length become a super-packet: one set
//     of headers, behind a virtio-net header that tells the kernel where to segment.
//     The kernel gives segment i the Identification of the first plus i, and ICRC i is
//     computed accordingly.
//  2. The kernel gathers headers, BTHs, payload, pads and ICRCs from where they are.
//     One sendmmsg sends several super-packets.
//
// Receive:
//
//  3. A socket filter passes RoCEv2 packets for this interface. A super-packet, from a
//     peer on this host or of the kernel's receive offload, arrives as it is.
//  4. Headers are checked, super-packets are cut, and each packet's ICRC is checked.
//
// UDP checksums: single packets are sent with checksum 0, also over IPv6, as rdma_rxe does. The
// segments of a super-packet have checksums, because the kernel segments no others. A received
// checksum must be 0 or correct; one that the kernel or the hardware verified is not computed
// again.
//
// A UDP socket reserves the port on the interface, so that the kernel does not reply "port
// unreachable". It is never read. Where a program at the ingress of the interface cannot keep the
// packets from the kernel's IP layer (packet_ingress.go), it gets them too, and the kernel drops
// them.
//
// The link also serves the VLAN interfaces on its interface. It tags the frames of a path in a
// VLAN; the kernel removes the tags of received frames and reports them.
type PacketLink struct {
	reservedPort
	readiness
	fd       int
	srcMAC   [6]byte // during Send
	tx       *txBatch
	rx       *rxBatch
	decoder  packetDecoder
	counters LinkCounters
	kernel   ingress // keeps received packets from the layers of the kernel

	bound   int                   // index of the interface that fd is bound to
	failure atomic.Pointer[error] // of rebind, for Receive to return

	number, slices int // of a NIC that several engines drive
}

// Sizes of socket buffers. The receive buffer has room for the windows of many peers together. The
// send buffer, of which Linux grants twice the size, bounds how much data an ACK waits for: 16 ms
// on a link of 1 Gbit/s.
const (
	packetReceiveBuffer = 32 << 20
	packetSendBuffer    = 1 << 20
)

// NewPacketLink opens a packet link on an interface. The calling thread must be in the
// interface's network namespace.
func NewPacketLink(iface *Netdev) (*PacketLink, error) { return newPacketSlice(iface, nil, 0, 1) }

// NewPacketSlices opens the packet links of the n slices of a NIC. A socket filter passes each of
// them what is for its queue pairs.
func NewPacketSlices(iface *Netdev, n int) ([]*PacketLink, error) {
	return openSlices(n, func(opened []*PacketLink) (*PacketLink, error) {
		var first *PacketLink
		if len(opened) > 0 {
			first = opened[0]
		}
		return newPacketSlice(iface, first, len(opened), n)
	})
}

func newPacketSlice(iface *Netdev, first *PacketLink, number, slices int) (*PacketLink, error) {
	l := &PacketLink{fd: -1, rx: newRxBatch(packetControlLen, false), number: number, slices: slices}
	l.tx = newTxBatch(l, virtioLen+packet.MaxFrameHeaderLen, true)
	if err := l.open(iface, first); err != nil {
		l.closeSockets()
		return nil, fmt.Errorf("packet link on %s: %w", iface.Name(), err)
	}
	iface.OnChange(l.rebind)
	return l, nil
}

func (l *PacketLink) open(iface *Netdev, first *PacketLink) (err error) {
	l.rx.hint.ingress = &l.kernel
	if first != nil {
		l.share(&first.reservedPort)
		l.rx.hint.ingress = &first.kernel
	} else if err := l.reserve(iface); err != nil {
		return err
	}
	// With protocol 0, the socket receives nothing until it has a filter and is bound to ETH_P_ALL.
	l.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("the packet link requires CAP_NET_RAW (the udp link requires no privilege): %w", err)
		}
		return os.NewSyscallError("socket", err)
	}
	for _, o := range []int{unix.PACKET_VNET_HDR, unix.PACKET_IGNORE_OUTGOING, unix.PACKET_AUXDATA} {
		if err := unix.SetsockoptInt(l.fd, unix.SOL_PACKET, o, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	setBuffers(l.fd, packetReceiveBuffer, packetSendBuffer)
	if err := attachFilter(l.fd, iface.state.Load().ids(), l.number, l.slices); err != nil {
		return err
	}
	if err := l.bind(); err != nil {
		return err
	}
	if l.first == nil {
		l.kernel.follow(l.iface)
	}
	return nil
}

func (l *PacketLink) bind() error {
	index := l.iface.Index()
	if index == 0 || index == l.bound {
		return nil
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
	if err := unix.Bind(l.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	l.bound = index
	return nil
}

// rebind follows changes of VLANs, and an interface that was deleted and created again.
func (l *PacketLink) rebind() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	var err error
	if l.first == nil {
		err = l.follow()
		l.kernel.follow(l.iface)
	}
	err = errors.Join(err, attachFilter(l.fd, l.iface.state.Load().ids(), l.number, l.slices), l.bind())
	if err != nil {
		err = fmt.Errorf("packet link on %s: %w", l.iface.Name(), err)
		l.failure.Store(&err)
		l.ready() // so that an engine that sleeps reports it
	}
}

// AppendFDs implements Link.
func (l *PacketLink) AppendFDs(fds []unix.PollFd) []unix.PollFd {
	l.rx.hint.wait()
	return appendFD(fds, l.fd)
}

// CopyPayload implements Link: Send has copied the payload.
func (l *PacketLink) CopyPayload() {}

// NextDeadline implements Link: nothing is ever due.
func (l *PacketLink) NextDeadline() int64 { return 0 }

// Capabilities implements Link. The MTU is the interface's current one.
func (l *PacketLink) Capabilities() Capabilities {
	return Capabilities{MTU: l.iface.MTU(), ICRC: true, MaxBatch: txBatchSize, Lag: maxSkipped, RoCEv1: true, SuperPackets: true}
}

// Counters implements Counted. It includes the packets that the kernel dropped.
func (l *PacketLink) Counters() *LinkCounters {
	if !l.closed {
		// Reading the statistics resets them.
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
	l.release()
	l.kernel.close()
}

// Send implements Link.
func (l *PacketLink) Send(_ int64, batch []TxFrame) (int, error) {
	if l.closed {
		return 0, ErrClosed
	}
	s := l.iface.state.Load()
	l.srcMAC = s.mac
	return l.tx.send(l.fd, s.mtu, batch, &l.counters), nil
}

// encode implements txEncoder: a frame, or a super-packet, behind a virtio-net header.
func (l *PacketLink) encode(run []TxFrame) {
	f := &run[0]
	a := f.Path.addressing(f.CE)
	a.SrcMAC, a.ID = l.srcMAC, l.tx.id
	size, payload := 0, 0
	for i := range run {
		size += run[i].Len + packet.ICRCLen
		payload += run[i].Len - int(run[i].HeadLen) - int(run[i].Pad)
	}
	b := l.tx.beginMessage(virtioLen + a.HeaderLen())
	// The kernel copies what follows the first piece to a page boundary. Zen 3 copies at a tenth of
	// its speed to places in a page that are up to 31 bytes behind their source's. So the first
	// piece is longer by what precedes the payload: if that is contiguous, each part of it gets a
	// place before its source's, or far behind.
	v := virtioHeader{hdrLen: uint16(a.HeaderLen() + size - payload)}
	if len(run) > 1 {
		v.segment(&a, f.Len+packet.ICRCLen)
		a.UDPChecksum = pseudoChecksum(&a, size)
	}
	v.put(b)
	a.PutHeaders(b[virtioLen:], size)
	for i := range run {
		l.tx.addSegment(&run[i], &a)
		a.ID++
	}
	l.tx.endMessage(len(run))
	l.tx.id = a.ID
}

// onError implements txEncoder.
func (l *PacketLink) onError(e unix.Errno, frames, _ int) (txAction, Drop) {
	if e == unix.EINVAL && frames > 1 && l.tx.gso {
		l.tx.gso = false // Linux before 6.2
		return txRebuild, 0
	}
	return txDrop, DropSend // the interface is down or gone
}

// Receive implements Link. If it filled the batch there may be more packets, which no descriptor
// shows: call it again before waiting.
func (l *PacketLink) Receive(now int64, batch []RxFrame) (n int, err error) {
	if l.closed {
		return 0, ErrClosed
	}
	if l.failure.Load() != nil {
		return 0, *l.failure.Swap(nil)
	}
	return l.rx.receive(now, l.fd, &l.decoder, batch, &l.counters)
}
