package verbs_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"softroce/verbs"
	"softroce/verbs/verbstest"
)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestFailedWorkRequestsCompleteWithTheirStatus(t *testing.T) {
	type endpoint = *verbstest.Endpoint
	write := func(x, y endpoint) verbs.SendWR {
		return verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
	}
	for _, c := range []struct {
		name   string
		wr     func(x, y endpoint) verbs.SendWR
		recv   int // bytes of a receive at y, -1 for none
		want   verbs.WCStatus
		atPeer verbs.WCStatus // of the receive, where it is not flushed
	}{
		{"an unknown L_Key", func(x, y endpoint) verbs.SendWR {
			wr := write(x, y)
			wr.SGList[0].LKey ^= 0x55
			return wr
		}, -1, verbs.WCLocProtErr, 0},
		{"a local range that exceeds its region", func(x, y endpoint) verbs.SendWR {
			wr := write(x, y)
			wr.SGList = x.SGE(len(x.Buf)-4, 8)
			return wr
		}, -1, verbs.WCLocProtErr, 0},
		{"an unknown R_Key", func(x, y endpoint) verbs.SendWR {
			wr := write(x, y)
			wr.RKey ^= 0x55
			return wr
		}, -1, verbs.WCRemAccessErr, 0},
		{"a remote range that exceeds its region", func(x, y endpoint) verbs.SendWR {
			wr := write(x, y)
			wr.RemoteAddr += uint64(len(y.Buf)) - 4
			return wr
		}, -1, verbs.WCRemAccessErr, 0},
		{"an R_Key of another protection domain", func(x, y endpoint) verbs.SendWR {
			pd, _ := y.Context.AllocPD(t.Context())
			mr, err := pd.RegMR(t.Context(), y.Buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
			if err != nil {
				panic(err)
			}
			wr := write(x, y)
			wr.RKey = mr.RKey()
			return wr
		}, -1, verbs.WCRemAccessErr, 0},
		{"a region without remote access", func(x, y endpoint) verbs.SendWR {
			mr, err := y.PD.RegMR(t.Context(), y.Buf, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
			if err != nil {
				panic(err)
			}
			wr := write(x, y)
			wr.RKey = mr.RKey()
			return wr
		}, -1, verbs.WCRemAccessErr, 0},
		{"an unaligned atomic", func(x, y endpoint) verbs.SendWR {
			wr := write(x, y)
			wr.Opcode, wr.RemoteAddr = verbs.WRAtomicFetchAndAdd, y.MR.Addr()+4
			return wr
		}, -1, verbs.WCRemInvReqErr, 0},
		{"a SEND longer than the receive", func(x, y endpoint) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 100)}
		}, 99, verbs.WCRemInvReqErr, verbs.WCLocLenErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := verbstest.Pair(t)
			x, y := verbstest.ConnectedRC(t, a, b)
			if c.recv >= 0 {
				y.Recv(1, 0, c.recv)
			}
			wr := c.wr(x, y)
			wr.WRID = 5
			x.Send(wr)
			bad := x.Failure(c.want)
			if bad.WRID != 5 {
				t.Errorf("the completion is of work request %d", bad.WRID)
			}
			if err := bad.Err(); !errors.Is(err, &verbs.WCError{Status: c.want}) {
				t.Errorf("error %v", err)
			}
			if c.recv >= 0 {
				y.Failure(c.atPeer)
			}
			// The queue pair is in error: later work requests are flushed.
			x.Send(verbs.SendWR{WRID: 6, Opcode: verbs.WRSend})
			x.Recv(7, 0, 1)
			x.Failure(verbs.WCWRFlushErr)
			x.Failure(verbs.WCWRFlushErr)
			if a, err := x.Query(t.Context()); err != nil || a.QPState != verbs.QPSErr {
				t.Errorf("state %v, %v", a.QPState, err)
			}
		})
	}
}

