package transport

import (
	"slices"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
)

func TestPacketsWithoutRoomAreSentLater(t *testing.T) {
	for name, owe := range map[string]func(*side){
		"ACK":      func(s *side) { s.request(packet.WriteOnly, defaults.psn, 0) },
		"NAK":      func(s *side) { s.request(packet.WriteOnly, packet.PSNAdd(defaults.psn, 1), 0) },
		"READ":     func(s *side) { s.request(packet.ReadRequest, defaults.psn, 0) },
		"atomic":   func(s *side) { s.request(packet.FetchAdd, defaults.psn, 0) },
		"SEND":     func(s *side) { s.post(SendWR{Opcode: ib.WRSend, SGEs: s.sge(0, 8)}) },
		"own READ": func(s *side) { s.post(SendWR{Opcode: ib.WRRDMARead, SGEs: s.sge(0, 8)}) },
	} {
		_, b := connect(t, defaults)
		b.room = 0
		owe(b)
		if !b.qp.Transmit(&b.env) {
			t.Errorf("%s: Transmit returned false although packets are pending", name)
		}
		b.room = -1
		if b.qp.Transmit(&b.env) || len(b.out) != 1 {
			t.Errorf("%s: %d packets, or Transmit returned true without pending packets", name, len(b.out))
		}
	}
}

// TestResetClearsAllState resets with pending replies, posted work requests and a message in
// progress.
func TestResetClearsAllState(t *testing.T) {
	a, b := connect(t, defaults)
	b.recv(1, 0, 2000)
	b.room = 0
	b.request(packet.ReadRequest, defaults.psn, 0, reth(sideBase, 8))
	b.request(packet.SendFirst, packet.PSNAdd(defaults.psn, 1), 1024)
	b.post(SendWR{ID: 7, Opcode: ib.WRSend, SGEs: b.sge(0, 8)})
	b.room = -1
	must(t, b.qp.Modify(&b.env, &ib.QPAttr{State: ib.QPSReset}, ib.QPMaskState))
	b.qp.Transmit(&b.env)
	if len(b.out) > 0 || len(b.done) > 0 || b.qp.SendQueueLen() != 0 || b.qp.NextDeadline() != 0 {
		t.Fatalf("after Reset: %s, completions %s", b.emitted(defaults.psn), statuses(b.done))
	}
	if b.qp.PostSend(&SendWR{}) != ErrState {
		t.Error("PostSend succeeded before RTS")
	}
	toRTS(t, b, defaults, a.qp.QPN(), 5, 900)
	b.recv(2, 0, 2000)
	b.request(packet.SendOnly, 900, 8)
	b.request(packet.ReadRequest, defaults.psn, 0, reth(sideBase, 8)) // of the old connection
	if got := b.emitted(900); got != "ACKNOWLEDGE+0/ack/1" || statuses(b.done) != "2:0" {
		t.Errorf("connected again: %s, completions %s", got, statuses(b.done))
	}
}

func TestErrorFlushesCurrentReceiveFirst(t *testing.T) {
	_, b := connect(t, defaults)
	b.recv(1, 0, 2000)
	b.recv(2, 0, 2000)
	b.request(packet.SendFirst, defaults.psn, 1024)
	b.post(SendWR{ID: 3, Opcode: ib.WRSend, SGEs: b.sge(0, 8)})
	must(t, b.qp.Modify(&b.env, &ib.QPAttr{State: ib.QPSErr}, ib.QPMaskState))
	if got, want := statuses(b.done), "3:5 1:5 2:5"; got != want {
		t.Errorf("completions %q, want %q", got, want)
	}
	b.recv(4, 0, 8)
	b.post(SendWR{ID: 5, Opcode: ib.WRSend})
	b.qp.Transmit(&b.env)
	if got := statuses(b.done); got != "3:5 1:5 2:5 5:5 4:5" {
		t.Errorf("posted in the error state: %s", got)
	}
	for _, c := range b.done {
		if !c.Signaled {
			t.Errorf("flushed without a completion: %+v", c)
		}
	}
}

func TestErrorLeavesSharedReceivesAndReportsLastWQEOnce(t *testing.T) {
	_, b := connect(t, defaults)
	b.rq.shared = true
	b.recv(1, 0, 8)
	b.request(packet.WriteOnly, defaults.psn, 0)
	if s := packet.Syndrome(b.out[0].Head[packet.BTHLen]); s != unlimited {
		t.Errorf("grants credits: %v", s)
	}
	b.qp.Fail(&b.env, ib.EventQPFatal)
	b.qp.Transmit(&b.env)
	b.qp.Fail(&b.env, ib.EventQPFatal)
	if len(b.done) > 0 || !slices.Equal(b.events, []ib.EventType{ib.EventQPLastWQEReached, ib.EventQPFatal}) {
		t.Errorf("completions %s, events %v", statuses(b.done), b.events)
	}
}

