package nic_test

import (
	"bytes"
	"slices"
	"syscall"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
)

// An xsrq is an SRQ of XRC. Its completions are in the client's CQ.
type xsrq struct {
	*client
	*nictest.SRQ
}

func (c *client) xsrq(x *nic.XRCD) *xsrq {
	c.t.Helper()
	s, err := c.CreateSRQ(nic.SRQInit{PD: c.pd, MaxWR: 64, MaxSGE: 2, XRCD: x, CQ: c.cq.CQ})
	check(c.t, err)
	return &xsrq{c, s}
}

func (s *xsrq) recv(id uint64, sges []transport.SGE) { s.PostRecv(id, sges) }

var domainKey = nic.XRCDKey{Device: 1, Inode: 2}

func (c *client) domain() *nic.XRCD {
	c.t.Helper()
	x, err := c.Context.OpenXRCD(domainKey, true, false)
	check(c.t, err)
	return x
}

// xpair connects an initiator of a to a target of b.
func xpair(a, b *client, x *nic.XRCD) (ini *queue, tgt *nic.QP) {
	ini = a.create(nic.QPInit{Type: ib.QPTypeXRCSend, PD: a.pd, SendCQ: a.cq.CQ, Caps: smallCaps})
	far := b.create(nic.QPInit{Type: ib.QPTypeXRCRecv, XRCD: x})
	ini.connect(1024, far)
	far.connect(1024, ini)
	return ini, far.QP.QP
}

// One connection serves two programs, each with its own SRQ, CQ and memory.
func TestXRCAcrossContexts(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1))
	d := w.nic(2)
	b, c := w.client(d), w.client(d)
	ini, tgt := xpair(a, b, b.domain())
	queues := []*xsrq{b.xsrq(b.domain()), c.xsrq(c.domain())}
	fill(a.mem[:8000], 1)
	for i, s := range queues {
		s.recv(uint64(10+i), s.sge(100, 3000))
		ini.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRSend, RemoteSRQ: s.Number(), SGEs: a.sge(i*3000, 3000)})
		ini.post(transport.SendWR{ID: uint64(10 + i), Opcode: ib.WRRDMAWrite, RemoteSRQ: s.Number(), RKey: s.mr.RKey(), RemoteAddr: 20000, SGEs: a.sge(i, 5000)})
		ini.post(transport.SendWR{ID: uint64(20 + i), Opcode: ib.WRRDMARead, RemoteSRQ: s.Number(), RKey: s.mr.RKey(), RemoteAddr: 20000, SGEs: a.sge(100000*(i+1), 5000)})
	}
	w.run(1e9)
	for i, s := range queues {
		ini.want(uint64(i), ib.WCSuccess, ib.WCSend)
		ini.want(uint64(10+i), ib.WCSuccess, ib.WCRDMAWrite)
		ini.want(uint64(20+i), ib.WCSuccess, ib.WCRDMARead)
		if c := s.want(uint64(10+i), ib.WCSuccess, ib.WCRecv); c.QPN != tgt.QPN() || c.ByteLen != 3000 {
			t.Errorf("completion %+v", c)
		}
		if !bytes.Equal(s.mem[100:3100], a.mem[i*3000:][:3000]) || !bytes.Equal(a.mem[100000*(i+1):][:5000], a.mem[i:][:5000]) {
			t.Errorf("program %d received wrong bytes", i)
		}
		s.wantNone()
	}
	ini.post(transport.SendWR{ID: 5, Opcode: ib.WRRDMAWrite, RemoteSRQ: queues[0].Number(), RKey: c.mr.RKey(), SGEs: a.sge(0, 8)})
	w.run(1e9)
	ini.want(5, ib.WCRemAccessErr, ib.WCRDMAWrite)
}

