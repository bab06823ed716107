package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"softroce/e2e/rxelab"
	"softroce/verbs"
)

// What all tests of this package share: the binary under test and the labs, each made
// when the first test asks for it and removed when the last one has ended.
var (
	softroceBinary = sync.OnceValues(buildBinary)
	bridged        = sync.OnceValues(func() (*rxelab.Lab, error) { return upLab(false) })
	dgrammed       = sync.OnceValues(func() (*rxelab.Lab, error) { return upLab(true) })

	workDir string

	labsMu sync.Mutex
	labs   []*rxelab.Lab
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if err := manyAtATime(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var err error
	if workDir, err = shortDir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(workDir)
	// A test run that was killed, or has panicked, has left its own.
	if err := rxelab.SweepNamespaces(context.Background(), namespacePrefixes...); err != nil {
		fmt.Fprintln(os.Stderr, "namespaces of tests that were killed:", err)
	}
	if err := rxelab.SweepFolders(namespacePrefixes[0]); err != nil {
		fmt.Fprintln(os.Stderr, "folders of tests that were killed:", err)
	}
	status := 1
	defer func() {
		for _, l := range labs {
			if status != 0 {
				fmt.Fprint(os.Stderr, l.Consoles())
			}
			if err := l.Down(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	status = m.Run()
	return status
}

// shortDir makes a folder for sockets, whose paths have little room, and for what is to be swept if this process is killed.
func shortDir() (string, error) {
	return os.MkdirTemp("", fmt.Sprintf("%s%d-", namespacePrefixes[0], os.Getpid()))
}

// buildBinary builds what is tested; $SOFTROCE_E2E_BINARY names another build of it, such as
// one with the race detector.
func buildBinary() (string, error) {
	if path := os.Getenv("SOFTROCE_E2E_BINARY"); path != "" {
		return path, nil
	}
	path := filepath.Join(workDir, "softroce")
	out, err := exec.Command("go", "build", "-o", path, "softroce/cmd/softroce").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
}

func upLab(dgram bool) (*rxelab.Lab, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // packages may have to be fetched
	defer cancel()
	labsMu.Lock()
	defer labsMu.Unlock()
	l, err := rxelab.Up(ctx, rxelab.Options{Kernel: kernelPackage, Dgram: dgram})
	if err == nil {
		labs = append(labs, l)
	}
	return l, err
}

// needRoot leaves the test out where it cannot run.
func needRoot(t *testing.T, what string) {
	t.Helper()
	switch {
	case runtime.GOARCH != "amd64":
		t.Skipf("the lab's guests are for amd64, this is %s", runtime.GOARCH)
	case os.Geteuid() != 0:
		t.Skipf("needs root, for %s", what)
	case testing.Short():
		t.Skip("not with -short")
	}
}

// A link is a kind of wire between softroce and the guest.
type link struct {
	name string
	lane *lane
	lab  func() (*rxelab.Lab, error)
	nic  func(*rxelab.Lab) string // the daemon's LINK
}

// kernelPackage is the Debian package of the guests' kernel; "" is the stable one's.
var kernelPackage = os.Getenv("SOFTROCE_E2E_KERNEL")

// anotherKernel reports whether the guests' kernel is not the one with which every test runs.
func anotherKernel() bool { return kernelPackage != "" && kernelPackage != rxelab.KernelStable }

// links are those that tests go over. What a link does depends on the kernel of this machine and not on the guest's: with
// another kernel there one link will do.
var links = func() []link {
	all := []link{
		{"packet", &onBridge, bridged, func(*rxelab.Lab) string { return "packet:" + rxelab.Interface }},
		{"udp", &onBridge, bridged, func(*rxelab.Lab) string { return "udp:" + rxelab.Interface }},
		{"dgram", &onCable, dgrammed, func(l *rxelab.Lab) string {
			g := l.Guests[0]
			return fmt.Sprintf("dgram:%v,%v,%v,%v,mtu=9000,mac=%s", g.DgramPeer, g.Dgram, rxelab.Emu4, rxelab.Emu6, rxelab.MAC)
		}},
	}
	if anotherKernel() {
		return all[:1]
	}
	return all
}()

// overEachLink runs a test once for each link, with a daemon of its own.
func overEachLink(t *testing.T, test func(t *testing.T, s *site)) {
	needRoot(t, "network namespaces and a guest's network")
	t.Parallel()
	for _, l := range links {
		t.Run(l.name, func(t *testing.T) {
			l.lane.take(t)
			test(t, newSite(t, l))
		})
	}
}

// first reports whether the site is on the first link. There a test shows all that it has to show; on the others, what the
// way of the packets could change: a transport does not know over which link it speaks.
func (s *site) first() bool { return s.link == links[0].name }

// A site is a guest with the kernel's NIC and a daemon with softroce's, on one wire.
type site struct {
	link   string // the name of its wire
	lab    *rxelab.Lab
	guest  *rxelab.Guest
	nic    *verbs.Context
	socket string
}

const startLimit = 10 * time.Second

func newSite(t *testing.T, l link) *site {
	t.Helper()
	lab, err := l.lab()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{link: l.name, lab: lab, guest: lab.Guests[0], socket: filepath.Join(t.TempDir(), "s.sock")}
	s.calm(t)
	s.record(t)
	daemon := startDaemon(t, lab.Command, "--socket", s.socket, "--nic", "softroce0="+l.nic(lab))
	s.nic = openNIC(t, daemon, s.socket)
	return s
}

// record keeps what passes the bridge, for go test -artifacts.
func (s *site) record(t *testing.T) {
	t.Helper()
	if f := flag.Lookup("test.artifacts"); f == nil || f.Value.String() != "true" {
		return
	}
	stop, err := s.lab.Capture(context.WithoutCancel(t.Context()), filepath.Join(t.ArtifactDir(), "bridge.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("tcpdump: %v", err)
		}
	})
}

// calm undoes what a test has done to the guest's network.
func (s *site) calm(t *testing.T) {
	t.Helper()
	if err := s.guest.Calm(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// A process is softroce daemon while a test runs.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan error
}

// startDaemon runs softroce daemon, as the command that it is given or, for nil, as it is,
// until the test ends; it then has to end cleanly.
func startDaemon(t *testing.T, in func(ctx context.Context, argv ...string) *exec.Cmd, args ...string) *process {
	t.Helper()
	p := launchDaemon(t, in, args...)
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("daemon:\n%s", &p.stderr)
		}
	})
	return p
}

// launchDaemon is startDaemon for a test that sees to the daemon's end itself, or else kills it.
func launchDaemon(t *testing.T, in func(ctx context.Context, argv ...string) *exec.Cmd, args ...string) *process {
	t.Helper()
	bin, err := softroceBinary()
	if err != nil {
		t.Fatal(err)
	}
	if in == nil {
		in = func(ctx context.Context, argv ...string) *exec.Cmd {
			return exec.CommandContext(ctx, argv[0], argv[1:]...)
		}
	}
	p := &process{ended: make(chan error, 1)}
	p.cmd = in(context.Background(), append([]string{bin, "daemon"}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stderr, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() { p.cmd.Process.Kill() })
	return p
}

// stop asks the daemon to end and sees it do so. Once is enough.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.ended:
		if err != nil {
			t.Errorf("daemon on SIGTERM: %v", err)
		}
	case <-time.After(10 * time.Second):
		p.cmd.Process.Signal(syscall.SIGQUIT) // shows its goroutines
		t.Errorf("daemon did not end on SIGTERM: %v", <-p.ended)
	}
	p.ended <- nil
}

