package e2e

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/internal/control"
	"softroce/wire/fault"
)

// A starved program is one whose verbs fail, one after the other.
type starved struct {
	program        string
	server, client string            // STARVED is the client's program; without a server it is ""
	withoutTCP     bool              // the server listens with rdma_cm, and not with TCP
	want           map[string]string // for each verb that it calls, a regular expression for its output; "": it goes on
	hangs          []string          // verbs after whose failure it prints that output and waits forever, on any NIC
	succeeds       []string          // verbs after whose failure it prints that output and its exit status is 0
}

// What programs print for several verbs.
const (
	noAddress = "RDMA_CM_EVENT_ADDR_ERROR, error -12" // resolving an address opens the device
	fioError  = "io engine rdma init failed"
	goesOn    = "" // the program does without, or ignores that it cannot free something
)

// ucxErrors is what UCX prints.
var ucxErrors = map[string]string{
	"rdma_create_event_channel":  goesOn,
	"open_device":                "network device 'softroce0:1' is not available",
	"query_device":               `ibv_query_device_ex\(softroce0\) returned 12`,
	"query_port":                 `ibv_query_port\(\) returned 12`,
	"query_gid":                  `ibv_query_gid\(.*\) failed: Cannot allocate memory`,
	"alloc_pd":                   `ibv_alloc_pd\(\) failed: Cannot allocate memory`,
	"reg_mr":                     `ibv_reg_mr\(.*\) failed: Cannot allocate memory`,
	"create_comp_channel":        `ibv_create_comp_channel\(\) failed: Cannot allocate memory`,
	"create_cq":                  "failed to create cq Cannot allocate memory",
	"create_srq":                 `ibv_create_srq\(\) failed: Cannot allocate memory`,
	"create_qp":                  "no usable transports/devices",
	"modify_qp":                  "Failed to modify UD QP to INIT: Cannot allocate memory",
	"query_qp":                   `Failed to query UD QP\(ret=12\)`,
	"create_ah":                  `ibv_create_ah\(`,
	"destroy_ah":                 goesOn,
	"destroy_qp":                 goesOn,
	"destroy_srq":                goesOn,
	"destroy_cq":                 goesOn,
	"destroy_comp_channel":       goesOn,
	"dereg_mr":                   goesOn,
	"dealloc_pd":                 goesOn,
	"rdma_destroy_event_channel": goesOn,
}

// withErrors returns the errors of a library, replaced by those of a program that differ.
func withErrors(library, program map[string]string) map[string]string {
	all := maps.Clone(library)
	maps.Copy(all, program)
	return all
}

