package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"softroce/attach/control"
	"softroce/e2e/rxelab"
)

// The distribution's programs that connect through librdmacm, on our libraries and daemon: each end of a
// conversation on softroce, or on the kernel's NIC and connection manager.

// cmLibraries is the folder of libibverbs.so.1 and librdmacm.so.1, built from this tree.
var cmLibraries = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(workDir, "cmlib")
	out, err := exec.Command("make", "-C", "../libverbs", "OUT="+dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make libs: %w: %s", err, out)
	}
	return dir, nil
})

// A cmEnd is where one of two programs runs.
type cmEnd struct {
	addr   map[bool]netip.Addr // IPv6 or not
	device string
	guest  bool
	start  func(ctx context.Context, argv []string) (cmProgram, error)

	listeners func(ctx context.Context) int // identifiers that listen
}

// A cmProgram is a program that runs.
type cmProgram interface {
	wait() (output string, err error)
	running() bool
}

// A local program runs on our libraries.
type localProgram struct {
	out  bytes.Buffer
	done chan struct{}
	err  error
}

func (p *localProgram) wait() (string, error) { <-p.done; return p.out.String(), p.err }
func (p *localProgram) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// localEnd is an end with our libraries at the daemon behind a socket; command prepares what runs in its namespace.
func localEnd(t *testing.T, socket, device string, v4, v6 string, command func(context.Context, ...string) *exec.Cmd) cmEnd {
	t.Helper()
	lib, err := cmLibraries()
	if err != nil {
		t.Fatal(err)
	}
	return cmEnd{
		addr: map[bool]netip.Addr{false: netip.MustParseAddr(v4), true: netip.MustParseAddr(v6)}, device: device,
		start: func(ctx context.Context, argv []string) (cmProgram, error) {
			p := &localProgram{done: make(chan struct{})}
			c := command(ctx, argv...)
			c.Env = append(os.Environ(), "SOFTROCE_SOCKET="+socket, "SOFTROCE_DEVICE="+device, "LD_LIBRARY_PATH="+lib)
			c.Stdout, c.Stderr = &p.out, &p.out
			c.WaitDelay = time.Second
			if err := c.Start(); err != nil {
				return nil, err
			}
			go func() { p.err = c.Wait(); close(p.done) }()
			return p, nil
		},
		listeners: func(ctx context.Context) int { return cmListeners(ctx, t, socket) },
	}
}

// cmListeners counts the identifiers of a daemon that listen.
func cmListeners(ctx context.Context, t *testing.T, socket string) int {
	t.Helper()
	c, err := control.Dial(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text, err := c.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), `"state":"listening"`)
}

// A guestProgram runs on the kernel's NIC.
type guestProgram struct{ *rxelab.Process }

func (p guestProgram) wait() (string, error) { return p.Wait() }
func (p guestProgram) running() bool {
	select {
	case <-p.Done():
		return false
	default:
		return true
	}
}

func guestEnd(g *rxelab.Guest) cmEnd {
	return cmEnd{
		addr: map[bool]netip.Addr{false: g.Addr4, true: g.Addr6}, device: "rxe0", guest: true,
		start: func(ctx context.Context, argv []string) (cmProgram, error) {
			p, err := g.Start(ctx, cmLimit, strings.Join(argv, " "))
			return guestProgram{p}, err
		},
		listeners: func(ctx context.Context) int {
			out, err := g.Run(ctx, cmLimit, "rdma resource show cm_id")
			if err != nil {
				return 0
			}
			return strings.Count(out, "LISTEN")
		},
	}
}

// cmLimit is how long a conversation may take.
const cmLimit = 60 * time.Second

// A cmTalk is a conversation: a server and a client. In their arguments SELF and PEER are addresses of the two ends, DEV is
// the device's name.
type cmTalk struct {
	name           string
	server, client string
	ipv4only       bool
	endless        bool   // the server goes on after its client has ended
	want           string // in the client's output
	farewell       string // what a program may say when all is done, and fail
	again          bool   // the client goes on to be started until the server has ended
}

// rpingFarewell is what rping says where its event thread sees that its main thread has closed the channel, on the kernel's
// librdmacm, before the process is gone.
const rpingFarewell = "rdma_get_cm_event: Bad file descriptor"

// few of the conversations, the first, will do where others have shown the rest.
const few = 5