func TestRetryAndRNRRetryLimits(t *testing.T) {
	a, b := verbstest.Pair(t)
	config := verbstest.EndpointConfig{Options: func(o *verbs.ConnectOptions) { o.RNRRetry, o.MinRNRTimer = 1, 1 }}
	x, _ := config.Connect(t, a, b)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend})
	x.Failure(verbs.WCRNRRetryExcErr)

	config.Options = func(o *verbs.ConnectOptions) { o.Timeout, o.RetryCnt = 8, 1 }
	x, y := config.Connect(t, a, b)
	if err := y.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.Send(verbs.SendWR{Opcode: verbs.WRSend})
	x.Failure(verbs.WCRetryExcErr)
}

func TestAsyncEventNamesItsQueuePair(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 1), RemoteAddr: 1, RKey: 1})
	x.Failure(verbs.WCRemAccessErr)
	e, err := b.AsyncEvent(within(t))
	if err != nil || e.EventType != verbs.EventQPAccessErr || e.QP != y.QP {
		t.Fatalf("event %+v, %v", e, err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := b.AsyncEvent(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("waiting for another event: %v", err)
	}
}

// A program that reads its events late gets those, too, that found the ring full.
func TestEventsBeyondTheRingAreNotLost(t *testing.T) {
	a, _ := verbstest.Pair(t)
	y := verbstest.EndpointConfig{}.New(t, a)
	srq, err := y.PD.CreateSRQ(t.Context(), verbs.SRQAttr{MaxWR: 16, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	const total = 1500
	for range total {
		q, err := y.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: y.CQ, RecvCQ: y.CQ, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 1}})
		if err != nil {
			t.Fatal(err)
		}
		init := verbs.QPMaskState | verbs.QPMaskPKeyIndex | verbs.QPMaskPort | verbs.QPMaskAccessFlags
		for _, s := range []verbs.QPState{verbs.QPSInit, verbs.QPSErr} {
			if err := q.Modify(t.Context(), &verbs.QPAttr{QPState: s, PortNum: 1}, init); err != nil {
				t.Fatal(err)
			}
			init = verbs.QPMaskState
		}
	}
	seen := map[*verbs.QP]bool{}
	for range total {
		e, err := a.AsyncEvent(within(t))
		if err != nil || e.EventType != verbs.EventQPLastWQEReached || seen[e.QP] {
			t.Fatalf("after %d events: %+v, %v", len(seen), e, err)
		}
		seen[e.QP] = true
	}
}

// An event that the program causes again and again waits once, so that events take bounded memory.
func TestWaitingEventsAreBounded(t *testing.T) {
	a, _ := verbstest.Pair(t)
	y := verbstest.EndpointConfig{}.New(t, a)
	srq, err := y.PD.CreateSRQ(t.Context(), verbs.SRQAttr{MaxWR: 16, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 { // the limit is reached at once
		if err := srq.Modify(t.Context(), verbs.SRQAttr{SRQLimit: 1}, verbs.SRQMaskLimit); err != nil {
			t.Fatal(err)
		}
	}
	q, err := y.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: y.CQ, RecvCQ: y.CQ, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 1}})
	if err != nil {
		t.Fatal(err)
	}
	mask := verbs.QPMaskState | verbs.QPMaskPKeyIndex | verbs.QPMaskPort | verbs.QPMaskAccessFlags
	for _, s := range []verbs.QPState{verbs.QPSInit, verbs.QPSErr} {
		if err := q.Modify(t.Context(), &verbs.QPAttr{QPState: s, PortNum: 1}, mask); err != nil {
			t.Fatal(err)
		}
		mask = verbs.QPMaskState
	}
	const ring = 1024
	for n := 0; ; n++ {
		e, err := a.AsyncEvent(within(t))
		switch {
		case err != nil:
			t.Fatal(err)
		case e.EventType == verbs.EventSRQLimitReached && e.SRQ == srq && n <= ring:
		case e.EventType == verbs.EventQPLastWQEReached && e.QP == q && n == ring+1:
			return
		default:
			t.Fatalf("event %d: %+v", n, e)
		}
	}
}

