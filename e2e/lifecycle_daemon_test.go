package e2e

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"softroce/e2e/harness"
	"softroce/verbs"
)

func TestDaemonStopsCleanlyAndNotifiesClients(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	daemon := harness.StartDaemon(t, nil, "--socket", socket)
	nic := harness.OpenNIC(t, daemon, socket)
	pd, err := nic.AllocPD(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	daemon.Stop(t)

	ctx, cancel := context.WithTimeout(t.Context(), harness.StartLimit)
	defer cancel()
	if e, err := nic.AsyncEvent(ctx); err != nil || e.EventType != verbs.EventDeviceFatal {
		t.Errorf("client got event %v, %v", e.EventType, err)
	}
	if _, err := pd.RegMR(ctx, make([]byte, 4096), verbs.AccessLocalWrite); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("RegMR without a daemon: %v", err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// TestDaemonRemovesFilesOfKilledDaemon runs programs that read the device files of two daemons, one
// of which is killed. A third daemon must remove the files of the killed one only.
func TestDaemonRemovesFilesOfKilledDaemon(t *testing.T) {
	harness.NeedPrograms(t)
	harness.LocalPrograms.Acquire(t)
	tmp := t.TempDir()
	in := func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "env", append([]string{"TMPDIR=" + tmp}, argv...)...)
	}
	bin := harness.Binary(t)
	libs := harness.Libraries(t)
	trees := func() []string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(tmp, "softroce-sysfs-*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	readDeviceFile := func(socket string) {
		t.Helper()
		cmd := exec.Command(bin, "--socket", socket, "run", "-q", "--", "cat", "/sys/class/infiniband/softroce0/node_type")
		cmd.Env = append(os.Environ(), "SOFTROCE_LIBDIR="+libs)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "1: CA\n" {
			t.Fatalf("%v: %s", err, out)
		}
	}
	stays, killed, next := filepath.Join(tmp, "a"), filepath.Join(tmp, "b"), filepath.Join(tmp, "c")
	harness.OpenNIC(t, harness.StartDaemon(t, in, "--socket", stays), stays)
	readDeviceFile(stays)
	kept := trees()
	victim := harness.LaunchDaemon(t, in, "--socket", killed)
	harness.OpenNIC(t, victim, killed)
	readDeviceFile(killed)
	victim.Kill()
	victim.Wait()
	if len(kept) != 1 || len(trees()) != 2 {
		t.Fatalf("device files of the first daemon: %q, of both: %q", kept, trees())
	}
	harness.OpenNIC(t, harness.StartDaemon(t, in, "--socket", next), next)
	if have := trees(); !slices.Equal(have, kept) {
		t.Errorf("device files after the next start: %q, want %q", have, kept)
	}
	readDeviceFile(stays)
}
