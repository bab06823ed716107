package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softroce/e2e/harness"
)

// TestGuestsHavePriority: a guest that the host does not run for a second is a peer that does not
// reply, so guests come before the other programs of a busy machine.
func TestGuestsHavePriority(t *testing.T) {
	harness.NeedRoot(t, "network namespaces and a guest's network")
	harness.DgramGuest.Acquire(t)
	lab := harness.DgramLab(t)
	guests := 0
	for _, pid := range strings.Fields(harness.RunCommand(t, "ip", "netns", "pids", lab.EmuNamespace())) {
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%s/comm", pid)); !strings.HasPrefix(string(name), "qemu-system") {
			continue
		}
		guests++
		checkPriority(t, pid)
	}
	if guests != len(lab.Guests) {
		t.Errorf("%d processes of guests, want %d", guests, len(lab.Guests))
	}
}

// checkPriority checks a process and its threads, and the priority of its session if the kernel has
// those (sched(7), "The autogroup feature").
func checkPriority(t *testing.T, pid string) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%s/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		var id int
		fmt.Sscan(thread.Name(), &id)
		const usual = 20 // the system call returns 20 - nice
		if n, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil && n <= usual {
			t.Errorf("thread %d has nice value %d, want a negative one", id, usual-n)
		}
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%s/autogroup", pid)); err == nil && !strings.Contains(string(b), " nice -") {
		t.Errorf("the guest's session: %swant a negative nice value", b)
	}
}
