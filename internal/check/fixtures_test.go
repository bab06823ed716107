package check

import (
	"os"
	"path/filepath"
	"strings"
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
				t.Fatalf("%v\n%v", err, r)
			}
			// Some have no reply at all. All others are judged as a whole.
			answered := !strings.HasPrefix(filepath.Base(file), "vp-no-answer")
			reliable, unreliable := r.Services["RC"]+r.Services["XRC"] > 0, r.Services["UC"] > 0
			if (len(r.NotJudged) == 0) != answered || (r.Connections > 0 && r.Messages > 0) != (reliable && answered) || (r.UCMessages > 0) != unreliable {
				t.Errorf("not everything was judged:\n%v", r)
			}
			if os.Getenv("SHOW") != "" {
				t.Log("\n" + r.String())
			}
		})
	}
}
