package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/attach"
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/verbs"
)

// A slowDaemon is a proxy in front of a fabric's server. While it hangs it forwards no reply; with
// blocked set, it does not even read requests. Replies can lose their descriptors on the way, as
// they do if a process has no room for them.
type slowDaemon struct {
	client *net.UnixConn // the end for verbs.WithConn
	inner  *net.UnixConn // the proxy's end of client
	server *net.UnixConn

	mu      sync.Mutex
	resumed sync.Cond // mu; signals that hangs or blocked has changed
	hangs   bool
	blocked bool

	losesFDs atomic.Bool
	lie      atomic.Pointer[func(p *control.Packet)] // changes replies; nil: none
}

func newSlowDaemon(t *testing.T, f *fabrictest.Fabric) *slowDaemon {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &slowDaemon{client: unixConn(t, fds[0]), inner: unixConn(t, fds[1]), server: f.Connect()}
	d.resumed.L = &d.mu
	var forwarders sync.WaitGroup
	forwarders.Go(func() { d.forward(d.inner, d.server, &d.blocked) })
	forwarders.Go(func() { d.forward(d.server, d.inner, &d.hangs) })
	t.Cleanup(func() {
		d.set(false, false)
		forwarders.Wait()
		d.inner.Close()
		d.server.Close()
	})
	return d
}

// forward copies messages while *paused is false. It passes the end of the connection on.
func (d *slowDaemon) forward(from, to *net.UnixConn, paused *bool) {
	defer to.CloseWrite()
	buf := make([]byte, abi.MaxMessage)
	for {
		d.wait(paused)
		p, err := control.Read(from, buf)
		d.wait(paused)
		if err != nil {
			return
		}
		if from == d.server && d.losesFDs.Load() {
			p.CloseFDs()
		}
		if lie := d.lie.Load(); from == d.server && lie != nil {
			(*lie)(&p)
		}
		err = control.Write(to, abi.Append(nil, p.Header, p.Body), p.FDs...)
		p.CloseFDs()
		if err != nil {
			return
		}
	}
}

func (d *slowDaemon) wait(paused *bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for *paused {
		d.resumed.Wait()
	}
}

// set makes the daemon stop or resume to reply and to read.
func (d *slowDaemon) set(hangs, blocked bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hangs, d.blocked = hangs, blocked
	d.resumed.Broadcast()
}

// shortly runs f with a context that soon ends, and requires that f returns the context's error.
func shortly(t *testing.T, name string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: error %v, want %v", name, err, context.DeadlineExceeded)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("%s has not returned after its context ended", name)
	}
}

// counts returns how many objects of each kind the first NIC has.
func counts(s attach.Snapshot) string {
	d := s.Devices[0]
	return fmt.Sprintf("%d contexts, %d PDs, %d CQs, %d QPs, %d SRQs, %d MRs, %d MWs, %d DMs", len(d.Contexts),
		len(d.PDs), len(d.CQs), len(d.QPs), len(d.SRQs), len(d.MRs), len(d.MWs), len(d.DMs))
}

