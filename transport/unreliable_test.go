package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

const testQKey = 0x11111111

// connectUC returns two connected UC queue pairs in RTS with path MTU 1024. a sends from
// defaults.psn, b from 100.
func connectUC(t *testing.T) (a, b *side) {
	a, b = newSideOf(t, packet.UC, 17, 1<<18), newSideOf(t, packet.UC, 18, 1<<18)
	bring := func(s *side, peer uint32, sq, rq uint32) {
		at := ib.QPAttr{State: ib.QPSInit, PKey: packet.DefaultPKey, Access: ib.AccessRemoteWrite}
		must(t, s.qp.Modify(&s.env, &at, ib.QPMaskState|ib.QPMaskPKeyIndex|ib.QPMaskPort|ib.QPMaskAccess))
		at = ib.QPAttr{State: ib.QPSRTR, PathMTU: 1024, DestQPN: peer, RQPSN: rq}
		must(t, s.qp.Modify(&s.env, &at, ib.QPMaskState|ib.QPMaskAV|ib.QPMaskPathMTU|ib.QPMaskDestQPN|ib.QPMaskRQPSN))
		at = ib.QPAttr{State: ib.QPSRTS, SQPSN: sq}
		must(t, s.qp.Modify(&s.env, &at, ib.QPMaskState|ib.QPMaskSQPSN))
	}
	bring(a, 18, defaults.psn, 100)
	bring(b, 17, 100, defaults.psn)
	return a, b
}

// newUD returns a UD queue pair in RTS on a port with MTU 1024.
func newUD(t *testing.T, qpn uint32) *side {
	s := newSideOf(t, packet.UD, qpn, 1<<16)
	at := ib.QPAttr{State: ib.QPSInit, PKey: packet.DefaultPKey, QKey: testQKey}
	must(t, s.qp.Modify(&s.env, &at, ib.QPMaskState|ib.QPMaskPKeyIndex|ib.QPMaskPort|ib.QPMaskQKey))
	must(t, s.qp.Modify(&s.env, &ib.QPAttr{State: ib.QPSRTR}, ib.QPMaskState))
	must(t, s.qp.Modify(&s.env, &ib.QPAttr{State: ib.QPSRTS, SQPSN: defaults.psn}, ib.QPMaskState|ib.QPMaskSQPSN))
	return s
}

// drops lists the counted drops as reason:count.
func drops(c *Counters) string {
	var w []string
	for r, n := range c.Drops {
		if n > 0 {
			w = append(w, fmt.Sprintf("%v:%d", DropReason(r), n))
		}
	}
	return strings.Join(w, " ")
}

// A req is a request packet whose PSN is relative to the expected one.
type req struct {
	op   uint8
	psn  int
	n    int
	edit []func(*RxPacket)
}

func on(op uint8, psn, n int, edit ...func(*RxPacket)) req { return req{op, psn, n, edit} }

func withImm(v uint32) func(*RxPacket) { return func(p *RxPacket) { p.Imm = v } }
func solicited(p *RxPacket)            { p.Solicited = true }

