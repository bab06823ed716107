package nic_test

import (
	"io"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// A socketLink does not report that more frames wait, like the links that end in a socket.
type socketLink struct{ wire.Link }

func (socketLink) NextDeadline() int64 { return 0 }

// 600 responses arrive before the deadline of their requests, more than a step receives, but the
// engine runs only after that deadline. With retry_cnt 0 a timeout is fatal.
func TestTimersWaitForResponsesThatHaveArrived(t *testing.T) {
	w := newTestFabric(t)
	socket := func(l wire.Link) wire.Link { return socketLink{l} }
	a := w.client(w.nic(1, socket))
	engine, other := w.secondEngine()
	b := w.client(w.nic(2, socket))

	const n = 600
	for range n {
		x, y := a.qp(nic.Caps{MaxSendWR: 1, MaxRecvWR: 1}), b.qp(nic.Caps{MaxSendWR: 1, MaxRecvWR: 1})
		at := attrs(1024, y)
		at.RetryCount = 0
		x.connectWith(at)
		y.connect(1024, x)
		x.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	}
	deadline := int64(0)
	for range 20 {
		w.now += 1000
		deadline, _ = engine.Step(w.now)
	}
	for range 20 {
		w.now += 1000
		other.Step(w.now)
	}
	w.now = deadline + 100e3
	for range 20 {
		engine.Step(w.now)
		w.now += 1000
	}
	done := a.cq.PollAll()
	for _, c := range done {
		if c.Status != ib.WCSuccess {
			t.Fatalf("completion %+v", c)
		}
	}
	if c := a.Device.Counters(); len(done) != n || c.LocalACKTimeout != 0 {
		t.Errorf("%d of %d completions, %d timeouts", len(done), n, c.LocalACKTimeout)
	}
}

// A laggingLink leaves out what arrived within its lag before Receive.
type laggingLink struct {
	wire.Link
	readAt int64
}

const linkLag = 10e3

func (l *laggingLink) Capabilities() wire.Capabilities {
	c := l.Link.Capabilities()
	c.Lag = linkLag
	return c
}

func (l *laggingLink) Receive(now int64, batch []wire.RxFrame) (int, error) {
	if now-l.readAt <= linkLag {
		return 0, nil
	}
	l.readAt = now
	return l.Link.Receive(now, batch)
}

// writeOnce posts a WRITE from a to b on a new queue pair. retry_cnt is 0: a timeout is fatal.
func writeOnce(a, b *client) (x *queue, timeout int64) {
	x, y := a.qp(smallCaps), b.qp(smallCaps)
	at := attrs(1024, y)
	at.RetryCount = 0
	x.connectWith(at)
	y.connect(1024, x)
	x.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	return x, 4096 << at.Timeout
}

// A response arrives just before the deadline of its request, and the link leaves it out at first.
func TestTimersWaitForLinkThatLags(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { return &laggingLink{Link: socketLink{l}} }))
	engine, other := w.secondEngine()
	x, timeout := writeOnce(a, w.client(w.nic(2)))
	w.now = 2 * linkLag
	deadline, due := w.now+timeout, int64(0)
	for busy := true; busy; w.now++ {
		due, busy = engine.Step(w.now)
	}
	if due != deadline+linkLag {
		t.Fatalf("the engine is due %d ns after the deadline, want %d", due-deadline, int64(linkLag))
	}
	engine.Step(deadline - 2) // reads the link
	for now := w.now; now < w.now+10; now++ {
		other.Step(now)
	}
	for now := deadline; now <= due; now += 1000 {
		engine.Step(now)
	}
	engine.Step(due)
	engine.Step(due + 1)
	x.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	if n := a.Device.Counters().LocalACKTimeout; n != 0 {
		t.Errorf("%d timeouts", n)
	}
}

// An unreadLink fails in several calls of Receive, before it reads.
type unreadLink struct {
	wire.Link
	err   error
	calls int // that fail
}

