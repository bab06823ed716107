package wire

import (
	"fmt"
	"math/bits"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// xdpChunk is the size of a piece of packet memory: the largest that Linux allows, a page.
	xdpChunk = 4096

	// xdpHeadroom is how much of a chunk Linux leaves free in front of a received frame.
	xdpHeadroom = unix.XDP_PACKET_HEADROOM

	// xdpSlot is the room for a frame to send. The longest RoCEv2 packet, with 4096 bytes of
	// payload, needs two chunks.
	xdpSlot         = xdpPiecesOfSlot * xdpChunk
	xdpPiecesOfSlot = 2

	// Numbers of frames that wait: to be sent, and at most to be received, at all queues together.
	// A queue has at least xdpMinChunks, and each slice that sends xdpMinSlots.
	xdpSlots     = 512
	xdpMinSlots  = 128
	xdpRxChunks  = 8192
	xdpMinChunks = 1024

	// xdpMaxPieces is more than the pieces of any frame: those of 64 KiB.
	xdpMaxPieces = 32
	xdpMaxFrame  = xdpMaxPieces * xdpChunk

	// xdpTxBudget is how many pieces one system call sends, of a socket for which the kernel copies
	// frames, before Linux 6.18. It then returns EAGAIN.
	xdpTxBudget = 32

	// Frames begin at different offsets in their slots, so that their headers do not compete for
	// one set of the processor's cache.
	xdpShift  = 64
	xdpShifts = 32
)

// An xdpSocket is an AF_XDP socket, which serves one queue of an interface, for one slice of a NIC.
//
// Receive: the kernel takes chunks from the fill ring, and the receive ring holds those that it has
// written. Send: the send ring holds pieces of frames, until they are in the completion ring.
type xdpSocket struct {
	*xdpMemory
	number int // among the sockets of the memory
	fd     int
	umem   []byte // the memory, at addresses of the socket's own
	budget int    // the most pieces that one system call sends

	rx       xdpRing[unix.XDPDesc]
	held     []uint64 // chunks whose bytes Receive has returned, and which the fill ring lacks
	overruns uint64   // as read last
	tx       xdpRing[unix.XDPDesc]
	free     []int32 // slots
	inFlight []uint8 // pieces of each slot that are not completed
}

// newXDPSocket opens a socket with room for a number of received chunks, a power of two. It sends
// only if sends is set. If the NIC has several slices, openSlice opens the sockets of the others.
func newXDPSocket(rxChunks, slices int, sends bool) (*xdpSocket, error) {
	slots := 0
	if sends {
		slots = max(xdpSlots/ceilPower(slices), xdpMinSlots)
	}
	m := newXDPMemory(rxChunks, slots, slices)
	// Shared, so that it can be mapped again.
	memory, err := unix.MmapPtr(-1, 0, nil, uintptr(m.size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("map packet memory", err)
	}
	return m.newSocket(0, unsafe.Slice((*byte)(memory), m.size()))
}

// openSlice opens the socket of another slice on the queue of s, which is bound.
func (s *xdpSocket) openSlice(number, index, queue int) (*xdpSocket, error) {
	umem, err := s.mapAgain()
	if err != nil {
		return nil, err
	}
	o, err := s.newSocket(number, umem)
	if err != nil {
		return nil, err
	}
	// The other flags are those of s.
	if err := unix.Bind(o.fd, &unix.SockaddrXDP{Flags: unix.XDP_SHARED_UMEM, Ifindex: uint32(index), QueueID: uint32(queue),
		SharedUmemFD: uint32(s.fd)}); err != nil {
		o.close()
		return nil, os.NewSyscallError("bind an AF_XDP socket that shares packet memory", err)
	}
	return o, nil
}

// newSocket opens a socket. It takes umem, which is a mapping of the memory.
func (m *xdpMemory) newSocket(number int, umem []byte) (s *xdpSocket, err error) {
	s = &xdpSocket{xdpMemory: m, number: number, fd: -1, umem: umem, budget: xdpTxBudget}
	m.open++
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for i := range m.slots {
		s.free = append(s.free, int32(i))
	}
	s.inFlight = make([]uint8, m.slots)
	s.fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch err {
	case nil:
	case unix.EPERM:
		return s, fmt.Errorf("an AF_XDP socket requires CAP_NET_RAW: %w", err)
	case unix.EAFNOSUPPORT:
		return s, noXDPSockets(err)
	default:
		return s, os.NewSyscallError("socket", err)
	}
	if number == 0 {
		if err := m.register(s); err != nil {
			return s, err
		}
	}
	return s, s.makeRings()
}

// makeRings makes and maps the rings.
func (s *xdpSocket) makeRings() error {
	// No slice can take all chunks.
	received := s.rxChunks / ceilPower(len(s.sent))
	s.held = make([]uint64, 0, received)
	if err := s.makeRing(unix.XDP_RX_RING, received); err != nil {
		return err
	}
	pieces := s.slots * xdpPiecesOfSlot
	if pieces > 0 {
		if err := s.makeRing(unix.XDP_TX_RING, pieces); err != nil {
			return err
		}
	}
	var o unix.XDPMmapOffsets
	if e := s.query(unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&o), unsafe.Sizeof(o)); e != 0 {
		return os.NewSyscallError("getsockopt XDP_MMAP_OFFSETS", e)
	}
	if s.number == 0 {
		if err := s.mapRings(s, &o); err != nil {
			return err
		}
	}
	var err error
	if s.rx, err = mapRing[unix.XDPDesc](s.fd, unix.XDP_PGOFF_RX_RING, o.Rx, received, false); err != nil {
		return err
	}
	if pieces > 0 {
		s.tx, err = mapRing[unix.XDPDesc](s.fd, unix.XDP_PGOFF_TX_RING, o.Tx, pieces, true)
		budget := uint32(pieces)
		if s.option(unix.XDP_MAX_TX_SKB_BUDGET, unsafe.Pointer(&budget), unsafe.Sizeof(budget)) == 0 {
			s.budget = pieces
		}
		unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, xdpSendBuffer)
	}
	return err
}

