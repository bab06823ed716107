package e2e

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"softroce/e2e/harness"
	"testing"
	"time"
)

// TestScenariosAgainstDaemon plays the scenarios against a daemon at the other end of a veth pair.
// All that can be played live must pass as in a simulation. The verbs program is softroce answer
// over IPv4, and the C program with softroce's libibverbs over IPv6.
func TestScenariosAgainstDaemon(t *testing.T) {
	harness.LocalPrograms.Acquire(t)
	c := harness.NewVethLink(t)
	for i, ns := range c.Namespaces {
		harness.RunCommand(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("fd79:8::%d/64", i+1), "dev", c.Interface, "nodad")
	}
	dir := harness.Libraries(t)
	program := scenarioProgram(t)
	bin := harness.Binary(t)
	files, err := filepath.Glob(scenarioFiles)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []struct {
		link, family, program string
		files                 []string
	}{
		{"packet", "", bin + " answer", files},
		{"udp", "--ipv6", "env LD_LIBRARY_PATH=" + dir + " " + program, sampleScenarios(files)},
	} {
		t.Run(l.link+l.family, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s.sock")
			harness.OpenNIC(t, harness.StartDaemon(t, c.In(1), "--socket", socket, "--nic", "softroce0="+l.link+":"+c.Interface), socket)
			ctx, cancel := context.WithTimeout(t.Context(), programTimeLimit)
			defer cancel()
			args := []string{bin, "scenario", "--json", "--untimed", fmt.Sprint("-j", parallelDaemonScenarios), "--peer", l.link + ":" + c.Interface,
				"--program", "env SOFTROCE_SOCKET=" + socket + " " + l.program}
			if l.family != "" {
				args = append(args, l.family)
			}
			began := time.Now()
			cmd := c.In(0)(ctx, append(args, l.files...)...)
			var out, diag bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &diag
			if err := cmd.Run(); cmd.ProcessState.ExitCode() > 1 {
				t.Fatalf("softroce scenario: %v: %s", err, &diag)
			}
			checkScenarios(t, &out, l.files, func(string) (deviation, bool) { return deviation{}, false })
			t.Logf("in %v", time.Since(began))
		})
	}
}

// parallelDaemonScenarios is how many scenarios play at the same time. They mostly wait.
const parallelDaemonScenarios = 24
