package harness

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"softroce/internal/output"
)

// ProgramLimit ends programs that hang. It is longer than any program takes on a slow machine.
const ProgramLimit = 5 * time.Minute

// A Job is a program that was started.
type Job struct {
	Output func() string // what it has printed so far
	Done   chan struct{} // closed when it has ended

	pid int   // 0 in a guest
	err error // valid after Done
}

// StartJob starts a command.
func StartJob(t *testing.T, cmd *exec.Cmd) *Job {
	t.Helper()
	var b output.Buffer
	j := &Job{Output: b.String, Done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &b, &b
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j.pid = cmd.Process.Pid
	go func() {
		j.err = cmd.Wait()
		close(j.Done)
	}()
	return j
}

// Wait waits for the end of the program, and returns what it printed and its error.
func (j *Job) Wait() (string, error) {
	<-j.Done
	return j.Output(), j.err
}

// Running reports whether the program has not ended.
func (j *Job) Running() bool {
	select {
	case <-j.Done:
		return false
	default:
		return true
	}
}

// RunCommand runs a command that must succeed, and returns what it printed.
func RunCommand(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Listens reports whether a TCP server listens on port in the network namespace of a process.
func Listens(pid, port int) bool {
	for _, table := range []string{"tcp", "tcp6"} {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if strings.Contains(string(b), fmt.Sprintf(":%04X 00000000", port)) &&
			strings.Contains(string(b), " 0A ") { // TCP_LISTEN
			return true
		}
	}
	return false
}

// Each run of a program has ports that no other run uses, so that several can run at the same time
// and sockets of an earlier run are not in the way.
const (
	firstPort   = 18600
	portsPerRun = 4 // the program's port, and those that perftest/listenwait.c uses after it
)

var portsUsed atomic.Int32

// FreePort returns a TCP port for one run of a program.
func FreePort() int { return firstPort + portsPerRun*int(portsUsed.Add(1)) }
