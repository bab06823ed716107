package nic

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A spinner decides whether an engine without work polls for a while or sleeps at once. Polling
// notices new work sooner if the processor has nothing else to run. If there are more runnable
// threads than processors, it delays the very program that would produce the work. It also uses up
// the engine's time slice, so that the scheduler lets the engine wait for milliseconds, whereas a
// thread that slept is scheduled within microseconds.
type spinner struct {
	limit   int64    // EngineConfig.Spin
	loadavg int      // descriptor of /proc/loadavg, -1 if it could not be opened
	line    [64]byte // read from it
	cpus    int

	checked    int64 // when overcommit was last updated
	overcommit bool

	noSpinUntil int64 // no spinning before this time, because the engine was preempted
	penalty     int64
}

const (
	overcommitCheck = 1e6 // ns between two reads of /proc/loadavg

	// An idle step takes a fraction of a microsecond. A longer one than this was preempted.
	interrupted = 200e3 // ns

	minPenalty = 10e6  // ns
	maxPenalty = 320e6 // ns
)

func (s *spinner) open(limit int64) {
	s.limit, s.cpus, s.loadavg = limit, onlineCPUs(), -1
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
// idle.
func (s *spinner) keepSpinning(now, idle int64) bool {
	if now-idle >= s.limit || now < s.noSpinUntil {
		return false
	}
	if now-s.checked >= overcommitCheck {
		s.checked, s.overcommit = now, s.overcommitted()
	}
	return !s.overcommit
}

// noteIdleStep records how long an idle step took. After a preemption it disables spinning for a
// while.
func (s *spinner) noteIdleStep(now, took int64) {
	if took < interrupted {
		return
	}
	if now-s.noSpinUntil > maxPenalty {
		s.penalty = 0 // the last preemption was long ago
	}
	s.penalty = min(max(2*s.penalty, minPenalty), maxPenalty)
	s.noSpinUntil = now + s.penalty
}

// overcommitted reports whether there are more runnable threads than processors.
func (s *spinner) overcommitted() bool {
	if s.loadavg < 0 {
		return false
	}
	n, err := unix.Pread(s.loadavg, s.line[:], 0)
	return err == nil && runnable(s.line[:n]) > s.cpus
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
