package verbs_test

import (
	"errors"
	"syscall"
	"testing"

	"softroce/internal/fabrictest"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// event waits for an asynchronous event of type want and skips EventCommEst.
func event(t *testing.T, c *verbs.Context, want verbs.EventType) verbs.AsyncEvent {
	t.Helper()
	for {
		e, err := c.AsyncEvent(within(t))
		if err != nil {
			t.Fatalf("waiting for %v: %v", want, err)
		}
		if e.EventType == want {
			return e
		}
		if e.EventType != verbs.EventCommEst {
			t.Fatalf("event %v, want %v", e.EventType, want)
		}
	}
}

func TestSharedReceiveQueue(t *testing.T) {
	a, b := verbstest.Pair(t)
	y := verbstest.EndpointConfig{}.New(t, b) // memory and CQ
	srq, err := y.PD.CreateSRQ(t.Context(), verbs.SRQAttr{MaxWR: 5, MaxSGE: 2})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := srq.Query(t.Context()); err != nil || got != (verbs.SRQAttr{MaxWR: 8, MaxSGE: 2}) {
		t.Fatalf("query: %+v, %v", got, err)
	}
	var xs []*verbstest.Endpoint
	var qps []*verbs.QP
	for range 2 {
		q, err := y.PD.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: y.CQ, RecvCQ: y.CQ, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 4}})
		if err != nil {
			t.Fatal(err)
		}
		if err := q.PostRecv(verbs.RecvWR{}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("receive posted to a queue pair with an SRQ: %v", err)
		}
		x := verbstest.EndpointConfig{}.New(t, a)
		connect(t, x.QP, q)
		xs, qps = append(xs, x), append(qps, q)
	}
	post := func(id uint64) error {
		return srq.PostRecv(verbs.RecvWR{WRID: id, SGList: y.SGE(int(id)*100, 100)})
	}
	for id := range uint64(8) {
		if err := post(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := post(9); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("posting a ninth receive: %v", err)
	}
	if err := srq.PostRecv(verbs.RecvWR{SGList: make([]verbs.SGE, 3)}); !errors.Is(err, verbs.ErrWorkRequest) && !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("posting a receive with three SGEs: %v", err)
	}
	if err := srq.Modify(t.Context(), verbs.SRQAttr{SRQLimit: 6}, verbs.SRQMaskLimit); err != nil {
		t.Fatal(err)
	}
	send := func(i int, id uint64) {
		t.Helper()
		fill(xs[i].Buf[:100], id)
		xs[i].Send(verbs.SendWR{Opcode: verbs.WRSend, SGList: xs[i].SGE(0, 100)})
		xs[i].Completion()
		if wc := y.Completion(); wc.WRID != id || wc.QPNum != qps[i].QPNum() {
			t.Fatalf("completion %+v", wc)
		}
		same(t, "message", y.Buf[id*100:][:100], xs[i].Buf[:100])
	}
	for i := range 3 {
		send(i%2, uint64(i))
	}
	if e := event(t, b, verbs.EventSRQLimitReached); e.SRQ != srq || e.QP != nil {
		t.Errorf("event %+v", e)
	}
	if got, _ := srq.Query(t.Context()); got.SRQLimit != 0 {
		t.Errorf("SRQ limit %d after its event", got.SRQLimit)
	}
	// A larger queue keeps its receives and has room for more.
	if err := srq.Modify(t.Context(), verbs.SRQAttr{MaxWR: 16}, verbs.SRQMaskMaxWR); err != nil {
		t.Fatal(err)
	}
	for id := uint64(8); id < 19; id++ {
		if err := post(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := srq.Modify(t.Context(), verbs.SRQAttr{MaxWR: 8}, verbs.SRQMaskMaxWR); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("resizing below the number of posted receives: %v", err)
	}
	for i := 3; i < 19; i++ {
		send(i%2, uint64(i))
	}
	// A queue pair in error takes no more receives from the queue, and reports an event.
	if err := post(20); err != nil {
		t.Fatal(err)
	}
	if err := qps[0].Modify(t.Context(), &verbs.QPAttr{QPState: verbs.QPSErr}, verbs.QPMaskState); err != nil {
		t.Fatal(err)
	}
	if e := event(t, b, verbs.EventQPLastWQEReached); e.QP != qps[0] {
		t.Errorf("event %+v", e)
	}
	send(1, 20)
	if err := srq.Close(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing an SRQ in use: %v", err)
	}
	if err := errors.Join(qps[0].Close(t.Context()), qps[1].Close(t.Context()), srq.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := post(1); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("posting to a closed SRQ: %v", err)
	}
}

