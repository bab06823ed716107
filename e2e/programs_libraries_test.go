package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"softroce/e2e/harness"
)

// TestRemotePersistentMemory runs a program that uses librpma.
func TestRemotePersistentMemory(t *testing.T) {
	program := buildWith(t, "/usr/include/librpma.h", "gcc", "-D_GNU_SOURCE", "testdata/rpma.c", "-lrpma", "-libverbs")
	harness.LocalPrograms.Acquire(t)
	client, server := harness.FabricPair(t, harness.Judged(t, 2, 10)...)
	port := harness.FreePort()
	runCMExchanges(t, server, client, []cmExchange{{
		name: "rpma", want: "1048576 bytes are as expected",
		server: fmt.Sprint(program, " listen SELF ", port), client: fmt.Sprint(program, " connect PEER ", port),
	}})
}

// TestGloo runs the collective operations of gloo on two NICs.
func TestGloo(t *testing.T) {
	program := buildWith(t, "/usr/include/gloo/config.h", "g++", "-std=c++14", "testdata/gloo.cc", "-lgloo")
	harness.LocalPrograms.Acquire(t)
	x, y := harness.FabricPair(t, harness.Judged(t, 1, 100)...)
	ctx, cancel := context.WithTimeout(t.Context(), harness.ProgramLimit)
	defer cancel()
	files := harness.ShortDir(t)
	var jobs []*harness.Job
	for rank, e := range []harness.Endpoint{x, y} {
		jobs = append(jobs, e.Start(ctx, t, fmt.Sprint(program, " ", e.Device, " ", e.GID[false], " ", files, " ", rank, " 2")))
	}
	for rank, j := range jobs {
		if out, err := j.Wait(); err != nil || out != fmt.Sprintf("rank %d of 2 is done\n", rank) {
			t.Errorf("rank %d: %v\n%s", rank, err, out)
			cancel()
		}
	}
}

// buildWith builds a program if a header of its library is there.
func buildWith(t *testing.T, header string, compile ...string) (program string) {
	t.Helper()
	harness.NeedRoot(t, "network namespaces")
	if _, err := os.Stat(header); err != nil {
		t.Skipf("%v: scripts/setup test installs it", err)
	}
	if _, err := exec.LookPath(compile[0]); err != nil {
		t.Skipf("%v: scripts/setup test installs it", err)
	}
	program = filepath.Join(t.TempDir(), "program")
	harness.RunCommand(t, compile[0], append([]string{"-O1", "-Wall", "-Wextra", "-Werror", "-o", program}, compile[1:]...)...)
	return program
}
