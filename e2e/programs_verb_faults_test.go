package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softroce/e2e/harness"
)

// A program whose verb fails ends with its own error, and leaves nothing in the daemon.
func TestProgramsWhoseVerbsFail(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "verbs")
	const pingpong, rping = "ibv_rc_pingpong -d softroce0 -g 1 -e", "rping -s -C 1"
	for _, c := range []struct{ program, verb, want string }{
		{pingpong, "open_device", "Couldn't get context for softroce0"},
		{pingpong, "query_port", "Couldn't get port info"},
		{pingpong, "query_gid", "can't read sgid of index 1"},
		{pingpong, "create_comp_channel", "Couldn't create completion channel"},
		{pingpong, "alloc_pd", "Couldn't allocate PD"},
		{pingpong, "reg_mr", "Couldn't register MR"},
		{pingpong, "create_cq", "Couldn't create CQ"},
		{pingpong, "create_qp", "Couldn't create QP"},
		{pingpong, "modify_qp", "Failed to modify QP to INIT"},
		{rping, "rdma_create_event_channel", "event channel: Cannot allocate memory"},
		{rping, "rdma_create_id", "rdma_create_id: Cannot allocate memory"},
		{rping, "rdma_bind_addr", "rdma_bind_addr: Cannot allocate memory"},
		{rping, "rdma_listen", "rdma_listen: Cannot allocate memory"},
	} {
		t.Run(c.verb, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "fault")
			if err := os.WriteFile(file, []byte("fail "+c.verb+" ENOMEM client "+strings.Fields(c.program)[0]+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			socket := harness.DaemonIn(t, ns, "--fault", file)
			ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
			defer cancel()
			job := harness.OnDaemon(ns, socket, harness.Endpoint{Device: "softroce0"}).Start(ctx, t, c.program)
			if out, err := job.Wait(); err == nil || ctx.Err() != nil || !strings.Contains(out, c.want) {
				t.Errorf("%s: %v, want a failure with %q:\n%s", c.program, err, c.want, out)
			}
			awaitNoObjects(t, socket)
		})
	}
}
