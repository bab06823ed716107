package e2e

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
)

// TestKernelCompletionOrder shows why rows that need the order of completions are not run with
// another kernel than the stable one. Both endpoints run on the kernel's NIC, which sometimes
// delivers a message before the acknowledgement that arrived ahead of it. That takes hundreds of
// messages, so a hundred thousand are sent. A kernel that keeps the order in all of them fails the
// test: then these rows can run. The stable kernel keeps the order.
func TestKernelCompletionOrder(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.Links[0].Exclusive.Acquire(t)
	s := harness.NewTestbed(t, harness.Links[0])
	kernel := harness.OnGuest(s.Guest)
	for _, r := range programRuns {
		if !r.needsCompletionOrder {
			continue
		}
		t.Run(r.name(), func(t *testing.T) {
			long := r
			if harness.OtherKernel() {
				long.options += " -n 100000 " + r.family.slowPeerOptions
				long.expectOverrun(t, s.Guest, kernel)
				return
			}
			long.options += " -n 2000 " + r.family.slowPeerOptions
			before := droppedCompletions(t.Context(), t, s.Guest)
			long.run(t, kernel, kernel, false)
			if after := droppedCompletions(t.Context(), t, s.Guest); after != before {
				t.Errorf("the kernel dropped %d completions", after-before)
			}
		})
	}
}

// expectOverrun runs the two programs until the kernel drops a completion, for which they then wait
// forever. The send CQ has room for one: a program that took the event of the receive for the event
// of the send has left that completion in the CQ. Such a program has also polled a completion that
// was not there, and may exit with an error before the overrun. Then the programs are run again.
func (r programRun) expectOverrun(t *testing.T, g *rxelab.Guest, e harness.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	before := droppedCompletions(ctx, t, g)
	for ctx.Err() == nil {
		port := harness.FreePort()
		run, stop := context.WithCancel(ctx)
		serverJob := e.Start(run, t, r.command(r.family.server, e, e, port, false))
		if err := e.WaitListening(run, serverJob, port); err != nil {
			t.Fatal(err)
		}
		clientJob := e.Start(run, t, r.command(r.family.client, e, e, port, false))
		lost := false
		for !lost && clientJob.Running() && serverJob.Running() && ctx.Err() == nil {
			time.Sleep(200 * time.Millisecond)
			lost = droppedCompletions(ctx, t, g) > before
		}
		stop()
		out, err := clientJob.Wait()
		served, serverErr := serverJob.Wait()
		switch {
		case lost:
			return
		case err == nil && serverErr == nil:
			t.Fatalf("both programs succeed, so the kernel keeps the order\n%s\n%s", out, served)
		}
	}
	t.Errorf("no completion dropped within %v", harness.ProgramLimit)
}

// droppedCompletions returns how many completions the guest's kernel has dropped because a CQ was
// full.
func droppedCompletions(ctx context.Context, t *testing.T, g *rxelab.Guest) int {
	t.Helper()
	out, err := g.Run(ctx, harness.ProgramLimit, "dmesg | grep -c 'rxe_cq_post: queue full'; true")
	if err != nil {
		t.Fatalf("dmesg: %v\n%s", err, out)
	}
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
