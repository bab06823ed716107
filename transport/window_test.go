package transport

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// A windowRegion is a second region of a side and a type 2B window, bound by the side's queue pair
// to bytes [1024, 4096) of it.
type windowRegion struct {
	*side
	mem    []byte
	region *mrtable.Region
	window *mrtable.Window
	key    uint32
}

const windowRegionBase = 0x900000

func newWindowRegion(s *side) *windowRegion {
	x := &windowRegion{side: s, mem: make([]byte, 8192)}
	pd := s.qp.PD()
	var err error
	x.region, err = s.table.Register(pd, mrtable.HeapMemory(x.mem), windowRegionBase, 8192, ib.AccessLocalWrite|ib.AccessMWBind)
	must(s.t, err)
	x.window, err = s.table.AllocWindow(pd, mrtable.Type2B)
	must(s.t, err)
	x.bind(s.qp.QPN())
	return x
}

func (x *windowRegion) bind(qpn uint32) {
	x.t.Helper()
	x.key = nextKey(x.window.RKey())
	must(x.t, x.table.Bind(mrtable.Binding{PD: x.qp.PD(), QPN: qpn, RKey: x.key, LKey: x.region.LKey(),
		Addr: windowRegionBase + 1024, Length: 4096, Access: ib.AccessRemoteWrite | ib.AccessRemoteRead}))
}

// nextKey is ibv_inc_rkey.
func nextKey(k uint32) uint32 { return k&^0xff | (k+1)&0xff }

// at addresses a request to the window, off bytes in.
func (x *windowRegion) at(off, n int) func(*RxPacket) {
	return func(p *RxPacket) {
		p.RETH = packet.RETH{VA: windowRegionBase + 1024 + uint64(off), RKey: x.key, Length: uint32(n)}
	}
}

func (x *windowRegion) invalidating(p *RxPacket) { p.Invalidate = x.key }

func TestSendWithInvalidate(t *testing.T) {
	const sendFirst, sendLastInv, sendOnlyInv, writeOnly = packet.SendFirst, packet.SendLastInv, packet.SendOnlyInv, packet.WriteOnly
	for _, c := range []struct {
		name  string
		reqs  func(x *windowRegion) []req
		want  string
		recv  string
		bound bool
		state ib.QPState
	}{
		{"invalidates and is acknowledged", func(x *windowRegion) []req {
			return []req{on(sendOnlyInv, 0, 10, x.invalidating)}
		}, "ACKNOWLEDGE+0/ack/1", "1:0", false, ib.QPSRTS},
		{"invalidates with the last packet", func(x *windowRegion) []req {
			return []req{on(sendFirst, 0, 1024, x.invalidating, noAckReq)}
		}, "", "", true, ib.QPSRTS},
		{"of two packets", func(x *windowRegion) []req {
			return []req{on(sendFirst, 0, 1024, noAckReq), on(sendLastInv, 1, 1, x.invalidating)}
		}, "ACKNOWLEDGE+1/ack/1", "1:0", false, ib.QPSRTS},
		{"stops later WRITEs", func(x *windowRegion) []req {
			return []req{on(writeOnly, 0, 8, x.at(0, 8)), on(sendOnlyInv, 1, 0, x.invalidating), on(writeOnly, 2, 8, x.at(0, 8))}
		}, "ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+1/ack/2 ACKNOWLEDGE+2/62/2", "1:0 2:5", false, ib.QPSErr},
		{"unbound window: no error", func(x *windowRegion) []req {
			return []req{on(sendOnlyInv, 0, 0, x.invalidating), on(sendOnlyInv, 1, 0, x.invalidating)}
		}, "ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+1/ack/2", "1:0 2:0", false, ib.QPSRTS},
		{"wrong key: error without a NAK", func(x *windowRegion) []req {
			return []req{on(sendOnlyInv, 0, 10, func(p *RxPacket) { p.Invalidate = x.key - 1 }), on(writeOnly, 1, 8)}
		}, "", "1:9 2:5", true, ib.QPSErr},
		{"a region's key: error without a NAK", func(x *windowRegion) []req {
			return []req{on(sendOnlyInv, 0, 10, func(p *RxPacket) { p.Invalidate = x.region.RKey() })}
		}, "", "1:9 2:5", true, ib.QPSErr},
		{"wrong key: earlier requests are acknowledged", func(x *windowRegion) []req {
			return []req{on(writeOnly, 0, 8, x.at(0, 8)), on(sendOnlyInv, 1, 10, func(p *RxPacket) { p.Invalidate = 0 })}
		}, "ACKNOWLEDGE+0/ack/1", "1:9 2:5", true, ib.QPSErr},
		{"without a receive: RNR NAK, nothing is invalidated", func(x *windowRegion) []req {
			x.rq.wrs = nil
			return []req{on(sendOnlyInv, 0, 10, x.invalidating)}
		}, "ACKNOWLEDGE+0/2c/0", "", true, ib.QPSRTS},
		{"too long for the receive: nothing is invalidated", func(x *windowRegion) []req {
			x.rq.wrs = x.rq.wrs[:1]
			x.rq.wrs[0].SGEs = nil
			return []req{on(sendOnlyInv, 0, 10, x.invalidating)}
		}, "ACKNOWLEDGE+0/61/0", "1:1", true, ib.QPSErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, b := connect(t, defaults)
			b.recv(1, 0, 2000)
			b.recv(2, 2000, 2000)
			x := newWindowRegion(b)
			x.requests(c.reqs(x)...)
			if got := b.emitted(defaults.psn); got != c.want {
				t.Errorf("replies %s\nwant    %s", got, c.want)
			}
			if got := statuses(b.done); got != c.recv {
				t.Errorf("completions %s, want %s", got, c.recv)
			}
			if bound := x.window.Bound() != nil; bound != c.bound || b.qp.State() != c.state {
				t.Errorf("bound %v in %v, want %v in %v", bound, b.qp.State(), c.bound, c.state)
			}
			if c.state == ib.QPSErr && !slices.Contains(b.events, ib.EventQPAccessErr) && c.recv != "1:1" {
				t.Errorf("events %v", b.events)
			}
		})
	}
}