// makeRing makes one ring.
func (s *xdpSocket) makeRing(option, entries int) error {
	n := uint32(entries)
	if e := s.option(option, unsafe.Pointer(&n), unsafe.Sizeof(n)); e != 0 {
		return fmt.Errorf("ring %d of the AF_XDP socket: %w", option, e)
	}
	return nil
}

func (s *xdpSocket) option(name int, p unsafe.Pointer, n uintptr) unix.Errno {
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), unix.SOL_XDP, uintptr(name), uintptr(p), n, 0)
	return e
}

func (s *xdpSocket) query(name int, p unsafe.Pointer, n uintptr) unix.Errno {
	length := uint32(n)
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_XDP, uintptr(name), uintptr(p), uintptr(unsafe.Pointer(&length)), 0)
	return e
}

// close closes the socket and releases its memory.
func (s *xdpSocket) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
	}
	s.leave()
	s.rx.unmap()
	s.tx.unmap()
	if s.umem != nil {
		unix.MunmapPtr(unsafe.Pointer(&s.umem[0]), uintptr(len(s.umem)))
	}
}

// overrun returns how many frames the kernel has dropped since the last call because there was no
// room.
func (s *xdpSocket) overrun() uint64 {
	var v unix.XDPStatistics
	if s.query(unix.XDP_STATISTICS, unsafe.Pointer(&v), unsafe.Sizeof(v)) != 0 {
		return 0
	}
	before := s.overruns
	s.overruns = v.Rx_dropped + v.Rx_ring_full
	return s.overruns - before
}

// recycle gives the chunks that Receive has returned back to the kernel.
func (s *xdpSocket) recycle() {
	if len(s.held) > 0 {
		n := s.reuse(s.held)
		s.held = s.held[:copy(s.held, s.held[n:])]
	}
	if s.fill.needsWakeup() {
		unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	}
}

// frame returns the next frame that the kernel has written, nil if there is none. A frame in
// several chunks is put together in room, which has xdpMaxFrame bytes, and used says how many it
// takes. The bytes are valid until recycle.
func (s *xdpSocket) frame(room []byte) (frame []byte, used int) {
	ready := s.rx.ready()
	if ready == 0 || s.holdsAll() {
		return nil, 0
	}
	d := *s.rx.entry(0)
	if d.Options&unix.XDP_PKT_CONTD == 0 {
		s.held = append(s.held, s.chunk(d))
		s.rx.publish(1)
		return s.piece(d), 0
	}
	pieces := 1
	for d.Options&unix.XDP_PKT_CONTD != 0 && pieces < xdpMaxPieces {
		if pieces == ready {
			return nil, 0 // the rest is on its way
		}
		d = *s.rx.entry(pieces)
		pieces++
	}
	for i := range pieces {
		d = *s.rx.entry(i)
		used += copy(room[used:], s.piece(d))
		s.held = append(s.held, s.chunk(d))
	}
	s.rx.publish(pieces)
	return room[:used:used], used
}

