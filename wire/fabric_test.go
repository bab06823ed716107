package wire

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"softroce/packet"
)

var (
	addrA = netip.MustParseAddr("192.0.2.1")
	addrB = netip.MustParseAddr("192.0.2.2")
	addr6 = netip.MustParseAddr("2001:db8::2")
)

// aToB is the path of most frames in these tests.
var aToB = &Path{Src: addrA, Dst: addrB, SrcPort: 0xc123, TClass: 0x68, HopLimit: 64, FlowLabel: 7}

// frame returns a WRITE MIDDLE, or a packet of opcode op, with a payload.
func frame(path *Path, psn uint32, payload []byte, op ...packet.Opcode) TxFrame {
	h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteMiddle, PKey: packet.DefaultPKey, DestQP: 0x11, PSN: psn}}
	if len(op) > 0 {
		h.Opcode = op[0]
	}
	f := TxFrame{Path: path}
	f.Set(&h, payload)
	return f
}

// bth parses the headers of a received frame.
func bth(t testing.TB, f *RxFrame) packet.Header {
	t.Helper()
	var h packet.Header
	if _, err := h.Parse(f.Head); err != nil {
		t.Fatal(err)
	}
	return h
}

// bytesOf returns the bytes of a received frame from BTH to pad.
func bytesOf(f *RxFrame) []byte {
	b := append([]byte(nil), f.Head...)
	for _, t := range f.Tail {
		b = append(b, t...)
	}
	return b
}

// sentBytes returns the bytes of a frame to send from BTH to pad.
func sentBytes(f *TxFrame) []byte {
	g := *f
	g.Flip = 0
	b, _ := appendFrame(nil, &g)
	return b
}

func mustSend(t testing.TB, l Link, now int64, batch ...TxFrame) {
	t.Helper()
	if n, err := l.Send(now, batch); n != len(batch) || err != nil {
		t.Fatalf("Send took %d of %d frames, %v", n, len(batch), err)
	}
}

// receive returns copies of all frames that a link has.
func receive(t testing.TB, l Link, now int64) (out []RxFrame) {
	t.Helper()
	var batch [8]RxFrame
	for {
		n, err := l.Receive(now, batch[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return out
		}
		for _, f := range batch[:n] {
			f.Head, f.Tail = bytesOf(&f), nil
			out = append(out, f)
		}
	}
}

func psns(t testing.TB, frames []RxFrame) (p []uint32) {
	for i := range frames {
		h := bth(t, &frames[i])
		p = append(p, h.PSN)
	}
	return p
}

func TestFabricPassesPayloadByReferenceWithinAnOwner(t *testing.T) {
	f := NewFabric()
	a, b := f.NewLink("engine", addrA), f.NewLink("engine", addrB)
	payload := []byte("payload of 21 bytes..")
	tx := frame(aToB, 5, payload)
	want := sentBytes(&tx)
	mustSend(t, a, 1, tx)
	if b.NextDeadline() == 0 {
		t.Error("OnReady was called for a frame of the same owner")
	}
	var rx [4]RxFrame
	if n, _ := b.Receive(2, rx[:]); n != 1 {
		t.Fatalf("%d frames", n)
	}
	if &rx[0].Tail[0][0] != &payload[0] {
		t.Error("payload was copied")
	}
	if !bytes.Equal(bytesOf(&rx[0]), want) {
		t.Errorf("received %x, sent %x", bytesOf(&rx[0]), want)
	}
	if n, _ := b.Receive(3, rx[:]); n != 0 || b.NextDeadline() != 0 {
		t.Error("the frame was received twice")
	}
}

func TestFabricCopiesVolatilePayload(t *testing.T) {
	for _, c := range []struct {
		name   string
		owners [2]any
		op     packet.Opcode
	}{
		{"another owner", [2]any{"one", "two"}, packet.WriteMiddle},
		{"no owner", [2]any{nil, nil}, packet.WriteMiddle},
		{"UC", [2]any{"one", "one"}, packet.Opcode(packet.UC) | packet.WriteMiddle},
		{"UD", [2]any{"one", "one"}, packet.Opcode(packet.UD) | packet.SendOnly},
		{"volatile", [2]any{"one", "one"}, packet.WriteMiddle},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := NewFabric()
			a, b := f.NewLink(c.owners[0], addrA), f.NewLink(c.owners[1], addrB)
			payload := []byte("before")
			tx := frame(aToB, 5, payload, c.op)
			tx.Volatile = c.name == "volatile"
			want := sentBytes(&tx)
			mustSend(t, a, 1, tx)
			copy(payload, "after!")
			if got := receive(t, b, 2); len(got) != 1 || !bytes.Equal(got[0].Head, want) {
				t.Errorf("received %v, want the bytes at the time of Send", got)
			}
		})
	}
}

