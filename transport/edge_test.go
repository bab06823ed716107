package transport

import (
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

func TestReusedSendQueueSlotStartsClean(t *testing.T) {
	a, b := connect(t, defaults)
	empty := []SGE{{Length: 0}, {Length: 0}}
	fill(a.mem[:16], 1)
	for i := range wqesPerBlock + 1 { // the last message uses the slot of the first
		b.recv(uint64(i), 4000, 16)
		wr := SendWR{ID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: empty}
		if i == wqesPerBlock {
			wr.SGEs = a.sge(0, 16)
		}
		a.post(wr)
		run(t, a, b, deliverAll)
		a.qp.sq.pool.Recycle()
	}
	if len(a.done) != wqesPerBlock+1 || string(b.mem[4000:4016]) != string(a.mem[:16]) {
		t.Errorf("%s, %x arrived of %x", statuses(a.done), b.mem[4000:4016], a.mem[:16])
	}
}

// TestFailedMemoryWriteIsNotAcknowledged lets the write of message 2 fail when it is flushed, after
// the READ that follows it was accepted.
func TestFailedMemoryWriteIsNotAcknowledged(t *testing.T) {
	a, b := connect(t, defaults)
	write := SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGEs: a.sge(0, 2000), RemoteAddr: sideBase, RKey: b.region.RKey()}
	for i := range 2 {
		write.ID = uint64(i + 1)
		a.post(write)
		if i == 0 {
			run(t, a, b, deliverAll)
		}
	}
	a.post(SendWR{ID: 3, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
	a.qp.Transmit(&a.env)
	for _, tx := range a.out {
		b.receive(tx)
	}
	a.out = nil
	b.qp.MemoryFault(&b.env, b.qp.respWriter, false)
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:0 2:11 3:5" {
		t.Errorf("requester: %s", got)
	}
	if b.qp.State() != ib.QPSErr {
		t.Errorf("responder in %v", b.qp.State())
	}
}

func TestSQDDoesNotStartWorkRequests(t *testing.T) {
	a, b := connect(t, defaults)
	b.recv(1, 0, 8)
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSSQD, EnSQDNotify: true}, ib.QPMaskState|ib.QPMaskEnSQDNotify))
	a.post(SendWR{ID: 1, Opcode: 77})
	run(t, a, b, deliverAll)
	if len(a.done) > 0 || a.qp.State() != ib.QPSSQD {
		t.Fatalf("%s in %v", statuses(a.done), a.qp.State())
	}
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSRTS}, ib.QPMaskState))
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:2" {
		t.Errorf("in RTS: %q", got)
	}
}

func TestSQDDrainsAndReportsOnce(t *testing.T) {
	a, b := connect(t, defaults)
	for i := range 2 {
		b.recv(uint64(i), 0, 4000)
		a.post(SendWR{ID: uint64(i + 1), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, 3000)})
	}
	a.room = 1
	a.qp.Transmit(&a.env) // the first packet of three
	a.room = -1
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSSQD, EnSQDNotify: true}, ib.QPMaskState|ib.QPMaskEnSQDNotify))
	if len(a.events) > 0 {
		t.Fatal("drained while a message is outstanding")
	}
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:0" || len(a.events) != 1 || a.events[0] != ib.EventSQDrained {
		t.Fatalf("completed %s, events %v", got, a.events)
	}
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSRTS}, ib.QPMaskState))
	run(t, a, b, deliverAll)
	if got := statuses(a.done); got != "1:0 2:0" || len(a.events) != 1 {
		t.Errorf("completed %s, events %v", got, a.events)
	}
}