// TestUCResponder has path MTU 1024 and two posted receives of 2000 bytes. No request draws a
// reply.
func TestUCResponder(t *testing.T) {
	const (
		first, middle, last, only = packet.SendFirst, packet.SendMiddle, packet.SendLast, packet.SendOnly
		wFirst, wMiddle, wLast    = packet.WriteFirst, packet.WriteMiddle, packet.WriteLast
		wOnly, wOnlyImm, wLastImm = packet.WriteOnly, packet.WriteOnlyImm, packet.WriteLastImm
	)
	for _, c := range []struct {
		name  string
		reqs  []req
		recv  string // completions
		drops string
		left  int // receives that stay posted
	}{
		{"a SEND completes a receive", []req{on(only, 0, 10)}, "1:0", "", 1},
		{"a zero-length SEND completes a receive", []req{on(only, 0, 0)}, "1:0", "", 1},
		{"a SEND of two packets", []req{on(first, 0, 1024), on(last, 1, 7)}, "1:0", "", 1},
		{"a gap between messages loses nothing", []req{on(only, 0, 1), on(only, 7, 1)}, "1:0 2:0", "", 0},
		{"a lower PSN between messages loses nothing", []req{on(only, 0, 1), on(only, -9, 1)}, "1:0 2:0", "", 0},
		{"a gap inside a message loses it, and nothing else",
			[]req{on(first, 0, 1024), on(last, 2, 1), on(only, 3, 1), on(only, 4, 1)}, "1:0 2:0", "abandoned_message:1", 0},
		{"a gap loses the rest of the message",
			[]req{on(first, 0, 1024), on(middle, 2, 1024), on(middle, 3, 1024), on(last, 4, 1), on(only, 5, 1)}, "1:0", "abandoned_message:3", 1},
		{"a lost FIRST loses only its message", []req{on(last, 1, 1), on(first, 2, 1024), on(last, 3, 1)}, "1:0", "abandoned_message:1", 1},
		{"a lost LAST loses only its message", []req{on(first, 0, 1024), on(first, 2, 1024), on(last, 3, 1)}, "1:0", "", 1},
		{"a duplicate packet inside a message loses it", []req{on(first, 0, 1024), on(first, 0, 1024), on(last, 1, 1), on(last, 1, 1)}, "1:0", "abandoned_message:1", 1},
		{"FIRST aborts the message in progress", []req{on(first, 0, 1024), on(only, 1, 1)}, "1:0", "", 1},
		{"WRITE inside a SEND loses both", []req{on(first, 0, 1024), on(wLast, 1, 1), on(last, 2, 1), on(only, 3, 1)}, "1:0", "abandoned_message:2", 1},
		{"FIRST shorter than the path MTU", []req{on(first, 0, 1000), on(last, 1, 1), on(only, 2, 1)}, "1:0", "invalid_request:1 abandoned_message:1", 1},
		{"LAST without payload", []req{on(first, 0, 1024), on(last, 1, 0), on(only, 2, 1)}, "1:0", "invalid_request:1", 1},
		{"ONLY over the path MTU", []req{on(only, 0, 1025), on(only, 1, 1)}, "1:0", "invalid_request:1", 1},
		{"SEND longer than the receive, which stays posted", []req{on(first, 0, 1024), on(middle, 1, 1024), on(last, 2, 1), on(only, 3, 1)},
			"1:0", "receive_too_short:1 abandoned_message:1", 1},
		{"no receive", []req{on(only, 0, 1), on(only, 1, 1), on(first, 2, 1024), on(last, 3, 1)}, "1:0 2:0", "receiver_not_ready:1 abandoned_message:1", 0},
		{"a WRITE takes no receive", []req{on(wFirst, 0, 1024, reth(sideBase, 1025)), on(wLast, 1, 1)}, "", "", 2},
		{"a zero-length WRITE needs no key", []req{on(wOnly, 0, 0, badKey)}, "", "", 2},
		{"a WRITE with immediate takes one at its end", []req{on(wFirst, 0, 1024, reth(sideBase, 1025)), on(wLastImm, 1, 1, withImm(5))}, "1:0", "", 1},
		{"a WRITE with immediate needs a receive", []req{on(wOnlyImm, 0, 1), on(wOnlyImm, 1, 1), on(wOnlyImm, 2, 1)}, "1:0 2:0", "receiver_not_ready:1", 0},
		{"WRITE with a wrong key", []req{on(wFirst, 0, 1024, badKey, reth(sideBase, 1025)), on(wLast, 1, 1), on(only, 2, 1)}, "1:0", "remote_access:1 abandoned_message:1", 1},
		{"WRITE past the region", []req{on(wOnly, 0, 8, reth(sideBase+1<<18-7, 8))}, "", "remote_access:1", 2},
		{"WRITE of fewer bytes than the RETH says", []req{on(wOnly, 0, 8, reth(sideBase, 9))}, "", "invalid_request:1", 2},
		{"WRITE of more bytes than the RETH says", []req{on(wFirst, 0, 1024, reth(sideBase, 1030)), on(wMiddle, 1, 1024), on(wLast, 2, 1)}, "", "invalid_request:1 abandoned_message:1", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, b := connectUC(t)
			b.recv(1, 1000, 1000)
			b.rq.wrs[0].SGEs = append(b.rq.wrs[0].SGEs, b.sge(5000, 1000)...)
			b.recv(2, 2000, 2000)
			for _, r := range c.reqs {
				b.request(uint8(packet.UC)|r.op, packet.PSNAdd(defaults.psn, r.psn), r.n, r.edit...)
			}
			left := b.rq.Len()
			if b.qp.resp.hasRecv {
				left++ // taken for a lost message and kept for the next
			}
			if got := statuses(b.done); got != c.recv || left != c.left {
				t.Errorf("completions %q and %d receives left, want %q and %d", got, left, c.recv, c.left)
			}
			if got := drops(&b.count); got != c.drops {
				t.Errorf("dropped %q, want %q", got, c.drops)
			}
			if got := b.emitted(defaults.psn); got != "" || b.qp.State() != ib.QPSRTS {
				t.Errorf("replied %q in %v", got, b.qp.State())
			}
		})
	}
}

