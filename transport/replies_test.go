package transport

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

// The tests below pass single replies to a requester and check each packet that it emits.

// reply passes an ACK, NAK or response to the requester of s.
func (s *side) reply(op uint8, psn uint32, syn packet.Syndrome, msn uint32, n int) {
	p := RxPacket{Header: packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(op), PKey: packet.DefaultPKey, DestQP: s.qp.QPN(), PSN: psn}, AETH: packet.AETH{Syndrome: syn, MSN: msn}}, Len: n}
	if n > 0 {
		p.Payload = [][]byte{make([]byte, n)}
	}
	s.deliver(&p)
}

const unlimited = packet.SyndromeACK | packet.CreditsUnlimited

// TestRequesterHandlesReplies has three SENDs of one packet and a READ of three packets
// outstanding.
func TestRequesterHandlesReplies(t *testing.T) {
	type rep struct {
		op  uint8
		psn int
		syn packet.Syndrome
		n   int
	}
	ack := func(psn int, s packet.Syndrome) rep { return rep{packet.Acknowledge, psn, s, 0} }
	for _, c := range []struct {
		name  string
		reps  []rep
		want  string // packets emitted after the first burst
		done  string
		drop  DropReason
		state ib.QPState
	}{
		{"ACK of the last PSN acknowledges all", []rep{ack(2, unlimited)}, "", "1:0 2:0 3:0", NumDropReasons, ib.QPSRTS},
		{"old ACK", []rep{ack(2, unlimited), ack(0, unlimited)}, "", "1:0 2:0 3:0", DropGhostACK, ib.QPSRTS},
		{"ACK beyond what was sent", []rep{ack(6, unlimited)}, "", "", DropACKBeyondSent, ib.QPSRTS},
		{"sequence NAK acknowledges earlier PSNs", []rep{ack(1, packet.NAKSequence)}, "SEND_ONLY+1 SEND_ONLY+2 READ_REQUEST+3", "1:0", NumDropReasons, ib.QPSRTS},
		{"a repeated sequence NAK is ignored", []rep{ack(1, packet.NAKSequence), ack(1, packet.NAKSequence)}, "SEND_ONLY+1 SEND_ONLY+2 READ_REQUEST+3", "1:0", DropStaleResponse, ib.QPSRTS},
		{"READ response acknowledges earlier PSNs", []rep{{packet.ReadResponseFirst, 3, unlimited, 1024}}, "", "1:0 2:0 3:0", NumDropReasons, ib.QPSRTS},
		{"gap in READ responses: the rest is requested again once", []rep{{packet.ReadResponseFirst, 3, unlimited, 1024}, {packet.ReadResponseLast, 5, unlimited, 952}, {packet.ReadResponseLast, 5, unlimited, 952}}, "READ_REQUEST+4", "1:0 2:0 3:0", DropStaleResponse, ib.QPSRTS},
		{"whole READ", []rep{{packet.ReadResponseFirst, 3, unlimited, 1024}, {packet.ReadResponseMid, 4, 0, 1024}, {packet.ReadResponseLast, 5, unlimited, 952}}, "", "1:0 2:0 3:0 4:0", NumDropReasons, ib.QPSRTS},
		{"READ response too short", []rep{{packet.ReadResponseFirst, 3, unlimited, 1000}}, "", "1:0 2:0 3:0 4:7", NumDropReasons, ib.QPSErr},
		{"READ response too long", []rep{{packet.ReadResponseOnly, 3, unlimited, 1024}}, "", "1:0 2:0 3:0 4:7", NumDropReasons, ib.QPSErr},
		{"ACK of a READ without its responses", []rep{ack(5, unlimited)}, "READ_REQUEST+3", "1:0 2:0 3:0", NumDropReasons, ib.QPSRTS},
		{"response to a SEND", []rep{{packet.ReadResponseOnly, 1, unlimited, 8}}, "", "", DropUnmatchedResponse, ib.QPSRTS},
		{"atomic response to a READ", []rep{{packet.AtomicAcknowledge, 3, unlimited, 0}}, "", "1:0 2:0 3:0 4:7", NumDropReasons, ib.QPSErr},
		{"NAK invalid request", []rep{ack(1, packet.NAKInvalidRequest)}, "", "1:0 2:9 3:5 4:5", NumDropReasons, ib.QPSErr},
		{"NAK remote access", []rep{ack(0, packet.NAKRemoteAccess)}, "", "1:10 2:5 3:5 4:5", NumDropReasons, ib.QPSErr},
		{"NAK remote operational", []rep{ack(2, packet.NAKRemoteOperational)}, "", "1:0 2:0 3:11 4:5", NumDropReasons, ib.QPSErr},
		{"RNR NAK: wait", []rep{ack(1, packet.SyndromeRNR|12)}, "", "1:0", NumDropReasons, ib.QPSRTS},
		{"reserved syndrome", []rep{ack(1, 0x45)}, "", "", DropUnmatchedResponse, ib.QPSRTS},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := connect(t, defaults)
			for i := range 3 {
				a.post(SendWR{ID: uint64(i + 1), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, 8)})
			}
			a.post(SendWR{ID: 4, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGEs: a.sge(0, 3000), RemoteAddr: sideBase, RKey: b.region.RKey()})
			a.qp.Transmit(&a.env)
			if got, want := a.emitted(defaults.psn), "SEND_ONLY+0 SEND_ONLY+1 SEND_ONLY+2 READ_REQUEST+3"; got != want {
				t.Fatalf("emitted %q, want %q", got, want)
			}
			for _, r := range c.reps {
				a.reply(r.op, packet.PSNAdd(defaults.psn, r.psn), r.syn, 0, r.n)
			}
			if got := a.emitted(defaults.psn); got != c.want {
				t.Errorf("emitted %q, want %q", got, c.want)
			}
			if got := statuses(a.done); got != c.done {
				t.Errorf("completions %s, want %s", got, c.done)
			}
			if c.drop != NumDropReasons && a.count.Drops[c.drop] == 0 {
				t.Errorf("drop %v was not counted: %v", c.drop, a.count.Drops)
			}
			if a.qp.State() != c.state {
				t.Errorf("state %v, want %v", a.qp.State(), c.state)
			}
			sends := uint64(strings.Count(strings.Split(c.done, "4:")[0], ":0"))
			if a.count.TxSendRequests != sends {
				t.Errorf("counted %d SENDs, want %d", a.count.TxSendRequests, sends)
			}
		})
	}
}

