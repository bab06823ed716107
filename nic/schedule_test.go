package nic_test

import (
	"fmt"
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// A tapLink records the frames that the link takes. It takes at most limit of them in one Send, or
// all if limit is negative.
type tapLink struct {
	wire.Link
	limit        int
	superPackets bool // reported by Capabilities
	sent         []packet.Header
	bytes        int
}

func (l *tapLink) Capabilities() wire.Capabilities {
	c := l.Link.Capabilities()
	if c.SuperPackets = l.superPackets; c.SuperPackets {
		c.SrcPort = wire.Port // so that queue pairs share a path
	}
	return c
}

func (l *tapLink) Send(now int64, batch []wire.TxFrame) (int, error) {
	if l.limit >= 0 {
		batch = batch[:min(len(batch), l.limit)]
	}
	n, err := l.Link.Send(now, batch)
	for i := range batch[:n] {
		var h packet.Header
		if _, err := h.Parse(batch[i].Head[:batch[i].HeadLen]); err != nil {
			panic(err)
		}
		l.sent = append(l.sent, h)
		l.bytes += batch[i].Len
	}
	if l.limit >= 0 {
		l.limit -= n
	}
	return n, err
}

// tapped returns a NIC and its tap.
func (w *testFabric) tapped(n byte) (*nic.Device, *tapLink) {
	tap := &tapLink{limit: -1}
	return w.tap(n, tap), tap
}

func (w *testFabric) tap(n byte, tap *tapLink) *nic.Device {
	return w.nic(n, func(l wire.Link) wire.Link { tap.Link = l; return tap })
}

// step1 is one step of the engine.
func (w *testFabric) step1() {
	w.now++
	w.engine.Step(w.now)
}

var oneWR = nic.Caps{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64}

// connected returns connected queue pairs of two clients.
func connected(a, b *client, caps nic.Caps) (x, y *queue) {
	x, y = a.qp(caps), b.qp(caps)
	x.connect(4096, y)
	y.connect(4096, x)
	return x, y
}

func TestClientDelaysOthersByOneTurn(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
		for _, n := range []int{1, 64, 1024} {
			t.Run(fmt.Sprintf("%v/%d", op, n), func(t *testing.T) {
				w := newTestFabric(t)
				x, xTap := w.tapped(1)
				y, yTap := w.tapped(2)
				a, b := w.client(x), w.client(y)
				for range n {
					q, _ := connected(a, b, oneWR)
					q.post(transport.SendWR{Opcode: op, RKey: b.mr.RKey(), SGEs: a.sge(0, 4<<20)})
				}
				for range 20 {
					w.step1()
				}
				// The hog's data leaves from y in case of READs.
				from, to, tap := x, y, xTap
				if op == ib.WRRDMARead {
					from, to, tap = y, x, yTap
				}
				v, peer := connected(w.client(from), w.client(to), oneWR)
				for range 20 {
					tap.sent = nil
					v.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: peer.mr.RKey(), SGEs: v.sge(0, 64)})
					w.step1()
					at := -1
					for i, h := range tap.sent {
						if h.DestQP == peer.QPN() {
							at = i
						}
					}
					if at < 0 || at > nic.StepBytes/4096/4 {
						t.Fatalf("the message is frame %d of the batch of %d (-1: not in it)", at, len(tap.sent))
					}
					w.step1()
					w.step1()
					v.want(0, ib.WCSuccess, ib.WCRDMAWrite)
				}
			})
		}
	}
}

func TestStepTransmitsBoundedBytes(t *testing.T) {
	w := newTestFabric(t)
	var taps []*tapLink
	var clients []*client
	for i := range 4 {
		d, tap := w.tapped(byte(i + 1))
		clients, taps = append(clients, w.client(d)), append(taps, tap)
	}
	for i, a := range clients {
		for k := range 32 {
			q, _ := connected(a, clients[(i+1+k%3)%4], oneWR)
			q.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: clients[(i+1+k%3)%4].mr.RKey(), SGEs: a.sge(0, 4<<20)})
		}
	}
	for range 100 {
		before := 0
		for _, tap := range taps {
			before += tap.bytes
		}
		w.step1()
		sent := -before
		for i, tap := range taps {
			sent += tap.bytes
			if len(tap.sent) == 0 {
				t.Errorf("NIC %d did not send", i)
			}
			tap.sent = nil
		}
		if sent < nic.StepBytes/2 || sent > nic.StepBytes+64<<10 {
			t.Fatalf("a step sent %d bytes, want about %d", sent, nic.StepBytes)
		}
	}
}