func TestUCDropsOtherServicesAndUnpermittedRequests(t *testing.T) {
	_, b := connectUC(t)
	must(t, b.qp.Modify(&b.env, &ib.QPAttr{}, ib.QPMaskAccess))
	b.request(packet.SendOnly, defaults.psn, 1)
	b.request(uint8(packet.UC)|packet.WriteOnly, defaults.psn, 8)
	if got, want := drops(&b.count), "service:1 invalid_request:1"; got != want {
		t.Errorf("drops %q, want %q", got, want)
	}
}

func TestUCCompletionsDescribeTheMessage(t *testing.T) {
	a, b := connectUC(t)
	fill(a.mem[:5000], 1)
	b.recv(1, 10000, 5000)
	b.recv(2, 20000, 5000)
	a.post(SendWR{ID: 1, Opcode: ib.WRSendWithImm, Flags: ib.SendSignaled | ib.SendSolicited, Imm: 7, SGEs: a.sge(0, 5000)})
	a.post(SendWR{ID: 2, Opcode: ib.WRRDMAWriteWithImm, Imm: 8, SGEs: a.sge(0, 3000), RemoteAddr: sideBase + 30000, RKey: b.region.RKey()})
	run(t, a, b, deliverAll)
	if len(b.done) != 2 {
		t.Fatalf("completions %+v, want 2", b.done)
	}
	want := []Completion{
		{WRID: 1, Opcode: ib.WCRecv, ByteLen: 5000, Imm: 7, Flags: ib.WCWithImm, SrcQP: 17, Recv: true, Signaled: true, Solicited: true},
		{WRID: 2, Opcode: ib.WCRecvRDMAWithImm, ByteLen: 3000, Imm: 8, Flags: ib.WCWithImm, SrcQP: 17, Recv: true, Signaled: true},
	}
	if !slices.Equal(b.done, want) {
		t.Errorf("%+v\nwant %+v", b.done, want)
	}
	if !bytes.Equal(b.mem[10000:15000], a.mem[:5000]) || !bytes.Equal(b.mem[30000:33000], a.mem[:3000]) {
		t.Error("data differs")
	}
	if got := statuses(a.done); got != "1:0 2:0" || a.done[1].Signaled {
		t.Errorf("sender completed %s", got)
	}
}

