package e2e

import (
	"os"
	"testing"

	"softroce/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
