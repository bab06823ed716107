package nic_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime/debug"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

func wantErrno(t *testing.T, what string, err error, no syscall.Errno) {
	t.Helper()
	if !errors.Is(err, no) {
		t.Errorf("%s: %v, want %v", what, err, no)
	}
}

func TestDestroyOfObjectInUseIsEBUSY(t *testing.T) {
	w := newTestFabric(t)
	c := w.client(w.nic(1))
	q := c.qp(smallCaps)
	wantErrno(t, "PD with an MR and a QP", c.Context.DeallocPD(c.pd), syscall.EBUSY)
	wantErrno(t, "CQ of a QP", c.Context.DestroyCQ(c.cq.CQ), syscall.EBUSY)
	check(t, q.Destroy())
	wantErrno(t, "QP a second time", q.Destroy(), syscall.ENOENT)
	check(t, c.Context.DestroyCQ(c.cq.CQ))
	wantErrno(t, "PD with an MR", c.Context.DeallocPD(c.pd), syscall.EBUSY)
	check(t, c.Context.DeregMR(c.mr))
	check(t, c.Context.DeallocPD(c.pd))
	wantErrno(t, "PD a second time", c.Context.DeallocPD(c.pd), syscall.ENOENT)
}

func TestObjectsOfAnotherContextAreENOENT(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	c, other := w.client(d), w.client(d)
	_, err := c.Context.RegMR(other.pd, mrtable.HeapMemory(make([]byte, 8)), 0, 8, 0)
	wantErrno(t, "RegMR", err, syscall.ENOENT)
	caps := smallCaps
	check(t, d.RoundCaps(&caps))
	init := nic.QPInit{Type: ib.QPTypeRC, PD: c.pd, SendCQ: c.cq.CQ, RecvCQ: other.cq.CQ, Caps: caps,
		SQ: nic.NewPage(caps.SendRingSize()), RQ: nic.NewPage(caps.RecvRingSize())}
	_, err = c.Context.CreateQP(init)
	wantErrno(t, "CreateQP", err, syscall.EINVAL)
	wantErrno(t, "DeregMR", c.Context.DeregMR(other.mr), syscall.ENOENT)
	wantErrno(t, "DestroyCQ", c.Context.DestroyCQ(other.cq.CQ), syscall.ENOENT)
	wantErrno(t, "DestroyQP", c.Context.DestroyQP(other.qp(smallCaps).QP.QP), syscall.ENOENT)
}

func TestTooSmallRingsAreEINVAL(t *testing.T) {
	w := newTestFabric(t)
	c := w.client(w.nic(1))
	_, err := c.Context.CreateCQ(nic.CQConfig{Entries: 64, Ring: nic.NewPage(abi.RingSize(32, abi.CQESize))})
	wantErrno(t, "CreateCQ", err, syscall.EINVAL)
	_, err = c.Context.CreateCQ(nic.CQConfig{Entries: 60, Ring: nic.NewPage(abi.RingSize(64, abi.CQESize))})
	wantErrno(t, "CreateCQ of 60 slots", err, syscall.EINVAL)
	caps := smallCaps
	check(t, c.Device.RoundCaps(&caps))
	init := nic.QPInit{Type: ib.QPTypeRC, PD: c.pd, SendCQ: c.cq.CQ, RecvCQ: c.cq.CQ, Caps: caps,
		SQ: nic.NewPage(caps.SendRingSize() - 1), RQ: nic.NewPage(caps.RecvRingSize())}
	_, err = c.Context.CreateQP(init)
	wantErrno(t, "CreateQP", err, syscall.EINVAL)
}

