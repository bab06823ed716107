package nic_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"unsafe"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

var le, be = binary.LittleEndian, binary.BigEndian

func word(b []byte, off int) *uint32 { return (*uint32)(unsafe.Pointer(&b[off])) }

// A world is a Stepped engine with NICs on a fabric. Its time moves only as it steps.
type world struct {
	t      testing.TB
	engine *nic.Engine
	fabric *wire.Fabric
	now    int64
	mem    int // bytes that each client registers
}

func newWorld(t testing.TB) *world {
	e, err := nic.NewEngine(nic.EngineConfig{Stepped: true, Seed: 1, ReadArena: 1 << 20})
	check(t, err)
	w := &world{t: t, engine: e, fabric: wire.NewFabric(), now: 1, mem: 1 << 22}
	t.Cleanup(func() { e.Close() })
	return w
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nic adds a NIC whose address is 192.0.2.n.
func (w *world) nic(n byte, wrap ...func(wire.Link) wire.Link) *nic.Device {
	addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 24)
	iface := wire.StaticInterface("fab0", [6]byte{2, 0, 0, 0, 0, n}, 9000, addr)
	var link wire.Link = w.fabric.NewLink(w.engine, addr.Addr())
	for _, f := range wrap {
		link = f(link)
	}
	d, err := w.engine.AddDevice(nic.DeviceConfig{Name: fmt.Sprint("nic", n), Link: link, Iface: iface})
	check(w.t, err)
	return d
}

// step steps until nothing is to be done at this time, and returns the next deadline.
func (w *world) step() (next int64) {
	for range 100_000 {
		w.now++
		next, busy := w.engine.Step(w.now)
		if !busy && (next == 0 || next > w.now) {
			return next
		}
	}
	w.t.Fatal("the engine finds no rest")
	return 0
}

// run steps, moving time from deadline to deadline, until nothing is due within d ns.
func (w *world) run(d int64) {
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
	*world
	dev    *nic.Device
	ctx    *nic.Context
	bell   []byte
	pd     *nic.PD
	cq     *nic.CQ
	cqRing []byte
	polled uint32
	mem    []byte
	mr     *nic.MR
	events []nic.Event
	killed error
	fired  int
}

const allow = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

func (c *client) AsyncEvent(e nic.Event) { c.events = append(c.events, e) }
func (c *client) Killed(reason error)    { c.killed = reason }

func (w *world) client(d *nic.Device) *client {
	c := &client{world: w, dev: d, bell: nic.NewPage(abi.DoorbellSize)}
	var err error
	c.ctx, err = d.Open(nic.ContextOptions{Doorbell: c.bell, DoorbellFD: -1, Events: c, PID: 1, Comm: "test"})
	check(w.t, err)
	c.pd, err = c.ctx.AllocPD()
	check(w.t, err)
	c.cq, c.cqRing = c.newCQ(1024)
	c.mem = nic.NewPage(w.mem)
	c.mr, err = c.ctx.RegMR(c.pd, mrtable.HeapMemory(c.mem), 0, uint64(w.mem), allow)
	check(w.t, err)
	return c
}

func (c *client) newCQ(n int) (*nic.CQ, []byte) {
	ring := nic.NewPage(abi.RingSize(n, abi.CQESize))
	q, err := c.ctx.CreateCQ(nic.CQConfig{Entries: n, Ring: ring, Notify: func() { c.fired++ }})
	check(c.t, err)
	return q, ring
}

// A wc is a completion as a program polls it.
type wc struct {
	id      uint64
	status  ib.WCStatus
	opcode  ib.WCOpcode
	byteLen uint32
	imm     uint32
	qpn     uint32
	srcQP   uint32
	flags   ib.WCFlags
	sl      uint8

	pkeyIndex, vlan uint16
	stamp, wall     uint64
}