func TestUCRequesterNeedsNoAcknowledgement(t *testing.T) {
	a, _ := connectUC(t)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 2500)})
	a.post(SendWR{ID: 2, Opcode: ib.WRRDMAWrite, Flags: ib.SendFence, SGEs: a.sge(0, 1025)})
	a.post(SendWR{ID: 3, Opcode: ib.WRSend})
	a.room = 2
	a.qp.Transmit(&a.env)
	if len(a.done) != 0 {
		t.Fatal("complete before its last packet was emitted")
	}
	a.room = -1
	a.qp.Transmit(&a.env)
	for _, tx := range a.out {
		var h packet.Header
		h.Parse(tx.Head[:])
		if h.AckReq || h.Opcode.Service() != packet.UC || h.DestQP != 18 {
			t.Errorf("BTH %+v", h.BTH)
		}
	}
	if got, want := a.emitted(defaults.psn), "SEND_FIRST+0 SEND_MIDDLE+1 SEND_LAST+2 WRITE_FIRST+3 WRITE_LAST+4 SEND_ONLY+5"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
	if got := statuses(a.done); got != "1:0 2:0 3:0" || a.qp.NextDeadline() != 0 {
		t.Errorf("%s, and deadline %d", got, a.qp.NextDeadline())
	}
}

// With loss, duplication and reordering, a UC message arrives whole or not at all.
func TestUCDeliversMessagesWholeOrNotAtAll(t *testing.T) {
	lost := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, b := connectUC(t)
		for i := range 20 {
			n := 8 + r.IntN(4000)
			m := a.mem[i*4096:][:n]
			for k := range m {
				m[k] = byte(i + 1)
			}
			b.recv(uint64(i), 100000+i*4096, 4096)
			a.post(SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: a.sge(i*4096, n)})
		}
		run(t, a, b, func(*side, *packet.Tx) int {
			switch r.IntN(20) {
			case 0:
				return 0
			case 1:
				return 2
			}
			return 1
		})
		if len(a.done) != 20 {
			t.Fatalf("seed %d: %d of 20 sends completed", seed, len(a.done))
		}
		lost += 20 - len(b.done)
		for _, c := range b.done {
			m := b.mem[100000+int(c.WRID)*4096:][:c.ByteLen]
			for _, v := range m {
				if v != m[0] || v == 0 {
					t.Fatalf("seed %d: receive %d has bytes of two messages", seed, c.WRID)
				}
			}
		}
	}
	if lost == 0 {
		t.Error("nothing was lost")
	}
}

// TestUnreliableQueuePairRejectsInvalidWorkRequests posts a valid SEND, the invalid work request
// and another one.
func TestUnreliableQueuePairRejectsInvalidWorkRequests(t *testing.T) {
	for _, c := range []struct {
		name    string
		service packet.Service
		bad     func(a *side, wr *SendWR)
		status  ib.WCStatus
	}{
		{"UC has no READ", packet.UC, func(_ *side, wr *SendWR) { wr.Opcode = ib.WRRDMARead }, ib.WCLocQPOpErr},
		{"UC has no atomics", packet.UC, func(_ *side, wr *SendWR) { wr.Opcode = ib.WRAtomicFetchAndAdd }, ib.WCLocQPOpErr},
		{"UC has no SEND with invalidate", packet.UC, func(_ *side, wr *SendWR) { wr.Opcode = ib.WRSendWithInv }, ib.WCLocQPOpErr},
		{"UD has no WRITE", packet.UD, func(_ *side, wr *SendWR) { wr.Opcode = ib.WRRDMAWrite }, ib.WCLocQPOpErr},
		{"UD needs an address handle", packet.UD, func(_ *side, wr *SendWR) { wr.Dest = nil }, ib.WCLocQPOpErr},
		{"a wrong key", packet.UC, func(_ *side, wr *SendWR) { wr.SGEs[0].LKey ^= 1 }, ib.WCLocProtErr},
		{"a wrong key, UD", packet.UD, func(_ *side, wr *SendWR) { wr.SGEs[0].LKey ^= 1 }, ib.WCLocProtErr},
		{"too many elements", packet.UC, func(a *side, wr *SendWR) { wr.SGEs = make([]SGE, 5) }, ib.WCLocQPOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a *side
			if c.service == packet.UC {
				a, _ = connectUC(t)
			} else {
				a = newUD(t, 17)
			}
			wr := func(id uint64) SendWR {
				return SendWR{ID: id, Opcode: ib.WRSend, SGEs: a.sge(0, 8), Dest: "somewhere", RemoteQPN: 18, RemoteQKey: testQKey}
			}
			bad := wr(2)
			c.bad(a, &bad)
			a.post(wr(1))
			a.post(bad)
			a.post(wr(3))
			a.qp.Transmit(&a.env)
			if got, want := statuses(a.done), fmt.Sprintf("1:0 2:%d 3:%d", c.status, ib.WCWRFlushErr); got != want || a.qp.State() != ib.QPSSQE {
				t.Errorf("%s in %v, want %s in SQE", got, a.qp.State(), want)
			}
			if got := a.emitted(defaults.psn); got != "SEND_ONLY+0" || len(a.events) != 0 {
				t.Errorf("emitted %s, events %v", got, a.events)
			}
		})
	}
}

