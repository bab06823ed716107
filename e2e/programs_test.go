package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A family is programs that are called alike: the server waits for the client, on a port.
type family struct {
	server, client string // {tool} {options} {dev} {gid} {port} {host}; host is the server's
	ok             *regexp.Regexp
}

// Whatever the exit status: these words mean that something went wrong.
var wrong = regexp.MustCompile(`(?i)invalid data|completion with error|failed|segmentation|assert`)

var (
	pingpongs = family{
		"{tool} -d {dev} -g {gid} -p {port} {options}", "{tool} -d {dev} -g {gid} -p {port} {options} {host}",
		regexp.MustCompile(`bytes in .* seconds`),
	}
	xrcPingpongs = family{pingpongs.server, pingpongs.client, regexp.MustCompile(`SRQN`)}
	perftests    = family{
		"{tool} -d {dev} -x {gid} -p {port} -F {options}", "{tool} -d {dev} -x {gid} -p {port} -F {options} {host}",
		// A busy machine, of whose clock perftest cannot make sense, gives times of "inf".
		regexp.MustCompile(`(?m)^ *\d+ +\d+ +(\d+\.\d+|inf)`),
	}
)

// A row is a program and the options of one run.
type row struct {
	family  family
	tool    string
	options string
	ours    string // options of softroce's ends alone
	kernel  string // why it is left out with the kernel at one end; "": it is not
	once    bool   // long: between two NICs alone
}

func (r row) name() string {
	return strings.ReplaceAll(strings.TrimSpace(r.tool+" "+r.options+" "+r.ours), " ", ",")
}

const (
	noXRC    = "rxe has no XRC"
	rxeDrops = "rxe drops what comes faster than it looks: an unreliable service loses it"
)

// The programs. Each line is a run between two NICs, on one, over a cable, and with the kernel's
// at either end.
var rows = []row{
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 100 -c"},
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 100 -e -s 9000 -m 256 -c"},
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 20", ours: "-t"},
	{family: pingpongs, tool: "ibv_rc_pingpong", options: "-n 20", ours: "-N"},
	{family: pingpongs, tool: "ibv_uc_pingpong", options: "-n 20 -c"},
	{family: pingpongs, tool: "ibv_uc_pingpong", options: "-n 100 -e"},
	{family: pingpongs, tool: "ibv_ud_pingpong", options: "-n 20 -s 1024 -c"},
	{family: pingpongs, tool: "ibv_ud_pingpong", options: "-n 100 -s 1024 -e"},
	{family: pingpongs, tool: "ibv_srq_pingpong", options: "-n 100 -c"},
	{family: pingpongs, tool: "ibv_srq_pingpong", options: "-n 100 -e -q 4"},
	{family: xrcPingpongs, tool: "ibv_xsrq_pingpong", options: "-n 50", kernel: noXRC},
	{family: xrcPingpongs, tool: "ibv_xsrq_pingpong", options: "-n 50 -e", kernel: noXRC},

	{family: perftests, tool: "ib_send_bw", options: "-n 20"},
	{family: perftests, tool: "ib_send_bw", options: "-n 5 -a", once: true},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -b -m 256"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -q 16 -s 5000 -m 512"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -e -m 1024"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -s 64 -I 64"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -r 64 --use-srq -m 2048"},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -c UC", kernel: rxeDrops},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -c UD -s 1024", kernel: rxeDrops},
	{family: perftests, tool: "ib_send_bw", options: "-n 20 -c XRC", kernel: noXRC},
	{family: perftests, tool: "ib_send_lat", options: "-n 20"},
	{family: perftests, tool: "ib_send_lat", options: "-n 20 -e"},
	{family: perftests, tool: "ib_send_lat", options: "-n 5 -s 64 -I 64 -c UC"},
	{family: perftests, tool: "ib_send_lat", options: "-n 5 -e -c UD"},

	{family: perftests, tool: "ib_write_bw", options: "-n 20"},
	{family: perftests, tool: "ib_write_bw", options: "-n 5 -a"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -b -m 256"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -q 16 -s 5000 -m 1024"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -c UC -m 4096"},
	{family: perftests, tool: "ib_write_bw", options: "-n 20 -c XRC", kernel: noXRC},
	{family: perftests, tool: "ib_write_lat", options: "-n 20"},
	{family: perftests, tool: "ib_write_lat", options: "-n 5 -s 64 -I 64 -c UC"},

	{family: perftests, tool: "ib_read_bw", options: "-n 20"},
	{family: perftests, tool: "ib_read_bw", options: "-n 5 -a", once: true},
	{family: perftests, tool: "ib_read_bw", options: "-n 20 -b -q 16 -s 5000 -m 512"},
	{family: perftests, tool: "ib_read_bw", options: "-n 20 -e -m 256"},
	{family: perftests, tool: "ib_read_lat", options: "-n 20"},
	{family: perftests, tool: "ib_read_lat", options: "-n 20 -e"},
	{family: perftests, tool: "ib_atomic_bw", options: "-n 20 -A FETCH_AND_ADD"},
	{family: perftests, tool: "ib_atomic_bw", options: "-n 20 -A CMP_AND_SWAP -q 16 -b"},
	{family: perftests, tool: "ib_atomic_lat", options: "-n 20"},
}

