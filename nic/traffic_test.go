package nic_test

import (
	"bytes"
	"fmt"
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
	"softroce/wire"
)

func TestOperationsTransferData(t *testing.T) {
	for _, mtu := range []int{256, 1024, 4096} {
		for _, n := range []int{0, 1, 3, 8, 255, 256, 4096, 4097, 100_000, 1 << 20} {
			t.Run(fmt.Sprintf("mtu=%d/n=%d", mtu, n), func(t *testing.T) {
				w := newTestFabric(t)
				a, b := pair(w, mtu)
				rkey := b.mr.RKey()
				fill(a.mem[:n], 1)
				b.recv(70, b.sge(1<<21, 1<<20))
				b.recv(71, nil)
				a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RemoteAddr: 64, RKey: rkey, SGEs: a.sge(0, n)})
				a.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, n)})
				a.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWriteWithImm, Imm: 0xfeed, RemoteAddr: 64, RKey: rkey, SGEs: a.sge(0, n)})
				a.post(transport.SendWR{ID: 4, Opcode: ib.WRRDMARead, RemoteAddr: 64, RKey: rkey, SGEs: a.sge(1<<21, n)})
				w.run(1e9)

				a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
				a.want(2, ib.WCSuccess, ib.WCSend)
				a.want(3, ib.WCSuccess, ib.WCRDMAWrite)
				a.want(4, ib.WCSuccess, ib.WCRDMARead)
				if c := b.want(70, ib.WCSuccess, ib.WCRecv); int(c.ByteLen) != n {
					t.Errorf("received %d bytes, want %d", c.ByteLen, n)
				}
				if c := b.want(71, ib.WCSuccess, ib.WCRecvRDMAWithImm); c.Imm != 0xfeed {
					t.Errorf("immediate %#x", c.Imm)
				}
				for _, got := range [][]byte{b.mem[64:][:n], b.mem[1<<21:][:n], a.mem[1<<21:][:n]} {
					if !bytes.Equal(got, a.mem[:n]) {
						t.Error("the received data differs")
					}
				}
				b.wantNone()
			})
		}
	}
}

func TestAtomicsReturnTheOldValue(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	le.PutUint64(b.mem[8:], 41)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRAtomicFetchAndAdd, RemoteAddr: 8, RKey: b.mr.RKey(), CompareAdd: 1, SGEs: a.sge(0, 8)})
	a.post(transport.SendWR{ID: 2, Opcode: ib.WRAtomicCmpAndSwp, RemoteAddr: 8, RKey: b.mr.RKey(), CompareAdd: 42, Swap: 7, SGEs: a.sge(8, 8)})
	w.run(1e9)
	a.want(1, ib.WCSuccess, ib.WCFetchAdd)
	a.want(2, ib.WCSuccess, ib.WCCompSwap)
	if x, y, z := le.Uint64(a.mem), le.Uint64(a.mem[8:]), le.Uint64(b.mem[8:]); x != 41 || y != 42 || z != 7 {
		t.Errorf("original values %d and %d, final value %d; want 41, 42 and 7", x, y, z)
	}
}

func TestInlineDataNeedsNoLKey(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	b.recv(1, b.sge(0, 64))
	a.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendInline, Inline: []byte("out of the ring")})
	w.run(1e9)
	a.want(2, ib.WCSuccess, ib.WCSend)
	if b.want(1, ib.WCSuccess, ib.WCRecv); string(b.mem[:15]) != "out of the ring" {
		t.Errorf("received %q", b.mem[:15])
	}
}

func TestQueuePairsShareLinkFairly(t *testing.T) {
	w := newTestFabric(t)
	ca, cb := w.client(w.nic(1)), w.client(w.nic(2))
	const n = 16
	var as [n]*queue
	for i := range as {
		as[i] = ca.qp(smallCaps)
		b := cb.qp(smallCaps)
		as[i].connect(1024, b)
		b.connect(1024, as[i])
	}
	for i, q := range as {
		for k := range 16 {
			q.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RemoteAddr: uint64(i) << 14, RKey: cb.mr.RKey(),
				SGEs: ca.sge(i<<14, 1<<14)})
			_ = k
		}
	}
	// When half of the work is done, no queue pair is far ahead.
	var done [n]int
	for total := 0; total < n*8; {
		w.now++
		w.engine.Step(w.now)
		for _, c := range ca.cq.PollAll() {
			done[c.WRID]++
			total++
		}
	}
	for i, k := range done {
		if k < 4 || k > 12 {
			t.Errorf("queue pair %d has completed %d of 16 when the mean is 8: %v", i, k, done)
			break
		}
	}
	w.run(1e9)
	if l := len(ca.cq.PollAll()); l == 0 {
		t.Error("not all work requests completed")
	}
}

