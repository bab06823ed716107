package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
)

// Programs of the distribution that use RDMA for something else: storage, message passing libraries
// and their users.

// The links on which a program can run. libfabric finds NICs by the addresses of their network
// interfaces, and qperf connects to the address of its TCP server; a fabric has neither.
const (
	anyLink = iota
	fabricLink
	netdevLink
)

// A clientServer is a server with a TCP port, and its client. {port} and {host} are the server's.
type clientServer struct {
	name           string
	server, client string
	want           string // regular expression for the client's output
	needs          int
	closeError     string // error that an end may print and return after a successful exchange
	listensLate    bool   // the server announces its port for rdma_cm before it listens
}

const (
	ucxOver = "env UCX_TLS=%s UCX_NET_DEVICES={dev}:1 ucx_perftest -p {port}"
	ucxWant = `(?m)^Final: +100 `
	fiWant  = `(?m)^64k? +20 +=20 `
	fiLast  = `(?m)^1m +20 +=20 ` // the largest size
)

// rxmCloseError is what fi_pingpong prints if libfabric's ofi_rxm finds the CQ empty, and then the
// disconnection by the other end, which has received everything: it destroys the queue pair before
// it polls for the last completion, which arrived in between, and reports the send as flushed.
const rxmCloseError = "cq_readerr: Work Request Flushed Error"

// ucx is a test of UCX over one of its transports, with 100 messages.
func ucx(transport, test, options string, where int) clientServer {
	server := fmt.Sprintf(ucxOver, transport)
	return clientServer{
		name: "ucx_perftest " + transport + " " + test, server: server, want: ucxWant, needs: where,
		client: server + " {host} -w 10 -n 100 -t " + test + options,
	}
}

// libfabric is a pingpong over one type of endpoints.
func libfabric(provider, endpoints, want, closeError string, where int) clientServer {
	both := "fi_pingpong -p " + provider + " -e " + endpoints + " -d {domain} -I 20"
	return clientServer{
		name: "fi_pingpong " + provider + " " + endpoints, want: want, needs: where, closeError: closeError,
		server: both + " -B {port}", client: both + " -P {port} {host}",
	}
}

var clientServers = []clientServer{
	{
		name: "qperf", listensLate: true, server: "qperf -lp {port}", needs: netdevLink, want: `(?s)rc_lat:.*ver_rc_fetch_add:.*msg_rate.*rc_bi_bw:.*bw`,
		client: "qperf -lp {port} {host} -cm 1 -t 1 rc_lat rc_rdma_read_lat rc_rdma_write_poll_lat ver_rc_compare_swap ver_rc_fetch_add -m 1k rc_bi_bw quit",
	},
	libfabric("verbs", "msg", fiLast, "", netdevLink),
	libfabric("verbs;ofi_rxm", "rdm", fiLast, rxmCloseError, netdevLink),
	libfabric("verbs", "dgram", fiWant, "", anyLink),
	ucx("rc_v", "tag_bw", " -s 100000", anyLink),
	ucx("rc_v", "ucp_get", "", fabricLink),
	ucx("rc_v", "ucp_cswap", " -s 8", fabricLink),
	ucx("ud_v", "tag_bw", " -s 100000", anyLink),
	ucx("ud_v", "ucp_am_lat", "", fabricLink),
}

// fio is a disk benchmark. Its engine "rdma" writes to or reads from the memory of the other
// process, or sends. It allows no RNR retry, so all 64 messages must have their receives posted
// from the start.
func fio(verb string) cmExchange {
	const job = " --ioengine=rdma --port=PORT --bs=4k --size=256k"
	return cmExchange{
		name: "fio " + verb, server: "fio --name=server --rw=read --iodepth=64" + job,
		client: "fio --name=client --rw=write --iodepth=8" + job + " --hostname=PEER --verb=" + verb, want: "io=256KiB",
	}
}

// runFio runs fio with each verb. It waits until nothing else listens through the connection
// manager.
func runFio(t *testing.T, server, client harness.Endpoint) {
	for _, verb := range []string{"write", "read", "send"} {
		f := fio(verb)
		port := fmt.Sprint(harness.FreePort())
		f.server, f.client = strings.ReplaceAll(f.server, "PORT", port), strings.ReplaceAll(f.client, "PORT", port)
		t.Run(subtestName(f.name), func(t *testing.T) { f.run(t, server, client, false) })
	}
}

