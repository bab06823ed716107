//go:build wide

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/internal/hugepagetest"
)

// debian13 is a root file system with the programs of Debian 13, which has rdma-core 56.
type debian13 struct{ root string }

// debian13Packages are what the programs of the tests belong to.
var debian13Packages = []string{
	"ibverbs-utils", "rdmacm-utils", "perftest", "infiniband-diags", "fio", "libfabric-bin", "ucx-utils", "openmpi-bin", "netpipe-openmpi",
	"python3-pyverbs", "iproute2", "netpipe-mpich2", "python3-mpi4py",
}

func makeDebian13(t *testing.T) debian13 {
	dir := harness.ShortDir(t)
	r := debian13{filepath.Join(dir, "root")}
	harness.RunCommand(t, "mmdebstrap", "-q", "--variant=apt", "--include="+strings.Join(debian13Packages, ","), "trixie", r.root)
	return r
}

// enterRoot mounts what programs need in a root, with the folder for temporary files, and runs a
// command there: enterRoot ROOT TMP COMMAND…. The mounts are in a namespace of their own.
const enterRoot = `set -e
root=$0 tmp=$1
shift
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mkdir -p "$root$tmp"
mount --bind "$tmp" "$root$tmp"
exec chroot "$root" "$@"`

// command returns a command that runs in a root and a network namespace.
func (r debian13) command(ctx context.Context, ns string, argv ...string) *exec.Cmd {
	in := []string{"unshare", "--mount", "sh", "-c", enterRoot, r.root, os.TempDir()}
	return harness.InNamespace(ns)(ctx, append(in, argv...)...)
}

// endpoint returns an endpoint whose programs run in the root.
func (r debian13) endpoint(e harness.Endpoint, ns, socket string) harness.Endpoint {
	e.Start = func(ctx context.Context, t *testing.T, command string, env ...string) *harness.Job {
		t.Helper()
		run := []string{harness.Binary(t), "run", "-q", "--socket", socket, "--device", e.Device, "--"}
		cmd := r.command(ctx, ns, append(run, strings.Fields(command)...)...)
		cmd.Env = append(os.Environ(), env...)
		return harness.StartJob(t, cmd)
	}
	return e
}

// TestWideDebian13 runs the programs of Debian 13 in a root of its own, with the libraries and a
// daemon that were built here.
func TestWideDebian13(t *testing.T) {
	needWide(t, "mmdebstrap", "unshare")
	r := makeDebian13(t)
	t.Run("symbols", r.symbols)
	t.Run("programs", r.programs)
	t.Run("rdma-core", r.testSuite)
}

// symbols verifies that the libraries have every public symbol, with its version, that those of
// Debian 13 have.
func (r debian13) symbols(t *testing.T) {
	line := regexp.MustCompile(`\b(IBVERBS|RDMACM)_(\d+\.\d+)\)? +(\w+)$`)
	public := func(library string) map[string]bool {
		list := map[string]bool{}
		for text := range strings.Lines(harness.RunCommand(t, "objdump", "-T", library)) {
			if m := line.FindStringSubmatch(strings.TrimRight(text, "\n")); m != nil && !strings.Contains(text, "*UND*") && m[3] != m[1]+"_"+m[2] {
				list[m[3]+"@"+m[1]+"_"+m[2]] = true
			}
		}
		return list
	}
	for _, name := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
		theirs := public(filepath.Join(r.root, "usr/lib/x86_64-linux-gnu", name))
		ours := public(filepath.Join(harness.Libraries(t), name))
		if len(theirs) < 60 {
			t.Errorf("%s of Debian 13 has %d symbols", name, len(theirs))
		}
		for symbol := range theirs {
			if !ours[symbol] {
				t.Errorf("%s lacks %s", name, symbol)
			}
		}
		t.Logf("%s: %d symbols", name, len(theirs))
	}
}

// programs runs the rows of TestPrograms and TestMiddlewarePrograms between two NICs of a daemon.
func (r debian13) programs(t *testing.T) {
	ns := harness.Namespace(t, "debian13")
	socket := harness.DaemonIn(t, ns, harness.Judged(t, 5, 500)...)
	x, y := harness.FabricEndpoints(ns, socket)
	client, server := r.endpoint(x, ns, socket), r.endpoint(y, ns, socket)
	t.Run("parallel", func(t *testing.T) { runParallel(t, client, server) })
	runFio(t, server, client)
}

// runParallel runs the programs that may run beside others.
func runParallel(t *testing.T, client, server harness.Endpoint) {
	for _, p := range programRuns {
		t.Run(p.name(), func(t *testing.T) {
			t.Parallel()
			p.run(t, client, server, false)
		})
	}
	for _, p := range clientServers {
		// Its ucx_perftest expects to run as a process of MPI by default.
		p.server, p.client = strings.ReplaceAll(p.server, "ucx_perftest", "ucx_perftest -P 0"), strings.ReplaceAll(p.client, "ucx_perftest", "ucx_perftest -P 0")
		if p.needs != netdevLink {
			t.Run(subtestName(p.name), func(t *testing.T) {
				t.Parallel()
				p.run(t, client, server)
			})
		}
	}
	for _, s := range standalones {
		if s.needs != netdevLink {
			t.Run(subtestName(s.name), func(t *testing.T) {
				t.Parallel()
				s.run(t, server)
			})
		}
	}
}

// rdmaLinkShow replaces the rdma command, which asks the kernel for the interface of a NIC.
const rdmaLinkShow = `#!/bin/sh
echo '[{"ifname": "softroce0", "port": 1, "netdev": "rdma0"}]'
`

// testSuite runs the tests of rdma-core 56.
func (r debian13) testSuite(t *testing.T) {
	ns := harness.VethNamespaces(t)[0]
	socket := harness.DaemonIn(t, ns, "--nic", "softroce0=packet:rdma0")
	tests := unpackTests(t, filepath.Join(r.root, pyverbsTests))
	scripts := filepath.Join(t.TempDir(), "pyverbs")
	harness.RunCommand(t, "cp", "-r", "pyverbs", scripts)
	if err := os.WriteFile(filepath.Join(scripts, "rdma"), []byte(rdmaLinkShow), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := hugepagetest.Reserve(t, pyverbsHugePages); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	gid := fmt.Sprint(harness.GIDs(t, socket, "softroce0")[false])
	dir := harness.Libraries(t)
	cmd := r.command(ctx, ns, append([]string{"/usr/bin/python3", filepath.Join(scripts, "report.py"), tests, "softroce0", gid}, pyverbsModules...)...)
	cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+socket, "LD_LIBRARY_PATH="+dir, "PYTHONDONTWRITEBYTECODE=1",
		"LD_PRELOAD="+filepath.Join(dir, "libibverbs.so.1"), "PATH="+scripts+":"+os.Getenv("PATH"))
	var details strings.Builder
	cmd.Stderr = &details
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("the test run failed: %v", err)
	}
	checkReport(t, string(out), true)
	if t.Failed() {
		t.Logf("%s\n%s", out, &details)
	}
}
