package nic_test

import (
	"bytes"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// A blocked batch is that of a client whose memory does not answer.
type blocked struct {
	*testFabric
	batches []nic.Batch
}

// block makes the next batch of copies for q's client wait.
func (w *testFabric) block(q *queue) *blocked {
	b := &blocked{testFabric: w}
	w.engine.BlockMemory(q.Context, func(one nic.Batch) { b.batches = append(b.batches, one) })
	return b
}

// one returns the batch that waits.
func (b *blocked) one() nic.Batch {
	b.t.Helper()
	if len(b.batches) != 1 {
		b.t.Fatalf("%d batches wait, want one", len(b.batches))
	}
	return b.batches[0]
}

// exchange lets x and y write n messages to each other, one at a time.
func exchange(x, y *queue, n int) {
	x.t.Helper()
	for i := range n {
		for _, p := range [][2]*queue{{x, y}, {y, x}} {
			p[0].post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: p[1].mr.RKey(), SGEs: p[0].sge(0, 64)})
			x.run(1e6)
			if l := p[0].cq.PollAll(); len(l) != 1 || l[0].Status != ib.WCSuccess {
				x.t.Fatalf("message %d: completions %+v", i, l)
			}
		}
	}
}

// victims returns connected queue pairs of two other clients.
func victims(w *testFabric) (x, y *queue) {
	x, y = w.client(w.nic(3)).qp(smallCaps), w.client(w.nic(4)).qp(smallCaps)
	x.connect(1024, y)
	y.connect(1024, x)
	return x, y
}

func TestMemoryThatWaitsHoldsOnlyItsClient(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     ib.WROpcode
		target bool // the target's memory waits, not the requester's
	}{
		{"WRITE from it", ib.WRRDMAWrite, false},
		{"WRITE to it", ib.WRRDMAWrite, true},
		{"SEND from it", ib.WRSend, false},
		{"SEND to it", ib.WRSend, true},
		{"READ from it", ib.WRRDMARead, true},
		{"READ to it", ib.WRRDMARead, false},
		{"atomic in it", ib.WRAtomicFetchAndAdd, true},
		{"atomic to it", ib.WRAtomicFetchAndAdd, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestFabric(t)
			x, y := pair(w, 1024)
			v1, v2 := victims(w)
			slow := x
			if c.target {
				slow = y
			}
			slow.useCopiedMemory()
			n := 5000
			if c.op == ib.WRAtomicFetchAndAdd {
				n = 8
			}
			from, to := x.mem, y.mem
			if c.op != ib.WRRDMAWrite && c.op != ib.WRSend {
				from, to = to, from
			}
			for i := range n {
				from[i] = byte(i * 7)
			}
			want := bytes.Clone(from[:n])
			y.recv(9, y.sge(0, n))
			b := w.block(slow)
			x.post(transport.SendWR{ID: 1, Opcode: c.op, RKey: y.mr.RKey(), SGEs: x.sge(0, n), CompareAdd: 1})
			w.run(1e6)
			b.one()
			if l := append(x.cq.PollAll(), y.cq.PollAll()...); len(l) != 0 {
				t.Fatalf("completions while the memory waits: %+v", l)
			}
			if !bytes.Equal(to[:n], make([]byte, n)) {
				t.Fatal("data arrived while the memory waits")
			}
			exchange(v1, v2, 20)
			b.one().Return()
			w.run(1e9)
			if l := x.cq.PollAll(); len(l) != 1 || l[0].Status != ib.WCSuccess || l[0].WRID != 1 {
				t.Errorf("completions %+v", l)
			}
			if l := y.cq.PollAll(); c.op == ib.WRSend && (len(l) != 1 || l[0].Status != ib.WCSuccess || l[0].WRID != 9) {
				t.Errorf("completions of the receiver %+v", l)
			}
			if !bytes.Equal(to[:n], want) {
				t.Error("the data differ")
			}
		})
	}
}

// The ACK of a queue pair that is held is kept, and its deadline passes meanwhile. The peer fails,
// but what it has sent is not in memory that it could change.
func TestTimersWaitForKeptPackets(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 1024)
	x.useCopiedMemory()
	y.useCopiedMemory()
	b := w.block(y)
	y.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: x.mr.RKey()})
	x.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
	w.run(1e9)
	y.wantNone()
	b.one().Return()
	w.run(1e9)
	y.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	if n := y.Device.Counters(); n.LocalACKTimeout != 0 || n.Retransmitted != 0 {
		t.Errorf("%d timeouts, %d packets retransmitted", n.LocalACKTimeout, n.Retransmitted)
	}
}