func TestCreateSRQRejectsInvalidAttributes(t *testing.T) {
	a, _ := verbstest.Pair(t)
	pd, err := a.AllocPD(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []verbs.SRQAttr{{MaxWR: 0}, {MaxWR: 1 << 20}, {MaxWR: 1, MaxSGE: 33}, {MaxWR: 4, SRQLimit: 5}} {
		if _, err := pd.CreateSRQ(t.Context(), c); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("creating an SRQ with %+v: %v", c, err)
		}
	}
}

func TestResizeCQKeepsCompletions(t *testing.T) {
	a, b := verbstest.Pair(t)
	x, y := verbstest.ConnectedRC(t, a, b)
	write := func(id uint64) {
		x.Send(verbs.SendWR{WRID: id, Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 8), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
	}
	next := uint64(0)
	for i := range uint64(40) {
		write(i)
		if i%10 == 5 {
			// Some completions arrive during the resize and go to the new ring.
			if err := x.CQ.Resize(t.Context(), 64<<(i/10)); err != nil {
				t.Fatal(err)
			}
		}
		if i%2 == 1 {
			if wc := x.Completion(); wc.WRID != next {
				t.Fatalf("completion %+v, want work request %d", wc, next)
			}
			next++
		}
	}
	if n := x.CQ.CQE(); n != 512 {
		t.Errorf("the CQ holds %d entries", n)
	}
	for ; next < 40; next++ {
		if wc := x.Completion(); wc.WRID != next {
			t.Fatalf("completion %+v, want work request %d", wc, next)
		}
	}
	if err := x.CQ.Resize(t.Context(), 0); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// The daemon moves queues to memory for whose descriptor the process has no room. A queue whose new
// memory is mapped already uses it. Any other has lost its ring: the old one may be another
// queue's.
func TestResizeWithoutRoomForADescriptor(t *testing.T) {
	ctx := t.Context()
	d := newSlowDaemon(t, fabrictest.New(t, fabrictest.Config{}))
	c, err := verbs.Open(ctx, "nic0", verbs.WithConn(d.client))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cq, err := c.CreateCQ(ctx, 16, nil)
	if err != nil {
		t.Fatal(err)
	}
	pd, err := c.AllocPD(ctx)
	if err != nil {
		t.Fatal(err)
	}
	srq, err := pd.CreateSRQ(ctx, verbs.SRQAttr{MaxWR: 16, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	d.losesFDs.Store(true)
	resize := func(n int) (errs []error) {
		return []error{cq.Resize(ctx, n), srq.Modify(ctx, verbs.SRQAttr{MaxWR: uint32(n)}, verbs.SRQMaskMaxWR)}
	}
	for _, err := range resize(32) {
		if err != nil {
			t.Errorf("resize to memory that is mapped: %v", err)
		}
	}
	if err := srq.PostRecv(make([]verbs.RecvWR, 32)...); err != nil || cq.CQE() != 32 {
		t.Errorf("the CQ has %d entries, 32 receives to the SRQ: %v", cq.CQE(), err)
	}
	for _, err := range resize(1 << 13) { // needs a chunk of its own
		if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("resize to memory that is not mapped: %v", err)
		}
	}
	if _, err := cq.Poll(make([]verbs.WC, 1)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Poll of a CQ without a ring: %v", err)
	}
	if err := cq.Arm(false); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Arm of a CQ without a ring: %v", err)
	}
	if err := srq.PostRecv(verbs.RecvWR{}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("PostRecv to an SRQ without a ring: %v", err)
	}
	for name, err := range map[string]error{"CQ": cq.Close(ctx), "SRQ": srq.Close(ctx)} {
		if err != nil {
			t.Errorf("%s without a ring: Close: %v", name, err)
		}
	}
}
