package transport

import (
	"fmt"
	"slices"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport/congestion"
)

func TestRNRRetry7IsUnlimited(t *testing.T) {
	a, _ := connect(t, defaults)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	for range 20 {
		a.qp.Transmit(&a.env)
		if got := a.emitted(defaults.psn); got != "SEND_ONLY+0" {
			t.Fatalf("%q, completions %s", got, statuses(a.done))
		}
		a.reply(packet.Acknowledge, defaults.psn, packet.SyndromeRNR|1, 0, 0)
		a.env.Now = a.qp.NextDeadline()
	}
}

func TestLastPacketOfSendWindowRequestsACK(t *testing.T) {
	o := defaults
	o.mtu = 256
	a, b := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGEs: a.sge(0, 1<<18), RemoteAddr: sideBase, RKey: b.region.RKey()})
	if a.qp.Transmit(&a.env) {
		t.Error("Transmit returned true although only the window is full")
	}
	if len(a.out) != sendWindow || a.out[sendWindow-1].Head[8]&0x80 == 0 || a.out[sendWindow-2].Head[8]&0x80 != 0 {
		t.Fatalf("%d packets of %d, or AckReq is not on the last", len(a.out), sendWindow)
	}
	a.out = nil
	a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, 9), unlimited, 0, 0)
	if len(a.out) != 10 {
		t.Errorf("%d packets after ten were acknowledged", len(a.out))
	}
}

// TestTimeoutShrinksSendWindow also checks that each acknowledgement doubles the window, up to half
// of what was in flight.
func TestTimeoutShrinksSendWindow(t *testing.T) {
	o := defaults
	o.mtu = 256
	a, b := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGEs: a.sge(0, 1<<18), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.qp.Transmit(&a.env)
	a.out = nil
	a.env.Now = a.qp.NextDeadline()
	a.qp.Expire(&a.env)
	a.qp.Transmit(&a.env)
	acked := uint32(0)
	for _, want := range []int{16, 32, 64, 128, 256, 256 + 256/4} {
		if len(a.out) != want || a.out[want-1].Head[8]&0x80 == 0 {
			t.Fatalf("%d packets of %d, or AckReq is not on the last", len(a.out), want)
		}
		acked += uint32(want)
		a.out = nil
		a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, int(acked)-1), unlimited, 0, 0)
	}
}

// A timeout does not widen a window that losses have made smaller.
func TestTimeoutKeepsSmallSendWindow(t *testing.T) {
	o := defaults
	o.mtu = 256
	a, b := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMAWrite, SGEs: a.sge(0, 1<<18), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.qp.Transmit(&a.env)
	for i := range 10 {
		a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, i+1), packet.NAKSequence, 0, 0)
	}
	for a.count.LocalACKTimeout == 0 {
		a.env.Now = a.qp.NextDeadline()
		a.qp.Expire(&a.env)
		a.out = nil
		a.qp.Transmit(&a.env)
		if len(a.out) != congestion.MinWindow {
			t.Errorf("%d packets after %d timeouts, want %d", len(a.out), a.count.LocalACKTimeout, congestion.MinWindow)
		}
	}
}

// TestLossHalvesSendWindow also checks that the window grows with what is acknowledged, and that
// many losses leave some of it.
func TestLossHalvesSendWindow(t *testing.T) {
	o := defaults
	o.mtu = 256
	a, b := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGEs: a.sge(0, 1<<18), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.qp.Transmit(&a.env)
	reply := func(s packet.Syndrome, acked int) (sent int) {
		a.out = nil
		a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, acked), s, 0, 0)
		return len(a.out)
	}
	if got := reply(packet.NAKSequence, 0); got != sendWindow/2 {
		t.Errorf("%d packets after a NAK, want %d", got, sendWindow/2)
	}
	if got, want := reply(unlimited, 40-1), 40+10; got != want {
		t.Errorf("%d packets after 40 were acknowledged, want %d", got, want)
	}
	for i := range 10 {
		reply(packet.NAKSequence, 40+1+i)
	}
	if got := reply(packet.NAKSequence, 40+11); got != congestion.MinWindow {
		t.Errorf("%d packets after many NAKs, want %d", got, congestion.MinWindow)
	}
}