func TestLimitsAreEnforced(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	open := func(l nic.ContextLimits) *nic.Context {
		c, err := d.Open(nic.ContextOptions{Doorbell: nic.NewPage(abi.DoorbellSize), DoorbellFD: -1, Limits: l})
		check(t, err)
		return c
	}
	c := open(nic.ContextLimits{PDs: 1, MRs: 1, CQs: 1, RingBytes: 8_192, RegisteredBytes: 100})
	pd, err := c.AllocPD()
	check(t, err)
	_, err = c.AllocPD()
	wantErrno(t, "a PD too many", err, syscall.ENOMEM)
	_, err = c.RegMR(pd, mrtable.HeapMemory(make([]byte, 101)), 0, 101, 0)
	wantErrno(t, "more bytes than may be registered", err, syscall.ENOMEM)
	mr, err := c.RegMR(pd, mrtable.HeapMemory(make([]byte, 100)), 0, 100, 0)
	check(t, err)
	_, err = c.RegMR(pd, mrtable.HeapMemory(nil), 0, 0, 0)
	wantErrno(t, "an MR too many", err, syscall.ENOMEM)
	check(t, c.DeregMR(mr))
	_, err = c.RegMR(pd, mrtable.HeapMemory(make([]byte, 100)), 0, 100, 0)
	check(t, err)
	_, err = c.CreateCQ(nic.CQConfig{Entries: 128, Ring: nic.NewPage(abi.RingSize(128, abi.CQESize))})
	wantErrno(t, "more ring bytes than allowed", err, syscall.ENOMEM)
	caps := nic.Caps{MaxSendWR: nic.DefaultLimits.MaxQPWR + 1}
	wantErrno(t, "a send queue too long", d.RoundCaps(&caps), syscall.EINVAL)
	_, err = d.CQSlots(0)
	wantErrno(t, "a CQ of nothing", err, syscall.EINVAL)
	if a := d.Query(); a.MaxQPWR != nic.DefaultLimits.MaxQPWR || a.MaxSGE != 32 {
		t.Errorf("query returns %+v", a)
	}
}

func TestContextCloseRemovesAllObjects(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 1<<20)})
	for range 3 { // in the middle of the transfer
		w.now++
		w.engine.Step(w.now)
	}
	b.Context.Close()
	s := b.Device.Snapshot()
	if len(s.Contexts)+len(s.QPs)+len(s.MRs)+len(s.CQs) != 0 {
		t.Errorf("objects left: %+v", s)
	}
	w.run(1e9)
	if a.Err != nil || a.State() != ib.QPSRTS && a.State() != ib.QPSErr {
		t.Errorf("the peer: killed %v, state %v", a.Err, a.State())
	}
	if b.Device.Counters().Drops[transport.DropQPN] == 0 {
		t.Error("packets for the destroyed QP were not counted as dropped")
	}
}

func TestSendsFailAfterPeerContextCloses(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	at := attrs(1024, b)
	at.RetryCount, at.Timeout = 1, 10
	check(t, a.SetState(ib.QPSReset))
	a.connectWith(at)
	b.Context.Close()
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: 1, SGEs: a.sge(0, 8)})
	a.recv(2, nil)
	w.run(1e9)
	a.want(1, ib.WCRetryExcErr, ib.WCRDMAWrite)
	a.want(2, ib.WCWRFlushErr, ib.WCRecv)
	// Sends and receives that are posted to a QP in error are flushed.
	a.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, RKey: 1, SGEs: a.sge(0, 8)})
	a.recv(4, nil)
	w.run(1e9)
	got := a.cq.PollAll()
	if len(got) != 2 || got[0].Status != ib.WCWRFlushErr || got[1].Status != ib.WCWRFlushErr {
		t.Errorf("completions %+v", got)
	}
}

func TestResetEmptiesTheRings(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	for i := range 5 {
		a.recv(uint64(i), nil)
	}
	reset := &nic.QPAttr{QPAttr: ib.QPAttr{State: ib.QPSReset}}
	check(t, a.Modify(reset, ib.QPMaskState))
	if got := *nictest.Word(a.Recv.Ring, abi.RingConsumer); got != 5 {
		t.Errorf("the receive ring's consumer index is %d", got)
	}
	check(t, b.Modify(reset, ib.QPMaskState))
	a.connect(1024, b)
	b.connect(1024, a)
	a.recv(10, a.sge(0, 100))
	b.post(transport.SendWR{ID: 11, Opcode: ib.WRSend, SGEs: b.sge(0, 100)})
	w.run(1e9)
	a.want(10, ib.WCSuccess, ib.WCRecv)
}