// While two processes transmit, steps that take long make the next ones transmit less.
func TestLongStepsShortenTheNext(t *testing.T) {
	w := newTestFabric(t)
	x, tap := w.tapped(1)
	b := w.clientOf(w.nic(2), nic.ContextOptions{PID: 2})
	post := func(a *client) {
		q, _ := connected(a, b, oneWR)
		q.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 4<<20)})
	}
	sent := func() int {
		before := tap.bytes
		w.step1()
		return tap.bytes - before
	}
	alone, other := w.clientOf(x, nic.ContextOptions{PID: 2}), w.clientOf(x, nic.ContextOptions{PID: 3})
	post(alone)
	sent()
	w.now += 2e9
	sent()
	if n := w.engine.AdaptStep(time.Second); n != nic.StepBytes {
		t.Errorf("steps of a process that is alone transmit %d bytes, want %d", n, nic.StepBytes)
	}
	post(other)
	sent()
	for range 10 {
		w.engine.AdaptStep(60 * time.Microsecond)
	}
	if n := w.engine.AdaptStep(30 * time.Microsecond); n != nic.TurnBytes {
		t.Errorf("after long steps the next may transmit %d bytes, want %d", n, nic.TurnBytes)
	}
	if n := sent(); n == 0 || n > nic.TurnBytes*3/2 {
		t.Errorf("after long steps a step transmitted %d bytes, want about %d", n, nic.TurnBytes)
	}
	for range 20 {
		w.engine.AdaptStep(10 * time.Microsecond)
	}
	if n := w.engine.AdaptStep(30 * time.Microsecond); n != nic.StepBytes {
		t.Errorf("after short steps the next may transmit %d bytes, want %d", n, nic.StepBytes)
	}
	other.Context.Close()
	sent()
	if n := w.engine.AdaptStep(time.Second); n != nic.StepBytes/2 {
		t.Errorf("soon after the other process ended, steps transmit %d bytes, want %d", n, nic.StepBytes/2)
	}
	w.now += 2e9
	sent()
	if n := w.engine.AdaptStep(time.Second); n != nic.StepBytes {
		t.Errorf("long after the other process ended, steps transmit %d bytes, want %d", n, nic.StepBytes)
	}
}

// A process whose queue pairs have nothing to send does not make the steps of another one shorter.
func TestOnlyProcessesThatTransmitShortenSteps(t *testing.T) {
	w := newTestFabric(t)
	x, _ := w.tapped(1)
	b := w.clientOf(w.nic(2), nic.ContextOptions{PID: 3})
	a := w.clientOf(x, nic.ContextOptions{PID: 2})
	q, _ := connected(a, b, oneWR)
	q.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 4<<20)})
	w.step1()
	if n := w.engine.AdaptStep(time.Second); n != nic.StepBytes {
		t.Errorf("beside a queue pair that was connected steps transmit %d bytes, want %d", n, nic.StepBytes)
	}
	r, _ := connected(b, a, oneWR)
	r.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: a.mr.RKey(), SGEs: b.sge(0, 4<<20)})
	w.step1()
	if n := w.engine.AdaptStep(time.Second); n != nic.StepBytes/2 {
		t.Errorf("beside one that sends they transmit %d bytes, want %d", n, nic.StepBytes/2)
	}
}

// Payload that only the kernel can copy makes steps transmit less, but only while others wait.
func TestCopiedPayloadShortensStepsOfManyClients(t *testing.T) {
	w := newTestFabric(t)
	x, tap := w.tapped(1)
	b := w.clientOf(w.nic(2), nic.ContextOptions{PID: 3})
	a, other := w.clientOf(x, nic.ContextOptions{PID: 2}), w.clientOf(x, nic.ContextOptions{PID: 3})
	a.useCopiedMemory()
	q, _ := connected(a, b, nic.Caps{MaxSendWR: 16, MaxSendSGE: 1, MaxRecvWR: 1, MaxRecvSGE: 1})
	post := func(q *queue, a *client) {
		q.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 4<<20)})
	}
	for range 8 {
		post(q, a)
	}
	sent := func() int {
		before := tap.bytes
		w.step1()
		return tap.bytes - before
	}
	sent() // the first turn finds out
	alone := sent()
	r, _ := connected(other, b, oneWR)
	r.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: other.sge(0, 8)})
	sent()
	shared := sent()
	if alone < nic.StepBytes*3/4 || shared < alone/3 || shared > alone*2/3 {
		t.Errorf("a step of a client that is alone sends %d bytes, and %d beside another one; want about half of it", alone, shared)
	}
}

// Clients that become active again and again do not keep one waiting that is always active, and
// the other way round.
func TestClientsGetEqualShares(t *testing.T) {
	w := newTestFabric(t)
	x, tap := w.tapped(1)
	b := w.client(w.nic(2))
	owner := map[uint32]int{}
	var queues [][]*queue
	sizes := []int{1 << 20, 32 << 10, 4 << 10}
	for i, size := range sizes { // in few large messages, or many small ones
		a := w.client(x)
		queues = append(queues, nil)
		for range 1 << 20 / size {
			q, peer := connected(a, b, smallCaps)
			owner[peer.QPN()] = i
			queues[i] = append(queues[i], q)
		}
	}
	bytes := make([]int, len(sizes))
	for range 400 {
		for i, l := range queues {
			for _, q := range l {
				for q.SendRoom() > smallCaps.MaxSendWR-4 {
					q.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: q.sge(0, sizes[i])})
				}
			}
			queues[i][0].cq.PollAll()
		}
		tap.sent = nil
		w.step1()
		for _, h := range tap.sent {
			bytes[owner[h.DestQP]] += 4096
		}
	}
	for i, n := range bytes {
		if mean := (bytes[0] + bytes[1] + bytes[2]) / 3; mean == 0 || n < mean*8/10 || n > mean*12/10 {
			t.Errorf("client %d, messages of %d bytes: %d bytes, mean %d", i, sizes[i], n, mean)
		}
	}
}

