package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"softroce/e2e/harness"
)

// A program whose connection is rejected, or whose peer is unreachable, ends with an error of its
// own. One whose messages of the connection manager are lost, late or repeated connects.
func TestProgramsWhoseConnectionsFail(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "connections")
	programs := []struct{ name, server, client, done string }{ // done: what the client prints if it succeeds
		{"rping", "rping -s -a {addr} -C 2", "rping -c -a {addr} -C 2", ""},
		{"ucmatose", "ucmatose -b {addr} -c 1 -C 2", "ucmatose -s {addr} -c 1 -C 2", "return status 0"},
	}
	for _, c := range []struct{ rule, want string }{ // without want, the program succeeds
		{"fail connection consumer_defined nic softroce1", "RDMA_CM_EVENT_REJECTED, error:? 28"},
		{"fail connection no_resources nic softroce1", "RDMA_CM_EVENT_REJECTED, error:? 3"},
		{"fail connection stale_connection nic softroce1", "RDMA_CM_EVENT_REJECTED, error:? 10"},
		{"fail connection unreachable nic softroce0", "RDMA_CM_EVENT_UNREACHABLE, error:? -110"},
		{"drop receive nic softroce1 cm req count 1", ""}, // repeated after 5 seconds
		{"duplicate receive nic softroce1 cm req", ""},
		{"delay 200ms receive nic softroce0 cm rep", ""},
	} {
		for _, p := range programs {
			t.Run(p.name+"/"+subtestName(c.rule), func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "fault")
				if err := os.WriteFile(file, []byte(c.rule+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				socket := harness.DaemonIn(t, ns, "--fault", file)
				client, server := harness.FabricEndpoints(ns, socket)
				ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
				defer cancel()
				line := func(command string) string { return strings.ReplaceAll(command, "{addr}", server.Addr[false]) }
				serverJob := server.Start(ctx, t, line(p.server))
				if err := awaitListener(ctx, server); err != nil {
					t.Fatalf("%v: %s", err, serverJob.Output())
				}
				out, err := client.Start(ctx, t, line(p.client)).Wait()
				want := c.want
				if want == "" {
					want = p.done
				}
				if (err != nil) != (c.want != "") || !regexp.MustCompile(want).MatchString(out) || ctx.Err() != nil {
					t.Errorf("%v, want %q:\n%s", err, want, out)
				}
				if acted(t, socket)[1] == 0 {
					t.Error("the rule has not acted")
				}
				cancel() // a server whose client was rejected may wait for another one
				serverJob.Wait()
				awaitNoObjects(t, socket)
			})
		}
	}
}
