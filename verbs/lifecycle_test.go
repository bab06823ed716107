package verbs_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"softroce/attach"
	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/verbs"
	"softroce/verbs/verbstest"
	"softroce/wire"
)

// childEnv makes the test binary run child instead of the tests.
const childEnv = "VERBS_TEST_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		if err := child(what); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is the other side of a test in a process of its own, on nic0 of the daemon at
// $SOFTROCE_SOCKET. Both sides print a line: QPN, PSN, GID, address, R_Key. The child then writes
// to the memory of its peer, once or until it is killed.
func child(what string) error {
	if what == "daemon" {
		return daemon()
	}
	ctx := context.Background()
	c, err := verbs.Open(ctx, "nic0")
	if err != nil {
		return err
	}
	pd, err := c.AllocPD(ctx)
	if err != nil {
		return err
	}
	mem := make([]byte, 1<<20)
	if what == "mapped" {
		buf, err := c.AllocBuffer(1 << 20)
		if err != nil {
			return err
		}
		mem = buf.Bytes()
	}
	mr, err := pd.RegMR(ctx, mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if what == "device" {
		mr, err = deviceMR(c, pd, len(mem))
	}
	if err != nil {
		return err
	}
	cq, err := c.CreateCQ(ctx, 64, nil)
	if err != nil {
		return err
	}
	qp, err := pd.CreateQP(ctx, verbs.QPInitAttr{QPType: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 32, MaxRecvWR: 1}})
	if err != nil {
		return err
	}
	info, err := qp.Info(ctx, verbs.AnyGID)
	if err != nil {
		return err
	}
	writeInfo(os.Stdout, info, mr.Addr(), mr.RKey())
	peer, addr, rkey, err := readInfo(bufio.NewReader(os.Stdin))
	if err != nil {
		return err
	}
	if err := qp.Connect(ctx, peer, verbs.DefaultConnectOptions()); err != nil {
		return err
	}
	copy(mem, "from the other process")
	if what == "device" {
		mem = mem[:mr.Length()]
	}
	write := func() error {
		return qp.PostSend(verbs.SendWR{Opcode: verbs.WRRDMAWrite, SendFlags: verbs.SendSignaled,
			SGList: []verbs.SGE{mr.SGE(0, len(mem))}, RemoteAddr: addr, RKey: rkey})
	}
	if what == "once" {
		if err := write(); err != nil {
			return err
		}
	}
	wc := make([]verbs.WC, 32)
	for done := 0; ; {
		if what != "once" {
			for write() == nil {
			}
		}
		if err := cq.Wait(ctx); err != nil {
			return err
		}
		n, err := cq.Poll(wc)
		if err != nil {
			return err
		}
		for i := range n {
			if err := wc[i].Err(); err != nil {
				return err
			}
		}
		if done += n; what == "once" {
			fmt.Println("mapped:", mr.Mapped())
			return c.Close()
		}
		if done > 10 && done-n <= 10 {
			fmt.Println("flowing")
		}
	}
}

// deviceMR registers all the device memory that c can allocate, and a DMA buffer.
func deviceMR(c *verbs.Context, pd *verbs.PD, most int) (*verbs.MR, error) {
	f, err := sharedFile(4096)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := pd.RegDMABuf(context.Background(), f, 0, 4096, 0, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	a, err := c.QueryDevice(context.Background())
	if err != nil {
		return nil, err
	}
	dm, err := c.AllocDM(context.Background(), min(a.MaxDMSize, uint64(most)), 3)
	if err != nil {
		return nil, err
	}
	return pd.RegDM(context.Background(), dm, 0, dm.Length(), verbs.AccessZeroBased)
}

// daemon serves a NIC without a link peer at $SOFTROCE_SOCKET until it is killed.
func daemon() error {
	e, err := nic.NewEngine(nic.EngineConfig{})
	if err != nil {
		return err
	}
	iface := wire.StaticInterface("", [6]byte{2}, verbstest.MTU)
	if _, err := e.AddDevice(nic.DeviceConfig{Name: "nic0", Link: wire.NewFabric().NewLink(e), Iface: iface}); err != nil {
		return err
	}
	s, err := attach.NewServer(attach.Config{Engines: []*nic.Engine{e}})
	if err != nil {
		return err
	}
	if _, err := s.Listen(attach.ListenConfig{}); err != nil {
		return err
	}
	fmt.Println("listening")
	return e.Run(context.Background())
}

func writeInfo(w io.Writer, i verbs.Info, addr uint64, rkey uint32) {
	fmt.Fprintf(w, "%d %d %x %d %d\n", i.QPN, i.PSN, i.GID[:], addr, rkey)
}

func readInfo(r *bufio.Reader) (i verbs.Info, addr uint64, rkey uint32, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return i, 0, 0, err
	}
	var gid []byte
	if _, err = fmt.Sscanf(line, "%d %d %x %d %d", &i.QPN, &i.PSN, &gid, &addr, &rkey); err != nil {
		return i, 0, 0, fmt.Errorf("%q: %w", line, err)
	}
	copy(i.GID[:], gid)
	return i, addr, rkey, nil
}

