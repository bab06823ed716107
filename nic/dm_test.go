package nic_test

import (
	"bytes"
	"syscall"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/transport"
)

// deviceMemory allocates n bytes and registers them with all access flags.
func (c *client) deviceMemory(n int) (*nic.DM, *nic.MR) {
	c.t.Helper()
	m, err := c.Context.AllocDM(uint64(n), 3)
	check(c.t, err)
	r, err := c.Context.RegDM(c.pd, m, 0, uint64(n), allow|ib.AccessZeroBased|ib.AccessMWBind)
	check(c.t, err)
	return m, r
}

func (c *client) inDM(m *nic.DM) []byte {
	c.t.Helper()
	p := make([]byte, m.Length())
	check(c.t, c.Context.CopyFromDM(m, 0, p))
	return p
}

func TestOperationsBetweenDeviceMemory(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	const n = 5000
	near, nearMR := a.deviceMemory(n)
	far, farMR := b.deviceMemory(n)
	want := make([]byte, n)
	fill(want, 3)
	check(t, a.Context.CopyToDM(near, 0, want))
	all := []transport.SGE{{Length: n, LKey: nearMR.LKey()}}

	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: farMR.RKey(), SGEs: all})
	w.run(1e9)
	a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	if !bytes.Equal(b.inDM(far), want) {
		t.Error("WRITE: device memory has other content")
	}
	b.recv(2, []transport.SGE{{Addr: 8, Length: n - 8, LKey: farMR.LKey()}})
	a.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: []transport.SGE{{Addr: 100, Length: 1000, LKey: nearMR.LKey()}}})
	w.run(1e9)
	a.want(2, ib.WCSuccess, ib.WCSend)
	b.want(2, ib.WCSuccess, ib.WCRecv)
	copy(want[8:1008], want[100:1100])
	if !bytes.Equal(b.inDM(far), want) {
		t.Error("SEND: device memory has other content")
	}
	a.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMARead, RKey: farMR.RKey(), SGEs: all})
	w.run(1e9)
	a.post(transport.SendWR{ID: 4, Opcode: ib.WRAtomicFetchAndAdd, RemoteAddr: 16, RKey: farMR.RKey(), CompareAdd: 1, SGEs: []transport.SGE{{Addr: 0, Length: 8, LKey: nearMR.LKey()}}})
	w.run(1e9)
	a.want(3, ib.WCSuccess, ib.WCRDMARead)
	a.want(4, ib.WCSuccess, ib.WCFetchAdd)
	if got := b.inDM(far); le.Uint64(got[16:]) != le.Uint64(want[16:])+1 {
		t.Error("fetch and add: the value was not added")
	}
	copy(want, want[16:24])
	if !bytes.Equal(a.inDM(near), want) {
		t.Error("READ, fetch and add: wrong content returned")
	}
	a.post(transport.SendWR{ID: 5, Opcode: ib.WRRDMAWrite, RemoteAddr: n - 7, RKey: farMR.RKey(), SGEs: all[:1:1]})
	w.run(1e9)
	a.want(5, ib.WCRemAccessErr, ib.WCRDMAWrite)
}

