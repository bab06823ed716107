package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

// A program one of whose work requests fails reports the status and the vendor error, and leaves
// nothing in the daemon. One whose completions are late does not fail.
func TestProgramsWhoseCompletionsFail(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "completions")
	const pingpong, write = "ibv_rc_pingpong -d %s -g 1 -n 50 -p %d", "ib_write_bw -d %s -x 1 -n 50 -p %d"
	for _, c := range []struct{ program, rule, want string }{
		{pingpong, "fail completion RETRY_EXC_ERR opcode send nic softroce0 nth 5", `Failed status transport retry counter exceeded \(12\)`},
		{pingpong, "fail completion LOC_PROT_ERR opcode recv nic softroce0 nth 5", `Failed status local protection error \(4\)`},
		{write, "fail completion REM_ACCESS_ERR vendor_err 0x88 opcode rdma_write nic softroce0", `Failed status 10: wr_id 0 \w+ 0x88`},
		{pingpong, "slow completion 2ms nic softroce0", ""},
		{write, "slow completion 20ms nic softroce0 every 10", ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "fault")
			if err := os.WriteFile(file, []byte(c.rule+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			socket := harness.DaemonIn(t, ns, "--fault", file)
			client, server := harness.FabricEndpoints(ns, socket)
			ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
			defer cancel()
			port := harness.FreePort()
			serverJob := server.Start(ctx, t, fmt.Sprintf(c.program, server.Device, port))
			if err := server.WaitListening(ctx, serverJob, port); err != nil {
				t.Fatalf("%v: %s", err, serverJob.Output())
			}
			out, err := client.Start(ctx, t, fmt.Sprintf(c.program, client.Device, port)+" "+server.Host).Wait()
			if fails := c.want != ""; fails != (err != nil) || !regexp.MustCompile(c.want).MatchString(out) || ctx.Err() != nil {
				t.Errorf("%s: %v, want %q:\n%s", c.program, err, c.want, out)
			}
			cancel() // a server whose client has failed may wait for it
			serverJob.Wait()
			awaitNoObjects(t, socket)
		})
	}
}
