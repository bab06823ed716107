package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/reference/cli.md has a section for each command that mentions all of its flags, long or
// short.
func TestCLIReferenceCoversEveryCommandAndFlag(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands(model(t).Model) {
		if !strings.Contains(string(text), "\n    softroce "+c.Name) {
			t.Errorf("%s: not listed", c.Name)
		}
		if c.Name == "version" {
			continue
		}
		_, section, found := strings.Cut(string(text), "\n## "+c.Name+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		if !found {
			t.Errorf("%s: no section", c.Name)
			continue
		}
		for _, f := range c.Flags {
			if f.Name != "help" && !strings.Contains(section, "--"+f.Name) && (f.Short == 0 || !strings.Contains(section, "-"+string(f.Short))) {
				t.Errorf("%s: --%s is missing", c.Name, f.Name)
			}
		}
	}
}

// The commands in the documents parse as they are written.
func TestDocumentExamplesParse(t *testing.T) {
	n := 0
	for _, file := range []string{"README.md", "docs/reference/cli.md", "docs/reference/check-rules.md", "docs/reference/scenario-language.md", "docs/internals/replay.md", "docs/reference/fault-language.md", "docs/use/programs.md", "docs/use/quickstart.md", "docs/use/captures.md", "docs/use/containers.md", "docs/use/faults.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^    (?:\$ )?softroce ([^#\n]*)`).FindAllStringSubmatch(string(text), -1) {
			line := strings.TrimSpace(m[1])
			if strings.ContainsAny(line, "[|…<>*\\\"'") || strings.Contains(line, "  ") || strings.HasPrefix(line, "run: ") {
				continue // a synopsis, shell syntax, or output of softroce run
			}
			if _, err := model(t).Parse(strings.Fields(strings.ReplaceAll(line, "FILE", "docs_test.go"))); err != nil && !strings.Contains(err.Error(), "no such file") {
				t.Errorf("%s: softroce %s: %v", file, line, err)
			}
			n++
		}
	}
	if n < 15 {
		t.Errorf("%d examples found", n)
	}
}
