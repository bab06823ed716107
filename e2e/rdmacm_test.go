package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The distribution's programs that connect through librdmacm, on our libraries and daemon: each end of a
// conversation on softroce, or on the kernel's NIC and connection manager.

// copies counts the files that rcopy has made.
var copies atomic.Int64

// cmLimit is how long a conversation may take.
const cmLimit = programLimit

// A cmTalk is a conversation: a server and a client. In their arguments SELF and PEER are addresses of the two ends, DEV is
// the device's name.
type cmTalk struct {
	name           string
	server, client string
	ipv4only       bool
	ipv6only       bool
	here           bool           // not with the kernel, where other rows show the same
	endless        bool           // the server goes on after its client has ended
	want           string         // in the client's output
	refuses        *regexp.Regexp // what the client says on the kernel's NIC, which lacks what it needs; nil: it runs there
	ourClient      bool           // the kernel's librdmacm may tell of the end before the data are read, which rstream takes for an error
	farewell       string         // what a program may say when all is done, and fail
	again          bool           // the client goes on to be started until the server has ended
}

// rpingFarewell is what rping says where its event thread sees that its main thread has closed the channel, on the kernel's
// librdmacm, before the process is gone.
const rpingFarewell = "rdma_get_cm_event: Bad file descriptor"

// few of the conversations, the first, will do where others have shown the rest.
const few = 5

// conversations lists every program of rdmacm-utils.
var conversations = []cmTalk{
	{name: "rping", server: "rping -s -a SELF -C 10 -V", client: "rping -c -a PEER -C 10 -V -v", want: "rdma-ping-9:", farewell: rpingFarewell},
	{name: "rping, large", server: "rping -s -a SELF -C 3 -S 60000 -V", client: "rping -c -a PEER -C 3 -S 60000 -V -v", want: "rdma-ping-2:", farewell: rpingFarewell},
	{name: "ucmatose", server: "ucmatose -b SELF -c 4 -C 10 -S 1000", client: "ucmatose -c 4 -C 10 -S 1000 -s PEER", want: "return status 0"},
	{name: "ucmatose, type of service", server: "ucmatose -b SELF -t 104", client: "ucmatose -t 104 -s PEER", want: "return status 0"},
	{name: "udaddy", server: "udaddy -b SELF -C 10 -S 500", client: "udaddy -C 10 -S 500 -s PEER", want: "return status 0"},
	{name: "mckey", ipv4only: true, server: "mckey -m 239.77.0.9 -b SELF -C 4", client: "mckey -s -m 239.77.0.9 -b SELF -C 4", again: true, want: "return status 0"},
	{name: "mckey over IPv6", ipv6only: true, server: "mckey -m ff0e::4d:9 -b SELF -C 4", client: "mckey -s -m ff0e::4d:9 -b SELF -C 4", again: true, want: "return status 0",
		refuses: regexp.MustCompile(`mckey: failure joining: Unknown error 524`)}, // ENOTSUPP
	{name: "rstream", server: "rstream -b SELF -T v -C 5 -S 20000 -I 2", client: "rstream -s PEER -T v -C 5 -S 20000 -I 2", want: "custom"},
	{name: "rstream, blocking", ipv4only: true, here: true, server: "rstream -b SELF -T b -T v -C 20 -S 200000 -B 65536 -I 2", client: "rstream -s PEER -T b -T v -C 20 -S 200000 -B 65536 -I 2", want: "custom"},
	{name: "rstream, nonblocking", ipv4only: true, here: true, server: "rstream -b SELF -T n -T v -C 20 -S 50 -I 100", client: "rstream -s PEER -T n -T v -C 20 -S 50 -I 100", want: "custom"},
	{name: "rstream, resolved by the connection manager", ipv4only: true, here: true, server: "rstream -b SELF -T r -C 5 -I 5", client: "rstream -s PEER -T r -C 5 -I 5", want: "custom"},
	{name: "rstream, asynchronous", ipv4only: true, server: "rstream -b SELF -T a -C 20 -S 3000 -I 5", client: "rstream -s PEER -T a -C 20 -S 3000 -I 5", want: "custom", ourClient: true},
	{name: "riostream", ipv4only: true, server: "riostream -b SELF -T v -C 5 -S 4096 -I 2", client: "riostream -s PEER -T v -C 5 -S 4096 -I 2", want: "custom"},
	{name: "rcopy", ipv4only: true, server: "rcopy", client: "rcopy /usr/bin/rcopy PEER:COPY", endless: true, want: "done"},
	{name: "udpong", server: "udpong -b SELF -T e -T b", client: "udpong -s PEER -T e -T b -C 20 -S 500", endless: true, want: "custom",
		refuses: regexp.MustCompile(`rconnect: No such file or directory`)}, // an address vector without a GRH
	{name: "udpong, asynchronous", ipv4only: true, here: true, server: "udpong -b SELF -T a", client: "udpong -s PEER -T a -C 50 -S 1000", endless: true, want: "custom"},
	{name: "udpong, nonblocking", ipv4only: true, here: true, server: "udpong -b SELF -T n", client: "udpong -s PEER -T n -C 50 -S 50", endless: true, want: "custom"},
	{name: "rdma_client", server: "rdma_server -s SELF", client: "rdma_client -s PEER", want: "end 0"},
	{name: "rdma_xclient", ipv4only: true, server: "rdma_xserver", client: "rdma_xclient -s PEER", want: "end 0"},
	{name: "rdma_xclient over XRC", ipv4only: true, server: "rdma_xserver -c x", client: "rdma_xclient -c x -s PEER", want: "end 0",
		refuses: regexp.MustCompile(`rdma_create_ep: Operation not supported`)},
	{name: "cmtime", server: "cmtime -b SELF -c 20", client: "cmtime -c 20 -s PEER", endless: true, want: "disconnect"},
}

