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

// A Cable is a link whose other end leads to a live NIC. Any number of scenarios can be played over it at
// the same time: each has queue pair numbers of its own for what the script plays, and sees only the
// packets of these.
type LiveLink struct {
	iface   wire.Interface
	addr    netip.Addr
	program []string
	epoch   time.Time
	closer  func() error // of the interface
	wake    [2]int       // a pipe that ends the receiver
	done    chan struct{}

	linkMu sync.Mutex // the link is used by one at a time
	link   wire.Link
	sender *liveTestbed // whose frame is being sent

	mu        sync.Mutex
	testbeds  map[uint32]*liveTestbed // by the number of its queue pairs' block
	nextBlock uint32                  // handed out
	paths     map[netip.Addr]*wire.Path
	idle      []*programConn // verbs programs that have nothing to do
}

// Numbers of the queue pairs that scripts play come in blocks, one for each scenario. They begin where NICs do not number theirs,
// and are used again after many scenarios only, so that a packet that comes late finds nobody.
const (
	firstPeerQPN   = 0x800001
	QPNsPerTestbed = 64
	testbeds       = 0x100000 / QPNsPerTestbed
)

// NewCable returns a cable over a link, as seen from iface. It owns the link. program says where the verbs
// program on the NIC's host is, see docs/reference/scenario-language.md; a script may start one itself.
func NewLiveLink(link wire.Link, iface wire.Interface, program []string) (*LiveLink, error) {
	c := &LiveLink{iface: iface, program: program, epoch: time.Now(), testbeds: map[uint32]*liveTestbed{}, paths: map[netip.Addr]*wire.Path{},
		done: make(chan struct{})}
	for _, a := range iface.Addresses() {
		if c.addr = a.Addr(); c.addr.Is4() {
			break
		}
	}
	err := unix.Pipe2(c.wake[:], unix.O_CLOEXEC)
	if !c.addr.IsValid() {
		err = errors.Join(err, fmt.Errorf("%s has no address", iface.Name()))
	}
	if err != nil {
		link.Close()
		return nil, err
	}
	c.link = wire.NewCaptureLink(link, c, wire.CaptureOptions{MAC: iface.MAC, Wall: func(now int64) int64 { return now - 1 }})
	go c.receive()
	return c, nil
}

// UseIPv6 has the script speak from the interface's IPv6 address, one that is not link-local. It is called before the first scenario.
func (c *LiveLink) UseIPv6() error {
	for _, a := range c.iface.Addresses() {
		if a := a.Addr(); a.Is6() && !a.IsLinkLocalUnicast() {
			c.addr = a
			return nil
		}
	}
	return fmt.Errorf("%s has no IPv6 address but link-local ones", c.iface.Name())
}

// now is the time as the link has it.
func (c *LiveLink) now() int64 { return int64(time.Since(c.epoch)) + 1 }

// receive hands what comes to the scenarios until the cable is closed.
func (c *LiveLink) receive() {
	defer close(c.done)
	fds := []unix.PollFd{{Fd: int32(c.link.FD()), Events: unix.POLLIN}, {Fd: int32(c.wake[0]), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			return
		}
		if fds[1].Revents != 0 {
			return
		}
		var batch [32]wire.RxFrame
		c.linkMu.Lock()
		for {
			if n, err := c.link.Receive(c.now(), batch[:]); n == 0 || err != nil {
				break // the capture has seen them: WriteFrame
			}
		}
		c.linkMu.Unlock()
	}
}

// WriteFrame implements wire.FrameSink: each frame on the cable goes to the scenario whose queue pair it
// is for, or from. What is for none of them may still be from one of theirs.
func (c *LiveLink) WriteFrame(ns int64, _ int, b []byte) error {
	if c.sender != nil {
		c.sender.receive(ns, b)
		return nil
	}
	var f packet.Frame
	if packet.ParseFrame(b, &f) != nil {
		return nil
	}
	destQP := binary.BigEndian.Uint32(f.Transport[4:]) & 0xffffff // of the BTH
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.testbeds[(destQP-firstPeerQPN)/QPNsPerTestbed]; l != nil && destQP >= firstPeerQPN {
		l.receive(ns, b)
		return nil
	}
	for _, l := range c.testbeds { // the stage knows the sender
		l.receive(ns, b)
	}
	return nil
}

// send puts frames of a scenario on the cable, without a gap if it takes them.
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

// path finds the way to an address.
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

// begin reaches a verbs program: one that is idle, or one more.
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

// finish takes back a verbs program for the next scenario, if it can give up all that it holds.
func (c *LiveLink) releaseProgram(l *programConn) error {
	if _, err := l.request("reset"); err != nil {
		return errors.Join(err, l.close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, l)
	return nil
}

// Close ends the cable; the scenarios on it have to have ended.
func (c *LiveLink) Close() error {
	unix.Close(c.wake[1]) // the other end becomes readable
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
