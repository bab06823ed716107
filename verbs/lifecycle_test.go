package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"softroce/attach"
	"softroce/internal/fabrictest"
	"softroce/verbs"
	"softroce/verbs/verbstest"
)

func TestClientInAnotherProcess(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	y := verbstest.EndpointConfig{BufSize: 1 << 20}.New(t, f.Open(1))
	p := start(t, "once", f.Socket(), nil)
	p.join(t, y)
	if got := p.line(t); got != "mapped: false" {
		t.Fatal(got)
	}
	if got := string(y.Buf[:22]); got != "from the other process" {
		t.Errorf("received %q", got)
	}
}

func TestClientOfAnotherUserNeedsSocketPermission(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("left out: only root can start a process of another user")
	}
	f := fabrictest.New(t, fabrictest.Config{})
	y := verbstest.EndpointConfig{BufSize: 1 << 20}.New(t, f.Open(1))

	listen := listenFor(t, f)
	closed, open := listen(0o660), listen(0o666)
	if got := start(t, "once", closed, otherUser).line(t); !strings.Contains(got, "permission denied") {
		t.Errorf("a user without access to the socket: %s", got)
	}
	// The daemon lacks the right to access a process of another user: the client passes
	// /proc/self/mem.
	p := start(t, "once", open, otherUser)
	p.join(t, y)
	if got := p.line(t); got != "mapped: false" {
		t.Fatal(got)
	}
	if got := string(y.Buf[:22]); got != "from the other process" {
		t.Errorf("received %q", got)
	}
}

// openResources counts the descriptors and mappings of this process, which is the daemon.
func openResources(t *testing.T) (fds, maps int) {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	m, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(d), bytes.Count(m, []byte("/memfd:"))
}

func TestKilledClientLeavesNoResources(t *testing.T) {
	for _, what := range []string{"mapped", "process", "device"} {
		t.Run(what, func(t *testing.T) {
			f := fabrictest.New(t, fabrictest.Config{})
			b := f.Open(1)
			socket := f.Socket()
			y := verbstest.EndpointConfig{BufSize: 1 << 20}.New(t, b)
			bystanderX, bystanderY := verbstest.ConnectedRC(t, f.Open(0), b)
			fds, maps := openResources(t)
			before := f.Server.Snapshot()

			p := start(t, what, socket, nil)
			p.join(t, y)
			if got := p.line(t); got != "flowing" {
				t.Fatal(got)
			}
			if err := p.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			p.Wait()

			var after attach.Snapshot
			var nowFDs, nowMaps int
			for wait := time.Millisecond; wait < 15*time.Second; wait *= 2 {
				after = f.Server.Snapshot()
				nowFDs, nowMaps = openResources(t)
				if len(after.Clients) == len(before.Clients) && nowFDs <= fds && nowMaps == maps {
					break
				}
				time.Sleep(wait)
			}
			if len(after.Clients) != len(before.Clients) || nowFDs > fds || nowMaps != maps {
				t.Errorf("%d clients, %d descriptors, %d mappings; before there were %d, %d, %d",
					len(after.Clients), nowFDs, nowMaps, len(before.Clients), fds, maps)
			}
			for i, d := range after.Devices {
				was := before.Devices[i]
				if len(d.Contexts) != len(was.Contexts) || len(d.QPs) != len(was.QPs) || len(d.CQs) != len(was.CQs) || len(d.MRs) != len(was.MRs) || len(d.DMs) != 0 {
					t.Errorf("%s: %d contexts, %d QPs, %d CQs, %d MRs, %d DMs are left", d.Name, len(d.Contexts), len(d.QPs), len(d.CQs), len(d.MRs), len(d.DMs))
				}
			}
			operations(t, bystanderX, bystanderY, 10000) // the connection of other clients still works
		})
	}
}