func TestSendRingWrapsAround(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	const total = 1000
	posted, completed := 0, 0
	for completed < total {
		for posted < total && a.SendRoom() > 0 {
			a.store(&transport.SendWR{ID: uint64(posted), Opcode: ib.WRRDMAWrite, RemoteAddr: uint64(posted) % 1000 * 8,
				RKey: b.mr.RKey(), SGEs: a.sge(posted%1000*8, 8)})
			posted++
		}
		a.Publish()
		w.step()
		for _, c := range a.cq.PollAll() {
			if c.WRID != uint64(completed) || c.Status != ib.WCSuccess {
				t.Fatalf("completion %d: %+v", completed, c)
			}
			completed++
		}
	}
}

// A slowLink accepts a few frames at a time, and sometimes none.
type slowLink struct {
	wire.Link
	calls int
}

func (l *slowLink) Send(now int64, batch []wire.TxFrame) (int, error) {
	l.calls++
	if l.calls%3 == 0 {
		return 0, nil
	}
	return l.Link.Send(now, batch[:min(len(batch), 5)])
}

func TestFramesNotAcceptedByLinkAreSentLaterInOrder(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { return &slowLink{Link: l} })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	fill(a.mem[:1<<20], 3)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 1<<20)})
	w.run(1e9)
	a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	if !bytes.Equal(a.mem[:1<<20], b.mem[:1<<20]) {
		t.Error("the received data differs")
	}
	if c := a.Device.Counters(); c.Retransmitted != 0 || b.Device.Counters().OutOfSequence != 0 {
		t.Errorf("%d packets were retransmitted", c.Retransmitted)
	}
}

// A stalledLink never accepts a frame.
type stalledLink struct{ wire.Link }

func (stalledLink) Send(int64, []wire.TxFrame) (int, error) { return 0, nil }

func TestStalledLinkExhaustsRetries(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { return stalledLink{l} })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	at := attrs(1024, b)
	at.RetryCount = 2
	a.connectWith(at)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 100)})
	for range 5000 {
		w.now += 1e5
		w.engine.Step(w.now)
	}
	a.want(1, ib.WCRetryExcErr, ib.WCRDMAWrite)
	if a.Device.Counters().TxStalled == 0 {
		t.Error("frames discarded after a stall were not counted")
	}
}

func TestLostPacketIsRetransmittedAfterTimeout(t *testing.T) {
	w := newTestFabric(t)
	lose := 1
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { return &lossyLink{l, &lose} })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 100)})
	w.run(50e6)
	a.wantNone()
	w.run(50e6) // timeout code 14 is 67 ms
	a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	if n := a.Device.Counters().LocalACKTimeout; n != 1 {
		t.Errorf("%d timeouts were counted", n)
	}
}

// A lossyLink drops the first n frames.
type lossyLink struct {
	wire.Link
	n *int
}

func (l *lossyLink) Send(now int64, batch []wire.TxFrame) (int, error) {
	if *l.n > 0 && len(batch) > 0 {
		*l.n--
		return 1, nil
	}
	return l.Link.Send(now, batch)
}

func TestRNRIsRetriedUntilReceiveIsPosted(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 100)})
	w.run(10e6)
	a.wantNone()
	b.recv(2, b.sge(0, 100))
	w.run(10e6)
	a.want(1, ib.WCSuccess, ib.WCSend)
	b.want(2, ib.WCSuccess, ib.WCRecv)
	if a.Device.Counters().RNRReceived == 0 {
		t.Error("no RNR NAK was counted")
	}
}