func TestPacketsForMemoryThatWaitsAreKept(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 1024)
	y.useCopiedMemory()
	b := w.block(y)
	for i := range 3 {
		x.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), RemoteAddr: uint64(i), SGEs: x.sge(i, 1)})
		x.mem[i] = byte(i + 1)
		w.run(1e6)
		if i > 0 {
			x.mem[i] = 0 // the frame on the fabric referred to it
		}
	}
	b.one().Return()
	w.run(1e6)
	if l := x.cq.PollAll(); len(l) != 3 || l[2].Status != ib.WCSuccess || !bytes.Equal(y.mem[:3], []byte{1, 2, 3}) {
		t.Errorf("completions %+v, memory %v", l, y.mem[:3])
	}
	if c := x.Device.Counters(); c.Retransmitted != 0 {
		t.Errorf("%d packets were retransmitted", c.Retransmitted)
	}
}

// The frames that are kept use the memory of those that were delivered.
func TestKeptPacketsDoNotAllocate(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 1024)
	y.useCopiedMemory()
	write := transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 1024)}
	round := func(n int) func() {
		return func() {
			b := w.block(y)
			for i := range n + 1 { // the first one is blocked
				x.mem[0] = byte(i)
				x.post(write)
				w.run(1e6)
			}
			b.one().Return()
			w.run(1e6)
			if l := x.cq.PollAll(); len(l) != n+1 || l[n].Status != ib.WCSuccess || y.mem[0] != byte(n) {
				t.Fatalf("completions %+v, memory %v", l, y.mem[0])
			}
		}
	}
	round(24)()
	few, many := testing.AllocsPerRun(20, round(4)), testing.AllocsPerRun(20, round(24))
	if many-few >= 20 {
		t.Errorf("%v allocations with 4 packets that are kept, %v with 24", few, many)
	}
}

// The end of one batch must not publish what waits for the copies of another one.
func TestKeptMessagesAreInMemoryBeforeTheirCompletions(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 1024)
	v, z := victims(w)
	y.useCopiedMemory()
	z.useCopiedMemory()
	for i := range byte(2) {
		y.recv(uint64(i), y.sge(int(i)*100, 100))
	}
	b := w.block(y)
	x.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, SGEs: x.sge(0, 100)})
	w.run(1e6)
	x.mem[200] = 7
	x.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: x.sge(200, 100)}) // is kept
	w.run(1e6)
	other := w.block(z)
	v.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, RKey: z.mr.RKey(), SGEs: v.sge(0, 100)})
	w.run(1e6)

	b.one().Return()
	other.one().Return()
	received := 0
	for range 100 {
		for _, c := range y.cq.PollAll() {
			received++
			if c.Status != ib.WCSuccess || c.WRID == 1 && y.mem[100] != 7 {
				t.Errorf("completion %+v, memory %v", c, y.mem[100:104])
			}
		}
		w.now++
		w.engine.Step(w.now)
	}
	if received != 2 {
		t.Errorf("%d messages received, want 2", received)
	}
}

// A client for which too much waits loses packets, and its peer retransmits them.
func TestKeptPacketsAreBounded(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 4096)
	y.useCopiedMemory()
	b := w.block(y)
	x.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 1)})
	w.run(1e6)
	b.one()
	for range 100 { // as much as the window of x, which is twice as much
		x.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 1<<15)})
	}
	w.run(1e6)
	if got := w.engine.Kept(); got == 0 || got > nic.MaxKept {
		t.Errorf("%d bytes kept, at most %d are allowed", got, nic.MaxKept)
	}
	if y.Device.Counters().Drops[transport.DropMemoryWait] == 0 {
		t.Error("no packet was dropped")
	}
	y.Context.Close()
	if got := w.engine.Kept(); got != 0 {
		t.Errorf("%d bytes kept for a client that left", got)
	}
}