// requests passes requests to the responder.
func (s *side) requests(reqs ...req) {
	for _, r := range reqs {
		s.request(r.op, packet.PSNAdd(defaults.psn, r.psn), r.n, r.edit...)
	}
}

func TestReceiveCompletionHasInvalidatedRKey(t *testing.T) {
	a, b := connect(t, defaults)
	x := newWindowRegion(b)
	b.recv(1, 0, 2000)
	a.post(SendWR{ID: 7, Opcode: ib.WRSendWithInv, Imm: x.key, Flags: ib.SendSignaled, SGEs: a.sge(0, 1500)})
	run(t, a, b, deliverAll)
	if len(b.done) != 1 || statuses(a.done) != "7:0" {
		t.Fatalf("completions %s and %s", statuses(a.done), statuses(b.done))
	}
	if c := b.done[0]; c.Flags != ib.WCWithInv || c.Imm != x.key || c.ByteLen != 1500 || c.Opcode != ib.WCRecv {
		t.Errorf("completion %+v", c)
	}
	if b.count.RxOpcode[packet.SendFirst] != 1 || b.count.RxOpcode[packet.SendLastInv] != 1 {
		t.Error("not sent as FIRST and LAST with invalidate")
	}
}

// TestDuplicateSendDoesNotInvalidateAgain reuses the key, which may belong to a new window when the
// duplicate arrives.
func TestDuplicateSendDoesNotInvalidateAgain(t *testing.T) {
	_, b := connect(t, defaults)
	x := newWindowRegion(b)
	b.recv(1, 0, 10)
	send := on(packet.SendOnlyInv, 0, 0, x.invalidating)
	x.requests(send)
	key := x.key
	for x.bind(18); x.key != key; x.bind(18) { // until the low 8 bits wrap
		must(t, b.table.Invalidate(b.qp.PD(), 18, x.key))
	}
	x.requests(send)
	if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+0/ack/1" || x.window.Bound() == nil {
		t.Errorf("%s, bound %v", got, x.window.Bound())
	}
}