// Each slice has a queue pair. Those of one NIC share a CQ, and an SRQ if there are two.
func TestSteadyTrafficDoesNotAllocate(t *testing.T) {
	const wrs = 8 // of a queue pair in a round
	for _, c := range []struct {
		name string
		op   ib.WROpcode
		n    int
	}{
		{"WRITE small", ib.WRRDMAWrite, 64}, {"WRITE", ib.WRRDMAWrite, 1 << 20},
		{"SEND small", ib.WRSend, 64}, {"SEND", ib.WRSend, 1 << 18},
		{"READ small", ib.WRRDMARead, 64}, {"READ", ib.WRRDMARead, 1 << 20},
		{"FETCH_ADD", ib.WRAtomicFetchAndAdd, 8},
	} {
		for slices := 1; slices <= 2; slices++ {
			t.Run(fmt.Sprintf("%s/slices=%d", c.name, slices), func(t *testing.T) {
				w := newTestFabric(t)
				if slices > 1 {
					w.share()
				}
				near, far := w.client(w.nic(1)), w.client(w.nic(2))
				o := nic.QPInit{Type: ib.QPTypeRC, PD: far.pd, SendCQ: far.cq.CQ, RecvCQ: far.cq.CQ, Caps: smallCaps}
				var as []*queue
				var recv *nictest.RecvQueue
				if slices > 1 {
					srq, err := far.CreateSRQ(nic.SRQInit{PD: far.pd, MaxWR: slices * wrs, MaxSGE: 1})
					check(t, err)
					o.SRQ, recv = srq.SRQ, srq.RecvQueue
				}
				served := map[string]bool{}
				for range slices {
					a, b := near.qp(smallCaps), far.create(o)
					a.connect(4096, b)
					b.connect(4096, a)
					for _, q := range []*queue{a, b} {
						served[fmt.Sprint("slice ", wire.SliceOf(q.QPN(), slices), " of ", q.Device.Name())] = true
					}
					if slices == 1 {
						recv = b.Recv
					}
					as = append(as, a)
				}
				if len(served) != 2*slices {
					t.Fatalf("only %v have queue pairs", served)
				}
				req := transport.SendWR{Opcode: c.op, RKey: far.mr.RKey(), SGEs: near.sge(0, c.n)}
				into := far.sge(0, c.n)
				want := slices * wrs
				if c.op == ib.WRSend {
					want *= 2
				}
				round := func() {
					for _, a := range as {
						for range wrs {
							if c.op == ib.WRSend {
								recv.PostRecv(0, into)
							}
							a.store(&req)
						}
						a.Publish()
					}
					w.step()
					got := 0
					for _, q := range []*client{near, far} {
						for {
							c, ok := q.cq.Poll()
							if !ok {
								break
							}
							if c.Status != ib.WCSuccess {
								t.Fatalf("completion %+v", c)
							}
							got++
						}
					}
					if got != want {
						t.Fatalf("%d completions, want %d", got, want)
					}
				}
				for range 20 {
					round() // storage grows to what the load needs
				}
				if n := testing.AllocsPerRun(50, round); n != 0 {
					t.Errorf("%v allocations per round", n)
				}
			})
		}
	}
}

// A vanishingMemory becomes inaccessible during the test, like that of a process that has ended.
type vanishingMemory struct {
	mrtable.Memory
	gone bool
}

func (m *vanishingMemory) View(off uint64, n int) []byte {
	if m.gone {
		return nil
	}
	return m.Memory.View(off, n)
}

func TestReceiveFailsIfMemoryIsUnreachable(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	mem := &vanishingMemory{Memory: mrtable.HeapMemory(make([]byte, 1000))}
	mr, err := b.Context.RegMR(b.pd, mem, 0, 1000, allow)
	check(t, err)
	b.recv(1, []transport.SGE{{Length: 1000, LKey: mr.LKey()}})
	b.recv(2, nil)
	a.post(transport.SendWR{ID: 3, Opcode: ib.WRSend, SGEs: a.sge(0, 1000)})
	mem.gone = true
	w.run(1e9)
	b.want(1, ib.WCLocProtErr, ib.WCRecv)
	b.want(2, ib.WCWRFlushErr, ib.WCRecv)
	a.want(3, ib.WCRemOpErr, ib.WCSend)
}
