package verbs_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"softroce/attach"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/internal/ib"
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
	switch what {
	case "daemon":
		return daemon()
	case "operator":
		return operator()
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

// operator asks for what only operators may do, and prints how many of the requests gave EACCES.
func operator() error {
	ctx := context.Background()
	c, err := control.Dial(ctx, os.Getenv("SOFTROCE_SOCKET"))
	if err != nil {
		return err
	}
	defer c.Close()
	out, err := os.CreateTemp("", "capture")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	refused := 0
	for _, err := range []error{
		c.SetLink(ctx, "nic0", false), c.SetPKeys(ctx, "nic0", []uint16{0x8001}), c.RemoveFault(ctx, 1), c.FireEvent(ctx, "nic0", ib.EventPortErr, 0), addFaults(ctx, c, "drop"), c.SetCounter(ctx, "nic0", "retransmitted", 1), c.SetCongestion(ctx, "nic0", "rp_ai_rate", "5"), c.StartCapture(ctx, out, ""),
	} {
		if errors.Is(err, syscall.EACCES) {
			refused++
		}
	}
	fmt.Println("refused:", refused)
	return nil
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

// otherUser makes a child of root run as another user.
var otherUser = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}

// listenFor returns a function that makes the daemon listen on a further socket with a mode, in a
// directory that every user can enter.
func listenFor(t *testing.T, f *fabrictest.Fabric) func(os.FileMode) (path string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return func(mode os.FileMode) string {
		path, err := f.Server.Listen(attach.ListenConfig{Path: fmt.Sprintf("%s/%o", dir, mode), Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
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
