package nic_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
	"softroce/wire"
)

var le, be = binary.LittleEndian, binary.BigEndian

// A testFabric is a Stepped engine with NICs on a fabric. Time advances only in step and run.
type testFabric struct {
	t      testing.TB
	engine *nic.Engine
	second *nic.Engine // drives the NICs, too; nil: one engine does
	fabric *wire.Fabric
	now    int64
	mem    int // bytes that each client registers
}

func newTestFabric(t testing.TB) *testFabric {
	e, err := nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: 1, ReadArena: 1 << 20})
	check(t, err)
	w := &testFabric{t: t, engine: e, fabric: wire.NewFabric(), now: 1, mem: 1 << 22}
	t.Cleanup(func() { e.Close() })
	return w
}

// share makes a second engine drive the NICs that are added, together with the first one.
func (w *testFabric) share() {
	var err error
	w.second, err = nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: 2, ReadArena: 1 << 20})
	check(w.t, err)
	w.t.Cleanup(func() { w.second.Close() })
	nic.NewGroup(w.engine, w.second)
}

// secondEngine adds an engine, which drives the NICs that are added from now on. It returns the
// first one, too.
func (w *testFabric) secondEngine() (first, second *nic.Engine) {
	first = w.engine
	second, err := nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: 2})
	check(w.t, err)
	w.t.Cleanup(func() { second.Close() })
	w.engine = second
	return first, second
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nic adds a NIC whose address is 192.0.2.n.
func (w *testFabric) nic(n byte, wrap ...func(wire.Link) wire.Link) *nic.Device {
	return w.nicOf(n, nic.DeviceConfig{}, wrap...)
}

// nicOf is nic with more of the configuration.
func (w *testFabric) nicOf(n byte, c nic.DeviceConfig, wrap ...func(wire.Link) wire.Link) *nic.Device {
	addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 24)
	iface := wire.StaticInterface("fab0", [6]byte{2, 0, 0, 0, 0, n}, 9000, addr)
	port := w.fabric.NewLink(w.engine, addr.Addr())
	if w.second != nil {
		c.Slices = []nic.Slice{{Engine: w.second, Link: port.Split(w.second)[1]}}
	}
	var link wire.Link = port
	for _, f := range wrap {
		link = f(link)
	}
	c.Name, c.Link, c.Iface = fmt.Sprint("nic", n), link, iface
	d, err := w.engine.AddDevice(c)
	check(w.t, err)
	return d
}

// step steps until the engines are idle at this time, and returns the next deadline.
func (w *testFabric) step() (next int64) {
	for range 100_000 {
		w.now++
		next, busy := w.engine.Step(w.now)
		if w.second != nil {
			other, alsoBusy := w.second.Step(w.now)
			if busy = busy || alsoBusy; next == 0 || other != 0 && other < next {
				next = other
			}
		}
		if !busy && (next == 0 || next > w.now) {
			return next
		}
	}
	w.t.Fatal("the engines do not become idle")
	return 0
}

// run steps from deadline to deadline until none is left within d ns.
func (w *testFabric) run(d int64) {
	until := w.now + d
	for {
		next := w.step()
		if next == 0 || next > until {
			w.now = max(w.now, until)
			return
		}
		w.now = next
	}
}

// A client is a program on a NIC: a context with a PD, a CQ and registered memory.
type client struct {
	*testFabric
	*nictest.Client
	pd  *nic.PD
	cq  *nictest.CQ
	mem []byte
	mr  *nic.MR
}

const allow = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

func (w *testFabric) client(d *nic.Device) *client {
	return w.clientOf(d, nic.ContextOptions{PID: 1, Comm: "test"})
}

func (w *testFabric) clientOf(d *nic.Device, o nic.ContextOptions) *client {
	c := w.open(d, o)
	c.cq = c.newCQ(1024)
	c.mem = nic.NewPage(w.mem)
	var err error
	c.mr, err = c.Context.RegMR(c.pd, mrtable.HeapMemory(c.mem), 0, uint64(w.mem), allow)
	check(w.t, err)
	return c
}

