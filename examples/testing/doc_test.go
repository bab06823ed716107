package testing_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/use/testing.md quotes the tests of this folder, so that what it shows runs.
func TestDocumentQuotesTheseExamples(t *testing.T) {
	doc, err := os.ReadFile("../../docs/use/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile("fabric_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if examples := strings.Count(string(src), "\nfunc Test"); len(blocks) != examples {
		t.Errorf("docs/use/testing.md has %d of %d examples", len(blocks), examples)
	}
	for _, b := range blocks {
		if !strings.Contains(string(src), b[1]) {
			t.Errorf("fabric_test.go lacks\n%s", b[1])
		}
	}
}