// poll takes one completion.
func (c *client) poll() (w wc, ok bool) {
	if atomic.LoadUint32(word(c.cqRing, abi.RingProducer)) == c.polled {
		return w, false
	}
	n := uint32(len(c.cqRing)-abi.RingSlots) / abi.CQESize
	s := c.cqRing[abi.RingSlots+c.polled%n*abi.CQESize:]
	w = wc{
		le.Uint64(s[abi.CQEWRID:]), ib.WCStatus(le.Uint32(s[abi.CQEStatus:])),
		ib.WCOpcode(le.Uint32(s[abi.CQEOpcode:])), le.Uint32(s[abi.CQEByteLen:]), be.Uint32(s[abi.CQEImm:]),
		le.Uint32(s[abi.CQEQPNum:]), le.Uint32(s[abi.CQESrcQP:]), ib.WCFlags(le.Uint32(s[abi.CQEFlags:])), s[abi.CQESL],
		le.Uint16(s[abi.CQEPKeyIndex:]), le.Uint16(s[abi.CQEVLAN:]), le.Uint64(s[abi.CQETimestamp:]), le.Uint64(s[abi.CQEWallclock:]),
	}
	c.polled++
	atomic.StoreUint32(word(c.cqRing, abi.RingConsumer), c.polled)
	return w, true
}

// pollAll takes all completions there are.
func (c *client) pollAll() (l []wc) {
	for {
		w, ok := c.poll()
		if !ok {
			return l
		}
		l = append(l, w)
	}
}

// A queue is a QP and the program's end of its rings.
type queue struct {
	*client
	qp       *nic.QP
	sq, rq   []byte
	sqn, rqn uint32 // producer indices
	caps     nic.Caps
}

func (c *client) qp(caps nic.Caps) *queue { return c.qpOf(ib.QPTypeRC, caps) }

func (c *client) qpOf(kind ib.QPType, caps nic.Caps) *queue {
	check(c.t, c.dev.RoundCaps(&caps))
	q := &queue{client: c, caps: caps, sq: nic.NewPage(caps.SendRingSize()), rq: nic.NewPage(caps.RecvRingSize())}
	var err error
	q.qp, err = c.ctx.CreateQP(nic.QPInit{Type: kind, PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq, Caps: caps,
		SQ: q.sq, RQ: q.rq})
	check(c.t, err)
	return q
}

var smallCaps = nic.Caps{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}

// attrs are what ibv_rc_pingpong would ask for.
func attrs(mtu int, peer *queue) nic.QPAttr {
	return nic.QPAttr{
		QPAttr: ib.QPAttr{PathMTU: mtu, RQPSN: 100, SQPSN: 100, DestQPN: peer.qp.QPN(), Access: allow,
			MaxRDAtomic: 16, MaxDestRDAtomic: 16, MinRNRTimer: 12, Timeout: 14, RetryCount: 7, RNRRetry: 7},
		AV:   nic.AddressVector{DGID: peer.dev.GIDs()[1].GID, SGIDIndex: 1, Port: 1},
		Port: 1,
	}
}

const (
	toInit = ib.QPMaskState | ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess
	toRTR  = ib.QPMaskState | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN |
		ib.QPMaskRQPSN | ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer
	toRTS = ib.QPMaskState | ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry |
		ib.QPMaskSQPSN | ib.QPMaskMaxRDAtomic
)

func (q *queue) connect(mtu int, peer *queue) { q.connectWith(attrs(mtu, peer)) }

func (q *queue) connectWith(a nic.QPAttr) {
	var err error
	a.AV.Path, err = q.dev.ResolvePath(context.Background(), &a.AV)
	check(q.t, err)
	for _, s := range []struct {
		state ib.QPState
		mask  ib.QPAttrMask
	}{{ib.QPSInit, toInit}, {ib.QPSRTR, toRTR}, {ib.QPSRTS, toRTS}} {
		a.State = s.state
		check(q.t, q.ctx.ModifyQP(q.qp, &a, s.mask))
	}
}

// pair makes two connected queues on two NICs.
func pair(w *world, mtu int) (a, b *queue) {
	a, b = w.client(w.nic(1)).qp(smallCaps), w.client(w.nic(2)).qp(smallCaps)
	a.connect(mtu, b)
	b.connect(mtu, a)
	return a, b
}

// A wr is a send work request as a program posts it.
type wr struct {
	id     uint64
	op     ib.WROpcode
	flags  uint32
	imm    uint32
	remote uint64
	rkey   uint32
	add    uint64
	swap   uint64
	inline []byte
	sges   []transport.SGE
	ah     uint32
	qpn    uint32
	qkey   uint32
	quiet  bool // not signaled
}

