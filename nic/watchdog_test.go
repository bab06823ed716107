package nic_test

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
)

// servedPages is memory whose page faults wait until the test serves them.
type servedPages struct {
	*nictest.Pages
	t      testing.TB
	served bool
}

func newServedPages(t testing.TB) *servedPages {
	pages, err := nictest.NewPages(16)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("userfaultfd: %v", err)
		}
		t.Skipf("userfaultfd: %v", err)
	}
	p := &servedPages{Pages: pages, t: t}
	t.Cleanup(func() {
		p.serve()
		p.Close()
	})
	return p
}

// serve provides all pages.
func (p *servedPages) serve() {
	if !p.served {
		p.served = true
		check(p.t, p.Serve(0, len(p.Bytes)/nictest.PageSize))
	}
}

// slowClient returns a connected queue pair on two more NICs of a's engine, whose memory p is.
func (l *runningPair) slowClient(p *servedPages, n byte) (q, peer *queue) {
	w := &testFabric{t: p.t, engine: l.ea, fabric: l.a.fabric, mem: 1 << 16}
	process, err := nictest.ThisProcess()
	check(p.t, err)
	defer process.Close()
	m, err := process.Memory(p.Address(), uint64(len(p.Bytes)), ib.AccessOnDemand)
	check(p.t, err)
	l.ea.Do(func() {
		q, peer = w.clientOf(w.nic(n), nic.ContextOptions{UID: 1000}).qp(smallCaps), w.client(w.nic(n+1)).qp(smallCaps)
		q.mr, err = q.Context.RegMR(q.pd, m, 0, uint64(len(p.Bytes)), allow|ib.AccessOnDemand)
		check(p.t, err)
	})
	for _, s := range [][2]*queue{{q, peer}, {peer, q}} {
		a := attrs(1024, s[1])
		a.Timeout = 0 // the memory may take longer than seven retries
		a.AV.Path, err = s[0].Device.ResolvePath(context.Background(), &a.AV)
		check(p.t, err)
		l.ea.Do(func() { s[0].connectWith(a) })
	}
	return q, peer
}

// exchange lets the pair's a write n messages, one at a time.
func (l *runningPair) exchange(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		l.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: l.b.mr.RKey(), SGEs: l.a.sge(0, 64)})
		if c := l.wait(t, l.a.client); c.WRID != uint64(i) || c.Status != ib.WCSuccess {
			t.Fatalf("completion %+v, want %d", c, i)
		}
	}
}

func (l *runningPair) postAs(q *queue, w transport.SendWR) {
	q.post(w)
	l.ea.Wake()
}

// Page faults that no program serves stop neither the engine's other clients, nor control
// operations, nor the end of the engine.
func TestEngineGoesOnWhileAPageFaultWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		wr   func(q, peer *queue) (*queue, transport.SendWR)
	}{
		{"read", func(q, peer *queue) (*queue, transport.SendWR) {
			return q, transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: peer.mr.RKey(), SGEs: q.sge(0, 10000)}
		}},
		{"write", func(q, peer *queue) (*queue, transport.SendWR) {
			return peer, transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: q.mr.RKey(), SGEs: peer.sge(0, 10000)}
		}},
		{"atomic", func(q, peer *queue) (*queue, transport.SendWR) {
			return peer, transport.SendWR{ID: 1, Opcode: ib.WRAtomicFetchAndAdd, RKey: q.mr.RKey(), SGEs: peer.sge(0, 8)}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newRunningPair(t, 1, 20*time.Microsecond)
			p := newServedPages(t)
			q, peer := l.slowClient(p, 3)
			by, wr := c.wr(q, peer)
			l.postAs(by, wr)
			l.exchange(t, 200)
			if early, ok := by.cq.Poll(); ok {
				t.Fatalf("the message was completed before its page was there: %+v", early)
			}
			p.serve()
			if w := l.wait(t, by.client); w.Status != ib.WCSuccess {
				t.Errorf("completion %+v", w)
			}
		})
	}
}

func TestEngineEndsWhileAPageFaultWaits(t *testing.T) {
	p := newServedPages(t)
	l := newRunningPair(t, 1, 20*time.Microsecond)
	q, peer := l.slowClient(p, 3)
	l.postAs(q, transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: peer.mr.RKey(), SGEs: q.sge(0, 100)})
	l.exchange(t, 100)
	l.ea.Do(q.Context.Close)
	l.stop(t)
	check(t, l.ea.Close())
}

// A control operation transmits what was posted before. It waits for no page, and neither does the
// end of a client, nor that of the engine.
func TestControlGoesOnWhileAPageFaultWaits(t *testing.T) {
	wr := func(q, peer *queue) transport.SendWR {
		return transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: peer.mr.RKey(), SGEs: q.sge(0, 100)}
	}
	for name, control := range map[string]func(*queue) error{
		"destroy": func(q *queue) error { return q.Destroy() },
		"error":   func(q *queue) error { return q.SetState(ib.QPSErr) },
		"close":   func(q *queue) error { q.Context.Close(); return nil },
		"none":    func(q *queue) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			p := newServedPages(t)
			l := newRunningPair(t, 1, 20*time.Microsecond)
			q, peer := l.slowClient(p, 3)
			last, lastPeer := l.slowClient(p, 5)
			l.ea.Do(func() {
				q.post(wr(q, peer))
				check(t, control(q))
			})
			l.exchange(t, 100)
			l.stop(t)
			last.post(wr(last, lastPeer))
			check(t, l.ea.Close())
		})
	}
}

// After one delay, a user's clients cost the engine none: their copies are left to other threads,
// which are few.
func TestFurtherClientsOfAUserWithSlowMemory(t *testing.T) {
	l := newRunningPair(t, 1, 20*time.Microsecond)
	p := newServedPages(t)
	l.exchange(t, 1) // the engine's goroutines have begun
	before := runtime.NumGoroutine()
	type pair struct{ q, peer *queue }
	var slow []pair
	for i := range byte(8) {
		q, peer := l.slowClient(p, 3+2*i)
		slow = append(slow, pair{q, peer})
		l.postAs(q, transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: peer.mr.RKey(), SGEs: q.sge(0, 100)})
		l.exchange(t, 20)
	}
	if n := runtime.NumGoroutine() - before; n > nic.MaxCopiers+2 {
		t.Errorf("%d goroutines for 8 clients of one user", n)
	}
	if n := l.ea.TakeOvers(); n != 1 {
		t.Errorf("the engine changed its thread %d times, want once", n)
	}
	p.serve()
	for _, s := range slow {
		if w := l.wait(t, s.q.client); w.Status != ib.WCSuccess {
			t.Errorf("completion %+v", w)
		}
	}
	// Memory that does not wait any more is still copied correctly.
	for _, s := range slow {
		copy(p.Bytes, "hello")
		l.postAs(s.q, transport.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, RKey: s.peer.mr.RKey(), SGEs: s.q.sge(0, 5)})
		if w := l.wait(t, s.q.client); w.Status != ib.WCSuccess || string(s.peer.mem[:5]) != "hello" {
			t.Errorf("completion %+v, memory %q", w, s.peer.mem[:5])
		}
	}
}
