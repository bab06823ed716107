package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
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
	files := []string{"../../README.md", "../../CONTRIBUTING.md"}
	for _, folder := range []string{"use", "reference", "internals"} {
		pages, err := filepath.Glob("../../docs/" + folder + "/*.md")
		if err != nil || len(pages) < 5 {
			t.Fatalf("docs/%s has %d pages, %v", folder, len(pages), err)
		}
		files = append(files, pages...)
	}
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^    (?:\$ )?(?:sudo )?(?:bin/)?softroce ([^#\n]*)`).FindAllStringSubmatch(string(text), -1) {
			line := strings.TrimSpace(m[1])
			if strings.ContainsAny(line, "[|…<>*\\\"';") || strings.Contains(line, "  ") || strings.HasPrefix(line, "run: ") {
				continue // a synopsis, shell syntax, or output of softroce run
			}
			if _, err := model(t).Parse(strings.Fields(strings.ReplaceAll(line, "FILE", "docs_test.go"))); err != nil && !strings.Contains(err.Error(), "no such file") {
				t.Errorf("%s: softroce %s: %v", file, line, err)
			}
			n++
		}
	}
	if n < 60 {
		t.Errorf("%d examples found", n)
	}
}

// The documents show what softroce run prints when it starts a daemon, and when it finds one.
func TestDocumentsShowWhatRunPrints(t *testing.T) {
	paths := regexp.MustCompile(`(daemon on|libraries in) [^\s;]+`)
	lines := func(text string) (found []string) {
		for _, l := range regexp.MustCompile(`(?m)^ *(softroce run: .*)$`).FindAllStringSubmatch(text, -1) {
			found = append(found, paths.ReplaceAllString(l[1], "$1 PATH"))
		}
		return found
	}
	dir, err := os.MkdirTemp("/tmp", "softroce-readme-") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := exec.Command("softroce", "run", "--", "softroce", "run", "--", "true")
	c.Env = append(os.Environ(), "SOFTROCE_SOCKET="+dir+"/socket", "SOFTROCE_LIBDIR="+someLibrary(t))
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	printed := lines(string(out))
	if len(printed) != 2 {
		t.Errorf("softroce run prints %q", out)
	}
	for _, file := range []string{"README.md", "docs/use/programs.md"} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		if shown := lines(string(text)); !slices.Equal(shown, printed) {
			t.Errorf("softroce run prints %q, %s shows %q", printed, file, shown)
		}
	}
}

// The commands that the README lists run in its order, against a daemon that one of them starts.
func TestReadmeCommandsRun(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Use it\n")
	section, _, _ = strings.Cut(section, "\n## ")
	dir, err := os.MkdirTemp("/tmp", "softroce-readme-") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	command := func(args ...string) *exec.Cmd {
		c := exec.Command("softroce", args...)
		c.Dir, c.Env = dir, append(os.Environ(), "SOFTROCE_SOCKET="+dir+"/socket")
		return c
	}
	start := func(args ...string) (stop func()) {
		c := command(args...)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return sync.OnceFunc(func() {
			c.Process.Signal(os.Interrupt)
			if err := c.Wait(); err != nil {
				t.Errorf("softroce %s: %v", strings.Join(args, " "), err)
			}
		})
	}
	run := func(args ...string) {
		if out, err := command(args...).CombinedOutput(); err != nil {
			t.Errorf("softroce %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	until := func(what string, ok func() bool) {
		for end := time.Now().Add(awaitTime); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waited %v for %s", awaitTime, what)
			}
		}
	}
	ran := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^    softroce ([^#\n]*)`).FindAllStringSubmatch(section, -1) {
		line := strings.TrimSpace(m[1])
		args := strings.Fields(line)
		switch {
		case args[0] == "run" || args[0] == "pingpong" || strings.Contains(line, "eth0"):
			continue // needs programs, another host or an interface
		case line == "daemon":
			t.Cleanup(start(args...))
			until("the daemon", func() bool { return command("show", "devices").Run() == nil })
		case args[0] == "capture":
			stop := start(args...)
			until("the capture", func() bool {
				info, err := os.Stat(dir + "/all.pcapng")
				return err == nil && info.Size() > 0
			})
			run("perf", "write", "--size", "10000", "--duration", "50ms", "--latency", "0")
			stop()
		default:
			run(args...)
		}
		ran[args[0]]++
	}
	for _, name := range []string{"daemon", "perf", "show", "capture", "decode", "check", "replay"} {
		if ran[name] == 0 {
			t.Errorf("the README does not run softroce %s", name)
		}
	}
}
