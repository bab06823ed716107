package e2e

import (
	"os"
	"os/exec"
	"testing"

	"softroce/e2e/harness"
)

// needWide skips tests that take minutes, unless make wide runs them.
func needWide(t *testing.T, programs ...string) {
	t.Helper()
	if os.Getenv("SOFTROCE_WIDE") == "" {
		t.Skip("make wide runs it")
	}
	harness.NeedRoot(t, "images and roots")
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%v: scripts/setup wide installs it", err)
		}
	}
	harness.LocalPrograms.Acquire(t)
}