func TestMaxDestRDAtomicCanChangeInSQD(t *testing.T) {
	_, b := connect(t, defaults) // 4
	b.request(packet.FetchAdd, defaults.psn, 0)
	must(t, b.qp.Modify(&b.env, &ib.QPAttr{State: ib.QPSSQD}, ib.QPMaskState))
	for _, n := range []uint8{8, 2} {
		must(t, b.qp.Modify(&b.env, &ib.QPAttr{MaxDestRDAtomic: n}, ib.QPMaskMaxDestRDAtomic))
		b.emitted(defaults.psn)
		b.request(packet.FetchAdd, defaults.psn, 0)
		if got := b.emitted(defaults.psn); got != "ATOMIC_ACKNOWLEDGE+0/ack/1" {
			t.Errorf("with %d: the duplicate atomic draws %q", n, got)
		}
	}
	b.room = 0
	for i := range 3 {
		b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, 1+i), 0, reth(sideBase, 8))
	}
	if b.qp.State() != ib.QPSErr {
		t.Errorf("three READs were accepted, the limit is two")
	}
}

func TestMoreResponderResourcesAreUsable(t *testing.T) {
	_, b := connect(t, defaults) // 4
	for i := range 6 {
		b.request(packet.FetchAdd, packet.PSNAdd(defaults.psn, i), 0)
	}
	must(t, b.qp.Modify(&b.env, &ib.QPAttr{State: ib.QPSSQD}, ib.QPMaskState))
	must(t, b.qp.Modify(&b.env, &ib.QPAttr{MaxDestRDAtomic: 8}, ib.QPMaskMaxDestRDAtomic))
	b.room = 0
	for i := range 8 {
		b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, 6+i), 0, reth(sideBase, 8))
	}
	if b.qp.State() != ib.QPSSQD {
		t.Error("eight READs were not accepted")
	}
	b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, 14), 0, reth(sideBase, 8))
	if b.qp.State() != ib.QPSErr {
		t.Error("a ninth READ was accepted")
	}
}

func TestDuplicateReadOfDeregisteredMemoryIsDropped(t *testing.T) {
	_, b := connect(t, defaults)
	b.request(packet.ReadRequest, defaults.psn, 0, reth(sideBase, 2000))
	b.request(packet.WriteOnly, packet.PSNAdd(defaults.psn, 2), 0)
	b.emitted(defaults.psn)
	b.room = 0
	b.request(packet.ReadRequest, defaults.psn, 0, reth(sideBase, 2000)) // waits for room in the sink
	b.table.Deregister(b.region)
	b.room = -1
	b.qp.Transmit(&b.env)
	if got := b.emitted(defaults.psn); got != "" || b.qp.State() != ib.QPSRTS || b.count.Drops[DropDuplicateRequest] != 1 {
		t.Errorf("%q in %v, %d dropped", got, b.qp.State(), b.count.Drops[DropDuplicateRequest])
	}
	b.request(packet.WriteOnly, packet.PSNAdd(defaults.psn, 3), 0)
	if got := b.emitted(defaults.psn); got != "ACKNOWLEDGE+3/ack/3" {
		t.Errorf("then: %q", got)
	}
}

func TestReadOfDeregisteredMemoryIsRejectedMidway(t *testing.T) {
	_, b := connect(t, defaults)
	b.room = 1
	b.request(packet.ReadRequest, defaults.psn, 0, reth(sideBase, 3000))
	b.request(packet.ReadRequest, packet.PSNAdd(defaults.psn, 3), 0, reth(sideBase, 8))
	b.table.Deregister(b.region)
	b.room = -1
	b.qp.Transmit(&b.env)
	want := "READ_RESPONSE_FIRST+0/ack/1 ACKNOWLEDGE+1/62/1"
	if got := b.emitted(defaults.psn); got != want || b.qp.State() != ib.QPSErr {
		t.Errorf("%s in %v, want %s", got, b.qp.State(), want)
	}
}