// holdsAll reports whether no frame is returned before chunks were recycled.
func (s *xdpSocket) holdsAll() bool { return len(s.held) >= len(s.rx.entries) }

// chunk returns the chunk of a received piece, one of those for receiving.
func (s *xdpSocket) chunk(d unix.XDPDesc) uint64 {
	return d.Addr / xdpChunk % uint64(s.rxChunks) * xdpChunk
}

// piece returns the bytes of a received piece, all of them in its chunk.
func (s *xdpSocket) piece(d unix.XDPDesc) []byte {
	c, at := s.chunk(d), d.Addr%xdpChunk
	end := min(at+uint64(d.Len), xdpChunk)
	return s.umem[c+at : c+end : c+end]
}

// mapAgain maps the packet memory at other addresses, too.
func (s *xdpSocket) mapAgain() ([]byte, error) {
	at, err := unix.MremapPtr(unsafe.Pointer(&s.umem[0]), 0, nil, uintptr(len(s.umem)), unix.MREMAP_MAYMOVE)
	if err != nil {
		return nil, os.NewSyscallError("mremap", err)
	}
	return unsafe.Slice((*byte)(at), len(s.umem)), nil
}

// keep gives the bytes of the chunks that Receive has returned to the thread that still reads them:
// it moves the packet memory to other addresses and leaves a copy. The copy is never released.
func (s *xdpSocket) keep() error {
	moved, err := s.mapAgain()
	if err != nil {
		return err
	}
	left, err := unix.MmapPtr(-1, 0, nil, uintptr(len(s.umem)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	for _, c := range s.held {
		copy(unsafe.Slice((*byte)(unsafe.Add(left, c)), xdpChunk), s.umem[c:c+xdpChunk])
	}
	size := uintptr(len(s.umem))
	if _, err := unix.MremapPtr(left, size, unsafe.Pointer(&s.umem[0]), size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED); err != nil {
		return os.NewSyscallError("mremap", err)
	}
	s.umem = moved
	return nil
}

// finish notes that the kernel does not need a piece any more.
func (s *xdpSocket) finish(addr uint64) {
	slot := (addr - uint64(s.slotsOf(s.number))) / xdpSlot
	if slot >= uint64(len(s.inFlight)) || s.inFlight[slot] == 0 {
		return
	}
	if s.inFlight[slot]--; s.inFlight[slot] == 0 {
		s.free = append(s.free, int32(slot))
	}
}

// hasSlot reports whether there is room for a frame.
func (s *xdpSocket) hasSlot() bool {
	if len(s.free) == 0 {
		s.reap(s)
	}
	return len(s.free) > 0 && s.tx.ready() >= xdpPiecesOfSlot
}

// ceilPower returns the least power of two that is n or more.
func ceilPower(n int) int { return 1 << bits.Len(uint(n-1)) }

// xdpPieces returns in how many pieces a frame of n bytes is sent.
func xdpPieces(n int) int { return (n + xdpChunk - 1) / xdpChunk }

// push queues a frame of n bytes and returns the room for them. hasSlot must have returned true.
// The kernel sees the frame from the next kick on: with zero-copy, the driver may look at the ring
// at any time, and would send bytes that are not written yet.
func (s *xdpSocket) push(n int) []byte {
	last := len(s.free) - 1
	slot := s.free[last]
	s.free = s.free[:last]
	addr, pieces := s.slotsOf(s.number)+int(slot)*xdpSlot, xdpPieces(n)
	if pieces == 1 {
		addr += min(int(slot)%xdpShifts*xdpShift, xdpChunk-n)
	}
	s.inFlight[slot] = uint8(pieces)
	for i := range pieces {
		d := s.tx.entry(i)
		*d = unix.XDPDesc{Addr: uint64(addr + i*xdpChunk), Len: uint32(min(n-i*xdpChunk, xdpChunk))}
		if i < pieces-1 {
			d.Options = unix.XDP_PKT_CONTD
		}
	}
	s.tx.add(pieces)
	return s.umem[addr : addr+n : addr+n]
}

// waits reports whether frames are queued that the kernel sends in a system call only.
func (s *xdpSocket) waits() bool { return s.tx.pending() > 0 && s.tx.needsWakeup() }

// kick makes the kernel send what is queued, in a raw call like those of mmsg.go. What it has no
// room for stays queued, and everything while the interface is down.
func (s *xdpSocket) kick() {
	s.tx.publish(0)
	for tries := s.tx.pending()/s.budget + 1; tries > 0 && s.waits(); tries-- {
		_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		if e != unix.EAGAIN && e != unix.EINTR {
			return
		}
	}
}
