package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
)

// A rule for one client acts on that client only: another one of the same user, on the same NICs at
// the same time, transfers its data without an error.
func TestRulesDisturbNoOtherClient(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	path, err := exec.LookPath("ib_write_bw")
	if err != nil {
		t.Skipf("%v: scripts/setup test installs it", err)
	}
	const victim = "victim"
	link := filepath.Join(t.TempDir(), victim)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	ns := harness.Namespace(t, "two")
	for _, rule := range []string{
		"fail reg_mr ENOMEM", "slow create_cq 1h", "hold create_qp", "close modify_qp",
		"fail completion RETRY_EXC_ERR opcode rdma_write", "slow completion 1h", "hold completion", "fail access",
		"fail connection no_resources", "fail connection unreachable", "drop", "corrupt send", "stall time ..1h",
	} {
		t.Run(strings.ReplaceAll(rule, " ", ","), func(t *testing.T) {
			t.Parallel()
			o := &operator{t: t, socket: harness.DaemonIn(t, ns)}
			id, err := strconv.Atoi(o.softroce(append([]string{"fault", "add"}, strings.Fields(rule+" client "+victim)...)...))
			if err != nil {
				t.Fatal(err)
			}
			client, server := harness.FabricEndpoints(ns, o.socket)
			ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
			defer cancel()
			// The victims connect through librdmacm. The rule may keep the server from listening.
			port := harness.FreePort()
			perftest := programRun{family: rdmacmPerftests}
			victims := server.Start(ctx, t, expand(link+" -R -d {dev} -F -n 5000 -p {port}", server, server, port),
				perftest.perftestEnv(t, server, port, "")...)
			for victims.Running() && acted(t, o.socket)[id] == 0 {
				if n, err := server.CountListeners(ctx); err != nil || n > 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			client.Start(ctx, t, expand(link+" -R -d {dev} -F -n 5000 -p {port} ", client, server, port)+server.Addr[false],
				perftest.perftestEnv(t, client, port, server.Host)...)
			port = harness.FreePort()
			listener := server.Start(ctx, t, expand("ib_write_bw -d {dev} -x 1 -F -n 5000 -p {port}", server, server, port))
			if err := server.WaitListening(ctx, listener, port); err != nil {
				t.Fatalf("%v: %s", err, listener.Output())
			}
			out, err := client.Start(ctx, t, expand("ib_write_bw -d {dev} -x 1 -F -n 5000 -p {port} {host}", client, server, port)).Wait()
			if err != nil || !perftestResult.MatchString(out) {
				t.Errorf("the other client: %v\n%s", err, out)
			}
			for acted(t, o.socket)[id] == 0 {
				if ctx.Err() != nil {
					t.Fatal("the rule has not acted")
				}
				time.Sleep(20 * time.Millisecond)
			}
			cancel()
			o.softroce("fault", "remove", strconv.Itoa(id))
			awaitNoObjects(t, o.socket)
		})
	}
}
