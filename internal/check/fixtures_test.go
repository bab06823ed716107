package check

import (
	"os"
	"path/filepath"
	"testing"
)

const fixtures = "../../pcap-fixtures"

// fixtureFiles returns the captures of pcap-fixtures.
func fixtureFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(fixtures, "*.pcap"))
	if err != nil || len(files) < 80 {
		t.Fatalf("%d captures in %s, %v; want at least 80", len(files), fixtures, err)
	}
	return files
}

func TestFixturesBreakNoRule(t *testing.T) {
	for _, file := range fixtureFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r, err := File(file)
			if err != nil || r.Total != 0 {
				t.Errorf("%v\n%v", err, r)
			}
			if os.Getenv("SHOW") != "" {
				t.Log("\n" + r.String())
			}
		})
	}
}
