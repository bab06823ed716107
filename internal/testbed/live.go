package testbed

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"softroce/wire"
)

// Timeouts and intervals of a live testbed.
const (
	liveTimeout   = 3 * time.Second        // for what must arrive: an emulated guest is slow
	liveQuietTime = 150 * time.Millisecond // for what must not arrive, after the program has replied
	liveTick      = 10 * time.Millisecond  // how early timers may fire: a host counts ticks, the first of which is partial
	livePoll      = time.Millisecond       // polling interval
	liveResolve   = 3 * time.Second        // for neighbor discovery
)

// A liveTestbed is a NIC at the other end of a link, and the verbs program on its host.
type liveTestbed struct {
	link  *LiveLink
	block uint32
	start time.Duration // on the link's clock
	nic   *remoteNIC
	tap   wire.FrameSink
	batch []wire.TxFrame // to be sent together with the next packet

	mu      sync.Mutex
	inbox   []receivedFrame
	arrived chan struct{} // holds a token if the inbox is not empty
}

// A receivedFrame was received and not yet delivered to the script.
type receivedFrame struct {
	ns    int64
	frame []byte
}

// NewTestbed returns a testbed for one scenario. tap receives the packets of its queue pairs.
func (c *LiveLink) NewTestbed(tap wire.FrameSink) (Testbed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &liveTestbed{link: c, block: c.nextBlock % testbeds, start: time.Since(c.epoch), tap: tap, arrived: make(chan struct{}, 1)}
	if c.testbeds[b.block] != nil {
		return nil, errors.New("too many concurrent scenarios on one link")
	}
	c.testbeds[b.block] = b
	c.nextBlock++
	b.nic = &remoteNIC{peer: c.addr, link: c, roceV1: c.roceV1, regions: map[string]Region{}}
	return b, nil
}

// NIC implements Testbed.
func (b *liveTestbed) NIC(second bool) (NIC, error) {
	if second {
		return nil, ErrOneNIC
	}
	return b.nic, nil
}

// receive puts a frame from the link into the inbox.
func (b *liveTestbed) receive(ns int64, frame []byte) {
	b.mu.Lock()
	b.inbox = append(b.inbox, receivedFrame{ns - int64(b.start), slices.Clone(frame)})
	b.mu.Unlock()
	select {
	case b.arrived <- struct{}{}:
	default:
	}
}

// deliver passes the frames in the inbox to the script.
func (b *liveTestbed) deliver() {
	b.mu.Lock()
	l := b.inbox
	b.inbox = nil
	b.mu.Unlock()
	for _, c := range l {
		b.tap.WriteFrame(c.ns, 0, c.frame)
	}
}

// Now implements Network.
func (b *liveTestbed) Now() time.Duration { return time.Since(b.link.epoch) - b.start }

// Peer implements Network.
func (b *liveTestbed) Peer() netip.Addr { return b.link.addr }

// PeerQPN implements Network.
func (b *liveTestbed) PeerQPN() uint32 { return firstPeerQPN + b.block*QPNsPerTestbed }

// Slack implements Network.
func (b *liveTestbed) Slack() (early, late time.Duration) { return liveTick, liveTimeout }

// Join implements Network.
func (b *liveTestbed) Join(group netip.Addr) error {
	b.link.linkMu.Lock()
	defer b.link.linkMu.Unlock()
	return wire.Join(b.link.link, group)
}

// Fault implements Network.
func (b *liveTestbed) Fault(string) error { return ErrNoFaults }

// Frames implements Network.
func (b *liveTestbed) Frames() error { return ErrNoFrames }

// SendFrame implements Network.
func (b *liveTestbed) SendFrame(wire.InjectAs, []byte) error { return ErrNoFrames }

// Path implements Network.
func (b *liveTestbed) Path(to netip.Addr) (*wire.Path, error) { return b.link.path(to) }

// Send implements Network.
func (b *liveTestbed) Send(f *wire.TxFrame) error {
	b.Hold(f)
	return b.flush()
}

// A Batcher is a network on which two packets are back to back only if they are sent in one batch.
type Batcher interface {
	// Hold queues f until the next packet is sent or time passes.
	Hold(f *wire.TxFrame)
}

// Hold implements Batcher.
func (b *liveTestbed) Hold(f *wire.TxFrame) {
	if n := len(b.batch); n > 0 && *b.batch[n-1].Path == *f.Path {
		f.Path = b.batch[n-1].Path // a link may coalesce packets of one path
	}
	b.batch = append(b.batch, *f)
}

// flush sends the queued packets.
func (b *liveTestbed) flush() error {
	if len(b.batch) == 0 {
		return nil
	}
	err := b.link.send(b, b.batch)
	b.batch = b.batch[:0]
	b.deliver()
	return err
}

// Settle implements Network. To detect what must not arrive, it first waits until the verbs program
// has replied to a line, so that its host, which may be paused at times, has made progress, and
// then for liveQuietTime.
func (b *liveTestbed) Settle(done func() bool) bool {
	if done != nil {
		return b.Run(b.Now()+liveTimeout, done)
	}
	b.nic.sync()
	return b.Run(b.Now()+liveQuietTime, nil)
}

// Run implements Network.
func (b *liveTestbed) Run(until time.Duration, done func() bool) bool {
	if err := b.flush(); err != nil {
		return false
	}
	for {
		b.deliver()
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
		case <-b.arrived:
		case <-t.C:
		}
		t.Stop()
	}
}

// A ProgramStarter is a testbed whose verbs program a script can start.
type ProgramStarter interface{ StartProgram(command []string) error }

// StartProgram implements ProgramStarter.
func (b *liveTestbed) StartProgram(command []string) error {
	if b.nic.program != nil {
		return errors.New("the verbs program is already running")
	}
	l, err := openProgram(command)
	if err != nil {
		return err
	}
	b.nic.link = nil // not shared with other testbeds
	return b.nic.hello(l)
}

// Close implements Testbed.
func (b *liveTestbed) Close() error {
	b.link.mu.Lock()
	delete(b.link.testbeds, b.block)
	b.link.mu.Unlock()
	return b.nic.close()
}
