package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
	"softroce/e2e/verbspeer"
)

// lossyFaults drops one packet in a hundred and delays another behind the packets that follow it.
const lossyFaults = "seed 1\ndrop receive chance 1%\nreorder 3 within 1ms receive chance 1%\n"

// lossyRuns transfer enough packets for several faults. In all of them the programs synchronize
// before they end. ibv_rc_pingpong does not: if the acknowledgement of its last message is lost,
// one end retransmits to a queue pair that no longer exists, on any NIC.
var lossyRuns = []programRun{
	{family: perftests, tool: "ib_write_bw", options: "-n 300"},
	{family: perftests, tool: "ib_send_bw", options: "-n 300"},
	{family: perftests, tool: "ib_read_bw", options: "-n 300"},
}

// TestProgramsOnLossyFabric expects programs to finish although packets are lost and reordered.
// perftest does not check its data, so vprobe carries out every operation too, and the contents of
// both memories are compared with the model.
func TestProgramsOnLossyFabric(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	file := filepath.Join(t.TempDir(), "lossy.fault")
	if err := os.WriteFile(file, []byte(lossyFaults), 0o644); err != nil {
		t.Fatal(err)
	}
	ns := harness.Namespace(t, "lossy")
	socket := harness.DaemonIn(t, ns, append(harness.Judged(t, len(lossyRuns)+3, 1000), "--fault", file)...)
	client, server := harness.FabricEndpoints(ns, socket)
	for _, r := range lossyRuns {
		t.Run(r.name(), func(t *testing.T) { r.run(t, client, server, false) })
	}
	t.Run("rstream", func(t *testing.T) {
		c := cmExchange{server: "rstream -b SELF -T v -C 20 -S 50000 -I 2", client: "rstream -s PEER -T v -C 20 -S 50000 -I 2", want: "custom"}
		c.run(t, server, client, false)
	})
	t.Run("rcopy", func(t *testing.T) { copyFile(t, server, client) })
	t.Run("vprobe", func(t *testing.T) { runVprobePair(t, client, server) })
	if dropped, reordered := faultCounts(t, socket); dropped < 100 || reordered < 100 {
		t.Errorf("%d packets dropped and %d reordered, want at least 100 each", dropped, reordered)
	}
}

// TestProgramsOnLossyXDP is that over xdp links, with rules for both directions. No capture is
// judged, since what rules do to packets that are sent would be violations.
func TestProgramsOnLossyXDP(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	file := filepath.Join(t.TempDir(), "lossy.fault")
	rules := "seed 1\ndrop chance 1%\ncorrupt chance 1%\nduplicate chance 1%\nreorder 3 within 1ms chance 1%\ndelay 200us jitter 100us chance 2%\n"
	if err := os.WriteFile(file, []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	client, server := harness.VethPairOf(t, "xdp:eth0", "--fault", file)
	t.Run("rcopy", func(t *testing.T) { copyFile(t, server, client) })
	t.Run("vprobe", func(t *testing.T) { runVprobePair(t, client, server) })
	for id, n := range acted(t, client.Socket) {
		t.Logf("rule %d has acted on %d packets", id, n)
		if n < 10 {
			t.Errorf("rule %d has acted on %d packets, want at least 10", id, n)
		}
	}
}

// TestRpingOnLossyFabric loses no SEND and no ACK. The client of rping writes its send buffer again
// when its peer replies, although the SEND may not be complete. A retransmission would carry the
// new contents, and the judge reports that.
func TestRpingOnLossyFabric(t *testing.T) {
	harness.NeedRoot(t, "network namespaces")
	harness.LocalPrograms.Acquire(t)
	file := filepath.Join(t.TempDir(), "lossy.fault")
	rules := strings.ReplaceAll(lossyFaults, "chance", "kind write,read,read_response chance")
	if err := os.WriteFile(file, []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	ns := harness.Namespace(t, "lossy-rping")
	socket := harness.DaemonIn(t, ns, append(harness.Judged(t, 1, 300), "--fault", file)...)
	client, server := harness.FabricEndpoints(ns, socket)
	c := cmExchange{server: "rping -s -a SELF -C 100 -S 50000 -V", client: "rping -c -a PEER -C 100 -S 50000 -V"}
	c.run(t, server, client, false)
	if dropped, reordered := faultCounts(t, socket); dropped < 5 || reordered < 5 {
		t.Errorf("%d packets dropped and %d reordered, want at least 5 each", dropped, reordered)
	}
}

// copyFile copies a file with rcopy from one endpoint to the other.
func copyFile(t *testing.T, server, client harness.Endpoint) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	content := make([]byte, 3<<20+17)
	rand.NewChaCha8([32]byte{}).Read(content)
	if err := os.WriteFile(from, content, 0o644); err != nil {
		t.Fatal(err)
	}
	c := cmExchange{server: "rcopy", client: "rcopy " + from + " PEER:" + to, serverStays: true, want: "done"}
	c.run(t, server, client, false)
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the copy differs: it has %d bytes of %d (%v)", len(got), len(content), err)
	}
}

// runVprobePair runs an exchange between two vprobes.
func runVprobePair(t *testing.T, client, server harness.Endpoint) {
	program := filepath.Join(harness.WorkDir(), "vprobe")
	harness.RunCommand(t, "gcc", "-O2", "-o", program, filepath.Join(rxelab.Dir(), "probe/vprobe.c"), "-libverbs")
	large := func(o *verbspeer.Options) { o.RecvSize = 128 << 10 }
	c := exchange{ops: operations(1024), client: optionsWith(large), server: optionsWith(large)}
	c.client.GIDIndex, c.server.GIDIndex = 1, 1
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	serverJob := server.Start(ctx, t, program+" -d "+server.Device+c.server.Args())
	if err := server.WaitListening(ctx, serverJob, verbspeer.Port); err != nil {
		t.Fatal(err)
	}
	clientJob := client.Start(ctx, t, program+" -d "+client.Device+c.client.Args()+" "+server.Host+" "+c.ops)
	clientText, err := clientJob.Wait()
	if err != nil {
		t.Fatalf("client: %v\n%s", err, clientText)
	}
	serverText, err := serverJob.Wait()
	if err != nil {
		t.Fatalf("server: %v\n%s", err, serverText)
	}
	compareKernelExchange(t, c, clientText, serverText)
}

// faultCounts returns how many packets the fault program has dropped and reordered.
func faultCounts(t *testing.T, socket string) (dropped, reordered int) {
	t.Helper()
	bin := harness.Binary(t)
	out, err := exec.Command(bin, "--socket", socket, "show", "faults", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var rules []struct {
		Rule  string
		Acted int
	}
	if err := json.Unmarshal(out, &rules); err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if strings.HasPrefix(r.Rule, "drop") {
			dropped += r.Acted
		} else {
			reordered += r.Acted
		}
	}
	return dropped, reordered
}
