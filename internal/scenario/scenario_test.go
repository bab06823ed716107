package scenario

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softroce/internal/testbed"
)

// TestScenarios runs each scenario twice: with IPv4 and mapped memory, and with IPv6 and memory
// that the NIC accesses in another process.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 300 {
		t.Fatalf("%d scenarios, %v; want at least 300", len(files), err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".txt")
		t.Run(name, func(t *testing.T) { runFile(t, f, testbed.SimulatedOptions{}) })
		t.Run(name+"/ipv6,foreign", func(t *testing.T) { runFile(t, f, testbed.SimulatedOptions{IPv6: true, Foreign: true}) })
	}
}

func runFile(t *testing.T, file string, o testbed.SimulatedOptions) {
	r := Run(file, Options{NewTestbed: o.NewTestbed})
	switch {
	case errors.Is(r.Err, ErrSkipped):
		t.Errorf("%v: every scenario must run in a simulation", r.Err)
	case r.Err != nil:
		t.Error(r.Log)
	case testing.Verbose():
		t.Log(r.Log)
	}
}

// runScript runs a scenario given as text.
func runScript(t *testing.T, script string) *Result {
	t.Helper()
	f := filepath.Join(t.TempDir(), "it.txt")
	if err := os.WriteFile(f, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return Run(f, Options{})
}