func TestSQEReceivesAndFlushesSendsUntilRTS(t *testing.T) {
	a, _ := connectUC(t)
	a.recv(9, 0, 100)
	a.post(SendWR{ID: 1, Opcode: ib.WRRDMARead, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	a.request(uint8(packet.UC)|packet.SendOnly, 100, 5)
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	if got, want := statuses(a.done), "1:2 9:0 2:5"; got != want {
		t.Fatalf("completions %q, want %q", got, want)
	}
	for _, to := range []ib.QPState{ib.QPSInit, ib.QPSRTR, ib.QPSSQD, ib.QPSSQE} {
		if a.qp.Modify(&a.env, &ib.QPAttr{State: to}, ib.QPMaskState) == nil {
			t.Errorf("SQE to %v was accepted", to)
		}
	}
	if a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSRTS, CurState: ib.QPSRTS}, ib.QPMaskState|ib.QPMaskCurState) == nil {
		t.Error("a wrong cur_state was accepted")
	}
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSRTS, CurState: ib.QPSSQE}, ib.QPMaskState|ib.QPMaskCurState))
	a.post(SendWR{ID: 3, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.qp.Transmit(&a.env)
	if got := a.emitted(defaults.psn); got != "SEND_ONLY+0" {
		t.Errorf("after SQE: %q", got)
	}
}

func TestSQDCompletesTheMessageInProgress(t *testing.T) {
	a, _ := connectUC(t)
	a.post(SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 3000)})
	a.post(SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
	a.room = 1
	a.qp.Transmit(&a.env)
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSSQD, EnSQDNotify: true}, ib.QPMaskState|ib.QPMaskEnSQDNotify))
	if len(a.events) != 0 {
		t.Fatal("drained within a message")
	}
	a.room = -1
	a.qp.Transmit(&a.env)
	if got := a.emitted(defaults.psn); got != "SEND_FIRST+0 SEND_MIDDLE+1 SEND_LAST+2" || !slices.Equal(a.events, []ib.EventType{ib.EventSQDrained}) {
		t.Errorf("%s, events %v", got, a.events)
	}
	must(t, a.qp.Modify(&a.env, &ib.QPAttr{State: ib.QPSRTS}, ib.QPMaskState))
	a.qp.Transmit(&a.env)
	if got, want := a.emitted(defaults.psn), "SEND_ONLY+3"; got != want {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

func TestModifyFollowsUCAndUDStateMachines(t *testing.T) {
	const toInit = ib.QPMaskState | ib.QPMaskPKeyIndex | ib.QPMaskPort
	for _, c := range []struct {
		service packet.Service
		steps   []ib.QPState
		mask    ib.QPAttrMask // of the last transition
		ok      bool
	}{
		{packet.UC, []ib.QPState{ib.QPSInit}, toInit | ib.QPMaskAccess, true},
		{packet.UC, []ib.QPState{ib.QPSInit}, toInit | ib.QPMaskQKey, false},
		{packet.UC, []ib.QPState{ib.QPSInit, ib.QPSRTR}, ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN, true},
		{packet.UC, []ib.QPState{ib.QPSInit, ib.QPSRTR}, ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN | ib.QPMaskMinRNRTimer, false},
		{packet.UC, []ib.QPState{ib.QPSInit, ib.QPSRTR}, ib.QPMaskState | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN, false},
		{packet.UC, []ib.QPState{ib.QPSInit, ib.QPSRTR, ib.QPSRTS}, ib.QPMaskState | ib.QPMaskSQPSN, true},
		{packet.UC, []ib.QPState{ib.QPSInit, ib.QPSRTR, ib.QPSRTS}, ib.QPMaskState | ib.QPMaskSQPSN | ib.QPMaskTimeout, false},
		{packet.UC, []ib.QPState{ib.QPSInit, ib.QPSRTR, ib.QPSRTS, ib.QPSSQE}, ib.QPMaskState, false},
		{packet.UD, []ib.QPState{ib.QPSInit}, toInit | ib.QPMaskQKey, true},
		{packet.UD, []ib.QPState{ib.QPSInit}, toInit | ib.QPMaskAccess, false},
		{packet.UD, []ib.QPState{ib.QPSInit}, toInit, false},
		{packet.UD, []ib.QPState{ib.QPSInit, ib.QPSRTR}, ib.QPMaskState, true},
		{packet.UD, []ib.QPState{ib.QPSInit, ib.QPSRTR}, ib.QPMaskState | ib.QPMaskAV, false},
		{packet.UD, []ib.QPState{ib.QPSInit, ib.QPSRTR, ib.QPSRTS}, ib.QPMaskState | ib.QPMaskSQPSN | ib.QPMaskQKey, true},
		{packet.UD, []ib.QPState{ib.QPSInit, ib.QPSRTR, ib.QPSRTS}, ib.QPMaskState, false},
		{packet.UD, []ib.QPState{ib.QPSInit, ib.QPSRTR, ib.QPSRTS, ib.QPSRTS}, ib.QPMaskQKey, true},
		{packet.UD, []ib.QPState{ib.QPSInit, ib.QPSRTR, ib.QPSRTS, ib.QPSSQD}, ib.QPMaskState, true},
	} {
		q, err := New(Config{Service: c.service, SendDepth: 1, PortMTU: 1024})
		must(t, err)
		e := &Env{Now: 1, Sink: newSide(t, 1, 8)}
		good := map[packet.Service][]ib.QPAttrMask{
			packet.UC: {toInit | ib.QPMaskAccess, ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN, ib.QPMaskState | ib.QPMaskSQPSN},
			packet.UD: {toInit | ib.QPMaskQKey, ib.QPMaskState, ib.QPMaskState | ib.QPMaskSQPSN},
		}[c.service]
		for i, to := range c.steps {
			mask, last := c.mask, i == len(c.steps)-1
			if !last {
				mask = good[i]
			}
			err := q.Modify(e, &ib.QPAttr{State: to, PathMTU: 1024}, mask)
			if !last {
				must(t, err)
			} else if (err == nil) != c.ok {
				t.Errorf("%v to %v with %#x: %v", c.service, to, uint32(mask), err)
			}
		}
	}
}

// FuzzUnreliable passes arbitrary packets to UC and UD queue pairs. Nothing may panic, no packet
// draws a reply, and each receive completes at most once.
func FuzzUnreliable(f *testing.F) {
	for _, op := range []uint8{packet.SendOnly, packet.SendFirst, packet.SendLast, packet.WriteFirst, packet.WriteOnlyImm, packet.WriteLast} {
		for _, s := range []packet.Service{packet.UC, packet.UD} {
			h := packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(uint8(s) | op), PSN: defaults.psn},
				RETH: packet.RETH{VA: sideBase, Length: 64}, DETH: packet.DETH{QKey: testQKey}}
			b := make([]byte, packet.MaxHeaderLen)
			f.Add(append(b[:h.Put(b)], make([]byte, 64)...), uint16(64))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint16) {
		_, uc := connectUC(t)
		ud := newUD(t, 19)
		grh := make([]byte, packet.GRHLen)
		for _, s := range []*side{uc, ud} {
			for i := range 4 {
				s.recv(uint64(i), 1000*i, 1000)
			}
			rest := data
			for len(rest) > 0 {
				one := rest[:min(len(rest), int(size)+packet.BTHLen)]
				rest = rest[len(one):]
				var p RxPacket
				m, err := p.Header.Parse(one)
				if err != nil || len(one)-m < int(p.Pad) {
					continue
				}
				if p.RETH.RKey&1 == 0 {
					p.RETH.RKey = s.region.RKey()
				}
				p.GRH = grh
				if body := one[m : len(one)-int(p.Pad)]; len(body) > 0 {
					p.Payload, p.Len = [][]byte{body}, len(body)
				}
				s.qp.Receive(&s.env, &p)
				s.env.Mem.Flush()
				s.qp.Transmit(&s.env)
			}
			if len(s.out) != 0 {
				t.Fatal("an unreliable queue pair sent a reply")
			}
			s.qp.Fail(&s.env, ib.EventQPFatal)
			seen := map[uint64]bool{}
			for _, c := range s.done {
				if seen[c.WRID] {
					t.Fatalf("receive %d completed twice", c.WRID)
				}
				seen[c.WRID] = true
			}
			if len(seen) != 4 {
				t.Fatalf("%d of 4 receives completed", len(seen))
			}
		}
	})
}

