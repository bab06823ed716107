package rxelab

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// netnsDir is where ip keeps the names of network namespaces.
const netnsDir = "/run/netns"

// SweepNamespaces removes network namespaces that are named PREFIX PID-ANYTHING and whose process
// has ended, and kills the programs in them.
func SweepNamespaces(ctx context.Context, prefixes ...string) error {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return nil // there are no namespaces
	}
	var errs []error
	for _, e := range entries {
		for _, prefix := range prefixes {
			rest, ok := strings.CutPrefix(e.Name(), prefix)
			if pid, _, _ := strings.Cut(rest, "-"); ok && hasEnded(pid) {
				errs = append(errs, removeNamespace(ctx, e.Name()))
			}
		}
	}
	return errors.Join(errs...)
}

// SweepDirectories removes temporary directories that are named PREFIX PID-ANYTHING and whose
// process has ended.
func SweepDirectories(prefix string) error {
	entries, err := os.ReadDir(os.TempDir())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if pid, _, hyphen := strings.Cut(rest, "-"); ok && hyphen && e.IsDir() && hasEnded(pid) {
			errs = append(errs, os.RemoveAll(filepath.Join(os.TempDir(), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// hasEnded reports whether no process has this ID.
func hasEnded(number string) bool {
	pid, err := strconv.Atoi(number)
	return err == nil && pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func removeNamespace(ctx context.Context, name string) error {
	file := filepath.Join(netnsDir, name)
	if err := killPrograms(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	out, err := exec.CommandContext(ctx, "ip", "netns", "del", name).CombinedOutput()
	if _, statErr := os.Stat(file); err != nil && statErr == nil {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return nil
}

// killPrograms kills the processes in a network namespace.
func killPrograms(namespace string) error {
	want, err := os.Stat(namespace)
	if err != nil {
		return err
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(filepath.Base(p))
		if err != nil {
			continue
		}
		// The descriptor ensures that the process that is killed is the one that was inspected.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if have, err := os.Stat(p + "/ns/net"); err == nil && os.SameFile(want, have) {
			unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
	}
	return nil
}
