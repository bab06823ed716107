package nic_test

import (
	"bytes"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

// An xsrq is an SRQ of XRC and the program's end of its ring. Its completions are in the client's CQ.
type xsrq struct {
	*client
	srq  *nic.SRQ
	ring []byte
	n    uint32
}

const xsrqSlots = 64

func (c *client) xsrq(x *nic.XRCD) *xsrq {
	c.t.Helper()
	s := &xsrq{client: c, ring: nic.NewPage(abi.RingSize(xsrqSlots, abi.RecvSlotSize(2)))}
	var err error
	s.srq, err = c.ctx.CreateSRQ(nic.SRQInit{PD: c.pd, MaxWR: xsrqSlots, MaxSGE: 2, Ring: s.ring, XRCD: x, CQ: c.cq})
	check(c.t, err)
	return s
}

func (s *xsrq) recv(id uint64, sges []transport.SGE) {
	b := s.ring[abi.RingSlots+int(s.n%xsrqSlots)*abi.RecvSlotSize(2):]
	le.PutUint64(b[abi.RecvWRID:], id)
	le.PutUint32(b[abi.RecvNumSGE:], uint32(len(sges)))
	putSGEs(b[abi.RecvSGEs:], sges)
	s.n++
	atomic.StoreUint32(word(s.ring, abi.RingProducer), s.n)
}

var domainKey = nic.XRCDKey{Device: 1, Inode: 2}

func (c *client) domain() *nic.XRCD {
	c.t.Helper()
	x, err := c.ctx.OpenXRCD(domainKey, true, false)
	check(c.t, err)
	return x
}

// xpair connects an initiator of a to a target of b.
func xpair(a, b *client, x *nic.XRCD) (ini *queue, tgt *nic.QP) {
	caps := smallCaps
	check(a.t, a.dev.RoundCaps(&caps))
	ini = &queue{client: a, caps: caps, sq: nic.NewPage(caps.SendRingSize())}
	var err error
	ini.qp, err = a.ctx.CreateQP(nic.QPInit{Type: ib.QPTypeXRCSend, PD: a.pd, SendCQ: a.cq, Caps: caps, SQ: ini.sq})
	check(a.t, err)
	tgt, err = b.ctx.CreateQP(nic.QPInit{Type: ib.QPTypeXRCRecv, XRCD: x})
	check(a.t, err)
	far := &queue{client: b, qp: tgt}
	ini.bringXRC(toRTR&^ib.QPMaskMaxDestRDAtomic&^ib.QPMaskMinRNRTimer, toRTS, far)
	far.bringXRC(toRTR, ib.QPMaskState|ib.QPMaskTimeout|ib.QPMaskSQPSN, ini)
	return ini, tgt
}

func (q *queue) bringXRC(rtr, rts ib.QPAttrMask, peer *queue) {
	q.t.Helper()
	a := attrs(1024, peer)
	var err error
	a.AV.Path, err = q.dev.ResolvePath(q.t.Context(), &a.AV)
	check(q.t, err)
	for state, mask := range []ib.QPAttrMask{ib.QPSInit: toInit, ib.QPSRTR: rtr, ib.QPSRTS: rts} {
		if a.State = ib.QPState(state); mask != 0 {
			check(q.t, q.ctx.ModifyQP(q.qp, &a, mask))
		}
	}
}

// TestXRCAcrossProcesses: one connection serves two programs, each with an SRQ, a CQ and memory of its own.
func TestXRCAcrossProcesses(t *testing.T) {
	w := newWorld(t)
	a := w.client(w.nic(1))
	d := w.nic(2)
	b, c := w.client(d), w.client(d)
	ini, tgt := xpair(a, b, b.domain())
	queues := []*xsrq{b.xsrq(b.domain()), c.xsrq(c.domain())}
	fill(a.mem[:8000], 1)
	for i, s := range queues {
		s.recv(uint64(10+i), s.sge(100, 3000))
		ini.post(wr{id: uint64(i), op: ib.WRSend, ah: s.srq.Number(), sges: a.sge(i*3000, 3000)})
		ini.post(wr{id: uint64(10 + i), op: ib.WRRDMAWrite, ah: s.srq.Number(), rkey: s.mr.RKey(), remote: 20000, sges: a.sge(i, 5000)})
		ini.post(wr{id: uint64(20 + i), op: ib.WRRDMARead, ah: s.srq.Number(), rkey: s.mr.RKey(), remote: 20000, sges: a.sge(100000*(i+1), 5000)})
	}
	w.run(1e9)
	for i, s := range queues {
		ini.want(uint64(i), ib.WCSuccess, ib.WCSend)
		ini.want(uint64(10+i), ib.WCSuccess, ib.WCRDMAWrite)
		ini.want(uint64(20+i), ib.WCSuccess, ib.WCRDMARead)
		if c := s.want(uint64(10+i), ib.WCSuccess, ib.WCRecv); c.qpn != tgt.QPN() || c.byteLen != 3000 {
			t.Errorf("%+v", c)
		}
		if !bytes.Equal(s.mem[100:3100], a.mem[i*3000:][:3000]) || !bytes.Equal(a.mem[100000*(i+1):][:5000], a.mem[i:][:5000]) {
			t.Errorf("program %d: wrong bytes", i)
		}
		s.wantNone()
	}
	ini.post(wr{id: 5, op: ib.WRRDMAWrite, ah: queues[0].srq.Number(), rkey: c.mr.RKey(), sges: a.sge(0, 8)})
	w.run(1e9)
	ini.want(5, ib.WCRemAccessErr, ib.WCRDMAWrite)
}

func TestAnSRQOfAnotherDomainIsNotFound(t *testing.T) {
	w := newWorld(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	ini, tgt := xpair(a, b, b.domain())
	own, err := b.ctx.OpenXRCD(nic.XRCDKey{}, true, true)
	check(t, err)
	s := b.xsrq(own)
	s.recv(1, s.sge(0, 100))
	ini.post(wr{id: 1, op: ib.WRSend, ah: s.srq.Number(), sges: a.sge(0, 8)})
	w.run(1e9)
	ini.want(1, ib.WCRemInvReqErr, ib.WCSend)
	s.wantNone()
	if tgt.State() != ib.QPSErr || !slices.ContainsFunc(b.events, func(e nic.Event) bool { return e.Type == ib.EventQPReqErr && e.QP == tgt }) {
		t.Errorf("state %v, events %v", tgt.State(), b.events)
	}
}

func TestAnSRQThatGoesInMidMessageTakesItsTargetsAlong(t *testing.T) {
	w := newWorld(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	x := b.domain()
	ini, tgt := xpair(a, b, x)
	s := b.xsrq(x)
	s.recv(1, s.sge(0, 1<<20))
	ini.post(wr{id: 1, op: ib.WRSend, ah: s.srq.Number(), sges: a.sge(0, 1<<20)})
	for range 3 {
		w.now++
		w.engine.Step(w.now)
	}
	check(t, b.ctx.DestroySRQ(s.srq))
	w.run(1e12)
	if tgt.State() != ib.QPSErr {
		t.Errorf("the target is in %v", tgt.State())
	}
	s.want(1, ib.WCWRFlushErr, ib.WCRecv)
	if c, _ := ini.poll(); c.status == ib.WCSuccess {
		t.Errorf("the message was delivered: %+v", c)
	}
}

func TestACQThatOverflowsEndsItsXRCQueue(t *testing.T) {
	w := newWorld(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	b.cq, b.cqRing = b.newCQ(1)
	x := b.domain()
	ini, _ := xpair(a, b, x)
	s := b.xsrq(x)
	for i := range uint64(3) {
		s.recv(i, s.sge(0, 100))
		ini.post(wr{id: i, op: ib.WRSend, ah: s.srq.Number(), sges: a.sge(0, 8)})
	}
	w.run(1e9)
	var got []ib.EventType
	for _, e := range b.events {
		got = append(got, e.Type)
	}
	if !slices.Contains(got, ib.EventCQErr) || !slices.Contains(got, ib.EventSRQErr) {
		t.Errorf("events %v", got)
	}
	for _, c := range ini.pollAll() {
		if c.id > 0 && c.status == ib.WCSuccess {
			t.Error("a message was acknowledged whose completion is lost")
		}
	}
}

func TestWhatXRCObjectsAreMadeOf(t *testing.T) {
	w := newWorld(t)
	c, o := w.client(w.nic(1)), w.client(w.nic(2))
	x, caps := c.domain(), smallCaps
	check(t, c.dev.RoundCaps(&caps))
	ring := nic.NewPage(caps.SendRingSize())
	for name, init := range map[string]nic.QPInit{
		"target without a domain":       {Type: ib.QPTypeXRCRecv},
		"target with another's domain":  {Type: ib.QPTypeXRCRecv, XRCD: o.domain()},
		"target with a PD":              {Type: ib.QPTypeXRCRecv, XRCD: x, PD: c.pd},
		"target with an SRQ":            {Type: ib.QPTypeXRCRecv, XRCD: x, SRQ: c.xsrq(x).srq},
		"initiator without a PD":        {Type: ib.QPTypeXRCSend, SendCQ: c.cq, Caps: caps, SQ: ring},
		"initiator without a CQ":        {Type: ib.QPTypeXRCSend, PD: c.pd, Caps: caps, SQ: ring},
		"initiator with a domain":       {Type: ib.QPTypeXRCSend, PD: c.pd, SendCQ: c.cq, Caps: caps, SQ: ring, XRCD: x},
		"initiator with a receive CQ":   {Type: ib.QPTypeXRCSend, PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq, Caps: caps, SQ: ring},
		"initiator without a send ring": {Type: ib.QPTypeXRCSend, PD: c.pd, SendCQ: c.cq, Caps: caps},
	} {
		_, err := c.ctx.CreateQP(init)
		wantErrno(t, name, err, syscall.EINVAL)
	}
	for name, init := range map[string]nic.SRQInit{
		"SRQ with a domain and no CQ": {XRCD: x}, "SRQ with a CQ and no domain": {CQ: c.cq},
		"SRQ with another's CQ": {XRCD: x, CQ: o.cq},
	} {
		init.PD, init.MaxWR, init.MaxSGE, init.Ring = c.pd, 1, 1, nic.NewPage(abi.RingSize(1, abi.RecvSlotSize(1)))
		_, err := c.ctx.CreateSRQ(init)
		wantErrno(t, name, err, syscall.EINVAL)
	}
}

func TestDomainsOpenAndCloseLikeFiles(t *testing.T) {
	w := newWorld(t)
	d := w.nic(1)
	a, b := w.client(d), w.client(d)
	_, err := a.ctx.OpenXRCD(domainKey, false, false)
	wantErrno(t, "there is none", err, syscall.ENOENT)
	_, err = a.ctx.OpenXRCD(nic.XRCDKey{}, false, false)
	wantErrno(t, "no file and no create", err, syscall.EINVAL)
	x, err := a.ctx.OpenXRCD(domainKey, true, true)
	check(t, err)
	_, err = b.ctx.OpenXRCD(domainKey, true, true)
	wantErrno(t, "there is one", err, syscall.EEXIST)
	y, err := b.ctx.OpenXRCD(domainKey, false, false)
	check(t, err)
	s := b.xsrq(y)
	wantErrno(t, "close in use", b.ctx.CloseXRCD(y), syscall.EBUSY)
	wantErrno(t, "destroy its CQ", b.ctx.DestroyCQ(b.cq), syscall.EBUSY)
	wantErrno(t, "close another's", b.ctx.CloseXRCD(x), syscall.EINVAL)
	check(t, a.ctx.CloseXRCD(x))
	tgt, err := b.ctx.CreateQP(nic.QPInit{Type: ib.QPTypeXRCRecv, XRCD: y})
	check(t, err)
	check(t, b.ctx.DestroySRQ(s.srq))
	wantErrno(t, "close with a target", b.ctx.CloseXRCD(y), syscall.EBUSY)
	check(t, b.ctx.DestroyQP(tgt))
	check(t, b.ctx.CloseXRCD(y))
	_, err = a.ctx.OpenXRCD(domainKey, false, false)
	wantErrno(t, "it has ended", err, syscall.ENOENT)
}

func TestAContextClosesWithXRC(t *testing.T) {
	w := newWorld(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	x := b.domain()
	ini, tgt := xpair(a, b, x)
	s := b.xsrq(x)
	s.recv(1, s.sge(0, 4000))
	ini.post(wr{id: 1, op: ib.WRSend, ah: s.srq.Number(), sges: a.sge(0, 4000)})
	w.run(1e6)
	q, err := b.ctx.QueryQP(tgt)
	check(t, err)
	if i := b.dev.Snapshot().QPs[0]; i.Type != "XRC_TGT" || q.Caps != (nic.Caps{}) {
		t.Errorf("%+v, %+v", i, q.Caps)
	}
	a.ctx.Close()
	b.ctx.Close()
	w.run(1e6)
	if n := b.dev.Snapshot(); len(n.QPs)+len(n.CQs)+len(n.MRs) != 0 {
		t.Errorf("left: %+v", n)
	}
	c := w.client(b.dev)
	if _, err := c.ctx.OpenXRCD(domainKey, false, false); err == nil {
		t.Error("the domain is still there")
	}
}