// A standalone is a program that starts its own processes. {dev} is the NIC of all of them.
type standalone struct {
	name, command string
	want          string
	needs         int
}

// mpi runs a pingpong of two processes over one of Open MPI's RDMA components.
func mpi(name, way string, where int) standalone {
	return standalone{
		name: "mpirun " + name, want: `(?m)^ +\d+: +4096 bytes.*Mbps`, needs: where,
		command: "mpirun --allow-run-as-root --oversubscribe -np 2 " + way + " NPopenmpi -n 20 -p 0 -u 4096 -o /dev/null",
	}
}

var standalones = []standalone{
	mpi("ucx rc_v", "--mca pml ucx -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES={dev}:1", anyLink),
	mpi("ucx ud_v", "--mca pml ucx -x UCX_TLS=ud_v,self -x UCX_NET_DEVICES={dev}:1", fabricLink),
	mpi("ofi", "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm", netdevLink),
	{
		name: "mpirun.mpich", want: `(?m)^ +\d+: +4096 bytes.*Mbps`,
		command: "mpirun.mpich -np 2 -genv UCX_TLS rc_v,self -genv UCX_NET_DEVICES {dev}:1 NPmpich2 -n 20 -p 0 -u 4096 -o /dev/null",
	},
	{
		name: "mpi4py", want: `time for 100 loops = .* \(2 processes, 1000 bytes\)`,
		command: "mpirun --allow-run-as-root --oversubscribe -np 2 --mca pml ucx -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES={dev}:1 " +
			"/usr/bin/python3 -m mpi4py.bench ringtest -n 1000 -l 100",
	},
	{name: "fi_info", command: "fi_info -p verbs", want: `domain: {dev}-dgram`, needs: fabricLink},
	{name: "ucx_info", command: "ucx_info -d", want: `(?s)Transport: rc_verbs\s+#\s+Device: {dev}:1.*Transport: ud_verbs`},
	{name: "ibstat", command: "ibstat {dev} 1", want: `(?s)State: Active.*Physical state: LinkUp.*Link layer: Ethernet`, needs: fabricLink},
	{name: "ibstatus", command: "ibstatus {dev}", want: `(?s)4: ACTIVE.*5: LinkUp`, needs: fabricLink},
}

// openSHMEM runs testdata/shmem.py on two processes, without Open MPI's memory hooks: Open MPI 4.1
// unloads the code that they call, and crashes when it ends, also over TCP. UCX has hooks of its
// own.
func openSHMEM(t *testing.T, transport string, where int) standalone {
	script, err := filepath.Abs("testdata/shmem.py")
	if err != nil {
		t.Fatal(err)
	}
	return standalone{
		name: "oshrun " + transport, want: `(?s)PE \d of 2 is done.*PE \d of 2 is done`, needs: where,
		command: "oshrun --allow-run-as-root --oversubscribe -np 2 --mca pml ucx --mca spml ucx --mca opal_common_ucx_opal_mem_hooks 0 " +
			"-x UCX_TLS=" + transport + ",self -x UCX_NET_DEVICES={dev}:1 /usr/bin/python3 " + script,
	}
}

// TestMiddlewarePrograms runs the programs on softroce and checks their traffic with softroce
// check.
func TestMiddlewarePrograms(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	for _, name := range []string{"fio", "qperf", "fi_pingpong", "ucx_perftest", "mpirun", "NPopenmpi", "NPmpich2", "oshrun", "ibstat"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%v: scripts/setup test installs it", err)
		}
	}
	harness.LocalPrograms.Acquire(t)
	for _, where := range []struct {
		name string
		make func(t *testing.T, options ...string) (client, server harness.Endpoint)
		not  int
	}{
		{"two NICs", harness.FabricPair, netdevLink},
		{"veth", harness.VethPair, fabricLink},
	} {
		t.Run(where.name, func(t *testing.T) {
			client, server := where.make(t, harness.Judged(t, 5, 500)...)
			t.Run("programs", func(t *testing.T) {
				for _, p := range clientServers {
					if p.needs != where.not {
						t.Run(subtestName(p.name), func(t *testing.T) {
							t.Parallel()
							p.run(t, client, server)
						})
					}
				}
				for _, s := range append(slices.Clone(standalones), openSHMEM(t, "rc_v", anyLink), openSHMEM(t, "ud_v", fabricLink)) {
					if s.needs != where.not {
						t.Run(subtestName(s.name), func(t *testing.T) {
							t.Parallel()
							s.run(t, server)
						})
					}
				}
			})
			runFio(t, server, client)
		})
	}
}

