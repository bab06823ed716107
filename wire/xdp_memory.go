package wire

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/sharelock"
)

// An xdpMemory is the packet memory of a queue of an interface: chunks to receive in, then slots to
// send from. Two rings pass them to the kernel and back: the fill ring holds chunks that the kernel
// may write to, the completion ring pieces of frames that it no longer needs.
//
// Of a NIC that several engines drive, the sockets of all slices on the queue share the memory. The
// kernel takes any chunk for any of them, and each has slots of its own. The rings have a lock
// then, which is taken once for a batch.
type xdpMemory struct {
	mu         sharelock.Mutex
	fill       xdpRing[uint64]
	completion xdpRing[uint64]
	rxChunks   int
	slots      int        // of each socket
	sent       [][]uint64 // by socket: pieces that another socket has found in the completion ring
	open       int        // sockets
}

// newXDPMemory returns the memory of a queue with a number of sockets.
func newXDPMemory(rxChunks, slots, sockets int) *xdpMemory {
	m := &xdpMemory{rxChunks: rxChunks, slots: slots}
	for range sockets {
		m.sent = append(m.sent, make([]uint64, 0, slots*xdpPiecesOfSlot))
	}
	if sockets > 1 {
		m.mu.Share()
	}
	return m
}

// size returns the size of the memory in bytes.
func (m *xdpMemory) size() int { return m.slotsOf(len(m.sent)) }

// slotsOf returns where the slots of a socket begin.
func (m *xdpMemory) slotsOf(socket int) int {
	return m.rxChunks*xdpChunk + socket*m.slots*xdpSlot
}

// completions returns the size of the completion ring.
func (m *xdpMemory) completions() int {
	return ceilPower(max(len(m.sent)*m.slots, xdpSlots) * xdpPiecesOfSlot)
}

// register gives the memory to the kernel, with the queue's first socket.
func (m *xdpMemory) register(s *xdpSocket) error {
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&s.umem[0]))), Len: uint64(len(s.umem)), Size: xdpChunk}
	switch e := s.option(unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg)); e {
	case 0:
	case unix.ENOBUFS:
		return fmt.Errorf("%d MiB of packet memory exceed RLIMIT_MEMLOCK: requires CAP_IPC_LOCK or a higher limit: %w", len(s.umem)>>20, e)
	default:
		return fmt.Errorf("register packet memory: %w", e)
	}
	if err := s.makeRing(unix.XDP_UMEM_FILL_RING, m.rxChunks); err != nil {
		return err
	}
	return s.makeRing(unix.XDP_UMEM_COMPLETION_RING, m.completions())
}

// mapRings maps the rings that register has made, and fills the fill ring.
func (m *xdpMemory) mapRings(s *xdpSocket, o *unix.XDPMmapOffsets) (err error) {
	if m.fill, err = mapRing[uint64](s.fd, unix.XDP_UMEM_PGOFF_FILL_RING, o.Fr, m.rxChunks, true); err != nil {
		return err
	}
	if m.completion, err = mapRing[uint64](s.fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, o.Cr, m.completions(), false); err != nil {
		return err
	}
	for i := range m.rxChunks {
		*m.fill.entry(i) = uint64(i * xdpChunk)
	}
	m.fill.publish(m.rxChunks)
	return nil
}

// leave unmaps the rings with the last socket.
func (m *xdpMemory) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open--; m.open == 0 {
		m.fill.unmap()
		m.completion.unmap()
	}
}

// reuse gives chunks back to the kernel and returns how many.
func (m *xdpMemory) reuse(chunks []uint64) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(len(chunks), m.fill.ready())
	for i, a := range chunks[:n] {
		*m.fill.entry(i) = a
	}
	m.fill.publish(n)
	return n
}

// reap frees the slots of a socket that the kernel has sent, and sets what it has sent of others
// aside.
func (m *xdpMemory) reap(s *xdpSocket) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.sent[s.number] {
		s.finish(a)
	}
	m.sent[s.number] = m.sent[s.number][:0]
	n := m.completion.ready()
	for i := range n {
		a := *m.completion.entry(i)
		switch of := m.socketOf(a); {
		case of == s.number:
			s.finish(a)
		case len(m.sent[of]) < cap(m.sent[of]):
			m.sent[of] = append(m.sent[of], a)
		}
	}
	m.completion.publish(n)
}

// socketOf returns the socket that has a slot, or any of them for an address that is not in one.
func (m *xdpMemory) socketOf(addr uint64) int {
	if len(m.sent) == 1 {
		return 0
	}
	return int((addr - uint64(m.slotsOf(0))) / uint64(m.slots*xdpSlot) % uint64(len(m.sent)))
}
