package attach_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/attach"
	"softroce/internal/control"
	"softroce/internal/fabrictest"
	"softroce/nic"
	"softroce/verbs/verbstest"
	"softroce/wire"
)

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

const childEnv = "ATTACH_TEST_CHILD"

// In a child process, the test binary connects to the socket of each line that it reads.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		c, err := control.Dial(context.Background(), in.Text())
		fmt.Println("dialed:", err)
		if err == nil {
			c.Close()
		}
	}
}

func dial(path string) error {
	c, err := control.Dial(context.Background(), path)
	if err == nil {
		c.Close()
	}
	return err
}

func TestListenReplacesOnlyStaleSockets(t *testing.T) {
	f, g := fabrictest.New(t, fabrictest.Config{}), fabrictest.New(t, fabrictest.Config{})
	path := t.TempDir() + "/sock"
	old, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	old.Close()
	if err := dial(path); !errors.Is(err, control.ErrNoDaemon) {
		t.Fatalf("dialing a dead daemon: %v", err)
	}
	if _, err := f.Server.Listen(attach.ListenConfig{Path: path}); err != nil {
		t.Fatal(err)
	}
	if err := dial(path); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Server.Listen(attach.ListenConfig{Path: path}); !errors.Is(err, attach.ErrInUse) {
		t.Errorf("listening where another daemon does: %v", err)
	}
	if err := dial(path); err != nil {
		t.Errorf("the first daemon's socket is gone: %v", err)
	}
	f.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
	if _, err := g.Server.Listen(attach.ListenConfig{Path: path}); err != nil {
		t.Errorf("listening after the first daemon ended: %v", err)
	}
}

func TestListenErrorsNameThePath(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	dir := t.TempDir()
	file := dir + "/file"
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config attach.ListenConfig
		want   string
	}{
		{attach.ListenConfig{Path: dir + "/none/sock"}, "no such file or directory; choose a directory that you can write to, with --socket or SOFTROCE_SOCKET"},
		{attach.ListenConfig{Path: file}, "is not a socket: file already exists"},
		{attach.ListenConfig{Path: dir + "/sock", Group: "no-such-group"}, `no group "no-such-group"`},
		{attach.ListenConfig{Path: "/proc/sock"}, "cannot create the socket /proc/sock"},
		{attach.ListenConfig{Path: dir + "/" + strings.Repeat("x", 200)}, "file name too long"},
	} {
		if _, err := f.Server.Listen(c.config); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.config.Path) {
			t.Errorf("%s: %v", c.config.Path, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("a file was changed: %q, %v", b, err)
	}
	if _, err := os.Lstat(dir + "/sock"); err == nil {
		t.Error("a socket without its group was not removed")
	}
}

func TestListenSetsModeAndGroup(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	path := t.TempDir() + "/sock"
	gid := os.Getgid()
	if os.Getuid() == 0 {
		gid = 65534
	}
	if _, err := f.Server.Listen(attach.ListenConfig{Path: path, Mode: 0o640, Group: fmt.Sprint(gid)}); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&0o777 != 0o640 || int(st.Gid) != gid {
		t.Errorf("mode %o, group %d, %v", st.Mode&0o777, st.Gid, err)
	}
}

func TestNewClientFailsWithoutDescriptors(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	a := f.Open(0)
	path := f.Socket()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	try := func() string {
		t.Helper()
		io.WriteString(in, path+"\n")
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	defer cmd.Wait()
	defer in.Close()
	if got, want := try(), "dialed: <nil>\n"; got != want {
		t.Fatalf("the client printed %q, want %q", got, want)
	}

	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	// Wait until the child's connection is closed: it would free a descriptor.
	for len(f.Server.Snapshot().Clients) > 1 {
		time.Sleep(time.Millisecond)
	}
	var filler []int
	for { // takes the free numbers below the highest in use, then a few more
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		filler = append(filler, fd)
		if len(filler) == 1 {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: highest(t) + 8, Max: limit.Max}); err != nil {
				t.Fatal(err)
			}
		}
	}
	rejected := try()
	_, channelErr := a.CreateCompChannel(t.Context())
	_, queryErr := a.QueryPort(t.Context())
	for _, fd := range filler {
		unix.Close(fd)
	}
	if !strings.Contains(rejected, "no descriptors left") {
		t.Errorf("new client: %s", rejected)
	}
	if !errors.Is(channelErr, syscall.EMFILE) || queryErr != nil {
		t.Errorf("old client: %v, %v", channelErr, queryErr)
	}
	if got := try(); got != "dialed: <nil>\n" {
		t.Errorf("later: %s", got)
	}
}