func TestSRQOfAnotherXRCDomainIsNotFound(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	ini, tgt := xpair(a, b, b.domain())
	own, err := b.Context.OpenXRCD(nic.XRCDKey{}, true, true)
	check(t, err)
	s := b.xsrq(own)
	s.recv(1, s.sge(0, 100))
	ini.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, RemoteSRQ: s.Number(), SGEs: a.sge(0, 8)})
	w.run(1e9)
	ini.want(1, ib.WCRemInvReqErr, ib.WCSend)
	s.wantNone()
	if tgt.State() != ib.QPSErr || !slices.ContainsFunc(b.Events, func(e nic.Event) bool { return e.Type == ib.EventQPReqErr && e.QP == tgt }) {
		t.Errorf("state %v, events %v", tgt.State(), b.Events)
	}
}

func TestDestroySRQFailsTargetsInMidMessage(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	x := b.domain()
	ini, tgt := xpair(a, b, x)
	s := b.xsrq(x)
	s.recv(1, s.sge(0, 1<<20))
	ini.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, RemoteSRQ: s.Number(), SGEs: a.sge(0, 1<<20)})
	for range 3 {
		w.now++
		w.engine.Step(w.now)
	}
	check(t, b.Context.DestroySRQ(s.SRQ.SRQ))
	w.run(1e12)
	if tgt.State() != ib.QPSErr {
		t.Errorf("the target is in state %v", tgt.State())
	}
	s.want(1, ib.WCWRFlushErr, ib.WCRecv)
	if c, _ := ini.cq.Poll(); c.Status == ib.WCSuccess {
		t.Errorf("the message was delivered: %+v", c)
	}
}

func TestCQOverrunFailsXRCSRQ(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	b.cq = b.newCQ(1)
	x := b.domain()
	ini, _ := xpair(a, b, x)
	s := b.xsrq(x)
	for i := range uint64(3) {
		s.recv(i, s.sge(0, 100))
		ini.post(transport.SendWR{ID: i, Opcode: ib.WRSend, RemoteSRQ: s.Number(), SGEs: a.sge(0, 8)})
	}
	w.run(1e9)
	var got []ib.EventType
	for _, e := range b.Events {
		got = append(got, e.Type)
	}
	if !slices.Contains(got, ib.EventCQErr) || !slices.Contains(got, ib.EventSRQErr) {
		t.Errorf("events %v", got)
	}
	w.run(1e12) // the initiator gives up
	sent := ini.cq.PollAll()
	for _, c := range sent {
		if c.WRID > 0 && c.Status == ib.WCSuccess {
			t.Error("a message whose completion was lost was acknowledged")
		}
	}
	if len(sent) != 3 {
		t.Errorf("%d of 3 messages are completed: %v", len(sent), sent)
	}
}

func TestXRCObjectsCheckArguments(t *testing.T) {
	w := newTestFabric(t)
	c, o := w.client(w.nic(1)), w.client(w.nic(2))
	x, caps := c.domain(), smallCaps
	check(t, c.Device.RoundCaps(&caps))
	ring := nic.NewPage(caps.SendRingSize())
	for name, init := range map[string]nic.QPInit{
		"target without a domain":       {Type: ib.QPTypeXRCRecv},
		"target with another's domain":  {Type: ib.QPTypeXRCRecv, XRCD: o.domain()},
		"target with a PD":              {Type: ib.QPTypeXRCRecv, XRCD: x, PD: c.pd},
		"target with an SRQ":            {Type: ib.QPTypeXRCRecv, XRCD: x, SRQ: c.xsrq(x).SRQ.SRQ},
		"initiator without a PD":        {Type: ib.QPTypeXRCSend, SendCQ: c.cq.CQ, Caps: caps, SQ: ring},
		"initiator without a CQ":        {Type: ib.QPTypeXRCSend, PD: c.pd, Caps: caps, SQ: ring},
		"initiator with a domain":       {Type: ib.QPTypeXRCSend, PD: c.pd, SendCQ: c.cq.CQ, Caps: caps, SQ: ring, XRCD: x},
		"initiator with a receive CQ":   {Type: ib.QPTypeXRCSend, PD: c.pd, SendCQ: c.cq.CQ, RecvCQ: c.cq.CQ, Caps: caps, SQ: ring},
		"initiator without a send ring": {Type: ib.QPTypeXRCSend, PD: c.pd, SendCQ: c.cq.CQ, Caps: caps},
	} {
		_, err := c.Context.CreateQP(init)
		wantErrno(t, name, err, syscall.EINVAL)
	}
	for name, init := range map[string]nic.SRQInit{
		"SRQ with a domain and no CQ": {XRCD: x}, "SRQ with a CQ and no domain": {CQ: c.cq.CQ},
		"SRQ with another's CQ": {XRCD: x, CQ: o.cq.CQ},
	} {
		init.PD, init.MaxWR, init.MaxSGE, init.Ring = c.pd, 1, 1, nic.NewPage(abi.RingSize(1, abi.RecvSlotSize(1)))
		_, err := c.Context.CreateSRQ(init)
		wantErrno(t, name, err, syscall.EINVAL)
	}
}

