package e2e

import (
	"regexp"
	"softroce/e2e/harness"
	"testing"
)

// The distribution's programs that connect through librdmacm. Each end of an exchange runs on
// softroce, or on the kernel's NIC and connection manager.

// A cmExchange is a server and a client. In their arguments SELF and PEER are addresses of the two
// endpoints, and COPY is the name of a file.
type cmExchange struct {
	name           string
	server, client string
	ipv4only       bool           // the exchange exists for one address family
	ipv6only       bool           //
	needsHostName  bool           // takes no IPv6 address but a host name, and serves the first address of its host
	serverStays    bool           // the server does not end with its client
	want           string         // text in the client's output
	kernelError    *regexp.Regexp // output of the client on the kernel's NIC, which lacks a feature; nil: it runs there
	kernelOptions  string         // more arguments, with which the client prints kernelError
	closeError     string         // error that a program on the kernel's NIC may print and return after a successful exchange
	mayHangUp      bool           // on the kernel's NIC the client may end as hungUp describes
	repeatClient   bool           // the client is started repeatedly until the server has ended
}

// rpingCloseError is what rping prints on the kernel's librdmacm if its event thread runs after its
// main thread has closed the channel.
const rpingCloseError = "rdma_get_cm_event: Bad file descriptor"

// noAddressVector is what udpong prints on the kernel's NIC: librdmacm requests an address handle
// without a GRH.
var noAddressVector = regexp.MustCompile(`rconnect: No such file or directory`)

// cmSampleSize is how many exchanges, the first ones, run over links other than packet: RC, UD and
// multicast, of which each link receives the packets in another way.
const cmSampleSize = 7

