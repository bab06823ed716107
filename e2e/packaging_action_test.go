package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"softroce/e2e/harness"
)

// An actionStep is a step of an action or a job.
type actionStep struct {
	Uses string            `json:"uses"`
	Run  string            `json:"run"`
	Env  map[string]string `json:"env"`
	With map[string]any    `json:"with"`
}

// An action is action.yml.
type action struct {
	Inputs map[string]struct {
		Default string `json:"default"`
	} `json:"inputs"`
	Runs struct {
		Steps []actionStep `json:"steps"`
	} `json:"runs"`
}

func readAction(t *testing.T) (a action) {
	t.Helper()
	text, err := os.ReadFile("../action.yml")
	if err == nil {
		err = yaml.Unmarshal(text, &a)
	}
	if err != nil || len(a.Runs.Steps) != 1 {
		t.Fatalf("action.yml has %d steps, %v", len(a.Runs.Steps), err)
	}
	return a
}

// runAction runs the step of the action as a runner does, and returns what it writes to GITHUB_ENV.
// programs is a directory at the front of PATH, and context has what the runner knows of the action
// and the job; both are empty for a local action on a machine without softroce.
func runAction(t *testing.T, programs string, context, inputs map[string]string) (env []string, out string, err error) {
	t.Helper()
	a := readAction(t)
	step, dir := a.Runs.Steps[0], harness.ShortDir(t)
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	path := "/usr/bin:/bin:/usr/sbin:/sbin"
	if programs != "" {
		path = programs + ":" + path
	}
	environment := []string{
		"PATH=" + path, "HOME=" + dir, "RUNNER_TEMP=" + dir, "GITHUB_ACTION_PATH=" + root, "GITHUB_ENV=" + dir + "/env", "GITHUB_OUTPUT=" + dir + "/output",
		"SOFTROCE_LIBDIR=" + harness.Libraries(t),
	}
	expression := regexp.MustCompile(`^\$\{\{ (inputs\.)?([\w.]+) \}\}$`)
	var evaluate func(text string) string
	evaluate = func(text string) string {
		m := expression.FindStringSubmatch(text)
		switch {
		case m == nil:
			return text
		case m[1] == "":
			return context[m[2]]
		}
		in, declared := a.Inputs[m[2]]
		if !declared {
			t.Errorf("action.yml does not declare the input %s", m[2])
		}
		if value, set := inputs[m[2]]; set {
			return value
		}
		return evaluate(in.Default)
	}
	for name, value := range step.Env {
		environment = append(environment, name+"="+evaluate(value))
	}
	c := exec.CommandContext(t.Context(), "bash", "-c", step.Run)
	c.Env = environment
	output := filepath.Join(dir, "step") // a pipe would stay open in the daemon
	f, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c.Stdout, c.Stderr = f, f
	err = c.Run()
	text, readErr := os.ReadFile(output)
	if readErr != nil {
		t.Fatal(readErr)
	}
	set, _ := os.ReadFile(filepath.Join(dir, "env"))
	env = append([]string{"PATH=" + path}, strings.Split(strings.TrimSpace(string(set)), "\n")...)
	t.Cleanup(func() { endDaemon(t, dir) })
	return env, string(text), err
}

// endDaemon ends the daemon that the action has left with a socket in a directory. It ignores
// SIGINT, since a script has started it in the background.
func endDaemon(t *testing.T, dir string) {
	sockets, _ := filepath.Glob(filepath.Join(dir, "softroce-ci-*", "socket"))
	for _, s := range sockets {
		for _, p := range daemonsOn(s) {
			if err := p.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
}

// daemonsOn returns the processes whose command line has the argument --socket SOCKET.
func daemonsOn(socket string) (list []*os.Process) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		args := strings.Split(string(text), "\x00")
		if i := slices.Index(args, "--socket"); i > 0 && args[1] == "daemon" && args[i+1] == socket {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if p, err := os.FindProcess(pid); err == nil {
				list = append(list, p)
			}
		}
	}
	return list
}

// TestActionStartsADaemon runs unmodified programs in the environment that the action leaves.
func TestActionStartsADaemon(t *testing.T) {
	harness.NeedPrograms(t)
	env, out, err := runAction(t, filepath.Dir(harness.Binary(t)), nil, map[string]string{"nics": "3"})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The libraries are found without softroce run, by Python and by C.
	for command, want := range map[string]string{
		"ibv_devinfo -l": "3 HCAs found",
		"ibv_rc_pingpong -d softroce2 -g 1 -n 10 -p 18599 & until ibv_rc_pingpong -d softroce0 -g 1 -n 10 -p 18599 localhost 2>&1; do sleep 0.1; done; wait": "10 iters",
		"python3 -c 'import pyverbs.device as d; print(len(d.get_device_list()), \"devices\")'":                                                              "3 devices",
		"cat \"$SOFTROCE_LOG\"": "softroce2 on fabric: state ACTIVE, path MTU 4096, 192.0.2.3",
	} {
		c := exec.CommandContext(t.Context(), "timeout", "60", "bash", "-c", command)
		c.Env = env
		if printed, err := c.CombinedOutput(); err != nil || !strings.Contains(string(printed), want) {
			t.Errorf("%s: %v\n%s", command, err, printed)
		}
	}
}