// TestWindowInvalidatedDuringMessage invalidates the window while a message that uses it is in
// progress.
func TestWindowInvalidatedDuringMessage(t *testing.T) {
	for _, c := range []struct {
		name   string
		before []req
		behind []req
		want   string
	}{
		{"WRITE in progress: the rest is rejected",
			[]req{on(packet.WriteFirst, 0, 1024, noAckReq)}, []req{on(packet.WriteLast, 1, 1024)}, "ACKNOWLEDGE+1/62/0"},
		{"WRITE that is complete",
			[]req{on(packet.WriteFirst, 0, 1024, noAckReq), on(packet.WriteLast, 1, 1024)}, nil, "ACKNOWLEDGE+1/ack/1"},
		{"unanswered READ is rejected",
			[]req{on(packet.ReadRequest, 0, 0)}, nil, "ACKNOWLEDGE+0/62/1"},
		{"unanswered READ and a later WRITE",
			[]req{on(packet.ReadRequest, 0, 0), on(packet.WriteOnly, 2, 8, noAckReq)}, nil, "ACKNOWLEDGE+0/62/1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, b := connect(t, defaults)
			x := newWindowRegion(b)
			edit := func(reqs []req) []req {
				for i := range reqs {
					n := 2048
					if reqs[i].op == packet.WriteOnly {
						n = reqs[i].n
					}
					reqs[i].edit = append(reqs[i].edit, x.at(0, n), func(p *RxPacket) {
						for _, b := range p.Payload {
							b[0] = 0xee
						}
					})
				}
				return reqs
			}
			b.room = 0
			x.requests(edit(c.before)...)
			must(t, b.table.Invalidate(b.qp.PD(), 18, x.key))
			if len(c.before) > 0 && c.before[0].op == packet.WriteFirst && x.mem[1024] != 0xee {
				t.Error("data written before the invalidation is missing")
			}
			b.room = -1
			x.requests(edit(c.behind)...)
			b.qp.Transmit(&b.env)
			if got := b.emitted(defaults.psn); got != c.want {
				t.Errorf("replies %s\nwant    %s", got, c.want)
			}
			if len(c.behind) > 0 && x.mem[2048] != 0 {
				t.Error("data was written through an invalidated window")
			}
		})
	}
}

func TestDuplicateReadThroughInvalidatedWindowIsDropped(t *testing.T) {
	_, b := connect(t, defaults)
	x := newWindowRegion(b)
	read := on(packet.ReadRequest, 0, 0, x.at(0, 100))
	x.requests(read)
	must(t, b.table.Invalidate(b.qp.PD(), 18, x.key))
	x.requests(read)
	if got := b.emitted(defaults.psn); got != "READ_RESPONSE_ONLY+0/ack/1" || b.count.Drops[DropDuplicateRequest] != 1 {
		t.Errorf("emitted %s, drops %s", got, drops(&b.count))
	}
}