func TestAtMostHalfOfThePSNsAreOutstanding(t *testing.T) {
	o := defaults
	o.mtu = 256
	a, b := connect(t, o)
	r, err := a.table.Register(a.qp.PD(), &sparseMemory{1 << 31, make([]byte, maxRead)}, 0, 1<<31, ib.AccessLocalWrite)
	must(t, err)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, SGEs: []SGE{{Length: 1 << 31, LKey: r.LKey()}}, RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	if got, want := a.emitted(o.psn), "READ_REQUEST+0"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
	a.reply(packet.ReadResponseFirst, o.psn, unlimited, 1, 256)
	if got, want := a.emitted(packet.PSNAdd(o.psn, 1<<22)), fmt.Sprintf("SEND_ONLY%+d", 1<<22); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRequesterRejectsOverlongMessage(t *testing.T) {
	a, _ := connect(t, defaults)
	big := SGE{Addr: sideBase, Length: 1 << 30, LKey: a.region.LKey()}
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: []SGE{big, big, a.sge(0, 1)[0]}})
	a.qp.Transmit(&a.env)
	if got := statuses(a.done); got != "1:1" || len(a.out) > 0 {
		t.Errorf("%s, %d packets", got, len(a.out))
	}
}

// TestRequesterRejectsInvalidWorkRequests checks that each is rejected before its first byte is
// sent, even if only its second element is invalid.
func TestRequesterRejectsInvalidWorkRequests(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(a *side, w *SendWR)
		want ib.WCStatus
	}{
		"operation of no service":     {func(_ *side, w *SendWR) { w.Opcode = 77 }, ib.WCLocQPOpErr},
		"FLUSH of data":               {func(_ *side, w *SendWR) { w.Opcode = ib.WRFlush }, ib.WCLocQPOpErr},
		"ATOMIC WRITE of seven bytes": {func(a *side, w *SendWR) { w.Opcode, w.SGEs = ib.WRAtomicWrite, a.sge(0, 7) }, ib.WCLocQPOpErr},
		"ATOMIC WRITE of nine bytes":  {func(a *side, w *SendWR) { w.Opcode, w.SGEs = ib.WRAtomicWrite, a.sge(0, 9) }, ib.WCLocLenErr},
		"ATOMIC WRITE, unknown key":   {func(_ *side, w *SendWR) { w.Opcode, w.SGEs[0].LKey = ib.WRAtomicWrite, 1 }, ib.WCLocProtErr},
		"invalidation of a region":    {func(a *side, w *SendWR) { w.Opcode, w.Imm = ib.WRLocalInv, a.region.RKey() }, ib.WCMWBindErr},
		"bind of a region":            {func(a *side, w *SendWR) { w.Opcode, w.RKey = ib.WRBindMW, a.region.RKey() }, ib.WCMWBindErr},
		"too many elements":           {func(a *side, w *SendWR) { w.SGEs = slices.Repeat(a.sge(0, 1), 5) }, ib.WCLocQPOpErr},
		"too much inline":             {func(_ *side, w *SendWR) { w.Flags, w.Inline = ib.SendInline, make([]byte, 65) }, ib.WCLocQPOpErr},
		"inline READ":                 {func(_ *side, w *SendWR) { w.Opcode, w.Flags, w.Inline = ib.WRRDMARead, ib.SendInline, make([]byte, 8) }, ib.WCLocQPOpErr},
		"atomic of seven bytes":       {func(a *side, w *SendWR) { w.Opcode, w.SGEs = ib.WRAtomicFetchAndAdd, a.sge(0, 7) }, ib.WCLocQPOpErr},
		"atomic of nine bytes":        {func(a *side, w *SendWR) { w.Opcode, w.SGEs = ib.WRAtomicCmpAndSwp, a.sge(0, 9) }, ib.WCLocLenErr},
		"unknown key":                 {func(_ *side, w *SendWR) { w.SGEs[0].LKey ^= 1 }, ib.WCLocProtErr},
		"unknown key, second element": {func(a *side, w *SendWR) { w.SGEs = append(a.sge(0, 4000), SGE{Length: 8}) }, ib.WCLocProtErr},
	} {
		a, b := connect(t, defaults)
		wr := SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()}
		c.edit(a, &wr)
		a.post(wr)
		a.qp.Transmit(&a.env)
		if len(a.done) != 1 || a.done[0].Status != c.want || !a.done[0].Signaled || len(a.out) > 0 || a.qp.State() != ib.QPSErr {
			t.Errorf("%s: completions %s, %d packets, state %v", name, statuses(a.done), len(a.out), a.qp.State())
		}
	}
}

