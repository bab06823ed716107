package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"softroce/wire"
)

// How long a live bench waits.
const (
	livePatience = 2 * time.Second        // for what has to come: a guest under emulation is slow
	liveGrace    = 30 * time.Millisecond  // for what should not come
	liveEarly    = 2 * time.Millisecond   // a packet is on its way for some time before its timer is ours
	livePoll     = 200 * time.Microsecond // between looks at a program that does not call
	liveResolve  = 3 * time.Second        // to find a neighbour
)

// A live bench is a NIC at the other end of a real link, and the verbs program on its host.
type live struct {
	link  wire.Link
	iface wire.Interface
	me    netip.Addr
	start time.Time
	nic   *remoteNIC
	paths map[netip.Addr]*wire.Path
}

// NewLive returns a Bench whose NIC under test is at the other end of a link, as seen from iface. It owns
// the link. program says where the verbs program on that NIC's host is, see docs/scenarios.md; a
// script may start it itself. tap sees the packets of the link.
func NewLive(link wire.Link, iface wire.Interface, program []string, tap wire.FrameSink) (Bench, error) {
	b := &live{iface: iface, start: time.Now(), paths: map[netip.Addr]*wire.Path{}}
	for _, a := range iface.Addresses() {
		if b.me = a.Addr(); b.me.Is4() {
			break
		}
	}
	if !b.me.IsValid() {
		link.Close()
		return nil, fmt.Errorf("%s has no address", iface.Name())
	}
	b.link = wire.NewCapture(link, tap, wire.CaptureOptions{MAC: iface.MAC, Wall: func(now int64) int64 { return now - 1 }})
	b.nic = &remoteNIC{bench: b, command: program, regions: map[string]Region{}}
	return b, nil
}

// NIC implements Bench.
func (b *live) NIC(second bool) (NIC, error) {
	if second {
		return nil, ErrOneNIC
	}
	return b.nic, nil
}

// Now implements Network.
func (b *live) Now() time.Duration { return time.Since(b.start) }

// now is the time as the link has it.
func (b *live) now() int64 { return int64(b.Now()) + 1 }

// Peer implements Network.
func (b *live) Peer() netip.Addr { return b.me }

// Slack implements Network.
func (b *live) Slack() (early, late time.Duration) { return liveEarly, livePatience }

// Fault implements Network.
func (b *live) Fault(string) error { return ErrNoFaults }

// Path implements Network.
func (b *live) Path(to netip.Addr) (*wire.Path, error) {
	if p := b.paths[to]; p != nil {
		q := *p
		return &q, nil
	}
	p := &wire.Path{Src: b.me, Dst: to, HopLimit: 64}
	ctx, cancel := context.WithTimeout(context.Background(), liveResolve)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.iface.Resolve(ctx, p) }()
	for { // a link that answers for its addresses itself has to be received from meanwhile
		select {
		case err := <-done:
			if err != nil {
				return nil, err
			}
			b.paths[to] = p
			q := *p
			return &q, nil
		default:
			b.receive()
			b.pause(livePoll)
		}
	}
}

// Send implements Network.
func (b *live) Send(f *wire.TxFrame) error {
	for {
		n, err := b.link.Send(b.now(), []wire.TxFrame{*f})
		if n == 1 || err != nil {
			return err
		}
		b.pause(livePoll)
	}
}

// Settle implements Network.
func (b *live) Settle(done func() bool) bool {
	wait := livePatience
	if done == nil {
		wait = liveGrace
	}
	return b.Run(b.Now()+wait, done)
}

// Run implements Network.
func (b *live) Run(until time.Duration, done func() bool) bool {
	for {
		b.receive()
		if done != nil && done() {
			return true
		}
		left := until - b.Now()
		if left <= 0 {
			return false
		}
		b.pause(min(left, livePoll))
	}
}

// receive takes what has come; the tap sees it.
func (b *live) receive() {
	var batch [32]wire.RxFrame
	for {
		if n, err := b.link.Receive(b.now(), batch[:]); n == 0 || err != nil {
			return
		}
	}
}

// pause waits for packets, or at the longest so long.
func (b *live) pause(d time.Duration) {
	fd := b.link.FD()
	if fd < 0 {
		time.Sleep(d)
		return
	}
	ts := unix.NsecToTimespec(int64(d))
	unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &ts, nil)
}

// A programmed bench is one whose verbs program a script can start.
type programmed interface{ Program(command []string) error }

// Program implements programmed.
func (b *live) Program(command []string) error {
	if b.nic.line != nil {
		return errors.New("the verbs program is at work already")
	}
	b.nic.command = command
	return b.nic.start()
}

// Close implements Bench.
func (b *live) Close() error { return errors.Join(b.nic.close(), b.link.Close()) }