func TestWindowOfAnotherQueuePairGrantsNothing(t *testing.T) {
	_, b := connect(t, defaults)
	x := newWindowRegion(b)
	must(t, b.table.Invalidate(b.qp.PD(), 18, x.key))
	x.bind(99)
	x.requests(on(packet.WriteOnly, 0, 8, x.at(0, 8)))
	if got, want := b.emitted(defaults.psn), "ACKNOWLEDGE+0/62/0"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

// bindWR returns a work request that binds the window again.
func (x *windowRegion) bindWR(id uint64, key uint32) SendWR {
	return SendWR{ID: id, Opcode: ib.WRBindMW, Flags: ib.SendSignaled, RKey: key,
		Bind: Bind{LKey: x.region.LKey(), Addr: windowRegionBase, Length: 8192, Access: ib.AccessRemoteWrite}}
}

func (x *windowRegion) write(id uint64, b *side) SendWR {
	return SendWR{ID: id, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGEs: x.sge(0, 2000), RemoteAddr: sideBase, RKey: b.region.RKey()}
}

func TestLocalOperationsCompleteInOrder(t *testing.T) {
	invalidate := func(x *windowRegion, id uint64, f ib.SendFlags) SendWR {
		return SendWR{ID: id, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled | f, Imm: x.key}
	}
	for _, c := range []struct {
		name   string
		post   func(x *windowRegion, b *side) []SendWR
		before string // completions when everything was sent and no reply received
		done   string // completions after the replies
		bound  [2]bool
	}{
		{"alone, it completes at once", func(x *windowRegion, b *side) []SendWR {
			return []SendWR{invalidate(x, 1, 0)}
		}, "1:0", "1:0", [2]bool{false, false}},
		{"after a WRITE it executes at once and completes in order", func(x *windowRegion, b *side) []SendWR {
			return []SendWR{x.write(1, b), invalidate(x, 2, 0), x.write(3, b)}
		}, "", "1:0 2:0 3:0", [2]bool{false, false}},
		{"fenced, it executes after the WRITE", func(x *windowRegion, b *side) []SendWR {
			return []SendWR{x.write(1, b), invalidate(x, 2, ib.SendFence), x.write(3, b)}
		}, "", "1:0 2:0 3:0", [2]bool{true, false}},
		{"invalidated and bound again", func(x *windowRegion, b *side) []SendWR {
			return []SendWR{x.write(1, b), invalidate(x, 2, 0), x.bindWR(3, nextKey(x.key)), x.write(4, b)}
		}, "", "1:0 2:0 3:0 4:0", [2]bool{true, true}},
		{"a failed bind completes in order and fails the queue pair", func(x *windowRegion, b *side) []SendWR {
			return []SendWR{x.write(1, b), x.bindWR(2, nextKey(x.key)), x.write(3, b)}
		}, "", "1:0 2:6 3:5", [2]bool{true, true}},
		{"a failed invalidation fails the queue pair", func(x *windowRegion, b *side) []SendWR {
			w := invalidate(x, 2, 0)
			w.Imm++
			return []SendWR{x.write(1, b), w, x.write(3, b)}
		}, "", "1:0 2:6 3:5", [2]bool{true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := connect(t, defaults)
			x := newWindowRegion(a)
			for _, w := range c.post(x, b) {
				a.post(w)
			}
			a.qp.Transmit(&a.env)
			if got := statuses(a.done); got != c.before || (x.window.Bound() != nil) != c.bound[0] {
				t.Errorf("before the replies: %q, bound %v", got, x.window.Bound() != nil)
			}
			run(t, a, b, deliverAll)
			if got := statuses(a.done); got != c.done || (x.window.Bound() != nil) != c.bound[1] {
				t.Errorf("after the replies: %q, bound %v", got, x.window.Bound() != nil)
			}
		})
	}
}

func TestLocalOperationsCompleteWithTheirOpcode(t *testing.T) {
	a, _ := connect(t, defaults)
	x := newWindowRegion(a)
	a.post(SendWR{ID: 1, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, Imm: x.key, SGEs: a.sge(0, 8)})
	a.post(x.bindWR(2, x.key))
	a.post(SendWR{ID: 3, Opcode: ib.WRLocalInv, Imm: x.key})
	a.qp.Transmit(&a.env)
	if statuses(a.done) != "1:0 2:0 3:0" || a.done[0].Opcode != ib.WCLocalInv || a.done[1].Opcode != ib.WCBindMW || a.done[2].Signaled || !a.done[1].Signaled {
		t.Errorf("completions %+v", a.done)
	}
}

// TestFenceWaitsForReadsOnly also checks that a fenced invalidation waits for everything.
func TestFenceWaitsForReadsOnly(t *testing.T) {
	a, b := connect(t, defaults)
	x := newWindowRegion(a)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.post(SendWR{ID: 2, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, Imm: x.key})
	w := x.bindWR(3, nextKey(x.key))
	w.Flags |= ib.SendFence
	a.post(w)
	a.qp.Transmit(&a.env)
	if x.window.Bound() != nil || len(a.done) > 0 {
		t.Fatalf("bound %v, %s", x.window.Bound(), statuses(a.done))
	}
	run(t, a, b, deliverAll)
	if x.window.Bound() == nil || statuses(a.done) != "1:0 2:0 3:0" {
		t.Errorf("bound %v, %s", x.window.Bound(), statuses(a.done))
	}
}

// TestRetransmissionDoesNotRepeatBind uses a type 2 window, whose second bind would fail.
func TestRetransmissionDoesNotRepeatBind(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 3))
		a, b := connect(t, defaults)
		x := newWindowRegion(a)
		key := x.key
		var want []uint64
		for i := uint64(1); i <= 40; i += 4 {
			a.post(x.write(i, b))
			a.post(SendWR{ID: i + 1, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, Imm: key})
			key = nextKey(key)
			a.post(x.bindWR(i+2, key))
			b.recv(i, 8000, 2000)
			a.post(SendWR{ID: i + 3, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(4000, 2000)})
			want = append(want, i, i+1, i+2, i+3)
		}
		run(t, a, b, func(*side, *packet.Tx) int { return []int{0, 1, 1, 1, 1, 2}[r.IntN(6)] })
		var got []uint64
		for _, c := range a.done {
			if c.Status != ib.WCSuccess {
				t.Fatalf("seed %d: %+v", seed, c)
			}
			got = append(got, c.WRID)
		}
		if !slices.Equal(got, want) || x.window.RKey() != key {
			t.Fatalf("seed %d: completions %v", seed, got)
		}
	}
}

