package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sandboxed marks the process inside the sandbox.
const sandboxed = "SOFTROCE_BENCH_SANDBOXED"

// inSandbox runs before, and then f in a copy of this process with namespaces of its own for
// processes, mounts and the network. That process is the first one there and dies with this one, so
// the kernel ends everything that was started and removes the network, also if bench is killed.
func inSandbox(before, f func() error) error {
	if os.Getenv(sandboxed) != "" {
		if err := mountSandbox(); err != nil {
			return err
		}
		return f()
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root, for network namespaces")
	}
	if err := before(); err != nil {
		return err
	}
	runtime.LockOSThread() // the parent of Pdeathsig is a thread
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), sandboxed+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
	}
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		os.Exit(1) // it has printed why
	}
	return err
}

// mountSandbox mounts what belongs to the new namespaces: /proc, and /run, which has sockets, the
// names of network namespaces, and temporary files: creating those of a daemon on a disk can take a
// second, while the programs run.
func mountSandbox() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range [][2]string{{"/proc", "proc"}, {"/run", "tmpfs"}} {
		if err := unix.Mount(m[1], m[0], m[1], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[0], err)
		}
	}
	return os.Setenv("TMPDIR", "/run")
}

// The network: two namespaces, and between them a veth pair for each MTU. Interfaces have the same
// name at both ends.
var namespaces = [2]string{"a", "b"}

var mtus = [2]int{9000, 1500}

func interfaceName(mtu int) string { return fmt.Sprint("veth", mtu) }

// address returns the IPv4 address of one end of a veth pair.
func address(mtu, end int) string {
	subnet := 0
	if mtu == mtus[1] {
		subnet = 1
	}
	return fmt.Sprintf("10.79.%d.%d", subnet, end+1)
}

func makeNetwork() error {
	var commands [][]string
	for _, ns := range namespaces {
		commands = append(commands, []string{"netns", "add", ns}, []string{"-n", ns, "link", "set", "lo", "up"})
	}
	for _, mtu := range mtus {
		name := interfaceName(mtu)
		commands = append(commands, []string{"link", "add", name, "mtu", fmt.Sprint(mtu), "netns", namespaces[0],
			"type", "veth", "peer", "name", name, "mtu", fmt.Sprint(mtu), "netns", namespaces[1]})
		for end, ns := range namespaces {
			commands = append(commands, []string{"-n", ns, "addr", "add", address(mtu, end) + "/24", "dev", name},
				[]string{"-n", ns, "link", "set", name, "up"})
		}
	}
	for _, args := range commands {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	// UCX uses no interface that is not running, which it may not be for a second.
	for limit := time.Now().Add(linkLimit); !running(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(limit) {
			return fmt.Errorf("the veth pairs are not up after %v", linkLimit)
		}
	}
	return nil
}

const linkLimit = 10 * time.Second

// running reports whether all ends of the veth pairs are.
func running() bool {
	for _, ns := range namespaces {
		out, _ := exec.Command("ip", "-n", ns, "-o", "link", "show", "up", "type", "veth").Output()
		if strings.Count(string(out), " state UP ") != len(mtus) {
			return false
		}
	}
	return true
}
