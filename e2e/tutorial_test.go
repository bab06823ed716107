package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"softroce/e2e/harness"
)

// A tutorialCommand is a command of a page, and lines of its output.
type tutorialCommand struct {
	text   string // may have several lines
	output []string
}

// tutorialCommands returns the commands in the blocks of a page that are marked as console. A
// command begins with "$ ". Lines that begin with "> ", and those of a here-document, continue it.
// The other lines are output.
func tutorialCommands(page string) (l []tutorialCommand) {
	for i, block := range strings.Split(page, "```") {
		lines, ok := strings.CutPrefix(block, "console\n")
		if !ok || i%2 == 0 {
			continue
		}
		here := false
		for line := range strings.Lines(lines) {
			line = strings.TrimSuffix(line, "\n")
			command, begins := strings.CutPrefix(line, "$ ")
			if begins {
				l = append(l, tutorialCommand{text: command})
				here = strings.HasSuffix(line, "<<'EOF'")
				continue
			}
			last := &l[len(l)-1]
			switch more, continues := strings.CutPrefix(line, "> "); {
			case here:
				last.text += "\n" + line
				here = line != "EOF"
			case continues:
				last.text += "\n" + more
			default:
				last.output = append(last.output, line)
			}
		}
	}
	return l
}

func TestErrorHandlingTutorial(t *testing.T) { runTutorial(t, "../docs/use/error-handling.md", 30) }

func TestExplainTutorial(t *testing.T) { runTutorial(t, "../docs/use/explain.md", 10) }

func TestLiveTutorial(t *testing.T) { runTutorial(t, "../docs/use/live.md", 14) }

// runTutorial runs the commands of a page, which has at least n, in one shell. They print the lines
// that the page has, in the same order, among others. Three dots in a line stand for anything.
func runTutorial(t *testing.T, file string, n int) {
	t.Helper()
	harness.NeedRoot(t, "a network namespace")
	harness.LocalPrograms.Acquire(t)
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	commands := tutorialCommands(string(page))
	if len(commands) < n {
		t.Fatalf("the page has only %d commands", len(commands))
	}
	ns := harness.Namespace(t, "tutorial")
	const mark = "== the command has ended =="
	script := "PATH=" + filepath.Dir(harness.Binary(t)) + ":$PATH\ncd " + t.TempDir() + "\n"
	for _, c := range commands {
		script += c.text + "\necho; echo '" + mark + "'\n"
	}
	shell := exec.CommandContext(t.Context(), "ip", "netns", "exec", ns, "timeout", fmt.Sprint(harness.ProgramLimit.Seconds()), "bash", "-c", script)
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Errorf("the shell: %v", err)
	}
	outputs := strings.Split(string(out), mark)
	if len(outputs) != len(commands)+1 {
		t.Fatalf("%d of %d commands have run:\n%s", len(outputs)-1, len(commands), out)
	}
	for i, c := range commands {
		lines := strings.Split(outputs[i], "\n")
		for _, want := range c.output {
			form := regexp.MustCompile("^ *" + strings.ReplaceAll(regexp.QuoteMeta(want), `\.\.\.`, ".*") + " *$")
			at := slices.IndexFunc(lines, form.MatchString)
			if at < 0 {
				t.Errorf("$ %s\nprinted\n%s\nwant %q", c.text, outputs[i], want)
				break
			}
			lines = lines[at+1:]
		}
	}
}
