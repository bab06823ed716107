package e2e

import (
	"os"
	"regexp"
	"slices"
	"softroce/e2e/harness"
	"strings"
	"testing"
)

// A programFamily is a set of programs with the same command line: the server waits for the client
// on a TCP port.
type programFamily struct {
	server, client  string // {tool} {options} {dev} {gid} {port} {host} {addr}; the last two are the server's
	ok              *regexp.Regexp
	slowPeerOptions string // options for a peer that may answer late, such as a guest under emulation
	fixedTimeout    bool   // no option raises the ACK timeout
	perftest        bool   // gets the library in perftest/
	rdmacm          bool   // connects through librdmacm: the server listens twice, on IPv4 only; see perftest/listenwait.c
}

// Output with one of these words is an error, whatever the exit status.
var errorOutput = regexp.MustCompile(`(?i)invalid data|completion with error|failed|segmentation|assert`)

// On a busy machine perftest cannot calibrate its clock and prints times of "inf".
var perftestResult = regexp.MustCompile(`(?m)^ *\d+ +\d+ +(\d+\.\d+|inf)`)

var (
	pingpongs = programFamily{
		server: "{tool} -d {dev} -g {gid} -p {port} {options}", client: "{tool} -d {dev} -g {gid} -p {port} {options} {host}",
		ok: regexp.MustCompile(`bytes in .* seconds`), fixedTimeout: true,
	}
	xrcPingpongs = programFamily{server: pingpongs.server, client: pingpongs.client, ok: regexp.MustCompile(`SRQN`), fixedTimeout: true}
	perftests    = programFamily{
		server: "{tool} -d {dev} -x {gid} -p {port} -F {options}", client: "{tool} -d {dev} -x {gid} -p {port} -F {options} {host}",
		ok: perftestResult, slowPeerOptions: "-u 17", perftest: true,
	}
	// With -R perftest connects through librdmacm, which selects the GIDs by address.
	rdmacmPerftests = programFamily{
		server: "{tool} -d {dev} -p {port} -F {options}", client: "{tool} -d {dev} -p {port} -F {options} {addr}",
		ok: perftestResult, perftest: true, rdmacm: true,
	}
)

// A programRun is a program with the options of one run.
type programRun struct {
	family               programFamily
	tool                 string
	options              string
	softroceOptions      string         // additional options on softroce, which the kernel's NIC does not support
	kernelError          *regexp.Regexp // output on the kernel's NIC with all options; nil: it runs there
	needsCompletionOrder bool           // treats any event as the expected one: its send must complete before the receive of the answer
	slow                 bool           // takes a minute with the kernel, so it runs there in one role; not run on one NIC
}

func (r programRun) name() string {
	return strings.ReplaceAll(strings.TrimSpace(r.tool+" "+r.options+" "+r.softroceOptions), " ", ",")
}

var (
	noXRC    = regexp.MustCompile(`(?i)xrc`)
	noStamps = regexp.MustCompile(`isn't completion timestamp capable`)
	noMemory = regexp.MustCompile(`doesn't support dm allocation`)
)

