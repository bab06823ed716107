package check

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"softroce/verbs/verbstest"
)

var raceBuild = newBuild("race", "gcc", "-O1", "-fsanitize=thread", "-fno-omit-frame-pointer")

// tortureTime is how long each torture test runs; SOFTROCE_TORTURE=10m lengthens it.
func tortureTime(t *testing.T) time.Duration {
	text := os.Getenv("SOFTROCE_TORTURE")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second {
		t.Fatalf("SOFTROCE_TORTURE=%s: want a duration of at least 1s", text)
	}
	return d
}

// torture runs the torture program of a build with the daemon on a socket.
func torture(t *testing.T, b *build, socket, daemon string) {
	t.Helper()
	d, seed, file := tortureTime(t), time.Now().UnixNano(), b.compile(t, "torture")
	args := slices.Concat([]string{strconv.Itoa(int(d.Seconds())), strconv.FormatInt(seed, 10), daemon}, b.runner, []string{file, "executed"})
	out, err := b.command(t, d+3*programLimit, socket, file, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("torture %v: %v\n%s", args, err, out)
	}
	t.Logf("seed %d: %s", seed, out)
}

func tortureSocket(t *testing.T) string {
	return verbstest.New(t, verbstest.WithEngines(2)).Socket()
}

func TestTortureFindsNoInvalidAccessOrLeak(t *testing.T) {
	torture(t, sanitized, tortureSocket(t), "lives")
}

func TestTortureFindsNoRace(t *testing.T) {
	torture(t, raceBuild, tortureSocket(t), "lives")
}

func TestEventsAndResizeOfSingleThreadedQueue(t *testing.T) {
	file := raceBuild.compile(t, "single_threaded")
	if out, err := raceBuild.command(t, programLimit, verbstest.New(t).Socket(), file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTortureWhileTheDaemonDies kills the daemon again and again, and starts another one.
func TestTortureWhileTheDaemonDies(t *testing.T) {
	socket := t.TempDir() + "/socket"
	var daemon *exec.Cmd
	start := func() {
		daemon = startDaemon(t, socket)
	}
	start()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
				daemon.Process.Kill()
				daemon.Wait()
				start()
			}
		}
	}()
	defer func() {
		close(stop)
		<-stopped
		daemon.Process.Kill()
		daemon.Wait()
	}()
	torture(t, sanitized, socket, "dies")
}

// serveVariable in the environment makes the test's program a daemon on that socket.
const serveVariable = "SOFTROCE_CHECK_SERVE"

// startDaemon starts a daemon that can be killed, and waits until it serves.
func startDaemon(t *testing.T, socket string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serveVariable+"="+socket, "TMPDIR="+t.TempDir())
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // its end ends the daemon
		t.Error(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Error(err)
	}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return cmd
	}
	io.ReadFull(out, make([]byte, 1))
	return cmd
}

// serve never returns.
func serve(path string) {
	f, err := verbstest.NewFabric()
	if err == nil {
		os.Remove(path)
		err = os.Symlink(f.Socket(), path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	f.Close()
	os.Exit(0)
}