// en_sqd_async_notify is a value beside its bit in the mask: with 0 there is no SQ_DRAINED. The
// event that is there is the next one.
func TestSQDWithNotifyZeroRaisesNoEvent(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	mask := verbs.QPMaskState | verbs.QPMaskEnSQDAsyncNotify
	for _, s := range []verbs.QPAttr{{QPState: verbs.QPSSQD}, {QPState: verbs.QPSRTS}} {
		if err := x.QP.Modify(t.Context(), &s, mask); err != nil {
			t.Fatal(err)
		}
		mask = verbs.QPMaskState
	}
	y.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: y.SGE(0, 1), RemoteAddr: 1, RKey: 1})
	if e, err := a.AsyncEvent(within(t)); err != nil || e.EventType != verbs.EventQPAccessErr {
		t.Errorf("event %+v, %v", e, err)
	}
}

func TestCQOverflowFailsItsQueuePairs(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.EndpointConfig{CQE: 8}.Connect(t, a, b)
	for range 20 {
		x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 1), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	}
	e, err := a.AsyncEvent(within(t))
	if err != nil || e.EventType != verbs.EventCQErr || e.CQ != x.CQ {
		t.Fatalf("event %+v, %v", e, err)
	}
	for _, wc := range x.Completions(x.CQ.CQE()) {
		if wc.Status != verbs.WCSuccess {
			t.Errorf("completion %+v", wc)
		}
	}
	if e, err = a.AsyncEvent(within(t)); err != nil || e.EventType != verbs.EventQPFatal || e.QP != x.QP {
		t.Errorf("event %+v, %v", e, err)
	}
}

func TestPostingIsAllOrNothing(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	wr := verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 1), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()}
	many := make([]verbs.SGE, x.Cap().MaxSendSGE+1)
	for _, c := range []struct {
		name string
		bad  verbs.SendWR
	}{
		{"too many SGEs", verbs.SendWR{Opcode: verbs.WRSend, SGList: many}},
		{"too much inline data", verbs.SendWR{Opcode: verbs.WRSend, SendFlags: verbs.SendInline, Inline: make([]byte, x.Cap().MaxInlineData+1)}},
	} {
		if err := x.PostSend(wr, c.bad); !errors.Is(err, verbs.ErrWorkRequest) || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := x.PostSend(make([]verbs.SendWR, x.Cap().MaxSendWR+1)...); !errors.Is(err, verbs.ErrQueueFull) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("posting more sends than the queue holds: %v", err)
	}
	if err := x.PostRecv(make([]verbs.RecvWR, x.Cap().MaxRecvWR+1)...); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("posting more receives than the queue holds: %v", err)
	}
	if n, err := x.CQ.Poll(make([]verbs.WC, 4)); n != 0 || err != nil {
		t.Errorf("%d completions, %v", n, err)
	}
	x.Send(wr)
	x.Completion()

	fresh := verbstest.EndpointConfig{}.New(t, a)
	if err := fresh.PostSend(wr); !errors.Is(err, verbs.ErrState) {
		t.Errorf("sending in RESET: %v", err)
	}
	if err := fresh.PostRecv(verbs.RecvWR{}); !errors.Is(err, verbs.ErrState) {
		t.Errorf("receiving in RESET: %v", err)
	}
}

