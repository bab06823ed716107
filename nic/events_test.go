package nic_test

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
	"softroce/wire"
)

// An unpluggableInterface is an interface whose state a test changes.
type unpluggableInterface struct {
	wire.Interface
	up     bool
	change func()
}

func (p *unpluggableInterface) Up() bool          { return p.up }
func (p *unpluggableInterface) OnChange(f func()) { p.change = f }

// Each change of the port's state raises one event per client; a notification without a change
// raises none.
func TestPortStateChangesRaiseEvents(t *testing.T) {
	w := newTestFabric(t)
	i := &unpluggableInterface{Interface: wire.StaticInterface("eth0", [6]byte{2, 0, 0, 0, 0, 1}, 1500), up: true}
	d, err := w.engine.AddDevice(nic.DeviceConfig{Name: "x", Link: w.fabric.NewLink(w.engine), Iface: i})
	check(t, err)
	one, other := w.client(d), w.client(d)
	for _, c := range []struct {
		up    bool
		want  []ib.EventType
		state ib.PortState
	}{
		{true, nil, ib.PortActive},
		{false, []ib.EventType{ib.EventPortErr}, ib.PortDown},
		{false, nil, ib.PortDown},
		{true, []ib.EventType{ib.EventPortActive}, ib.PortActive},
	} {
		i.up, one.Events, other.Events = c.up, nil, nil
		i.change()
		for _, client := range []*client{one, other} {
			var got []ib.EventType
			for _, e := range client.Events {
				got = append(got, e.Type)
				if e.Port != 1 || e.QP != nil || e.CQ != nil || e.SRQ != nil {
					t.Errorf("event %+v, want one of port 1", e)
				}
			}
			if !slices.Equal(got, c.want) || d.QueryPort().State != c.state {
				t.Errorf("up %v: events %v, want %v; port state %d", c.up, got, c.want, d.QueryPort().State)
			}
		}
	}
}

// An event that is fired arrives whatever the state of the port was, and the port is then as it
// says. A port whose interface is down cannot become active.
func TestFiredPortEventsArrive(t *testing.T) {
	w := newTestFabric(t)
	i := &unpluggableInterface{Interface: wire.StaticInterface("eth0", [6]byte{2, 0, 0, 0, 0, 1}, 1500), up: true}
	d, err := w.engine.AddDevice(nic.DeviceConfig{Name: "x", Link: w.fabric.NewLink(w.engine), Iface: i, Identity: nic.Identity{Ports: 2}})
	check(t, err)
	c := w.client(d)
	for port := range uint32(3) { // 0 is port 1
		for _, event := range []ib.EventType{ib.EventPortActive, ib.EventPortErr, ib.EventPortErr, ib.EventPortActive, ib.EventPortActive} {
			c.Events = nil
			check(t, d.Fire(event, port))
			if len(c.Events) != 1 || c.Events[0].Type != event || c.Events[0].Port != max(1, int(port)) {
				t.Errorf("port %d, %v: events %+v", port, event, c.Events)
			}
			a, err := d.QueryPortNumber(max(1, int(port)))
			if check(t, err); (a.State == ib.PortActive) != (event == ib.EventPortActive) {
				t.Errorf("port %d after %v: %v", port, event, a.State)
			}
		}
	}
	i.up = false
	i.change()
	c.Events = nil
	if err := d.Fire(ib.EventPortActive, 1); !errors.Is(err, syscall.ENETDOWN) || len(c.Events) != 0 || d.QueryPort().State != ib.PortDown {
		t.Errorf("%v, events %+v", err, c.Events)
	}
	check(t, d.Fire(ib.EventPortActive, 2))
}

// A link that is taken down loses what is sent to it and from it, and then goes on.
func TestLinkDownLosesPackets(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).qp(smallCaps), w.client(w.nic(2)).qp(smallCaps)
	a.connect(4096, b)
	b.connect(4096, a)
	for i, down := range []*queue{a, b} {
		fill(a.mem[:64], byte(i+1))
		down.Device.SetLink(false)
		if s := down.Device.QueryPort().State; s != ib.PortDown || !down.had(ib.EventPortErr) {
			t.Errorf("port state %v, events %v", s, down.Events)
		}
		a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), RemoteAddr: 64, SGEs: a.sge(0, 64)})
		w.run(int64(time.Millisecond))
		a.wantNone()
		if bytes.Equal(b.mem[64:128], a.mem[:64]) {
			t.Error("a packet has passed")
		}
		down.Device.SetLink(true)
		if s := down.Device.QueryPort().State; s != ib.PortActive || !down.had(ib.EventPortActive) {
			t.Errorf("port state %v, events %v", s, down.Events)
		}
		w.run(int64(10 * time.Second))
		a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	}
	b.Device.SetLink(false)
	if x, y := a.Device.Counters().LinkDowned, b.Device.Counters().LinkDowned; x != 1 || y != 2 {
		t.Errorf("counted %d and %d times, want 1 and 2", x, y)
	}
	a.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), RemoteAddr: 64, SGEs: a.sge(0, 64)})
	w.run(int64(100 * time.Second))
	a.want(2, ib.WCRetryExcErr, ib.WCRDMAWrite)
}

// A sinkFunc is an EventSink that calls a function.
type sinkFunc func(nic.Event)

func (f sinkFunc) AsyncEvent(e nic.Event) { f(e) }
func (f sinkFunc) Killed(error)           {}

