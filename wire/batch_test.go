package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// eachPair runs a test for combinations of links at the two ends of a veth pair, and for both
// address families.
func eachPair(t *testing.T, test func(t *testing.T, l *vethPair, tx, rx Link, v6 bool)) {
	packetLink := func(s *netnsHost) Link { return s.packetLink() }
	udpLink := func(s *netnsHost) Link { return s.udpLink() }
	xdpLink := func(s *netnsHost) Link { return s.xdpLink() }
	for _, c := range []struct {
		name   string
		tx, rx func(*netnsHost) Link
	}{
		{"packet to packet", packetLink, packetLink},
		{"packet to udp", packetLink, udpLink},
		{"udp to packet", udpLink, packetLink},
		{"udp to udp", udpLink, udpLink},
		{"xdp to packet", xdpLink, packetLink},
		{"packet to xdp", packetLink, xdpLink},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(c.name+"/"+family(v6), func(t *testing.T) {
				l := newVethPair(t)
				test(t, l, c.tx(l.a), c.rx(l.b), v6)
			})
		}
	}
}

// message returns the frames of an RDMA WRITE of size bytes, as RC sends it.
func message(p *Path, size, mtu int) []TxFrame {
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i*31 + i>>8)
	}
	n := packet.PSNCount(uint32(size), mtu)
	batch := make([]TxFrame, n)
	for i := range batch {
		part := payload[min(i*mtu, size):min((i+1)*mtu, size)]
		op := packet.Opcode(packet.WriteMiddle)
		switch {
		case n == 1:
			op = packet.WriteOnly
		case i == 0:
			op = packet.WriteFirst
		case i == n-1:
			op = packet.WriteLast
		}
		h := packet.Header{BTH: packet.BTH{Opcode: op, PKey: packet.DefaultPKey, DestQP: 0x11, PSN: uint32(i)}}
		h.RETH = packet.RETH{VA: 0x1000, RKey: 7, Length: uint32(size)}
		// Two slices, as in a message that crosses from one SGE to the next.
		batch[i].Set(&h, part[:len(part)/3], part[len(part)/3:])
		batch[i].Path = p
	}
	return batch
}

// wireBytes returns the bytes of a frame from BTH to pad.
func wireBytes(f *TxFrame) []byte {
	whole := *f
	whole.Flip = 0
	b, _ := appendFrame(nil, &whole)
	return b
}

// sendAll sends a batch, with as many Sends as it takes.
func sendAll(t testing.TB, tx Link, batch []TxFrame) {
	t.Helper()
	eventually(t, "all frames taken", func() bool {
		n, err := tx.Send(0, batch)
		must(t, err)
		batch = batch[n:]
		return len(batch) == 0
	})
}

// clone returns a received frame that owns its bytes.
func clone(f *RxFrame) RxFrame {
	k := *f
	k.Head = bytes.Clone(f.Head)
	return k
}

// collect receives n frames, or fewer if none arrives for a while. With a udp link, the kernel may
// have to resolve the neighbor first.
func collect(t testing.TB, rx Link, n int) []RxFrame {
	t.Helper()
	return collectFor(t, rx, n, waitTimeout)
}

func collectFor(t testing.TB, rx Link, n int, wait time.Duration) []RxFrame {
	t.Helper()
	var got []RxFrame
	batch := make([]RxFrame, 7) // not a divisor of the number of packets in a super-packet
	for len(got) < n {
		k, err := rx.Receive(0, batch)
		must(t, err)
		for i := range batch[:k] {
			got = append(got, clone(&batch[i]))
		}
		if k == 0 && !ready(rx, wait) {
			break
		}
	}
	return got
}

// ready waits until a descriptor of the link polls readable.
func ready(l Link, d time.Duration) bool {
	poll := l.AppendFDs(nil)
	for end := time.Now().Add(d); time.Now().Before(end); {
		if n, err := unix.Poll(poll, int(d.Milliseconds())); err != unix.EINTR {
			return n > 0 && slices.ContainsFunc(poll, func(p unix.PollFd) bool { return p.Revents&unix.POLLIN != 0 })
		}
	}
	return false
}