func TestRNRNAKWaitsRetransmitsAndExhaustsRetries(t *testing.T) {
	o := defaults
	o.rnrRetry = 2
	a, _ := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	for i := range 3 {
		if got := a.emitted(o.psn); got != "SEND_ONLY+0" {
			t.Fatalf("transmission %d: %q", i+1, got)
		}
		a.reply(packet.Acknowledge, o.psn, packet.SyndromeRNR|12, 0, 0)
		if i == 2 {
			break
		}
		wait := a.qp.NextDeadline() - a.env.Now
		if wait != packet.RNRTimer(12) {
			t.Fatalf("RNR wait of %d ns", wait)
		}
		a.env.Now += wait - 1
		a.qp.Transmit(&a.env)
		if len(a.out) != 0 {
			t.Fatal("sent before the RNR timer ended")
		}
		a.env.Now++
		a.qp.Transmit(&a.env)
	}
	if got := statuses(a.done); got != fmt.Sprintf("1:%d", ib.WCRNRRetryExcErr) || a.qp.State() != ib.QPSErr {
		t.Errorf("%s in %v", got, a.qp.State())
	}
}

func TestTimeoutRetransmitsRetryCountTimes(t *testing.T) {
	o := defaults
	o.retry = 4
	a, _ := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 2000)})
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	sent := 0
	for range 10 {
		a.qp.Transmit(&a.env)
		if a.emitted(o.psn) == "SEND_FIRST+0 SEND_LAST+1 SEND_ONLY+2" {
			sent++
		}
		d := a.qp.NextDeadline()
		if d == 0 {
			break
		}
		if want := ib.ACKTimeout(o.timeout); d-a.env.Now != want {
			t.Fatalf("timeout %d after %d ns, want %d", sent, d-a.env.Now, want)
		}
		a.env.Now = d
		a.qp.Expire(&a.env)
	}
	if got := statuses(a.done); sent != 5 || got != fmt.Sprintf("1:%d 2:%d", ib.WCRetryExcErr, ib.WCWRFlushErr) {
		t.Errorf("%d transmissions, %s", sent, got)
	}
	if a.count.Retries != uint64(o.retry) {
		t.Errorf("counted %d retries, want %d", a.count.Retries, o.retry)
	}
}

