package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// engineThread is the name of the thread of a daemon's only engine.
const engineThread = "engine0"

// rtRuntime limits the time in a second that real-time threads may run, in microseconds; -1 is no
// limit. The usual value would stop an engine that is busy for 50 ms in each second.
const rtRuntime = "/proc/sys/kernel/sched_rt_runtime_us"

// isolateEngine gives the engine of a daemon a processor to itself, one of those that this process
// may use. All other threads of the daemon, this process and what it starts share the others.
func isolateEngine(t *testing.T, daemon int) {
	t.Helper()
	var own, others unix.CPUSet
	if err := unix.SchedGetaffinity(0, &others); err != nil {
		t.Fatal(err)
	}
	if others.Count() < 2 {
		t.Fatalf("%s needs two processors", stallEnv)
	}
	cpu := 0
	for left := others.Count(); left > 0; cpu++ {
		if others.IsSet(cpu) {
			left--
		}
	}
	cpu-- // the last one
	own.Set(cpu)
	others.Clear(cpu)

	usual, err := os.ReadFile(rtRuntime)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(rtRuntime, usual, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(rtRuntime, []byte("-1"), 0); err != nil {
		t.Fatal(err)
	}
	engines := 0
	eachThread(t, daemon, func(id int, name string) error {
		if name != engineThread {
			return unix.SchedSetaffinity(id, &others)
		}
		engines++
		// It precedes what else the kernel runs there.
		first := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
		return errors.Join(unix.SchedSetaffinity(id, &own), unix.SchedSetAttr(id, &first, 0))
	})
	if engines != 1 {
		t.Fatalf("the daemon has %d threads with the name %s", engines, engineThread)
	}
	eachThread(t, os.Getpid(), func(id int, _ string) error { return unix.SchedSetaffinity(id, &others) })
	t.Logf("the engine has processor %d to itself", cpu)
}

// eachThread calls set for each thread of a process, until there is none that it has not seen.
func eachThread(t *testing.T, pid int, set func(id int, name string) error) {
	t.Helper()
	seen := map[int]bool{}
	for before := -1; before < len(seen); {
		before = len(seen)
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, path := range threads {
			id, _ := strconv.Atoi(filepath.Base(path))
			name, err := os.ReadFile(path + "/comm")
			if err != nil || seen[id] {
				continue // it has ended, or was seen
			}
			seen[id] = true
			if err := set(id, string(bytes.TrimSpace(name))); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatalf("thread %d (%s) of process %d: %v", id, bytes.TrimSpace(name), pid, err)
			}
		}
	}
}