var starvedPrograms = []starved{
	{
		program: "ib_write_bw", server: "ib_write_bw -d {dev} -x 1 -n 50 -p {port}", client: "STARVED -d {dev} -x 1 -n 50 -p {port} {host}",
		want: map[string]string{
			"open_device":  "Couldn't get context for the device",
			"query_device": goesOn,
			"query_port":   "Unable to query port 1 attributes",
			"query_gid":    "Unable to set up socket connection",
			"alloc_pd":     "Couldn't allocate PD",
			"reg_mr":       "Couldn't allocate MR",
			"create_cq":    "Couldn't create CQ",
			"create_qp":    "Unable to create QP",
			"modify_qp":    "Failed to modify QP to INIT",
			"destroy_qp":   "Couldn't destroy QP",
			"destroy_cq":   "Failed to destroy CQ",
			"dereg_mr":     "Failed to deregister MR",
			"dealloc_pd":   "Failed to deallocate PD",
		},
	},
	{
		program: "rping", withoutTCP: true, server: "rping -s -a {addr} -C 2", client: "STARVED -c -a {addr} -C 2",
		want: map[string]string{
			"rdma_create_event_channel":  "failed to create RDMA CM event channel",
			"rdma_create_id":             "rdma_create_id: Cannot allocate memory",
			"rdma_resolve_addr":          "rdma_resolve_addr: Cannot allocate memory",
			"open_device":                noAddress,
			"query_device":               noAddress,
			"alloc_pd":                   noAddress,
			"rdma_resolve_route":         "rdma_resolve_route: Cannot allocate memory",
			"create_comp_channel":        "ibv_create_comp_channel failed",
			"create_cq":                  "ibv_create_cq failed",
			"create_qp":                  "rdma_create_qp: Cannot allocate memory",
			"rdma_init_qp_attr":          "rdma_create_qp: Cannot allocate memory",
			"modify_qp":                  "rdma_create_qp: Cannot allocate memory",
			"reg_mr":                     "recv_buf reg_mr failed",
			"rdma_connect":               "connect error -1",
			"rdma_establish":             "RDMA_CM_EVENT_CONNECT_ERROR, error -12",
			"rdma_disconnect":            goesOn,
			"destroy_qp":                 goesOn,
			"destroy_cq":                 goesOn,
			"destroy_comp_channel":       goesOn,
			"dereg_mr":                   goesOn,
			"dealloc_pd":                 goesOn,
			"rdma_destroy_id":            goesOn,
			"rdma_destroy_event_channel": goesOn,
		},
		hangs: []string{"rdma_connect"},
	},
	{
		program: "ucx_perftest", server: "env UCX_TLS=rc_v UCX_NET_DEVICES={dev}:1 ucx_perftest -p {port}",
		client: "env UCX_TLS=rc_v UCX_NET_DEVICES={dev}:1 STARVED -p {port} {host} -w 1 -n 10 -t tag_bw -s 1000",
		want:   ucxErrors,
	},
	{
		program: "fio", withoutTCP: true, server: "fio --thread --name=server --rw=read --iodepth=8 --ioengine=rdma --port={port} --bs=4k --size=64k",
		client: "STARVED --thread --name=client --rw=write --iodepth=4 --ioengine=rdma --port={port} --bs=4k --size=64k --hostname={addr} --verb=write",
		want: map[string]string{
			"rdma_create_event_channel": fioError,
			"rdma_create_id":            fioError,
			"rdma_resolve_addr":         fioError,
			"open_device":               fioError,
			"query_device":              fioError,
			"alloc_pd":                  fioError,
			"rdma_resolve_route":        fioError,
			"create_comp_channel":       fioError,
			"create_cq":                 fioError,
			"create_qp":                 fioError,
			"rdma_init_qp_attr":         fioError,
			"modify_qp":                 fioError,
			"reg_mr":                    fioError,
			"rdma_connect":              "rdma_connect fail: Cannot allocate memory",
			"rdma_establish":            "RDMA_CM_EVENT_CONNECT_ERROR instead of RDMA_CM_EVENT_ESTABLISHED",
			"rdma_disconnect":           goesOn,
			"destroy_qp":                goesOn,
			"destroy_cq":                goesOn,
			"dealloc_pd":                goesOn,
			"rdma_destroy_id":           goesOn,
		},
		succeeds: []string{"rdma_connect", "rdma_establish"},
	},
}

// openMPI is a pingpong of two processes, whose verbs fail in both of them. Open MPI's launcher
// starts them. Without UCX's endpoint it has no transport between them, and MPI_Init fails. UCX
// requests the memory of its datagram receives again each time that it looks for completions, and
// prints that error each time: MPI_Init does not return, on any NIC.
var openMPI = starved{
	program: "NPopenmpi",
	client: "mpirun --allow-run-as-root --oversubscribe -np 2 --mca pml ucx -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES={dev}:1 " +
		"STARVED -n 5 -p 0 -l 64 -u 64 -o /dev/null",
	want: withErrors(ucxErrors, map[string]string{
		"reg_mr":    `Failed to allocate memory pool \(name=ud_recv_skb\)`,
		"create_qp": "PML ucx cannot be selected",
	}),
	hangs: []string{"reg_mr"},
}

// TestProgramsWithoutMemory lets each verb that a program calls fail with ENOMEM in turn. The
// program ends with an error of its own, or does without, and nothing of it is left in the daemon.
func TestProgramsWithoutMemory(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	for _, s := range append(starvedPrograms, openMPI) {
		t.Run(s.program, func(t *testing.T) {
			t.Parallel()
			s.run(t)
		})
	}
}