func TestDescriptorsShowFrames(t *testing.T) {
	for _, c := range []struct {
		kind string
		v6   bool
	}{{"packet", false}, {"udp", false}, {"udp", true}, {"xdp", false}} {
		t.Run(c.kind+"/"+family(c.v6), func(t *testing.T) {
			l := newVethPair(t)
			tx, rx := l.a.linkOf(c.kind), l.b.linkOf(c.kind)
			if ready(rx, 10*time.Millisecond) {
				t.Error("a descriptor is readable before a frame was sent")
			}
			sendAll(t, tx, frames(l.a.path(l.b, c.v6), 1, 100))
			if !ready(rx, waitTimeout) {
				t.Fatal("no descriptor shows the frame")
			}
			if n := len(collect(t, rx, 1)); n != 1 || ready(rx, 10*time.Millisecond) {
				t.Errorf("received %d frames, want 1 and no readable descriptor", n)
			}
		})
	}
}

// expectNone checks that no frame arrives.
func expectNone(t testing.TB, rx Link) {
	t.Helper()
	if got := collectFor(t, rx, 1, 200*time.Millisecond); len(got) > 0 {
		t.Errorf("received %d frames, want none; the first is from %v with %d bytes", len(got), got[0].Src, len(got[0].Head))
	}
}

// A udp link receives from the sockets of both families, whichever received last, and whatever it
// holds of a super-packet when the descriptors show nothing.
func TestUDPReceivesBothFamilies(t *testing.T) {
	l := newVethPair(t)
	a, b := l.a.udpLink(), l.b.udpLink()
	paths := []*Path{l.a.path(l.b, false), l.a.path(l.b, true)}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		want := 0
		for range 1 + r.IntN(4) {
			n := 1 + r.IntN(40)
			sendAll(t, a, frames(paths[r.IntN(2)], n, 64))
			want += n
		}
		if got := len(collectFor(t, b, want, waitTimeout)); got != want {
			t.Fatalf("%d of %d packets were received", got, want)
		}
	}
}

// A udp link reads the family that is not in use after eight calls, after 10 us, and after a wait,
// also if the other one receives all the time.
func TestUDPReadsTheQuietFamily(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		l := newVethPair(t)
		a, b := l.a.udpLink(), l.b.udpLink()
		busy, quiet := l.a.path(l.b, v6), l.a.path(l.b, !v6)
		now := int64(0)
		// receive returns whether a packet of each family arrived.
		receive := func() (ofBusy, ofQuiet bool) {
			batch := make([]RxFrame, 16)
			n, err := b.Receive(now, batch)
			must(t, err)
			of := func(p *Path) bool {
				return slices.ContainsFunc(batch[:n], func(f RxFrame) bool { return f.Src == p.Src })
			}
			return of(busy), of(quiet)
		}
		// settle makes a family the one in use.
		settle := func(p *Path) {
			for range 3 {
				sendAll(t, a, frames(p, 1, 64))
				collectFor(t, b, 1, waitTimeout)
			}
			now += 1e6
			b.AppendFDs(nil)
			receive() // reads both
			now++
		}
		settle(busy)
		sendAll(t, a, frames(quiet, 1, 64))
		calls := 0
		for found := false; !found && calls < 100; calls++ {
			sendAll(t, a, frames(busy, 1, 64))
			now++
			_, found = receive()
		}
		if calls != 8 {
			t.Errorf("v6 busy %t: the packet of the other family was received by call %d, want 8", v6, calls)
		}

		settle(busy)
		sendAll(t, a, frames(quiet, 1, 64))
		if _, found := receive(); found {
			t.Errorf("v6 busy %t: both families are read each time", v6)
		}
		now += b.Capabilities().Lag + 1
		if _, found := receive(); !found {
			t.Errorf("v6 busy %t: the other family is not read after 10 us", v6)
		}

		settle(busy)
		b.AppendFDs(nil)
		sendAll(t, a, frames(quiet, 1, 64))
		sendAll(t, a, frames(busy, 1, 64))
		if x, y := receive(); !x || !y {
			t.Errorf("v6 busy %t: after a wait, of both families %t, %t were received", v6, x, y)
		}
		b.AppendFDs(nil)
		sendAll(t, a, frames(quiet, 1, 64))
		sendAll(t, a, frames(busy, 1, 64))
		now++
		if x, y := receive(); !x || !y {
			t.Errorf("v6 busy %t: after another wait, of both families %t, %t were received", v6, x, y)
		}
	}
}

