package wire

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// An XDPLink is a link through AF_XDP sockets. An XDP program on the interface redirects RoCEv2
// packets to them, before the kernel spends any work on a packet; everything else goes to the
// kernel. It requires CAP_NET_RAW, CAP_BPF and CAP_NET_ADMIN, and CAP_IPC_LOCK or a high
// RLIMIT_MEMLOCK for its packet memory.
//
// Send:
//
//  1. A frame is written, complete with headers and ICRC, to a slot of the packet memory. Frames
//     longer than a page take two descriptors.
//  2. One system call sends the batch. Frames bypass the interface's queueing discipline.
//
// Receive:
//
//  3. The program picks the packets for the interface's addresses. The kernel puts them into the
//     packet memory, one socket for each receive queue.
//  4. Frames in several pieces are put together. Headers and ICRC are checked. No system call is
//     needed unless the kernel asks for one.
//
// A super-packet, from a peer on this host, arrives without the length of its segments. The link
// finds it: see xdpDecoder.
//
// The program and the sockets belong to the process: the kernel detaches them when it ends.
//
// Of a NIC that several engines drive, each slice has a link with a socket for each queue. Those of
// one queue share its packet memory, and the program picks the slice too. The first link has the
// program and reserves the port.
type XDPLink struct {
	reservedPort
	readiness
	decoder  xdpDecoder
	counters LinkCounters
	id       uint16    // Identification of the next frame
	retryAt  int64     // when Receive offers queued frames again
	room     []byte    // where frames in several pieces are put together
	used     int       // bytes of room whose frames Receive has returned
	turn     int       // the socket that Receive reads first
	modes    []XDPMode // in which to attach the program, in the order to try

	maxMTU  atomic.Int32
	mode    atomic.Value          // the XDPMode of last
	failure atomic.Pointer[error] // of rebind, for Receive to return

	number int                     // of the slice
	slices []*XDPLink              // all links of the NIC
	port   *xdpPort                // nil while the interface is down for the first time
	queues []*xdpSocket            // the link's own on the port; the first also sends
	next   atomic.Pointer[xdpPort] // the port to use from the next Receive on

	// Of the first link of the NIC.
	portMu sync.Mutex // to open, update and leave ports, which may take a second; locked before mu
	last   *xdpPort   // the newest of port and next; guarded by portMu
}

const (
	// xdpSendBuffer bounds how much data waits in the interface.
	xdpSendBuffer = 1 << 20

	// xdpRoom has room for some super-packets.
	xdpRoom = 512 << 10

	// xdpRetry is when frames that the interface had no room for are offered again.
	xdpRetry = 20_000 // ns
)

// NewXDPLink opens an xdp link on an interface. The calling thread must be in the interface's
// network namespace.
func NewXDPLink(iface *Netdev) (*XDPLink, error) { return newXDPLink(iface, XDPNative, XDPGeneric) }

// NewXDPSlices opens the xdp links of the n slices of a NIC.
func NewXDPSlices(iface *Netdev, n int) ([]*XDPLink, error) {
	return newXDPSlices(iface, n, XDPNative, XDPGeneric)
}

// NewZeroCopyXDPSlices is NewXDPSlices for an interface that is up and offers zero-copy. For others
// it returns an error.
func NewZeroCopyXDPSlices(iface *Netdev, n int) ([]*XDPLink, error) {
	return newXDPSlices(iface, n, XDPZeroCopy)
}

func newXDPLink(iface *Netdev, modes ...XDPMode) (*XDPLink, error) {
	l, err := newXDPSlices(iface, 1, modes...)
	if err != nil {
		return nil, err
	}
	return l[0], nil
}

// newXDPSlices opens the links of a NIC in the first of some modes that the interface offers.
// XDPNative includes zero-copy.
func newXDPSlices(iface *Netdev, n int, modes ...XDPMode) ([]*XDPLink, error) {
	slices := make([]*XDPLink, n)
	for i := range slices {
		slices[i] = &XDPLink{modes: modes, room: make([]byte, xdpRoom), number: i, slices: slices}
		slices[i].maxMTU.Store(xdpOneChunkMTU)
	}
	l := slices[0]
	if err := l.open(iface); err != nil {
		for _, k := range slices {
			k.closeSockets()
		}
		return nil, fmt.Errorf("xdp link on %s: %w", iface.Name(), err)
	}
	iface.OnChange(l.rebind)
	l.rebind() // it may have changed before
	return slices, nil
}

