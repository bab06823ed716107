package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"softroce/packet"
	"softroce/wire/fault"
)

// frameList is a sink that keeps its frames.
type frameList struct {
	wall   []int64
	iface  []int
	frames [][]byte
	full   int // number of frames after which it fails
}

var errFull = errors.New("no space left")

func (s *frameList) WriteFrame(wallNs int64, iface int, frame []byte) error {
	if s.full > 0 && len(s.frames) == s.full {
		return errFull
	}
	s.wall, s.iface = append(s.wall, wallNs), append(s.iface, iface)
	s.frames = append(s.frames, bytes.Clone(frame))
	return nil
}

var macA, macB = [6]byte{2, 0, 0, 0, 0, 0xa}, [6]byte{2, 0, 0, 0, 0, 0xb}

// newTestCapture returns a capturing link at addrA, its peer, and the sink.
func newTestCapture() (*CaptureLink, *FabricLink, *frameList) {
	f, s := NewFabric(), &frameList{}
	c := NewCaptureLink(f.NewLink("engine", addrA), s, CaptureOptions{
		MAC: func() [6]byte { return macA }, Wall: func(now int64) int64 { return now + 1000 },
	})
	b := f.NewLink("engine", addrB, addr6)
	b.Follow(StaticInterface("b", macB, 9000, netip.PrefixFrom(addrB, 24), netip.PrefixFrom(addr6, 64)))
	return c, b, s
}

func TestCaptureWritesFramesAsOnTheWire(t *testing.T) {
	c, peer, s := newTestCapture()
	to4 := &Path{Src: addrA, Dst: addrB, DstMAC: macB, SrcPort: 0xc001, TClass: 2, HopLimit: 63}
	addr6a := netip.MustParseAddr("2001:db8::1")
	to6 := &Path{Src: addr6a, Dst: addr6, DstMAC: macB, SrcPort: 0xc002, HopLimit: 64, FlowLabel: 0x12345}
	marked := frame(to4, 1, []byte("seven b"))
	marked.CE = true
	tx := []TxFrame{frame(to4, 0, nil), marked, frame(to6, 2, []byte("v6"))}
	mustSend(t, c, 5, tx...)
	mustSend(t, peer, 6, frame(bToA, 3, []byte("back")))
	receive(t, c, 7)

	if fmt.Sprint(s.wall) != "[1005 1005 1005 1007]" {
		t.Errorf("times %v", s.wall)
	}
	for i, b := range s.frames {
		var f packet.Frame
		if err := packet.ParseFrame(b, &f); err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if !f.ICRCOK() || !f.IPChecksumOK() || f.MayFragment || len(f.Trailer) != 0 {
			t.Errorf("frame %d: ICRC %v, checksum %v", i, f.ICRCOK(), f.IPChecksumOK())
		}
		src, dst := macA, macB
		if i == 3 {
			src, dst = macB, macA
		}
		if f.SrcMAC != src || f.DstMAC != dst {
			t.Errorf("frame %d: MACs %x %x", i, f.SrcMAC, f.DstMAC)
		}
		if i < 3 && !bytes.Equal(f.Transport[:len(f.Transport)-4], sentBytes(&tx[i])) {
			t.Errorf("frame %d: %x", i, f.Transport)
		}
		want := [...]packet.Addressing{
			{TClass: 2, HopLimit: 63, SrcPort: 0xc001, Src: addrA, Dst: addrB},
			{TClass: 3, HopLimit: 63, SrcPort: 0xc001, Src: addrA, Dst: addrB, ID: 1},
			{HopLimit: 64, SrcPort: 0xc002, FlowLabel: 0x12345, Src: addr6a, Dst: addr6},
			{HopLimit: 64, SrcPort: 0xc123, Src: addrB, Dst: addrA},
		}[i]
		want.SrcMAC, want.DstMAC, want.DstPort = src, dst, Port
		if f.Addressing != want {
			t.Errorf("frame %d:\n got %+v\nwant %+v", i, f.Addressing, want)
		}
	}
}

// A serializingLink is a link that computes ICRCs, as those through the kernel do.
type serializingLink struct {
	Link
	loops bool // it is a LoopbackLink, and the frames are for its NIC: they get none
}

func (l serializingLink) Send(now int64, batch []TxFrame) (int, error) {
	n, err := l.Link.Send(now, batch)
	for i := range batch[:n] {
		if batch[i].ICRC = 0; !l.loops {
			batch[i].ICRC = 1
		}
	}
	return n, err
}