func TestFabricCarriesThePath(t *testing.T) {
	for _, owner := range []any{"same", nil} {
		f := NewFabric()
		a, b := f.NewLink(owner, addrA), f.NewLink(owner, addrB, addr6)
		a.Follow(StaticInterface("a", [6]byte{2, 1, 1, 1, 1, 1}, 9000, netip.PrefixFrom(addrA, 24)))
		marked := frame(aToB, 1, nil)
		marked.CE = true
		mustSend(t, a, 1, frame(aToB, 0, nil), marked)
		got := receive(t, b, 2)
		want := RxFrame{Src: addrA, Dst: addrB, SrcPort: 0xc123, TClass: 0x68, HopLimit: 64, FlowLabel: 7, SrcMAC: [6]byte{2, 1, 1, 1, 1, 1}}
		for i := range got {
			got[i].Head = nil
			if got[i].ID != uint16(i) || got[i].CE() != (i == 1) {
				t.Errorf("frame %d has ID %d, CE %v", i, got[i].ID, got[i].CE())
			}
		}
		got[0].Head = nil
		if fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("got  %v\nwant %v", got[0], want)
		}
	}
}

func TestFabricCountsDrops(t *testing.T) {
	f := NewFabric()
	a := f.NewLink("engine", addrA)
	b := f.NewLink("engine", addrB)
	unreachable := &Path{Src: addrA, Dst: addr6}
	mustSend(t, a, 1, frame(unreachable, 0, nil), frame(aToB, 1, make([]byte, fabricMTU)), frame(aToB, 2, nil))
	if c := a.Counters(); c.Drops[DropUnreachable] != 1 || c.Drops[DropTooLong] != 1 || c.TxPackets != 1 {
		t.Errorf("counters %+v", c)
	}
	if c := b.Counters(); len(receive(t, b, 2)) != 1 || c.RxPackets != 1 || c.RxBytes != 12+4+8+20 {
		t.Errorf("counters %+v", c)
	}
	b.Close()
	mustSend(t, a, 3, frame(aToB, 3, nil))
	if a.Counters().Drops[DropUnreachable] != 2 {
		t.Error("a closed link still has its address")
	}
	if _, err := b.Receive(4, make([]RxFrame, 1)); err != ErrClosed {
		t.Errorf("Receive after Close: %v", err)
	}
}

func TestFabricFollowsAddresses(t *testing.T) {
	f := NewFabric()
	a, b := f.NewLink("engine", addrA), f.NewLink("engine", addrB)
	c := f.NewLink("engine", addrB) // the older link keeps the address
	mustSend(t, a, 1, frame(aToB, 0, nil))
	b.SetAddresses(addr6)
	mustSend(t, a, 1, frame(aToB, 1, nil), frame(&Path{Src: addrA, Dst: addr6}, 2, nil))
	if got := fmt.Sprint(psns(t, receive(t, b, 2)), psns(t, receive(t, c, 2))); got != "[0 2] [1]" {
		t.Errorf("PSNs at b and c: %v", got)
	}
}