func (l *XDPLink) open(iface *Netdev) (err error) {
	if err := l.reserve(iface); err != nil {
		return err
	}
	for _, k := range l.slices {
		if k != l {
			k.share(&l.reservedPort)
		}
	}
	if err := l.openPort(l.served()); !errors.Is(err, unix.ENETDOWN) || l.modes[0] == XDPZeroCopy {
		return err
	}
	return nil
}

// openPort opens a port on the interface in state s, for Receive to use from its next call on. The
// caller holds portMu, or is the only user of l, and is in the interface's network namespace.
func (l *XDPLink) openPort(s *netdevState) error {
	queues, err := l.iface.receiveQueues()
	if err != nil {
		return err
	}
	p, err := openXDPPort(s, queues, len(l.slices), l.modes)
	if err != nil {
		return err
	}
	for _, k := range l.slices {
		k.mode.Store(p.mode)
		k.maxMTU.Store(int32(p.maxMTU()))
		unused := k.next.Swap(p)
		if k.closed {
			unused = k.next.Swap(nil)
		}
		if unused != nil {
			unused.leave(k.number)
		}
		k.ready()
	}
	l.last = p
	return nil
}

// rebind follows changes of addresses, VLANs and queues, and an interface that was deleted and
// created again.
func (l *XDPLink) rebind() {
	l.portMu.Lock()
	defer l.portMu.Unlock()
	s, followErr := l.followed()
	var err error
	switch {
	case s == nil || s.index == 0:
	case l.last == nil || l.last.index != s.index:
		err = unlessDown(l.iface.inNamespace(func() error { return l.openPort(s) }))
	default:
		if err = unlessDown(l.last.update(s)); err == nil {
			err = l.grow(s)
		}
	}
	if err = errors.Join(followErr, err); err != nil {
		err = fmt.Errorf("xdp link on %s: %w", l.iface.Name(), err)
		l.failure.Store(&err)
		l.ready() // so that an engine that sleeps reports it
	}
}

// grow opens sockets for queues that the interface has got. The caller holds portMu.
func (l *XDPLink) grow(s *netdevState) error {
	n := len(l.last.of(0))
	if s.queues <= n {
		return nil
	}
	err := unlessDown(l.iface.inNamespace(func() error { return l.last.openQueues(s) }))
	if len(l.last.of(0)) == n {
		return err
	}
	for _, k := range l.slices {
		k.ready() // so that an engine that sleeps waits for them, too
	}
	l.last.grown = true
	return errors.Join(err, unlessDown(l.last.update(s)))
}

// unlessDown returns an error that is not the effect of an interface that is down. That it comes up
// is a change, and another try.
func unlessDown(err error) error {
	if errors.Is(err, unix.ENETDOWN) {
		return nil
	}
	return err
}

// followed follows changes of VLANs and returns the state to serve; nil if the link is closed.
func (l *XDPLink) followed() (*netdevState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil
	}
	err := l.follow()
	return l.served(), err
}

// Mode returns how frames pass between the interface and the link; "" if the interface has been
// down since the link was opened.
func (l *XDPLink) Mode() XDPMode {
	m, _ := l.mode.Load().(XDPMode)
	return m
}

// AppendFDs implements Link. The link has no epoll set for its sockets: the kernel would notify it
// of each frame, also while the engine is awake. That takes a seventh of the time of a small frame.
func (l *XDPLink) AppendFDs(fds []unix.PollFd) []unix.PollFd {
	if l.port == nil {
		l.adopt()
	} else {
		l.queues = l.port.of(l.number)
	}
	for _, s := range l.queues {
		fds = appendFD(fds, s.fd)
	}
	return fds
}

// CopyPayload implements Link: Send has copied the payload.
func (l *XDPLink) CopyPayload() {}

// HoldsReferences implements Referrer: a deadline is that of queued copies.
func (l *XDPLink) HoldsReferences() bool { return false }

// NextDeadline implements Link: frames that the interface had no room for are due.
func (l *XDPLink) NextDeadline() int64 {
	if l.port != nil && l.iface.Up() && l.queues[0].waits() {
		return l.retryAt
	}
	return 0
}

// Capabilities implements Link. The MTU is the interface's current one, or what the link has room
// for.
func (l *XDPLink) Capabilities() Capabilities {
	return Capabilities{MTU: l.mtu(), ICRC: true, MaxBatch: txBatchSize, RoCEv1: true}
}

func (l *XDPLink) mtu() int { return min(l.iface.MTU(), int(l.maxMTU.Load())) }

