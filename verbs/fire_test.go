package verbs_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/internal/ib"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

// A fired event reaches the program as if the NIC had raised it, with the object it is about, and
// what belongs to it happens. A client of another NIC sees nothing.
func TestFiredEvents(t *testing.T) {
	for _, c := range []struct {
		event   verbs.EventType
		on      string          // "qp", "cq", "srq"
		stopped bool            // the queue pair is in ERR afterwards
		then    verbs.PortState // of the port
	}{
		{verbs.EventCQErr, "cq", true, verbs.PortActive},
		{verbs.EventQPFatal, "qp", true, verbs.PortActive},
		{verbs.EventQPReqErr, "qp", true, verbs.PortActive},
		{verbs.EventQPAccessErr, "qp", true, verbs.PortActive},
		{verbs.EventCommEst, "qp", false, verbs.PortActive},
		{verbs.EventSQDrained, "qp", false, verbs.PortActive},
		{verbs.EventPathMig, "qp", false, verbs.PortActive},
		{verbs.EventPathMigErr, "qp", false, verbs.PortActive},
		{verbs.EventDeviceFatal, "", true, verbs.PortActive},
		{verbs.EventPortErr, "", false, verbs.PortDown},
		{verbs.EventLIDChange, "", false, verbs.PortActive},
		{verbs.EventPKeyChange, "", false, verbs.PortActive},
		{verbs.EventSMChange, "", false, verbs.PortActive},
		{verbs.EventSRQErr, "srq", true, verbs.PortActive},
		{verbs.EventSRQLimitReached, "srq", false, verbs.PortActive},
		{verbs.EventQPLastWQEReached, "qp", false, verbs.PortActive},
		{verbs.EventClientReregister, "", false, verbs.PortActive},
		{verbs.EventGIDChange, "", false, verbs.PortActive},
	} {
		t.Run(ib.EventType(c.event).String(), func(t *testing.T) {
			f := fabrictest.New(t, fabrictest.Config{})
			ctx := t.Context()
			a, other := f.Open(0), f.Open(1)
			op := operatorOf(t, f)
			x := verbstest.EndpointConfig{}.New(t, a)
			srq, err := x.PD.CreateSRQ(ctx, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
			if err != nil {
				t.Fatal(err)
			}
			q, err := x.PD.CreateQP(ctx, verbs.QPInitAttr{QPType: verbs.RC, SendCQ: x.CQ, RecvCQ: x.CQ, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 1}})
			if err != nil {
				t.Fatal(err)
			}
			if c.on == "qp" {
				q = x.QP // raises no QP_LAST_WQE_REACHED of its own
			}
			if err := q.ToInit(ctx, 0); err != nil {
				t.Fatal(err)
			}

			snap := f.Engines[0].Snapshot(f.Devices[0])
			number := map[string]uint32{"qp": q.QPNum(), "cq": snap.CQs[0].ID, "srq": snap.SRQs[0].ID}[c.on]
			if err := op.FireEvent(ctx, "nic0", ib.EventType(c.event), number); err != nil {
				t.Fatal(err)
			}
			e, err := a.AsyncEvent(ctx)
			if err != nil || e.EventType != c.event || (e.QP != nil) != (c.on == "qp") || (e.CQ != nil) != (c.on == "cq") || (e.SRQ != nil) != (c.on == "srq") {
				t.Errorf("event %+v, %v", e, err)
			}
			if attr, err := q.Query(ctx); err != nil || (attr.QPState == verbs.QPSErr) != c.stopped {
				t.Errorf("state %v, %v", attr.QPState, err)
			}
			if p, err := a.QueryPort(ctx); err != nil || p.State != c.then {
				t.Errorf("port %+v, %v", p, err)
			}
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			if e, err := other.AsyncEvent(cancelled); !errors.Is(err, context.Canceled) {
				t.Errorf("the client of another NIC got %+v, %v", e, err)
			}
		})
	}
}

func operatorOf(t *testing.T, f *fabrictest.Fabric) *control.Client {
	t.Helper()
	c, err := control.NewClient(context.Background(), f.Connect())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestWrongEventsAreNotFired(t *testing.T) {
	_, c := clientAndOperator(t)
	for _, wrong := range []struct {
		device string
		event  ib.EventType
		number uint32
		want   error
	}{
		{"nic9", ib.EventPortErr, 0, syscall.ENODEV},
		{"nic0", ib.EventGIDChange + 1, 0, syscall.EINVAL},
		{"nic0", ib.EventPortErr, 2, syscall.EINVAL},
		{"nic0", ib.EventQPFatal, 0, syscall.EINVAL},
		{"nic0", ib.EventQPFatal, 0xabcdef, syscall.ENOENT},
		{"nic0", ib.EventCQErr, 0xabcdef, syscall.ENOENT},
		{"nic0", ib.EventSRQErr, 0xabcdef, syscall.ENOENT},
	} {
		if err := c.FireEvent(t.Context(), wrong.device, wrong.event, wrong.number); !errors.Is(err, wrong.want) {
			t.Errorf("%s %v %d: %v, want %v", wrong.device, wrong.event, wrong.number, err, wrong.want)
		}
	}
}