func TestFabricFlipMakesTheICRCWrong(t *testing.T) {
	for _, owner := range []any{"same", nil} {
		f := NewFabric()
		a, b := f.NewLink(owner, addrA), f.NewLink(owner, addrB)
		tx := frame(aToB, 0, []byte{1, 2, 3, 4})
		good := sentBytes(&tx)
		for _, c := range []struct {
			bit  uint32
			byte int // the byte that differs; -1: none
			bad  bool
		}{{0, 0, true}, {4*8 + 1, 4, false}, {12*8 + 7, 12, true}, {16 * 8, -1, true}, {20 * 8, -1, false}} {
			tx.Flip = c.bit + 1
			mustSend(t, a, 1, tx)
			got := receive(t, b, 1)[0]
			for i := range good {
				if (got.Head[i] != good[i]) != (i == c.byte) {
					t.Errorf("bit %d: byte %d is %#x, sent %#x", c.bit, i, got.Head[i], good[i])
				}
			}
			if got.BadICRC != c.bad {
				t.Errorf("bit %d: BadICRC %v", c.bit, got.BadICRC)
			}
		}
	}
}

func TestFabricFullQueueTakesFewerFrames(t *testing.T) {
	for _, owners := range [][2]any{{"same", "same"}, {"one", "two"}} {
		t.Run(fmt.Sprint(owners), func(t *testing.T) {
			f := NewFabric()
			f.queue = 4
			a, b := f.NewLink(owners[0], addrA), f.NewLink(owners[1], addrB)
			woken := 0
			a.OnReady(func() { woken++ })
			var batch []TxFrame
			for i := range 10 {
				batch = append(batch, frame(aToB, uint32(i), []byte("abc")))
			}
			var got []uint32
			for len(batch) > 0 {
				n, err := a.Send(1, batch)
				if err != nil || n > 4 || n == 0 {
					t.Fatalf("took %d, %v", n, err)
				}
				if m, _ := a.Send(1, batch[n:]); m != 0 {
					t.Fatalf("a full queue took %d more frames", m)
				}
				batch = batch[n:]
				got = append(got, psns(t, receive(t, b, 2))...)
			}
			if fmt.Sprint(got) != "[0 1 2 3 4 5 6 7 8 9]" {
				t.Errorf("received %v", got)
			}
			if owners[0] != owners[1] && woken < 2 {
				t.Errorf("the sender was woken %d times", woken)
			}
			if a.Counters().TxPackets != 10 {
				t.Errorf("counted %d", a.Counters().TxPackets)
			}
		})
	}
}

func TestFabricWakesAReceiverOncePerBatch(t *testing.T) {
	f := NewFabric()
	a, b := f.NewLink("one", addrA), f.NewLink("two", addrB)
	woken := 0
	b.OnReady(func() { woken++ })
	mustSend(t, a, 1, frame(aToB, 0, nil), frame(aToB, 1, nil))
	mustSend(t, a, 1, frame(aToB, 2, nil))
	if woken != 1 || len(receive(t, b, 2)) != 3 {
		t.Errorf("woken %d times", woken)
	}
}

func TestFabricReceivedBytesStayValid(t *testing.T) {
	for _, owner := range []any{"same", nil} {
		f := NewFabric()
		a, b := f.NewLink(owner, addrA), f.NewLink(owner, addrB)
		mustSend(t, a, 1, frame(aToB, 0, nil), frame(aToB, 1, nil), frame(aToB, 2, nil))
		var rx [2]RxFrame
		b.Receive(1, rx[:])
		for i := range 200 { // makes the ring grow
			mustSend(t, a, 1, frame(aToB, uint32(i+3), nil))
		}
		if got := fmt.Sprint(psns(t, rx[:])); got != "[0 1]" {
			t.Errorf("PSNs changed to %v", got)
		}
		if got := psns(t, receive(t, b, 2)); len(got) != 201 || got[0] != 2 || got[200] != 202 {
			t.Errorf("next: %v", got)
		}
	}
}