// Counters implements Counted. It includes the packets that the kernel dropped.
func (l *XDPLink) Counters() *LinkCounters {
	if !l.closed {
		for _, s := range l.queues {
			l.counters.Drops[DropOverrun] += s.overrun()
		}
	}
	return &l.counters
}

// Close implements Link.
func (l *XDPLink) Close() error {
	first := l.slices[0]
	first.portMu.Lock()
	defer first.portMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.closed = true
	l.closeSockets()
	return nil
}

func (l *XDPLink) closeSockets() {
	if next := l.next.Swap(nil); next != nil {
		next.leave(l.number)
	}
	if l.port != nil {
		l.port.leave(l.number)
	}
	l.release()
}

// Send implements Link. While the interface is down it drops frames.
func (l *XDPLink) Send(now int64, batch []TxFrame) (taken int, err error) {
	if l.closed {
		return 0, ErrClosed
	}
	s := l.iface.state.Load()
	if l.port == nil {
		l.adopt()
	}
	if l.port == nil || s.index != l.port.index || !s.up {
		for i := range batch {
			l.counters.dropTx(&batch[i], DropSend)
		}
		return len(batch), nil
	}
	socket, mtu := l.queues[0], l.mtu()
	for ; taken < len(batch); taken++ {
		f := &batch[taken]
		if d, ok := checkTx(f, mtu); !ok {
			l.counters.dropTx(f, d)
			continue
		}
		if !socket.hasSlot() {
			if socket.kick(); !socket.hasSlot() {
				break
			}
		}
		a := f.Path.addressing(f.CE)
		a.SrcMAC, a.ID = s.mac, l.id
		header, size := a.HeaderLen(), f.Len+packet.ICRCLen
		slot := socket.push(header + size)
		a.PutHeaders(slot, size)
		f.setID(&a)
		base := a.ICRCBase(f.Len)
		f.put(slot[header:], &base)
		l.id++
		l.counters.addTx(f)
	}
	l.kick(now)
	return taken, nil
}

// kick sends queued frames.
func (l *XDPLink) kick(now int64) {
	l.queues[0].kick()
	l.retryAt = now + xdpRetry
}

// adopt begins to use the port that rebind has opened.
func (l *XDPLink) adopt() {
	next := l.next.Swap(nil)
	if next == nil {
		return
	}
	if l.port != nil {
		l.port.leave(l.number)
	}
	l.port, l.queues = next, next.of(l.number)
}

// Receive implements Link. If it filled the batch there may be more packets of a super-packet,
// which no descriptor shows: call it again before waiting.
func (l *XDPLink) Receive(now int64, batch []RxFrame) (n int, err error) {
	if l.closed {
		return 0, ErrClosed
	}
	if err := l.failure.Swap(nil); err != nil {
		return 0, *err
	}
	if l.next.Load() != nil {
		l.adopt()
	}
	if l.port == nil {
		return 0, nil
	}
	sockets := l.port.of(l.number)
	l.queues = sockets
	if now >= l.retryAt && sockets[0].waits() {
		l.kick(now)
	}
	if len(l.decoder.rest) == 0 {
		l.used = 0
	}
	l.turn++ // so that no queue starves the others
	for i := range sockets {
		s := sockets[(l.turn+i)%len(sockets)]
		s.recycle()
		n += l.receive(s, batch[n:])
	}
	if n == 0 && (l.full() || slices.ContainsFunc(sockets, (*xdpSocket).holdsAll)) {
		return 0, ErrUnread
	}
	return n, nil
}

// full reports whether there is no room for another frame that lies in several chunks.
func (l *XDPLink) full() bool { return len(l.room)-l.used < xdpMaxFrame }

// receive fills frames with packets: those that are left of the last super-packet, and those of a
// socket.
func (l *XDPLink) receive(s *xdpSocket, frames []RxFrame) (n int) {
	inChunk := false
	for n < len(frames) {
		if l.decoder.next(&frames[n]) {
			l.counters.addRx(&frames[n])
			n++
			continue
		}
		l.counters.Drops[DropUDPLength] += l.decoder.runts()
		if l.full() {
			break // until the frames there are not needed any more
		}
		frame, used := s.frame(l.room[l.used:])
		if frame == nil {
			break
		}
		l.used += used
		inChunk = used == 0
		if reason, ok := l.decoder.load(frame); !ok {
			l.counters.Drops[reason]++
		}
	}
	if rest := l.decoder.rest; inChunk && len(rest) > 0 {
		k := copy(l.room[l.used:], rest)
		l.decoder.rest = l.room[l.used:][:k:k]
		l.used += k
	}
	return n
}
