package harness

import (
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

// Providers of an endpoint's NIC.
const (
	Softroce = "softroce"
	Kernel   = "kernel"
)

// An Endpoint is where one of two communicating programs runs: on a NIC of softroce, or in a guest
// on the kernel's. Its strings are for command lines.
type Endpoint struct {
	Provider string // Softroce or Kernel
	Device   string
	GID      map[bool]string // index of the GID; the key is whether it is IPv6
	Addr     map[bool]string // address of the NIC; likewise
	Socket   string          // of the daemon; "" in a guest
	Host     string          // the IPv4 address at which the other endpoint reaches TCP servers of this one
	Memory   string          // --memory of softroce run; "" is the default

	// PerftestLibrary returns the path, at this endpoint, of the library in perftest/.
	PerftestLibrary func() (string, error)
	// WithHostName returns a prefix for a command that takes a host name and no IPv6 address. The
	// command finds address under the name PeerName, and if it serves the first address of its
	// host, that is an IPv6 address.
	WithHostName func(address string) (prefix string, err error)
	// Start starts a shell command, with env added to its environment. It is killed when ctx ends.
	Start func(ctx context.Context, t *testing.T, command string, env ...string) *Job
	// WaitListening waits until a server that Start started listens on a TCP port.
	WaitListening func(ctx context.Context, j *Job, port int) error
	// CountListeners counts the listening identifiers of the connection manager.
	CountListeners func(ctx context.Context) (int, error)
}

var errNotListening = errors.New("the server ended before it listened")

// OnDaemon completes an endpoint on the daemon at socket. Its programs run in a network namespace.
func OnDaemon(namespace, socket string, e Endpoint) Endpoint {
	e.Provider, e.Socket, e.PerftestLibrary = Softroce, socket, buildPerftestLibrary
	e.WithHostName = func(address string) (string, error) {
		path, err := filepath.Abs(hostNameScript)
		return hostNamePrefix(path, address), err
	}
	e.Start = func(ctx context.Context, t *testing.T, command string, env ...string) *Job {
		t.Helper()
		argv := []string{Binary(t), "run", "-q", "--socket", socket, "--device", e.Device}
		if e.Memory != "" {
			argv = append(argv, "--memory", e.Memory)
		}
		cmd := InNamespace(namespace)(ctx, slices.Concat(argv, []string{"--"}, strings.Fields(command))...)
		cmd.Env = append(os.Environ(), env...)
		return StartJob(t, cmd)
	}
	e.WaitListening = func(ctx context.Context, j *Job, port int) error {
		for !Listens(j.pid, port) {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-j.Done:
				return errNotListening
			case <-time.After(5 * time.Millisecond):
			}
		}
		return nil
	}
	e.CountListeners = func(ctx context.Context) (int, error) {
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

// OnGuest returns the endpoint on the kernel's NIC.
func OnGuest(g *rxelab.Guest) Endpoint {
	e := Endpoint{
		Provider: Kernel, Device: "rxe0", Host: g.Host.String(),
		GID:  map[bool]string{false: fmt.Sprint(rxelab.GIDIndex(false)), true: fmt.Sprint(rxelab.GIDIndex(true))},
		Addr: map[bool]string{false: g.Addr4.String(), true: g.Addr6.String()},
	}
	e.Start = func(ctx context.Context, t *testing.T, command string, env ...string) *Job {
		t.Helper()
		limit := ProgramLimit
		if d, ok := ctx.Deadline(); ok {
			limit = time.Until(d)
		}
		p, err := g.Start(ctx, limit, strings.Join(append(slices.Clone(env), command), " "))
		if err != nil {
			t.Fatal(err)
		}
		j := &Job{Output: p.Output, Done: make(chan struct{})}
		go func() {
			_, j.err = p.Wait()
			close(j.Done)
		}()
		return j
	}
	e.PerftestLibrary = sync.OnceValues(func() (string, error) {
		const inGuest = "/tmp/perftest.so"
		path, err := buildPerftestLibrary()
		if err == nil {
			err = g.Put(context.Background(), path, inGuest)
		}
		return inGuest, err
	})
	putScript := sync.OnceValue(func() error { return g.Put(context.Background(), hostNameScript, guestHostNameScript) })
	e.WithHostName = func(address string) (string, error) {
		return hostNamePrefix(guestHostNameScript, address), putScript()
	}
	e.WaitListening = func(ctx context.Context, j *Job, port int) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go func() {
			select {
			case <-j.Done:
				cancel(errNotListening)
			case <-ctx.Done():
			}
		}()
		return g.WaitListen(ctx, port)
	}
	e.CountListeners = func(ctx context.Context) (int, error) {
		out, err := g.Run(ctx, ProgramLimit, "rdma resource show cm_id")
		return strings.Count(out, "LISTEN"), err
	}
	return e
}

// PeerName is the host name of the other endpoint's address: see Endpoint.WithHostName.
const PeerName = "peer"

const (
	hostNameScript      = "testdata/over-ipv6"
	guestHostNameScript = "/tmp/over-ipv6"
)

func hostNamePrefix(script, address string) string {
	return fmt.Sprintf("unshare --mount %s %s", script, address)
}

// buildPerftestLibrary builds the library that is preloaded into the programs of perftest.
var buildPerftestLibrary = sync.OnceValues(func() (string, error) {
	return buildPreloaded("perftest.so", "perftest/clock.c", "perftest/listenwait.c")
})

// ListenEarlyLibrary builds the library that is preloaded into servers which announce their port
// before they listen.
var ListenEarlyLibrary = sync.OnceValues(func() (string, error) {
	return buildPreloaded("listenearly.so", "testdata/listenearly.c")
})

// buildPreloaded builds a library that is preloaded into programs, and returns its path.
func buildPreloaded(name string, files ...string) (string, error) {
	path := filepath.Join(workDir, name)
	out, err := exec.Command("gcc", append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o", path}, files...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return path, nil
}

// gidIndices are the GID indices of softroce's NICs: after the link-local GID come the IPv4
// addresses, then the other IPv6 ones.
var gidIndices = map[bool]string{false: "1", true: "2"}

// FabricPair starts a daemon with these options and returns its two NICs, which share a fabric.
func FabricPair(t *testing.T, options ...string) (x, y Endpoint) {
	ns := Namespace(t, "fabric")
	return FabricEndpoints(ns, DaemonIn(t, ns, options...))
}

// FabricEndpoints returns the two default NICs of a daemon.
func FabricEndpoints(ns, socket string) (x, y Endpoint) {
	x = Endpoint{
		Device: "softroce0", GID: gidIndices, Host: "127.0.0.1",
		Addr: map[bool]string{false: "192.0.2.1", true: "2001:db8::1"},
	}
	y = Endpoint{
		Device: "softroce1", GID: gidIndices, Host: "127.0.0.1",
		Addr: map[bool]string{false: "192.0.2.2", true: "2001:db8::2"},
	}
	return OnDaemon(ns, socket, x), OnDaemon(ns, socket, y)
}

// VethPair starts two daemons, in a namespace each, on the two interfaces of a veth pair. The first
// daemon gets the options.
func VethPair(t *testing.T, options ...string) (x, y Endpoint) {
	return VethPairOf(t, "packet:eth0", options...)
}

// VethPairOf is VethPair for NICs on some link of eth0.
func VethPairOf(t *testing.T, link string, options ...string) (x, y Endpoint) {
	a, b := Namespace(t, "a"), Namespace(t, "b")
	RunCommand(t, "ip", "link", "add", "eth0", "netns", a, "type", "veth", "peer", "name", "eth0", "netns", b)
	endpoints := [2]Endpoint{}
	for i, ns := range []string{a, b} {
		v4, v6 := fmt.Sprint("10.79.0.", i+1), fmt.Sprint("fd79::", i+1)
		RunCommand(t, "ip", "-n", ns, "addr", "add", v4+"/24", "dev", "eth0")
		RunCommand(t, "ip", "-n", ns, "addr", "add", v6+"/64", "dev", "eth0", "nodad")
		RunCommand(t, "ip", "-n", ns, "link", "set", "eth0", "mtu", "9000", "up")
		endpoints[i] = Endpoint{Device: "rdma0", GID: gidIndices, Host: v4, Addr: map[bool]string{false: v4, true: v6}}
	}
	for i, ns := range []string{a, b} {
		socket := DaemonIn(t, ns, append([]string{"--nic", "rdma0=" + link}, options...)...)
		endpoints[i] = OnDaemon(ns, socket, endpoints[i])
		options = nil
	}
	return endpoints[0], endpoints[1]
}
