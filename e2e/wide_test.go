//go:build wide

package e2e

import (
	"os/exec"
	"testing"

	"softroce/e2e/harness"
)

// needWide prepares a test that takes minutes: make wide runs it.
func needWide(t *testing.T, programs ...string) {
	t.Helper()
	harness.NeedRoot(t, "images and roots")
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%v: scripts/setup wide installs it", err)
		}
	}
	harness.LocalPrograms.Acquire(t)
}
