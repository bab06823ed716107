package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"softroce/e2e/harness"
	"strings"
	"testing"
)

// TestProgramsDocument verifies that docs/use/programs.md lists each program run and each exchange.
func TestProgramsDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/use/programs.md")
	if err != nil {
		t.Fatal(err)
	}
	count := regexp.MustCompile(`-n \d+ ?`)
	lines := strings.Split(string(text), "\n")
	for _, r := range programRuns {
		options := strings.TrimSpace(count.ReplaceAllString(r.options, "") + " " + r.softroceOptions)
		want := "`" + options + "`"
		if options == "" {
			want = "none"
		}
		found := false
		for _, l := range lines {
			found = found || strings.HasPrefix(l, "| `"+r.tool+"` |") && strings.Contains(l, want)
		}
		if !found {
			t.Errorf("docs/use/programs.md does not list %s %s", r.tool, want)
		}
	}
	names := strings.NewReplacer("SELF", "ADDR", "PEER", "ADDR", "COPY", "FILE", "/usr/bin/rcopy", "FILE")
	for _, c := range cmExchanges {
		want := fmt.Sprintf("| `%s` | `%s` |", names.Replace(c.server), names.Replace(c.client))
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("docs/use/programs.md has no line %s", want)
		}
	}
}

// TestDevinfo runs the programs that list devices, with and without softroce run --device.
func TestDevinfo(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	ns := harness.Namespace(t, "devinfo")
	socket := harness.DaemonIn(t, ns)
	x := harness.OnDaemon(ns, socket, harness.Endpoint{Device: "softroce0,softroce1"})
	for _, c := range []struct {
		command string
		want    []string
	}{
		{"ibv_devices", []string{"softroce0", "softroce1"}},
		{"ibv_devinfo -v", []string{"PORT_ACTIVE", "hca_id:\tsoftroce1", "link_layer:\t\tEthernet", "::ffff:192.0.2.2, RoCE v2", "max_qp:"}},
	} {
		out, err := x.Start(t.Context(), t, c.command).Wait()
		if err != nil {
			t.Errorf("%s: %v", c.command, err)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", c.command, want, out)
			}
		}
	}
	bin := harness.Binary(t)
	for _, names := range []string{"softroce1", "softroce1,softroce0"} {
		out := harness.RunCommand(t, bin, "run", "-q", "--socket", socket, "--device", names, "--", "ibv_devices")
		if seen := regexp.MustCompile(`softroce\d`).FindAllString(out, -1); strings.Join(seen, ",") != names {
			t.Errorf("with --device %s:\n%s", names, out)
		}
	}
}
