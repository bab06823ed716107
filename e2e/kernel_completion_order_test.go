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

// TestKernelCompletionOrder holds the rows that are left out with another kernel against the kernel by itself, both ends
// on its NIC: it shows an answer before the acknowledgement that came ahead of it, sooner or later. That takes hundreds of messages, and a
// hundred thousand are sent: a kernel that keeps the order in all of them has these rows to be run. The stable kernel keeps it.
func TestKernelCompletionOrder(t *testing.T) {
	harness.NeedRoot(t, "a guest")
	harness.Links[0].Exclusive.Acquire(t)
	s := harness.NewTestbed(t, harness.Links[0])
	them := harness.OnGuest(s.Guest)
	for _, r := range programRuns {
		if !r.needsCompletionOrder {
			continue
		}
		t.Run(r.name(), func(t *testing.T) {
			long := r
			if harness.OtherKernel() {
				long.options += " -n 100000 " + r.family.slowPeerOptions
				long.expectOverrun(t, s.Guest, them)
				return
			}
			long.options += " -n 2000 " + r.family.slowPeerOptions
			before := droppedCompletions(t.Context(), t, s.Guest)
			long.run(t, them, them, false)
			if after := droppedCompletions(t.Context(), t, s.Guest); after != before {
				t.Errorf("%d completions lost", after-before)
			}
		})
	}
}

// overruns wants the kernel to lose a completion of the two programs, which then wait for it for ever. The send's queue has room for one:
// whoever took the answer's event for the send's has left that where it is. He has also read a completion that was not there,
// and may end in error because of what he found in its place, before anything is lost. The next run shows more.
func (r programRun) expectOverrun(t *testing.T, g *rxelab.Guest, e harness.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	before := droppedCompletions(ctx, t, g)
	for ctx.Err() == nil {
		port := harness.FreePort()
		run, stop := context.WithCancel(ctx)
		serving := e.Start(run, t, r.command(r.family.server, e, e, port, false))
		if err := e.WaitListening(run, serving, port); err != nil {
			t.Fatal(err)
		}
		asking := e.Start(run, t, r.command(r.family.client, e, e, port, false))
		lost := false
		for !lost && asking.Running() && serving.Running() && ctx.Err() == nil {
			time.Sleep(200 * time.Millisecond)
			lost = droppedCompletions(ctx, t, g) > before
		}
		stop()
		out, err := asking.Wait()
		served, serverErr := serving.Wait()
		switch {
		case lost:
			return
		case err == nil && serverErr == nil:
			t.Fatalf("both end well: the kernel has kept the order\n%s\n%s", out, served)
		}
	}
	t.Errorf("no completion lost within %v", harness.ProgramLimit)
}

// lostCompletions is how many completions the guest's kernel had no room for, since it was booted.
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
