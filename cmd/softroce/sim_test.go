package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The files and commands of docs/use/network.md, in its order.
func TestNetworkCommandsRun(t *testing.T) {
	text, err := os.ReadFile("../../docs/use/network.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	commands := 0
	for _, block := range regexp.MustCompile(`(?m)(^    .*\n)+(\n?(^     .*\n)+)*`).FindAllString(string(text), -1) {
		block = strings.ReplaceAll("\n"+block, "\n    ", "\n")[1:]
		first, rest, _ := strings.Cut(block, "\n")
		if name, ok := strings.CutPrefix(first, "# "); ok {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(rest), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if !strings.HasPrefix(first, "softroce sim ") {
			continue
		}
		commands++
		args := strings.Fields(first)
		c := exec.Command(args[0], args[1:]...)
		c.Dir = dir
		out, err := c.CombinedOutput()
		deadlock := strings.Contains(first, "ring")
		if (err != nil) != deadlock || !strings.Contains(string(out), "RECEIVER") {
			t.Errorf("%s: %v\n%s", first, err, out)
		}
		if deadlock {
			line := regexp.MustCompile(`(?m)^softroce: PFC deadlock .*$`).FindString(string(out))
			if line == "" || !strings.Contains(string(text), "    "+line+"\n") {
				t.Errorf("%s: the page does not have %q", first, line)
			}
		}
		if strings.HasPrefix(first, "softroce sim incast") {
			checkShown(t, string(text), string(out), "RECEIVER", "n8", "PORT", "switch:n8")
		}
		if strings.Contains(first, "failures") {
			checkShown(t, string(text), string(out), "FAILURE", "link_down", "loss")
		}
	}
	if commands != 6 {
		t.Errorf("%d commands found", commands)
	}
	for _, name := range []string{"pauses.pcapng", "marks.html", "marks.csv"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// checkShown compares the rows of tables that the page shows of a run with its output.
func checkShown(t *testing.T, page, out string, rows ...string) {
	t.Helper()
	fields := func(text, prefix string) string {
		line := regexp.MustCompile(`(?m)^ *` + prefix + ` .*$`).FindString(text)
		return strings.Join(strings.Fields(line), " ")
	}
	for _, row := range rows {
		if got, shown := fields(out, row), fields(page, row); got != shown || got == "" {
			t.Errorf("the run prints %q, the page shows %q", got, shown)
		}
	}
}
