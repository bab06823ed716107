package nic_test

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
	"softroce/nic/nictest"
	"softroce/transport"
)

// vanishingRegion registers n bytes of this process as memory of another process, and returns a
// function that makes them inaccessible: writes then fail after the transport has accepted them.
// The pages are those of a file that is cut off, since /proc/PID/mem writes to protected ones.
func (c *client) vanishingRegion(n int) (mr transport.SGE, rkey uint32, vanish func()) {
	c.t.Helper()
	fd, err := unix.MemfdCreate("vanishing", unix.MFD_CLOEXEC)
	check(c.t, err)
	check(c.t, unix.Ftruncate(fd, int64(n)))
	mem, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(c.t, err)
	p, err := nictest.ThisProcess()
	check(c.t, err)
	addr := uint64(uintptr(unsafe.Pointer(&mem[0])))
	m, err := p.Memory(addr, uint64(n), allow)
	check(c.t, err)
	check(c.t, p.Close())
	r, err := c.Context.RegMR(c.pd, m, addr, uint64(n), allow)
	check(c.t, err)
	c.t.Cleanup(func() {
		unix.Munmap(mem)
		unix.Close(fd)
	})
	return transport.SGE{Addr: addr, Length: uint32(n), LKey: r.LKey()}, r.RKey(),
		func() { check(c.t, unix.Ftruncate(fd, 0)) }
}

// outcome lists completions as "id status".
func outcome(l []nictest.WC) string {
	var s []string
	for _, w := range l {
		s = append(s, fmt.Sprintf("%d %v", w.WRID, w.Status))
	}
	return strings.Join(s, ", ")
}

func TestFailedResponseWriteFailsWorkRequest(t *testing.T) {
	const page = 4096
	read := func(id uint64, g transport.SGE, n uint32, flags ib.SendFlags) transport.SendWR {
		g.Length = n
		return transport.SendWR{ID: id, Opcode: ib.WRRDMARead, SGEs: []transport.SGE{g}, Flags: flags}
	}
	write := func(id uint64, flags ib.SendFlags) transport.SendWR {
		return transport.SendWR{ID: id, Opcode: ib.WRRDMAWrite, Flags: flags}
	}
	for _, c := range []struct {
		name string
		post func(g transport.SGE) []transport.SendWR
		want string
	}{
		{"signaled", func(g transport.SGE) []transport.SendWR { return []transport.SendWR{read(1, g, 8, ib.SendSignaled)} }, "1 local protection error"},
		{"unsignaled", func(g transport.SGE) []transport.SendWR { return []transport.SendWR{read(1, g, 8, 0)} }, "1 local protection error"},
		{"unsignaled between signaled", func(g transport.SGE) []transport.SendWR {
			return []transport.SendWR{write(1, ib.SendSignaled), write(2, 0), read(3, g, 8, 0), write(4, ib.SendSignaled), write(5, 0), read(6, g, 8, ib.SendSignaled)}
		}, "1 success, 3 local protection error, 4 work request flushed, 5 work request flushed, 6 work request flushed"},
		{"long", func(g transport.SGE) []transport.SendWR {
			return []transport.SendWR{write(1, ib.SendSignaled), read(2, g, 1<<20, 0), write(3, 0)}
		},
			"1 success, 2 local protection error, 3 work request flushed"},
		{"atomic", func(g transport.SGE) []transport.SendWR {
			g.Length = 8
			return []transport.SendWR{{ID: 1, Opcode: ib.WRAtomicFetchAndAdd, SGEs: []transport.SGE{g}}}
		}, "1 local protection error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestFabric(t)
			a, b := pair(w, 1024)
			g, _, vanish := a.vanishingRegion(1<<20 + page)
			for _, r := range c.post(g) {
				r.RKey = b.mr.RKey()
				a.PutSend(&r)
			}
			vanish()
			a.Publish()
			w.run(1e9)
			if got := outcome(a.cq.PollAll()); got != c.want {
				t.Errorf("completions: %s\nwant:        %s", got, c.want)
			}
			if s := a.State(); s != ib.QPSErr {
				t.Errorf("requester in state %v", s)
			}
			if s := b.State(); s != ib.QPSRTS {
				t.Errorf("responder in state %v, although only the requester failed", s)
			}
			n := a.Device.Counters()
			if want := uint64(strings.Count(c.want, "flushed")); n.ReqCQEError != 1 || n.ReqCQEFlush != want || n.RespCQEError != 0 {
				t.Errorf("counted %d errors, %d flushed, want 1 and %d", n.ReqCQEError, n.ReqCQEFlush, want)
			}
		})
	}
}

