package nic_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
	"softroce/wire"
)

// A runningPair is two connected clients on running engines.
type runningPair struct {
	a, b       *queue
	ea, eb     *nic.Engine
	bellA      int // eventfd
	cancel     func()
	returned   chan error
	engineRuns int
}

// newRunningPair creates two NICs on one engine or on two.
func newRunningPair(t testing.TB, engines int, spin time.Duration) *runningPair {
	return newConfiguredPair(t, engines, nic.EngineConfig{Spin: spin})
}

func newConfiguredPair(t testing.TB, engines int, c nic.EngineConfig) *runningPair {
	l := &runningPair{returned: make(chan error, engines), engineRuns: engines}
	w := &testFabric{t: t, fabric: wire.NewFabric(), mem: 1 << 22}
	var all []*nic.Engine
	for range engines {
		e, err := nic.NewEngine(c)
		check(t, err)
		all = append(all, e)
	}
	l.ea, l.eb = all[0], all[engines-1]
	side := func(e *nic.Engine, n byte) *queue {
		w.engine = e
		d := w.nic(n)
		c := w.client(d)
		return c.qp(smallCaps)
	}
	l.a, l.b = side(l.ea, 1), side(l.eb, 2)
	// Client a gets a doorbell eventfd.
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	check(t, err)
	l.bellA = fd
	l.a.Context.Close()
	l.a = w.clientOf(l.a.Device, nic.ContextOptions{DoorbellFD: fd}).qp(smallCaps)

	l.a.connect(4096, l.b)
	l.b.connect(4096, l.a)
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	for _, e := range all {
		go func() { l.returned <- e.Run(ctx) }()
	}
	t.Cleanup(func() {
		l.stop(t)
		for _, e := range all {
			check(t, e.Close())
		}
		unix.Close(fd)
	})
	return l
}

func (l *runningPair) stop(t testing.TB) {
	l.cancel()
	for ; l.engineRuns > 0; l.engineRuns-- {
		check(t, <-l.returned)
	}
}

// post rings the doorbell as a client library does: bit, fence, flag, eventfd.
func (l *runningPair) post(w transport.SendWR) {
	l.a.post(w)
	if atomic.LoadUint32(nictest.Word(l.a.DoorbellPage, abi.DoorbellAsleep)) != 0 {
		unix.Write(l.bellA, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// wait polls for a completion.
func (l *runningPair) wait(t testing.TB, c *client) nictest.WC {
	t.Helper()
	for start := time.Now(); time.Since(start) < 10*time.Second; runtime.Gosched() {
		if w, ok := c.cq.Poll(); ok {
			return w
		}
	}
	t.Fatal("no completion within 10 s")
	return nictest.WC{}
}

func TestDoorbellWakesEngine(t *testing.T) {
	for _, engines := range []int{1, 2} {
		for _, pause := range []time.Duration{0, 30 * time.Microsecond, 3 * time.Millisecond} {
			t.Run(fmt.Sprintf("engines=%d/pause=%v", engines, pause), func(t *testing.T) {
				l := newRunningPair(t, engines, 20*time.Microsecond)
				n := 2000
				if pause > 0 { // Go's timers make a pause last at least a millisecond
					n = 100
				}
				for i := range n {
					l.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: l.b.mr.RKey(), SGEs: l.a.sge(0, 64)})
					if c := l.wait(t, l.a.client); c.WRID != uint64(i) || c.Status != ib.WCSuccess {
						t.Fatalf("completion %+v, want %d", c, i)
					}
					time.Sleep(pause)
				}
				if pause > time.Millisecond && l.ea.Counters().Asleep == 0 {
					t.Error("the engine never slept")
				}
			})
		}
	}
}

// An engine that may not spin takes the steps after which deregistered memory is closed, and then
// sleeps.
func TestEngineClosesDeregisteredMemoryBeforeItSleeps(t *testing.T) {
	l := newRunningPair(t, 1, -1)
	l.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: l.b.mr.RKey(), SGEs: l.a.sge(0, 64)})
	l.wait(t, l.a.client) // the engine uses memory of both tables
	for range 100 {
		closed := make(chan struct{})
		l.ea.Do(func() {
			mr, err := l.b.Context.RegMR(l.b.pd, signalingMemory{mrtable.HeapMemory(make([]byte, 8)), closed}, 0, 8, allow)
			check(t, err)
			check(t, l.b.Context.DeregMR(mr))
		})
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Fatal("the memory was not closed within 10 s")
		}
	}
}

