package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softroce/internal/control"
)

func TestSharedDirFallsBackWhenRuntimeDirIsUnusable(t *testing.T) {
	good, err := os.MkdirTemp("/tmp", "softroce-run-") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(good) })
	long := filepath.Join(good, strings.Repeat("x", 100))
	for _, dir := range []string{long, filepath.Join(good, "session"), filepath.Join(good, "open", "softroce")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(good)
	t.Setenv("TMPDIR", good)
	fallback := filepath.Join(good, sharedName())
	for _, c := range []struct{ session, want string }{
		{filepath.Join(good, "session"), filepath.Join(good, "session", "softroce")},
		{"", fallback}, {"session", fallback}, {filepath.Join(good, "none"), fallback}, {long, fallback},
		{filepath.Join(good, "open"), fallback}, // accessible to other users
	} {
		t.Setenv("XDG_RUNTIME_DIR", c.session)
		if got, err := sharedDir(); err != nil || got != c.want {
			t.Errorf("XDG_RUNTIME_DIR=%q: %q, %v, want %q", c.session, got, err, c.want)
		}
	}
}

func TestCrossProcessPathTranslatesDescriptors(t *testing.T) {
	own := fmt.Sprintf("/proc/%d/fd/", os.Getpid())
	for path, want := range map[string]string{
		"/dev/fd/63": own + "63", "/proc/self/fd/5": own + "5", "/proc/thread-self/fd/5": own + "5", "/dev/stdout": own + "1", "/dev/stdin": own + "0",
		"/dev/stdoutx": "/dev/stdoutx", "/dev/fd/": "/dev/fd/", "/tmp/dev/fd/3": "/tmp/dev/fd/3", "/dev/null": "/dev/null",
	} {
		if got := crossProcessPath(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// A daemon exits when its last client disconnects. A client that connects at that moment is
// accepted and disconnected.
func TestDialWaitsForClosingDaemon(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "softroce-run-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, c := range []struct {
		hangsUp int
		want    error
	}{{3, control.ErrNoDaemon}, {closingRetries, control.ErrGone}} {
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
		if _, err := dial(t.Context(), filepath.Join(dir, "s")); !errors.Is(err, c.want) {
			t.Errorf("after %d connections: %v, want %v", c.hangsUp, err, c.want)
		}
		l.Close()
	}
}

func TestStartIsCancelledWhileDaemonIsNotReady(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	o := Options{Stderr: io.Discard}
	if _, err := o.start(ctx, filepath.Join(t.TempDir(), "s"), ""); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
