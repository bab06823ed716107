package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"softroce/e2e/rxelab"
	"softroce/internal/control"
)

// An end is where one of two programs that talk runs: beside a NIC of softroce, or in a guest
// on the kernel's. Its strings are what a command line can name.
type end struct {
	what   string // "softroce" or "kernel"
	device string
	gid    map[bool]string        // index of the GID, for IPv6 or not
	addr   map[bool]string        // of the NIC
	host   string                 // the IPv4 address at which the other end reaches this one's TCP servers
	turns  func() (string, error) // the library that buildTurns builds, here

	// named returns what is to be put before a command that takes no address but a name: namedPeer is the address's. Where
	// the command serves the first address of its host, that is an IPv6 one.
	named func(address string) (prefix string, err error)
	// start starts a shell command, with these variables in its environment. It ends by itself, or with ctx.
	start func(ctx context.Context, t *testing.T, command string, env ...string) *job
	// listening waits until a server that was started here has its TCP port.
	listening func(ctx context.Context, j *job, port int) error
	// listeners counts the identifiers of the connection manager that listen here.
	listeners func(ctx context.Context) (int, error)
}

// A job is a program that runs.
type job struct {
	pid  int // 0 in a guest
	out  func() string
	done chan struct{}
	err  error // after done
}

// wait returns what the program has printed, and how it ended.
func (j *job) wait() (string, error) {
	<-j.done
	return j.out(), j.err
}

// running reports whether the program has not ended.
func (j *job) running() bool {
	select {
	case <-j.done:
		return false
	default:
		return true
	}
}

// A buffer is what a program prints, to be looked at while it runs.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// beside is an end on one of softroce's NICs: programs run in a network namespace, on the
// daemon behind socket.
func beside(namespace, socket string, e end) end {
	e.what, e.turns = "softroce", buildTurns
	e.named = func(address string) (string, error) {
		path, err := filepath.Abs(namedScript)
		return inNames(path, address), err
	}
	e.start = func(ctx context.Context, t *testing.T, command string, env ...string) *job {
		t.Helper()
		bin, err := softroceBinary()
		if err != nil {
			t.Fatal(err)
		}
		argv := []string{"netns", "exec", namespace, bin, "run", "-q", "--socket", socket, "--device", e.device, "--"}
		cmd := exec.CommandContext(ctx, "ip", append(argv, strings.Fields(command)...)...)
		cmd.Env = append(os.Environ(), env...)
		return startJob(t, cmd)
	}
	e.listening = func(ctx context.Context, j *job, port int) error {
		for !listens(j.pid, port) {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-j.done:
				return errors.New("the server has ended before it listened")
			case <-time.After(5 * time.Millisecond):
			}
		}
		return nil
	}
	e.listeners = func(ctx context.Context) (int, error) {
		c, err := control.Dial(ctx, socket)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		text, err := c.Snapshot(ctx)
		return strings.Count(string(text), `"state":"listening"`), err
	}
	return e
}

func startJob(t *testing.T, cmd *exec.Cmd) *job {
	t.Helper()
	var b buffer
	j := &job{out: b.String, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &b, &b
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j.pid = cmd.Process.Pid
	go func() {
		j.err = cmd.Wait()
		close(j.done)
	}()
	return j
}

// inGuest is an end on the kernel's NIC.
func inGuest(g *rxelab.Guest) end {
	e := end{
		what: "kernel", device: "rxe0", host: g.Host.String(),
		gid:  map[bool]string{false: fmt.Sprint(rxelab.GIDIndex(false)), true: fmt.Sprint(rxelab.GIDIndex(true))},
		addr: map[bool]string{false: g.Addr4.String(), true: g.Addr6.String()},
	}
	e.start = func(ctx context.Context, t *testing.T, command string, env ...string) *job {
		t.Helper()
		limit := programLimit
		if d, ok := ctx.Deadline(); ok {
			limit = time.Until(d)
		}
		p, err := g.Start(ctx, limit, strings.Join(append(slices.Clone(env), command), " "))
		if err != nil {
			t.Fatal(err)
		}
		j := &job{out: p.Output, done: make(chan struct{})}
		go func() {
			_, j.err = p.Wait()
			close(j.done)
		}()
		return j
	}
	e.turns = sync.OnceValues(func() (string, error) {
		const there = "/tmp/turns.so"
		path, err := buildTurns()
		if err == nil {
			err = g.Put(context.Background(), path, there)
		}
		return there, err
	})
	put := sync.OnceValue(func() error { return g.Put(context.Background(), namedScript, namedThere) })
	e.named = func(address string) (string, error) { return inNames(namedThere, address), put() }
	e.listening = func(ctx context.Context, j *job, port int) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() {
			select {
			case <-j.done:
				cancel(errors.New("the server has ended before it listened"))
			case <-ctx.Done():
			}
		}()
		return g.WaitListen(ctx, port)
	}
	e.listeners = func(ctx context.Context) (int, error) {
		out, err := g.Run(ctx, programLimit, "rdma resource show cm_id")
		return strings.Count(out, "LISTEN"), err
	}
	return e
}

