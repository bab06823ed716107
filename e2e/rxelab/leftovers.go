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

// SweepNamespaces removes the network namespaces whose names are one of the prefixes, the number of a process that is no more,
// and whatever follows a dash; and ends the programs in them.
func SweepNamespaces(ctx context.Context, prefixes ...string) error {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return nil // no namespaces at all
	}
	var errs []error
	for _, e := range entries {
		for _, prefix := range prefixes {
			rest, ok := strings.CutPrefix(e.Name(), prefix)
			if pid, _, _ := strings.Cut(rest, "-"); ok && gone(pid) {
				errs = append(errs, removeNamespace(ctx, e.Name()))
			}
		}
	}
	return errors.Join(errs...)
}

// SweepFolders removes the temporary folders of processes that are gone: those whose names are a prefix, the number of the
// process, a hyphen, and anything.
func SweepFolders(prefix string) error {
	entries, err := os.ReadDir(os.TempDir())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if pid, _, hyphen := strings.Cut(rest, "-"); ok && hyphen && e.IsDir() && gone(pid) {
			errs = append(errs, os.RemoveAll(filepath.Join(os.TempDir(), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// gone reports whether there is no process of this number.
func gone(number string) bool {
	pid, err := strconv.Atoi(number)
	return err == nil && pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func removeNamespace(ctx context.Context, name string) error {
	file := filepath.Join(netnsDir, name)
	if err := endPrograms(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	out, err := exec.CommandContext(ctx, "ip", "netns", "del", name).CombinedOutput()
	if _, statErr := os.Stat(file); err != nil && statErr == nil {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return nil
}

// endPrograms kills the processes of a network namespace.
func endPrograms(namespace string) error {
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
		// The process that was looked at is the one that is killed, not the next one of its number.
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