// A udp link is empty if Receive returns nothing, also if the other family was in use and has more
// packets than one system call receives.
func TestUDPReceivesAllOfBothFamilies(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		l := newVethPair(t)
		a, b := l.a.udpLink(), l.b.udpLink()
		for _, family := range []bool{!v6, v6} { // addresses are resolved, and the last one is in use
			sendAll(t, a, frames(l.a.path(l.b, family), 1, 64))
			if len(collectFor(t, b, 1, waitTimeout)) != 1 {
				t.Fatal("a packet was not received")
			}
		}
		const busy = 100
		delivered := func() int { return l.b.counter("Ip: InDelivers") + l.b.counter("Ip6InDelivers") }
		before := delivered()
		sendAll(t, a, packets(l.a, l.b, v6, busy, 64))
		sendAll(t, a, frames(l.a.path(l.b, !v6), 1, 64))
		eventually(t, "all packets in the sockets", func() bool { return delivered() >= before+busy+1 })
		b.AppendFDs(nil)
		batch := make([]RxFrame, 64)
		got := 0
		for {
			n, err := b.Receive(1e6, batch)
			must(t, err)
			if got += n; n == 0 {
				break
			}
		}
		if got != busy+1 {
			t.Errorf("v6 busy %t: %d of %d packets were received", v6, got, busy+1)
		}
	}
}

// checkFrames checks that got is what batch sent, in order.
func checkFrames(t testing.TB, l *vethPair, tx Link, batch []TxFrame, got []RxFrame) {
	t.Helper()
	if len(got) != len(batch) {
		t.Fatalf("received %d frames, want %d", len(got), len(batch))
	}
	port := tx.Capabilities().SrcPort
	for i := range got {
		f, g := &batch[i], &got[i]
		if !bytes.Equal(g.Head, wireBytes(f)) {
			t.Fatalf("frame %d of %d: % .64x…, want % .64x…", i, len(got), g.Head, wireBytes(f))
		}
		if g.BadICRC != (f.Flip != 0) {
			t.Fatalf("frame %d: BadICRC is %v", i, g.BadICRC)
		}
		p := *f.Path
		if port != 0 {
			p.SrcPort = port
		}
		g.Head = nil // compared above, and too long for a message
		want := RxFrame{
			Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, TClass: p.TClass, HopLimit: p.HopLimit,
			ID: f.ID, ICRC: f.ICRC, SrcMAC: g.SrcMAC, FlowLabel: g.FlowLabel,
		}
		want.tagAs(&p)
		if f.CE {
			want.TClass |= 3
		}
		if p.Src.Is6() {
			want.ID = 0
		}
		if fmt.Sprint(*g) != fmt.Sprint(want) {
			t.Fatalf("frame %d: %+v\nwant %+v", i, *g, want)
		}
	}
}

func TestMessagesArriveWholeAndInOrder(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		p := l.a.path(l.b, v6)
		p.TClass, p.HopLimit = 0x68, 33
		for _, mtu := range []int{256, 1024, 4096} {
			for _, size := range []int{0, 1, 3, 4, mtu - 1, mtu, mtu + 1, 2 * mtu, 5*mtu + 2, 65536, 200_001} {
				batch := message(p, size, mtu)
				sendAll(t, tx, batch)
				checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
			}
		}
		if c := rx.(Counted).Counters(); c.Drops != [NumDrops]uint64{} {
			t.Error("dropped frames:", c.Drops)
		}
		if s, r := tx.(Counted).Counters(), rx.(Counted).Counters(); s.TxPackets != r.RxPackets || s.TxBytes != r.RxBytes {
			t.Errorf("sent %d packets of %d bytes, received %d of %d", s.TxPackets, s.TxBytes, r.RxPackets, r.RxBytes)
		}
	})
}

func TestBatchOfManyQPsKeepsPaths(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		var batch []TxFrame
		for qp := range 40 {
			p := l.a.path(l.b, v6)
			p.SrcPort = uint16(0xc000 + qp)
			p.TClass = uint8(qp << 2)
			batch = append(batch, message(p, 100*qp, 1024)...)
			if qp%3 == 0 {
				batch[len(batch)-1].CE = true
			}
		}
		sendAll(t, tx, batch)
		checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
	})
}

