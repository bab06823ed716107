package wire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"softroce/packet"
	"softroce/wire/fault"
)

// newTestFaultLink returns a link at addrA with a fault program, and its peer.
func newTestFaultLink(t testing.TB, program string, owner ...any) (*FaultLink, *FabricLink) {
	t.Helper()
	p, err := fault.Parse(strings.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	f := NewFabric()
	var o any
	if len(owner) > 0 {
		o = owner[0]
	}
	return NewFaultLink(f.NewLink(o, addrA), p), f.NewLink(o, addrB)
}

var bToA = &Path{Src: addrB, Dst: addrA, SrcPort: 0xc123, HopLimit: 64}

// passThrough sends packets with PSNs 0 to n-1 through a FaultLink, in one direction. It returns
// the packets that pass at once, and those that pass until a later time.
func passThrough(t testing.TB, f *FaultLink, peer *FabricLink, dir fault.Direction, n int, later int64) (at0, at1 []RxFrame) {
	t.Helper()
	from, to, path := Link(f), Link(peer), aToB
	if dir == fault.Received {
		from, to, path = peer, f, bToA
	}
	var batch []TxFrame
	for i := range n {
		batch = append(batch, frame(path, uint32(i), []byte{byte(i), 1, 2, 3, 4}))
	}
	mustSend(t, from, 0, batch...)
	at0 = receive(t, to, 0)
	for d := f.NextDeadline(); d != 0 && d <= later; d = f.NextDeadline() {
		if dir == fault.Sent {
			mustSend(t, from, d)
		}
		at1 = append(at1, receive(t, to, d)...)
	}
	return at0, at1
}

func TestFaultRulesInBothDirections(t *testing.T) {
	const all = "0 1 2 3 4 5 6 7 8 9"
	for _, c := range []struct{ program, at0, at1 string }{
		{"", all, ""},
		{"drop", "", ""},
		{"drop nth 3,5", "0 1 3 5 6 7 8 9", ""},
		{"drop every 4", "0 1 2 4 5 6 8 9", ""},
		{"drop skip 2 every 4 count 1", "0 1 2 3 4 6 7 8 9", ""},
		{"drop psn 2..4,9", "0 1 5 6 7 8", ""},
		{"drop psn 0xfffff0..1", "2 3 4 5 6 7 8 9", ""},
		{"drop qp 0x12", all, ""},
		{"drop qp 0x11 count 9", "9", ""},
		{"drop opcode WRITE_MIDDLE skip 1", "0", ""},
		{"drop opcode UC_WRITE_MIDDLE,RC_SEND_ONLY", all, ""},
		{"drop kind write skip 1", "0", ""},
		{"drop kind request kind first", all, ""},
		{"drop kind ack", all, ""},
		{"duplicate nth 2", "0 1 1 2 3 4 5 6 7 8 9", ""},
		{"duplicate 2 nth 10", "0 1 2 3 4 5 6 7 8 9 9 9", ""},
		{"reorder nth 1", "1 0 2 3 4 5 6 7 8 9", ""},
		{"reorder 3 nth 2", "0 2 3 4 1 5 6 7 8 9", ""},
		{"reorder 3 nth 2,3", "0 3 4 5 1 2 6 7 8 9", ""},
		{"reorder 3 within 1ms nth 9", "0 1 2 3 4 5 6 7 9", "8"},
		{"reorder 2 nth 10", "0 1 2 3 4 5 6 7 8", "9"},
		{"delay 1ms nth 1,2", "2 3 4 5 6 7 8 9", "0 1"},
		{"delay 1ms nth 1\ndelay 2ms nth 1\ndelay 2ms nth 2", "2 3 4 5 6 7 8 9", "1 0"},
		{"duplicate nth 1\ndelay 1ms nth 1", "1 2 3 4 5 6 7 8 9", "0 0"},
		{"drop time 1s..2s", all, ""},
		{"stall time ..1s skip 6", "0 1 2 3 4 5", "6 7 8 9"},
		{"stall time ..1s nth 2\ndelay 2ms nth 3", "0 3 4 5 6 7 8 9", "2 1"},
		{"stall time 1s..2s", all, ""},
		{"drop time ..1s skip 1", "0", ""},
		{"drop src 192.0.2.0/24 dst 192.0.2.0/24 skip 1", "0", ""},
		{"drop src 192.0.3.0/24", all, ""},
		{"reorder nth 1\ndrop", "0", ""},
		// At 1 Mbit/s a frame of 66 bytes (14+20+8+12+5+3+4) takes 528 µs.
		{"rate 1Mbit queue 3 skip 6", "0 1 2 3 4 5", "6 7 8"},
	} {
		for _, dir := range []fault.Direction{fault.Sent, fault.Received} {
			t.Run(fmt.Sprintf("%s/%d", c.program, dir), func(t *testing.T) {
				f, peer := newTestFaultLink(t, c.program)
				at0, at1 := passThrough(t, f, peer, dir, 10, int64(time.Minute))
				want0, want1 := c.at0, c.at1
				if c.program == "reorder nth 1\ndrop" {
					// Reorder ends the evaluation of the first packet, and the others are dropped,
					// so it waits for the timeout.
					want0, want1 = "", "0"
				}
				if got := line(psns(t, at0)); got != want0 {
					t.Errorf("at once %s, want %s", got, want0)
				}
				if got := line(psns(t, at1)); got != want1 {
					t.Errorf("later %s, want %s", got, want1)
				}
				if !f.tx.empty() || !f.rx.empty() || f.NextDeadline() != 0 {
					t.Error("packets are left in the queues")
				}
			})
		}
	}
}

func line(psns []uint32) string { return strings.Trim(fmt.Sprint(psns), "[]") }

func TestFaultRuleAppliesToItsDirection(t *testing.T) {
	f, peer := newTestFaultLink(t, "drop send nth 1\ndrop receive nth 2")
	sent, _ := passThrough(t, f, peer, fault.Sent, 3, 0)
	got, _ := passThrough(t, f, peer, fault.Received, 3, 0)
	if line(psns(t, sent)) != "1 2" || line(psns(t, got)) != "0 2" {
		t.Errorf("sent %v, received %v", psns(t, sent), psns(t, got))
	}
	if c := f.Counters(); c.Drops[DropFault] != 2 {
		t.Errorf("counters %+v", c)
	}
	for i, c := range f.RuleCounters() {
		if c.Matched != 3 || c.Acted != 1 || c.Rule.Line != i+1 {
			t.Errorf("rule %d: %+v", i, c)
		}
	}
}

func TestFaultChangesOnlyTheSelectedPacket(t *testing.T) {
	for _, c := range []struct {
		rule string
		ok   func(sent []byte, got *RxFrame) bool
	}{
		{"corrupt bit 96", func(sent []byte, got *RxFrame) bool {
			return got.BadICRC && got.Head[12] == sent[12]^0x80 && bytes.Equal(got.Head[13:], sent[13:])
		}},
		{"corrupt", func(sent []byte, got *RxFrame) bool { return got.BadICRC }},
		{"mark", func(sent []byte, got *RxFrame) bool { return got.CE() && !got.BadICRC && bytes.Equal(got.Head, sent) }},
		{"set psn 0x123456", func(sent []byte, got *RxFrame) bool {
			return !got.BadICRC && bytes.Equal(got.Head[9:12], []byte{0x12, 0x34, 0x56}) && got.Head[8] == sent[8]
		}},
		{"set pkey 0x1234", func(sent []byte, got *RxFrame) bool { return got.Head[2] == 0x12 && got.Head[3] == 0x34 }},
	} {
		for _, owner := range []any{nil, "same"} {
			for _, dir := range []fault.Direction{fault.Sent, fault.Received} {
				t.Run(fmt.Sprint(c.rule, owner, dir), func(t *testing.T) {
					f, peer := newTestFaultLink(t, c.rule+" nth 1", owner)
					from, to, path := Link(f), Link(peer), aToB
					if dir == fault.Received {
						from, to, path = peer, f, bToA
					}
					payload := []byte("do not touch")
					tx := []TxFrame{frame(path, 1, payload), frame(path, 2, payload)}
					want := sentBytes(&tx[0])
					mustSend(t, from, 0, tx...)
					got := receive(t, to, 0)
					if len(got) != 2 || !c.ok(want, &got[0]) {
						t.Fatalf("received %+v", got)
					}
					if got[1].BadICRC || got[1].CE() || !bytes.Equal(got[1].Head, sentBytes(&tx[1])) {
						t.Errorf("the second packet was changed: %+v", got[1])
					}
					if string(payload) != "do not touch" || !bytes.Equal(sentBytes(&tx[0]), want) || tx[0].Flip != 0 {
						t.Error("the sender's frame was changed")
					}
				})
			}
		}
	}
}

func TestFaultLinkSetSkipsPacketsWithoutTheField(t *testing.T) {
	f, peer := newTestFaultLink(t, "set va 5")
	passThrough(t, f, peer, fault.Sent, 2, 0)
	if c := f.RuleCounters()[0]; c.Matched != 0 {
		t.Error("matched packets without an RETH")
	}
}

// A frame can end anywhere, as a test may send it.
func TestFaultAndCaptureHandleFramesOfEveryLength(t *testing.T) {
	const rules = "set psn 1; set syndrome 1; set va 1; set imm 1; corrupt; mark; duplicate 1; reorder; delay 1us; rate 1Gbit; drop psn 5"
	h := packet.Header{BTH: packet.BTH{Opcode: packet.WriteOnlyImm, PSN: 5}}
	var whole TxFrame
	whole.Set(&h)
	for rule := range strings.SplitSeq(rules, "; ") {
		for _, dir := range []fault.Direction{fault.Sent, fault.Received} {
			p, err := fault.Parse(strings.NewReader(rule))
			must(t, err)
			fabric, sink := NewFabric(), &frameList{}
			f := NewFaultLink(NewCaptureLink(fabric.NewLink(nil, addrA), sink, CaptureOptions{}), p)
			peer := fabric.NewLink(nil, addrB)
			from, to, path := Link(f), Link(peer), aToB
			if dir == fault.Received {
				from, to, path = peer, f, bToA
			}
			for n := range int(whole.HeadLen) {
				tx := TxFrame{Tx: whole.Tx, Path: path}
				tx.HeadLen, tx.Len = uint8(n), n
				mustSend(t, from, 1, tx)
				receive(t, to, 1)
			}
			mustSend(t, f, 1e9) // sends the queued frames
			receive(t, to, 1e9)
			if len(sink.frames) == 0 {
				t.Errorf("%s %v: nothing was captured", rule, dir)
			}
		}
	}
}

func TestFaultMatchesSyndromes(t *testing.T) {
	var acks []TxFrame
	for _, s := range []packet.Syndrome{0x1f, 0x2c, packet.NAKSequence, packet.NAKRemoteAccess} {
		h := packet.Header{BTH: packet.BTH{Opcode: packet.Acknowledge, PSN: uint32(s)}, AETH: packet.AETH{Syndrome: s}}
		f := TxFrame{Path: aToB}
		f.Set(&h)
		acks = append(acks, f)
	}
	for program, want := range map[string]string{
		"drop kind ack":          "44 96 98",
		"drop kind nak":          "31 44",
		"drop kind rnr":          "31 96 98",
		"drop kind nak,rnr":      "31",
		"drop kind response,rnr": "",
		"drop kind write":        "31 44 96 98",
	} {
		f, peer := newTestFaultLink(t, program)
		mustSend(t, f, 0, acks...)
		if got := line(psns(t, receive(t, peer, 0))); got != want {
			t.Errorf("%s: received %s, want %s", program, got, want)
		}
	}
}

func TestFaultReordersWithinAQPOnly(t *testing.T) {
	f, peer := newTestFaultLink(t, "reorder 2 qp 0x11 nth 1")
	other := frame(aToB, 100, nil)
	h := bth(t, &RxFrame{Head: other.Head[:other.HeadLen]})
	h.DestQP = 0x12
	other.Set(&h)
	mustSend(t, f, 0, frame(aToB, 0, nil), other, other, other, frame(aToB, 1, nil), other, frame(aToB, 2, nil), frame(aToB, 3, nil))
	if got := line(psns(t, receive(t, peer, 0))); got != "100 100 100 1 100 2 0 3" {
		t.Errorf("received %s", got)
	}
}

func TestFaultRateLimits(t *testing.T) {
	f, peer := newTestFaultLink(t, "rate 1Mbit")
	for i := range 20 {
		mustSend(t, f, 0, frame(aToB, uint32(i), make([]byte, 1000)))
	}
	const each = 8 * (14 + 20 + 8 + 12 + 1000 + 4) * 1000 // ns
	for i := range 20 {
		d := f.NextDeadline()
		if want := int64(i+1) * each; d != want {
			t.Fatalf("packet %d is due at %d, want %d", i, d, want)
		}
		mustSend(t, f, d-1)
		if n := len(receive(t, peer, d-1)); n != 0 {
			t.Fatal("a packet passed before it was due")
		}
		mustSend(t, f, d)
		if got := receive(t, peer, d); len(got) != 1 || psns(t, got)[0] != uint32(i) {
			t.Fatalf("at %d: %v", d, psns(t, got))
		}
	}
}

func TestFaultIsDeterministicForASeed(t *testing.T) {
	run := func(seed string) (out string) {
		f, peer := newTestFaultLink(t, "seed "+seed+"\ndrop chance 10%\nduplicate chance 10%\ncorrupt chance 5%\n"+
			"reorder 3 chance 10%\ndelay 10us jitter 10us chance 50%\nmark chance 3%")
		for _, dir := range []fault.Direction{fault.Sent, fault.Received} {
			a, b := passThrough(t, f, peer, dir, 300, int64(time.Second))
			for _, x := range append(a, b...) {
				out += fmt.Sprintf("%x %v %v\n", x.Head, x.BadICRC, x.CE())
			}
		}
		return out
	}
	if a, b := run("5"), run("5"); a != b {
		t.Error("two runs with one seed differ")
	}
	if run("5") == run("6") {
		t.Error("runs with different seeds are equal")
	}
	p, _ := fault.Parse(strings.NewReader("drop\ndrop nic softroce1"))
	a, b := p.For("softroce0"), p.For("softroce1")
	if a.Seed == b.Seed || len(a.Rules) != 1 || len(b.Rules) != 2 {
		t.Errorf("programs of two NICs: %+v, %+v", a, b)
	}
}

func TestFaultChance(t *testing.T) {
	f, peer := newTestFaultLink(t, "drop chance 20%")
	n := 0
	for range 20 {
		got, _ := passThrough(t, f, peer, fault.Sent, 500, 0)
		n += len(got)
	}
	if n < 7850 || n > 8150 { // the standard deviation is 40
		t.Errorf("%d of 10000 packets passed, want about 8000", n)
	}
}

func TestFaultQueuesFramesThatTheLinkDoesNotTake(t *testing.T) {
	f, peer := newTestFaultLink(t, "duplicate nth 2\ndrop nth 6")
	peer.inbox.limit = 2
	var batch []TxFrame
	for i := range 12 {
		batch = append(batch, frame(aToB, uint32(i), []byte{byte(i)}))
	}
	var got []uint32
	for rounds := 0; len(got) < 12 && rounds < 100; rounds++ {
		n, err := f.Send(0, batch)
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch[:n] { // the sender reuses the payload
			batch[i].Payload[0][0] = 0xee
		}
		batch = batch[n:]
		for _, r := range receive(t, peer, 0) {
			p := psns(t, []RxFrame{r})[0]
			if r.Head[12] != byte(p) {
				t.Errorf("payload of %d is %#x", p, r.Head[12])
			}
			got = append(got, p)
		}
	}
	if line(got) != "0 1 1 2 3 4 6 7 8 9 10 11" {
		t.Errorf("received %s", line(got))
	}
	if c := f.RuleCounters(); c[0].Matched != 12 || c[1].Acted != 1 {
		t.Errorf("counts %+v", c)
	}
}

func TestFaultQueueIsBounded(t *testing.T) {
	f, peer := newTestFaultLink(t, "delay 1s")
	for i := range fault.MaxQueued + 10 {
		mustSend(t, f, 0, frame(aToB, uint32(i), nil))
	}
	if c := f.RuleCounters()[0]; c.Overflowed != 10 || f.Counters().Drops[DropFault] != 10 {
		t.Errorf("counters %+v, want 10 overflows", c)
	}
	f.Close()
	_ = peer
}

func TestSetProgramReplacesTheProgram(t *testing.T) {
	f, peer := newTestFaultLink(t, "drop")
	a, _ := passThrough(t, f, peer, fault.Sent, 2, 0)
	f.SetProgram(nil)
	b, _ := passThrough(t, f, peer, fault.Sent, 2, 0)
	f.SetProgram(&fault.Program{Rules: []fault.Rule{{Match: func(h *packet.Header) bool { return h.PSN == 1 }}}})
	c, _ := passThrough(t, f, peer, fault.Received, 3, 0)
	if len(a) != 0 || len(b) != 2 || line(psns(t, c)) != "0 2" {
		t.Errorf("received %d, %d and %v", len(a), len(b), psns(t, c))
	}
}

func TestFaultDoesNotAllocate(t *testing.T) {
	f, peer := newTestFaultLink(t, "drop every 10\nduplicate every 7\nreorder 2 every 5\ncorrupt every 11\ndelay 1us every 3\nset psn 3 every 9", "same")
	var tx, back []TxFrame
	for i := range 32 {
		tx = append(tx, frame(aToB, uint32(i), make([]byte, 1024)))
		back = append(back, frame(bToA, uint32(i), make([]byte, 1024)))
	}
	var rx [32]RxFrame
	now := int64(0)
	round := func() {
		now += 1000
		f.Send(now, tx)
		peer.Send(now, back)
		for _, l := range []Link{f, peer} {
			for {
				if n, _ := l.Receive(now, rx[:]); n == 0 {
					break
				}
			}
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
}
