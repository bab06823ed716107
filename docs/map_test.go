package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// A link to a file, and the names in parentheses behind it.
	namesOfFile = regexp.MustCompile(`\]\(([^)#]+\.(?:go|c|h))\)\s+\(([^()\[]*)`)
	codeSpan    = regexp.MustCompile("`([\\w.]+)`")
)

// TestMapNamesWhatIsInItsFiles looks up the names that map.md gives behind a file in that file.
func TestMapNamesWhatIsInItsFiles(t *testing.T) {
	text, err := os.ReadFile("internals/map.md")
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	for _, m := range namesOfFile.FindAllStringSubmatch(string(text), -1) {
		source, err := os.ReadFile(filepath.Join("internals", m[1]))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range codeSpan.FindAllStringSubmatch(m[2], -1) {
			last := name[1][strings.LastIndexByte(name[1], '.')+1:]
			if !regexp.MustCompile(`\b` + last + `\b`).Match(source) {
				t.Errorf("map.md names %s in %s, which has no such name", name[1], m[1])
			}
			names++
		}
	}
	if names < 100 {
		t.Errorf("only %d names were looked up", names)
	}
}