// openNIC opens the daemon's first NIC as soon as there is one.
func openNIC(t *testing.T, daemon *process, socket string) *verbs.Context {
	t.Helper()
	for limit := time.Now().Add(startLimit); ; time.Sleep(10 * time.Millisecond) {
		c, err := verbs.Open(t.Context(), "", verbs.WithSocket(socket))
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return c
		}
		if time.Now().After(limit) || !errors.Is(err, verbs.ErrNoDaemon) || len(daemon.ended) > 0 {
			t.Fatalf("no NIC: %v", err)
		}
	}
}

// An ipVersion is the address family of the RoCE packets.
type ipVersion struct {
	name string
	ipv6 bool
	emu  netip.Prefix

	guestGID int // index of the guest's GID
}

var ipVersions = []ipVersion{{"IPv4", false, rxelab.Emu4, rxelab.GIDIndex(false)}, {"IPv6", true, rxelab.Emu6, rxelab.GIDIndex(true)}}

// gidIndex is the index of softroce's GID in its NIC's table.
func (s *site) gidIndex(t *testing.T, v ipVersion) int {
	t.Helper()
	gids, err := s.nic.GIDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gids {
		if g.GID.Addr() == v.emu.Addr() {
			return g.Index
		}
	}
	t.Fatalf("no GID for %v among %v", v.emu.Addr(), gids)
	return 0
}

// listens reports whether the process has a TCP server socket on port.
func listens(pid, port int) bool {
	for _, table := range []string{"tcp", "tcp6"} {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if strings.Contains(string(b), fmt.Sprintf(":%04X 00000000", port)) &&
			strings.Contains(string(b), " 0A ") { // TCP_LISTEN
			return true
		}
	}
	return false
}
