package transport

import (
	"slices"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport/congestion"
)

// A recordingController allows a window, and records what is reported to it.
type recordingController struct {
	congestion.Controller
	window     uint64
	roundTrips []int64
	losses     []int64 // when
}

func (c *recordingController) Window(int) uint64 { return c.window }
func (c *recordingController) Lost(now int64)    { c.losses = append(c.losses, now) }

func (c *recordingController) Replied(_, roundTrip int64) {
	c.roundTrips = append(c.roundTrips, roundTrip)
}

func (c *recordingController) wantLosses(t *testing.T, n int) {
	t.Helper()
	if len(c.losses) != n {
		t.Fatalf("losses at %v, want %d", c.losses, n)
	}
}

func controlled(t *testing.T, window uint64) (a *side, c *recordingController, reply func(s packet.Syndrome, acked int) (sent int)) {
	o := defaults
	o.mtu = 256
	a, b := connect(t, o)
	c = &recordingController{window: window}
	a.qp.SetController(c)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMAWrite, SGEs: a.sge(0, 1<<18), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.qp.Transmit(&a.env)
	return a, c, func(s packet.Syndrome, acked int) int {
		a.out = nil
		a.reply(packet.Acknowledge, packet.PSNAdd(o.psn, acked), s, 0, 0)
		return len(a.out)
	}
}

func TestControllerReceivesRoundTripsAndLosses(t *testing.T) {
	a, c, reply := controlled(t, 16)
	a.env.Now += 70_000
	reply(unlimited, 3) // the first AckReq, a quarter of the window
	a.env.Now += 30_000
	reply(unlimited, 7) // was not timed: the next request that is was sent after the reply
	if want := []int64{70_000}; !slices.Equal(c.roundTrips, want) {
		t.Fatalf("round trips %v, want %v", c.roundTrips, want)
	}
	c.wantLosses(t, 0)
	reply(packet.NAKSequence, 8)
	c.wantLosses(t, 1)
	a.env.Now = a.qp.NextDeadline()
	a.qp.Expire(&a.env)
	c.wantLosses(t, 2)
	if c.losses[1] != a.env.Now {
		t.Errorf("a timeout at %d, reported at %d", a.env.Now, c.losses[1])
	}
}

// A reply that waits for the responses of READs says nothing about the network.
func TestControllerReceivesNoRoundTripsOfReads(t *testing.T) {
	a, b := connect(t, defaults)
	c := &recordingController{window: 16}
	a.qp.SetController(c)
	read := SendWR{Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()}
	write := read
	write.Opcode = ib.WRRDMAWrite
	for _, e := range []struct {
		posts []SendWR
		want  int
	}{{[]SendWR{read}, 0}, {[]SendWR{read, write}, 0}, {[]SendWR{write}, 1}, {[]SendWR{write, read}, 2}} {
		for _, w := range e.posts {
			a.post(w)
		}
		run(t, a, b, deliverAll)
		if len(c.roundTrips) != e.want {
			t.Errorf("%d round trips after %d requests more, want %d", len(c.roundTrips), len(e.posts), e.want)
		}
	}
}

func TestControllerLimitsWindow(t *testing.T) {
	a, c, reply := controlled(t, 16)
	if len(a.out) != 16 {
		t.Fatalf("%d packets of a window of 16", len(a.out))
	}
	c.window = 20
	if got := reply(unlimited, 3); got != 4+4 {
		t.Errorf("%d packets after 4 were acknowledged and the window grew by 4", got)
	}
	a.out = nil
	a.qp.SetController(nil)
	if a.qp.Transmit(&a.env); len(a.out) != sendWindow-20 {
		t.Errorf("%d packets without a controller, want %d", len(a.out), sendWindow-20)
	}
}

// An unawareSink never knows that it has no more slots.
type unawareSink struct{ *side }

func (unawareSink) Last(*QP) bool { return false }
func (unawareSink) Run(*QP) int   { return 0 }

// A window that became smaller is not full before a packet asked for an ACK. Otherwise the
// requester would wait for its timer.
func TestSmallerWindowAllowsAPacketThatAsksForAnACK(t *testing.T) {
	a, c, reply := controlled(t, 64)
	a.env.Sink, a.room = unawareSink{a}, 10
	if reply(unlimited, 47) != 10 {
		t.Fatal("not as many packets as there was room for")
	}
	c.window, a.room = congestion.MinWindow, -1
	a.qp.SetController(c)
	if got := reply(unlimited, 63); got != 1 || a.out[0].Head[8]&0x80 == 0 {
		t.Errorf("%d packets, want one that asks for an ACK", got)
	}
}