func TestFabricDoesNotAllocate(t *testing.T) {
	for _, owner := range []any{"same", nil} {
		f := NewFabric()
		a, b := f.NewLink(owner, addrA), f.NewLink(owner, addrB)
		payload := make([]byte, 4096)
		var tx []TxFrame
		for i := range 100 {
			tx = append(tx, frame(aToB, uint32(i), payload))
		}
		var rx [64]RxFrame
		round := func() {
			a.Send(1, tx)
			for {
				if n, _ := b.Receive(1, rx[:]); n == 0 {
					return
				}
			}
		}
		for range 4 {
			round()
		}
		if n := testing.AllocsPerRun(50, round); n != 0 {
			t.Errorf("owner %v: %v allocations per 100 frames", owner, n)
		}
	}
}

func TestFabricBetweenGoroutinesKeepsOrder(t *testing.T) {
	f := NewFabric()
	f.queue = 16
	const count = 2000
	paths := []*Path{{Src: addrA, Dst: addr6}, {Src: addrB, Dst: addr6}}
	to := f.NewLink("receiver", addr6)
	ready := make(chan struct{}, 1)
	to.OnReady(func() {
		select {
		case ready <- struct{}{}:
		default:
		}
	})
	var wg sync.WaitGroup
	for _, path := range paths {
		port := f.NewLink(path, path.Src)
		room := make(chan struct{}, 1)
		port.OnReady(func() {
			select {
			case room <- struct{}{}:
			default:
			}
		})
		wg.Go(func() {
			for psn := uint32(0); psn < count; {
				batch := []TxFrame{frame(path, psn, []byte{byte(psn)}), frame(path, psn+1, nil)}
				n, _ := port.Send(1, batch)
				if n < 2 {
					<-room
				}
				psn += uint32(n)
			}
		})
	}
	next := map[netip.Addr]uint32{}
	for next[addrA] < count || next[addrB] < count {
		<-ready
		for _, got := range receive(t, to, 1) {
			h := bth(t, &got)
			if h.PSN != next[got.Src] {
				t.Fatalf("PSN %d from %v, want %d", h.PSN, got.Src, next[got.Src])
			}
			next[got.Src]++
		}
	}
	wg.Wait()
}

func BenchmarkFabric(b *testing.B) {
	for _, owner := range []any{"same", nil} {
		b.Run(fmt.Sprint("owner=", owner), func(b *testing.B) {
			f := NewFabric()
			p, q := f.NewLink(owner, addrA), f.NewLink(owner, addrB)
			payload := make([]byte, 4096)
			var tx []TxFrame
			for i := range 64 {
				tx = append(tx, frame(aToB, uint32(i), payload))
			}
			var rx [64]RxFrame
			b.SetBytes(64 * 4096)
			b.ReportAllocs()
			for b.Loop() {
				p.Send(1, tx)
				q.Receive(1, rx[:])
			}
		})
	}
}

// Captures of a fabric show one MAC for each NIC, whichever of its addresses a frame is for.
func TestFabricResolvesAddressesToTheMACOfTheirLink(t *testing.T) {
	f := NewFabric()
	a := f.NewLink(nil).Follow(StaticInterface("a", macA, 9000, netip.PrefixFrom(addrA, 24)))
	f.NewLink(nil).Follow(StaticTrunk("b", macB, 9000, []VLANAddress{{Prefix: netip.PrefixFrom(addrB, 24), VLAN: 7}}, netip.PrefixFrom(addrB, 24), netip.PrefixFrom(addr6, 64)))
	for _, to := range []Station{{Addr: addrB}, {Addr: addrB, VLAN: 7}, {Addr: addr6}, {Addr: linkLocal(macB)}} {
		p := Path{Src: addrA, Dst: to.Addr, VLAN: to.VLAN}
		if to.Addr.Is6() {
			p.Src = linkLocal(macA)
		}
		if err := a.Resolve(t.Context(), &p); err != nil || p.DstMAC != macB {
			t.Errorf("%v resolves to %x, %v; want %x", to, p.DstMAC, err, macB)
		}
	}
}