func TestCQOverrunFailsItsQueuePairs(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	for range 1025 {
		a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
		w.step()
	}
	if !a.had(ib.EventCQErr) || !a.had(ib.EventQPFatal) {
		t.Errorf("events %v", a.Events)
	}
	if a.State() != ib.QPSErr {
		t.Errorf("state %v", a.State())
	}
	check(t, a.SetState(ib.QPSReset))
	at := attrs(1024, b)
	at.State = ib.QPSInit
	wantErrno(t, "back to INIT on that CQ", a.Modify(&at, toInit), syscall.EINVAL)
}

func TestCompletionEventsNeedArming(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	send := func(flags ib.SendFlags) {
		b.recv(0, nil)
		a.post(transport.SendWR{Opcode: ib.WRSend, Flags: flags})
		w.run(1e9)
	}
	arm := func(v uint32) { *nictest.Word(b.cq.Ring, abi.CQArmed) = v }
	step := func(what string, want int) {
		t.Helper()
		if b.cq.Notified != want || *nictest.Word(b.cq.Ring, abi.CQEvents) != uint32(want) {
			t.Errorf("%s: %d events, %d in the ring; want %d", what, b.cq.Notified, *nictest.Word(b.cq.Ring, abi.CQEvents), want)
		}
	}
	send(0)
	step("not armed", 0)
	arm(abi.CQArmNext)
	step("armed, nothing new", 0)
	send(0)
	step("armed", 1)
	send(0)
	step("armed once", 1)
	arm(abi.CQArmSolicited)
	send(0)
	step("armed for solicited, unsolicited came", 1)
	send(ib.SendSolicited)
	step("armed for solicited, solicited came", 2)
	arm(abi.CQArmSolicited)
	check(t, b.SetState(ib.QPSErr))
	b.recv(0, nil)
	w.run(1e9)
	step("armed for solicited, an error came", 3)
}

func TestModifyQPChecksDeviceAttributes(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).qp(smallCaps), w.client(w.nic(2)).qp(smallCaps)
	at := attrs(4096, b)
	path, err := a.Device.ResolvePath(context.Background(), &at.AV)
	check(t, err)
	at.State = ib.QPSInit
	bad := at
	bad.Port = 2
	wantErrno(t, "port 2", a.Modify(&bad, toInit), syscall.EINVAL)
	bad = at
	bad.PKeyIndex = 1
	wantErrno(t, "P_Key index 1", a.Modify(&bad, toInit), syscall.EINVAL)
	check(t, a.Modify(&at, toInit))
	at.State = ib.QPSRTR
	wantErrno(t, "unresolved address vector", a.Modify(&at, toRTR), syscall.EINVAL)
	at.AV.Path = path
	bad = at
	bad.AV.SGIDIndex = 9
	wantErrno(t, "SGID index 9", a.Modify(&bad, toRTR), syscall.EINVAL)
	bad = at
	bad.AV.SGIDIndex = 0
	wantErrno(t, "address families that differ", a.Modify(&bad, toRTR), syscall.EINVAL)
	wantErrno(t, "no path MTU", a.Modify(&at, toRTR&^ib.QPMaskPathMTU), syscall.EINVAL)
	check(t, a.Modify(&at, toRTR))
	got, err := a.Query()
	check(t, err)
	if got.State != ib.QPSRTR || got.AV.DGID != at.AV.DGID || got.PathMTU != 4096 || got.Port != 1 {
		t.Errorf("query: %+v", got)
	}
}

// A changingInterface is an interface whose addresses a test changes.
type changingInterface struct {
	wire.Interface
	addrs  []netip.Prefix
	change func()
}

func (c *changingInterface) Addresses() []netip.Prefix { return c.addrs }
func (c *changingInterface) OnChange(f func())         { c.change = f }