func TestClientLimitsAffectOnlyThatClient(t *testing.T) {
	f := verbstest.New(t, verbstest.WithLimits(verbstest.Limits{
		PDs: 2, CQs: 2, QPs: 1, MRs: 1, Registered: 1 << 20, Rings: 1 << 20, Connections: 2,
	}))
	a := f.Open(0)
	f.Open(1)
	if _, err := verbs.Open(context.Background(), "nic0", verbs.WithSocket(f.Socket())); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("opening a third connection: %v", err)
	}
	pd, _ := a.AllocPD(t.Context())
	cq, _ := a.CreateCQ(t.Context(), 1, nil)
	buf, _ := a.AllocBuffer(2 << 20)
	init := verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}
	steps := []struct {
		name string
		want error
		do   func() error
	}{
		{"a PD", nil, func() error { _, err := a.AllocPD(t.Context()); return err }},
		{"a third PD", syscall.ENOMEM, func() error { _, err := a.AllocPD(t.Context()); return err }},
		{"more memory than allowed", syscall.ENOMEM, func() error { _, err := pd.RegMR(t.Context(), buf.Bytes(), 0); return err }},
		{"an MR", nil, func() error { _, err := pd.RegMR(t.Context(), buf.Bytes()[:100], 0); return err }},
		{"a second MR", syscall.ENOMEM, func() error { _, err := pd.RegMR(t.Context(), buf.Bytes()[:100], 0); return err }},
		{"a CQ whose ring exceeds the memory limit", syscall.ENOMEM, func() error { _, err := a.CreateCQ(t.Context(), 1<<16, nil); return err }},
		{"a CQ with more entries than max_cqe", syscall.EINVAL, func() error { _, err := a.CreateCQ(t.Context(), 1<<30, nil); return err }},
		{"a QP", nil, func() error { _, err := pd.CreateQP(t.Context(), init); return err }},
		{"a second QP", syscall.ENOMEM, func() error { _, err := pd.CreateQP(t.Context(), init); return err }},
		{"a channel", nil, func() error { _, err := a.CreateCompChannel(t.Context()); return err }},
		{"a second channel", nil, func() error { _, err := a.CreateCompChannel(t.Context()); return err }},
		{"a third channel", syscall.ENOMEM, func() error { _, err := a.CreateCompChannel(t.Context()); return err }},
	}
	for _, s := range steps {
		if err := s.do(); !errors.Is(err, s.want) {
			t.Errorf("%s: error %v, want %v", s.name, err, s.want)
		}
	}
}

func TestInvalidRequestsReturnErrnoAndReason(t *testing.T) {
	f := verbstest.New(t)
	a, b := f.Open(0), f.Open(1)
	if _, err := verbs.Open(context.Background(), "nic7", verbs.WithConn(f.Dial())); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("opening an unknown device: %v", err)
	}
	if _, err := verbs.Open(context.Background(), "", verbs.WithSocket(t.TempDir()+"/none")); !errors.Is(err, verbs.ErrNoDaemon) || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("opening a missing socket: %v", err)
	}
	x := verbstest.EndpointConfig{}.New(t, a)
	y := verbstest.EndpointConfig{}.New(t, b)
	foreign := verbs.QPInitAttr{QPType: verbs.RC, SendCQ: x.CQ, RecvCQ: x.CQ}
	for _, c := range []struct {
		name string
		want syscall.Errno
		do   func() error
	}{
		{"a PD that is in use", syscall.EBUSY, func() error { return x.PD.Close(t.Context()) }},
		{"a CQ that is in use", syscall.EBUSY, func() error { return x.CQ.Close(t.Context()) }},
		{"remote write without local write", syscall.EINVAL, func() error { _, err := x.PD.RegMR(t.Context(), x.Buf, verbs.AccessRemoteWrite); return err }},
		{"an unknown QP type", syscall.EOPNOTSUPP, func() error {
			a := foreign
			a.QPType = 77
			_, err := x.PD.CreateQP(t.Context(), a)
			return err
		}},
		{"RESET to RTS", syscall.EINVAL, func() error {
			return y.Modify(t.Context(), &verbs.QPAttr{QPState: verbs.QPSRTS}, verbs.QPMaskState)
		}},
		{"a CQ of negative size", syscall.EINVAL, func() error { _, err := a.CreateCQ(t.Context(), -1, nil); return err }},
		{"a buffer of length 0", syscall.EINVAL, func() error { _, err := a.AllocBuffer(0); return err }},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", c.name, err, c.want)
		}
	}
	if err := x.MR.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := x.MR.Close(t.Context()); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closing twice: %v", err)
	}
}
