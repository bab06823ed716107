package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"softroce/e2e/harness"
	"softroce/internal/ib"
)

// An operator provokes faults in a daemon with commands.
type operator struct {
	t      *testing.T
	socket string
	rule   string // ID of the rule that it has added last
}

func (o *operator) softroce(args ...string) string {
	o.t.Helper()
	return strings.TrimSpace(harness.RunCommand(o.t, harness.Binary(o.t), append([]string{"--socket", o.socket}, args...)...))
}

// only returns the number of the only object of a kind.
func (o *operator) only(kind, number string) string {
	o.t.Helper()
	var l []map[string]any
	if err := json.Unmarshal([]byte(o.softroce("show", kind, "--json")), &l); err != nil || len(l) != 1 {
		o.t.Fatalf("objects of kind %s: %v, %v", kind, l, err)
	}
	return fmt.Sprint(l[0][number])
}

// provoke does what a line of testdata/faults.h requests.
func (o *operator) provoke(line string) {
	o.t.Helper()
	words := strings.Fields(line)
	if words[0] == "fire" {
		n, err := strconv.Atoi(words[1])
		if err != nil {
			o.t.Fatal(err)
		}
		command := []string{"fault", "fire", "nic0", ib.EventType(n).String()}
		switch event := ib.EventType(n); {
		case words[2] != "0":
			command = append(command, words[2])
		case event == ib.EventCQErr:
			command = append(command, o.only("cq", "cqn"))
		case event == ib.EventSRQErr || event == ib.EventSRQLimitReached:
			command = append(command, o.only("srq", "srqn"))
		}
		o.softroce(command...)
		return
	}
	if o.rule != "" {
		o.softroce("fault", "remove", o.rule)
		o.rule = ""
	}
	if words[0] != "#" {
		o.rule = o.softroce(append([]string{"fault", "add"}, words...)...)
	}
}

// Whatever a rule or an event can do to a C program, the commands can: the programs of
// libverbs/check request each verb, status and event, and check what they see.
func TestFaultsByCommand(t *testing.T) {
	harness.NeedRoot(t, "a network namespace")
	harness.NeedPrograms(t)
	libs, dir := harness.Libraries(t), t.TempDir()
	ns := harness.Namespace(t, "commands")
	for name, least := range map[string]int{"faults": 150, "faults_cm": 35} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(dir, name)
			harness.RunCommand(t, "gcc", "-D_GNU_SOURCE", "-o", program, "../libverbs/check/testdata/"+name+".c", "-L"+libs, "-lrdmacm", "-libverbs")
			o := &operator{t: t, socket: harness.DaemonIn(t, ns, "--nic", "nic0=fabric:192.0.2.1", "--nic", "nic1=fabric:192.0.2.2")}
			cmd := exec.CommandContext(t.Context(), program, fmt.Sprint(harness.ProgramLimit.Seconds()))
			cmd.Env = append(os.Environ(), "SOFTROCE_SOCKET="+o.socket, "LD_LIBRARY_PATH="+libs)
			var diagnostics strings.Builder
			cmd.Stderr = &diagnostics
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			requests := 0
			for lines := bufio.NewScanner(out); lines.Scan(); fmt.Fprintln(in) {
				requests++
				o.provoke(lines.Text())
			}
			if err := cmd.Wait(); err != nil || requests < least {
				t.Errorf("%v after %d requests, want %d: %s", err, requests, least, diagnostics.String())
			}
			awaitNoObjects(t, o.socket)
		})
	}
}