func TestGIDTableFollowsInterface(t *testing.T) {
	w := newTestFabric(t)
	p := netip.MustParsePrefix
	i := &changingInterface{
		Interface: wire.StaticInterface("eth0", [6]byte{0x02, 0, 0, 0, 0, 1}, 1500),
		addrs:     []netip.Prefix{p("192.0.2.1/24"), p("2001:db8::1/64"), p("fe80::ff:fe00:1/64")},
	}
	d, err := w.engine.AddDevice(nic.DeviceConfig{Name: "x", Link: w.fabric.NewLink(w.engine), Iface: i})
	check(t, err)
	c := w.client(d)
	want := func(gids ...string) {
		t.Helper()
		got := map[int]string{}
		for _, e := range d.GIDs() {
			if e.RoCEv1 {
				continue
			}
			got[e.Index] = e.GID.Addr().String()
		}
		n := 0
		for i, g := range gids {
			if g != "" {
				n++
			}
			if got[i] != g {
				t.Errorf("index %d: %q, want %q", i, got[i], g)
			}
		}
		if len(got) != n {
			t.Errorf("table %v", got)
		}
	}
	want("fe80::ff:fe00:1", "192.0.2.1", "2001:db8::1")
	i.addrs = []netip.Prefix{p("2001:db8::1/64"), p("192.0.2.7/24"), p("192.0.2.8/24")}
	i.change()
	want("fe80::ff:fe00:1", "192.0.2.7", "2001:db8::1", "192.0.2.8")
	if !c.had(ib.EventGIDChange) {
		t.Error("no event was raised")
	}
	i.addrs = nil
	i.change()
	want("fe80::ff:fe00:1")
	if m := d.QueryPort().ActiveMTU; m != 1024 {
		t.Errorf("active MTU %d on an interface with MTU 1500", m)
	}
}

// Programs scan the whole table: it is as long as that of hardware, unless configured otherwise.
func TestGIDTableHasItsLength(t *testing.T) {
	for _, c := range []struct{ configured, length, used int }{{0, 256, 6}, {2, 2, 2}, {1024, 1024, 6}} {
		w := newTestFabric(t)
		p := netip.MustParsePrefix
		i := &changingInterface{
			Interface: wire.StaticInterface("eth0", [6]byte{0x02, 0, 0, 0, 0, 1}, 1500),
			addrs:     []netip.Prefix{p("192.0.2.1/24"), p("2001:db8::1/64")},
		}
		d, err := w.engine.AddDevice(nic.DeviceConfig{Name: "x", Link: w.fabric.NewLink(w.engine), Iface: i, Limits: nic.Limits{GIDTableSize: c.configured}})
		check(t, err)
		if length, used := d.QueryPort().GIDTableLen, len(d.GIDs()); length != c.length || used != c.used {
			t.Errorf("configured %d: %d of %d entries used, want %d of %d", c.configured, used, length, c.used, c.length)
		}
	}
}

// Each address has an entry of RoCE v1, and then one of RoCE v2.
func TestGIDTableWithRoCEv1Before(t *testing.T) {
	w := newTestFabric(t)
	p := netip.MustParsePrefix
	i := &changingInterface{
		Interface: wire.StaticInterface("eth0", [6]byte{0x02, 0, 0, 0, 0, 1}, 1500),
		addrs:     []netip.Prefix{p("192.0.2.1/24"), p("2001:db8::1/64"), p("fe80::ff:fe00:1/64")},
	}
	d, err := w.engine.AddDevice(nic.DeviceConfig{Name: "x", Link: w.fabric.NewLink(w.engine), Iface: i, Identity: nic.Identity{RoCEv1GIDs: nic.RoCEv1GIDsBefore}})
	check(t, err)
	want := func(addrs ...string) {
		t.Helper()
		l := d.GIDs()
		for i, e := range l {
			if i >= 2*len(addrs) || e.Index != i || e.RoCEv1 != (i%2 == 0) || e.GID.Addr().String() != addrs[i/2] {
				t.Errorf("entry %d: %+v", i, e)
			}
		}
		if len(l) != 2*len(addrs) {
			t.Errorf("%d entries, want %d", len(l), 2*len(addrs))
		}
	}
	want("fe80::ff:fe00:1", "192.0.2.1", "2001:db8::1")
	i.addrs = []netip.Prefix{p("2001:db8::1/64"), p("192.0.2.7/24")}
	i.change()
	w.step()
	want("fe80::ff:fe00:1", "192.0.2.7", "2001:db8::1")

	for index, e := range d.GIDs() {
		av := nic.AddressVector{DGID: e.GID, SGIDIndex: index, Port: 1}
		p, err := d.ResolvePath(context.Background(), &av)
		check(t, err)
		if v1 := p.Network == packet.RoCEv1; v1 != e.RoCEv1 {
			t.Errorf("%+v: path %+v", e, p)
		}
	}
}

