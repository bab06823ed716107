package nic_test

import (
	"bytes"
	"syscall"
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
)

// bindable registers n bytes at the end of c's memory for windows.
func (c *client) bindable(n int) *nic.MR {
	m, err := c.ctx.RegMR(c.pd, mrtable.HeapMemory(c.mem[len(c.mem)-n:]), 1<<32, uint64(n), ib.AccessLocalWrite|ib.AccessMWBind)
	check(c.t, err)
	return m
}

func (c *client) window(t ib.MWType) *nic.MW {
	c.t.Helper()
	m, err := c.ctx.AllocMW(c.pd, t)
	check(c.t, err)
	return m
}

// bind posts the work request that binds w to n bytes of m.
func (q *queue) bind(id uint64, w *nic.MW, m *nic.MR, n int) {
	q.post(wr{id: id, op: ib.WRBindMW, rkey: w.RKey()&^0xff | (w.RKey()+1)&0xff, remote: 1 << 32, add: uint64(n),
		qpn: m.LKey(), qkey: uint32(ib.AccessRemoteWrite)})
}

func TestAPeerWritesThroughAWindowUntilItIsInvalidated(t *testing.T) {
	for _, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
		w := newWorld(t)
		a, b := pair(w, 1024)
		m, mw := b.bindable(4096), b.window(kind)
		b.bind(1, mw, m, 2000)
		w.run(1e6)
		b.want(1, ib.WCSuccess, ib.WCBindMW)
		fill(a.mem[:2000], 1)
		a.post(wr{id: 2, op: ib.WRRDMAWrite, remote: 1 << 32, rkey: mw.RKey(), sges: a.sge(0, 2000)})
		w.run(1e6)
		a.want(2, ib.WCSuccess, ib.WCRDMAWrite)
		if !bytes.Equal(b.mem[len(b.mem)-4096:][:2000], a.mem[:2000]) {
			t.Error("the bytes are not there")
		}
		wantErrno(t, "deregister", b.ctx.DeregMR(m), syscall.EBUSY)
		wantErrno(t, "deallocate the PD", b.ctx.DeallocPD(b.pd), syscall.EBUSY)
		if kind == ib.MWType2 {
			b.recv(3, nil)
			a.post(wr{id: 3, op: ib.WRSendWithInv, imm: swap32(mw.RKey())})
			w.run(1e6)
			if c := b.want(3, ib.WCSuccess, ib.WCRecv); c.flags != ib.WCWithInv || swap32(c.imm) != mw.RKey() {
				t.Errorf("%+v", c)
			}
			a.want(3, ib.WCSuccess, ib.WCSend)
		} else {
			check(t, b.ctx.DeallocMW(mw))
			wantErrno(t, "twice", b.ctx.DeallocMW(mw), syscall.EINVAL)
		}
		a.post(wr{id: 4, op: ib.WRRDMAWrite, remote: 1 << 32, rkey: mw.RKey(), sges: a.sge(0, 2000)})
		w.run(1e6)
		a.want(4, ib.WCRemAccessErr, ib.WCRDMAWrite)
		check(t, b.ctx.DeregMR(m))
	}
}

// swap32: an R_Key stands in the ring as a number of this machine, an immediate as on the wire.
func swap32(v uint32) uint32 { return v<<24 | v>>24 | v<<8&0xff0000 | v>>8&0xff00 }

func TestAWindowGoesWithTheQueuePairThatBoundIt(t *testing.T) {
	w := newWorld(t)
	_, b := pair(w, 1024)
	m, mw := b.bindable(4096), b.window(ib.MWType2)
	b.bind(1, mw, m, 2000)
	w.run(1e6)
	wantErrno(t, "deregister", b.ctx.DeregMR(m), syscall.EBUSY)
	check(t, b.ctx.DestroyQP(b.qp))
	check(t, b.ctx.DeregMR(m))
}

func TestAContextClosesWithWindowsBound(t *testing.T) {
	w := newWorld(t)
	_, b := pair(w, 1024)
	m := b.bindable(4096)
	for range 3 {
		b.bind(1, b.window(ib.MWType2), m, 2000)
	}
	w.run(1e6)
	if s := b.dev.Snapshot(); len(s.MRs) != 2 {
		t.Errorf("%d MRs", len(s.MRs))
	}
	b.ctx.Close()
	if s := b.dev.Snapshot(); len(s.MRs)+len(s.QPs) != 0 {
		t.Errorf("left: %+v", s)
	}
}

func TestWindowsHaveLimits(t *testing.T) {
	w := newWorld(t)
	c := w.client(w.nic(1))
	_, err := c.ctx.AllocMW(c.pd, 3)
	wantErrno(t, "type 3", err, syscall.EINVAL)
	_, err = c.ctx.AllocMW(nil, ib.MWType1)
	wantErrno(t, "no PD", err, syscall.EINVAL)
	wantErrno(t, "no MW", c.ctx.DeallocMW(nil), syscall.EINVAL)
	a := c.dev.Query()
	if a.MaxMW == 0 || a.DeviceCapFlags&(1<<17|1<<20|1<<21|1<<23|1<<24) != 1<<17|1<<20|1<<21|1<<24 || a.CapFlagsEx>>38 != 1|1<<2 {
		t.Errorf("%+v", a)
	}
}
