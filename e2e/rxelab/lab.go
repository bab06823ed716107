// Package rxelab runs the kernel's Soft-RoCE in small virtual machines, as a peer for end-to-end
// tests. It runs the program `lab` in this folder and talks to the command server in the guests.
// The README describes the guests.
//
// A lab needs root, network namespaces and QEMU, but no KVM. Up installs missing packages where it
// can. A lab does not touch the network of its host: bridge, taps and guests are in network
// namespaces, which Down removes.
package rxelab

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// KernelStable is the Debian package of the guests' default kernel.
const KernelStable = "linux-image-amd64"

// KernelZeroCopy is a package whose kernel fits a lab with ZeroCopy: that of Debian 12 is too old.
// It has no rxe.
const KernelZeroCopy = "linux-image-cloud-amd64/trixie-backports"

// Interface is the network interface for the program under test in EmuNamespace.
const Interface = "emu0"

// MAC is the Ethernet address of Interface, or of softroce's end of a Dgram lab.
const MAC = "52:54:00:77:00:10"

// Addresses of Interface, or of softroce's end of a Dgram lab.
var (
	Emu4 = netip.MustParsePrefix("10.77.0.10/24")
	Emu6 = netip.MustParsePrefix("fd77:7:7::10/64")
)

// Options describe a lab.
type Options struct {
	Kernel string // Debian package, or PACKAGE/SUITE; "" is KernelStable
	VMs    int    // 1 to 8; 0 is 1
	MTU    int    // of the guests' Ethernet; 0 is 9000
	Dgram  bool   // the guests' network is QEMU's datagrams on loopback instead of a bridge

	// ZeroCopy is for AF_XDP zero-copy on the guests' eth0, which needs Linux 6.13. The guests have
	// no RDMA device.
	ZeroCopy bool

	Processors int // of each guest; 0 is 1
}

// A Lab is a set of running guests and their namespaces.
type Lab struct {
	Release string // release of the guests' kernel, as printed by uname -r
	Guests  []*Guest

	name    string
	dgram   bool
	options Options
}

const namePrefix = "softroce-lab-"

// Up boots a lab and returns when the RDMA device of every guest is active, which takes about five
// seconds. The first time it downloads the kernel. It first removes what killed processes have left
// behind. Labs that a process runs at the same time must differ in Dgram, ZeroCopy, or whether they
// have the default kernel.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if err := sweep(ctx); err != nil {
		return nil, err
	}
	l := &Lab{name: fmt.Sprintf("%s%d", namePrefix, os.Getpid()), dgram: o.Dgram, options: o}
	for _, suffix := range []struct {
		name string
		has  bool
	}{{"-d", o.Dgram}, {"-z", o.ZeroCopy}, {"-k", o.Kernel != "" && o.Kernel != KernelStable}} {
		if suffix.has {
			l.name += suffix.name
		}
	}
	if err := l.boot(ctx); err != nil {
		l.Down()
		return nil, err
	}
	return l, nil
}

// Reboot replaces the guests and the namespaces by new ones. The lab must not be in use, and
// earlier Guests are no longer valid.
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
	if o.Processors != 0 {
		args = append(args, "--smp", strconv.Itoa(o.Processors))
	}
	if o.Dgram {
		args = append(args, "--dgram")
	}
	if o.ZeroCopy {
		args = append(args, "--zero-copy")
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

// Down stops the guests and removes the namespaces.
func (l *Lab) Down() error {
	_, err := l.run(context.Background(), "", "down")
	return err
}

// LastWords returns what QEMU and the consoles of guests that have ended printed last, or "" if all
// guests run.
func (l *Lab) LastWords(ctx context.Context) (string, error) {
	for _, g := range l.Guests {
		c, err := Dial(ctx, l.name, g.ctl)
		if err == nil {
			c.Close()
			continue
		}
		status, err := l.run(ctx, "", "status")
		if err != nil || strings.Contains(status, "not running") {
			return status, err
		}
	}
	return "", nil
}

// damage is what a kernel prints on its console when its memory may be corrupt. The first is of
// rxe, which then frees a queue pair that is in use.
var damage = regexp.MustCompile(`.*(cleanup failed, err|BUG:|Oops|refcount_t|general protection).*`)

// Damage returns a line of a guest's console that says that its kernel may be damaged, or "".
func (l *Lab) Damage() (string, error) {
	for n := range l.Guests {
		text, err := os.ReadFile(l.console(n))
		if err != nil {
			return "", err
		}
		if line := damage.Find(text); line != nil {
			return strings.TrimSpace(string(line)), nil
		}
	}
	return "", nil
}

// console returns the path of the file of a guest's console.
func (l *Lab) console(n int) string {
	state := os.Getenv("RXELAB_STATE")
	if state == "" {
		state = filepath.Join(os.TempDir(), "rxelab-"+l.name)
	}
	return filepath.Join(state, fmt.Sprintf("vm%d.console", n+1))
}

// SaveConsoles copies the file of each guest's console into a directory.
func (l *Lab) SaveConsoles(dir string) error {
	for n := range l.Guests {
		from := l.console(n)
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, l.name+"-"+filepath.Base(from)), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// EmuNamespace is where the NIC under test runs. It contains Interface, or in a Dgram lab the
// loopback interface that carries the guests' frames.
func (l *Lab) EmuNamespace() string {
	if l.dgram {
		return l.name
	}
	return l.name + "-emu"
}

// Host is the address in EmuNamespace at which guests reach TCP servers.
func (l *Lab) Host() netip.Addr {
	if l.dgram {
		return netip.MustParseAddr("10.78.0.1")
	}
	return Emu4.Addr()
}

// Command prepares a command in EmuNamespace that is killed when ctx ends.
func (l *Lab) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", l.EmuNamespace()}, argv...)...)
}

// Capture records the guests' RoCE traffic on the bridge in a pcap file until the returned function
// is called. In a Dgram lab it records QEMU's datagrams on the loopback interface.
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

// Dir returns the folder of this package, in the source tree that the working directory belongs to:
// a program that was built with -trimpath does not know its source.
func Dir() string {
	const path = "e2e/rxelab"
	at, err := os.Getwd()
	for err == nil {
		dir := filepath.Join(at, path)
		if _, err := os.Stat(filepath.Join(dir, "lab")); err == nil {
			return dir
		}
		if at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	return path // the error of its use names it
}

// sweep takes down the labs of processes that have ended.
func sweep(ctx context.Context) error {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return nil // there are no namespaces
	}
	for _, e := range entries {
		name, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), "-emu"), namePrefix)
		if !ok {
			continue
		}
		if pid, _, _ := strings.Cut(name, "-"); !hasEnded(pid) {
			continue
		}
		stale := &Lab{name: namePrefix + name}
		if _, err := stale.run(ctx, "", "down"); err != nil {
			return err
		}
	}
	return nil
}