// visibleAt returns a client and the number of completions that it could poll when the last event
// of a type arrived, -1 before.
func (w *testFabric) visibleAt(d *nic.Device, typ ib.EventType) (c *client, visible *int) {
	n := -1
	c = w.clientOf(d, nic.ContextOptions{PID: 1, Events: sinkFunc(func(e nic.Event) {
		if e.Type == typ {
			n = c.cq.Len()
		}
	})})
	return c, &n
}

func TestLastWQEReachedFollowsTheCompletionsOfItsQP(t *testing.T) {
	for _, c := range []struct {
		name   string
		blocks bool // the client's memory, until its queue pair is in error
		want   int  // completions
	}{{"mapped memory", false, 3}, {"memory that blocks", true, 1}} {
		w := newTestFabric(t)
		ca := w.client(w.nic(1))
		cb, visible := w.visibleAt(w.nic(2), ib.EventQPLastWQEReached)
		srq, err := cb.CreateSRQ(nic.SRQInit{PD: cb.pd, MaxWR: 16, MaxSGE: 1})
		check(t, err)
		a := ca.qp(smallCaps)
		b := cb.create(nic.QPInit{Type: ib.QPTypeRC, PD: cb.pd, SendCQ: cb.cq.CQ, RecvCQ: cb.cq.CQ, SRQ: srq.SRQ, Caps: smallCaps})
		a.connect(1024, b)
		b.connect(1024, a)
		var blocks *blocked
		if c.blocks {
			cb.useCopiedMemory()
			blocks = w.block(b)
		}
		for i := range 3 {
			srq.PostRecv(uint64(i), cb.sge(i*4096, 4096))
			a.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: ca.sge(0, 100)})
			w.run(1e3)
		}
		a.post(transport.SendWR{ID: 9, Opcode: ib.WRRDMAWrite, RKey: 12345, SGEs: ca.sge(0, 100)})
		w.run(1e6)
		if c.blocks {
			check(t, b.SetState(ib.QPSErr))
			w.run(1e6)
			blocks.one().Return()
			w.run(1e6)
		}
		if *visible != c.want {
			t.Errorf("%s: %d completions visible at the event, want %d", c.name, *visible, c.want)
		}
	}
}

// A change of state flushes a receive on a slice, whose engine publishes the completion later than
// the first engine could deliver the event.
func TestLastWQEReachedWaitsForTheEngineOfItsQP(t *testing.T) {
	w := newTestFabric(t)
	w.share()
	ca := w.client(w.nic(1))
	cb, visible := w.visibleAt(w.nic(2), ib.EventQPLastWQEReached)
	srq, err := cb.CreateSRQ(nic.SRQInit{PD: cb.pd, MaxWR: 16, MaxSGE: 1})
	check(t, err)
	var b *queue
	for b == nil || wire.SliceOf(b.QPN(), 2) != 1 {
		b = cb.create(nic.QPInit{Type: ib.QPTypeRC, PD: cb.pd, SendCQ: cb.cq.CQ, RecvCQ: cb.cq.CQ, SRQ: srq.SRQ, Caps: smallCaps})
	}
	a := ca.qp(smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	cb.faults("drop receive kind last")
	srq.PostRecv(1, cb.sge(0, 4096))
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, SGEs: ca.sge(0, 2048)})
	w.run(1e3)
	check(t, b.SetState(ib.QPSErr))
	for range 3 {
		w.now++
		w.engine.Step(w.now)
	}
	if *visible == 0 {
		t.Error("the event has arrived before the completion")
	}
	w.run(1e6)
	if *visible != 1 {
		t.Errorf("%d completions visible at the event, want 1", *visible)
	}
}

func TestSQDrainedFollowsTheCompletionsOfItsQP(t *testing.T) {
	w := newTestFabric(t)
	ca, visible := w.visibleAt(w.nic(1), ib.EventSQDrained)
	cb := w.client(w.nic(2))
	a, b := ca.qp(smallCaps), cb.qp(smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	for i := range 3 {
		a.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: cb.mr.RKey(), SGEs: ca.sge(0, 50_000)})
	}
	w.now++
	w.engine.Step(w.now)
	check(t, a.Modify(&nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSSQD, EnSQDNotify: true}}, ib.QPMaskState|ib.QPMaskEnSQDNotify))
	w.run(1e9)
	if n := ca.cq.Len(); *visible != n || n == 0 {
		t.Errorf("%d completions visible at the event, want %d", *visible, n)
	}
}

// An event that waits for the end of the step goes with its object.
func TestDestroyedObjectHasNoEvents(t *testing.T) {
	w := newTestFabric(t)
	c := w.client(w.nic(1))
	srq, err := c.CreateSRQ(nic.SRQInit{PD: c.pd, MaxWR: 16, MaxSGE: 1})
	check(t, err)
	for range 2 {
		q := c.create(nic.QPInit{Type: ib.QPTypeRC, PD: c.pd, SendCQ: c.cq.CQ, RecvCQ: c.cq.CQ, SRQ: srq.SRQ, Caps: smallCaps})
		check(t, q.Modify(&nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSInit}, Port: 1}, ib.QPMaskState|nictest.InitMask|ib.QPMaskAccess))
		check(t, q.SetState(ib.QPSErr))
		check(t, q.Destroy())
	}
	w.run(1e6)
	if len(c.Events) > 0 {
		t.Errorf("events %+v", c.Events)
	}
}
