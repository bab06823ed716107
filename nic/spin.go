package nic

import (
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A spinner decides whether an engine without work polls for a while or sleeps at once. Polling
// notices new work sooner, and a doorbell needs no system call. If there are more runnable threads
// than processors, the engine yields the processor after idle steps (see also lender), or it would
// delay the very program that produces the work. Programs that poll a completion queue yield as
// well: a message between two of them takes two yields, which cost less than a sleep and a wake-up.
// If the thread that runs meanwhile does not yield, the engine waits for milliseconds, whereas one
// that slept is scheduled within microseconds. Then it does not spin for a while.
//
// An engine that may run on some of the processors only (taskset, a cpuset of a container) does not
// know how many threads wait for these. It yields now and then, and there are more threads than
// processors if such yields let others run.
type spinner struct {
	limit   int64    // EngineConfig.Spin
	loadavg int      // descriptor of /proc/loadavg, -1 if it could not be opened
	line    [64]byte // read from it
	cpus    int      // of the machine

	usableCPUs func() int // on which the engine may run; nil if on all

	checked    int64 // when confined, overcommit and shared were last updated
	confined   bool  // the engine may run on some of the processors only
	overcommit bool
	shared     bool    // the yields before checked let other threads run
	idle       int     // idle steps since the last yield
	yields     int64   // after checked
	yielded    int64   // time that they took; those as long as interrupted count as preemptions only
	crowded    backoff // no spinning, because yields took long among many threads: see maySpin

	switchCount func() int64 // threadSwitches; nil if it is not known
	switches    int64        // when checked; 0 if it is not known

	lateness int64   // of the timers that end sleeps: 20 to 45 µs in a virtual machine
	noSpin   backoff // no spinning, because the engine was preempted
}

// A backoff is a time in which something is not done because it failed. The next failure doubles
// it, unless that comes long after.
type backoff struct {
	until, length int64
	resumed       int64 // when the last interruption ended, later by the time asleep since then
	lost          int64 // in interruptions, less what is tolerated
}

const (
	minBackoff = 10e6  // ns
	maxBackoff = 320e6 // ns
)

func (b *backoff) extend(now int64) {
	if now-b.until > maxBackoff {
		b.length = 0
	}
	b.length = min(max(2*b.length, minBackoff), maxBackoff)
	b.until, b.resumed, b.lost = now+b.length, now, 0
}

// noteInterruption records that the engine could not go on for a time of at least interrupted.
// Interruptions are a failure if they add up to more than maxLost. Each counts as at most
// maxInterruption, and 1/toleratedShare of the time between them is subtracted.
func (b *backoff) noteInterruption(now, took int64) {
	ran := now - took - b.resumed
	b.lost = max(0, b.lost-ran/toleratedShare) + min(took, maxInterruption)
	b.resumed = now
	if b.lost > maxLost {
		b.extend(now)
	}
}

// noteSleep records that the engine has slept, which is not time between interruptions: nothing can
// interrupt it then.
func (b *backoff) noteSleep(took int64) { b.resumed += took }

// deadlineSpins is how many times longer to poll before a deadline than after work.
const deadlineSpins = 2

const (
	overcommitCheck = 1e6 // ns between two reads of /proc/loadavg

	// An idle step takes a fraction of a microsecond, and a program that polls yields after a few.
	// A longer one than this was preempted, or yielded to a thread that does not yield.
	interrupted = 200e3 // ns

	// What takes more time than is tolerated are threads that do not yield. Go's monitor (sysmon)
	// runs every 10 ms, and in an emulated guest it and the threads that it wakes take up to 0.5
	// ms. Once in a while the host of a virtual machine stops the engine for longer.
	toleratedShare  = 8
	maxInterruption = 1e6    // ns
	maxLost         = 1500e3 // ns: one of the host and one of the monitor

	// A yield that takes longer than this lets another thread run: there are two context switches.
	switching = 1500 // ns

	// A confined engine yields in one idle step of so many if its yields let no other thread run.
	// A thread waits for the processor for a few microseconds then.
	idleSteps = 16

	// Among many threads a sleep and a wake-up are faster than yields that take longer than this.
	longYield = 20e3 // ns

	latenessStep = 100  // ns by which a sleep reduces lateness
	maxLateness  = 40e3 // ns; other threads wait while the engine polls that long
)

func (s *spinner) open(limit int64) {
	s.limit, s.cpus, s.loadavg = limit, onlineCPUs(), -1
	s.usableCPUs, s.switchCount = usableCPUs, threadSwitches
	if limit <= 0 {
		return
	}
	if fd, err := unix.Open("/proc/loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		s.loadavg = fd
	}
}

func (s *spinner) close() {
	if s.loadavg >= 0 {
		unix.Close(s.loadavg)
		s.loadavg = -1
	}
}

// onlineCPUs counts the processors of the machine, not those in the process's affinity mask:
// /proc/loadavg counts the machine's threads too.
func onlineCPUs() int {
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return runtime.NumCPU()
	}
	n := 0
	for r := range strings.SplitSeq(strings.TrimSpace(string(b)), ",") {
		first, last, isRange := strings.Cut(r, "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			return runtime.NumCPU()
		}
		z := a
		if isRange {
			if z, err = strconv.Atoi(last); err != nil {
				return runtime.NumCPU()
			}
		}
		n += z - a + 1
	}
	return n
}

// keepSpinning reports whether to poll on at the time now, if no work was found since the time
// idle, and the engine spins for limit without.
func (s *spinner) keepSpinning(now, idle, limit int64) bool {
	return now-idle < limit && s.maySpin(now)
}