func TestLinkLocalAddresses(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		if !v6 {
			return // RoCEv2 has link-local GIDs for IPv6 only
		}
		p := l.a.path(l.b, true)
		p.Src, p.Dst = l.a.linkLocal(), l.b.linkLocal()
		mac, err := resolve(l.a.iface(), p.Src, p.Dst)
		if err != nil || mac != p.DstMAC {
			t.Fatalf("resolved % x, %v", mac, err)
		}
		if x, ok := rx.(*XDPLink); ok {
			eventually(t, "the program for the address", func() bool {
				x.portMu.Lock()
				defer x.portMu.Unlock()
				return slices.Contains(x.last.filter.v6, p.Dst.As16())
			})
		}
		batch := message(p, 10_000, 1024)
		sendAll(t, tx, batch)
		checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
	})
}

func TestBatchOfBothAddressFamilies(t *testing.T) {
	for _, name := range []string{"packet", "udp"} {
		t.Run(name, func(t *testing.T) {
			l := newVethPair(t)
			var tx, rx Link
			if name == "udp" {
				tx, rx = l.a.udpLink(), l.b.udpLink()
			} else {
				tx, rx = l.a.packetLink(), l.b.packetLink()
			}
			var batch []TxFrame
			for i := range 6 {
				batch = append(batch, message(l.a.path(l.b, i%2 == 1), 3000, 1024)...)
			}
			sendAll(t, tx, batch)
			got := collect(t, rx, len(batch))
			if len(got) != len(batch) {
				t.Errorf("received %d frames, want %d", len(got), len(batch))
			}
		})
	}
}

func TestFlippedBitAffectsOnlyItsPacket(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		batch := message(l.a.path(l.b, v6), 64<<10, 4096)
		payload := bytes.Clone(batch[5].Payload[1])
		batch[0].Flip = 1
		batch[5].Flip = 8*1000 + 1
		batch[9].Flip = uint32(8*batch[9].Len + 31) // a bit of the ICRC
		sendAll(t, tx, batch)
		got := collect(t, rx, len(batch))
		if len(got) != len(batch) {
			t.Fatalf("received %d frames, want %d", len(got), len(batch))
		}
		for i := range got {
			if want := batch[i].Flip != 0; got[i].BadICRC != want {
				t.Errorf("frame %d: BadICRC is %v", i, got[i].BadICRC)
			}
			different := 0
			for k, b := range wireBytes(&batch[i]) {
				if b != got[i].Head[k] {
					different++
				}
			}
			if want := i == 0 || i == 5; (different == 1) != want || different > 1 {
				t.Errorf("frame %d differs in %d bytes", i, different)
			}
		}
		if !bytes.Equal(payload, batch[5].Payload[1]) {
			t.Error("the sender's memory was changed")
		}
	})
}

// Offloads, as in ethtool(8), by the commands of linux/ethtool.h. An interface without checksum
// offload does not segment either: the kernel does both in software.
const (
	ethtoolTxChecksum    = 0x17
	ethtoolScatterGather = 0x19
	ethtoolGSO           = 0x24
	ethtoolGRO           = 0x2c
)

func TestInterfaceWithoutOffloads(t *testing.T) {
	for _, c := range []struct {
		name     string
		commands []uint32
	}{
		{"without segmentation", []uint32{ethtoolTxChecksum}},
		{"without any", []uint32{ethtoolGSO, ethtoolScatterGather, ethtoolTxChecksum}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
				for _, command := range c.commands {
					l.a.offload(command, 0)
				}
				batch := append(message(l.a.path(l.b, v6), 100_000, 4096), message(l.a.path(l.b, v6), 5000, 256)...)
				sendAll(t, tx, batch)
				checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
			})
		})
	}
}

func TestJoinedPacketsAreCut(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		l.a.offload(ethtoolTxChecksum, 0) // makes the kernel segment packets, which receive offload then joins
		l.b.offload(ethtoolGRO, 1)
		batch := message(l.a.path(l.b, v6), 100_000, 4096)
		sendAll(t, tx, batch)
		checkFrames(t, l, tx, batch, collect(t, rx, len(batch)))
	})
}

