package e2e

import (
	"os"
	"testing"

	"softroce/e2e/harness"
)

// TestMain runs the tests, or, in a process that startAttack started, an attack.
func TestMain(m *testing.M) {
	if name := os.Getenv(attackEnv); name != "" {
		attacks[name]()
		return
	}
	os.Exit(harness.Main(m))
}
