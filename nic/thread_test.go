package nic_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/internal/ib"
	"softroce/transport"
)

// An operator finds the engine's thread by its name, and the processors that it is given remain the
// engine's when another thread takes it over. The first thread then has them no longer.
func TestPlacementOfTheEngineOutlivesItsThread(t *testing.T) {
	l := newRunningPair(t, 1, 20*time.Microsecond)
	l.exchange(t, 1)
	first := l.ea.Thread()
	var all, one unix.CPUSet
	check(t, unix.SchedGetaffinity(first, &all))
	cpu := 0
	for !all.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	check(t, unix.SchedSetaffinity(first, &one))
	usual, err := unix.SchedGetAttr(first, 0)
	check(t, err)
	nice := min(usual.Nice+3, 19)
	check(t, unix.Setpriority(unix.PRIO_PROCESS, first, int(nice)))

	p := newServedPages(t)
	q, peer := l.slowClient(p, 3)
	l.postAs(q, transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: peer.mr.RKey(), SGEs: q.sge(0, 100)})
	l.exchange(t, 1)

	second := l.ea.Thread()
	if second == first || l.ea.TakeOvers() != 1 {
		t.Fatalf("thread %d after %d, %d takeovers", second, first, l.ea.TakeOvers())
	}
	for _, thread := range []int{first, second} {
		name, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/comm", thread))
		check(t, err)
		if got := strings.TrimSpace(string(name)); got != "engine" {
			t.Errorf("thread %d of the engine has the name %q", thread, got)
		}
	}
	for _, want := range []struct {
		thread     int
		processors unix.CPUSet
		nice       int32
	}{{first, all, usual.Nice}, {second, one, nice}} {
		var got unix.CPUSet
		check(t, unix.SchedGetaffinity(want.thread, &got))
		policy, err := unix.SchedGetAttr(want.thread, 0)
		check(t, err)
		if got != want.processors || policy.Nice != want.nice {
			t.Errorf("thread %d of %d and %d has the processors %x and the nice value %d, want %x and %d",
				want.thread, first, second, got[:1], policy.Nice, want.processors[:1], want.nice)
		}
	}
}
