package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"softroce/packet"
	"softroce/wire/fault"
)

// A run of packets of 4 bytes of payload.
func runFrame(path *Path, psn uint32, op packet.Opcode, run packet.Run) (f TxFrame, payload []byte) {
	h := packet.Header{BTH: packet.BTH{Opcode: op, PKey: packet.DefaultPKey, DestQP: 0x11, PSN: psn},
		RETH: packet.RETH{VA: 0x1000, RKey: 7, Length: uint32(4 * run.Packets())}}
	f.Path = path
	f.Begin()
	payload = []byte("abcdefghijklmnopqrstuvwxyz0123456789")[:4*run.Packets()]
	f.Add(payload)
	f.FinishRun(&h, run)
	return f, payload
}

// asPackets returns the packets of a run as frames.
func asPackets(f *TxFrame, payload []byte) (l []TxFrame) {
	for k := range f.Run.Packets() {
		var h packet.Header
		var b [packet.MaxHeaderLen]byte
		f.Run.Header(b[:], f.Head[:f.HeadLen], k)
		if _, err := h.Parse(b[:]); err != nil {
			panic(err)
		}
		p := TxFrame{Path: f.Path}
		p.Set(&h, payload[4*k:4*k+4])
		l = append(l, p)
	}
	return l
}

// received describes frames as the receiver sees them, without marks.
func received(frames []RxFrame) (l []string) {
	for _, f := range frames {
		f.Head, f.Tail, f.Mark = bytesOf(&f), nil, 0
		l = append(l, fmt.Sprint(f))
	}
	return l
}

// What looks at single packets on the way of a run, or at its end, gets the packets that it would
// get without the run.
func TestRunsArriveAsTheirPackets(t *testing.T) {
	drop, err := fault.Parse(strings.NewReader("drop opcode WRITE_MIDDLE nth 2"))
	if err != nil {
		t.Fatal(err)
	}
	onSend, err := fault.Parse(strings.NewReader("drop send opcode WRITE_LAST"))
	if err != nil {
		t.Fatal(err)
	}
	capture := func(sink FrameSink) func(Link) Link {
		return func(l Link) Link {
			return NewCaptureLink(l, sink, CaptureOptions{Wall: func(now int64) int64 { return now }})
		}
	}
	faults := func(p *fault.Program) func(Link) Link { return func(l Link) Link { return NewFaultLink(l, p) } }
	plain := func(l Link) Link { return l }
	for _, c := range []struct {
		name   string
		owners [2]any
		queue  int
		a, b   func(*frameRecorder) func(Link) Link
		whole  bool // ReceiveRuns returns a run
	}{
		{name: "one engine", owners: [2]any{"same", "same"}, whole: true},
		{name: "a queue with little room", owners: [2]any{"same", "same"}, queue: 2, whole: true},
		{name: "two engines", owners: [2]any{"one", "two"}},
		{name: "two engines, a queue with little room", owners: [2]any{"one", "two"}, queue: 3},
		{name: "capture of the sender", owners: [2]any{"same", "same"}, a: func(r *frameRecorder) func(Link) Link { return capture(r) }},
		{name: "capture of the receiver", owners: [2]any{"same", "same"}, b: func(r *frameRecorder) func(Link) Link { return capture(r) }},
		{name: "rules of the sender", owners: [2]any{"same", "same"}, a: func(*frameRecorder) func(Link) Link { return faults(onSend) }},
		{name: "rules of the receiver", owners: [2]any{"same", "same"}, b: func(*frameRecorder) func(Link) Link { return faults(drop) }},
		{name: "no rules", owners: [2]any{"same", "same"}, whole: true,
			a: func(*frameRecorder) func(Link) Link { return faults(nil) }, b: func(*frameRecorder) func(Link) Link { return faults(nil) }},
	} {
		for _, run := range []struct {
			op  packet.Opcode
			run packet.Run
		}{
			{packet.WriteFirst, packet.Run{Repeat: 8, Ends: true}}, {packet.WriteFirst, packet.Run{Repeat: 1}}, {packet.WriteFirst, packet.Run{Repeat: 1, Ends: true}},
			{packet.WriteMiddle, packet.Run{Repeat: 5}}, {packet.WriteMiddle, packet.Run{Repeat: 2, Ends: true}}, {packet.SendMiddle, packet.Run{Repeat: 2}},
		} {
			t.Run(fmt.Sprint(c.name, " ", run.op, run.run), func(t *testing.T) {
				var results [3]string
				for mode := range results { // packets, a run that is received as packets, a run
					f := NewFabric()
					if c.queue > 0 {
						f.queue = c.queue
					}
					p, q := f.NewLink(c.owners[0], addrA), f.NewLink(c.owners[1], addrB)
					rec := &frameRecorder{}
					wrap := func(l Link, w func(*frameRecorder) func(Link) Link) Link {
						if w == nil {
							return plain(l)
						}
						return w(rec)(l)
					}
					a, b := wrap(p, c.a), wrap(q, c.b)
					whole, payload := runFrame(aToB, 0xfffffe, run.op, run.run)
					before, _ := runFrame(aToB, 0xfffffd, packet.WriteMiddle, packet.Run{})
					batch := []TxFrame{before, whole, before}
					if mode == 0 {
						batch = append(append([]TxFrame{before}, asPackets(&whole, payload)...), before)
					}
					var got []RxFrame
					runs := 0
					for len(batch) > 0 {
						n, err := a.Send(1, batch)
						if err != nil {
							t.Fatal(err)
						}
						batch = batch[n:]
						var rx [4]RxFrame
						for {
							receive := b.Receive
							if mode == 2 {
								receive = func(now int64, batch []RxFrame) (int, error) { return ReceiveRuns(b, now, batch) }
							}
							m, err := receive(2, rx[:])
							if err != nil {
								t.Fatal(err)
							}
							for _, f := range rx[:m] {
								if mode == 1 && f.Run.Repeat > 0 {
									t.Fatal("Receive has returned a run")
								}
								if f.Run.Repeat > 0 {
									runs++
								}
								for k := range f.Run.Packets() {
									var part RunPart
									one := f
									if f.Run.Repeat > 0 {
										one = part.Packet(&f, k)
									}
									one.Head, one.Tail = bytesOf(&one), nil
									got = append(got, one)
								}
							}
							if m == 0 {
								break
							}
						}
					}
					if mode == 2 && (runs > 0) != c.whole {
						t.Errorf("received %d runs", runs)
					}
					results[mode] = fmt.Sprint(received(got), *a.(Counted).Counters(), *b.(Counted).Counters(), rec.frames)
				}
				if results[0] != results[1] || results[0] != results[2] {
					t.Errorf("packets:\n%s\na run, received as packets:\n%s\na run:\n%s", results[0], results[1], results[2])
				}
			})
		}
	}
}