func TestFramesBeyondTheMTUAreDropped(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		p := l.a.path(l.b, v6)
		batch := append(frames(p, 2, 1024), frames(p, 3, vethMTU)...)
		batch = append(batch, frames(p, 2, 512)...)
		sendAll(t, tx, batch)
		if got := collect(t, rx, 4); len(got) != 4 {
			t.Errorf("received %d frames, want the 4 that fit", len(got))
		}
		for i := range batch {
			if want := i >= 2 && i < 5; batch[i].Dropped != want {
				t.Errorf("frame %d: Dropped is %v", i, batch[i].Dropped)
			}
		}
		if n := tx.(Counted).Counters().Drops[DropTooLong]; n != 3 {
			t.Errorf("%d frames counted as too long, want 3", n)
		}
	})
}

func TestUnroutableFramesAreDropped(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		good, bad := l.a.path(l.b, v6), *l.a.path(l.b, v6)
		bad.Src = l.a.path(l.b, !v6).Src
		batch := append(frames(good, 1, 64), frames(&bad, 2, 64)...)
		batch = append(batch, frames(good, 1, 64)...)
		sendAll(t, tx, batch)
		if got := collect(t, rx, 2); len(got) != 2 {
			t.Errorf("received %d frames, want 2", len(got))
		}
		if n := tx.(Counted).Counters().Drops[DropUnreachable]; n != 2 {
			t.Errorf("%d frames counted as unreachable, want 2", n)
		}
	})
}

func TestCongestedLinkTakesFewerFrames(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		if _, ok := tx.(*XDPLink); ok {
			return // its frames bypass the queueing discipline
		}
		l.a.slow(1e6, 64<<20) // transmitting all of it takes over a minute
		batch := message(l.a.path(l.b, v6), 8<<20, 4096)
		taken, err := tx.Send(0, batch)
		must(t, err)
		if most := 5 << 19; taken*4096 > most {
			t.Fatalf("Send took %d bytes at once on a link of 1 Mb/s, want at most %d", taken*4096, most)
		}
		l.a.slow(200e6, 64<<20)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			sendAll(t, tx, batch[taken:])
		}()
		got := collect(t, rx, len(batch))
		<-sent
		checkFrames(t, l, tx, batch, got)
	})
}

func TestSendAndReceiveDoNotAllocate(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		batch := message(l.a.path(l.b, v6), 100_000, 4096)
		got := make([]RxFrame, 64)
		n := 0
		exchange := func() {
			tx.Send(0, batch)
			for range 3 {
				k, _ := rx.Receive(0, got)
				n += k
			}
		}
		// The count includes allocations of the interface's watcher when the kernel sends events.
		// The links do not allocate if one round has none.
		least := testing.AllocsPerRun(100, exchange)
		for range 4 {
			least = min(least, testing.AllocsPerRun(100, exchange))
		}
		if least != 0 {
			t.Errorf("%v allocations per batch", least)
		}
		if n < 100*len(batch)/2 {
			t.Errorf("only %d frames arrived", n)
		}
	})
}

func TestKernelDropsAreCounted(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		batch := message(l.a.path(l.b, v6), 1<<20, 4096)
		sendAll(t, tx, batch[:1])
		collect(t, rx, 1)
		for range 100 {
			sendAll(t, tx, batch)
		}
		got := len(collectFor(t, rx, 100*len(batch), 200*time.Millisecond))
		lost := rx.(Counted).Counters().Drops[DropOverrun]
		if got == 100*len(batch) || lost == 0 {
			t.Errorf("sent 100 MiB: received %d of %d frames, counted %d drops", got, 100*len(batch), lost)
		}
		if again := rx.(Counted).Counters().Drops[DropOverrun]; again != lost {
			t.Errorf("drops counted twice: %d, then %d", lost, again)
		}
	})
}

func TestClosedLinkReturnsErrClosed(t *testing.T) {
	eachPair(t, func(t *testing.T, l *vethPair, tx, rx Link, v6 bool) {
		must(t, tx.Close())
		if _, err := tx.Send(0, frames(l.a.path(l.b, v6), 1, 64)); err != ErrClosed {
			t.Error("Send:", err)
		}
		if _, err := tx.Receive(0, make([]RxFrame, 1)); err != ErrClosed {
			t.Error("Receive:", err)
		}
		if err := tx.Close(); err != ErrClosed {
			t.Error("Close:", err)
		}
	})
}