func TestFailedMessageWriteFailsReceive(t *testing.T) {
	for _, n := range []int{8, 1 << 20} {
		w := newTestFabric(t)
		a, b := pair(w, 1024)
		g, _, vanish := b.vanishingRegion(1 << 20)
		b.recv(1, b.sge(0, 8))
		b.recv(2, []transport.SGE{g})
		b.recv(3, b.sge(0, 8))
		vanish()
		a.post(transport.SendWR{ID: 4, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		w.run(1e6)
		a.post(transport.SendWR{ID: 5, Opcode: ib.WRSend, SGEs: a.sge(0, n)})
		a.post(transport.SendWR{ID: 6, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		w.run(1e9)
		if got := outcome(b.cq.PollAll()); got != "1 success, 2 local protection error, 3 work request flushed" {
			t.Errorf("%d bytes: receiver: %s", n, got)
		}
		if got := outcome(a.cq.PollAll()); got != "4 success, 5 remote operation error, 6 work request flushed" {
			t.Errorf("%d bytes: sender: %s", n, got)
		}
		if c := b.Device.Counters(); c.RespCQEError != 1 || c.RespCQEFlush != 1 || c.ReqCQEError != 0 {
			t.Errorf("%d bytes: counted %d errors, %d flushed", n, c.RespCQEError, c.RespCQEFlush)
		}
	}
}

// The data of a WRITE with immediate goes to memory of the peer's choice: its receive reports a
// local access error (IBTA 11.6.2). What follows is flushed.
func TestFailedWriteWithImmediateFailsItsReceive(t *testing.T) {
	for _, n := range []int{8, 1 << 16} {
		w := newTestFabric(t)
		a, b := pair(w, 1024)
		g, rkey, vanish := b.vanishingRegion(1 << 16)
		b.recv(1, b.sge(0, 8))
		b.recv(2, b.sge(0, 8))
		vanish()
		a.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWriteWithImm, RemoteAddr: g.Addr, RKey: rkey, SGEs: a.sge(0, n)})
		w.run(1e9)
		if got, want := outcome(b.cq.PollAll()), "1 local access error, 2 work request flushed"; got != want {
			t.Errorf("%d bytes: receiver: %s, want %s", n, got, want)
		}
		if got, want := outcome(a.cq.PollAll()), "3 remote operation error"; got != want {
			t.Errorf("%d bytes: sender: %s, want %s", n, got, want)
		}
		if c := b.Device.Counters(); c.RespCQEError != 1 || c.RespCQEFlush != 1 {
			t.Errorf("%d bytes: counted %d errors, %d flushed", n, c.RespCQEError, c.RespCQEFlush)
		}
	}
}

func TestFailedRDMAWriteIsNAKed(t *testing.T) {
	w := newTestFabric(t)
	a, b := pair(w, 1024)
	g, rkey, vanish := b.vanishingRegion(1 << 16)
	vanish()
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RemoteAddr: g.Addr, RKey: rkey, SGEs: a.sge(0, 1<<16)})
	w.run(1e9)
	if got, want := outcome(a.cq.PollAll()), "1 remote operation error"; got != want {
		t.Errorf("completions %q, want %q", got, want)
	}
	if s := b.State(); s != ib.QPSErr || !b.had(ib.EventQPFatal) {
		t.Errorf("responder in %v, events %v", s, b.Events)
	}
}