type frameRecorder struct{ frames []string }

func (r *frameRecorder) WriteFrame(_ int64, _ int, frame []byte) error {
	r.frames = append(r.frames, fmt.Sprintf("%x", frame))
	return nil
}

// Runs are sent only where a link passes them on.
func TestOnlyLinksOfOneEngineCarryRuns(t *testing.T) {
	onSend, err := fault.Parse(strings.NewReader("drop send opcode WRITE_LAST"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		owners [2]any
		wrap   func(Link) Link
		want   bool
	}{
		{"one engine", [2]any{"same", "same"}, func(l Link) Link { return l }, true},
		{"two engines", [2]any{"one", "two"}, func(l Link) Link { return l }, false},
		{"middleware", [2]any{"same", "same"}, func(l Link) Link {
			loop := NewLoopbackLink(l, func(Station) bool { return false })
			return NewFaultLink(NewCaptureLink(loop, nil, CaptureOptions{}), nil)
		}, true},
		{"to itself", [2]any{"one", "two"}, func(l Link) Link { return NewLoopbackLink(l, func(Station) bool { return true }) }, true},
		{"capture", [2]any{"same", "same"}, func(l Link) Link { return NewCaptureLink(l, &frameRecorder{}, CaptureOptions{}) }, false},
		{"rules", [2]any{"same", "same"}, func(l Link) Link { return NewFaultLink(l, onSend) }, false},
		{"shape", [2]any{"same", "same"}, func(l Link) Link { return NewFaultLink(NewShapedLink(l, Shape{}), nil) }, false},
	} {
		f := NewFabric()
		a := f.NewLink(c.owners[0], addrA)
		f.NewLink(c.owners[1], addrB)
		if got := CarriesRuns(c.wrap(a), aToB); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		if CarriesRuns(c.wrap(a), &Path{Src: addrA, Dst: addr6}) && c.name != "to itself" {
			t.Errorf("%s: runs to nowhere", c.name)
		}
	}
}

// A run refers to its sender's memory, unless that may change.
func TestRunsReferToTheirPayload(t *testing.T) {
	for _, c := range []struct {
		name               string
		volatile, released bool
		packets            bool
	}{{name: "whole"}, {name: "volatile", volatile: true}, {name: "released", released: true}, {name: "released, received as packets", released: true, packets: true}} {
		f := NewFabric()
		a, b := f.NewLink("same", addrA), f.NewLink("same", addrB)
		tx, payload := runFrame(aToB, 1, packet.WriteMiddle, packet.Run{Repeat: 3})
		payload = bytes.Clone(payload)
		tx.Payload[0] = payload
		want := bytes.Clone(payload)
		tx.Volatile = c.volatile
		mustSend(t, a, 1, tx)
		var rx [8]RxFrame
		n, _ := b.ReceiveRuns(2, rx[:0])
		if c.packets {
			n, _ = b.Receive(2, rx[:])
		}
		if c.released {
			b.CopyPayload()
		}
		if c.volatile || c.released {
			clear(payload)
		}
		if !c.packets {
			n, _ = b.ReceiveRuns(2, rx[:])
		}
		var got []byte
		for i := range rx[:n] {
			got = append(got, rx[i].Tail[0]...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: received %q", c.name, got)
		}
		if refers := &rx[0].Tail[0][0] == &payload[0]; refers != (c.name == "whole") {
			t.Errorf("%s: refers to the payload: %v", c.name, refers)
		}
	}
}

// A link that was asked for packets in the middle of a run goes on with packets.
func TestRunThatIsReceivedInPart(t *testing.T) {
	f := NewFabric()
	a, b := f.NewLink("same", addrA), f.NewLink("same", addrB)
	tx, _ := runFrame(aToB, 1, packet.WriteFirst, packet.Run{Repeat: 4, Ends: true})
	mustSend(t, a, 1, tx)
	var rx [2]RxFrame
	var got []uint32
	n, _ := b.Receive(2, rx[:])
	for n > 0 {
		got = append(got, psns(t, rx[:n])...)
		if rx[0].Run.Repeat > 0 {
			t.Fatal("the rest was received as a run")
		}
		n, _ = b.ReceiveRuns(2, rx[:])
	}
	if fmt.Sprint(got) != "[1 2 3 4 5]" || b.NextDeadline() != 0 {
		t.Errorf("PSNs %v, next deadline %d", got, b.NextDeadline())
	}
}

func TestRunsDoNotAllocate(t *testing.T) {
	for _, owners := range [][2]any{{"same", "same"}, {"one", "two"}} {
		f := NewFabric()
		a, b := f.NewLink(owners[0], addrA), f.NewLink(owners[1], addrB)
		tx, payload := runFrame(aToB, 1, packet.WriteFirst, packet.Run{Repeat: 7, Ends: true})
		var rx [64]RxFrame
		batch := []TxFrame{tx}
		for _, receive := range []func(int64, []RxFrame) (int, error){b.ReceiveRuns, b.Receive} {
			round := func() {
				k := batch[0].Payload[:1]
				batch[0] = tx
				k[0] = payload
				batch[0].Payload = k
				a.Send(1, batch)
				for n, _ := receive(1, rx[:]); n > 0; n, _ = receive(1, rx[:]) {
				}
			}
			for range 4 {
				round()
			}
			if n := testing.AllocsPerRun(50, round); n != 0 {
				t.Errorf("owners %v: %v allocations", owners, n)
			}
		}
	}
}

// A packetLink knows no runs. It notes the frames that it is to send.
type packetLink struct {
	Link
	sent []TxFrame
}

func (l *packetLink) Send(_ int64, batch []TxFrame) (int, error) {
	l.sent = append(l.sent, batch...)
	return len(batch), nil
}

// A run that a NIC has made for itself is divided if the NIC has lost its address when it sends the
// run, and the frames go to the link.
func TestLoopbackDividesRunsIfTheAddressIsGone(t *testing.T) {
	own := true
	inner := &packetLink{Link: NewFabric().NewLink("x", addrA)}
	l := NewLoopbackLink(inner, func(Station) bool { return own })
	if !CarriesRuns(l, aToB) {
		t.Fatal("a NIC does not send itself runs")
	}
	own = false
	l.lastPath = nil // as after each Send
	run, payload := runFrame(aToB, 1, packet.WriteFirst, packet.Run{Repeat: 7, Ends: true})
	want := asPackets(&run, payload)
	if n, err := l.Send(2, []TxFrame{run}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if len(inner.sent) != len(want) {
		t.Fatalf("the link gets %d frames, want %d", len(inner.sent), len(want))
	}
	for i := range want {
		got, want := &inner.sent[i], &want[i]
		if head := want.Head[:want.HeadLen]; got.Run.Repeat != 0 || got.Len != want.Len || !bytes.Equal(got.Head[:got.HeadLen], head) {
			t.Errorf("frame %d: %x, %d bytes, want %x, %d", i, got.Head[:got.HeadLen], got.Len, head, want.Len)
		}
	}
}

// A link that takes all packets of a run and then reports an error has taken the run.
func TestRunWithAnErrorIsTaken(t *testing.T) {
	run, _ := runFrame(aToB, 1, packet.WriteFirst, packet.Run{Repeat: 7, Ends: true})
	var s runDivider
	n, err := s.sendAll(1, []TxFrame{run, run}, func(_ int64, b []TxFrame) (int, error) { return len(b), ErrClosed })
	if n != 1 || !errors.Is(err, ErrClosed) {
		t.Errorf("took %d frames, %v; want 1, %v", n, err, ErrClosed)
	}
}
