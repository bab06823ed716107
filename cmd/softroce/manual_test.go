package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

func model(t *testing.T) *kong.Kong {
	t.Helper()
	k, err := kong.New(&cli{}, kong.Vars(defaults()), kong.Exit(func(int) { t.Error("exit") }))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestManualCoversEveryCommandAndFlag(t *testing.T) {
	k := model(t)
	page := strings.ReplaceAll(manual(k.Model), `\-`, "-")
	for _, c := range commands(k.Model) {
		_, section, found := strings.Cut(page, ".SS softroce "+c.Name+"\n")
		section, _, _ = strings.Cut(section, "\n.S")
		if !found {
			t.Errorf("%s: no section", c.Name)
		}
		for _, f := range c.Flags {
			if !strings.Contains(section, "--"+f.Name) {
				t.Errorf("%s: --%s is missing", c.Name, f.Name)
			}
		}
	}
}

// TestManualExamplesParse parses the examples of the page. Quoted words belong to the shell and
// contain no flags of softroce.
func TestManualExamplesParse(t *testing.T) {
	text := strings.ReplaceAll(manualSections, `\-`, "-")
	text = regexp.MustCompile(`\\\(aq.*?\\\(aq`).ReplaceAllString(text, "QUOTED")
	examples := regexp.MustCompile(`(?m)^softroce .*`).FindAllString(text, -1)
	if len(examples) < 4 {
		t.Fatalf("examples: %q", examples)
	}
	for _, e := range examples {
		if _, err := model(t).Parse(strings.Fields(e)[1:]); err != nil {
			t.Errorf("%s: %v", e, err)
		}
	}
}

func TestManualIsWellFormed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "softroce.1")
	if err := os.WriteFile(file, []byte(manual(model(t).Model)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("man"); err != nil {
		t.Skip("needs man (package man-db)")
	}
	cmd := exec.Command("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", file)
	cmd.Env = append(os.Environ(), "MANWIDTH=80", "LC_ALL=C.UTF-8")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	out = regexp.MustCompile(".\x08").ReplaceAll(out, nil) // man overstrikes bold letters
	if err != nil || complaints.Len() > 0 {
		t.Errorf("man: %v\n%s", err, &complaints)
	}
	if !bytes.Contains(out, []byte("SEE ALSO")) {
		t.Errorf("the page is truncated:\n%s", out)
	}
}