// TestBufferOfResponseIsCheckedWhenItArrives posts READs and atomics whose buffer is not
// accessible. The request is sent, the peer executes it, and its error comes first.
func TestBufferOfResponseIsCheckedWhenItArrives(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMARead, ib.WRAtomicFetchAndAdd} {
		for _, c := range []struct {
			name string
			edit func(*SendWR)
			want ib.WCStatus
		}{
			{"unknown key", func(w *SendWR) { w.SGEs[0].LKey ^= 1 }, ib.WCLocProtErr},
			{"past the region", func(w *SendWR) { w.SGEs[0].Addr = sideBase + 1<<18 }, ib.WCLocProtErr},
			{"unknown keys on both sides", func(w *SendWR) { w.SGEs[0].LKey, w.RKey = 1, 1 }, ib.WCRemAccessErr},
		} {
			a, b := connect(t, defaults)
			wr := SendWR{ID: 1, Opcode: op, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey(), CompareAdd: 1}
			c.edit(&wr)
			a.post(wr)
			run(t, a, b, deliverAll)
			if got := statuses(a.done); got != fmt.Sprintf("1:%d", c.want) || a.qp.State() != ib.QPSErr {
				t.Errorf("%v, %s: completions %s in %v, want status %d", op, c.name, got, a.qp.State(), c.want)
			}
			if executed := b.mem[0] == 1; executed != (op == ib.WRAtomicFetchAndAdd && c.want == ib.WCLocProtErr) {
				t.Errorf("%v, %s: the peer's memory holds %d", op, c.name, b.mem[0])
			}
		}
	}
}

func TestReadWithDepth0FailsOnEitherSide(t *testing.T) {
	o := defaults
	o.rdAtomic = 0
	a, b := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:2" {
		t.Errorf("requester: %s", got)
	}
	b.request(packet.ReadRequest, o.psn, 0)
	if got := b.emitted(o.psn); got != "ACKNOWLEDGE+0/61/0" {
		t.Errorf("responder: %s", got)
	}
}

func TestOnlyLastPacketHasSolicitedBit(t *testing.T) {
	a, b := connect(t, defaults)
	b.recv(1, 0, 4000)
	a.post(SendWR{Opcode: ib.WRSend, Flags: ib.SendSolicited, SGEs: a.sge(0, 3000)})
	a.post(SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSolicited, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.qp.Transmit(&a.env)
	var got []bool
	for _, tx := range a.out {
		got = append(got, tx.Head[1]&0x80 != 0)
	}
	if !slices.Equal(got, []bool{false, false, true, false}) {
		t.Errorf("solicited: %v", got)
	}
	run(t, a, b, deliverAll)
	if len(b.done) != 1 || !b.done[0].Solicited {
		t.Errorf("completions %+v", b.done)
	}
}

func TestAtomicsReturnOriginalValue(t *testing.T) {
	a, b := connect(t, defaults)
	b.mem[0] = 5
	wr := SendWR{SGEs: append(a.sge(0, 3), a.sge(100, 5)...), RemoteAddr: sideBase, RKey: b.region.RKey(), Flags: ib.SendSignaled}
	for i, c := range []struct {
		op                       ib.WROpcode
		compareAdd, swap         uint64
		wantOriginal, wantRemote byte
	}{
		{ib.WRAtomicFetchAndAdd, 2, 99, 5, 7},
		{ib.WRAtomicCmpAndSwp, 7, 9, 7, 9},
		{ib.WRAtomicCmpAndSwp, 7, 1, 9, 9},
	} {
		wr.ID, wr.Opcode, wr.CompareAdd, wr.Swap = uint64(i), c.op, c.compareAdd, c.swap
		a.post(wr)
		run(t, a, b, deliverAll)
		if a.mem[0] != c.wantOriginal || b.mem[0] != c.wantRemote || a.done[i].ByteLen != 8 {
			t.Errorf("%d: original %d, now %d: %+v", i, a.mem[0], b.mem[0], a.done[i])
		}
	}
}

func TestInlineDataIsCopiedAtPost(t *testing.T) {
	a, b := connect(t, defaults)
	b.recv(1, 0, 8)
	p := []byte("original")
	a.post(SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, Inline: p})
	copy(p, "changed!")
	run(t, a, b, deliverAll)
	if got, want := string(b.mem[:8]), "original"; got != want {
		t.Errorf("received %q, want %q", got, want)
	}
}

func TestTimeout0NeverRetransmits(t *testing.T) {
	o := defaults
	o.timeout = 0
	a, _ := connect(t, o)
	a.post(SendWR{Opcode: ib.WRSend})
	a.qp.Transmit(&a.env)
	if a.qp.NextDeadline() != 0 {
		t.Error("a timer is running")
	}
}

// A local ACK timeout of microseconds is used as about a millisecond, and reported as it was set.
func TestShortTimeoutHasFloor(t *testing.T) {
	o := defaults
	o.timeout = 1
	a, _ := connect(t, o)
	a.post(SendWR{Opcode: ib.WRSend})
	a.qp.Transmit(&a.env)
	if at := a.qp.NextDeadline() - a.env.Now; at != ib.ACKTimeout(minTimeout) {
		t.Errorf("the timer expires in %d ns, want %d", at, ib.ACKTimeout(minTimeout))
	}
	if code := a.qp.Query().Timeout; code != 1 {
		t.Errorf("the timeout is reported as code %d, want 1", code)
	}
}