// untilDeadline reports whether to poll on until a deadline: one that is so near that a sleep would
// end too late for it. On a link with a rate or a delay the packets depend on that.
func (s *spinner) untilDeadline(now, deadline int64) bool {
	if !s.isNear(now, deadline) || s.isCrowded(now) {
		return false
	}
	return s.mustNotYield(now, deadline) || s.maySpin(now)
}

func (s *spinner) isNear(now, deadline int64) bool {
	return deadline != 0 && deadline-now < deadlineSpins*s.limit
}

// mustNotYield reports whether a yield, or a sleep, could make the engine miss a deadline. After a
// preemption the engine polls only that long.
func (s *spinner) mustNotYield(now, deadline int64) bool {
	return deadline != 0 && deadline-now <= s.lateness
}

// wakeBefore returns until when to sleep for a deadline, so that the engine polls when it comes. 0
// is none.
func (s *spinner) wakeBefore(now, deadline int64) int64 {
	lead := s.lateness
	if s.maySpin(now) {
		lead = deadlineSpins * s.limit
	}
	if deadline-now > lead {
		return deadline - lead
	}
	return deadline
}

// noteWake records when a sleep ended that was to end at the time alarm, 0 if at none. Nine of ten
// sleeps end less than s.lateness after that.
func (s *spinner) noteWake(alarm, woken int64) {
	switch late := woken - alarm; {
	case alarm == 0 || late < 0 || s.limit <= 0: // something else ended it
	case late > s.lateness:
		s.lateness = min(s.lateness+9*latenessStep, maxLateness, s.limit)
	default:
		s.lateness = max(s.lateness-latenessStep, 0)
	}
}

// maySpin reports whether polling delays no other thread, if the engine yields. Among many threads
// whose turns take long it does not poll: programs that start need the processor.
func (s *spinner) maySpin(now int64) bool {
	return s.limit > 0 && now >= s.noSpin.until && !s.isCrowded(now)
}

// preempted reports whether the engine may not spin for the only reason that it was preempted.
func (s *spinner) preempted(now int64) bool {
	return s.limit > 0 && now < s.noSpin.until && !s.isCrowded(now)
}

func (s *spinner) isCrowded(now int64) bool {
	s.check(now)
	return now < s.crowded.until
}

// check counts the runnable threads, at most once in overcommitCheck. That there are more than
// twice as many as processors is not enough not to poll: since version 6.12 Linux also counts
// threads that sleep, until their turn would have come (DELAY_DEQUEUE). Yields must take long, too.
func (s *spinner) check(now int64) {
	if now-s.checked < overcommitCheck {
		return
	}
	n, cpus := s.runnableThreads(), s.cpus
	if s.usableCPUs != nil {
		cpus = min(cpus, s.usableCPUs())
	}
	if n > 2*cpus && s.yielded > s.yields*longYield {
		s.crowded.extend(now)
	}
	s.shared = s.yielded > s.yields*switching
	s.confined = cpus < s.cpus
	switch {
	case !s.confined:
		s.overcommit = n > cpus
	case s.yields > 0:
		s.overcommit = s.shared
	}
	s.checked, s.yields, s.yielded = now, 0, 0
	s.switches = s.countSwitches()
}

// yield lets other threads run if there are, or may be, more of them than processors. It reports
// whether it did, since that takes time.
func (s *spinner) yield(now int64) bool {
	s.check(now)
	s.idle++
	if !s.overcommit && (!s.confined || s.idle < idleSteps) {
		return false
	}
	s.idle = 0
	unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	return true
}

// noteIdleStep records how long an idle step took. After preemptions it disables spinning for a
// while. A step in which the thread was not switched was not preempted: the host of a virtual
// machine has suspended the processor.
func (s *spinner) noteIdleStep(now, took int64) {
	if took >= interrupted && s.switched() {
		s.noSpin.noteInterruption(now, took)
	}
}

// noteYield records how long a yield took, which is idle time like that of a step.
func (s *spinner) noteYield(now, took int64) {
	if took < interrupted {
		s.yields, s.yielded = s.yields+1, s.yielded+took
	}
	s.noteIdleStep(now, took)
}

// switched reports whether another thread may have had the processor since the last check.
func (s *spinner) switched() bool {
	n := s.countSwitches()
	return n == 0 || n != s.switches
}

func (s *spinner) countSwitches() int64 {
	if s.switchCount == nil {
		return 0
	}
	return s.switchCount()
}

// threadSwitches returns how often another thread got the processor of the calling thread, which
// could have run on. Some kernels return 0.
func threadSwitches() int64 {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_THREAD, &u)
	return int64(u.Nivcsw) //nolint:unconvert // 32 bits wide on some architectures
}

// usableCPUs returns on how many processors the calling thread may run, as far as that is known.
func usableCPUs() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil { // it fails if there are more processors than a set has
		return math.MaxInt
	}
	return set.Count()
}

// runnableThreads returns how many threads of the machine run or wait for a processor, 0 if the
// kernel does not tell.
func (s *spinner) runnableThreads() int {
	if s.loadavg < 0 {
		return 0
	}
	n, err := unix.Pread(s.loadavg, s.line[:], 0)
	if err != nil {
		return 0
	}
	return runnable(s.line[:n])
}

// runnable returns the number of runnable threads in a line such as "0.20 0.18 0.12 3/80 11206".
func runnable(line []byte) (n int) {
	field := 0
	for _, c := range line {
		switch {
		case c == ' ':
			field++
		case c == '/':
			return n
		case field == 3 && '0' <= c && c <= '9':
			n = n*10 + int(c-'0')
		}
	}
	return 0
}