func TestTimeoutDoublesForPeerThatHasReplied(t *testing.T) {
	a, _ := connect(t, defaults)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 2000)})
	a.qp.Transmit(&a.env)
	a.reply(packet.Acknowledge, defaults.psn, packet.SyndromeACK, 0, 0)
	for i, times := range []int64{1, 2, 4, 4} {
		a.qp.Transmit(&a.env)
		d := a.qp.NextDeadline()
		if want := times * ib.ACKTimeout(defaults.timeout); d-a.env.Now != want {
			t.Errorf("timeout %d after %d ns, want %d", i, d-a.env.Now, want)
		}
		a.env.Now = d
		a.qp.Expire(&a.env)
	}
}

// A doubled timeout is shorter by a random part of up to half of it. So it is never below the
// timeout that was set, nor above the doubled one, and equal random numbers give equal timeouts.
// One that is not doubled has its exact length.
func TestDoubledTimeoutIsShortenedAtRandom(t *testing.T) {
	waits := func(code uint8, seed uint64, replied bool) (l [5]int64) {
		o := defaults
		o.timeout = code
		a, _ := connect(t, o)
		a.env.Rand = rand.New(rand.NewPCG(seed, 0))
		a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 2000)})
		a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		a.qp.Transmit(&a.env)
		if replied {
			a.reply(packet.Acknowledge, o.psn, packet.SyndromeACK, 0, 0)
		}
		for i := range l {
			if i == 4 { // a reply ends the doubling
				a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, 1), packet.SyndromeACK, 1, 0)
			}
			a.qp.Transmit(&a.env)
			d := a.qp.NextDeadline()
			l[i], a.env.Now = d-a.env.Now, d
			a.qp.Expire(&a.env)
		}
		return l
	}
	for _, code := range []uint8{1, minTimeout, defaults.timeout, 31} {
		timeout := ib.ACKTimeout(max(code, minTimeout))
		if got, want := waits(code, 1, false), [5]int64{timeout, timeout, timeout, timeout, timeout}; got != want {
			t.Errorf("code %d, no reply: timeouts after %d ns, want %d", code, got, want)
		}
		shortest, longest := [5]float64{1, 1, 1, 1, 1}, [5]float64{} // in doubled timeouts
		for seed := range uint64(50) {
			l := waits(code, seed, true)
			if again := waits(code, seed, true); again != l {
				t.Errorf("code %d, seed %d: timeouts after %d and %d ns", code, seed, l, again)
			}
			for i, doubled := range [5]int64{timeout, 2 * timeout, 4 * timeout, 4 * timeout, timeout} {
				if least := max(timeout, doubled/2); l[i] < least || l[i] > doubled {
					t.Errorf("code %d, seed %d: timeout %d after %d ns, want %d to %d", code, seed, i, l[i], least, doubled)
				}
				part := float64(l[i]) / float64(doubled)
				shortest[i], longest[i] = min(shortest[i], part), max(longest[i], part)
			}
		}
		for i := 1; i < 4; i++ {
			if shortest[i] > 0.55 || longest[i] < 0.95 {
				t.Errorf("code %d: timeout %d is %.2f to %.2f times the doubled one", code, i, shortest[i], longest[i])
			}
		}
	}
}

