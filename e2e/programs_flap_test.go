package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/internal/control"
)

// An interrupted program is one that moves data long enough for the link to fail in the meantime.
// The placeholders are those of expand, and {addr} is the server's address.
type interrupted struct {
	name, server, client string
	withoutTCP           bool   // the server listens with rdma_cm, and not with TCP
	done                 string // what the client prints if it succeeds, a regular expression
	lost                 string // what it, or the server, prints when it gives the peer up
	waits                bool   // then it may wait forever, on any NIC
}

// UCX gives up after a tenth of its default time, so that the test need not wait.
const ucxRC = "env UCX_TLS=rc_v,self UCX_RC_TIMEOUT=100ms UCX_NET_DEVICES={dev}:1 "

var transfers = []interrupted{
	{
		name: "perftest", server: "ib_write_bw -d {dev} -x 1 -F -n 2000 -u 15 -p {port}", client: "ib_write_bw -d {dev} -x 1 -F -n 2000 -u 15 -p {port} {host}",
		done: perftestResult.String(), lost: "Failed status 12",
	},
	{
		name: "rping", withoutTCP: true, server: "rping -s -a {addr} -C 1000 -S 60000", client: "rping -c -a {addr} -C 1000 -S 60000",
		// The end whose request is lost gives up. The other one waits for a message, and the DREQ
		// is lost too. A client that succeeds may print nothing.
		lost: "cq completion failed status 12", waits: true,
	},
	{
		name: "ucx", server: ucxRC + "ucx_perftest -p {port}", client: ucxRC + "ucx_perftest -p {port} {host} -w 1 -n 1000 -t tag_bw -s 100000",
		// The server READs the messages. If it gives up, the client may have nothing to send.
		done: "Final:", lost: "transport retry counter exceeded", waits: true,
	},
	{
		name: "fio", withoutTCP: true, server: "fio --thread --name=server --rw=read --iodepth=64 --ioengine=rdma --port={port} --bs=64k --size=100m",
		client: "fio --thread --name=client --rw=write --iodepth=8 --ioengine=rdma --port={port} --bs=64k --size=100m --hostname={addr} --verb=write",
		// After the first completion with an error it waits for an event of its CQ, but those of
		// the flushed work requests have arrived together with it.
		done: "io=100MiB", lost: "cq completion status 12", waits: true,
	},
	{
		name: "Open MPI",
		client: "mpirun --allow-run-as-root --oversubscribe -np 2 --mca pml ucx -x UCX_TLS=rc_v,self -x UCX_RC_TIMEOUT=100ms -x UCX_NET_DEVICES={dev}:1 " +
			"NPopenmpi -n 200 -p 0 -l 400000 -u 400000 -o /dev/null",
		done: `Mbps`, lost: "transport retry counter exceeded",
	},
}

// A program goes on when its link fails for a moment in the middle of its transfer, and ends with
// an error of its own when the link does not come back. In both cases it leaves nothing in the
// daemon.
func TestProgramsWhosePortFlaps(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "flap")
	for _, p := range transfers {
		for _, back := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/back=%v", subtestName(p.name), back), func(t *testing.T) {
				t.Parallel()
				p.run(t, ns, back)
			})
		}
	}
}

func (p *interrupted) run(t *testing.T, ns string, back bool) {
	if _, err := exec.LookPath(strings.Fields(strings.TrimPrefix(p.client, ucxRC))[0]); err != nil {
		t.Skipf("%v: scripts/setup test installs it", err)
	}
	// The rate makes the transfer last for a second or longer, on any machine.
	socket := harness.DaemonIn(t, ns, "--nic", "softroce0=fabric:192.0.2.1,rate=500M", "--nic", "softroce1=fabric:192.0.2.2,rate=500M")
	client, server := harness.FabricEndpoints(ns, socket)
	operator, err := control.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	port := harness.FreePort()
	line := func(command string, e harness.Endpoint) string {
		return strings.ReplaceAll(expand(command, e, server, port), "{addr}", server.Addr[false])
	}
	served, serving := func() string { return "" }, func() string { return "" }
	if p.server != "" {
		job := server.Start(ctx, t, line(p.server, server))
		served = func() string { cancel(); out, _ := job.Wait(); return out }
		serving = job.Output
		if p.withoutTCP {
			err = awaitListener(ctx, server)
		} else {
			err = server.WaitListening(ctx, job, port)
		}
		if err != nil {
			t.Fatalf("%v: %s", err, served())
		}
	}
	clientCtx, kill := context.WithCancel(ctx)
	defer kill()
	job := client.Start(clientCtx, t, line(p.client, client))
	for receivedPackets(t, socket, "softroce0") < 200 {
		if !job.Running() {
			out, err := job.Wait()
			t.Fatalf("the client has ended: %v\n%s", err, out)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := operator.SetLink(ctx, "softroce0", false); err != nil {
		t.Fatal(err)
	}
	if !job.Running() {
		t.Error("the transfer was over before the link failed")
	}
	if back {
		time.Sleep(50 * time.Millisecond)
		if err := operator.SetLink(ctx, "softroce0", true); err != nil {
			t.Fatal(err)
		}
	}
	for !back && p.waits && job.Running() {
		if regexp.MustCompile(p.lost).MatchString(job.Output() + serving()) {
			kill()
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	out, err := job.Wait()
	if ctx.Err() != nil {
		t.Fatalf("the client does not end: %s\n%s", out, served())
	}
	out += served()
	want := p.lost
	if back {
		want = p.done
	}
	if (err == nil) != back || !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("the client ends with %v, want %q in\n%s", err, want, out)
	}
	awaitNoObjects(t, socket)
}