// TestActionInstallsItsRelease runs the action where softroce is not installed, with stand-ins for
// gh, which has a release with a package, and for apt-get, which unpacks it.
func TestActionInstallsItsRelease(t *testing.T) {
	programs := t.TempDir()
	for path, text := range map[string]string{
		"release/DEBIAN/control": "Package: softroce\nVersion: 1.0\nArchitecture: all\nMaintainer: test\nDescription: test\n",
		"gh": `#!/bin/sh
[ "$GH_TOKEN" = secret ] || { echo "no token"; exit 4; }
[ "$1 $2 $3 $4 $5 $6" = "release download v1 --repo owner/softroce --dir" ] || { echo "release not found" >&2; exit 1; }
case $9 in softroce_*_$(dpkg --print-architecture).deb) ;; *) echo "no assets match" >&2; exit 1;; esac
exec dpkg-deb --build ` + programs + `/release "$7/softroce_1.0_$(dpkg --print-architecture).deb"
`,
		"apt-get": `#!/bin/sh
for deb; do :; done
exec dpkg-deb --fsys-tarfile "$deb" | tar -x -C ` + programs + ` --strip-components 3 ./usr/bin/softroce
`,
	} {
		file := filepath.Join(programs, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	harness.RunCommand(t, "install", "-D", harness.Binary(t), filepath.Join(programs, "release/usr/bin/softroce"))

	context := map[string]string{"github.action_repository": "owner/softroce", "github.action_ref": "v2", "github.token": "secret"}
	_, out, err := runAction(t, programs, context, nil)
	if err == nil || !strings.Contains(out, "ci-start: release v2 of owner/softroce has no package for ") {
		t.Errorf("a release without a package: %v\n%s", err, out)
	}
	context["github.action_ref"] = "v1"
	env, out, err := runAction(t, programs, context, map[string]string{"nics": "1"})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	show := exec.Command(filepath.Join(programs, "softroce"), "show", "devices")
	show.Env = env
	if out, err := show.CombinedOutput(); err != nil || !strings.Contains(string(out), "softroce0") || strings.Contains(string(out), "softroce1") {
		t.Errorf("show devices: %v\n%s", err, out)
	}
}

func TestActionRefusesBadInput(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("nics: [x=nowhere]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		installed   bool
		input, text string
		want        string
	}{
		{true, "nics", "0", "nics: 0: want a number from 1 to 254"},
		{true, "nics", "255", "nics: 255: want a number from 1 to 254"},
		{true, "nics", "$(id)", "nics: $(id): want a number from 1 to 254"},
		{true, "config", "/nonexistent", "config: /nonexistent: no such file"},
		{true, "config", bad, "the daemon does not start: softroce: " + bad + ":1: "},
		{true, "deb", "/nonexistent.deb", "/nonexistent.deb"},
		{true, "deb", bad, "is not a Debian format archive"},
		{false, "nics", "2", "softroce is not installed, and deb names no package"},
	} {
		programs := ""
		if c.installed {
			programs = filepath.Dir(harness.Binary(t))
		}
		_, out, err := runAction(t, programs, nil, map[string]string{c.input: c.text})
		lines := strings.Count(strings.TrimSpace(out), "\n")
		if err == nil || !strings.Contains(out, "ci-start: ") || !strings.Contains(out, c.want) || lines > 0 {
			t.Errorf("%s: %s: %v, %q, want %q", c.input, c.text, err, out, c.want)
		}
	}
}

// The workflows of the page use inputs that the action has.
func TestWorkflowsOfThePageFitTheAction(t *testing.T) {
	page, err := os.ReadFile("../docs/use/ci.md")
	if err != nil {
		t.Fatal(err)
	}
	a, uses := readAction(t), 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		var workflow struct {
			Jobs map[string]struct {
				Steps []actionStep `json:"steps"`
			} `json:"jobs"`
		}
		if err := yaml.Unmarshal([]byte(block[1]), &workflow); err != nil {
			t.Errorf("%v in\n%s", err, block[1])
		}
		for _, job := range workflow.Jobs {
			for _, s := range job.Steps {
				if !strings.HasPrefix(s.Uses, "OWNER/softroce@") {
					continue
				}
				uses++
				for name := range s.With {
					if _, declared := a.Inputs[name]; !declared {
						t.Errorf("the action has no input %s:\n%s", name, block[1])
					}
				}
			}
		}
	}
	if uses < 4 {
		t.Errorf("%d workflows use the action", uses)
	}
}
