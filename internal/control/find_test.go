package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"softroce/internal/abi"
)

// TestMain lets the test binary print the socket of a daemon, as another user.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == listenArg {
		socket, err := ListenSocket()
		if err != nil {
			socket = err.Error()
		}
		fmt.Print(socket)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const listenArg = "listen-socket"

// A daemon that a user starts without a name for its socket is found by that user's commands.
func TestDaemonOfUserListensOnItsOwnSocket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("left out: needs root to run as another user")
	}
	if got, err := ListenSocket(); got != DefaultSocket || err != nil {
		t.Errorf("root: %q, %v", got, err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	binary := filepath.Join(dir, "test")
	if err := os.WriteFile(binary, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	const other = 65534
	cmd := exec.Command(binary, listenArg)
	cmd.Env = []string{"TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
	out, err := cmd.Output()
	if want := fmt.Sprintf("%s/softroce-%d/socket", dir, other); string(out) != want || err != nil {
		t.Errorf("another user: %q, %v; want %q", out, err, want)
	}
}

// shortDir is a directory whose path is short enough for sockets in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "softroce-find-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serve listens on a socket as a daemon that only says hello.
func serve(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			defer conn.Close()
			p, err := Read(conn, make([]byte, abi.MaxMessage))
			if err == nil {
				Write(conn, abi.Message(nil, abi.Header{Version: abi.Version, Op: p.Header.Op, Tag: p.Header.Tag}, abi.HelloReply{}))
			}
		}
	}()
}

func needNoDefault(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(DefaultSocket); err == nil {
		t.Skip("a daemon runs on this machine")
	}
}

// userEnvironment gives the test a TMPDIR and an XDG_RUNTIME_DIR of its own, and no named socket.
func userEnvironment(t *testing.T) (tmp, session string) {
	t.Helper()
	tmp, session = shortDir(t), shortDir(t)
	t.Setenv("TMPDIR", tmp)
	t.Setenv("XDG_RUNTIME_DIR", session)
	t.Setenv(SocketEnv, "")
	return tmp, session
}

func TestUserSocketFallsBackWhenRuntimeDirIsUnusable(t *testing.T) {
	good := shortDir(t)
	long := filepath.Join(good, strings.Repeat("x", 100))
	for _, dir := range []string{long, filepath.Join(good, "session"), filepath.Join(good, "open", "softroce")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(good)
	t.Setenv("TMPDIR", good)
	fallback := filepath.Join(good, userDirName())
	for _, c := range []struct{ session, want string }{
		{filepath.Join(good, "session"), filepath.Join(good, "session", "softroce")},
		{"", fallback}, {"session", fallback}, {filepath.Join(good, "none"), fallback}, {long, fallback},
		{filepath.Join(good, "open"), fallback}, // accessible to other users
	} {
		t.Setenv("XDG_RUNTIME_DIR", c.session)
		if got, _, err := UserSocket(); err != nil || got != filepath.Join(c.want, userSocket) {
			t.Errorf("XDG_RUNTIME_DIR=%q: %q, %v, want %q", c.session, got, err, c.want)
		}
	}
}

// The usual directory is not this user's alone. So all who look use the next one.
func TestUserSocketPassesOverTakenDirectory(t *testing.T) {
	needNoDefault(t)
	tmp, _ := userEnvironment(t)
	t.Setenv("XDG_RUNTIME_DIR", "")
	usual := filepath.Join(tmp, userDirName())
	if err := os.Mkdir(usual, 0o755); err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(usual+".1", userSocket)
	for range 2 {
		if got, taken, err := UserSocket(); got != want || taken != usual || err != nil {
			t.Fatalf("%q, taken %q, %v; want %q", got, taken, err, want)
		}
	}
	serve(t, want)
	// A daemon that runs is found even if the usual directory is free again.
	if err := os.Remove(usual); err != nil {
		t.Fatal(err)
	}
	f, err := Find(t.Context(), "")
	if err != nil || f.Socket != want {
		t.Fatalf("%+v, %v; want the daemon on %s", f, err, want)
	}
	f.Close()
}

func TestFindLooksInOnePlaceAfterTheOther(t *testing.T) {
	needNoDefault(t)
	tmp, session := userEnvironment(t)
	dir := filepath.Join(session, "softroce")
	if _, _, err := UserSocket(); err != nil {
		t.Fatal(err)
	}
	var none *NotFoundError
	_, err := Find(t.Context(), "")
	first := []string{DefaultSocket, filepath.Join(dir, userSocket)}
	if !errors.As(err, &none) || !errors.Is(err, ErrNoDaemon) || !slices.Equal(none.Tried, first) {
		t.Fatalf("without a daemon: %v", err)
	}
	for _, d := range []string{filepath.Join(tmp, userDirName()), dir} { // the later one comes first
		want := filepath.Join(d, userSocket)
		serve(t, want)
		f, err := Find(t.Context(), "")
		if err != nil || f.Socket != want {
			t.Fatalf("%+v, %v; want the daemon on %s", f, err, want)
		}
		f.Close()
	}
	named := filepath.Join(tmp, "named")
	if _, err := Find(t.Context(), named); !errors.Is(err, ErrNoDaemon) || errors.As(err, &none) || !strings.Contains(err.Error(), named) {
		t.Errorf("a named socket without a daemon: %v", err)
	}
	serve(t, named)
	t.Setenv(SocketEnv, named)
	f, err := Find(t.Context(), "")
	if err != nil || f.Socket != named {
		t.Fatalf("%+v, %v; want the daemon on %s", f, err, named)
	}
	f.Close()
}

// A daemon exits when its last client disconnects. A client that connects at that moment is
// accepted and disconnected.
func TestFindWaitsForClosingDaemon(t *testing.T) {
	dir := shortDir(t)
	for _, c := range []struct {
		hangsUp int
		want    error
	}{{3, ErrNoDaemon}, {closingRetries, ErrGone}} {
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer l.Close() // removes the socket
			for range c.hangsUp {
				if conn, err := l.Accept(); err == nil {
					conn.Close()
				}
			}
		}()
		if _, err := Find(context.Background(), filepath.Join(dir, "s")); !errors.Is(err, c.want) {
			t.Errorf("after %d connections: %v, want %v", c.hangsUp, err, c.want)
		}
		l.Close()
	}
}

func TestNotFoundErrorSaysWhatDenies(t *testing.T) {
	e := &NotFoundError{Tried: []string{"/tmp/a", "/tmp/b"}, Denied: []string{DefaultSocket}}
	want := "no softroce daemon on /tmp/a or /tmp/b, and the one on /run/softroce/softroce.sock denies access to this user"
	if e.Error() != want || !errors.Is(e, ErrNoDaemon) {
		t.Errorf("%q, want %q", e.Error(), want)
	}
}

func TestOthersNamesDaemonsThatRun(t *testing.T) {
	dir := shortDir(t)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	serve(t, a)
	serve(t, b)
	plain, err := net.Listen("unix", filepath.Join(dir, "stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	var here []string
	for _, s := range Others(b) {
		if strings.HasPrefix(s, dir) {
			here = append(here, s)
		}
	}
	if !slices.Equal(here, []string{a}) {
		t.Errorf("%q, want %q", here, a)
	}
}

func TestListeningReadsTheTableOfTheKernel(t *testing.T) {
	const heading = "Num       RefCount Protocol Flags    Type St Inode Path\n"
	row := func(flags, kind, inode, path string) string {
		return fmt.Sprintf("00000000d81c7c29: 00000002 00000000 %s %s 01 %5s %s\n", flags, kind, inode, path)
	}
	table := heading + row("00010000", "0005", "17", "/tmp/softroce 1/socket") + row("00010000", "0005", "2937941", "/run/udev/control") +
		row("00000000", "0005", "18", "/tmp/softroce-2/socket") + row("00010000", "0001", "19", "/tmp/softroce-3/socket") +
		row("00010000", "0005", "20", "softroce.sock") + row("00010000", "0005", "21", "/tmp/softroce\x1b[2J") + "00000000d81c7c29: 00000003\n"
	if got := listening(table); !slices.Equal(got, []string{"/tmp/softroce 1/socket"}) {
		t.Errorf("%q", got)
	}
}

// Another user's directory is not used, whatever is in it.
func TestFindIgnoresDirectoryOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("left out: only root can create directories of another user")
	}
	tmp, _ := userEnvironment(t)
	dir := filepath.Join(tmp, userDirName())
	serve(t, filepath.Join(dir, userSocket))
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if f, err := Find(t.Context(), ""); err == nil {
		f.Close()
		if f.Socket != DefaultSocket {
			t.Errorf("used %s", f.Socket)
		}
	} else if !errors.Is(err, ErrNoDaemon) {
		t.Error(err)
	}
	if _, taken, err := UserSocket(); err != nil || taken != "" { // XDG_RUNTIME_DIR comes first
		t.Errorf("taken %q, %v", taken, err)
	}
}
