package wire

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// An XDPMode is the way in which frames pass between an interface and the sockets of an XDPLink.
type XDPMode string

// Modes of an XDPLink, the fastest first.
const (
	XDPZeroCopy XDPMode = "zero-copy" // the interface reads and writes the link's packet memory
	XDPNative   XDPMode = "native"    // the driver runs the program; the kernel copies frames
	XDPGeneric  XDPMode = "generic"   // the kernel runs the program, for any interface
)

// An xdpPort is what an XDPLink, or those of all slices of a NIC, have on one interface. When its
// descriptors are closed, the kernel detaches the program.
type xdpPort struct {
	index   int
	mode    XDPMode
	filter  xdpFilter
	grown   bool      // has queues that are newer than the program
	queues  *ebpf.Map // sockets by queue and slice
	program *ebpf.Program
	link    link.Link // of the program and the interface

	sockets      []atomic.Pointer[[]*xdpSocket] // of each slice: see of
	users        atomic.Int32                   // slices
	room         int                            // queues that the interface can have
	programFlags uint32
	bindFlags    uint16
}

// xdpOneChunkMTU is the longest IP packet that is received in one chunk.
const xdpOneChunkMTU = xdpChunk - xdpHeadroom - ethernetLen - vlanTagLen

// maxMTU returns the length of the longest IP packet that the port sends and receives.
func (p *xdpPort) maxMTU() int {
	if p.bindFlags&unix.XDP_USE_SG == 0 {
		return xdpOneChunkMTU
	}
	return xdpSlot - ethernetLen - vlanTagLen
}

// openXDPPort attaches the program to an interface in state s, which has at most a number of
// receive queues, in the first of some modes that it offers, and opens a socket for each queue and
// slice. The calling thread must be in the interface's network namespace.
func openXDPPort(s *netdevState, queues, slices int, modes []XDPMode) (*xdpPort, error) {
	p := &xdpPort{index: s.index, filter: s.filter(), sockets: make([]atomic.Pointer[[]*xdpSocket], slices), room: queues, programFlags: unix.BPF_F_XDP_HAS_FRAGS}
	p.users.Store(int32(slices))
	if err := p.open(s, modes); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// of returns the sockets of a slice by queue, of which the first also sends; none after leave.
func (p *xdpPort) of(slice int) []*xdpSocket {
	if l := p.sockets[slice].Load(); l != nil {
		return *l
	}
	return nil
}

func (p *xdpPort) open(s *netdevState, modes []XDPMode) (err error) {
	p.queues, err = ebpf.NewMap(&ebpf.MapSpec{Name: "softroce", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(p.room * len(p.sockets))})
	switch {
	case errors.Is(err, unix.EINVAL): // an unknown type of map
		return noXDPSockets(unix.EINVAL)
	case err != nil:
		return bpfError("create an XSKMAP", err)
	}
	if p.program, err = p.load(&p.filter); errors.Is(err, unix.EINVAL) {
		p.programFlags = 0 // Linux before 5.18
		p.program, err = p.load(&p.filter)
	}
	if err != nil {
		return err
	}
	if err := p.attach(modes); err != nil {
		return err
	}
	if err := p.openQueues(s); err != nil {
		return err
	}
	if p.bindFlags&unix.XDP_ZEROCOPY != 0 {
		p.mode = XDPZeroCopy
	}
	return nil
}

// openQueues opens sockets for the queues in use that have none, for all slices that have not left.
func (p *xdpPort) openQueues(s *netdevState) error {
	chunks := xdpRxChunks
	for chunks > xdpMinChunks && chunks*p.room > xdpRxChunks {
		chunks /= 2
	}
	for q := len(p.of(0)); q < p.room; q++ {
		socket, err := p.openSocket(s, q, chunks)
		if errors.Is(err, unix.EINVAL) && q > 0 {
			break // a queue that is not in use
		}
		if err != nil {
			return fmt.Errorf("queue %d: %w", q, err)
		}
		if err := p.openSlices(q, socket); err != nil {
			return fmt.Errorf("queue %d: %w", q, err)
		}
	}
	return nil
}

// openSlices opens the sockets of the other slices of a queue, and adds all of them. If it fails,
// the queue has none.
func (p *xdpPort) openSlices(queue int, first *xdpSocket) (err error) {
	all := make([]*xdpSocket, len(p.sockets))
	all[0] = first
	for k := 1; k < len(all) && err == nil; k++ {
		if queue == 0 || p.of(k) != nil {
			all[k], err = first.openSlice(k, p.index, queue)
		}
	}
	for k := len(all) - 1; k >= 0; k-- { // the first slice last, which says how many queues there are
		switch {
		case all[k] == nil:
		case err == nil:
			err = p.add(k, queue, all[k])
		default:
			all[k].close()
		}
	}
	return err
}

// add adds the socket of a slice and a queue, or closes it.
func (p *xdpPort) add(slice, queue int, s *xdpSocket) error {
	if err := p.queues.Put(uint32(queue*len(p.sockets)+slice), uint32(s.fd)); err != nil {
		s.close()
		return bpfError("enter a socket into the XSKMAP", err)
	}
	sockets := append(slices.Clone(p.of(slice)), s)
	p.sockets[slice].Store(&sockets)
	return nil
}

// load loads the program for a filter.
func (p *xdpPort) load(f *xdpFilter) (*ebpf.Program, error) {
	spec := f.program(p.queues, len(p.sockets))
	spec.Flags = p.programFlags
	program, err := ebpf.NewProgram(spec)
	return program, bpfError("load the XDP program", err)
}

// attach attaches the program in the first of some modes that the interface offers.
func (p *xdpPort) attach(modes []XDPMode) (err error) {
	for _, p.mode = range modes {
		flags := link.XDPDriverMode
		if p.mode == XDPGeneric {
			flags = link.XDPGenericMode
		}
		p.link, err = link.AttachXDP(link.XDPOptions{Program: p.program, Interface: p.index, Flags: flags})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
			return fmt.Errorf("another XDP program is attached to the interface: %w", err)
		case errors.Is(err, unix.EPERM):
			return bpfError("attach the XDP program", err)
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) && p.mode != XDPGeneric {
		return fmt.Errorf("the interface's driver does not offer native XDP, or not with its present settings: %w", err)
	}
	return fmt.Errorf("attach the XDP program (links require Linux 5.9): %w", err)
}

// openSocket opens the socket of a queue, for the first slice. That of the first queue takes the
// best that interface and kernel offer; the others do as the first.
func (p *xdpPort) openSocket(s *netdevState, queue, chunks int) (socket *xdpSocket, err error) {
	tries := []uint16{p.bindFlags}
	if queue == 0 {
		tries = nil
		if p.mode != XDPGeneric {
			tries = append(tries, unix.XDP_ZEROCOPY|unix.XDP_USE_SG, unix.XDP_ZEROCOPY)
		}
		if p.mode != XDPZeroCopy {
			tries = append(tries, unix.XDP_COPY|unix.XDP_USE_SG, unix.XDP_COPY)
		}
	}
	for _, flags := range tries {
		if flags&unix.XDP_USE_SG == 0 && s.mtu > xdpOneChunkMTU {
			if flags&unix.XDP_ZEROCOPY != 0 {
				continue // of an interface that has refused XDP_USE_SG
			}
			err = fmt.Errorf("MTU %d is too large: this kernel or interface receives frames in one buffer (XDP_USE_SG requires Linux 6.6), which takes at most %d", s.mtu, xdpOneChunkMTU)
			continue
		}
		if socket, err = newXDPSocket(chunks, len(p.sockets), queue == 0); err != nil {
			return nil, err
		}
		if err = socket.bind(p.index, queue, flags); err == nil {
			p.bindFlags = flags
			return socket, nil
		}
		socket.close()
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENETDOWN) {
			return nil, err
		}
	}
	if p.mode == XDPZeroCopy {
		err = fmt.Errorf("zero-copy is not offered: %w", err)
	}
	return nil, err
}