// highest returns the highest descriptor in use.
func highest(t *testing.T) (max uint64) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if n, _ := strconv.ParseUint(fd.Name(), 10, 64); n > max {
			max = n
		}
	}
	return max
}

func TestSnapshotIsJSON(t *testing.T) {
	f := fabrictest.New(t, fabrictest.Config{})
	verbstest.ConnectedRC(t, f.Open(0), f.Open(1))
	c, err := control.NewClient(context.Background(), f.Connect())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text, err := c.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Clients []attach.ClientInfo
		Devices []struct{ QPs []struct{ State string } }
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatalf("%v in %.200s", err, text)
	}
	if len(s.Clients) != 3 || len(s.Devices) != 2 || len(s.Devices[0].QPs) != 1 || s.Devices[1].QPs[0].State != "RTS" {
		t.Errorf("snapshot %+v", s)
	}
}

// A capturer writes a line when it starts and one when it stops.
type capturer struct{ failing atomic.Bool }

type capturing struct{ w *os.File }

func (c *capturer) StartCapture(w *os.File, device string) (attach.Capture, error) {
	if c.failing.Load() {
		w.Close()
		return nil, syscall.ENOSPC
	}
	fmt.Fprintf(w, "start %q\n", device)
	return &capturing{w}, nil
}

func (c *capturing) Stop() error {
	fmt.Fprintln(c.w, "stop")
	return c.w.Close()
}

func (c *capturing) State() (control.CaptureState, error) {
	return control.CaptureState{Packets: 7}, nil
}

func TestCaptureEndsWithItsConnection(t *testing.T) {
	e, err := nic.NewEngine(nic.EngineConfig{})
	if err != nil {
		t.Fatal(err)
	}
	iface := wire.StaticInterface("", [6]byte{2}, 1500)
	if _, err := e.AddDevice(nic.DeviceConfig{Name: "nic0", Link: wire.NewFabric().NewLink(e), Iface: iface}); err != nil {
		t.Fatal(err)
	}
	hook := &capturer{}
	s, err := attach.NewServer(attach.Config{Engines: []*nic.Engine{e}, Capture: hook})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	defer s.Close(context.Background())
	path, err := s.Listen(attach.ListenConfig{Path: t.TempDir() + "/sock"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	lines := bufio.NewReader(r)
	expect := func(want string) {
		t.Helper()
		r.SetReadDeadline(time.Now().Add(10 * time.Second))
		if got, err := lines.ReadString('\n'); got != want+"\n" {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	c, err := control.Dial(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.StartCapture(ctx, w, "nic9"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("capture of an unknown device: %v", err)
	}
	if err := c.StartCapture(ctx, w, "nic0"); err != nil {
		t.Fatal(err)
	}
	expect(`start "nic0"`)
	if err := c.StartCapture(ctx, w, ""); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("second capture: %v", err)
	}
	if state, err := c.CaptureState(ctx); err != nil || state.Packets != 7 {
		t.Errorf("state %+v, %v", state, err)
	}
	if _, err := c.StopCapture(ctx); err != nil {
		t.Error(err)
	}
	expect("stop")
	if err := c.StartCapture(ctx, w, ""); err != nil {
		t.Fatal(err)
	}
	expect(`start ""`)
	c.Close()
	expect("stop")

	hook.failing.Store(true)
	if c, err = control.Dial(ctx, path); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.StartCapture(ctx, w, ""); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("capture that fails to start: %v", err)
	}
}