// TestCompleterRejectsInvalidReadResponses has a READ of two packets and an atomic outstanding.
func TestCompleterRejectsInvalidReadResponses(t *testing.T) {
	for _, c := range []struct {
		name string
		op   uint8
		psn  int
		n    int
		gone bool // the requester's region is deregistered
		done string
		drop DropReason
	}{
		{"READ into deregistered memory", packet.ReadResponseFirst, 0, 1024, true, "1:4 2:5", DropLocalError},
		{"LAST instead of FIRST", packet.ReadResponseLast, 0, 1024, false, "1:7 2:5", DropLocalError},
		{"atomic response before the READ response", packet.AtomicAcknowledge, 2, 0, false, "", NumDropReasons},
		{"READ response to an atomic", packet.ReadResponseOnly, 2, 8, false, "", NumDropReasons},
		{"response to a PSN never sent", packet.ReadResponseOnly, 9, 8, false, "", DropACKBeyondSent},
		{"response to an old PSN", packet.ReadResponseOnly, -9, 8, false, "", DropUnmatchedResponse},
	} {
		a, b := connect(t, defaults)
		a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 2000), RemoteAddr: sideBase, RKey: b.region.RKey()})
		a.post(SendWR{ID: 2, Opcode: ib.WRAtomicFetchAndAdd, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
		a.qp.Transmit(&a.env)
		if c.gone {
			a.table.Deregister(a.region)
		}
		a.reply(c.op, packet.PSNAdd(defaults.psn, c.psn), unlimited, 0, c.n)
		if got := statuses(a.done); got != c.done || c.drop != NumDropReasons && a.count.Drops[c.drop] != 1 {
			t.Errorf("%s: completions %q, want %q; drops %v", c.name, got, c.done, a.count.Drops)
		}
	}
}

func TestCompleterRejectsInvalidAtomicResponses(t *testing.T) {
	for _, c := range []struct {
		name string
		op   uint8
		syn  packet.Syndrome
		gone bool
		done string
		drop DropReason
	}{
		{"with a NAK syndrome", packet.AtomicAcknowledge, packet.NAKRemoteAccess, false, "", DropUnmatchedResponse},
		{"into deregistered memory", packet.AtomicAcknowledge, unlimited, true, "1:4", DropLocalError},
		{"of a READ", packet.ReadResponseOnly, unlimited, false, "1:7", DropLocalError},
	} {
		a, b := connect(t, defaults)
		a.post(SendWR{ID: 1, Opcode: ib.WRAtomicFetchAndAdd, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
		a.qp.Transmit(&a.env)
		if c.gone {
			a.table.Deregister(a.region)
		}
		a.reply(c.op, defaults.psn, c.syn, 0, 0)
		if got := statuses(a.done); got != c.done || a.count.Drops[c.drop] != 1 {
			t.Errorf("%s: completions %q, want %q; drops %v", c.name, got, c.done, a.count.Drops)
		}
	}
}

// TestFatalNAKAfterLostReadResponse checks that no response is expected from a responder in error.
func TestFatalNAKAfterLostReadResponse(t *testing.T) {
	a, b := connect(t, defaults)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.post(SendWR{ID: 3, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	a.reply(packet.Acknowledge, packet.PSNAdd(defaults.psn, 1), packet.NAKInvalidRequest, 1, 0)
	if got, want := statuses(a.done), "1:5 2:9 3:5"; got != want {
		t.Errorf("completions %q, want %q", got, want)
	}
}

// A queue pair that only waits for replies has nothing to transmit.
func TestRequestingUntilAllIsSent(t *testing.T) {
	a, b := connect(t, defaults)
	want := func(what string, requesting bool) {
		t.Helper()
		if a.qp.Requesting() != requesting {
			t.Errorf("%s: requesting is %v", what, !requesting)
		}
	}
	want("idle", false)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMAWrite, SGEs: a.sge(0, 64), RemoteAddr: sideBase, RKey: b.region.RKey()})
	want("posted", true)
	a.transmit()
	want("sent", false)
	room := a.room
	a.room = 0
	a.reply(packet.Acknowledge, defaults.psn, packet.NAKSequence, 0, 0)
	want("to be sent again", true)
	a.room = room
	a.transmit()
	want("sent again", false)
	a.qp.Fail(&a.env, ib.EventQPFatal)
	want("in error", true)
}
