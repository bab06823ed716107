package scenario

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"softroce/wire"
)

// How long a live bench waits.
const (
	livePatience = 3 * time.Second        // for what has to come: a guest under emulation is slow
	liveGrace    = 150 * time.Millisecond // for what should not come, after the program has answered
	liveTick     = 10 * time.Millisecond  // by which timers may be early: a host counts them in ticks, of which one has begun
	livePoll     = time.Millisecond       // between looks at what does not call
	liveResolve  = 3 * time.Second        // to find a neighbour
)

// A live bench is a NIC at the other end of a cable, and the verbs program on its host.
type live struct {
	cable *Cable
	block uint32
	began time.Duration // on the cable's clock
	nic   *remoteNIC
	tap   wire.FrameSink
	held  []wire.TxFrame // to be sent with the next

	mu    sync.Mutex
	inbox []caught
	come  chan struct{} // holds one if there is something in the inbox
}

// A caught frame was on the cable and has not been shown to the script.
type caught struct {
	ns    int64
	frame []byte
}

// Bench returns a bench for one scenario; tap sees the packets of its queue pairs. It is what Options wants.
func (c *Cable) Bench(tap wire.FrameSink) (Bench, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &live{cable: c, block: c.blocks % handBlocks, began: time.Since(c.start), tap: tap, come: make(chan struct{}, 1)}
	if c.benches[b.block] != nil {
		return nil, errors.New("too many scenarios at the same time")
	}
	c.benches[b.block] = b
	c.blocks++
	b.nic = &remoteNIC{peer: c.me, cable: c, regions: map[string]Region{}}
	return b, nil
}

// NIC implements Bench.
func (b *live) NIC(second bool) (NIC, error) {
	if second {
		return nil, ErrOneNIC
	}
	return b.nic, nil
}

// take is given a frame by the cable.
func (b *live) take(ns int64, frame []byte) {
	b.mu.Lock()
	b.inbox = append(b.inbox, caught{ns - int64(b.began), slices.Clone(frame)})
	b.mu.Unlock()
	select {
	case b.come <- struct{}{}:
	default:
	}
}

// show shows the script what was taken.
func (b *live) show() {
	b.mu.Lock()
	l := b.inbox
	b.inbox = nil
	b.mu.Unlock()
	for _, c := range l {
		b.tap.WriteFrame(c.ns, 0, c.frame)
	}
}

// Now implements Network.
func (b *live) Now() time.Duration { return time.Since(b.cable.start) - b.began }

// Peer implements Network.
func (b *live) Peer() netip.Addr { return b.cable.me }

// PeerQPN implements Network.
func (b *live) PeerQPN() uint32 { return firstHandQPN + b.block*handBlock }

// Slack implements Network.
func (b *live) Slack() (early, late time.Duration) { return liveTick, livePatience }

// Join implements Network.
func (b *live) Join(group netip.Addr) error {
	b.cable.link.Lock()
	defer b.cable.link.Unlock()
	return wire.Join(b.cable.wire, group)
}

// Fault implements Network.
func (b *live) Fault(string) error { return ErrNoFaults }

// Frames implements Network.
func (b *live) Frames() error { return ErrNoFrames }

// SendFrame implements Network.
func (b *live) SendFrame(wire.InjectAs, []byte) error { return ErrNoFrames }

// Path implements Network.
func (b *live) Path(to netip.Addr) (*wire.Path, error) { return b.cable.path(to) }

// Send implements Network.
func (b *live) Send(f *wire.TxFrame) error {
	b.hold(f)
	return b.release()
}

// A holder is a network where the time between two packets is not nothing, unless they are sent as one batch.
type holder interface {
	// hold keeps f until the next packet is sent, or time is to pass.
	hold(f *wire.TxFrame)
}

// hold implements holder.
func (b *live) hold(f *wire.TxFrame) {
	if n := len(b.held); n > 0 && *b.held[n-1].Path == *f.Path {
		f.Path = b.held[n-1].Path // a link may join packets of one path
	}
	b.held = append(b.held, *f)
}

// release sends what is held.
func (b *live) release() error {
	if len(b.held) == 0 {
		return nil
	}
	err := b.cable.send(b, b.held)
	b.held = b.held[:0]
	b.show()
	return err
}

// Settle implements Network. What should not come is waited for until the verbs program has answered a line,
// so that its host, which may stand still now and then, has had its turn, and then some more.
func (b *live) Settle(done func() bool) bool {
	if done != nil {
		return b.Run(b.Now()+livePatience, done)
	}
	b.nic.answers()
	return b.Run(b.Now()+liveGrace, nil)
}

// Run implements Network.
func (b *live) Run(until time.Duration, done func() bool) bool {
	if err := b.release(); err != nil {
		return false
	}
	for {
		b.show()
		if done != nil && done() {
			return true
		}
		left := until - b.Now()
		if left <= 0 {
			return false
		}
		if done != nil {
			left = min(left, livePoll)
		}
		t := time.NewTimer(left)
		select {
		case <-b.come:
		case <-t.C:
		}
		t.Stop()
	}
}

// A programmed bench is one whose verbs program a script can start.
type programmed interface{ Program(command []string) error }

// Program implements programmed.
func (b *live) Program(command []string) error {
	if b.nic.line != nil {
		return errors.New("the verbs program is at work already")
	}
	l, err := openProgram(command)
	if err != nil {
		return err
	}
	b.nic.cable = nil // nobody else's
	return b.nic.begin(l)
}

// Close implements Bench.
func (b *live) Close() error {
	b.cable.mu.Lock()
	delete(b.cable.benches, b.block)
	b.cable.mu.Unlock()
	return b.nic.close()
}
