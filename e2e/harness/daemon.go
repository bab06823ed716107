package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"softroce/verbs"
)

// StartLimit is how long a daemon may take to start, and for what depends on it to be there.
const StartLimit = 10 * time.Second

// A Daemon is a running process of softroce daemon.
type Daemon struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan error
}

// StartDaemon runs softroce daemon until the test ends, when it must exit cleanly. The function in
// prepares the command, for example inside a namespace; nil runs it as it is.
func StartDaemon(t *testing.T, in func(ctx context.Context, argv ...string) *exec.Cmd, args ...string) *Daemon {
	t.Helper()
	d := LaunchDaemon(t, in, args...)
	t.Cleanup(func() {
		d.Stop(t)
		if t.Failed() {
			t.Logf("daemon:\n%s", &d.output)
		}
	})
	return d
}

// LaunchDaemon is StartDaemon for a test that ends the daemon itself. A daemon that still runs at
// the end of the test is killed.
func LaunchDaemon(t *testing.T, in func(ctx context.Context, argv ...string) *exec.Cmd, args ...string) *Daemon {
	t.Helper()
	if in == nil {
		in = func(ctx context.Context, argv ...string) *exec.Cmd {
			return exec.CommandContext(ctx, argv[0], argv[1:]...)
		}
	}
	d := &Daemon{ended: make(chan error, 1)}
	d.cmd = in(context.Background(), append([]string{Binary(t), "daemon"}, args...)...)
	d.cmd.Stdout, d.cmd.Stderr = &d.output, &d.output
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { d.ended <- d.cmd.Wait() }()
	t.Cleanup(func() { d.cmd.Process.Kill() })
	return d
}

// Pid returns the daemon's process ID.
func (d *Daemon) Pid() int { return d.cmd.Process.Pid }

// Kill sends SIGKILL.
func (d *Daemon) Kill() error { return d.cmd.Process.Kill() }

// Wait waits for the end of a daemon that was killed.
func (d *Daemon) Wait() error { return <-d.ended }

// Stop sends SIGTERM and waits for a clean exit. It may be called more than once.
func (d *Daemon) Stop(t *testing.T) {
	t.Helper()
	d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-d.ended:
		if err != nil {
			t.Errorf("daemon on SIGTERM: %v", err)
		}
	case <-time.After(10 * time.Second):
		d.cmd.Process.Signal(syscall.SIGQUIT) // prints the goroutines
		t.Errorf("daemon did not end on SIGTERM: %v", <-d.ended)
	}
	d.ended <- nil
}

// Output returns what the daemon has printed. It must have ended.
func (d *Daemon) Output() string { return d.output.String() }

// OpenNIC opens the daemon's first NIC as soon as it exists.
func OpenNIC(t *testing.T, d *Daemon, socket string) *verbs.Context {
	t.Helper()
	for limit := time.Now().Add(StartLimit); ; time.Sleep(10 * time.Millisecond) {
		c, err := verbs.Open(t.Context(), "", verbs.WithSocket(socket))
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return c
		}
		if time.Now().After(limit) || !errors.Is(err, verbs.ErrNoDaemon) || len(d.ended) > 0 {
			t.Fatalf("no NIC: %v", err)
		}
	}
}

// DaemonIn starts a daemon in a namespace and returns its socket when it accepts clients.
func DaemonIn(t *testing.T, namespace string, args ...string) (socket string) {
	t.Helper()
	socket = filepath.Join(ShortDir(t), "s")
	d := StartDaemon(t, InNamespace(namespace), append([]string{"--socket", socket}, args...)...)
	OpenNIC(t, d, socket).Close()
	return socket
}

// CountObjects returns how many objects of a kind, as softroce show names it, the daemon holds.
func CountObjects(t *testing.T, socket, kind string) int {
	t.Helper()
	out, err := exec.Command(Binary(t), "--socket", socket, "show", kind, "--json").Output()
	if err != nil {
		t.Fatalf("show %s: %v", kind, err)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("show %s: %v in %s", kind, err, out)
	}
	return len(list)
}