// conversations lists every program of rdmacm-utils, and perftest's way to connect like them.
var conversations = []cmTalk{
	{name: "rping", server: "rping -s -a SELF -C 10 -V", client: "rping -c -a PEER -C 10 -V -v", want: "rdma-ping-9:", farewell: rpingFarewell},
	{name: "rping, large", server: "rping -s -a SELF -C 3 -S 60000 -V", client: "rping -c -a PEER -C 3 -S 60000 -V -v", want: "rdma-ping-2:", farewell: rpingFarewell},
	{name: "ucmatose", server: "ucmatose -b SELF -c 4 -C 10 -S 1000", client: "ucmatose -c 4 -C 10 -S 1000 -s PEER", want: "return status 0"},
	{name: "ucmatose, type of service", server: "ucmatose -b SELF -t 104", client: "ucmatose -t 104 -s PEER", want: "return status 0"},
	{name: "udaddy", server: "udaddy -b SELF -C 10 -S 500", client: "udaddy -C 10 -S 500 -s PEER", want: "return status 0"},
	{name: "mckey", ipv4only: true, server: "mckey -m 239.77.0.9 -b SELF -C 4", client: "mckey -s -m 239.77.0.9 -b SELF -C 4", again: true, want: "return status 0"},
	{name: "rdma_client", ipv4only: true, server: "rdma_server", client: "rdma_client -s PEER", want: "end 0"},
	{name: "rdma_xclient", ipv4only: true, server: "rdma_xserver", client: "rdma_xclient -s PEER", want: "end 0"},
	{name: "cmtime", server: "cmtime -b SELF -c 20", client: "cmtime -c 20 -s PEER", endless: true, want: "disconnect"},
	{name: "ib_write_bw", ipv4only: true, server: "ib_write_bw -F -R -d DEV -n 100 -s 4096", client: "ib_write_bw -F -R -d DEV -n 100 -s 4096 PEER", want: "#bytes"},
	{name: "ib_send_bw, four queue pairs", ipv4only: true, server: "ib_send_bw -F -R -d DEV -q 4 -n 100", client: "ib_send_bw -F -R -d DEV -q 4 -n 100 PEER", want: "#bytes"},
	{name: "ib_send_lat over UD", ipv4only: true, server: "ib_send_lat -F -R -c UD -d DEV -n 100", client: "ib_send_lat -F -R -c UD -d DEV -n 100 PEER", want: "#bytes"},
	{name: "ib_read_lat", ipv4only: true, server: "ib_read_lat -F -R -d DEV -n 100", client: "ib_read_lat -F -R -d DEV -n 100 PEER", want: "#bytes"},
}

func TestConnectionManagerProgramsOnOneDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	openNIC(t, startDaemon(t, nil, "--socket", socket), socket)
	here := func(ctx context.Context, argv ...string) *exec.Cmd {
		return exec.CommandContext(ctx, argv[0], argv[1:]...)
	}
	a := localEnd(t, socket, "softroce0", "192.0.2.1", "2001:db8::1", here)
	b := localEnd(t, socket, "softroce1", "192.0.2.2", "2001:db8::2", here)
	t.Run("two NICs", func(t *testing.T) {
		xrc := cmTalk{name: "rdma_xclient over XRC", ipv4only: true, server: "rdma_xserver -c x", client: "rdma_xclient -c x -s PEER", want: "end 0"}
		converse(t, a, b, append(conversations, xrc))
	})
	t.Run("one NIC", func(t *testing.T) { converse(t, a, a, conversations[:few]) })
}