func TestDeviceMemoryChecksArguments(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	c, other := w.client(d), w.client(d)
	m, err := c.Context.AllocDM(100, 0)
	check(t, err)
	if !bytes.Equal(c.inDM(m), make([]byte, 100)) {
		t.Error("new device memory is not zeroed")
	}
	for _, x := range []struct {
		length uint64
		align  uint32
		want   syscall.Errno
	}{{0, 0, syscall.EINVAL}, {8, 13, syscall.EINVAL}, {c.Context.MaxDM() + 1, 0, syscall.ENOMEM}, {1<<64 - 1, 0, syscall.ENOMEM}} {
		_, err := c.Context.AllocDM(x.length, x.align)
		wantErrno(t, "allocate", err, x.want)
	}
	for _, x := range []struct {
		off uint64
		n   int
	}{{3, 4}, {4, 3}, {104, 4}, {100, 4}, {0, 104}, {1<<64 - 4, 8}, {1 << 63, 4}} {
		wantErrno(t, "copy to", c.Context.CopyToDM(m, x.off, make([]byte, x.n)), syscall.EINVAL)
		wantErrno(t, "copy from", c.Context.CopyFromDM(m, x.off, make([]byte, x.n)), syscall.EINVAL)
	}
	check(t, c.Context.CopyToDM(m, 100, nil))
	const rights = ib.AccessZeroBased | ib.AccessLocalWrite
	for _, x := range []struct {
		off, n uint64
		access ib.Access
	}{
		{0, 100, ib.AccessLocalWrite}, {0, 104, rights}, {4, 100, rights}, {101, 0, rights}, {1 << 63, 1 << 63, rights},
		{4, 1<<64 - 4, rights}, {0, 100, ib.AccessZeroBased | ib.AccessRemoteWrite}, {0, 100, rights | ib.AccessOnDemand},
	} {
		_, err := c.Context.RegDM(c.pd, m, x.off, x.n, x.access)
		wantErrno(t, "register", err, syscall.EINVAL)
	}
	_, err = c.Context.RegDM(other.pd, m, 0, 8, rights)
	wantErrno(t, "with another's PD", err, syscall.ENOENT)
	_, err = other.Context.RegDM(other.pd, m, 0, 8, rights)
	wantErrno(t, "another's memory", err, syscall.ENOENT)
	wantErrno(t, "another's memory", other.Context.CopyToDM(m, 0, nil), syscall.ENOENT)
	wantErrno(t, "another's memory", other.Context.FreeDM(m), syscall.ENOENT)
	wantErrno(t, "none", c.Context.FreeDM(nil), syscall.ENOENT)

	empty, err := c.Context.RegDM(c.pd, m, 0, 0, rights)
	check(t, err)
	part, err := c.Context.RegDM(c.pd, m, 4, 8, rights)
	check(t, err)
	wantErrno(t, "in use", c.Context.FreeDM(m), syscall.EBUSY)
	check(t, c.Context.DeregMR(empty))
	// A region that is reregistered to other memory does not use this one any more.
	check(t, c.Context.ReregMR(part, c.pd, mrtable.HeapMemory(make([]byte, 8)), 0, 8, allow))
	check(t, c.Context.FreeDM(m))
	wantErrno(t, "twice", c.Context.FreeDM(m), syscall.ENOENT)
	check(t, c.Context.DeregMR(part))
}

func TestDeviceMemoryLimitsAndReuse(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	most := nic.DefaultLimits.MaxDM
	open := func(limit uint64) *nic.Context {
		c, err := d.Open(nic.ContextOptions{Doorbell: nic.NewPage(abi.DoorbellSize), DoorbellFD: -1, Comm: "test",
			Limits: nic.ContextLimits{DeviceMemory: limit}})
		check(t, err)
		return c
	}
	greedy, modest := open(0), open(1000)
	if greedy.MaxDM() != most || modest.MaxDM() != 960 {
		t.Errorf("MaxDM is %d and %d bytes", greedy.MaxDM(), modest.MaxDM())
	}
	for range 15 { // a byte costs as much as 64
		_, err := modest.AllocDM(1, 0)
		check(t, err)
	}
	_, err := modest.AllocDM(1, 0)
	wantErrno(t, "beyond the context's limit", err, syscall.ENOMEM)
	_, err = greedy.AllocDM(most, 0)
	wantErrno(t, "beyond what the device has left", err, syscall.ENOMEM)
	m, err := greedy.AllocDM(most-960, 0)
	check(t, err)
	if s := d.Snapshot(); len(s.DMs) != 16 || s.Contexts[1].DeviceMemory != 960 || s.Contexts[1].DMs != 15 || s.DMs[0].Length != most-960 {
		t.Errorf("snapshot %+v", s)
	}
	modest.Close()
	check(t, greedy.FreeDM(m))
	_, err = greedy.AllocDM(most, 0)
	check(t, err)
	greedy.Close()
	if s := d.Snapshot(); len(s.DMs)+len(s.Contexts) != 0 {
		t.Errorf("objects left: %+v", s)
	}
	_, err = greedy.AllocDM(1, 0)
	wantErrno(t, "closed", err, syscall.EBADF)
}

func TestContextClosesWithDeviceMemoryInUse(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	_, near := a.deviceMemory(1 << 16)
	_, far := b.deviceMemory(1 << 16)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: far.RKey(), SGEs: []transport.SGE{{Length: 1 << 16, LKey: near.LKey()}}})
	a.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMARead, RKey: far.RKey(), SGEs: []transport.SGE{{Length: 1 << 16, LKey: near.LKey()}}})
	w.engine.Step(w.now + 1)
	b.Context.Close()
	w.engine.Step(w.now + 2)
	a.Context.Close()
	w.step()
	for _, d := range []*nic.Device{a.Device, b.Device} {
		if s := d.Snapshot(); len(s.DMs)+len(s.MRs)+len(s.Contexts) != 0 {
			t.Errorf("objects left: %+v", s)
		}
	}
}
