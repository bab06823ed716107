package testbed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"softroce/packet"
	"softroce/wire"
)

// A LiveLink is a link whose other end leads to a live NIC. Any number of scenarios can use it at
// the same time. Each has its own range of queue pair numbers for the queue pairs that the script
// plays, and sees only their packets.
type LiveLink struct {
	iface   wire.Interface
	addr    netip.Addr
	program []string
	roceV1  error // why it does not carry RoCE v1; nil if it does
	epoch   time.Time
	closer  func() error // closes the interface; may be nil
	wake    [2]int       // a pipe that wakes and stops the receiver
	done    chan struct{}

	linkMu sync.Mutex // serializes the use of link
	link   wire.Link
	sender *liveTestbed // the testbed that is sending

	mu        sync.Mutex
	testbeds  map[uint32]*liveTestbed // by block of queue pair numbers
	nextBlock uint32                  // the next block to assign
	paths     map[netip.Addr]*wire.Path
	idle      []*programConn // verbs programs that no testbed uses
}

// The queue pair numbers of scripts are assigned in blocks, one per testbed. They start above the
// numbers that NICs assign, and a block is reused only after many others, so that late packets
// match no testbed.
const (
	firstPeerQPN   = 0x800001
	QPNsPerTestbed = 64
	testbeds       = 0x100000 / QPNsPerTestbed
)

// NewLiveLink returns a LiveLink over link, whose local end is iface. It owns link. name is that of
// the link in errors. program is the verbs program on the NIC's host, see
// docs/reference/scenario-language.md; it may be nil if each script starts its own.
func NewLiveLink(name string, link wire.Link, iface wire.Interface, program []string) (*LiveLink, error) {
	c := &LiveLink{iface: iface, program: program, epoch: time.Now(), testbeds: map[uint32]*liveTestbed{}, paths: map[netip.Addr]*wire.Path{},
		done: make(chan struct{})}
	for _, a := range iface.Addresses() {
		if c.addr = a.Addr(); c.addr.Is4() {
			break
		}
	}
	if !link.Capabilities().RoCEv1 {
		c.roceV1 = fmt.Errorf("%w: the link %s does not carry it; packet, xdp and dgram links do", ErrNoRoCEv1, name)
	}
	err := unix.Pipe2(c.wake[:], unix.O_CLOEXEC)
	if !c.addr.IsValid() {
		err = errors.Join(err, fmt.Errorf("%s has no address", iface.Name()))
	}
	if err != nil {
		link.Close()
		return nil, err
	}
	// Without a Clock no frame has a time after it was sent, from which timers of the peer are
	// measured.
	c.link = wire.NewCaptureLink(link, c, wire.CaptureOptions{MAC: iface.MAC, Wall: func(now int64) int64 { return now - 1 }})
	go c.receive()
	return c, nil
}

// UseIPv6 makes scripts use the interface's IPv6 address, one that is not link-local. It must be
// called before the first scenario.
func (c *LiveLink) UseIPv6() error {
	for _, a := range c.iface.Addresses() {
		if a := a.Addr(); a.Is6() && !a.IsLinkLocalUnicast() {
			c.addr = a
			return nil
		}
	}
	return fmt.Errorf("%s has only link-local IPv6 addresses", c.iface.Name())
}

// now returns the time on the link's clock.
func (c *LiveLink) now() int64 { return int64(time.Since(c.epoch)) + 1 }

// relist is how long a receiver without frames waits, in milliseconds, until it asks the link for
// its descriptors again.
const relist = 100

// receive receives frames until the link is closed.
func (c *LiveLink) receive() {
	defer close(c.done)
	var fds []unix.PollFd
	for {
		fds = append(fds[:0], unix.PollFd{Fd: int32(c.wake[0]), Events: unix.POLLIN})
		c.linkMu.Lock()
		fds = c.link.AppendFDs(fds)
		c.linkMu.Unlock()
		if _, err := unix.Poll(fds, relist); err != nil && err != unix.EINTR {
			return
		}
		if fds[0].Revents != 0 {
			return
		}
		var batch [32]wire.RxFrame
		c.linkMu.Lock()
		for {
			if n, err := c.link.Receive(c.now(), batch[:]); n == 0 && err != wire.ErrUnread {
				break // the capture passes the frames to WriteFrame
			}
		}
		c.linkMu.Unlock()
	}
}

// WriteFrame implements wire.FrameSink. It passes each frame to the testbed that sent it or whose
// queue pair it is for. A frame that is for none of them goes to all, because it may come from a
// queue pair of one of them.
func (c *LiveLink) WriteFrame(ns int64, _ int, b []byte) error {
	if c.sender != nil {
		c.sender.receive(ns, b)
		return nil
	}
	var f packet.Frame
	if packet.ParseFrame(b, &f) != nil {
		return nil
	}
	destQP := binary.BigEndian.Uint32(f.Transport[4:]) & 0xffffff // a field of the BTH
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.testbeds[(destQP-firstPeerQPN)/QPNsPerTestbed]; l != nil && destQP >= firstPeerQPN {
		l.receive(ns, b)
		return nil
	}
	for _, l := range c.testbeds { // the script identifies the sender
		l.receive(ns, b)
	}
	return nil
}

// send sends frames of a testbed, back to back if the link accepts them.
func (c *LiveLink) send(from *liveTestbed, frames []wire.TxFrame) error {
	for {
		c.linkMu.Lock()
		c.sender = from
		n, err := c.link.Send(c.now(), frames)
		c.sender = nil
		c.linkMu.Unlock()
		if frames = frames[n:]; len(frames) == 0 || err != nil {
			return err
		}
		time.Sleep(livePoll)
	}
}

// path resolves an address.
func (c *LiveLink) path(to netip.Addr) (*wire.Path, error) {
	c.mu.Lock()
	known := c.paths[to]
	c.mu.Unlock()
	if known == nil {
		known = &wire.Path{Src: c.addr, Dst: to, HopLimit: 64}
		ctx, cancel := context.WithTimeout(context.Background(), liveResolve)
		defer cancel()
		if err := c.iface.Resolve(ctx, known); err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.paths[to] = known
		c.mu.Unlock()
	}
	p := *known
	return &p, nil
}

// acquireProgram returns an idle verbs program, or starts one.
func (c *LiveLink) acquireProgram() (l *programConn, err error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		l, c.idle = c.idle[n-1], c.idle[:n-1]
	}
	c.mu.Unlock()
	if l == nil {
		l, err = openProgram(c.program)
	}
	return l, err
}

// releaseProgram makes a verbs program available to the next scenario, if it can destroy all its
// objects.
func (c *LiveLink) releaseProgram(l *programConn) error {
	if _, err := l.request("reset"); err != nil {
		return errors.Join(err, l.close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, l)
	return nil
}

// Close closes the link. All testbeds on it must be closed before.
func (c *LiveLink) Close() error {
	unix.Close(c.wake[1]) // makes the other end readable
	<-c.done
	unix.Close(c.wake[0])
	c.linkMu.Lock()
	defer c.linkMu.Unlock()
	err := c.link.Close()
	for _, l := range c.idle {
		err = errors.Join(err, l.close())
	}
	if c.closer != nil {
		err = errors.Join(err, c.closer())
	}
	return err
}
