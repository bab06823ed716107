package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestGoCodeInDocumentsRuns holds the Go code of the documents to the examples and tests that run
// it.
func TestGoCodeInDocumentsRuns(t *testing.T) {
	var source strings.Builder
	for _, pattern := range []string{"verbs/example_test.go", "verbs/*/example_test.go", "capture/*_test.go", "packet/*_test.go", "examples/*/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files (%v)", pattern, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			source.WriteString(unindent(string(text)))
		}
	}
	documents := []string{"README.md", "CONTRIBUTING.md"}
	for _, folder := range []string{"use", "reference", "internals"} {
		pages, err := filepath.Glob(filepath.Join(folder, "*.md"))
		if err != nil || len(pages) == 0 {
			t.Fatalf("docs/%s: no pages (%v)", folder, err)
		}
		for _, p := range pages {
			documents = append(documents, filepath.Join("docs", p))
		}
	}
	blocks := 0
	for _, d := range documents {
		text, err := os.ReadFile(filepath.Join(root, d))
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			blocks++
			if !strings.Contains(source.String(), unindent(b[1])) {
				t.Errorf("%s: no example or test runs this code:\n%s", d, b[1])
			}
		}
	}
	if blocks < 5 {
		t.Errorf("only %d blocks of Go code were found", blocks)
	}
}

// The documents that say how to build name the version of Go that go.mod requires.
func TestDocumentsNameTheRequiredGoVersion(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^go (\d+\.\d+)\.`).FindSubmatch(mod)
	if m == nil {
		t.Fatal("go.mod names no version")
	}
	for _, d := range []string{"README.md", "docs/use/quickstart.md"} {
		text, err := os.ReadFile(filepath.Join(root, d))
		if err != nil {
			t.Fatal(err)
		}
		if want := "Go " + string(m[1]) + " or later"; !strings.Contains(string(text), want) {
			t.Errorf("%s does not say %q", d, want)
		}
	}
}

// An older Go, such as that of a distribution, is rejected with the version that is needed.
func TestSetupRejectsOldGo(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte("#!/bin/sh\necho go1.19.8\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("scripts/setup", "build")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err == nil || !regexp.MustCompile(`needs Go 1\.\d+\.\d+ or later, and has found 1\.19\.8`).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

// unindent removes the indentation of each line: an example's body is indented, a document's is
// not.
func unindent(text string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(text, "")
}
