package nic

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A spinner decides whether an engine that ran out of work looks on for a while or sleeps at
// once. Looking on is the faster way to notice the next piece of work where a processor
// has nothing else to do. Where more threads want to run than there are
// processors, it keeps the very program waiting that would make work, and it uses up the
// engine's share, so that the engine waits milliseconds for its next turn; a
// thread that sleeps is let in within microseconds.
type spinner struct {
	limit   int64 // EngineConfig.Spin
	loadavg int   // descriptor of /proc/loadavg, -1 if there is none
	cpus    int

	checked    int64 // when crowded was found out
	overcommit bool

	noSpinUntil int64 // no spinning before, because it had us thrown off the processor
	penalty     int64
}

const (
	crowdCheck = 1e6 // ns between two looks at /proc/loadavg

	// An idle step takes a fraction of a microsecond. One of this length was interrupted.
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

// onlineCPUs counts the machine's processors, not those that this process may use:
// /proc/loadavg counts threads likewise.
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

// on reports whether to look on, at the time now, having found nothing since the time idle.
func (s *spinner) keepSpinning(now, idle int64) bool {
	if now-idle >= s.limit || now < s.noSpinUntil {
		return false
	}
	if now-s.checked >= crowdCheck {
		s.checked, s.overcommit = now, s.overcommitted()
	}
	return !s.overcommit
}

// stepped hears how long an idle step took while the engine looked on.
func (s *spinner) noteIdleStep(now, took int64) {
	if took < interrupted {
		return
	}
	if now-s.noSpinUntil > maxPenalty {
		s.penalty = 0 // the last time is long ago
	}
	s.penalty = min(max(2*s.penalty, minPenalty), maxPenalty)
	s.noSpinUntil = now + s.penalty
}

// crowd reports whether more threads want to run than there are processors.
func (s *spinner) overcommitted() bool {
	if s.loadavg < 0 {
		return false
	}
	var b [64]byte
	n, err := unix.Pread(s.loadavg, b[:], 0)
	return err == nil && runnable(b[:n]) > s.cpus
}

// runnable returns the threads that want to run, from a line like "0.20 0.18 0.12 3/80 11206".
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