// TestUCXOnSeveralEngines runs UCX on NICs with four engines, between two NICs and on one.
func TestUCXOnSeveralEngines(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	for _, name := range []string{"ucx_perftest", "mpirun", "NPopenmpi"} {
		if !installed(name) {
			t.Skipf("no %s: scripts/setup test installs it", name)
		}
	}
	harness.LocalPrograms.Acquire(t)
	client, server := harness.VethPairOf(t, "packet:eth0,engines=4", harness.Judged(t, 4, 400)...)
	for _, p := range clientServers {
		if strings.HasPrefix(p.name, "ucx_perftest") {
			t.Run(subtestName(p.name), func(t *testing.T) { p.run(t, client, server) })
		}
	}
	for _, s := range standalones {
		if strings.HasPrefix(s.name, "mpirun ucx") {
			t.Run(subtestName(s.name), func(t *testing.T) { s.run(t, client) })
		}
	}
}

func subtestName(name string) string { return strings.NewReplacer(" ", ",", ";", "+").Replace(name) }

// expand fills in a command line for one of two endpoints.
func expand(line string, e, server harness.Endpoint, port int) string {
	return strings.NewReplacer("{domain}", fabricDomain(line, e), "{dev}", e.Device, "{host}", server.Host, "{port}", fmt.Sprint(port)).Replace(line)
}

// fabricDomain returns libfabric's name of a NIC. Datagram endpoints have their own domain.
func fabricDomain(line string, e harness.Endpoint) string {
	if strings.Contains(line, "dgram") {
		return e.Device + "-dgram"
	}
	return e.Device
}

func (p clientServer) run(t *testing.T, client, server harness.Endpoint) {
	t.Helper()
	defer harness.AcquirePrograms(t)()
	ctx, cancel := context.WithTimeoutCause(t.Context(), harness.ProgramLimit, fmt.Errorf("not done within %v", harness.ProgramLimit))
	defer cancel()
	port := harness.FreePort()
	var env []string
	if p.listensLate {
		library, err := harness.ListenEarlyLibrary()
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, "LD_PRELOAD="+library)
	}
	serverJob := server.Start(ctx, t, expand(p.server, server, server, port), env...)
	if err := server.WaitListening(ctx, serverJob, port); err != nil {
		cancel()
		out, status := serverJob.Wait()
		t.Fatalf("server: %v, %v\n%s", err, status, out)
	}
	out, err := client.Start(ctx, t, expand(p.client, client, server, port)).Wait()
	if p.closedEarly(out) {
		err = nil
	}
	if err != nil {
		select {
		case <-serverJob.Done:
		case <-time.After(time.Second):
			cancel()
		}
	}
	served, serverErr := serverJob.Wait()
	if p.closedEarly(served) {
		serverErr = nil
	}
	if err != nil || serverErr != nil || !regexp.MustCompile(p.want).MatchString(out) {
		t.Errorf("client: %v\n%s\nserver: %v\n%s", err, out, serverErr, served)
	}
}

// closedEarly reports whether an end completed the exchange and failed to close.
func (p clientServer) closedEarly(out string) bool {
	return p.closeError != "" && strings.Contains(out, p.closeError) && regexp.MustCompile(p.want).MatchString(out)
}

func (s standalone) run(t *testing.T, e harness.Endpoint) {
	t.Helper()
	defer harness.AcquirePrograms(t)()
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	out, err := e.Start(ctx, t, expand(s.command, e, e, 0)).Wait()
	if err != nil || !regexp.MustCompile(expand(s.want, e, e, 0)).MatchString(out) {
		t.Errorf("%v\n%s", err, out)
	}
}