func TestConnectionManagerProgramsOnOneDaemon(t *testing.T) {
	needRoot(t, "network namespaces")
	betweenUs.take(t)
	a, b := onFabric(t)
	t.Run("two NICs", func(t *testing.T) { converse(t, a, b, conversations) })
	t.Run("one NIC", func(t *testing.T) { converse(t, a, a, conversations[:few]) })
}

func TestConnectionManagerProgramsBetweenTwoDaemons(t *testing.T) {
	needRoot(t, "network namespaces")
	betweenUs.take(t)
	a, b := onVeth(t)
	converse(t, a, b, conversations)
}

func TestConnectionManagerProgramsWithTheKernel(t *testing.T) {
	overEachLink(t, func(t *testing.T, s *site) {
		us, them, list := s.beside(t), inGuest(s.guest), conversations
		if s.link != "packet" {
			list = list[:few]
		}
		t.Run("kernel connects", func(t *testing.T) { converse(t, us, them, list) })
		t.Run("kernel serves", func(t *testing.T) { converse(t, them, us, list) })
	})
}

// converse runs each conversation between two ends, over IPv4 and IPv6.
func converse(t *testing.T, server, client end, list []cmTalk) {
	for _, c := range list {
		for _, ipv6 := range []bool{false, true} {
			kernel := server.what == "kernel" || client.what == "kernel"
			if ipv6 && c.ipv4only || !ipv6 && c.ipv6only || (c.here || c.refuses != nil) && kernel || c.ourClient && client.what == "kernel" {
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
func (e *end) words(line string, peer *end, ipv6 bool) string {
	r := strings.NewReplacer("SELF", e.addr[ipv6], "PEER", peer.addr[ipv6], "DEV", e.device)
	return r.Replace(line)
}

func (c *cmTalk) run(t *testing.T, server, client end, ipv6 bool) {
	ctx, cancel := context.WithTimeout(t.Context(), cmLimit)
	defer cancel()
	line := server.words(c.server, &client, ipv6)
	// A server that was ended leaves its listener to the daemon, or the kernel, for a moment.
	for {
		if n, err := server.listeners(ctx); err != nil || ctx.Err() != nil {
			t.Fatalf("before the server starts: %v, %v", err, ctx.Err())
		} else if n == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	s := server.start(ctx, t, line)
	// Others copy at the same time. The file may be in a guest, so its folder is one that is there.
	copied := fmt.Sprintf("/tmp/softroce-rcopied-%d-%d", os.Getpid(), copies.Add(1))
	defer os.Remove(copied)
	out, err := c.speak(ctx, t, s, server, client, strings.ReplaceAll(client.words(c.client, &server, ipv6), "COPY", copied))
	if c.endless || err != nil && s.running() && !c.saidFarewell(out) {
		cancel()
	}
	serverOut, serverErr := s.wait()
	if client.what == "kernel" && c.saidFarewell(out) {
		err = nil
	}
	if server.what == "kernel" && c.saidFarewell(serverOut) {
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
func (c *cmTalk) speak(ctx context.Context, t *testing.T, s *job, server, client end, line string) (string, error) {
	for !c.again && s.running() {
		n, err := server.listeners(ctx)
		if err != nil {
			return "", fmt.Errorf("the server does not listen: %w", err)
		}
		if n > 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for {
		out, err := client.start(ctx, t, line).wait()
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