// A frame on the fabric refers to the memory of its sender. What a batch in progress is about to
// write stays as it was when the sender goes.
func TestDataForMemoryThatWaitsIsKept(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 1024)
	x.useCopiedMemory()
	y.useCopiedMemory()
	v1, v2 := victims(w)
	v1.useCopiedMemory()
	b := w.block(y)
	x.mem[0] = 7
	x.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 1000)})
	w.run(1e6)
	x.Context.Close()
	for i := range v1.mem {
		v1.mem[i] = 0xee
	}
	exchange(v1, v2, 500) // uses the read arena
	b.one().Return()
	w.run(1e6)
	if y.mem[0] != 7 || y.mem[1] != 0 || y.mem[999] != 0 {
		t.Errorf("memory holds %v", y.mem[:8])
	}
}

func TestClientLeavesWhileItsMemoryWaits(t *testing.T) {
	for _, c := range []struct {
		name  string
		leave func(*queue) error
	}{
		{"destroy QP", func(q *queue) error { return q.Destroy() }},
		{"reset", func(q *queue) error { return q.SetState(ib.QPSReset) }},
		{"error", func(q *queue) error { return q.SetState(ib.QPSErr) }},
		{"deregister", func(q *queue) error { return q.Context.DeregMR(q.mr) }},
		{"close", func(q *queue) error { q.Context.Close(); return nil }},
	} {
		for _, target := range []bool{false, true} {
			w := newTestFabric(t)
			x, y := pair(w, 1024)
			slow := x
			if target {
				slow = y
			}
			slow.useCopiedMemory()
			v1, v2 := victims(w)
			b := w.block(slow)
			x.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 3000)})
			w.run(1e6)
			check(t, c.leave(slow))
			exchange(v1, v2, 10)
			if l := slow.cq.PollAll(); len(l) != 0 {
				t.Errorf("%s: completions while the memory waits: %+v", c.name, l)
			}
			b.one().Return()
			w.run(1e6)
			exchange(v1, v2, 10)
			if l := x.cq.PollAll(); c.name == "error" && !target && (len(l) != 1 || l[0].Status != ib.WCWRFlushErr) {
				t.Errorf("%s: completions %+v", c.name, l)
			}
		}
	}
}

// A queue pair is reset while its memory waits, and then used again. What becomes of the earlier
// message does not concern it.
func TestQueuePairIsResetWhileItsMemoryWaits(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite, ib.WRRDMARead} {
		for _, fails := range []bool{false, true} {
			w := newTestFabric(t)
			x, y := pair(w, 1024)
			waits := y
			if op == ib.WRRDMARead {
				waits = x
			}
			waits.useCopiedMemory()
			old := waits.mr
			y.recv(9, y.sge(0, 100))
			b := w.block(waits)
			x.post(transport.SendWR{ID: 1, Opcode: op, RKey: y.mr.RKey(), SGEs: x.sge(0, 100)})
			w.run(1e6)
			check(t, x.SetState(ib.QPSReset))
			check(t, y.SetState(ib.QPSReset))
			waits.useCopiedMemory()
			if fails {
				check(t, waits.Context.DeregMR(old))
			}
			x.connect(1024, y)
			y.connect(1024, x)
			b.one().Return()
			w.run(1e6)
			x.wantNone()
			y.wantNone()
			y.recv(10, y.sge(0, 100))
			x.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: x.sge(0, 100)})
			w.run(1e6)
			x.want(2, ib.WCSuccess, ib.WCSend)
			y.want(10, ib.WCSuccess, ib.WCRecv)
		}
	}
}

// A receive that a queue pair took from an SRQ does not complete either: the program has removed
// the queue pair's completions, and if the copy failed there would be no data.
func TestReceiveOfAnSRQIsForgottenWithItsQueuePair(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*queue) error
	}{
		{"reset", func(q *queue) error { return q.SetState(ib.QPSReset) }},
		{"destroy", func(q *queue) error { return q.Destroy() }},
	} {
		for _, fails := range []bool{false, true} {
			w := newTestFabric(t)
			x, far := w.client(w.nic(1)).qp(smallCaps), w.client(w.nic(2))
			srq, err := far.CreateSRQ(nic.SRQInit{PD: far.pd, MaxWR: 4, MaxSGE: 1})
			check(t, err)
			y := far.create(nic.QPInit{Type: ib.QPTypeRC, PD: far.pd, SendCQ: far.cq.CQ, RecvCQ: far.cq.CQ, SRQ: srq.SRQ, Caps: smallCaps})
			x.connect(1024, y)
			y.connect(1024, x)
			y.useCopiedMemory()
			srq.PostRecv(1, y.sge(0, 100))
			b := w.block(y)
			x.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: x.sge(0, 100)})
			w.run(1e6)
			check(t, c.end(y))
			if fails {
				check(t, far.Context.DeregMR(y.mr))
			}
			b.one().Return()
			w.run(1e6)
			if l := far.cq.PollAll(); len(l) != 0 {
				t.Errorf("%s, copy fails %v: completions %+v", c.name, fails, l)
			}
		}
	}
}