const (
	namedScript = "testdata/over-ipv6" // gives a command names of its own
	namedThere  = "/tmp/over-ipv6"     // in a guest
	namedPeer   = "peer"               // the name that it knows
)

func inNames(script, address string) string {
	return fmt.Sprintf("unshare --mount %s %s", script, address)
}

// namespacePrefixes are how the names of namespaces, and of folders with the first, begin that tests make: the number of the process follows.
var namespacePrefixes = []string{"softroce-e2e-", "softroce-cable-"}

// A namespace is a network namespace that ends with the test.
func namespace(t *testing.T, name string) string {
	t.Helper()
	name = fmt.Sprintf("%s%d-%s", namespacePrefixes[0], os.Getpid(), name)
	command(t, "ip", "netns", "add", name)
	t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	command(t, "ip", "-n", name, "link", "set", "lo", "up")
	return name
}

// daemonIn starts a daemon in a namespace and returns its socket when it serves there.
func daemonIn(t *testing.T, namespace string, args ...string) (socket string) {
	t.Helper()
	dir, err := shortDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	in := func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", namespace}, argv...)...)
	}
	openNIC(t, startDaemon(t, in, append([]string{"--socket", socket}, args...)...), socket).Close()
	return socket
}

// Indices of the GIDs of softroce's NICs: those of IPv4 addresses come first, after the link-local one.
var gidIndices = map[bool]string{false: "1", true: "2"}

// onFabric are two NICs of one daemon, which is given options.
func onFabric(t *testing.T, options ...string) (x, y end) {
	ns := namespace(t, "fabric")
	return fabricEnds(ns, daemonIn(t, ns, options...))
}

// fabricEnds are the default NICs of a daemon.
func fabricEnds(ns, socket string) (x, y end) {
	x = end{device: "softroce0", gid: gidIndices, host: "127.0.0.1", addr: map[bool]string{false: "192.0.2.1", true: "2001:db8::1"}}
	y = end{device: "softroce1", gid: gidIndices, host: "127.0.0.1", addr: map[bool]string{false: "192.0.2.2", true: "2001:db8::2"}}
	return beside(ns, socket, x), beside(ns, socket, y)
}

// onVeth are NICs of two daemons, in two namespaces, on the ends of a veth pair. The first daemon is given options.
func onVeth(t *testing.T, options ...string) (x, y end) {
	a, b := namespace(t, "a"), namespace(t, "b")
	command(t, "ip", "link", "add", "eth0", "netns", a, "type", "veth", "peer", "name", "eth0", "netns", b)
	ends := [2]end{}
	for i, ns := range []string{a, b} {
		v4, v6 := fmt.Sprint("10.79.0.", i+1), fmt.Sprint("fd79::", i+1)
		command(t, "ip", "-n", ns, "addr", "add", v4+"/24", "dev", "eth0")
		command(t, "ip", "-n", ns, "addr", "add", v6+"/64", "dev", "eth0", "nodad")
		command(t, "ip", "-n", ns, "link", "set", "eth0", "mtu", "9000", "up")
		ends[i] = end{device: "rdma0", gid: gidIndices, host: v4, addr: map[bool]string{false: v4, true: v6}}
	}
	for i, ns := range []string{a, b} {
		ends[i] = beside(ns, daemonIn(t, ns, append([]string{"--nic", "rdma0=packet:eth0"}, options...)...), ends[i])
		options = nil
	}
	return ends[0], ends[1]
}

// beside is an end at the site's NIC of softroce.
func (s *site) beside(t *testing.T) end {
	return beside(s.lab.EmuNamespace(), s.socket, end{
		device: "softroce0", host: s.lab.Host().String(),
		gid:  map[bool]string{false: fmt.Sprint(s.gidIndex(t, ipVersions[0])), true: fmt.Sprint(s.gidIndex(t, ipVersions[1]))},
		addr: map[bool]string{false: rxelab.Emu4.Addr().String(), true: rxelab.Emu6.Addr().String()},
	})
}
