package nic_test

import (
	"syscall"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
)

func TestResizeCQKeepsCompletions(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	write := func(id uint64) {
		a.post(transport.SendWR{ID: id, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	}
	for i := range 20 {
		write(uint64(i))
	}
	w.run(1e9)
	for i := range 5 {
		a.want(uint64(i), ib.WCSuccess, ib.WCRDMAWrite)
	}
	a.cq.Arm(false)
	wantErrno(t, "too few slots", a.cq.Resize(8), syscall.EINVAL)
	wantErrno(t, "no slots", a.Context.ResizeCQ(a.cq.CQ, 0, nic.NewPage(abi.RingSize(0, abi.CQESize))), syscall.EINVAL)
	check(t, a.cq.Resize(16))
	if a.cq.Entries() != 16 || a.cq.Notified != 0 {
		t.Errorf("%d entries, %d completion events", a.cq.Entries(), a.cq.Notified)
	}
	write(20)
	w.run(1e9)
	if a.cq.Notified != 1 || a.cq.CompletionEvents() != 1 {
		t.Errorf("%d completion events: the arming was lost", a.cq.Notified)
	}
	check(t, a.cq.Resize(64))
	write(21)
	w.run(1e9)
	for i := range 17 {
		a.want(uint64(5+i), ib.WCSuccess, ib.WCRDMAWrite)
	}
	a.wantNone()
	other := w.client(a.Device)
	wantErrno(t, "another context's", other.Context.ResizeCQ(a.cq.CQ, 16, a.cq.Ring), syscall.ENOENT)
}

func TestResizeSRQKeepsWorkRequests(t *testing.T) {
	w := newTestFabric(t)
	ca, cb := w.client(w.nic(1)), w.client(w.nic(2))
	srq, err := cb.CreateSRQ(nic.SRQInit{PD: cb.pd, MaxWR: 4, MaxSGE: 1})
	check(t, err)
	a := ca.qp(smallCaps)
	b := cb.create(nic.QPInit{Type: ib.QPTypeRC, PD: cb.pd, SendCQ: cb.cq.CQ, RecvCQ: cb.cq.CQ, SRQ: srq.SRQ, Caps: a.Caps()})
	a.connect(1024, b)
	b.connect(1024, a)
	post := func(i int) { srq.PostRecv(uint64(i), cb.sge(i*100, 100)) }
	send := func(i int) {
		a.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRSend, SGEs: a.sge(0, 100)})
		w.run(1e6)
		cb.want(uint64(i), ib.WCSuccess, ib.WCRecv)
	}
	for i := range 4 {
		post(i)
	}
	send(0)
	wantErrno(t, "too few slots", srq.Resize(2, -1), syscall.EINVAL)
	wantErrno(t, "a limit above the slots", srq.Resize(8, 9), syscall.EINVAL)
	check(t, srq.Resize(8, 3))
	if got := srq.Query(); got != (nic.SRQAttr{MaxWR: 8, MaxSGE: 1, Limit: 3}) || cb.had(ib.EventSRQLimitReached) {
		t.Errorf("query %+v", got)
	}
	for i := 4; i < 9; i++ {
		post(i)
	}
	for i := 1; i < 9; i++ {
		send(i)
	}
	if srq.Query().Limit != 0 || !cb.had(ib.EventSRQLimitReached) {
		t.Error("no limit event was raised")
	}
}

// What was posted before a CQ is made smaller has completions that must fit into it.
func TestResizeCQTakesPostedWorkFirst(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).ud(), w.client(w.nic(2)).ud()
	a.ah(1, "192.0.2.2")
	for range 3 {
		a.sendTo(1, 1, b.QPN(), 8)
	}
	wantErrno(t, "too few slots", a.cq.Resize(2), syscall.EINVAL)
	w.run(1e6)
	if got := len(a.cq.PollAll()); got != 3 {
		t.Errorf("%d completions", got)
	}
}
