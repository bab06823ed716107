package wire

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// damaged returns a socket with n messages that are too short to be packets.
func damaged(t *testing.T, n int) (fd int) {
	t.Helper()
	// Unlike others, such a socket has received a message when send returns.
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	setBuffers(fds[0], 0, 1<<20)
	for range n {
		must(t, unix.Send(fds[0], []byte{1}, unix.MSG_DONTWAIT))
	}
	return fds[1]
}

// One Receive drops a bounded number of packets, and none says that the link is empty while packets
// wait behind those.
func TestReceiveDropsBoundedNumberOfPackets(t *testing.T) {
	const n = 400 // fit in the send buffer that is allowed without privilege
	dropped := func(l Link) int {
		sum := 0
		for _, d := range linkCounters(l).Drops {
			sum += int(d)
		}
		return sum
	}
	udp := func(t *testing.T, n ...int) *UDPLink {
		l := &UDPLink{}
		for i := range l.sockets {
			l.sockets[i] = &udpSocket{fd: damaged(t, n[i]), rx: newRxBatch(udpControlLen, true)}
		}
		return l
	}
	for _, c := range []struct {
		name string
		link func(t *testing.T) (l Link, done func() int)
	}{
		{"packet", func(t *testing.T) (Link, func() int) {
			l := &PacketLink{fd: damaged(t, n), rx: newRxBatch(0, false)}
			return l, func() int { return dropped(l) }
		}},
		{"dgram", func(t *testing.T) (Link, func() int) {
			l := &DgramLink{fd: damaged(t, n), rx: newRxBatch(0, false)}
			return l, func() int { return dropped(l) }
		}},
		{"udp, the family in use", func(t *testing.T) (Link, func() int) {
			l := udp(t, n, 0)
			rest := &l.sockets[1].decoder // a packet, so that the other family becomes the one in use
			rest.size = 64
			rest.begin(make([]byte, rest.size))
			return l, func() int { return dropped(l) }
		}},
		{"udp, the other family", func(t *testing.T) (Link, func() int) {
			l := udp(t, 0, n)
			return l, func() int { return dropped(l) }
		}},
		{"faults", func(t *testing.T) (Link, func() int) {
			l, peer := newTestFaultLink(t, "drop")
			for range n {
				mustSend(t, peer, 1, frame(bToA, 0, nil))
			}
			return l, func() int { return dropped(l) }
		}},
		{"slice", func(t *testing.T) (Link, func() int) {
			slices, media := loopbackSlices(2)
			for range n {
				mustSend(t, media[0], 1, to(bToA, 17))
			}
			return slices[0], func() int { return int(slices[1].arrivals.inbox.n.Load()) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, done := c.link(t)
			batch := make([]RxFrame, 32)
			calls := 0
			for before := 0; ; calls++ {
				k, err := l.Receive(1, batch)
				now := done()
				if k > 0 && err != nil || err != nil && err != ErrUnread {
					t.Fatalf("Receive returned %d frames, %v", k, err)
				}
				if now-before > maxUndelivered*faultBatch {
					t.Errorf("one Receive dropped %d packets", now-before)
				}
				if k == 0 && err == nil {
					break
				}
				before = now
			}
			if calls == 0 || done() != n {
				t.Errorf("the link says that it is empty after %d of %d packets, and %d calls", done(), n, calls)
			}
		})
	}
}

// The kernel reports that an interface went down before the messages that have arrived.
func TestReceiveReadsMessagesBehindAnError(t *testing.T) {
	l := newVethPair(t)
	a, b := l.a.packetLink(), l.b.packetLink()
	sendAll(t, a, frames(l.a.path(l.b, false), 1, 64))
	if !ready(b, waitTimeout) {
		t.Fatal("no packet has arrived")
	}
	must(t, l.b.nl.LinkSetDown(l.b.link()))
	n, err := b.Receive(1, make([]RxFrame, 1))
	if must(t, err); n != 1 {
		t.Errorf("Receive returned %d frames, want 1", n)
	}
}

// A call that fails each time returns its error, so that the engine waits.
func TestReceiveReturnsErrorThatLasts(t *testing.T) {
	var fds [2]int
	must(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	l := &PacketLink{fd: fds[0], rx: newRxBatch(0, false)}
	if n, err := l.Receive(1, make([]RxFrame, 1)); n != 0 || !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("Receive returned %d frames, %v, want %v", n, err, unix.ENOTSOCK)
	}
}

// Damaged frames that an xdp link has put together keep their room until the next Receive.
func TestXDPReceiveDropsAsManyAsThereIsRoomFor(t *testing.T) {
	const n = 100
	l := newVethPair(t)
	rx, tap := l.b.xdpLink(), l.a.tap()
	good := append(l.rawFrame(false), make([]byte, 2*xdpChunk)...)
	for range n {
		tap.send(change(good, packet.EthernetLen+8, 1)) // the checksum is that of another TTL
	}
	ring := &rx.socket().rx
	eventually(t, "all frames to arrive", func() bool { return ring.ready() == 3*n })
	calls := 0
	for batch := make([]RxFrame, 1); ; calls++ {
		k, err := rx.Receive(1, batch)
		if k > 0 || err != nil && err != ErrUnread {
			t.Fatalf("Receive returned %d frames, %v", k, err)
		}
		if err == nil {
			break
		}
	}
	if d := rx.Counters().Drops[DropIPChecksum]; calls == 0 || d != n {
		t.Errorf("the link says that it is empty after %d of %d frames, and %d calls", d, n, calls)
	}
}