// The program of an SRQ of XRC does not know that a target queue pair of another one ends: it gets
// its receive back.
func TestReceiveOfXRCIsFlushedWithItsTarget(t *testing.T) {
	for _, fails := range []bool{false, true} {
		w := newTestFabric(t)
		a, d := w.client(w.nic(1)), w.nic(2)
		b, c := w.client(d), w.client(d)
		ini, target := xpair(a, b, b.domain())
		s := c.xsrq(c.domain())
		c.useCopiedMemory()
		block := &blocked{testFabric: w}
		w.engine.BlockMemory(c.Context, func(one nic.Batch) { block.batches = append(block.batches, one) })
		s.recv(9, s.sge(0, 100))
		ini.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, RemoteSRQ: s.Number(), SGEs: a.sge(0, 100)})
		w.run(1e6)
		check(t, b.Context.DestroyQP(target))
		if fails {
			check(t, c.Context.DeregMR(c.mr))
		}
		block.one().Return()
		w.run(1e6)
		s.want(9, ib.WCWRFlushErr, ib.WCRecv)
		if n := d.Counters().RespCQEFlush; n != 1 {
			t.Errorf("counted %d flushed receives", n)
		}
	}
}

func TestMemoryThatWaitsTooLongEndsItsContext(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 1024)
	x.useCopiedMemory()
	b := w.block(x)
	x.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 100)})
	w.run(nic.MemoryDeadline / 2)
	if x.Context.Closed() {
		t.Fatal("closed before the deadline")
	}
	w.now += 10 * nic.MemoryDeadline
	w.run(nic.MemoryDeadline / 4)
	if x.Context.Closed() {
		t.Fatal("a stall of the engine counts towards the deadline")
	}
	w.run(nic.MemoryDeadline)
	if !x.Context.Closed() || x.Err == nil || !x.had(ib.EventDeviceFatal) {
		t.Errorf("closed %v, reason %v, events %v", x.Context.Closed(), x.Err, x.Events)
	}
	b.one().Return()
	w.run(1e6)
	if y.Context.Closed() {
		t.Error("the peer's context is closed")
	}
}

// A target queue pair of XRC writes to the memory of any client in its domain. It waits for that
// client, but not after the client has left, and its own client does not wait.
func TestXRCTargetWaitsForMemoryOfItsDomain(t *testing.T) {
	for _, leave := range []bool{false, true} {
		w := newTestFabric(t)
		a, d := w.client(w.nic(1)), w.nic(2)
		b, c := w.client(d), w.client(d)
		ini, _ := xpair(a, b, b.domain())
		s := c.xsrq(c.domain())
		c.useCopiedMemory()
		v1, v2 := w.client(a.Device).qp(smallCaps), b.qp(smallCaps) // of the owner of the target
		v1.connect(1024, v2)
		v2.connect(1024, v1)

		block := &blocked{testFabric: w}
		w.engine.BlockMemory(c.Context, func(one nic.Batch) { block.batches = append(block.batches, one) })
		s.recv(9, s.sge(0, 100))
		a.mem[0] = 7
		ini.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, RemoteSRQ: s.Number(), SGEs: a.sge(0, 100)})
		w.run(1e6)
		late := b.create(nic.QPInit{Type: ib.QPTypeXRCRecv, XRCD: b.domain()})
		far := a.create(nic.QPInit{Type: ib.QPTypeXRCSend, PD: a.pd, SendCQ: a.cq.CQ, Caps: smallCaps})
		far.connect(1024, late)
		late.connect(1024, far)
		far.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, RemoteSRQ: s.Number(), RKey: c.mr.RKey(), SGEs: a.sge(0, 8)})
		w.run(1e6)
		a.wantNone()
		exchange(v1, v2, 10)

		if leave {
			c.Context.Close()
			w.run(1e9)
			if n := len(a.cq.PollAll()); n != 2 {
				t.Errorf("%d of 2 messages ended after the client had left", n)
			}
			block.one().Return()
			continue
		}
		block.one().Return()
		w.run(1e9)
		if l := a.cq.PollAll(); len(l) != 2 || l[0].Status != ib.WCSuccess || l[1].Status != ib.WCSuccess {
			t.Errorf("completions %+v", l)
		}
		s.want(9, ib.WCSuccess, ib.WCRecv)
		if c.mem[0] != 7 {
			t.Errorf("memory holds %v", c.mem[:4])
		}
	}
}