func (l *unreadLink) Receive(now int64, batch []wire.RxFrame) (int, error) {
	if l.calls > 0 {
		l.calls--
		return 0, l.err
	}
	return l.Link.Receive(now, batch)
}

// A response arrives before the deadline of its request, behind packets that the link drops, or
// behind an error.
func TestTimersWaitForWhatIsNotRead(t *testing.T) {
	for _, err := range []error{wire.ErrUnread, io.ErrUnexpectedEOF} {
		testTimersWait(t, err)
	}
}

func testTimersWait(t *testing.T, err error) {
	w := newTestFabric(t)
	l := &unreadLink{err: err}
	a := w.client(w.nic(1, func(inner wire.Link) wire.Link { l.Link = socketLink{inner}; return l }))
	engine, other := w.secondEngine()
	x, _ := writeOnce(a, w.client(w.nic(2)))
	due := int64(0)
	for busy := true; busy; w.now++ {
		due, busy = engine.Step(w.now)
	}
	for range 10 {
		w.now++
		other.Step(w.now)
	}
	l.calls = 5
	for w.now = due + 1; l.calls > 0; w.now++ {
		if _, busy := engine.Step(w.now); !busy && err == wire.ErrUnread {
			t.Fatalf("the engine waits although the link has to be read %d times", l.calls)
		}
	}
	engine.Step(w.now)
	x.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	if n := a.Device.Counters().LocalACKTimeout; n != 0 {
		t.Errorf("%v: %d timeouts", err, n)
	}
}

// A gateLink accepts no frames while it is shut.
type gateLink struct {
	wire.Link
	shut bool
}

func (l *gateLink) Send(now int64, batch []wire.TxFrame) (int, error) {
	if l.shut {
		return 0, nil
	}
	return l.Link.Send(now, batch)
}

// The engine does not run for a second while a frame waits for the link.
func TestTimeInWhichEngineDoesNotRunIsNoTimeout(t *testing.T) {
	w := newTestFabric(t)
	gate := &gateLink{shut: true}
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { gate.Link = l; return gate })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	at := attrs(1024, b)
	at.RetryCount = 0
	a.connectWith(at)
	b.connect(1024, a)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	w.now++
	w.engine.Step(w.now)
	gate.shut = false
	w.now += 1e9
	w.run(1e9)
	a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	if c := a.Device.Counters(); c.LocalACKTimeout != 0 || c.Retransmitted != 0 || c.TxStalled != 0 {
		t.Errorf("%d timeouts, %d packets retransmitted, %d discarded", c.LocalACKTimeout, c.Retransmitted, c.TxStalled)
	}
}

// A floodedLink never runs out of frames, all of them too short to be packets.
type floodedLink struct{ wire.Link }

func (floodedLink) Receive(_ int64, batch []wire.RxFrame) (int, error) {
	for i := range batch {
		batch[i] = wire.RxFrame{Head: make([]byte, 4)}
	}
	return len(batch), nil
}

func TestTimersExpireOnLinkThatIsNeverEmpty(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { return floodedLink{stalledLink{l}} })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	a.connect(1024, b)
	a.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	for end := w.now + 200e6; w.now < end; w.now += 1e5 {
		w.engine.Step(w.now)
	}
	if n := a.Device.Counters().LocalACKTimeout; n != 1 {
		t.Errorf("%d timeouts within 200 ms", n)
	}
}

// An endlessLink drops packets in each call of Receive, and still holds references to memory.
type endlessLink struct{ wire.Link }

func (endlessLink) Receive(int64, []wire.RxFrame) (int, error) { return 0, wire.ErrUnread }
func (endlessLink) HoldsReferences() bool                      { return true }

func TestStepEndsOnLinkThatOnlyDropsPackets(t *testing.T) {
	w := newTestFabric(t)
	w.nic(1, func(l wire.Link) wire.Link { return endlessLink{l} })
	w.now++
	if _, busy := w.engine.Step(w.now); !busy {
		t.Error("the engine waits although the link has to be read again")
	}
}