func TestConnectionSourcePortMatchesLinuxDriver(t *testing.T) {
	// From captures of the driver: QPNs of both ends and the port, the same both ways.
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	pa, pb := a.Device.Snapshot().QPs[0], b.Device.Snapshot().QPs[0]
	v := uint32(pa.QPN * pb.QPN)
	want := uint16(0xc000 | (v&0x3fff ^ v>>14))
	if pa.SrcPort != want || pb.SrcPort != want {
		t.Errorf("ports %d and %d, want %d", pa.SrcPort, pb.SrcPort, want)
	}
}

func TestManyConnectionsShareSourcePorts(t *testing.T) {
	for n, want := range map[int]int{63: 63, 64: 9, 1000: 16} { // QPNs of a group begin at a multiple of its size
		w := newTestFabric(t)
		w.mem = 1 << 12
		ca, cb := w.client(w.nic(1)), w.client(w.nic(2))
		var a, b []*queue
		for range n {
			a, b = append(a, ca.qp(smallCaps)), append(b, cb.qp(smallCaps))
		}
		for i := range a {
			a[i].connect(1024, b[i])
			b[i].connect(1024, a[i])
		}
		ports := map[uint16]bool{}
		peers := cb.Device.Snapshot().QPs
		for i, p := range ca.Device.Snapshot().QPs {
			ports[p.SrcPort] = true
			if p.SrcPort != peers[i].SrcPort {
				t.Errorf("port %d, and the peer's is %d", p.SrcPort, peers[i].SrcPort)
			}
		}
		if len(ports) != want {
			t.Errorf("%d connections have %d ports, want %d", n, len(ports), want)
		}
	}
}

func TestConnectionsShareEqualPaths(t *testing.T) {
	w := newTestFabric(t)
	var rec *pathRecorder
	ca := w.client(w.nic(1, func(l wire.Link) wire.Link { rec = &pathRecorder{Link: l}; return rec }))
	cb := w.client(w.nic(2))
	var a, b []*queue
	for range 64 {
		a, b = append(a, ca.qp(smallCaps)), append(b, cb.qp(smallCaps))
	}
	for i, p := range a {
		p.connect(1024, b[i])
		b[i].connect(1024, p)
		p.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: cb.mr.RKey(), SGEs: p.sge(0, 8)})
	}
	w.run(1e6)
	paths, ports := map[*wire.Path]bool{}, map[uint16]bool{}
	for _, p := range rec.paths {
		paths[p], ports[p.SrcPort] = true, true
	}
	if len(ports) < 2 || len(paths) != len(ports) {
		t.Errorf("%d packets have %d paths with %d source ports", len(rec.paths), len(paths), len(ports))
	}
}

func TestSRQServesQueuePairsAndRaisesLimitEvent(t *testing.T) {
	w := newTestFabric(t)
	ca, cb := w.client(w.nic(1)), w.client(w.nic(2))
	srq, err := cb.CreateSRQ(nic.SRQInit{PD: cb.pd, MaxWR: 16, MaxSGE: 1, Limit: 2})
	check(t, err)
	var as []*queue
	for range 3 {
		a := ca.qp(smallCaps)
		b := cb.create(nic.QPInit{Type: ib.QPTypeRC, PD: cb.pd, SendCQ: cb.cq.CQ, RecvCQ: cb.cq.CQ, SRQ: srq.SRQ, Caps: a.Caps()})
		a.connect(1024, b)
		b.connect(1024, a)
		as = append(as, a)
	}
	wantErrno(t, "SRQ of three QPs", cb.Context.DestroySRQ(srq.SRQ), syscall.EBUSY)
	for i := range 3 {
		srq.PostRecv(uint64(i), cb.sge(i*100, 100))
	}
	for i, a := range as {
		fill(a.mem[:100], byte(i))
		a.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: a.sge(0, 100)})
		w.run(1e6)
		cb.want(uint64(i), ib.WCSuccess, ib.WCRecv)
		if cb.mem[i*100] != byte(i) {
			t.Error("the data is not in the buffer of its receive")
		}
		if got := cb.had(ib.EventSRQLimitReached); got != (i >= 1) {
			t.Errorf("events with %d receives left: %v", 2-i, got)
		}
	}
}