// 64 queue pairs request more atomic operations than the link can carry responses for.
func TestRepliesDoNotKeepRequestsFromBeingSent(t *testing.T) {
	w := newTestFabric(t)
	y, tap := w.tapped(2)
	a, b := w.client(w.nic(1)), w.client(y)
	caps := smallCaps
	caps.MaxSendWR = 16
	var queues []*queue
	for range 64 {
		q, _ := connected(a, b, caps)
		queues = append(queues, q)
	}
	_, own := connected(a, b, smallCaps)
	replies, requests := 0, 0
	for range 2000 {
		for _, q := range queues {
			for q.SendRoom() > 0 {
				q.post(transport.SendWR{Opcode: ib.WRAtomicFetchAndAdd, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
			}
		}
		if own.SendRoom() > 0 {
			own.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: a.mr.RKey(), SGEs: b.sge(0, 1<<20)})
		}
		a.cq.PollAll()
		b.cq.PollAll()
		tap.sent, tap.limit = nil, 2
		w.step1()
		for _, h := range tap.sent {
			if h.Opcode.Info().Request {
				requests += 4096 + ethernet
			} else {
				replies += packet.MaxHeaderLen + ethernet
			}
		}
	}
	if requests < replies/4 || replies < requests/4 {
		t.Errorf("%d bytes of requests and %d of replies were sent", requests, replies)
	}
}

// A NIC of another engine has filled the queue of the link. A step processes a part of it, and the
// memory epoch ends although frames wait: they are copies.
func TestStepReceivesBoundedBytes(t *testing.T) {
	w := newTestFabric(t)
	b := w.client(w.nic(2))
	receiver, _ := w.secondEngine()
	a := w.client(w.nic(1))
	for range 4 {
		x, _ := connected(a, b, oneWR)
		x.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 4<<20)})
	}
	closed := 0
	mr, err := b.Context.RegMR(b.pd, closingMemory{mrtable.HeapMemory(make([]byte, 8)), &closed}, 0, 8, allow)
	check(t, err)
	w.step1()
	receiver.Step(w.now)
	check(t, b.Context.DeregMR(mr))
	for range 20 {
		for range 20 {
			w.step1()
		}
		before := b.Device.Counters().Link.RxBytes
		_, busy := receiver.Step(w.now)
		n := b.Device.Counters().Link.RxBytes - before
		if !busy || n < nic.StepBytes || n > nic.StepBytes*3/2 {
			t.Fatalf("a step received %d bytes, want about %d", n, nic.StepBytes)
		}
	}
	if closed != 1 {
		t.Errorf("deregistered memory was closed %d times", closed)
	}
}

// A closingMemory counts calls of Close.
type closingMemory struct {
	mrtable.Memory
	closed *int
}

func (m closingMemory) Close() error {
	*m.closed++
	return m.Memory.Close()
}

// A queue pair with many receives enters the error state. Flushing them does not occupy the engine.
func TestFlushedReceivesAreSpreadOverSteps(t *testing.T) {
	const posted = 4096
	w := newTestFabric(t)
	c := w.client(w.nic(1))
	c.cq = c.newCQ(posted)
	q := c.qp(nic.Caps{MaxSendWR: 1, MaxRecvWR: posted})
	q.connect(1024, q)
	for i := range posted {
		q.recv(uint64(i), nil)
	}
	check(t, q.SetState(ib.QPSErr))
	for flushed := 0; flushed < posted; {
		w.step1()
		n := len(c.cq.PollAll())
		if n == 0 || n > posted/16 {
			t.Fatalf("%d receives were flushed at once, after %d", n, flushed)
		}
		flushed += n
	}
}

// Queue pairs that fail in their turn have another one, for their receives to be flushed. They are
// in one list only: their client can then leave.
func TestFailureInTurnKeepsSchedule(t *testing.T) {
	const receives = 200 // more than one turn flushes
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	var failing []*queue
	for range 3 {
		q, _ := connected(a, b, nic.Caps{MaxSendWR: 4, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1})
		for i := range receives {
			q.recv(uint64(i), q.sge(0, 8))
		}
		failing = append(failing, q)
	}
	for _, q := range failing {
		q.post(transport.SendWR{ID: 100, Opcode: ib.WRSend, SGEs: []transport.SGE{{Addr: 0, Length: 8, LKey: 1}}})
	}
	w.step()
	for !a.Context.CloseSome(nic.CloseObjects) {
	}
	w.run(1e6)
}
