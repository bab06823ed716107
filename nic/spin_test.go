package nic

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRunnableParsesLoadavg(t *testing.T) {
	for line, want := range map[string]int{
		"0.20 0.18 0.12 3/80 11206\n":   3,
		"10.20 9.18 7.12 128/4080 1\n":  128,
		"":                              0,
		"0.20 0.18":                     0,
		"no numbers here x/y at all 12": 0,
	} {
		if got := runnable([]byte(line)); got != want {
			t.Errorf("%q: %d, want %d", line, got, want)
		}
	}
}

// One long idle step may be due to the host of a virtual machine. Those that take more of the time
// than tolerated are preemptions.
func TestPreemptedEngineSpinsLess(t *testing.T) {
	s := spinner{limit: 50e3, loadavg: -1, cpus: 2}
	now := int64(1e9)
	if !s.keepSpinning(now, now-40e3, s.limit) || s.keepSpinning(now, now-60e3, s.limit) {
		t.Error("does not poll for 50 µs")
	}
	s.noteIdleStep(now, 100) // the duration of a usual idle step
	s.noteIdleStep(now+1000, 100)
	s.noteYield(now+2000, interrupted-1)
	s.noteYield(now+3e5, interrupted-1)
	if !s.keepSpinning(now, now, s.limit) {
		t.Error("short idle steps counted as preemptions")
	}
	for _, c := range []struct {
		name    string
		after   int64 // the end of the last backoff
		ran     int64 // before each step
		steps   []int64
		backoff int64
	}{
		{"one long step", 0, 1e6, []int64{4e6}, 0},
		{"another one 10 ms later", 8e6, 1e6, []int64{4e6}, 0},
		{"another one much later", 40e6, 1e6, []int64{4e6}, 0},
		{"two", 40e6, 1e6, []int64{4e6, 4e6}, 10e6},
		{"seven shorter ones soon after", 0, 20e3, slices.Repeat([]int64{interrupted}, 7), 0},
		{"two later", 40e6, 1e6, []int64{4e6, 4e6}, 20e6},
		{"four, two of them while spinning is disabled", 20e6, 1e6, []int64{4e6, 4e6, 4e6, 4e6}, 80e6},
		{"as of Go's monitor", 400e6, 9500e3, slices.Repeat([]int64{500e3}, 30), 0},
		{"as much as tolerated", 100e6, 8 * interrupted, slices.Repeat([]int64{interrupted}, 200), 0},
		{"slightly more", 100e6, 7.5 * interrupted, slices.Repeat([]int64{interrupted}, 106), 10e6},
		{"eight shorter ones", 20e6, 20e3, slices.Repeat([]int64{interrupted}, 8), 20e6},
		{"two long after", 1e9, 1e6, []int64{4e6, 4e6}, 10e6},
	} {
		now += c.after
		for _, took := range c.steps {
			now += c.ran + took
			s.noteIdleStep(now, took)
		}
		if c.backoff > 0 && s.keepSpinning(now+c.backoff-1e6, now+c.backoff-1e6, s.limit) {
			t.Errorf("%s: spinning is not disabled for %d ns", c.name, c.backoff)
		}
		if now += c.backoff + 1; !s.keepSpinning(now, now, s.limit) {
			t.Errorf("%s: spinning is disabled for more than %d ns", c.name, c.backoff)
		}
	}
}

// A step in which the kernel gave the processor to no other thread was not preempted, however long
// it took.
func TestSuspendedProcessorIsNoPreemption(t *testing.T) {
	for _, c := range []struct {
		name     string
		switches []int64 // at the check, and after each long step
		spins    bool
	}{
		{"no switches", []int64{7, 7, 7}, true},
		{"switches", []int64{7, 8, 9}, false},
		{"a switch in the first one", []int64{7, 8, 8}, false}, // perhaps in both
		{"no number of switches", []int64{0, 0, 0}, false},
	} {
		s := spinner{limit: 50e3, loadavg: -1, cpus: 2, switchCount: func() int64 {
			n := c.switches[0]
			c.switches = c.switches[1:]
			return n
		}}
		now := int64(1e9)
		s.check(now)
		s.checked = now + 2*maxLost // checks no more
		s.noteIdleStep(now+maxLost, maxLost)
		s.noteIdleStep(now+2*maxLost, maxLost)
		if got := s.maySpin(now + 2*maxLost); got != c.spins {
			t.Errorf("%s: spins %t, want %t", c.name, got, c.spins)
		}
	}
	var s spinner
	s.open(50e3)
	defer s.close()
	if s.switchCount == nil {
		t.Error("the spinner of an engine counts no switches")
	}
}