func (l serializingLink) Capabilities() Capabilities {
	c := l.Link.Capabilities()
	c.ICRC = true
	return c
}

func TestCapturedPacketsHaveTimesOfTheirOwn(t *testing.T) {
	for _, c := range []struct {
		name              string
		serializes, loops bool
		want              string // times of four sent and two received packets
	}{
		// Packets of 12+1000, 12+2000, 12 and 12 bytes, in a call from 1000 to 2000; those of 12
		// and 12+1000 in one from 3000 to 4000.
		{"link through the kernel", true, false, "[1000 1332 1992 1996 3000 3011]"},
		{"fabric", false, false, "[1000 1001 1002 1003 2000 2001]"},
		// Another engine may have answered before the call ends.
		{"loopback", true, true, "[1000 1001 1002 1003 2000 2011]"},
	} {
		f, s, clock := NewFabric(), &frameList{}, int64(0)
		var link Link = f.NewLink("engine", addrA)
		if c.serializes {
			link = serializingLink{link, c.loops}
		}
		tap := NewCaptureLink(link, s, CaptureOptions{
			Clock: func() int64 { clock += 1000; return clock },
			Wall:  func(now int64) int64 { return now },
		})
		peer := f.NewLink("engine", addrB)
		mustSend(t, tap, 5, frame(aToB, 0, make([]byte, 1000)), frame(aToB, 1, make([]byte, 2000)), frame(aToB, 2, nil), frame(aToB, 3, nil))
		mustSend(t, peer, 6, frame(bToA, 0, nil), frame(bToA, 1, make([]byte, 1000)))
		receive(t, tap, 7)
		if got := fmt.Sprint(s.wall[:min(len(s.wall), 6)]); got != c.want {
			t.Errorf("%s: times %v, want %s", c.name, got, c.want)
		}
	}
	// A clock that is too coarse, or goes back.
	f, s, clock := NewFabric(), &frameList{}, int64(10)
	tap := NewCaptureLink(serializingLink{Link: f.NewLink("engine", addrA)}, s, CaptureOptions{
		Clock: func() int64 { clock--; return clock }, Wall: func(now int64) int64 { return now },
	})
	f.NewLink("engine", addrB)
	for range 3 {
		mustSend(t, tap, 5, frame(aToB, 0, nil), frame(aToB, 1, nil))
	}
	if got := fmt.Sprint(s.wall); got != "[9 10 11 12 13 14]" {
		t.Errorf("coarse clock: times %v", got)
	}
}

func TestCaptureShowsTheNeighborOfFramesWithoutEthernetHeader(t *testing.T) {
	f, s := NewFabric(), &frameList{}
	asked := 0
	c := NewCaptureLink(withoutMAC{f.NewLink("engine", addrA)}, s, CaptureOptions{
		MAC:      func() [6]byte { return macA },
		Neighbor: func(of Station) [6]byte { asked++; return map[Station][6]byte{{Addr: addrB}: macB}[of] },
	})
	peer := f.NewLink("engine", addrB)
	mustSend(t, peer, 1, frame(bToA, 0, nil))
	receive(t, c, 2)
	var got packet.Frame
	if err := packet.ParseFrame(s.frames[0], &got); err != nil || got.SrcMAC != macB || got.DstMAC != macA || asked != 1 {
		t.Errorf("MACs %x > %x, %d lookups, %v", got.SrcMAC, got.DstMAC, asked, err)
	}
}

// withoutMAC is a link that does not know the source MAC of received frames, like a UDPLink.
type withoutMAC struct{ Link }

func (l withoutMAC) Receive(now int64, batch []RxFrame) (int, error) {
	n, err := l.Link.Receive(now, batch)
	for i := range batch[:n] {
		batch[i].SrcMAC = [6]byte{}
	}
	return n, err
}

func TestCaptureWritesFlippedBits(t *testing.T) {
	c, peer, s := newTestCapture()
	for _, bit := range []uint32{0, 12 * 8, 16*8 + 3} {
		bad := frame(aToB, 0, []byte("abcd"))
		bad.Flip = bit + 1
		mustSend(t, c, 1, bad)
		bad.Path = bToA
		mustSend(t, peer, 1, bad)
		receive(t, c, 1)
	}
	good := frame(aToB, 0, []byte("abcd"))
	if len(s.frames) != 6 {
		t.Fatalf("%d frames, want 6", len(s.frames))
	}
	for i, b := range s.frames {
		var f packet.Frame
		if err := packet.ParseFrame(b, &f); err != nil || f.ICRCOK() {
			t.Errorf("frame %d: %v, ICRC right %v", i, err, f.ICRCOK())
		}
		if same := bytes.Equal(f.Transport[:16], sentBytes(&good)); same != (i >= 4) {
			t.Errorf("frame %d is %x", i, f.Transport)
		}
	}
}