// cmExchanges covers every program of rdmacm-utils.
var cmExchanges = []cmExchange{
	{name: "rping", server: "rping -s -a SELF -C 10 -V", client: "rping -c -a PEER -C 10 -V -v", want: "rdma-ping-9:", closeError: rpingCloseError},
	{name: "rping, large", server: "rping -s -a SELF -C 3 -S 60000 -V", client: "rping -c -a PEER -C 3 -S 60000 -V -v", want: "rdma-ping-2:", closeError: rpingCloseError},
	{name: "ucmatose", server: "ucmatose -b SELF -c 4 -C 10 -S 1000", client: "ucmatose -c 4 -C 10 -S 1000 -s PEER", want: "return status 0"},
	{name: "ucmatose, type of service", server: "ucmatose -b SELF -t 104", client: "ucmatose -t 104 -s PEER", want: "return status 0"},
	{name: "udaddy", server: "udaddy -b SELF -C 10 -S 500", client: "udaddy -C 10 -S 500 -s PEER", want: "return status 0"},
	{name: "mckey", ipv4only: true, server: "mckey -m 239.77.0.9 -b SELF -C 4", client: "mckey -s -m 239.77.0.9 -b SELF -C 4", repeatClient: true, want: "return status 0"},
	{name: "mckey over IPv6", ipv6only: true, server: "mckey -m ff0e::4d:9 -b SELF -C 4", client: "mckey -s -m ff0e::4d:9 -b SELF -C 4", repeatClient: true, want: "return status 0",
		kernelError: regexp.MustCompile(`mckey: failure joining: Unknown error 524`)}, // ENOTSUPP
	{name: "rping, queue pairs of its own", server: "rping -s -q -a SELF -C 3 -V", client: "rping -c -q -a PEER -C 3 -V -v", want: "rdma-ping-2:", closeError: rpingCloseError},
	{name: "ucmatose, migrating", server: "ucmatose -b SELF -m -a 16", client: "ucmatose -m -a 16 -s PEER", want: "return status 0"},
	{name: "rstream", server: "rstream -b SELF -T v -C 5 -S 20000 -I 2", client: "rstream -s PEER -T v -C 5 -S 20000 -I 2", want: "custom"},
	{name: "rstream, blocking", server: "rstream -b SELF -T b -T v -C 20 -S 200000 -B 65536 -I 2", client: "rstream -s PEER -T b -T v -C 20 -S 200000 -B 65536 -I 2", want: "custom"},
	{name: "rstream, nonblocking", server: "rstream -b SELF -T n -T v -C 20 -S 50 -I 20", client: "rstream -s PEER -T n -T v -C 20 -S 50 -I 20", want: "custom"},
	{name: "rstream, resolved by the connection manager", server: "rstream -b SELF -T r -T v -C 5 -I 5", client: "rstream -s PEER -T r -T v -C 5 -I 5", want: "custom"},
	{name: "rstream, asynchronous", server: "rstream -b SELF -T a -T v -C 20 -S 3000 -I 5", client: "rstream -s PEER -T a -T v -C 20 -S 3000 -I 5", want: "custom", mayHangUp: true},
	{name: "rstream, inline", server: "rstream -b SELF -T v -i 200 -C 5 -S 150 -I 5", client: "rstream -s PEER -T v -i 200 -C 5 -S 150 -I 5", want: "custom"},
	{name: "rstream, by GID", ipv6only: true, server: "rstream -b SELF -f gid -T v -C 5 -I 5", client: "rstream -s PEER -f gid -T v -C 5 -I 5", want: "custom",
		// The kernel has no AF_IB for RoCE. A client that does not block may print another error:
		// librdmacm connects in a thread of its own, which may get this one instead of rpoll.
		kernelOptions: "-T b", kernelError: regexp.MustCompile(`rconnect: No such device`)},
	{name: "riostream", server: "riostream -b SELF -T v -C 5 -S 4096 -I 2", client: "riostream -s PEER -T v -C 5 -S 4096 -I 2", want: "custom"},
	{name: "rcopy", needsHostName: true, server: "rcopy", client: "rcopy /usr/bin/rcopy PEER:COPY", serverStays: true, want: "done"},
	{name: "udpong", server: "udpong -b SELF -T e -T b", client: "udpong -s PEER -T e -T b -C 20 -S 500", serverStays: true, want: "custom", kernelError: noAddressVector},
	{name: "udpong, asynchronous", server: "udpong -b SELF -T a", client: "udpong -s PEER -T a -C 50 -S 1000", serverStays: true, want: "custom", kernelError: noAddressVector},
	{name: "udpong, nonblocking", server: "udpong -b SELF -T n", client: "udpong -s PEER -T n -C 50 -S 50", serverStays: true, want: "custom", kernelError: noAddressVector},
	{name: "rdma_client", server: "rdma_server -s SELF", client: "rdma_client -s PEER", want: "end 0"},
	{name: "rdma_xclient", needsHostName: true, server: "rdma_xserver", client: "rdma_xclient -s PEER", want: "end 0"},
	{name: "rdma_xclient over XRC", needsHostName: true, server: "rdma_xserver -c x", client: "rdma_xclient -c x -s PEER", want: "end 0",
		kernelError: regexp.MustCompile(`rdma_create_ep: Operation not supported`)},
	{name: "cmtime", server: "cmtime -b SELF -c 20", client: "cmtime -c 20 -s PEER", serverStays: true, want: "disconnect"},
}

func TestConnectionManagerProgramsOnOneDaemon(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	a, b := harness.FabricPair(t, harness.Judged(t, 2*len(cmExchanges), 20*len(cmExchanges))...)
	t.Run("two NICs", func(t *testing.T) { runCMExchanges(t, a, b, cmExchanges) })
	t.Run("one NIC", func(t *testing.T) { runCMExchanges(t, a, a, cmExchanges) })
}

func TestConnectionManagerProgramsBetweenTwoDaemons(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	for _, where := range []struct {
		link string
		list []cmExchange
	}{
		{"packet:eth0", cmExchanges},
		{"xdp:eth0", cmExchanges[:cmSampleSize]},
		{"packet:eth0,engines=4", cmExchanges},
	} {
		t.Run(where.link, func(t *testing.T) {
			a, b := harness.VethPairOf(t, where.link, harness.Judged(t, len(where.list), 20*len(where.list))...)
			runCMExchanges(t, a, b, where.list)
		})
	}
}

func TestConnectionManagerProgramsWithKernel(t *testing.T) {
	harness.OverEachLink(t, func(t *testing.T, s *harness.Testbed) {
		softroce, kernel, list := s.Endpoint(t), harness.OnGuest(s.Guest), cmExchanges
		if !s.OnFirstLink() && !runWholeMatrix() {
			list = list[:cmSampleSize]
		}
		t.Run("kernel connects", func(t *testing.T) { runCMExchanges(t, softroce, kernel, list) })
		t.Run("kernel serves", func(t *testing.T) { runCMExchanges(t, kernel, softroce, list) })
	}, harness.XDP)
}