// A peer that has replied to earlier work requests, and not to the oldest that is outstanding, is
// given up after little more than retry_cnt + 1 times the timeout, also if the requester still
// retransmits early because of earlier losses.
func TestSilentPeerIsGivenUpInTime(t *testing.T) {
	o := defaults
	o.mtu, o.timeout = 256, 18
	for retry := range uint8(8) {
		o.retry = retry
		for _, lossy := range []bool{false, true} {
			a, _ := connect(t, o)
			a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 1024), Flags: ib.SendSignaled})
			a.qp.Transmit(&a.env)
			if lossy && retry > 0 {
				a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, 1), packet.NAKSequence, 0, 0)
				a.env.Now += 1e6
			}
			a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, 3), packet.SyndromeACK, 1, 0)
			a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 1024)})
			posted := a.env.Now
			for a.qp.State() == ib.QPSRTS {
				a.qp.Transmit(&a.env)
				a.env.Now = a.qp.NextDeadline()
				a.qp.Expire(&a.env)
			}
			took, least := a.env.Now-posted, int64(retry+1)*ib.ACKTimeout(o.timeout)
			if got := statuses(a.done); took < least || took > least*5/4 || got != fmt.Sprintf("1:0 2:%d", ib.WCRetryExcErr) {
				t.Errorf("retry_cnt %d, losses %v: %s after %d ns, want %d", retry, lossy, got, took, least)
			}
			if early := a.count.AdaptiveRetransmissions; lossy && retry > 0 && early == 0 {
				t.Error("nothing was retransmitted early")
			}
		}
	}
}

// TestOldResponsesAfterTimeoutAreNoImpliedNAK loses the first packet of a READ response, so that
// the READ is retransmitted at the timeout. The rest of the first response, which arrives late,
// neither retransmits again nor uses a retry.
func TestOldResponsesAfterTimeoutAreNoImpliedNAK(t *testing.T) {
	o := defaults
	o.retry = 1
	a, b := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGEs: a.sge(0, 3000), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.qp.Transmit(&a.env)
	a.env.Now = a.qp.NextDeadline()
	a.qp.Expire(&a.env)
	a.qp.Transmit(&a.env)
	if got, want := a.emitted(o.psn), "READ_REQUEST+0 READ_REQUEST+0"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
	a.reply(packet.ReadResponseMid, o.psn+1, 0, 0, 1024)
	a.reply(packet.ReadResponseLast, o.psn+2, unlimited, 1, 952)
	if got := a.emitted(o.psn); got != "" || a.qp.State() != ib.QPSRTS {
		t.Errorf("then emitted %q, %v, %s", got, a.qp.State(), statuses(a.done))
	}
	a.reply(packet.ReadResponseFirst, o.psn, unlimited, 1, 1024)
	a.reply(packet.ReadResponseMid, o.psn+1, 0, 0, 1024)
	a.reply(packet.ReadResponseLast, o.psn+2, unlimited, 1, 952)
	if got := statuses(a.done); got != "1:0" {
		t.Errorf("completions %s", got)
	}
}

// TestAnyReplyResetsTimeoutBackoff checks that the next timeout has its initial length after any
// reply.
func TestAnyReplyResetsTimeoutBackoff(t *testing.T) {
	for _, answer := range []packet.Syndrome{packet.SyndromeACK, packet.SyndromeRNR | 12} {
		a, _ := connect(t, defaults)
		a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		for range 3 {
			a.qp.Transmit(&a.env)
			a.env.Now = a.qp.NextDeadline()
			a.qp.Expire(&a.env)
		}
		a.qp.Transmit(&a.env)
		a.reply(packet.Acknowledge, defaults.psn, answer, 0, 0)
		if answer != packet.SyndromeACK {
			a.env.Now = a.qp.NextDeadline()
			a.qp.Transmit(&a.env)
		}
		if wait := a.qp.NextDeadline() - a.env.Now; wait != ib.ACKTimeout(defaults.timeout) {
			t.Errorf("%#x: the next timeout is after %d ns, want %d", answer, wait, ib.ACKTimeout(defaults.timeout))
		}
	}
}

func TestRNRNAKRestoresTransportRetries(t *testing.T) {
	o := defaults
	o.retry = 1
	a, _ := connect(t, o)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	for range 5 { // each time the first RNR NAK is lost
		a.qp.Transmit(&a.env)
		a.env.Now = a.qp.NextDeadline()
		a.qp.Expire(&a.env)
		a.qp.Transmit(&a.env)
		a.reply(packet.Acknowledge, o.psn, packet.SyndromeRNR|12, 0, 0)
		a.env.Now = a.qp.NextDeadline()
	}
	if a.qp.State() != ib.QPSRTS {
		t.Errorf("failed with %s", statuses(a.done))
	}
}

