package nic_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/transport"
)

// fleeting registers n bytes of this process as a client does that cannot share them, and takes
// them away when the queue pairs are at work: writes to it fail after the transport took them for
// done.
func (c *client) fleeting(n int) (mr transport.SGE, rkey uint32, vanish func()) {
	c.t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	check(c.t, err)
	p, err := mrtable.OpenProcess(os.Getpid(), -1)
	check(c.t, err)
	addr := uint64(uintptr(unsafe.Pointer(&mem[0])))
	m, err := p.Memory(addr, uint64(n), allow)
	check(c.t, err)
	check(c.t, p.Close())
	r, err := c.ctx.RegMR(c.pd, m, addr, uint64(n), allow)
	check(c.t, err)
	c.t.Cleanup(func() { unix.Munmap(mem) })
	return transport.SGE{Addr: addr, Length: uint32(n), LKey: r.LKey()}, r.RKey(),
		func() { check(c.t, unix.Mprotect(mem, unix.PROT_NONE)) }
}

// outcome lists completions as "id status".
func outcome(l []wc) string {
	var s []string
	for _, w := range l {
		s = append(s, fmt.Sprintf("%d %v", w.id, w.status))
	}
	return strings.Join(s, ", ")
}

func TestAResponseThatCannotBeStoredFailsItsWorkRequest(t *testing.T) {
	const page = 4096
	read := func(id uint64, g transport.SGE, n uint32, quiet bool) wr {
		g.Length = n
		return wr{id: id, op: ib.WRRDMARead, sges: []transport.SGE{g}, quiet: quiet}
	}
	write := func(id uint64, quiet bool) wr { return wr{id: id, op: ib.WRRDMAWrite, quiet: quiet} }
	for _, c := range []struct {
		name string
		post func(g transport.SGE) []wr
		want string
	}{
		{"signaled", func(g transport.SGE) []wr { return []wr{read(1, g, 8, false)} }, "1 local protection error"},
		{"unsignaled", func(g transport.SGE) []wr { return []wr{read(1, g, 8, true)} }, "1 local protection error"},
		{"unsignaled, with others around it", func(g transport.SGE) []wr {
			return []wr{write(1, false), write(2, true), read(3, g, 8, true), write(4, false), write(5, true), read(6, g, 8, false)}
		}, "1 success, 3 local protection error, 4 work request flushed, 5 work request flushed, 6 work request flushed"},
		{"long", func(g transport.SGE) []wr { return []wr{write(1, false), read(2, g, 1<<20, true), write(3, true)} },
			"1 success, 2 local protection error, 3 work request flushed"},
		{"atomic", func(g transport.SGE) []wr {
			g.Length = 8
			return []wr{{id: 1, op: ib.WRAtomicFetchAndAdd, sges: []transport.SGE{g}, quiet: true}}
		}, "1 local protection error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			a, b := pair(w, 1024)
			g, _, vanish := a.fleeting(1<<20 + page)
			for _, r := range c.post(g) {
				r.rkey = b.mr.RKey()
				a.store(&r)
			}
			vanish()
			a.ring()
			w.run(1e9)
			if got := outcome(a.pollAll()); got != c.want {
				t.Errorf("completions: %s\nwant:        %s", got, c.want)
			}
			if s := a.qp.State(); s != ib.QPSErr {
				t.Errorf("the requester is in %v", s)
			}
			if s := b.qp.State(); s != ib.QPSRTS {
				t.Errorf("the responder, which did nothing wrong, is in %v", s)
			}
			n := a.dev.Counters()
			if want := uint64(strings.Count(c.want, "flushed")); n.ReqCQEError != 1 || n.ReqCQEFlush != want || n.RespCQEError != 0 {
				t.Errorf("counted %d errors, %d flushed, want 1 and %d", n.ReqCQEError, n.ReqCQEFlush, want)
			}
		})
	}
}

func TestAMessageThatCannotBeStoredFailsItsReceive(t *testing.T) {
	for _, n := range []int{8, 1 << 20} {
		w := newWorld(t)
		a, b := pair(w, 1024)
		g, _, vanish := b.fleeting(1 << 20)
		b.recv(1, b.sge(0, 8))
		b.recv(2, []transport.SGE{g})
		b.recv(3, b.sge(0, 8))
		vanish()
		a.post(wr{id: 4, op: ib.WRSend, sges: a.sge(0, 8)})
		w.run(1e6)
		a.post(wr{id: 5, op: ib.WRSend, sges: a.sge(0, n)})
		a.post(wr{id: 6, op: ib.WRSend, sges: a.sge(0, 8)})
		w.run(1e9)
		if got := outcome(b.pollAll()); got != "1 success, 2 local protection error, 3 work request flushed" {
			t.Errorf("%d bytes: receiver: %s", n, got)
		}
		if got := outcome(a.pollAll()); got != "4 success, 5 remote operation error, 6 work request flushed" {
			t.Errorf("%d bytes: sender: %s", n, got)
		}
		if c := b.dev.Counters(); c.RespCQEError != 1 || c.RespCQEFlush != 1 || c.ReqCQEError != 0 {
			t.Errorf("%d bytes: counted %d errors, %d flushed", n, c.RespCQEError, c.RespCQEFlush)
		}
	}
}

func TestAWriteThatCannotBeStoredIsRefused(t *testing.T) {
	w := newWorld(t)
	a, b := pair(w, 1024)
	g, rkey, vanish := b.fleeting(1 << 16)
	vanish()
	a.post(wr{id: 1, op: ib.WRRDMAWrite, remote: g.Addr, rkey: rkey, sges: a.sge(0, 1<<16)})
	w.run(1e9)
	if got := outcome(a.pollAll()); got != "1 remote operation error" {
		t.Error(got)
	}
	if s := b.qp.State(); s != ib.QPSErr || !b.had(ib.EventQPFatal) {
		t.Errorf("responder in %v, events %v", s, b.events)
	}
}