// A process is a running child.
type process struct {
	*exec.Cmd
	out *bufio.Reader
	in  io.Writer
}

func start(t *testing.T, what, socket string, attr *syscall.SysProcAttr) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if attr != nil { // the other user may not look into the directory of the test binary
		exe = publicCopy(t, exe)
	}
	p := &process{Cmd: exec.Command(exe)}
	p.Env = append(os.Environ(), childEnv+"="+what, "SOFTROCE_SOCKET="+socket)
	p.Dir = "/"
	p.SysProcAttr = attr
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Process.Kill()
		p.Wait()
	})
	p.out = bufio.NewReader(out)
	return p
}

func publicCopy(t *testing.T, exe string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "verbs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b, err := os.ReadFile(exe)
	if err == nil {
		err = errors.Join(os.WriteFile(dir+"/test", b, 0o755), os.Chmod(dir, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir + "/test"
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("child: %q, %v", s, err)
	}
	return strings.TrimSpace(s)
}

// join connects an endpoint of this process with one of the child.
func (p *process) join(t *testing.T, y *verbstest.Endpoint) {
	t.Helper()
	peer, _, _, err := readInfo(p.out)
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	if err := y.Connect(within(t), peer, verbs.DefaultConnectOptions()); err != nil {
		t.Fatal(err)
	}
	writeInfo(p.in, y.Info, y.MR.Addr(), y.MR.RKey())
}

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
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}
	f := fabrictest.New(t, fabrictest.Config{})
	y := verbstest.EndpointConfig{BufSize: 1 << 20}.New(t, f.Open(1))

	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	listen := func(name string, mode os.FileMode) string {
		path, err := f.Server.Listen(attach.ListenConfig{Path: dir + "/" + name, Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	closed, open := listen("closed", 0o660), listen("open", 0o666)
	if got := start(t, "once", closed, nobody).line(t); !strings.Contains(got, "permission denied") {
		t.Errorf("a user without access to the socket: %s", got)
	}
	// The daemon lacks the right to access a process of another user: the client passes
	// /proc/self/mem.
	p := start(t, "once", open, nobody)
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

func TestPostAndPollDoNotAllocate(t *testing.T) {
	for _, process := range []bool{false, true} {
		for _, size := range []int{8, 4 << 10, 64 << 10, 1 << 20} {
			t.Run(fmt.Sprintf("process=%v/%d", process, size), func(t *testing.T) { testNoAllocations(t, process, size) })
		}
	}
}

// testNoAllocations exchanges messages of one size, in memory of this process or in memory that the
// daemon maps.
func testNoAllocations(t *testing.T, process bool, size int) {
	a, b := verbstest.Pair(t, verbstest.WithSpin(time.Second))
	x, y := verbstest.EndpointConfig{BufSize: size, Process: process}.Connect(t, a, b)
	sge, peer := x.SGE(0, size), y.SGE(0, size)
	wc := make([]verbs.WC, 16)
	poll := func(q *verbs.CQ) {
		for {
			n, err := q.Poll(wc)
			if n > 0 {
				err = wc[0].Err()
			}
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				return
			}
			runtime.Gosched()
		}
	}
	send := verbs.SendWR{WRID: 2, Opcode: verbs.WRSend, SendFlags: verbs.SendSignaled, SGList: sge}
	write, read := send, send
	write.Opcode, write.RemoteAddr, write.RKey = verbs.WRRDMAWrite, y.MR.Addr(), y.MR.RKey()
	read.Opcode, read.RemoteAddr, read.RKey = verbs.WRRDMARead, y.MR.Addr(), y.MR.RKey()
	receive := verbs.RecvWR{WRID: 1, SGList: peer}
	round := func() {
		y.PostRecv(receive)
		for _, wr := range []*verbs.SendWR{&send, &write, &read} {
			x.PostSend(*wr)
			poll(x.CQ)
		}
		poll(y.CQ)
	}
	rounds := 300
	if size > 64<<10 {
		rounds = 50
	}
	for range rounds {
		round() // buffers grow to their size
	}
	// testing.AllocsPerRun would leave one processor to the test and the engine.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		round()
	}
	runtime.ReadMemStats(&after)
	if n := (after.Mallocs - before.Mallocs) / uint64(rounds); n != 0 {
		t.Errorf("%d allocations for three messages", n)
	}
}
