package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/e2e/harness"
)

// shutdownLimit is well above daemon.CloseTimeout, on a busy machine too.
const shutdownLimit = 10 * time.Second

// TestDaemonStopsBesideClientsThatDoNotRead stops a daemon that has 150 clients whose sockets are
// full. It must exit cleanly.
func TestDaemonStopsBesideClientsThatDoNotRead(t *testing.T) {
	harness.NeedRoot(t, "processes of other users")
	harness.LocalPrograms.Acquire(t)
	daemon, socket := startSharedDaemon(t)
	for i := range 3 {
		startAttack(t, socket, "silence", attackerUID+i, false)
	}
	daemon.Stop(t)
}

// TestDaemonEndsWhateverHangs stops a daemon while its engine waits for the reader of a capture,
// registered memory never arrives, clients and a scraper of metrics do not read, and standard error
// is full.
func TestDaemonEndsWhateverHangs(t *testing.T) {
	harness.NeedRoot(t, "processes of other users")
	harness.LocalPrograms.Acquire(t)
	dir := harness.ShortDir(t)
	capture, log := fullPipe(t, filepath.Join(dir, "capture"), false), fullPipe(t, filepath.Join(dir, "log"), true)
	address := fmt.Sprintf("127.0.0.1:%d", harness.FreePort())
	withFullLog := func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", append([]string{"-c", `exec "$@" 2>"$0"`, log}, argv...)...)
	}
	daemon, socket := launchSharedDaemon(t, withFullLog, "--capture", capture, "--capture-blocking", "--metrics", address)
	var attackers []*attacker
	for i, name := range []string{"silence", "slow memory", "slow registration", "slow faults", "bandwidth"} {
		attackers = append(attackers, startAttack(t, socket, name, attackerUID+i, strings.HasPrefix(name, "slow")))
	}
	scraper, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer scraper.Close()
	if _, err := scraper.Write([]byte("GET /metrics HTTP/1.1\r\nHost: softroce\r\n\r\n")); err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	if err := syscall.Kill(daemon.Pid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for !exited(t, daemon.Pid()) {
		if time.Since(began) > shutdownLimit {
			t.Fatalf("the daemon did not exit within %v", shutdownLimit)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("the daemon exited after %v", time.Since(began))
	// The kernel keeps the process until page faults of FUSE files that it waits for have ended.
	for _, a := range attackers {
		a.kill()
	}
	var exit *exec.ExitError
	if err := daemon.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the daemon ended with %v, want exit status 1: the capture is incomplete", err)
	}
}

// exited reports whether a process has called exit. Its first thread is then a zombie, or has a
// pending SIGKILL because it waits for a page fault.
func exited(t *testing.T, pid int) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	_, pending, _ := strings.Cut(string(status), "\nSigPnd:\t")
	hex, _, _ := strings.Cut(pending, "\n")
	signals, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(status), "\nState:\tZ") || signals&(1<<(unix.SIGKILL-1)) != 0
}

// fullPipe creates a FIFO whose reader does not read, and fills it if full.
func fullPipe(t *testing.T, path string, full bool) string {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	mode := os.O_RDONLY
	if full {
		mode = os.O_RDWR
	}
	fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	for full && err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	return path
}