// TestBindExecutesOnce retransmits a bind of a type 1 window, whose second bind would invalidate
// the first.
func TestBindExecutesOnce(t *testing.T) {
	a, b := connect(t, defaults)
	x := newWindowRegion(a)
	var err error
	x.window, err = a.table.AllocWindow(a.qp.PD(), mrtable.Type1)
	must(t, err)
	a.post(x.write(1, b))
	a.post(x.bindWR(2, x.window.RKey()))
	a.post(x.write(3, b))
	a.qp.Transmit(&a.env)
	a.out = nil // lost
	bound := x.window.Bound()
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:0 2:0 3:0" || !bound.Live() {
		t.Errorf("%s, first binding live: %v", got, bound.Live())
	}
}

// TestCreditsCountOnlyMessagesThatConsumeReceives checks that local operations have no SSN, so that
// SSN and MSN stay equal.
func TestCreditsCountOnlyMessagesThatConsumeReceives(t *testing.T) {
	a, b := connect(t, defaults)
	x := newWindowRegion(a)
	for i := range 20 {
		for range 3 {
			a.post(SendWR{Opcode: ib.WRLocalInv, Imm: x.key})
		}
		b.recv(uint64(i), 0, 100)
		a.post(SendWR{ID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, 10)})
		run(t, a, b, deliverAll)
	}
	if n := a.qp.req.limit; !a.qp.req.credited || n != 20 {
		t.Errorf("the limit is %d after 20 messages, with no receive left", n)
	}
}

func TestLocalOperationsWaitInSQD(t *testing.T) {
	a, b := connect(t, defaults)
	x := newWindowRegion(a)
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSSQD}, ib.QPMaskState))
	a.post(SendWR{ID: 1, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, Imm: x.key})
	run(t, a, b, deliverAll)
	if len(a.done) > 0 || x.window.Bound() == nil {
		t.Fatal("the bind did not execute")
	}
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSRTS}, ib.QPMaskState))
	run(t, a, b, deliverAll)
	if statuses(a.done) != "1:0" || x.window.Bound() != nil {
		t.Error(statuses(a.done))
	}
}

func TestUCBindsWindowsAndUDDoesNot(t *testing.T) {
	a, b := connectUC(t)
	x := newWindowRegion(a)
	a.post(SendWR{ID: 1, Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, Imm: x.key})
	a.post(x.bindWR(2, nextKey(x.key)))
	a.post(SendWR{ID: 3, Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, Imm: 1})
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:0 2:0 3:2" {
		t.Errorf("UC: %s", got)
	}
	d := newUD(t, 17)
	d.post(SendWR{ID: 1, Opcode: ib.WRLocalInv})
	d.qp.Transmit(&d.env)
	if got := statuses(d.done); got != "1:2" {
		t.Errorf("UD: %s", got)
	}
}

func TestUCWritesThroughWindow(t *testing.T) {
	a, b := connectUC(t)
	x := newWindowRegion(b)
	fill(a.mem[:100], 1)
	w := SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGEs: a.sge(0, 100), RemoteAddr: windowRegionBase + 1024, RKey: x.key}
	a.post(w)
	run(t, a, b, deliverAll)
	if !bytes.Equal(x.mem[1024:1124], a.mem[:100]) {
		t.Error("nothing was received")
	}
	must(t, b.table.Invalidate(b.qp.PD(), 18, x.key))
	a.post(w)
	run(t, a, b, deliverAll)
	if b.count.Drops[DropAccess] != 1 || b.qp.State() != ib.QPSRTS {
		t.Errorf("%s in %v", drops(&b.count), b.qp.State())
	}
}

// The last packet before the end of a turn requests an acknowledgement: the next turn may be far
// away, and the timer runs.
func TestLastPacketOfTurnRequestsACK(t *testing.T) {
	a, _ := connect(t, defaults)
	a.post(SendWR{Opcode: ib.WRRDMAWrite, RemoteAddr: sideBase, SGEs: a.sge(0, 20*1024)})
	for range 2 {
		a.out, a.room = nil, 5
		a.qp.Transmit(&a.env)
		for i, tx := range a.out {
			var h packet.Header
			if _, err := h.Parse(tx.Head[:tx.HeadLen]); err != nil || h.AckReq != (i == 4) {
				t.Errorf("packet %d of the turn: AckReq %v, %v", i, h.AckReq, err)
			}
		}
		if len(a.out) != 5 {
			t.Errorf("%d packets in the turn", len(a.out))
		}
	}
}