// starvedName is the name of the clients whose verbs fail.
const starvedName = "starved"

func (s *starved) run(t *testing.T) {
	path, err := exec.LookPath(s.program)
	if err != nil {
		t.Skipf("%v: scripts/setup test installs it", err)
	}
	link := filepath.Join(t.TempDir(), starvedName)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	s.client = strings.ReplaceAll(s.client, "STARVED", link)
	ns := harness.Namespace(t, s.program)
	socket := harness.DaemonIn(t, ns)
	client, server := harness.FabricEndpoints(ns, socket)
	c, err := control.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	rules := "slow " + strings.Join(fault.VerbNames, " 1us client "+starvedName+"\nslow ") + " 1us client " + starvedName
	first, _, err := c.AddFaults(t.Context(), rules)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.exchange(t, client, server, nil); err != nil {
		t.Fatalf("without a failure: %v\n%s", err, out)
	}
	calls := acted(t, socket)
	for i, verb := range fault.VerbNames {
		if err := c.RemoveFault(t.Context(), first+i); err != nil {
			t.Fatal(err)
		}
		want, listed := s.want[verb]
		if called := calls[first+i] > 0; called != listed {
			t.Errorf("%s is called: %v, in the table: %v", verb, called, listed)
		}
		if calls[first+i] == 0 || !listed {
			continue
		}
		t.Run(verb, func(t *testing.T) {
			id, _, err := c.AddFaults(t.Context(), "fail "+verb+" ENOMEM client "+starvedName)
			if err != nil {
				t.Fatal(err)
			}
			var end *regexp.Regexp
			if slices.Contains(s.hangs, verb) {
				end = regexp.MustCompile(want)
			}
			out, err := s.exchange(t, client, server, end)
			if fails := want != "" && !slices.Contains(s.succeeds, verb); err != nil != fails || !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("ends with %v, want %q in\n%s", err, want, out)
			}
			if acted(t, socket)[id] == 0 {
				t.Error("the verb was not called")
			}
			if err := c.RemoveFault(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			awaitNoObjects(t, socket)
		})
	}
}

// exchange runs the client against a server and returns its output and error. It ends by itself,
// unless its end is something that it prints.
func (s *starved) exchange(t *testing.T, client, server harness.Endpoint, end *regexp.Regexp) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	port := harness.FreePort()
	line := func(command string, e harness.Endpoint) string {
		return strings.ReplaceAll(expand(command, e, server, port), "{addr}", server.Addr[false])
	}
	if s.server != "" {
		serverJob := server.Start(ctx, t, line(s.server, server))
		defer func() { cancel(); serverJob.Wait() }()
		listening := server.WaitListening
		if s.withoutTCP {
			listening = func(ctx context.Context, j *harness.Job, _ int) error { return awaitListener(ctx, server) }
		}
		if err := listening(ctx, serverJob, port); err != nil {
			t.Fatalf("the server does not listen: %v\n%s", err, serverJob.Output())
		}
	}
	clientCtx, kill := context.WithCancel(ctx)
	defer kill()
	job := client.Start(clientCtx, t, line(s.client, client))
	for end != nil && job.Running() {
		if end.MatchString(job.Output()) {
			kill()
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	out, err := job.Wait()
	if ctx.Err() != nil {
		t.Fatalf("the client does not end:\n%s", out)
	}
	return out, err
}

// awaitListener waits until a program listens with rdma_cm.
func awaitListener(ctx context.Context, e harness.Endpoint) error {
	for {
		if n, err := e.CountListeners(ctx); n > 0 || err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// acted returns how often each rule has acted, by its ID.
func acted(t *testing.T, socket string) map[int]int {
	t.Helper()
	out, err := exec.Command(harness.Binary(t), "--socket", socket, "show", "faults", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var rules []struct{ ID, Acted int }
	if err := json.Unmarshal(out, &rules); err != nil {
		t.Fatal(err)
	}
	n := map[int]int{}
	for _, r := range rules {
		n[r.ID] += r.Acted
	}
	return n
}
