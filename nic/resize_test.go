package nic_test

import (
	"syscall"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
)

func TestAResizedCQKeepsWhatWasNotPolled(t *testing.T) {
	w := newWorld(t)
	a, b := pair(w, 1024)
	write := func(id uint64) { a.post(wr{id: id, op: ib.WRRDMAWrite, rkey: b.mr.RKey(), sges: a.sge(0, 8)}) }
	for i := range 20 {
		write(uint64(i))
	}
	w.run(1e9)
	for i := range 5 {
		a.want(uint64(i), ib.WCSuccess, ib.WCRDMAWrite)
	}
	*word(a.cqRing, abi.CQArmed) = abi.CQArmNext
	resize := func(n int) error {
		ring := nic.NewPage(abi.RingSize(n, abi.CQESize))
		err := a.ctx.ResizeCQ(a.cq, n, ring)
		if err == nil {
			a.cqRing = ring
		}
		return err
	}
	wantErrno(t, "too few slots", resize(8), syscall.EINVAL)
	wantErrno(t, "no slots", resize(0), syscall.EINVAL)
	check(t, resize(16))
	if a.cq.Entries() != 16 || a.fired != 0 {
		t.Errorf("%d entries, %d events", a.cq.Entries(), a.fired)
	}
	write(20)
	w.run(1e9)
	if a.fired != 1 || *word(a.cqRing, abi.CQEvents) != 1 {
		t.Errorf("%d events: the arming was lost", a.fired)
	}
	check(t, resize(64))
	write(21)
	w.run(1e9)
	for i := range 17 {
		a.want(uint64(5+i), ib.WCSuccess, ib.WCRDMAWrite)
	}
	a.wantNone()
	other := w.client(a.dev)
	wantErrno(t, "another context's", other.ctx.ResizeCQ(a.cq, 16, a.cqRing), syscall.EINVAL)
}

func TestAResizedSRQKeepsWhatWaits(t *testing.T) {
	w := newWorld(t)
	ca, cb := w.client(w.nic(1)), w.client(w.nic(2))
	n, sge := 4, 1
	check(t, cb.dev.RoundSRQ(&n, &sge))
	ring := nic.NewPage(abi.RingSize(n, abi.RecvSlotSize(sge)))
	srq, err := cb.ctx.CreateSRQ(nic.SRQInit{PD: cb.pd, MaxWR: n, MaxSGE: sge, Ring: ring})
	check(t, err)
	a := ca.qp(smallCaps)
	b := &queue{client: cb, caps: a.caps, sq: nic.NewPage(a.caps.SendRingSize())}
	b.qp, err = cb.ctx.CreateQP(nic.QPInit{Type: ib.QPTypeRC, PD: cb.pd, SendCQ: cb.cq, RecvCQ: cb.cq, SRQ: srq, Caps: a.caps, SQ: b.sq})
	check(t, err)
	a.connect(1024, b)
	b.connect(1024, a)
	post := func(i int) {
		s := ring[abi.RingSlots+i%n*abi.RecvSlotSize(sge):]
		le.PutUint64(s[abi.RecvWRID:], uint64(i))
		le.PutUint32(s[abi.RecvNumSGE:], 1)
		putSGEs(s[abi.RecvSGEs:], cb.sge(i*100, 100))
		*word(ring, abi.RingProducer) = uint32(i + 1)
	}
	send := func(i int) {
		a.post(wr{id: uint64(i), op: ib.WRSend, sges: a.sge(0, 100)})
		w.run(1e6)
		cb.want(uint64(i), ib.WCSuccess, ib.WCRecv)
	}
	for i := range 4 {
		post(i)
	}
	send(0)
	wantErrno(t, "too few slots", cb.ctx.ModifySRQ(srq, nic.SRQChange{Limit: -1, MaxWR: 2, Ring: nic.NewPage(abi.RingSize(2, abi.RecvSlotSize(sge)))}), syscall.EINVAL)
	n = 8
	ring = nic.NewPage(abi.RingSize(n, abi.RecvSlotSize(sge)))
	wantErrno(t, "a limit above the slots", cb.ctx.ModifySRQ(srq, nic.SRQChange{Limit: 9, MaxWR: n, Ring: ring}), syscall.EINVAL)
	check(t, cb.ctx.ModifySRQ(srq, nic.SRQChange{Limit: 3, MaxWR: n, Ring: ring}))
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
		t.Error("no limit event")
	}
}