// A thread that yields to another one is switched. What is counted are the switches of this thread,
// as the kernel shows them.
func TestThreadSwitchesAreCounted(t *testing.T) {
	AddProc(t)
	pin(t)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		pin(t)
		for {
			select {
			case <-stop:
				return
			default:
				unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			}
		}
	}()
	for before, start := threadSwitches(), time.Now(); threadSwitches() == before; {
		if time.Since(start) > 30*time.Second {
			t.Fatal("no switch is counted")
		}
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	shown := func() (n int64) {
		b, err := os.ReadFile("/proc/thread-self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(b), "nonvoluntary_ctxt_switches:")
		if _, err := fmt.Sscan(rest, &n); !found || err != nil {
			t.Fatalf("no switches in %s", b)
		}
		return n
	}
	if before, n, after := shown(), threadSwitches(), shown(); n < before || n > after {
		t.Errorf("%d switches, and the kernel shows %d to %d", n, before, after)
	}
}

// With as many runnable threads as processors the engine keeps its processor, with more it yields.
// Among many more it does not spin, if yields take long.
func TestSpinnerYieldsIfMoreThreadsRunThanProcessors(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "loadavg"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		line                   string
		yields                 []int64
		yield, crowded, shared bool
	}{
		{"0.20 0.18 0.12 2/80 11206\n", nil, false, false, false},
		{"0.20 0.18 0.12 4/80 11206\n", []int64{50e3, 50e3}, true, false, true},
		{"0.20 0.18 0.12 5/80 11206\n", []int64{50e3, 3e3}, true, true, true},
		{"0.20 0.18 0.12 14/80 11206\n", []int64{3e3, 3e3, 50e3}, true, false, true}, // counts sleeping threads
		{"0.20 0.18 0.12 14/80 11206\n", []int64{300, 300}, true, false, false},
		{"0.20 0.18 0.12 14/80 11206\n", []int64{3e3, 4e6}, true, false, true}, // a preemption
		{"0.20 0.18 0.12 14/80 11206\n", nil, true, false, false},
		{"0.20 0.18 0.12 1/80 11206\n", []int64{50e3}, false, false, true},
	} {
		now := int64(1e9)
		s := spinner{limit: 50e3, loadavg: int(file.Fd()), cpus: 2, checked: now}
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt([]byte(c.line), 0); err != nil {
			t.Fatal(err)
		}
		for _, took := range c.yields {
			s.noteYield(now, took)
		}
		now += overcommitCheck
		if got := s.yield(now); got != c.yield {
			t.Errorf("yield with %q: %v", c.line, got)
		}
		if got := s.maySpin(now); got == c.crowded {
			t.Errorf("polls with %q, yields %d: %v", c.line, c.yields, got)
		}
		if s.shared != c.shared {
			t.Errorf("shares its processor, yields %d: %v", c.yields, s.shared)
		}
		if c.crowded && (s.maySpin(now+minBackoff-1) || !s.maySpin(now+minBackoff)) {
			t.Error("does not poll again after a while")
		}
	}
}

