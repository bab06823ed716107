package rxelab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Prioritize lets the guests have processors before other programs of the machine, until restore is
// called. It is for tests whose programs do not wait for a slow guest. Guests that start later, and
// threads of guests, are not covered.
func (l *Lab) Prioritize() (restore func() error, err error) {
	threads, err := l.guestThreads()
	if err != nil {
		return nil, err
	}
	set := func(policy, priority uint32) (err error) {
		for _, t := range threads {
			if e := unix.SchedSetAttr(t, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority}, 0); e != nil && e != unix.ESRCH && err == nil {
				err = fmt.Errorf("priority of thread %d: %w", t, e)
			}
		}
		return err
	}
	return func() error { return set(unix.SCHED_NORMAL, 0) }, set(unix.SCHED_RR, 1)
}

// guestThreads returns the threads of the processes that emulate the guests.
func (l *Lab) guestThreads() (threads []int, err error) {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, c := range commands {
		line, err := os.ReadFile(c)
		if err != nil || !bytes.Contains(line, []byte("\x00"+l.name+"-vm")) {
			continue // a process that has ended, or another one
		}
		tasks, err := filepath.Glob(filepath.Join(filepath.Dir(c), "task", "*"))
		if err != nil {
			return nil, err
		}
		for _, t := range tasks {
			if n, err := strconv.Atoi(filepath.Base(t)); err == nil {
				threads = append(threads, n)
			}
		}
	}
	if len(threads) == 0 {
		return nil, fmt.Errorf("lab %s has no guest that runs", l.name)
	}
	return threads, nil
}
