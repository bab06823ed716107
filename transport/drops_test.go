package transport

import (
	"os"
	"strings"
	"testing"
)

// The table of drop reasons in docs/internals/links.md is complete.
func TestDropReasonsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/internals/links.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(b), "\n## Drop reasons\n")
	documented := map[string]bool{}
	for row := range strings.Lines(section) {
		if cells := strings.Split(row, "|"); len(cells) == 4 {
			for name := range strings.SplitSeq(cells[1], ",") {
				documented[strings.Trim(name, " `")] = true
			}
		}
	}
	for r := range NumDropReasons {
		if !documented[r.String()] {
			t.Errorf("docs/internals/links.md has no row for %v", r)
		}
	}
}