func TestXRCDomainsAreSharedByFile(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	a, b := w.client(d), w.client(d)
	_, err := a.Context.OpenXRCD(domainKey, false, false)
	wantErrno(t, "there is none", err, syscall.ENOENT)
	_, err = a.Context.OpenXRCD(nic.XRCDKey{}, false, false)
	wantErrno(t, "no file and no create", err, syscall.EINVAL)
	x, err := a.Context.OpenXRCD(domainKey, true, true)
	check(t, err)
	_, err = b.Context.OpenXRCD(domainKey, true, true)
	wantErrno(t, "there is one", err, syscall.EEXIST)
	y, err := b.Context.OpenXRCD(domainKey, false, false)
	check(t, err)
	s := b.xsrq(y)
	wantErrno(t, "close in use", b.Context.CloseXRCD(y), syscall.EBUSY)
	wantErrno(t, "destroy its CQ", b.Context.DestroyCQ(b.cq.CQ), syscall.EBUSY)
	wantErrno(t, "close another's", b.Context.CloseXRCD(x), syscall.ENOENT)
	check(t, a.Context.CloseXRCD(x))
	tgt, err := b.Context.CreateQP(nic.QPInit{Type: ib.QPTypeXRCRecv, XRCD: y})
	check(t, err)
	check(t, b.Context.DestroySRQ(s.SRQ.SRQ))
	wantErrno(t, "close with a target", b.Context.CloseXRCD(y), syscall.EBUSY)
	check(t, b.Context.DestroyQP(tgt))
	check(t, b.Context.CloseXRCD(y))
	_, err = a.Context.OpenXRCD(domainKey, false, false)
	wantErrno(t, "it has ended", err, syscall.ENOENT)
}

func TestContextClosesWithXRC(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)), w.client(w.nic(2))
	x := b.domain()
	ini, tgt := xpair(a, b, x)
	s := b.xsrq(x)
	s.recv(1, s.sge(0, 4000))
	ini.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, RemoteSRQ: s.Number(), SGEs: a.sge(0, 4000)})
	w.run(1e6)
	q, err := b.Context.QueryQP(tgt)
	check(t, err)
	if i := b.Device.Snapshot().QPs[0]; i.Type != "XRC_TGT" || q.Caps != (nic.Caps{}) {
		t.Errorf("snapshot %+v, capacities %+v", i, q.Caps)
	}
	a.Context.Close()
	b.Context.Close()
	w.run(1e6)
	if n := b.Device.Snapshot(); len(n.QPs)+len(n.CQs)+len(n.MRs) != 0 {
		t.Errorf("objects left: %+v", n)
	}
	c := w.client(b.Device)
	if _, err := c.Context.OpenXRCD(domainKey, false, false); err == nil {
		t.Error("the domain still exists")
	}
}