// programLimit is for programs that hang, not for slow machines.
const programLimit = 2 * time.Minute

const pairPort = 18600

// TestPrograms runs the distribution's own binaries in pairs on softroce.
func TestPrograms(t *testing.T) {
	needRoot(t, "network namespaces")
	betweenUs.take(t)
	for _, where := range []struct {
		name string
		make func(t *testing.T) (client, server end)
		ipv6 bool
		rows []row
	}{
		{"two NICs", onFabric, false, rows},
		{"veth", onVeth, false, slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.once })},
		// What options do does not depend on the way.
		{"one NIC", func(t *testing.T) (end, end) { x, _ := onFabric(t); return x, x }, true, onePerTool()},
	} {
		t.Run(where.name, func(t *testing.T) {
			client, server := where.make(t)
			for _, r := range where.rows {
				t.Run(r.name(), func(t *testing.T) { r.run(t, client, server, where.ipv6) })
			}
		})
	}
}

// onePerTool is the first row of each program.
func onePerTool() (list []row) {
	seen := map[string]bool{}
	for _, r := range rows {
		if !seen[r.tool] {
			seen[r.tool] = true
			list = append(list, r)
		}
	}
	return list
}

// run runs the two programs of a row to their end.
func (r row) run(t *testing.T, client, server end, ipv6 bool) {
	t.Helper()
	programs <- struct{}{}
	defer func() { <-programs }()
	ctx, cancel := context.WithTimeoutCause(t.Context(), programLimit, fmt.Errorf("not done within %v", programLimit))
	defer cancel()
	serving := server.start(ctx, t, r.command(r.family.server, server, server, ipv6))
	if err := server.listening(ctx, serving, pairPort); err != nil {
		cancel()
		out, status := serving.wait()
		t.Fatalf("%s's server: %v, %v\n%s", server.what, err, status, out)
	}
	asking := client.start(ctx, t, r.command(r.family.client, client, server, ipv6))
	out, err := asking.wait()
	if err != nil {
		// What its server has to say is worth a moment, and not two minutes.
		select {
		case <-serving.done:
		case <-time.After(time.Second):
			cancel()
		}
	}
	served, serverErr := serving.wait()
	if err != nil || serverErr != nil || !r.family.ok.MatchString(out) || wrong.MatchString(out+served) {
		t.Errorf("client on %s: %v\n%s\nserver on %s: %v\n%s", client.what, err, out, server.what, serverErr, served)
	}
}

// command fills a command line in for one of two ends.
func (r row) command(form string, e, server end, ipv6 bool) string {
	options := r.options
	if e.what == "softroce" {
		options += " " + r.ours
	}
	return strings.NewReplacer("{tool}", r.tool, "{options}", options, "{dev}", e.device, "{gid}", e.gid[ipv6],
		"{port}", fmt.Sprint(pairPort), "{host}", server.host).Replace(form)
}

// TestProgramsWithTheKernel runs each program against its like in a guest, in both roles. The address
// families take turns: what a program does is the same with either.
func TestProgramsWithTheKernel(t *testing.T) {
	needRoot(t, "network namespaces and a guest's network")
	links[0].lane.take(t)
	s := newSite(t, links[0])
	for i, r := range onePerTool() {
		if r.kernel != "" {
			t.Logf("left out: %s: %s", r.tool, r.kernel)
			continue
		}
		for j, role := range []string{"kernel serves", "kernel connects"} {
			v := ipVersions[(i+j)%2]
			client, server := s.beside(t), inGuest(s.guest)
			if j == 1 {
				client, server = server, client
			}
			t.Run(r.name()+"/"+v.name+"/"+role, func(t *testing.T) { r.run(t, client, server, v.ipv6) })
		}
	}
}
