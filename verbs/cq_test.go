package verbs_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"softroce/internal/fabrictest"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// queuePair creates an RC queue pair with a CQ for each direction.
func queuePair(t *testing.T, pd *verbs.PD, send, recv *verbs.CQ) *verbs.QP {
	t.Helper()
	q, err := pd.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: send, RecvCQ: recv,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func connect(t *testing.T, p, q *verbs.QP) {
	t.Helper()
	pi, err := p.Info(t.Context(), verbs.AnyGID)
	if err != nil {
		t.Fatal(err)
	}
	qi, err := q.Info(t.Context(), verbs.AnyGID)
	if err != nil {
		t.Fatal(err)
	}
	o := verbs.DefaultConnectOptions()
	if err := errors.Join(p.Connect(within(t), qi, o), q.Connect(within(t), pi, o)); err != nil {
		t.Fatal(err)
	}
}

func TestCompChannelReturnsTheQueueOfTheEvent(t *testing.T) {
	a, b := verbstest.Pair(t)
	ch, err := b.CreateCompChannel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pa, _ := a.AllocPD(t.Context())
	pb, _ := b.AllocPD(t.Context())
	ca, _ := a.CreateCQ(t.Context(), 64, nil)
	var cqs [3]*verbs.CQ
	var senders [3]*verbs.QP
	for i := range cqs {
		if cqs[i], err = b.CreateCQ(t.Context(), 64, ch); err != nil {
			t.Fatal(err)
		}
		senders[i] = queuePair(t, pa, ca, ca)
		r := queuePair(t, pb, cqs[i], cqs[i])
		connect(t, senders[i], r)
		for range 4 {
			if err := r.PostRecv(verbs.RecvWR{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	send := func(i int, flags verbs.SendFlags) {
		t.Helper()
		if err := senders[i].PostSend(verbs.SendWR{Opcode: verbs.WRSend, SendFlags: flags | verbs.SendSignaled}); err != nil {
			t.Fatal(err)
		}
		if err := ca.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		if n, err := ca.Poll(make([]verbs.WC, 1)); n != 1 || err != nil {
			t.Fatalf("poll: %d, %v", n, err)
		}
	}
	none := func(why string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if q, err := ch.GetEvent(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%s: event of %p, %v", why, q, err)
		}
	}
	expect := func(i int) {
		t.Helper()
		if q, err := ch.GetEvent(within(t)); err != nil || q != cqs[i] {
			t.Fatalf("event of %p, %v; expected queue %d, %p", q, err, i, cqs[i])
		}
	}

	send(0, 0)
	none("a queue that was not armed")
	for _, i := range []int{2, 0, 1} {
		if err := cqs[i].Arm(false); err != nil {
			t.Fatal(err)
		}
		send(i, 0)
		expect(i)
	}
	send(1, 0)
	none("a queue that was armed once and has fired")
	if err := cqs[1].Arm(true); err != nil {
		t.Fatal(err)
	}
	send(1, 0)
	none("a message that is not solicited")
	send(1, verbs.SendSolicited)
	expect(1)

	if err := cqs[1].Wait(within(t)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Wait on a queue with a channel: %v", err)
	}
	if err := ch.Close(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing a channel in use: %v", err)
	}
}

func TestWaitReturnsOnCompletionOrContextEnd(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	for range 3 {
		go func() { ended <- y.CQ.Wait(ctx) }()
	}
	time.Sleep(20 * time.Millisecond)
	cancel()
	for range 3 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait: %v", err)
		}
	}
	// Several goroutines may wait; each returns for a completion that was not polled.
	for range 3 {
		go func() { ended <- y.CQ.Wait(within(t)) }()
	}
	time.Sleep(20 * time.Millisecond)
	y.Recv(1, 0, 8)
	x.Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: x.SGE(0, 8)})
	for range 3 {
		if err := <-ended; err != nil {
			t.Fatalf("Wait: %v", err)
		}
	}
	y.Completion()
	x.Completion()
}

func TestDestroyQPRemovesItsCompletions(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	a := f.Open(0)
	pd, _ := a.AllocPD(t.Context())
	cq, _ := a.CreateCQ(t.Context(), 64, nil)
	var qps [3]*verbs.QP
	for i := range qps {
		qps[i] = queuePair(t, pd, cq, cq)
		if err := qps[i].ToInit(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	// Receives of all three in turn, which are flushed in this order.
	for n := range 12 {
		q := qps[n%3]
		if err := q.PostRecv(verbs.RecvWR{WRID: uint64(n)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range qps {
		if err := q.Modify(t.Context(), &verbs.QPAttr{QPState: verbs.QPSErr}, verbs.QPMaskState); err != nil {
			t.Fatal(err)
		}
	}
	waiting := func() int { return f.Server.Snapshot().Devices[0].CQs[0].Waiting }
	for limit := time.Now().Add(20 * time.Second); waiting() < 12; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d of 12 completions arrived", waiting())
		}
	}
	wc := make([]verbs.WC, 16)
	n, _ := cq.Poll(wc[:1]) // the oldest is of the first
	if n != 1 || wc[0].QPNum != qps[0].QPNum() || wc[0].Status != verbs.WCWRFlushErr {
		t.Fatalf("first completion: %d %+v", n, wc[0])
	}
	if err := qps[1].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	n, err := cq.Poll(wc)
	if n != 7 || err != nil {
		t.Fatalf("Poll returned %d completions, %v", n, err)
	}
	for i, id := range []uint64{3, 6, 9, 2, 5, 8, 11} {
		if wc[i].WRID != id {
			t.Errorf("completion %d is of work request %d, want %d", i, wc[i].WRID, id)
		}
	}
}

func TestResetEmptiesTheQueuePair(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	x.Send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 1), RemoteAddr: 1, RKey: 1})
	x.Failure(verbs.WCRemAccessErr)
	x.Recv(1, 0, 1) // flushed, and not seen any more
	for _, e := range []*verbstest.Endpoint{x, y} {
		if err := e.Modify(t.Context(), &verbs.QPAttr{QPState: verbs.QPSReset}, verbs.QPMaskState); err != nil {
			t.Fatal(err)
		}
	}
	verbstest.EndpointConfig{}.Join(t, x, y)
	operations(t, x, y, 3000)
}