func TestRequesterHandlesFatalNAKDuringRNRWait(t *testing.T) {
	a, _ := connect(t, defaults)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	a.reply(packet.Acknowledge, defaults.psn, packet.SyndromeRNR|12, 0, 0)
	a.reply(packet.Acknowledge, defaults.psn, packet.NAKSequence, 0, 0) // the rest of a burst may cause it
	if a.count.Drops[DropStaleResponse] != 1 || a.qp.State() != ib.QPSRTS {
		t.Fatalf("sequence NAK: %d dropped, state %v", a.count.Drops[DropStaleResponse], a.qp.State())
	}
	a.reply(packet.Acknowledge, defaults.psn, packet.NAKRemoteOperational, 0, 0)
	if got := statuses(a.done); got != "1:11" {
		t.Errorf("completions %q in %v", got, a.qp.State())
	}
}

// TestACKStopsAtInvalidWorkRequest acknowledges a work request whose successor is invalid.
func TestACKStopsAtInvalidWorkRequest(t *testing.T) {
	for _, s := range []packet.Syndrome{unlimited, packet.SyndromeRNR | 12, packet.NAKSequence, packet.NAKRemoteAccess} {
		a, _ := connect(t, defaults)
		a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		a.post(SendWR{ID: 2, Opcode: ib.WRRDMAWrite, SGEs: a.sge(0, 4000)})
		a.post(SendWR{ID: 3, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		a.room = 2
		a.qp.Transmit(&a.env)
		a.table.Deregister(a.region)
		a.room = -1
		a.qp.Transmit(&a.env) // finds the error and waits for the first to complete
		psn := defaults.psn
		if s != unlimited {
			psn = packet.PSNAdd(psn, 1)
		}
		a.reply(packet.Acknowledge, psn, s, 1, 0)
		if got := statuses(a.done); got != "1:0 2:4 3:5" || a.qp.NextDeadline() != 0 || a.count.RNRReceived+a.count.ReqRemoteAccess > 0 {
			t.Errorf("%v: %s, deadline %d, %+v", s, got, a.qp.NextDeadline(), a.count)
		}
	}
}

// TestStaleResourceDoesNotAnswerAfterPSNWrap lets the PSNs wrap, so that a new request has the PSN
// of an old resource.
func TestStaleResourceDoesNotAnswerAfterPSNWrap(t *testing.T) {
	_, b := connect(t, defaults)
	around := func(n int) { // accept n requests other than READs and atomics
		b.qp.resp.epsn = packet.PSNAdd(b.qp.resp.epsn, n)
		b.qp.resp.accepted += uint64(n)
	}
	b.mem[0] = 7
	b.request(packet.FetchAdd, defaults.psn, 0)
	around(1<<24 - 1)
	b.request(packet.FetchAdd, defaults.psn, 0)
	b.out = nil
	b.request(packet.FetchAdd, defaults.psn, 0) // a duplicate of the second
	var h packet.Header
	if len(b.out) != 1 {
		t.Fatalf("%d replies", len(b.out))
	}
	if _, err := h.Parse(b.out[0].Head[:b.out[0].HeadLen]); err != nil || h.OrigData != 8 {
		t.Errorf("the duplicate finds %d, the atomic found 8", h.OrigData)
	}
	b.out = nil
	around(1 << 24)
	around(100)
	b.request(packet.FetchAdd, defaults.psn, 0) // no atomic in the last 2^23 PSNs
	if len(b.out) != 0 || b.count.Drops[DropDuplicateRequest] != 1 {
		t.Errorf("%d replies, %d dropped", len(b.out), b.count.Drops[DropDuplicateRequest])
	}
}

// A sparseMemory claims any size and backs all of it with one page.
type sparseMemory struct {
	size uint64
	page []byte
}

func (v *sparseMemory) Len() uint64                   { return v.size }
func (v *sparseMemory) View(off uint64, n int) []byte { return v.page[:n:n] }
func (v *sparseMemory) Close() error                  { return nil }

// TestLongestMessageAtSmallestPathMTU sends 2^31 bytes in 2^23 packets, half of all PSNs. It skips
// the middle of the message.
func TestLongestMessageAtSmallestPathMTU(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMARead, ib.WRRDMAWrite} {
		o := defaults
		o.mtu = 256
		a, b := connect(t, o)
		long := func(s *side) (*mrtable.Region, SGE) {
			r, err := s.table.Register(s.qp.PD(), &sparseMemory{1 << 31, make([]byte, maxRead)}, 1<<40, 1<<31,
				ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead)
			must(t, err)
			return r, SGE{Addr: 1 << 40, Length: 1 << 31, LKey: r.LKey()}
		}
		_, local := long(a)
		remote, _ := long(b)
		b.recv(9, 0, 8)
		a.post(SendWR{ID: 1, Opcode: op, Flags: ib.SendSignaled, SGEs: []SGE{local}, RemoteAddr: 1 << 40, RKey: remote.RKey()})
		a.post(SendWR{ID: 2, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGEs: a.sge(0, 8)})
		b.room, a.room = 100, 100
		now := int64(1000)
		steps := func(n int, pass func(*side, *packet.Tx) int) {
			for range n {
				a.room, b.room = 100, 100
				now += 1000
				step(a, b, now, pass)
			}
		}
		steps(3, deliverAll)
		// Wait until everything is acknowledged, then skip all but the last 300 packets.
		for a.qp.req.una != a.qp.req.send && op == ib.WRRDMAWrite {
			b.room, a.room = 100, 0
			now += 1000
			step(a, b, now, deliverAll)
		}
		r, w := &a.qp.req, a.qp.sq.head()
		skip := w.psns - uint32(r.una-w.first) - 300
		r.una += uint64(skip)
		if op == ib.WRRDMARead {
			w.received += skip
			r.readPSNs -= uint64(skip)
			ans := &b.qp.resp.replies
			ans.at(ans.next).sent += skip
		} else {
			r.send, r.next, r.pkt = r.send+uint64(skip), r.next+uint64(skip), r.pkt+skip
			p := &b.qp.resp
			p.epsn, p.va, p.left = packet.PSNAdd(p.epsn, int(skip)), p.va+uint64(skip)*256, p.left-skip*256
			p.accepted += uint64(skip)
		}
		lost := 0
		steps(100, func(from *side, tx *packet.Tx) int { // a loss near the end is retransmitted from there
			if lost++; lost == 40 {
				return 0
			}
			return 1
		})
		a.room, b.room = -1, -1
		run(t, a, b, deliverAll)
		if got := statuses(a.done); got != "1:0 2:0" {
			t.Fatalf("operation %d: %s, una %d of %d", op, got, r.una-w.first, w.psns)
		}
		if a.count.Retransmitted == 0 {
			t.Errorf("operation %d: nothing was sent again", op)
		}
	}
}

// en_sqd_async_notify is a value beside its bit in the mask: 0 requests no event.
func TestSQDDrainsSilentlyWithNotifyZero(t *testing.T) {
	a, _ := connect(t, defaults)
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSSQD}, ib.QPMaskState|ib.QPMaskEnSQDNotify))
	a.qp.Transmit(&a.env)
	if len(a.events) > 0 {
		t.Errorf("events %v", a.events)
	}
}

// A completion in error reports the error, so no QP_FATAL does (IBTA 11.6.3.2).
func TestErrorThatACompletionReportsRaisesNoEvent(t *testing.T) {
	_, rc := connect(t, defaults)
	_, uc := connectUC(t)
	for _, s := range []*side{rc, uc} {
		s.recv(1, 0, 8)
		s.rq.wrs[0].SGEs[0].LKey ^= 1
		s.request(byte(s.qp.cfg.Service)|packet.SendOnly, defaults.psn, 8)
		if got := statuses(s.done); got != "1:4" || s.qp.State() != ib.QPSErr || len(s.events) > 0 {
			t.Errorf("%v: completions %s in %v, events %v", s.qp.cfg.Service, got, s.qp.State(), s.events)
		}
	}
}