func TestCaptureOmitsDroppedFrames(t *testing.T) {
	c, peer, s := newTestCapture()
	peer.ring.limit = 1
	unreachable := &Path{Src: addrA, Dst: netip.MustParseAddr("192.0.2.99")}
	batch := []TxFrame{frame(unreachable, 0, nil), frame(aToB, 1, nil), frame(aToB, 2, nil)}
	if n, _ := c.Send(1, batch); n != 2 || len(s.frames) != 1 {
		t.Errorf("took %d, %d are captured", n, len(s.frames))
	}
}

func TestAttachAndDetachDuringTraffic(t *testing.T) {
	c, peer, s := newTestCapture()
	other := &frameList{}
	send := func() { mustSend(t, c, 1, frame(aToB, 0, nil)); receive(t, peer, 1) }
	send()
	tap := c.Attach(other, 7)
	send()
	send()
	if tap.Packets() != 2 {
		t.Errorf("counted %d", tap.Packets())
	}
	tap.Detach()
	tap.Detach()
	send()
	if len(s.frames) != 4 || fmt.Sprint(other.iface) != "[7 7]" || tap.Err() != nil {
		t.Errorf("%d and %v frames, %v", len(s.frames), other.iface, tap.Err())
	}
}

func TestSinkErrorStopsOnlyTheCapture(t *testing.T) {
	c, peer, s := newTestCapture()
	bad := &frameList{full: 2}
	tap := c.Attach(bad, 0)
	for range 5 {
		mustSend(t, c, 1, frame(aToB, 0, nil))
	}
	if len(receive(t, peer, 1)) != 5 || len(s.frames) != 5 || tap.Packets() != 2 || tap.Err() != errFull {
		t.Errorf("%d packets, %v", tap.Packets(), tap.Err())
	}
}

func TestDetachFromAnotherGoroutine(t *testing.T) {
	c, peer, _ := newTestCapture()
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 200 {
			s := &frameList{}
			tap := c.Attach(s, 0)
			tap.Detach()
			_ = len(s.frames) // the race detector reports a write that is still going on
		}
	})
	for range 500 {
		mustSend(t, c, 1, frame(aToB, 0, nil))
		receive(t, peer, 1)
	}
	wg.Wait()
}

func TestCaptureBelowFaultShowsTheWire(t *testing.T) {
	c, peer, s := newTestCapture()
	p := &fault.Program{Rules: []fault.Rule{
		{Action: fault.Drop, Direction: fault.Sent, PSNs: []fault.PSNRange{{First: 1, Last: 1}}},
		{Action: fault.Drop, Direction: fault.Received, PSNs: []fault.PSNRange{{First: 11, Last: 11}}},
		{Action: fault.Duplicate, PSNs: []fault.PSNRange{{First: 2, Last: 2}, {First: 12, Last: 12}}},
	}}
	f := NewFaultLink(c, p)
	mustSend(t, f, 1, frame(aToB, 0, nil), frame(aToB, 1, nil), frame(aToB, 2, nil))
	mustSend(t, peer, 1, frame(bToA, 10, nil), frame(bToA, 11, nil), frame(bToA, 12, nil))
	if got := line(psns(t, receive(t, f, 1))); got != "10 12 12" {
		t.Errorf("received %s", got)
	}
	var seen []uint32
	for _, b := range s.frames {
		var fr packet.Frame
		packet.ParseFrame(b, &fr)
		seen = append(seen, bth(t, &RxFrame{Head: fr.Transport}).PSN)
	}
	if line(seen) != "0 2 2 10 11 12" {
		t.Errorf("captured %s", line(seen))
	}
}

func TestCaptureDoesNotAllocate(t *testing.T) {
	f := NewFabric()
	c := NewCaptureLink(f.NewLink("engine", addrA), nowhere{}, CaptureOptions{})
	peer := f.NewLink("engine", addrB)
	tx := []TxFrame{frame(aToB, 0, make([]byte, 4096)), frame(aToB, 0, nil)}
	var rx [4]RxFrame
	round := func() {
		c.Send(1, tx)
		peer.Receive(1, rx[:])
	}
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

type nowhere struct{}

func (nowhere) WriteFrame(int64, int, []byte) error { return nil }
