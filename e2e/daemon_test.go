package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"softroce/verbs"
)

func TestDaemonEndsCleanlyAndClientsHearOfIt(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	daemon := startDaemon(t, nil, "--socket", socket)
	nic := openNIC(t, daemon, socket)
	pd, err := nic.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	daemon.stop(t)

	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	if e, err := nic.AsyncEvent(ctx); err != nil || e.EventType != verbs.EventDeviceFatal {
		t.Errorf("client heard %v, %v", e.EventType, err)
	}
	if _, err := pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("RegMR without a daemon: %v", err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// TestKilledClientLeavesNothing kills a client with all its queues full, more than once,
// while another client's queue pairs go on.
func TestKilledClientLeavesNothing(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	daemon := startDaemon(t, nil, "--socket", socket)
	openNIC(t, daemon, socket).Close()
	bin, err := softroceBinary()
	if err != nil {
		t.Fatal(err)
	}
	perf := func(ctx context.Context, args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, bin, append([]string{"--socket", socket, "perf"}, args...)...)
	}
	survivor := perf(t.Context(), "read", "--duration", "3s", "--latency", "0s", "--json")
	result := make(chan error, 1)
	go func() {
		out, err := survivor.CombinedOutput()
		if err != nil {
			err = errors.Join(err, errors.New(string(out)))
		}
		result <- err
	}()
	const qps = 4
	for range 3 {
		ctx, kill := context.WithCancel(t.Context())
		victim := perf(ctx, "write", "--size", "1MiB", "--qps", strconv.Itoa(qps), "--duration", "60s", "--latency", "0s")
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		for limit := time.Now().Add(startLimit); ofProcess(t, bin, socket, victim.Process.Pid) < 2*qps; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatal("the victim has no queue pairs yet")
			}
		}
		time.Sleep(200 * time.Millisecond) // let it fill them
		kill()                             // SIGKILL
		victim.Wait()
	}
	if err := <-result; err != nil {
		t.Errorf("the other client: %v", err)
	}
	limit := time.Now().Add(startLimit)
	for _, what := range []string{"qp", "mr", "cq"} {
		for n := count(t, bin, socket, what); n != 0; n = count(t, bin, socket, what) {
			if time.Now().After(limit) {
				t.Errorf("%d left of %s", n, what)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// count asks the daemon how many objects of a kind it holds.
func count(t *testing.T, bin, socket, what string) int { return len(held(t, bin, socket, what)) }

// ofProcess asks the daemon how many queue pairs it holds for a process.
func ofProcess(t *testing.T, bin, socket string, pid int) (n int) {
	t.Helper()
	for _, o := range held(t, bin, socket, "qp") {
		if o.PID == pid {
			n++
		}
	}
	return n
}

// An object is a line of softroce show.
type object struct{ PID int }

func held(t *testing.T, bin, socket, what string) (list []object) {
	t.Helper()
	out, err := exec.Command(bin, "--socket", socket, "show", what, "--json").Output()
	if err != nil {
		t.Fatalf("show %s: %v", what, err)
	}
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("show %s: %v in %s", what, err, out)
	}
	return list
}