func TestUnreliableDataPathsDoNotAllocate(t *testing.T) {
	a, b := connectUC(t)
	x, y := &slotSink{side: a, slots: make([]packet.Tx, 64)}, &slotSink{side: b, slots: make([]packet.Tx, 64)}
	a.env.Sink, b.env.Sink = x, y
	wr := SendWR{Opcode: ib.WRRDMAWrite, SGEs: a.sge(0, 20000), RemoteAddr: sideBase, RKey: b.region.RKey()}
	var pkt RxPacket
	one := func() {
		a.post(wr)
		x.exchange(y, &pkt)
	}
	one()
	if n := testing.AllocsPerRun(50, one); n != 0 {
		t.Errorf("UC allocates %v times a message", n)
	}
	u := newUD(t, 20)
	z := &slotSink{side: u, slots: make([]packet.Tx, 4)}
	u.env.Sink = z
	ring := RecvWR{ID: 1, SGEs: u.sge(0, 200)}
	u.rq.wrs = make([]RecvWR, 0, 1000)
	grh := make([]byte, packet.GRHLen)
	pkt = RxPacket{Header: packet.Header{BTH: packet.BTH{Opcode: 0x64}, DETH: packet.DETH{QKey: testQKey}}, Payload: [][]byte{make([]byte, 100)}, Len: 100, GRH: grh}
	send := SendWR{Opcode: ib.WRSend, SGEs: u.sge(0, 100), Dest: u}
	one = func() {
		u.rq.wrs = append(u.rq.wrs, ring)
		u.post(send)
		u.qp.Transmit(&u.env)
		z.n = 0
		u.qp.Receive(&u.env, &pkt)
		u.env.Mem.Epoch()
		u.qp.sq.pool.Recycle()
	}
	one()
	if n := testing.AllocsPerRun(50, one); n != 0 {
		t.Errorf("UD allocates %v times a datagram", n)
	}
}