func (c *client) sge(addr, n int) []transport.SGE {
	return []transport.SGE{{Addr: uint64(addr), Length: uint32(n), LKey: c.mr.LKey()}}
}

// store writes w to the next send slot without ringing.
func (q *queue) store(w *wr) {
	size := abi.SendSlotSize(q.caps.MaxSendSGE, q.caps.MaxInline)
	s := q.sq[abi.RingSlots+int(q.sqn)%q.caps.MaxSendWR*size:]
	le.PutUint64(s[abi.SendWRID:], w.id)
	le.PutUint32(s[abi.SendOpcode:], uint32(w.op))
	if !w.quiet {
		w.flags |= abi.SendSignaled
	}
	le.PutUint32(s[abi.SendFlags:], w.flags)
	be.PutUint32(s[abi.SendImm:], w.imm)
	le.PutUint64(s[abi.SendRemoteAddr:], w.remote)
	le.PutUint32(s[abi.SendRKey:], w.rkey)
	le.PutUint32(s[abi.SendAH:], w.ah)
	le.PutUint32(s[abi.SendRemoteQPN:], w.qpn)
	le.PutUint32(s[abi.SendRemoteQKey:], w.qkey)
	le.PutUint64(s[abi.SendCompareAdd:], w.add)
	le.PutUint64(s[abi.SendSwap:], w.swap)
	if w.flags&abi.SendInline != 0 {
		le.PutUint32(s[abi.SendNumSGE:], uint32(copy(s[abi.SendSGEs:size], w.inline)))
	} else {
		le.PutUint32(s[abi.SendNumSGE:], uint32(len(w.sges)))
		putSGEs(s[abi.SendSGEs:], w.sges)
	}
	q.sqn++
}

func putSGEs(s []byte, sges []transport.SGE) {
	for _, g := range sges {
		le.PutUint64(s[abi.SGEAddr:], g.Addr)
		le.PutUint32(s[abi.SGELength:], g.Length)
		le.PutUint32(s[abi.SGELKey:], g.LKey)
		s = s[abi.SGESize:]
	}
}

// ring publishes what was stored and rings the doorbell.
func (q *queue) ring() {
	atomic.StoreUint32(word(q.sq, abi.RingProducer), q.sqn)
	atomic.OrUint32(word(q.bell, abi.DoorbellBits+q.qp.Doorbell()/32*4), 1<<(q.qp.Doorbell()%32))
}

// hasRoom reports whether one more send may be posted.
func (q *queue) hasRoom() bool {
	return q.sqn-atomic.LoadUint32(word(q.sq, abi.RingConsumer)) < uint32(q.caps.MaxSendWR)
}

func (q *queue) post(w wr) {
	q.store(&w)
	q.ring()
}

func (q *queue) recv(id uint64, sges []transport.SGE) {
	size := abi.RecvSlotSize(q.caps.MaxRecvSGE)
	s := q.rq[abi.RingSlots+int(q.rqn)%q.caps.MaxRecvWR*size:]
	le.PutUint64(s[abi.RecvWRID:], id)
	le.PutUint32(s[abi.RecvNumSGE:], uint32(len(sges)))
	putSGEs(s[abi.RecvSGEs:], sges)
	q.rqn++
	atomic.StoreUint32(word(q.rq, abi.RingProducer), q.rqn)
	if atomic.LoadUint32(word(q.rq, abi.RecvDoorbell)) != 0 {
		q.ring()
	}
}

// want checks the next completion.
func (c *client) want(id uint64, status ib.WCStatus, op ib.WCOpcode) wc {
	c.t.Helper()
	w, ok := c.poll()
	if !ok {
		c.t.Fatalf("no completion, want work request %d", id)
	}
	if w.id != id || w.status != status || status == ib.WCSuccess && w.opcode != op {
		c.t.Fatalf("completion %d %v opcode %d, want %d %v opcode %d", w.id, w.status, w.opcode, id, status, op)
	}
	return w
}

// wantNone checks that no completion is there.
func (c *client) wantNone() {
	c.t.Helper()
	if w, ok := c.poll(); ok {
		c.t.Fatalf("unexpected completion %+v", w)
	}
}

func (c *client) had(e ib.EventType) bool {
	for _, ev := range c.events {
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