// One step completes work in both queues of a program, one for each direction.
func TestNotificationComesAfterAllCQsArePublished(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	notified := 0
	var queues [2]*nictest.CQ
	for i := range queues {
		queues[i] = a.newCQ(16)
		queues[i].Arm(false)
		queues[i].OnNotify = func() {
			notified++
			for i, q := range queues {
				if n := q.Len(); n != 1 {
					t.Errorf("at the first notification: %d completions in queue %d", n, i)
				}
			}
		}
	}
	x := a.create(nic.QPInit{Type: ib.QPTypeRC, PD: a.pd, SendCQ: queues[0].CQ, RecvCQ: queues[1].CQ, Caps: smallCaps})
	y := b.qp(smallCaps)
	x.connect(1024, y)
	y.connect(1024, x)
	x.recv(1, nil)
	y.recv(2, nil)

	x.post(transport.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
	w.engine.Step(w.now) // the message is sent
	y.post(transport.SendWR{Opcode: ib.WRSend})
	w.step() // the peer's response and its own message are sent in one step
	if notified != 2 {
		t.Errorf("notified %d times, want 2", notified)
	}
}

// A client with many objects leaves over several steps, whether it closes its context or breaks the
// rules of a ring.
func TestContextClosesInParts(t *testing.T) {
	const each = 3 * nic.CloseObjects
	for _, breach := range []bool{false, true} {
		w := newTestFabric(t)
		a, b := pair(w, 1024)
		for i := range each {
			_, err := b.Context.AllocPD()
			check(t, err)
			_, err = b.CreateCQ(4)
			check(t, err)
			b.ah(uint32(i+1), "192.0.2.1")
		}
		count := func() int {
			s := b.Device.Snapshot()
			return len(s.PDs) + len(s.CQs) + len(s.AHs) + len(s.QPs) + len(s.MRs)
		}
		if breach {
			*nictest.Word(b.SendRing, abi.RingProducer) = 1 << 20
			b.RingDoorbell()
		}
		for left, steps := count(), 0; ; steps++ {
			if breach {
				w.now++
				w.engine.Step(w.now)
			} else {
				b.Context.CloseSome(nic.CloseObjects)
			}
			n := count()
			if left-n > nic.CloseObjects {
				t.Fatalf("%d objects were destroyed in one step", left-n)
			}
			left = n
			if b.Context.Closed() {
				break
			}
			if _, err := b.Context.AllocPD(); !errors.Is(err, syscall.EBADF) {
				t.Fatalf("allocating a PD while the context closes: %v", err)
			}
			if steps > 2*each {
				t.Fatalf("%d objects are left", left)
			}
		}
		if n := count(); n != 0 {
			t.Errorf("%d objects are left", n)
		}
		if breach && b.Err == nil {
			t.Error("the client was not notified")
		}
		w.run(1e9)
		a.Context.Close()
	}
}

// A context is closed without reading the rings of queue pairs to which nothing was posted: each
// could be a page that the kernel must first provide.
func TestClosingContextLeavesIdleRingsAlone(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	idle := nic.QPInit{PD: a.pd, SendCQ: a.cq.CQ, RecvCQ: a.cq.CQ, Type: ib.QPTypeRC, Caps: oneWR}
	check(t, a.Device.RoundCaps(&idle.Caps))
	for _, ring := range []*[]byte{&idle.SQ, &idle.RQ} {
		mem, err := unix.Mmap(-1, 0, max(idle.Caps.SendRingSize(), idle.Caps.RecvRingSize()), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANON)
		check(t, err)
		defer unix.Munmap(mem)
		*ring = mem
	}
	_, err := a.Context.CreateQP(idle)
	check(t, err)
	check(t, unix.Mprotect(idle.SQ, unix.PROT_NONE))
	check(t, unix.Mprotect(idle.RQ, unix.PROT_NONE))

	q, peer := connected(a, b, oneWR)
	peer.recv(1, peer.sge(0, 64))
	q.post(transport.SendWR{Opcode: ib.WRSend, SGEs: q.sge(0, 64)})
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for !a.Context.CloseSome(nic.CloseObjects) {
	}
	w.run(1e6)
	if got := b.cq.PollAll(); len(got) != 1 || got[0].Status != ib.WCSuccess {
		t.Errorf("what was posted before did not arrive: %+v", got)
	}
}