// An engine that may run on some of the processors only does not know for which of them the
// machine's threads wait. It yields now and then, and after each idle step if that lets others run.
func TestConfinedEngineYieldsIfOthersRun(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "loadavg"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	usable, now := 0, int64(1e9)
	s := spinner{limit: 50e3, loadavg: int(file.Fd()), cpus: 2, usableCPUs: func() int { return usable }}
	for _, c := range []struct {
		name    string
		usable  int
		threads int
		took    int64 // by each yield
		yields  int   // in idleSteps idle steps
	}{
		{"alone", 1, 2, switching, 1},
		{"with another thread", 1, 2, switching + 1, idleSteps},
		{"alone again", 1, 2, switching, 1},
		{"busy threads elsewhere", 1, 9, switching, 1},
		{"it may run on all processors", 2, 2, switching + 1, 0},
		{"where there are more threads", 2, 3, switching, idleSteps},
		{"the number of its processors is not known", math.MaxInt, 3, switching, idleSteps},
	} {
		usable = c.usable
		if _, err := file.WriteAt(fmt.Appendf(nil, "0.20 0.18 0.12 %d/80", c.threads), 0); err != nil {
			t.Fatal(err)
		}
		yields := 0
		for range 3 { // one check may come too early to know how long yields take now
			now += overcommitCheck
			yields = 0
			for range idleSteps {
				if s.yield(now) {
					yields++
					s.noteYield(now, c.took)
				}
			}
		}
		if yields != c.yields {
			t.Errorf("%s: %d yields, want %d", c.name, yields, c.yields)
		}
		for range 2 { // a busy engine does not yield
			now += overcommitCheck
			s.check(now)
		}
		if c.yields == idleSteps && !s.overcommit {
			t.Errorf("%s: yields no more after a busy time", c.name)
		}
	}
	s.open(50e3)
	defer s.close()
	if s.usableCPUs == nil {
		t.Error("the spinner of an engine does not know its processors")
	}
}

// The processors of a thread are those of its affinity mask, which may change.
func TestUsableProcessorsAreThoseOfTheThread(t *testing.T) {
	runtime.LockOSThread()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if n := usableCPUs(); n != all.Count() {
		t.Errorf("%d processors, want %d", n, all.Count())
	}
	pin(t)
	if n := usableCPUs(); n != 1 {
		t.Errorf("%d processors of a thread that is pinned to one", n)
	}
}

// An engine that may poll is awake when a deadline comes: a sleep ends late, by more than a packet
// of a fast link takes.
func TestSpinnerPollsBeforeADeadline(t *testing.T) {
	const now, limit = int64(1e9), int64(50e3)
	for _, c := range []struct {
		name        string
		limit       int64
		noSpinUntil int64
		lateness    int64
		deadline    int64
		poll        bool
		wake        int64
	}{
		{"no deadline", limit, 0, 0, 0, false, 0},
		{"no deadline, late timers", limit, 0, maxLateness, 0, false, 0},
		{"near", limit, 0, 0, now + 2*limit - 1, true, now + 2*limit - 1},
		{"far", limit, 0, 0, now + 1e6, false, now + 1e6 - 2*limit},
		{"near, after a preemption", limit, now + 1, 0, now + 1000, false, now + 1000},
		{"near, after a preemption, late timers", limit, now + 1, 1000, now + 1000, true, now + 1000},
		{"far, after a preemption, late timers", limit, now + 1, 1000, now + 5000, false, now + 4000},
		{"spinning disabled", 0, 0, 0, now + 1000, false, now + 1000},
	} {
		s := spinner{limit: c.limit, loadavg: -1, noSpin: backoff{until: c.noSpinUntil}, lateness: c.lateness}
		if got := s.untilDeadline(now, c.deadline); got != c.poll {
			t.Errorf("%s: polls %t, want %t", c.name, got, c.poll)
		}
		if got := s.wakeBefore(now, c.deadline); got != c.wake {
			t.Errorf("%s: sleeps until %d, want %d", c.name, got, c.wake)
		}
	}
}

func TestSpinnerLearnsTheLatenessOfTimers(t *testing.T) {
	const alarm = int64(1e9)
	s := spinner{limit: 50e3}
	for i := range 2000 {
		late := int64(20e3)
		if i%20 == 0 {
			late = 500e3
		}
		s.noteWake(alarm, alarm+late)
	}
	if s.lateness < 20e3 || s.lateness > 22e3 {
		t.Errorf("lateness %d ns, of 20 µs in 19 sleeps of 20", s.lateness)
	}
	s.noteWake(0, alarm)
	s.noteWake(alarm, alarm-1e3)
	if s.lateness < 20e3 {
		t.Errorf("lateness %d ns after sleeps that no timer ended", s.lateness)
	}
	for range 2000 {
		s.noteWake(alarm, alarm+500e3)
	}
	if s.lateness != maxLateness {
		t.Errorf("lateness %d ns of very late timers, want the limit", s.lateness)
	}
	s = spinner{}
	s.noteWake(alarm, alarm+500e3)
	if s.lateness != 0 {
		t.Errorf("lateness %d ns of an engine that may not poll", s.lateness)
	}
}