// Threads of a user may never return. A client that waits for one and leaves, leaves nothing.
func TestBatchThatWaitsForAThreadEndsWithItsClient(t *testing.T) {
	for _, copiers := range []int{nic.MaxCopiers, nic.MaxCopiers + 1} {
		w := newTestFabric(t)
		x, y := w.clientOf(w.nic(1), nic.ContextOptions{UID: 1000}).qp(smallCaps), w.client(w.nic(2)).qp(smallCaps)
		x.connect(1024, y)
		y.connect(1024, x)
		x.useCopiedMemory()
		w.engine.UseCopiers(1000, copiers)
		y.mem[0] = 7
		y.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: x.mr.RKey(), SGEs: y.sge(0, 8)})
		w.run(1e6)
		if w.engine.Holds() != 1 || w.engine.Waiting(1000) != 1 {
			t.Fatalf("%d threads: %d contexts held, %d batches wait", copiers, w.engine.Holds(), w.engine.Waiting(1000))
		}
		w.run(2 * nic.MemoryDeadline)
		if !x.Context.Closed() || w.engine.Holds() != 0 || w.engine.Waiting(1000) != 0 || x.mem[0] != 0 {
			t.Errorf("%d threads: closed %v, %d contexts held, %d batches wait, memory %v", copiers,
				x.Context.Closed(), w.engine.Holds(), w.engine.Waiting(1000), x.mem[0])
		}
	}
}

// A queue pair of another client has accepted an atomic operation in memory that takes long, and
// its client leaves: the engine sleeps until the result is there.
func TestEngineSleepsWhileAtomicWaitsForClientThatLeft(t *testing.T) {
	w := newTestFabric(t)
	a, d := w.client(w.nic(1)), w.nic(2)
	b, c := w.client(d), w.client(d)
	ini, _ := xpair(a, b, b.domain())
	s := c.xsrq(c.domain())
	c.useCopiedMemory()
	block := &blocked{testFabric: w}
	w.engine.BlockMemory(c.Context, func(one nic.Batch) { block.batches = append(block.batches, one) })
	ini.post(transport.SendWR{ID: 1, Opcode: ib.WRAtomicFetchAndAdd, RemoteSRQ: s.Number(), RKey: c.mr.RKey(),
		SGEs: a.sge(0, 8), CompareAdd: 1})
	w.run(1e6)
	block.one()
	c.Context.Close()
	w.step() // fails if the engine stays busy
	block.one().Return()
	w.run(1e9)
	if l := a.cq.PollAll(); len(l) != 1 {
		t.Errorf("completions %+v", l)
	}
}

// A client may have many completions that wait for its memory. They cost the steps nothing.
func TestCompletionsThatWaitForMemoryAreApart(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 1024)
	for i := range 20 { // y has no receives: nothing completes
		x.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: x.sge(0, 8)})
	}
	for range 100 {
		w.now++
		w.engine.Step(w.now)
	}
	x.useCopiedMemory()
	other := x.client.qp(smallCaps)
	far := w.client(y.Device).qp(smallCaps)
	other.connect(1024, far)
	far.connect(1024, other)
	b := w.block(other)
	other.post(transport.SendWR{ID: 99, Opcode: ib.WRRDMAWrite, RKey: far.mr.RKey(), SGEs: other.sge(0, 8)})
	w.run(1e6)
	b.one()
	check(t, x.SetState(ib.QPSErr))
	w.run(1e6)
	if n := w.engine.Deferred(); n != 0 || x.cq.Len() != 0 {
		t.Errorf("%d completions deferred, %d published", n, x.cq.Len())
	}
	b.one().Return()
	w.run(1e6)
	for i := range 20 {
		x.want(uint64(i), ib.WCWRFlushErr, 0)
	}
	x.want(99, ib.WCSuccess, ib.WCRDMAWrite)
}