// open opens a context with a PD and nothing else.
func (w *testFabric) open(d *nic.Device, o nic.ContextOptions) *client {
	c := &client{testFabric: w}
	var err error
	c.Client, err = nictest.Open(d, o)
	check(w.t, err)
	c.pd, err = c.Context.AllocPD()
	check(w.t, err)
	return c
}

func (c *client) newCQ(n int) *nictest.CQ {
	q, err := c.CreateCQ(n)
	check(c.t, err)
	return q
}

// A queue is a queue pair of a client.
type queue struct {
	*client
	*nictest.QP
}

func (c *client) qp(caps nic.Caps) *queue { return c.qpOf(ib.QPTypeRC, caps) }

func (c *client) qpOf(kind ib.QPType, caps nic.Caps) *queue {
	return c.create(nic.QPInit{Type: kind, PD: c.pd, SendCQ: c.cq.CQ, RecvCQ: c.cq.CQ, Caps: caps})
}

func (c *client) create(o nic.QPInit) *queue {
	c.t.Helper()
	q, err := c.CreateQP(o)
	check(c.t, err)
	return &queue{c, q}
}

var smallCaps = nic.Caps{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}

// attrs returns the attributes that ibv_rc_pingpong uses.
func attrs(mtu int, peer *queue) nic.QPAttr {
	return nic.QPAttr{
		QPAttr: ib.QPAttr{PathMTU: mtu, RQPSN: 100, SQPSN: 100, DestQPN: peer.QPN(), Access: allow,
			MaxRDAtomic: 16, MaxDestRDAtomic: 16, MinRNRTimer: 12, Timeout: 14, RetryCount: 7, RNRRetry: 7},
		AV:   nic.AddressVector{DGID: peer.Device.GIDs()[1].GID, SGIDIndex: 1, Port: 1},
		Port: 1,
	}
}

const (
	toInit = ib.QPMaskState | ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess
	toRTR  = ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN |
		ib.QPMaskRQPSN | ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer
)

func (q *queue) connect(mtu int, peer *queue) { q.connectWith(attrs(mtu, peer)) }

func (q *queue) connectWith(a nic.QPAttr) {
	q.t.Helper()
	check(q.t, q.Connect(a))
}

// pair makes two connected queue pairs on two NICs.
func pair(w *testFabric, mtu int) (a, b *queue) {
	a, b = w.client(w.nic(1)).qp(smallCaps), w.client(w.nic(2)).qp(smallCaps)
	a.connect(mtu, b)
	b.connect(mtu, a)
	return a, b
}

func (c *client) sge(addr, n int) []transport.SGE {
	return []transport.SGE{{Addr: uint64(addr), Length: uint32(n), LKey: c.mr.LKey()}}
}

// store writes a signaled work request to the next send slot without publishing it.
func (q *queue) store(w *transport.SendWR) {
	w.Flags |= ib.SendSignaled
	q.PutSend(w)
}

// post posts a signaled work request.
func (q *queue) post(w transport.SendWR) {
	q.store(&w)
	q.Publish()
}

func (q *queue) recv(id uint64, sges []transport.SGE) { q.Recv.PostRecv(id, sges) }

// want checks the next completion.
func (c *client) want(id uint64, status ib.WCStatus, op ib.WCOpcode) nictest.WC {
	c.t.Helper()
	w, ok := c.cq.Poll()
	if !ok {
		c.t.Fatalf("no completion, want work request %d", id)
	}
	if w.WRID != id || w.Status != status || status == ib.WCSuccess && w.Opcode != op {
		c.t.Fatalf("completion %d %v opcode %d, want %d %v opcode %d", w.WRID, w.Status, w.Opcode, id, status, op)
	}
	return w
}

// wantNone checks that no completion is there.
func (c *client) wantNone() {
	c.t.Helper()
	if w, ok := c.cq.Poll(); ok {
		c.t.Fatalf("unexpected completion %+v", w)
	}
}

func (c *client) had(e ib.EventType) bool {
	for _, ev := range c.Events {
		if ev.Type == e {
			return true
		}
	}
	return false
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8) + seed
	}
}