// The programs. Each line runs between two NICs, on one NIC, over a veth pair, and with the
// kernel's NIC at either end.
var programRuns = []programRun{
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 100 -c"},
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 100 -e -s 9000 -m 256 -c"},
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 20", softroceOptions: "-t", kernelError: noStamps},
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 20 -c", softroceOptions: "-j", kernelError: noMemory},
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 20 -N"},
	{family: pingpongs, tool: "ibv_uc_pingpong", options: "-n 20 -c"},
	{family: pingpongs, tool: "ibv_uc_pingpong", options: "-n 100 -e"},
	{family: pingpongs, tool: "ibv_ud_pingpong", options: "-n 20 -s 1024 -c"},
	{family: pingpongs, tool: "ibv_ud_pingpong", options: "-n 100 -s 1024 -e"},
	{family: pingpongs, tool: "ibv_srq_pingpong", options: "-n 100 -c"},
	{family: pingpongs, tool: "ibv_srq_pingpong", options: "-n 100 -e -q 4"},
	{family: pingpongs, tool: "ibv_srq_pingpong", options: "-n 30 -s 3001 -m 1024 -q 4 -c"},
	{family: xrcPingpongs, tool: "ibv_xsrq_pingpong", options: "-n 50", kernelError: noXRC},
	{family: xrcPingpongs, tool: "ibv_xsrq_pingpong", options: "-n 50 -e", kernelError: noXRC},

	{family: perftests, tool: "ib_send_bw", options: "-n 20"},
	{family: perftests, tool: "ib_send_bw", options: "-n 5 -a"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -b -m 256"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -q 16 -s 5000 -m 512"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -e -m 1024"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -s 64 -I 64"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -r 64 --use-srq -m 2048"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -c UC"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -c UD -s 1024"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -c XRC", kernelError: noXRC},
	{family: rdmacmPerftests, tool: "ib_send_bw", options: "-n 20 -R -q 16 -s 5000"},
	{family: rdmacmPerftests, tool: "ib_send_bw", options: "-n 20 -R -c UD -s 1024"},
	{family: perftests, tool: "ib_send_lat", options: "-n 20"},
	{family: perftests, tool: "ib_send_lat", options: "-n 5 -a", slow: true},
	{family: perftests, tool: "ib_send_lat", options: "-n 20 -e -m 512", needsCompletionOrder: true},
	{family: perftests, tool: "ib_send_lat", options: "-n 5 -s 64 -I 64 -c UC"},
	{family: perftests, tool: "ib_send_lat", options: "-n 5 -e -c UD"},
	{family: rdmacmPerftests, tool: "ib_send_lat", options: "-n 20 -R"},
	{family: rdmacmPerftests, tool: "ib_send_lat", options: "-n 20 -R -e -c UD"},

	{family: perftests, tool: "ib_write_bw", options: "-n 20"},
	{family: perftests, tool: "ib_write_bw", options: "-n 5 -a"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -b -m 256"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -q 16 -s 5000 -m 1024"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -s 64 -I 64 -m 512"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -c UC -m 4096"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -c XRC", kernelError: noXRC},
	{family: rdmacmPerftests, tool: "ib_write_bw", options: "-n 20 -R -b"},
	{family: perftests, tool: "ib_write_lat", options: "-n 20"},
	{family: perftests, tool: "ib_write_lat", options: "-n 5 -a", slow: true},
	{family: perftests, tool: "ib_write_lat", options: "-n 5 -s 64 -I 64 -c UC -m 2048"},
	{family: rdmacmPerftests, tool: "ib_write_lat", options: "-n 20 -R"},

	{family: perftests, tool: "ib_read_bw", options: "-n 20"},
	{family: perftests, tool: "ib_read_bw", options: "-n 5 -a"},
	{family: perftests, tool: "ib_read_bw", options: "-n 20 -b -q 16 -s 5000 -m 512"},
	{family: perftests, tool: "ib_read_bw", options: "-n 20 -e -m 256"},
	{family: rdmacmPerftests, tool: "ib_read_bw", options: "-n 20 -R -q 4"},
	{family: perftests, tool: "ib_read_lat", options: "-n 20"},
	{family: perftests, tool: "ib_read_lat", options: "-n 5 -a", slow: true},
	{family: perftests, tool: "ib_read_lat", options: "-n 20 -e -m 1024"},
	{family: rdmacmPerftests, tool: "ib_read_lat", options: "-n 20 -R"},

	{family: perftests, tool: "ib_atomic_bw", options: "-n 20 -A FETCH_AND_ADD"},
	{family: perftests, tool: "ib_atomic_bw", options: "-n 20 -A CMP_AND_SWAP -q 16 -b"},
	{family: perftests, tool: "ib_atomic_bw", options: "-n 20 -e -m 256"},
	{family: rdmacmPerftests, tool: "ib_atomic_bw", options: "-n 20 -R"},
	{family: perftests, tool: "ib_atomic_lat", options: "-n 20"},
	{family: perftests, tool: "ib_atomic_lat", options: "-n 20 -e -m 4096"},
	{family: rdmacmPerftests, tool: "ib_atomic_lat", options: "-n 20 -R"},
}

// wholeMatrixEnv is the environment variable that runs every row on every link, over both address
// families, and with the kernel in both roles. The effect of an option hardly depends on these, so
// the default is a part of the matrix.
const wholeMatrixEnv = "SOFTROCE_E2E_MATRIX"

func runWholeMatrix() bool { return os.Getenv(wholeMatrixEnv) != "" }

// TestPrograms runs the distribution's programs in pairs on softroce.
func TestPrograms(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	for _, where := range []struct {
		name string
		make func(t *testing.T, options ...string) (client, server harness.Endpoint)
		ipv6 bool
		rows []programRun
	}{
		{"two NICs", harness.FabricPair, false, programRuns},
		{"veth", harness.VethPair, false, programRuns},
		{"one NIC", func(t *testing.T, options ...string) (harness.Endpoint, harness.Endpoint) {
			x, _ := harness.FabricPair(t, options...)
			return x, x
		}, true, quickRuns()},
		{"two NICs of two engines", func(t *testing.T, options ...string) (harness.Endpoint, harness.Endpoint) {
			return harness.FabricPair(t, append(options, "--nic", "softroce0=fabric:192.0.2.1/24,2001:db8::1/64,engines=2",
				"--nic", "softroce1=fabric:192.0.2.2/24,2001:db8::2/64,engines=2")...)
		}, false, quickRuns()},
		{"veth, four engines", func(t *testing.T, options ...string) (harness.Endpoint, harness.Endpoint) {
			return harness.VethPairOf(t, "packet:eth0,engines=4", options...)
		}, false, quickRuns()},
		{"veth, udp, two engines", func(t *testing.T, options ...string) (harness.Endpoint, harness.Endpoint) {
			return harness.VethPairOf(t, "udp:eth0,engines=2", options...)
		}, false, quickRuns()},
		{"veth, xdp, two engines", func(t *testing.T, options ...string) (harness.Endpoint, harness.Endpoint) {
			return harness.VethPairOf(t, "xdp:eth0,engines=2", options...)
		}, false, quickRuns()},
	} {
		if runWholeMatrix() {
			where.rows = programRuns
		}
		t.Run(where.name, func(t *testing.T) {
			client, server := where.make(t, harness.Judged(t, len(where.rows), 20*len(where.rows))...)
			for _, r := range where.rows {
				for _, v := range harness.IPVersions {
					if ipv6 := where.ipv6 && !r.family.rdmacm; v.IPv6 != ipv6 && !runWholeMatrix() || v.IPv6 && r.family.rdmacm {
						continue
					}
					t.Run(r.name()+"/"+v.Name, func(t *testing.T) {
						t.Parallel() // programs mostly sleep or wait for each other
						r.run(t, client, server, v.IPv6)
					})
				}
			}
		})
	}
}

// quickRuns returns the rows that are not slow.
func quickRuns() []programRun {
	return slices.DeleteFunc(slices.Clone(programRuns), func(r programRun) bool { return r.slow })
}