// signalingMemory closes a channel when it is closed.
type signalingMemory struct {
	mrtable.Memory
	closed chan struct{}
}

func (m signalingMemory) Close() error {
	close(m.closed)
	return m.Memory.Close()
}

// An engine that keeps its P when it sleeps does not delay what stops all goroutines, and wakes for
// work within its brief sleep and after it.
func TestEngineThatKeepsItsPSleeps(t *testing.T) {
	nic.AddProc(t)
	l := newConfiguredPair(t, 1, nic.EngineConfig{Spin: time.Microsecond, KeepsP: true})
	for i, pause := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
		time.Sleep(pause)
		runtime.GC()
		l.post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: l.b.mr.RKey(), SGEs: l.a.sge(0, 64)})
		if c := l.wait(t, l.a.client); c.WRID != uint64(i) || c.Status != ib.WCSuccess {
			t.Errorf("completion %+v, want %d", c, i)
		}
	}
	if l.ea.Counters().Asleep == 0 {
		t.Error("the engine never slept")
	}
}

func TestDoRunsWhileAwakeAsleepAndStopped(t *testing.T) {
	l := newRunningPair(t, 1, time.Microsecond)
	ran := 0
	for range 100 {
		l.ea.Do(func() { ran++ })
	}
	time.Sleep(5 * time.Millisecond)
	l.ea.Do(func() { ran++ })
	l.stop(t)
	l.ea.Do(func() { ran++ })
	if ran != 102 {
		t.Errorf("%d of 102 functions ran", ran)
	}
}

func TestTimeoutWakesEngine(t *testing.T) {
	for _, keepsP := range []bool{false, true} {
		t.Run(fmt.Sprint("keepsP=", keepsP), func(t *testing.T) { testTimeoutWakesEngine(t, keepsP) })
	}
}

func testTimeoutWakesEngine(t *testing.T, keepsP bool) {
	l := newConfiguredPair(t, 1, nic.EngineConfig{Spin: time.Microsecond, KeepsP: keepsP})
	l.ea.Do(func() { // the peer disappears without notice
		check(t, l.b.SetState(ib.QPSReset))
		check(t, l.a.SetState(ib.QPSReset))
	})
	at := attrs(1024, l.b)
	at.Timeout, at.RetryCount = 8, 2 // 1 ms
	var err error
	at.AV.Path, err = l.a.Device.ResolvePath(context.Background(), &at.AV)
	check(t, err)
	var start int64 // time.Now may be later than the clock of the step that sends
	l.ea.Do(func() {
		l.a.connectWith(at)
		start = l.ea.StepTime()
	})
	l.post(transport.SendWR{ID: 5, Opcode: ib.WRRDMAWrite, RKey: 1, SGEs: l.a.sge(0, 64)})
	c := l.wait(t, l.a.client)
	if c.Status != ib.WCRetryExcErr {
		t.Errorf("completion %+v", c)
	}
	// There is no upper bound: the machine may be busy.
	if d := time.Duration(int64(c.Timestamp) - start); d < 3*time.Millisecond {
		t.Errorf("three timeouts of a millisecond took %v", d)
	}
}

func TestEndOfRunRaisesDeviceFatal(t *testing.T) {
	l := newRunningPair(t, 1, time.Microsecond)
	l.stop(t)
	if !l.a.had(ib.EventDeviceFatal) || !l.b.had(ib.EventDeviceFatal) {
		t.Errorf("events %v and %v", l.a.Events, l.b.Events)
	}
	if err := l.ea.Run(context.Background()); err == nil {
		t.Error("Run succeeded on an engine that had stopped")
	}
	_, err := l.a.Device.Open(nic.ContextOptions{Doorbell: nic.NewPage(abi.DoorbellSize), DoorbellFD: -1})
	wantErrno(t, "Open", err, unix.ENODEV)
}

func TestIdleEngineSleeps(t *testing.T) {
	l := newRunningPair(t, 1, 50*time.Microsecond)
	before := l.ea.Counters()
	time.Sleep(100 * time.Millisecond)
	after := l.ea.Counters()
	if n := after.Steps - before.Steps; n > 5000 {
		t.Errorf("%d steps in 100 ms without work", n)
	}
}