func TestConnectionManagerProgramsBetweenTwoDaemons(t *testing.T) {
	needRoot(t, "network namespaces")
	var ends [2]cmEnd
	names := [2]string{"srcm-a", "srcm-b"}
	for _, n := range names {
		exec.Command("ip", "netns", "del", n).Run() // what a test that was killed left
		command(t, "ip", "netns", "add", n)
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "del", n).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
		command(t, "ip", "-n", n, "link", "set", "lo", "up")
	}
	command(t, "ip", "link", "add", "veth0", "mtu", "9000", "netns", names[0], "type", "veth", "peer", "name", "veth0", "mtu", "9000", "netns", names[1])
	for i, n := range names {
		v4, v6 := fmt.Sprintf("10.88.0.%d", i+1), fmt.Sprintf("fd88::%d", i+1)
		command(t, "ip", "-n", n, "addr", "add", v4+"/24", "dev", "veth0")
		command(t, "ip", "-n", n, "addr", "add", v6+"/64", "dev", "veth0", "nodad")
		command(t, "ip", "-n", n, "link", "set", "veth0", "up")
	}
	for i, n := range names {
		in := func(ctx context.Context, argv ...string) *exec.Cmd {
			return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n}, argv...)...)
		}
		socket := filepath.Join(t.TempDir(), "s.sock")
		openNIC(t, startDaemon(t, in, "--socket", socket, "--nic", "softroce0=packet:veth0"), socket)
		ends[i] = localEnd(t, socket, "softroce0", fmt.Sprintf("10.88.0.%d", i+1), fmt.Sprintf("fd88::%d", i+1), in)
	}
	converse(t, ends[0], ends[1], conversations)
}

func TestConnectionManagerProgramsWithTheKernel(t *testing.T) {
	overEachLink(t, func(t *testing.T, s *site) {
		us := localEnd(t, s.socket, "softroce0", rxelab.Emu4.Addr().String(), rxelab.Emu6.Addr().String(), s.lab.Command)
		them := guestEnd(s.guest)
		list := conversations
		if s.link != "packet" {
			list = list[:few]
		}
		t.Run("kernel connects", func(t *testing.T) { converse(t, us, them, list) })
		t.Run("kernel serves", func(t *testing.T) { converse(t, them, us, list) })
	})
}

// converse runs each conversation between two ends, over IPv4 and IPv6.
func converse(t *testing.T, server, client cmEnd, list []cmTalk) {
	for _, c := range list {
		for _, ipv6 := range []bool{false, true} {
			if ipv6 && c.ipv4only {
				continue
			}
			name := c.name + "/IPv4"
			if ipv6 {
				name = c.name + "/IPv6"
			}
			t.Run(name, func(t *testing.T) { c.run(t, server, client, ipv6) })
		}
	}
}

// words makes a command line: SELF is the end's own address, PEER the other's.
func (e *cmEnd) words(line string, peer *cmEnd, ipv6 bool) []string {
	r := strings.NewReplacer("SELF", e.addr[ipv6].String(), "PEER", peer.addr[ipv6].String(), "DEV", e.device)
	return strings.Fields(r.Replace(line))
}

func (c *cmTalk) run(t *testing.T, server, client cmEnd, ipv6 bool) {
	ctx, cancel := context.WithTimeout(t.Context(), cmLimit)
	defer cancel()
	argv := server.words(c.server, &client, ipv6)
	if c.endless && server.guest {
		argv = append([]string{"timeout", "4"}, argv...) // what ends here goes on there
	}
	s, err := server.start(ctx, argv)
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.speak(ctx, s, server, client, client.words(c.client, &server, ipv6))
	if c.endless || err != nil && s.running() && !c.saidFarewell(out) {
		cancel()
	}
	serverOut, serverErr := s.wait()
	if client.guest && c.saidFarewell(out) {
		err = nil
	}
	if server.guest && c.saidFarewell(serverOut) {
		serverErr = nil
	}
	if err != nil || !strings.Contains(out, c.want) || serverErr != nil && !c.endless {
		t.Errorf("client: %v\n%s\nserver: %v\n%s", err, out, serverErr, serverOut)
	}
}

func (c *cmTalk) saidFarewell(out string) bool {
	return c.farewell != "" && strings.Contains(out, c.farewell)
}

// speak starts the client when the server listens, and returns what came of it.
func (c *cmTalk) speak(ctx context.Context, s cmProgram, server, client cmEnd, argv []string) (string, error) {
	for !c.again && s.running() && server.listeners(ctx) == 0 {
		if ctx.Err() != nil {
			return "", errors.New("the server does not listen")
		}
		time.Sleep(20 * time.Millisecond)
	}
	for {
		p, err := client.start(ctx, argv)
		if err != nil {
			return "", err
		}
		out, err := p.wait()
		switch {
		case ctx.Err() != nil:
			return out, fmt.Errorf("took too long: %w", ctx.Err())
		case c.again && err == nil && s.running():
			time.Sleep(100 * time.Millisecond) // who is no member yet misses a datagram
		default:
			return out, err
		}
	}
}