func TestCallsReturnWhileTheDaemonHangs(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	d := newSlowDaemon(t, f)
	c, err := verbs.Open(t.Context(), "nic0", verbs.WithConn(d.client))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	pd, err := c.AllocPD(ctx)
	noError(t, err)
	buf, err := c.AllocBuffer(4096)
	noError(t, err)
	mr, err := pd.RegMR(ctx, buf.Bytes(), verbs.AccessLocalWrite)
	noError(t, err)
	cq, err := c.CreateCQ(ctx, 4, nil)
	noError(t, err)
	srq, err := pd.CreateSRQ(ctx, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	noError(t, err)
	init := verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxRecvSGE: 1}}
	qp, err := pd.CreateQP(ctx, init)
	noError(t, err)
	noError(t, qp.ToInit(ctx, 0))
	dm, err := c.AllocDM(ctx, 4096, 3)
	noError(t, err)
	before := counts(f.Server.Snapshot())

	d.set(true, false)
	heap := make([]byte, 4096)
	for name, call := range map[string]func(context.Context) error{
		"AllocPD":           func(ctx context.Context) error { _, err := c.AllocPD(ctx); return err },
		"RegMR":             func(ctx context.Context) error { _, err := pd.RegMR(ctx, buf.Bytes(), 0); return err },
		"RegMR of the heap": func(ctx context.Context) error { _, err := pd.RegMR(ctx, heap, 0); return err },
		"CreateCQ":          func(ctx context.Context) error { _, err := c.CreateCQ(ctx, 4, nil); return err },
		"CreateCompChannel": func(ctx context.Context) error { _, err := c.CreateCompChannel(ctx); return err },
		"CreateSRQ": func(ctx context.Context) error {
			_, err := pd.CreateSRQ(ctx, verbs.SRQAttr{MaxWR: 1, MaxSGE: 1})
			return err
		},
		"CreateQP":    func(ctx context.Context) error { _, err := pd.CreateQP(ctx, init); return err },
		"AllocMW":     func(ctx context.Context) error { _, err := pd.AllocMW(ctx, verbs.MWType2); return err },
		"AllocDM":     func(ctx context.Context) error { _, err := c.AllocDM(ctx, 4096, 3); return err },
		"QueryDevice": func(ctx context.Context) error { _, err := c.QueryDevice(ctx); return err },
		"GIDs":        func(ctx context.Context) error { _, err := c.GIDs(ctx); return err },
		"QP.Query":    func(ctx context.Context) error { _, err := qp.Query(ctx); return err },
		"QP.Info":     func(ctx context.Context) error { _, err := qp.Info(ctx, verbs.AnyGID); return err },
		"QP.Modify":   func(ctx context.Context) error { return qp.ToInit(ctx, 0) },
		"SRQ.Modify":  func(ctx context.Context) error { return srq.Modify(ctx, verbs.SRQAttr{MaxWR: 9}, verbs.SRQMaskMaxWR) },
		"CQ.Resize":   func(ctx context.Context) error { return cq.Resize(ctx, 9) },
		"CQ.Wait":     func(ctx context.Context) error { return cq.Wait(ctx) },
		"DM.CopyTo":   func(ctx context.Context) error { return dm.CopyTo(ctx, 0, make([]byte, 8)) },
		"DM.CopyFrom": func(ctx context.Context) error { return dm.CopyFrom(ctx, make([]byte, 8), 0) },
		"verbs.Open": func(ctx context.Context) error {
			_, err := verbs.Open(ctx, "nic0", verbs.WithConn(newHungConn(t)))
			return err
		},
		"AsyncEvent":   func(ctx context.Context) error { _, err := c.AsyncEvent(ctx); return err },
		"an ended one": func(ctx context.Context) error { <-ctx.Done(); return pd.Close(ctx) },
	} {
		shortly(t, name, call)
	}
	// The data path does not wait for the daemon.
	if n, err := cq.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
		t.Errorf("Poll of a queue that is being resized returned %d, %v", n, err)
	}
	if err := cq.Arm(false); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Errorf("Arm of a queue that is being resized: %v", err)
	}
	noError(t, qp.PostRecv(verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 8)}}))
	if err := srq.PostRecv(verbs.RecvWR{}); err != nil && !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("PostRecv to an SRQ that is being resized: %v", err)
	}

	// The replies arrive late: what they created is destroyed, and the connection is in step.
	d.set(false, false)
	after := ""
	for wait := time.Millisecond; wait < 15*time.Second && after != before; wait *= 2 {
		time.Sleep(wait)
		after = counts(f.Server.Snapshot())
	}
	if after != before {
		t.Errorf("%s after late replies; before the daemon hung: %s", after, before)
	}
	if a, err := c.QueryDevice(ctx); err != nil || a.MaxQP == 0 {
		t.Errorf("QueryDevice returned %+v, %v", a, err)
	}
	noError(t, cq.Arm(false))
	if n := cq.CQE(); n < 9 {
		t.Errorf("the queue holds %d completions after Resize to 9", n)
	}
	noError(t, srq.PostRecv(make([]verbs.RecvWR, 8)...))
	noError(t, c.Close())
}

// newHungConn returns a socket that nothing reads from.
func newHungConn(t *testing.T) *net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	return unixConn(t, fds[0])
}

// unixConn takes ownership of a socket.
func unixConn(t *testing.T, fd int) *net.UnixConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "socketpair")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn)
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A Close whose context ends still closes the object when the daemon replies; a second one waits
// for the first, since the daemon may have given the handle to another object by then.
func TestCloseCompletesAfterItsContextEnded(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	d := newSlowDaemon(t, f)
	c, err := verbs.Open(t.Context(), "nic0", verbs.WithConn(d.client))
	noError(t, err)
	pd, err := c.AllocPD(t.Context())
	noError(t, err)
	d.set(true, false)
	shortly(t, "PD.Close", pd.Close)
	shortly(t, "a second PD.Close", pd.Close)
	second := make(chan error, 1)
	go func() { second <- pd.Close(t.Context()) }()
	time.Sleep(time.Millisecond)
	d.set(false, false)
	if err := <-second; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("the second Close returned %v, want %v", err, verbs.ErrClosed)
	}
	noError(t, c.Close())
}

// A daemon that does not read its socket blocks the sending of requests, too.
func TestCallsReturnWhileTheSocketIsFull(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	d := newSlowDaemon(t, f)
	c, err := verbs.Open(t.Context(), "nic0", verbs.WithConn(d.client))
	noError(t, err)
	d.set(true, true)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var calls sync.WaitGroup
	for range 1000 {
		calls.Go(func() {
			if _, err := c.QueryDevice(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
			}
		})
	}
	calls.Wait()
	d.set(false, false)
	_, err = c.QueryDevice(t.Context())
	noError(t, err)
	noError(t, c.Close())
}

func TestShutdownReturnsWhileTheDaemonHangs(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	d := newSlowDaemon(t, f)
	c, err := verbs.Open(t.Context(), "nic0", verbs.WithConn(d.client))
	noError(t, err)
	pd, err := c.AllocPD(t.Context())
	noError(t, err)
	_, err = pd.RegMR(t.Context(), make([]byte, 4096), verbs.AccessLocalWrite)
	noError(t, err)
	d.set(true, true)
	shortly(t, "Shutdown", c.Shutdown)
	if _, err := c.AllocPD(t.Context()); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("AllocPD after Shutdown: error %v, want %v", err, verbs.ErrClosed)
	}
}