// bind binds the socket to a queue of an interface. The kernel lets go of a queue some time after
// its last socket was closed.
func (s *xdpSocket) bind(index, queue int, flags uint16) error {
	for try := 0; ; try++ {
		err := unix.Bind(s.fd, &unix.SockaddrXDP{Flags: flags | unix.XDP_USE_NEED_WAKEUP, Ifindex: uint32(index), QueueID: uint32(queue)})
		switch {
		case err != unix.EBUSY:
			return os.NewSyscallError("bind an AF_XDP socket", err)
		case try == bindTries:
			return fmt.Errorf("another program has an AF_XDP socket on the queue: %w", err)
		}
		time.Sleep(bindPause)
	}
}

// bindTries and bindPause are how often and how long bind waits for a queue.
const (
	bindTries = 100
	bindPause = 10 * time.Millisecond
)

// update replaces the program if the interface's addresses or VLANs have changed, or if it has new
// queues: a veth interface runs the program in them from then on.
func (p *xdpPort) update(s *netdevState) error {
	f := s.filter()
	if f.equal(&p.filter) && !p.grown {
		return nil
	}
	return p.replaceProgram(f)
}

// replaceProgram replaces the program by that for a filter.
func (p *xdpPort) replaceProgram(f xdpFilter) error {
	program, err := p.load(&f)
	if err != nil {
		return err
	}
	if err := p.link.Update(program); err != nil {
		program.Close()
		return bpfError("replace the XDP program", err)
	}
	p.program.Close()
	p.program, p.filter, p.grown = program, f, false
	return nil
}

// close closes all descriptors. The kernel detaches the program.
func (p *xdpPort) close() {
	for k := range p.sockets {
		p.leave(k)
	}
}

// leave closes the sockets of a slice. With those of the last one, the kernel detaches the program.
func (p *xdpPort) leave(slice int) {
	last := p.users.Add(-1) == 0
	if last && p.link != nil {
		p.link.Close()
	}
	for _, s := range p.of(slice) {
		s.close()
	}
	p.sockets[slice].Store(nil)
	if last {
		p.program.Close()
		p.queues.Close()
	}
}

// bpfError returns the error of a BPF operation, with what it lacks. The verifier's log is not part
// of it.
func bpfError(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: requires CAP_BPF and CAP_NET_ADMIN, and bpf in the SystemCallFilter= of a service (the packet link requires CAP_NET_RAW only): %w", what, unix.EPERM)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%s: the kernel has no system call bpf (CONFIG_BPF_SYSCALL): %w", what, unix.ENOSYS)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// noXDPSockets returns the error of a kernel, or of a service, without AF_XDP sockets.
func noXDPSockets(err error) error {
	return fmt.Errorf("requires AF_XDP sockets: CONFIG_XDP_SOCKETS and Linux 5.9, and AF_XDP in the RestrictAddressFamilies= of a service: %w", err)
}