func TestFirstRequestInRTRReportsCommEst(t *testing.T) {
	b := newSide(t, 18, 1<<12)
	toRTR(t, b, defaults, 17, 100)
	b.reply(packet.Acknowledge, 100, unlimited, 0, 0)
	if len(b.events) > 0 || b.count.Drops[DropState] != 1 {
		t.Errorf("a reply in RTR: events %v, drops %v", b.events, b.count.Drops)
	}
	for i := range uint32(2) {
		b.request(packet.WriteOnly, 100+i, 0)
	}
	if got := b.emitted(100); got != "ACKNOWLEDGE+0/ack/1 ACKNOWLEDGE+1/ack/2" || !slices.Equal(b.events, []ib.EventType{ib.EventCommEst}) {
		t.Errorf("%s, events %v", got, b.events)
	}
}

func TestPKeyMatchNeedsAFullMember(t *testing.T) {
	for _, c := range []struct {
		mine, its uint16
		ok        bool
	}{
		{0xffff, 0xffff, true}, {0xffff, 0x7fff, true}, {0x7fff, 0xffff, true}, {0x7fff, 0x7fff, false},
		{0xffff, 0xfffe, false}, {0x8001, 0x0001, true},
	} {
		q := &QP{attr: ib.QPAttr{PKey: c.mine}}
		if q.PKeyMatches(c.its) != c.ok {
			t.Errorf("%#x and %#x: %v", c.mine, c.its, !c.ok)
		}
	}
}

func TestQueryReturnsNextPSNs(t *testing.T) {
	a, b := connect(t, defaults)
	b.recv(1, 0, 4000)
	a.post(SendWR{Opcode: ib.WRSend, SGEs: a.sge(0, 3000)})
	run(t, a, b, deliverAll)
	if x, y := a.qp.Query(), b.qp.Query(); x.SQPSN != packet.PSNAdd(defaults.psn, 3) || y.RQPSN != x.SQPSN || x.State != ib.QPSRTS || x.PathMTU != 1024 {
		t.Errorf("requester %+v\nresponder %+v", x, y)
	}
	una, send, next := a.qp.Progress()
	if psn, msn := b.qp.Expected(); una != psn || send != psn || next != psn || msn != 1 {
		t.Errorf("progress %d %d %d, expected %d, MSN %d", una, send, next, psn, msn)
	}
}

func TestModifyRejectsValuesOutOfRange(t *testing.T) {
	for mask, a := range map[ib.QPAttrMask]ib.QPAttr{
		ib.QPMaskPathMTU: {PathMTU: 1000}, ib.QPMaskRQPSN: {RQPSN: 1 << 24}, ib.QPMaskSQPSN: {SQPSN: 1 << 24}, ib.QPMaskDestQPN: {DestQPN: 1 << 24},
		ib.QPMaskMinRNRTimer: {MinRNRTimer: 32}, ib.QPMaskTimeout: {Timeout: 32}, ib.QPMaskRetryCount: {RetryCount: 8}, ib.QPMaskRNRRetry: {RNRRetry: 8},
		ib.QPMaskMaxRDAtomic: {MaxRDAtomic: MaxRDAtomic + 1}, ib.QPMaskMaxDestRDAtomic: {MaxDestRDAtomic: MaxRDAtomic + 1},
	} {
		if checkAttr(&a, mask) == nil {
			t.Errorf("mask %#x: %+v is accepted", uint32(mask), a)
		}
	}
}

func TestModifyRejectsUndefinedTransitions(t *testing.T) {
	for _, c := range []struct {
		a    ib.QPAttr
		mask ib.QPAttrMask
	}{
		{ib.QPAttr{CurState: ib.QPSSQD, State: ib.QPSRTS}, ib.QPMaskState | ib.QPMaskCurState},
		{ib.QPAttr{State: ib.QPSErr, Access: 1}, ib.QPMaskState | ib.QPMaskAccess},
		{ib.QPAttr{State: ib.QPSSQE}, ib.QPMaskState},
		{ib.QPAttr{State: 99}, ib.QPMaskState},
	} {
		a, _ := connect(t, defaults)
		if a.qp.Modify(&a.env, &c.a, c.mask) == nil || a.qp.State() != ib.QPSRTS {
			t.Errorf("to %v with %#x is accepted", c.a.State, uint32(c.mask))
		}
	}
}

func TestNewRejectsInvalidConfig(t *testing.T) {
	for _, c := range []Config{{Service: packet.RD}, {Service: packet.XRC}, {Service: packet.XRC, Role: Target}, {Service: packet.RC, SendDepth: -1}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}

func TestPostSendReportsFullQueue(t *testing.T) {
	a, _ := connect(t, defaults)
	for range 64 {
		a.post(SendWR{Opcode: ib.WRSend})
	}
	if err := a.qp.PostSend(&SendWR{Opcode: ib.WRSend}); err != ErrFull || a.qp.SendQueueLen() != 64 {
		t.Errorf("%v with %d posted", err, a.qp.SendQueueLen())
	}
}

func TestDropReasonNamesAreDistinct(t *testing.T) {
	seen := map[string]bool{"": true, "unknown": true}
	for r := range NumDropReasons {
		if seen[r.String()] {
			t.Errorf("reason %d is called %q", r, r)
		}
		seen[r.String()] = true
	}
	if NumDropReasons.String() != "unknown" || ib.QPState(99).String() != "QPState(99)" || ib.QPSSQD.String() != "SQD" ||
		ib.WCRNRRetryExcErr.String() == ib.WCRetryExcErr.String() || ib.WCStatus(99).String() != "WCStatus(99)" {
		t.Error("an unknown value has a name, or two values share one")
	}
}
