// Package rxelab runs the kernel's own Soft-RoCE in small virtual machines, as a peer
// for end-to-end tests. It drives the program `lab` in this folder, whose README tells
// what the guests hold, and speaks to the guests' command server itself.
//
// A lab needs root, network namespaces and QEMU; it needs no KVM. Up installs missing
// packages where it may. Nothing of a lab touches the network of its host: bridge, taps
// and guests are in namespaces of their own, which Down removes.
package rxelab

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// Kernels that are tried; the names are Debian's packages.
const (
	KernelStable    = "linux-image-amd64"
	KernelBackports = "linux-image-6.12-amd64"
)

// Interface is where a program under test attaches in the emulator's namespace.
const Interface = "emu0"

// MAC is the Ethernet address of Interface, and the one that the other end of a Dgram
// lab is to take.
const MAC = "52:54:00:77:00:10"

// Addresses of the emulator's end: those of Interface, and those that the other end of
// a Dgram lab is to take.
var (
	Emu4 = netip.MustParsePrefix("10.77.0.10/24")
	Emu6 = netip.MustParsePrefix("fd77:7:7::10/64")
)

// Options say what lab to bring up.
type Options struct {
	Kernel string // Debian package; "" is KernelStable
	VMs    int    // 1 to 8; 0 is 1
	MTU    int    // of the guests' Ethernet; 0 is 9000
	Dgram  bool   // the guests' network is QEMU's datagrams on loopback, not a bridge
}

// A Lab is a set of running guests and their namespaces.
type Lab struct {
	Release string // of the guests' kernel, as uname -r shows it
	Guests  []*Guest

	name    string
	dgram   bool
	options Options
}

const namePrefix = "softroce-lab-"

// Up boots a lab and returns when every guest's RDMA device is active: after about seven
// seconds, a few more the first time, when the kernel is fetched. What killed
// processes have left behind is removed first.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if err := sweep(ctx); err != nil {
		return nil, err
	}
	l := &Lab{name: fmt.Sprintf("%s%d", namePrefix, os.Getpid()), dgram: o.Dgram, options: o}
	if o.Dgram {
		l.name += "-d"
	}
	if err := l.boot(ctx); err != nil {
		l.Down()
		return nil, err
	}
	return l, nil
}

// Reboot replaces the guests by fresh ones, and the namespaces too. Nobody may use the lab meanwhile, nor a Guest from before.
func (l *Lab) Reboot(ctx context.Context) error {
	if err := l.Down(); err != nil {
		return err
	}
	return l.boot(ctx)
}

func (l *Lab) boot(ctx context.Context) error {
	o := l.options
	vms := max(o.VMs, 1)
	args := []string{"up", "--vms", strconv.Itoa(vms)}
	if o.MTU != 0 {
		args = append(args, "--mtu", strconv.Itoa(o.MTU))
	}
	if o.Dgram {
		args = append(args, "--dgram")
	}
	if _, err := l.run(ctx, o.Kernel, args...); err != nil {
		return err
	}
	env, err := l.run(ctx, "", "env")
	if err != nil {
		return err
	}
	vars := map[string]string{}
	for line := range strings.Lines(env) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		vars[k] = v
	}
	l.Release = vars["RXELAB_RELEASE"]
	l.Guests = nil
	for n := 1; n <= vms; n++ {
		g, err := newGuest(l, n, vars)
		if err != nil {
			return err
		}
		l.Guests = append(l.Guests, g)
	}
	return nil
}

// Down ends the guests and removes the namespaces.
func (l *Lab) Down() error {
	_, err := l.run(context.Background(), "", "down")
	return err
}

// Consoles is what the guests' kernels have said, the last 8 KiB of each: why one of them has died, if it has.
func (l *Lab) Consoles() string {
	state := os.Getenv("RXELAB_STATE")
	if state == "" {
		state = filepath.Join(os.TempDir(), "rxelab-"+l.name)
	}
	var all strings.Builder
	for n := range l.Guests {
		name := fmt.Sprintf("vm%d.console", n+1)
		text := readFile(filepath.Join(state, name))
		fmt.Fprintf(&all, "%s %s:\n%s\n", l.name, name, text[max(0, len(text)-8<<10):])
	}
	return all.String()
}

// EmuNamespace is where a NIC under test runs: with the veth end Interface in it, or, in
// a Dgram lab, with the loopback on which the guests' frames travel.
func (l *Lab) EmuNamespace() string {
	if l.dgram {
		return l.name
	}
	return l.name + "-emu"
}

// Host is the address in EmuNamespace at which guests reach TCP servers of the test.
func (l *Lab) Host() netip.Addr {
	if l.dgram {
		return netip.MustParseAddr("10.78.0.1")
	}
	return Emu4.Addr()
}

// Command prepares a program that runs in EmuNamespace and ends with ctx.
func (l *Lab) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", l.EmuNamespace()}, argv...)...)
}

// Capture records the guests' RoCE traffic on the bridge in a pcap file until the
// function that it returns is called. It has started when Capture returns. In a Dgram lab the
// bridge is not the guests' network: what is recorded is the loopback, QEMU's datagrams.
func (l *Lab) Capture(ctx context.Context, file string) (stop func() error, err error) {
	where, what := "br0", "udp port 4791"
	if l.dgram {
		where, what = "lo", "udp"
	}
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", l.name, "tcpdump", "-i", where, "-s", "0",
		"-B", "16384", "-n", "--immediate-mode", "-U", "-w", file, what)
	var diag bytes.Buffer
	cmd.Stderr = &diag
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := waitFor(ctx, func() bool { return strings.Contains(readFile(file), "\xd4\xc3\xb2\xa1") }); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, fmt.Errorf("tcpdump: %s", &diag)
	}
	return func() error {
		cmd.Process.Signal(syscall.SIGINT)
		return cmd.Wait()
	}, nil
}

func (l *Lab) run(ctx context.Context, kernel string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(Dir(), "lab"), args...)
	cmd.Env = append(os.Environ(), "RXELAB_NS="+l.name)
	if kernel != "" {
		cmd.Env = append(cmd.Env, "RXELAB_KERNEL="+kernel)
	}
	var diag bytes.Buffer
	cmd.Stderr = &diag
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("lab %s: %w\n%s", strings.Join(args, " "), err, &diag)
	}
	return string(out), nil
}

// Dir is the folder of the lab.
func Dir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// sweep takes down the labs of processes that are gone.
func sweep(ctx context.Context) error {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return nil // no namespaces at all
	}
	for _, e := range entries {
		name, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), "-emu"), namePrefix)
		if !ok {
			continue
		}
		if !gone(strings.TrimSuffix(name, "-d")) {
			continue
		}
		gone := &Lab{name: namePrefix + name}
		if _, err := gone.run(ctx, "", "down"); err != nil {
			return err
		}
	}
	return nil
}
