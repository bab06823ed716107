package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softroce/e2e/harness"
)

// TestMemoryOfPrograms has programs register memory under each --memory of softroce run. While they
// transfer data, softroce show mr says for each of their regions whether it is mapped, and why not.
// ib_send_bw allocates page-aligned memory, or maps a file, which cannot be shared. UCX maps
// anonymous memory.
func TestMemoryOfPrograms(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "memory")
	socket := harness.DaemonIn(t, ns)
	file := filepath.Join(t.TempDir(), "buffer")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	const ucx = ucxRC + "ucx_perftest -p {port}"
	const perftest, endless = "ib_send_bw -d {dev} -x 1 -F -p {port}", " -D 300"
	ofFile := perftest + " --mmap=" + file
	for _, c := range []struct {
		name, memory     string
		program, options string // the options are the client's, in addition
		want             region
		fails            string // what the client prints instead
	}{
		{name: "default/perftest", program: perftest + endless, want: region{Backing: "mapped"}},
		{name: "default/UCX", program: ucx, options: " -t tag_bw -s 100000 -n 1000000000", want: region{Backing: "mapped"}},
		{name: "default/file", program: ofFile + endless, want: region{"process", "kind"}},
		{name: "process/perftest", memory: "process", program: perftest + endless, want: region{"process", "disabled"}},
		{name: "shared/perftest", memory: "shared", program: perftest + endless, want: region{Backing: "mapped"}},
		{name: "shared/file", memory: "shared", program: ofFile, fails: "Couldn't allocate MR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if tool := strings.Fields(strings.TrimPrefix(c.program, ucxRC))[0]; !installed(tool) {
				t.Skipf("no %s: scripts/setup test installs it", tool)
			}
			on := func(device string) harness.Endpoint {
				return harness.OnDaemon(ns, socket, harness.Endpoint{Device: device, Host: "127.0.0.1", Memory: c.memory})
			}
			client, server := on("softroce0"), on("softroce1")
			ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
			defer cancel()
			port := harness.FreePort()
			serverJob := server.Start(ctx, t, expand(c.program, server, server, port))
			if err := server.WaitListening(ctx, serverJob, port); err != nil {
				t.Fatalf("%v: %s", err, serverJob.Output())
			}
			job := client.Start(ctx, t, expand(c.program+c.options+" {host}", client, server, port))
			if c.fails != "" {
				out, err := job.Wait()
				if err == nil || !strings.Contains(out, c.fails) {
					t.Errorf("the client ends with %v, want %q in\n%s", err, c.fails, out)
				}
			} else {
				awaitPackets(t, server, job, "at the beginning")
				checkRegions(t, socket, c.want, client.Device, server.Device)
			}
			cancel()
			job.Wait()
			serverJob.Wait()
			awaitNoObjects(t, socket)
		})
	}
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// A region is what softroce show mr says about how a memory region is accessed.
type region struct{ Backing, Unshared string }

// checkRegions requires that each of these NICs has memory regions, and that all are as wanted.
func checkRegions(t *testing.T, socket string, want region, devices ...string) {
	t.Helper()
	out, err := exec.Command(harness.Binary(t), "--socket", socket, "show", "mr", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		IfName string
		region
	}
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatal(err)
	}
	regions := map[string]int{}
	for _, r := range list {
		regions[r.IfName]++
		if r.region != want {
			t.Errorf("a region of %s is %+v, want %+v", r.IfName, r.region, want)
		}
	}
	for _, d := range devices {
		if regions[d] == 0 {
			t.Errorf("%s has no memory region: %s", d, out)
		}
	}
}