func TestDaemonShutdownEndsEveryWait(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	a, b := f.Open(0), f.Open(1)
	x, y := verbstest.ConnectedRC(t, a, b)
	ch, err := a.CreateCompChannel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waits := map[string]func() error{
		"CQ.Wait":              func() error { return x.CQ.Wait(within(t)) },
		"another CQ.Wait":      func() error { return x.CQ.Wait(within(t)) },
		"CompChannel.GetEvent": func() error { _, err := ch.GetEvent(within(t)); return err },
		"polling": func() error {
			for {
				if _, err := y.CQ.Poll(make([]verbs.WC, 1)); err != nil {
					return err
				}
				runtime.Gosched()
			}
		},
		"asynchronous events": func() error {
			if e, err := a.AsyncEvent(within(t)); err != nil || e.EventType != verbs.EventDeviceFatal {
				return fmt.Errorf("event %v, %w", e.EventType, err)
			}
			_, err := a.AsyncEvent(within(t))
			return err
		},
	}
	ended := make(chan error)
	for name, wait := range waits {
		go func() {
			if err := wait(); !errors.Is(err, verbs.ErrDeviceFatal) {
				ended <- fmt.Errorf("%s: %w", name, err)
				return
			}
			ended <- nil
		}()
	}
	time.Sleep(20 * time.Millisecond)
	f.Close()
	for range waits {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := a.Err(); !errors.Is(err, verbs.ErrDeviceFatal) || !strings.Contains(err.Error(), "the daemon is shutting down") {
		t.Errorf("reason %v, want that the daemon is shutting down", err)
	}
	if err := x.PostSend(verbs.SendWR{Opcode: verbs.WRSend}); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("PostSend: %v", err)
	}
	if _, err := a.AllocPD(t.Context()); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("AllocPD: %v", err)
	}
	if err := errors.Join(x.QP.Close(t.Context()), x.CQ.Close(t.Context()), x.MR.Close(t.Context()), x.PD.Close(t.Context()), ch.Close(t.Context())); err != nil {
		t.Errorf("closing objects: %v", err)
	}
}

func TestKilledDaemonReturnsErrors(t *testing.T) {
	socket := t.TempDir() + "/sock"
	p := start(t, "daemon", socket, nil)
	if got := p.line(t); got != "listening" {
		t.Fatal(got)
	}
	c, err := verbs.Open(within(t), "nic0", verbs.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	cq, err := c.CreateCQ(t.Context(), 16, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- cq.Wait(within(t)) }()
	time.Sleep(10 * time.Millisecond)
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("Wait: %v", err)
	}
	if e, err := c.AsyncEvent(within(t)); err != nil || e.EventType != verbs.EventDeviceFatal {
		t.Errorf("event %v, %v", e.EventType, err)
	}
	if _, err := c.AllocPD(t.Context()); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("AllocPD: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	p.Wait() // the kernel may close the socket last of all its descriptors
	if _, err := verbs.Open(within(t), "", verbs.WithSocket(socket)); !errors.Is(err, verbs.ErrNoDaemon) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("opening a NIC after the end of the daemon: %v", err)
	}
}

func TestContextCloseEndsEveryCall(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	a, b := f.Open(0), f.Open(1)
	x, y := verbstest.ConnectedRC(t, a, b)
	started := make(chan struct{}, 3)
	ended := make(chan error)
	for _, use := range []func() error{
		func() error { started <- struct{}{}; return x.CQ.Wait(within(t)) },
		func() error { started <- struct{}{}; _, err := a.AsyncEvent(within(t)); return err },
		func() error {
			started <- struct{}{}
			for {
				err := x.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: x.SGE(0, 100), RemoteAddr: y.MR.Addr(), RKey: y.MR.RKey()})
				if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
					return err
				}
			}
		},
	} {
		go func() { ended <- use() }()
	}
	for range 3 {
		<-started
	}
	time.Sleep(5 * time.Millisecond)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-ended; !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	if err := a.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closing twice: %v", err)
	}
}

func TestConcurrentUseOfAContext(t *testing.T) {
	a, b := verbstest.Pair(t)
	ended := make(chan error)
	const n = 8
	for i := range n {
		go func() {
			ended <- func() error {
				pd, err := a.AllocPD(t.Context())
				if err != nil {
					return err
				}
				for range 5 {
					buf, err := a.AllocBuffer(1 << 16)
					if err != nil {
						return err
					}
					mr, err := pd.RegMR(t.Context(), buf.Bytes(), verbs.AccessLocalWrite)
					if err != nil {
						return err
					}
					cq, err := a.CreateCQ(t.Context(), 16, nil)
					if err != nil {
						return err
					}
					qp, err := pd.CreateQP(t.Context(), verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
					if err != nil {
						return err
					}
					if err := errors.Join(qp.Close(t.Context()), cq.Close(t.Context()), mr.Close(t.Context()), buf.Close()); err != nil {
						return fmt.Errorf("goroutine %d: %w", i, err)
					}
				}
				return pd.Close(t.Context())
			}()
		}()
	}
	x, y := verbstest.ConnectedRC(t, a, b)
	operations(t, x, y, 4096)
	for range n {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