func TestFenceWaitsForReads(t *testing.T) {
	a, b := connect(t, defaults)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.post(SendWR{ID: 3, Opcode: ib.WRSend, Flags: ib.SendFence, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	if got, want := a.emitted(defaults.psn), "READ_REQUEST+0 SEND_ONLY+1"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
	a.reply(packet.ReadResponseOnly, defaults.psn, unlimited, 1, 8)
	if got, want := a.emitted(defaults.psn), "SEND_ONLY+2"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
}

func TestRequesterRespectsMaxRDAtomic(t *testing.T) {
	a, b := connect(t, defaults) // 4
	for i := range 6 {
		a.post(SendWR{ID: uint64(i), Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
	}
	a.qp.Transmit(&a.env)
	if got, want := a.emitted(defaults.psn), "READ_REQUEST+0 READ_REQUEST+1 READ_REQUEST+2 READ_REQUEST+3"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
	a.reply(packet.ReadResponseOnly, defaults.psn, unlimited, 1, 8)
	if got, want := a.emitted(defaults.psn), "READ_REQUEST+4"; got != want {
		t.Fatalf("emitted %q, want %q", got, want)
	}
}

func TestRequesterSendsOneMessageAtATimeWithoutCredits(t *testing.T) {
	a, _ := connect(t, defaults)
	for i := range 4 {
		a.post(SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	}
	a.room = 1
	a.qp.Transmit(&a.env)
	a.room = -1
	a.emitted(defaults.psn)
	for i := range 3 {
		a.reply(packet.Acknowledge, packet.PSNAdd(defaults.psn, i), packet.SyndromeACK, uint32(i+1), 0)
		if got, want := a.emitted(defaults.psn), fmt.Sprintf("SEND_ONLY%+d", i+1); got != want {
			t.Fatalf("with no credits: %q, want %q", got, want)
		}
	}
}

func TestLocalProtectionErrorCompletesInOrder(t *testing.T) {
	a, b := connect(t, defaults)
	b.recv(1, 0, 100)
	b.recv(2, 0, 100)
	bad := a.sge(0, 8)
	bad[0].LKey ^= 1
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, 8)})
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: bad})
	a.post(SendWR{ID: 3, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:0 2:4 3:5" || a.qp.State() != ib.QPSErr {
		t.Errorf("%s in %v", got, a.qp.State())
	}
	if got := statuses(b.done); got != "1:0" {
		t.Errorf("responder completed %s", got)
	}
}

func TestModifyFollowsRCStateMachine(t *testing.T) {
	q, _ := New(Config{Service: packet.RC, SendDepth: 1})
	e := &Env{Now: 1, Sink: newSide(t, 1, 8)}
	full := ib.QPAttr{PathMTU: 1024, PKey: 1}
	for _, c := range []struct {
		to   ib.QPState
		mask ib.QPAttrMask
		ok   bool
	}{
		{ib.QPSRTR, ib.QPMaskState, false},
		{ib.QPSErr, ib.QPMaskState, false},
		{ib.QPSInit, ib.QPMaskState, false},
		{ib.QPSInit, ib.QPMaskState | ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess | ib.QPMaskQKey, false},
		{ib.QPSInit, ib.QPMaskState | ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess, true},
		{ib.QPSRTS, ib.QPMaskState, false},
		{ib.QPSRTR, ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN | ib.QPMaskMaxDestRDAtomic, false},
		{ib.QPSRTR, ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN | ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer, true},
		{ib.QPSRTS, ib.QPMaskState | ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskSQPSN | ib.QPMaskMaxRDAtomic, true},
		{ib.QPSRTS, ib.QPMaskState | ib.QPMaskPathMTU, false},
		{ib.QPSSQD, ib.QPMaskState | ib.QPMaskEnSQDNotify, true},
		{ib.QPSRTS, ib.QPMaskState, true},
		{ib.QPSErr, ib.QPMaskState, true},
		{ib.QPSRTS, ib.QPMaskState, false},
		{ib.QPSReset, ib.QPMaskState, true},
	} {
		full.State = c.to
		from := q.State()
		err := q.Modify(e, &full, c.mask)
		if (err == nil) != c.ok {
			t.Errorf("%v to %v with %#x: %v", from, c.to, uint32(c.mask), err)
		}
		if err != nil && q.State() != from {
			t.Errorf("a rejected Modify changed the state")
		}
	}
}
