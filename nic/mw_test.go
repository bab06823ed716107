package nic_test

import (
	"bytes"
	"syscall"
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/transport"
)

// bindable registers n bytes at the end of c's memory for windows.
func (c *client) bindable(n int) *nic.MR {
	m, err := c.Context.RegMR(c.pd, mrtable.HeapMemory(c.mem[len(c.mem)-n:]), 1<<32, uint64(n), ib.AccessLocalWrite|ib.AccessMWBind)
	check(c.t, err)
	return m
}

func (c *client) window(t ib.MWType) *nic.MW {
	c.t.Helper()
	m, err := c.Context.AllocMW(c.pd, t)
	check(c.t, err)
	return m
}

// bind posts the work request that binds w to n bytes of m.
func (q *queue) bind(id uint64, w *nic.MW, m *nic.MR, n int) {
	q.post(transport.SendWR{ID: id, Opcode: ib.WRBindMW, RKey: w.RKey()&^0xff | (w.RKey()+1)&0xff,
		Bind: transport.Bind{LKey: m.LKey(), Access: ib.AccessRemoteWrite, Addr: 1 << 32, Length: uint64(n)}})
}

func TestMemoryWindowGrantsAccessUntilInvalidated(t *testing.T) {
	for _, kind := range []ib.MWType{ib.MWType1, ib.MWType2} {
		w := newTestFabric(t)
		a, b := pair(w, 1024)
		m, mw := b.bindable(4096), b.window(kind)
		b.bind(1, mw, m, 2000)
		w.run(1e6)
		b.want(1, ib.WCSuccess, ib.WCBindMW)
		fill(a.mem[:2000], 1)
		a.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, RemoteAddr: 1 << 32, RKey: mw.RKey(), SGEs: a.sge(0, 2000)})
		w.run(1e6)
		a.want(2, ib.WCSuccess, ib.WCRDMAWrite)
		if !bytes.Equal(b.mem[len(b.mem)-4096:][:2000], a.mem[:2000]) {
			t.Error("the WRITE through the window did not arrive")
		}
		wantErrno(t, "deregister", b.Context.DeregMR(m), syscall.EBUSY)
		wantErrno(t, "deallocate the PD", b.Context.DeallocPD(b.pd), syscall.EBUSY)
		if kind == ib.MWType2 {
			b.recv(3, nil)
			a.post(transport.SendWR{ID: 3, Opcode: ib.WRSendWithInv, Imm: mw.RKey()})
			w.run(1e6)
			if c := b.want(3, ib.WCSuccess, ib.WCRecv); c.Flags != ib.WCWithInv || c.Imm != mw.RKey() {
				t.Errorf("completion %+v", c)
			}
			a.want(3, ib.WCSuccess, ib.WCSend)
		} else {
			check(t, b.Context.DeallocMW(mw))
			wantErrno(t, "twice", b.Context.DeallocMW(mw), syscall.ENOENT)
		}
		a.post(transport.SendWR{ID: 4, Opcode: ib.WRRDMAWrite, RemoteAddr: 1 << 32, RKey: mw.RKey(), SGEs: a.sge(0, 2000)})
		w.run(1e6)
		a.want(4, ib.WCRemAccessErr, ib.WCRDMAWrite)
		check(t, b.Context.DeregMR(m))
	}
}

func TestDestroyQPInvalidatesItsWindows(t *testing.T) {
	w := newTestFabric(t)
	_, b := pair(w, 1024)
	m, mw := b.bindable(4096), b.window(ib.MWType2)
	b.bind(1, mw, m, 2000)
	w.run(1e6)
	wantErrno(t, "deregister", b.Context.DeregMR(m), syscall.EBUSY)
	check(t, b.Destroy())
	check(t, b.Context.DeregMR(m))
}

func TestContextClosesWithBoundWindows(t *testing.T) {
	w := newTestFabric(t)
	_, b := pair(w, 1024)
	m := b.bindable(4096)
	for range 3 {
		b.bind(1, b.window(ib.MWType2), m, 2000)
	}
	w.run(1e6)
	if s := b.Device.Snapshot(); len(s.MRs) != 2 {
		t.Errorf("%d MRs", len(s.MRs))
	}
	b.Context.Close()
	if s := b.Device.Snapshot(); len(s.MRs)+len(s.QPs) != 0 {
		t.Errorf("objects left: %+v", s)
	}
}

func TestAllocMWChecksArguments(t *testing.T) {
	w := newTestFabric(t)
	c := w.client(w.nic(1))
	_, err := c.Context.AllocMW(c.pd, 3)
	wantErrno(t, "type 3", err, syscall.EINVAL)
	_, err = c.Context.AllocMW(nil, ib.MWType1)
	wantErrno(t, "no PD", err, syscall.EINVAL)
	wantErrno(t, "no MW", c.Context.DeallocMW(nil), syscall.ENOENT)
	a := c.Device.Query()
	if a.MaxMW == 0 || a.DeviceCapFlags&(1<<17|1<<20|1<<21|1<<23|1<<24) != 1<<17|1<<20|1<<21|1<<24 || a.CapFlagsEx>>38 != 1|1<<2 {
		t.Errorf("device attributes %+v", a)
	}
}
