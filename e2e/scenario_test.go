package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/e2e/rxelab"
	"softroce/scenario"
)

const (
	programPort = 18601           // of the verbs program in the guest
	programTime = 4 * time.Minute // that the guest has for a link's scenarios
	atATime     = 6               // scenarios
	inSample    = 5               // of so many scenarios one is played on links other than packet
	always      = `^u[cd]-`       // of these all are
)

// TestScenariosWithTheKernel plays the scenarios against the kernel's rxe: each goes as it does in a simulation,
// or departs from it just as testdata/rxe.txt says.
func TestScenariosWithTheKernel(t *testing.T) {
	needRoot(t, "network namespaces and a guest's network")
	t.Parallel()
	files, err := filepath.Glob(scenarioFiles)
	if err != nil {
		t.Fatal(err)
	}
	d, err := readDepartures()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		play := files
		if l.name != "packet" {
			play = sample(files)
		}
		t.Run(l.name, func(t *testing.T) {
			l.lane.take(t)
			playScenarios(t, l, play, d)
		})
	}
}

func sample(files []string) (l []string) {
	all := regexp.MustCompile(always)
	for i, f := range files {
		if i%inSample == 0 || all.MatchString(filepath.Base(f)) {
			l = append(l, f)
		}
	}
	return l
}

func playScenarios(t *testing.T, l link, files []string, d *departures) {
	lab, err := l.lab()
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := kernelOf(lab.Release)
	if err != nil {
		t.Fatal(err)
	}
	bin, err := softroceBinary()
	if err != nil {
		t.Fatal(err)
	}
	g := lab.Guests[0]
	if err := g.Calm(t.Context()); err != nil {
		t.Fatal(err)
	}
	serveProgram(t, g)
	ctx, cancel := context.WithTimeout(t.Context(), programTime)
	defer cancel()
	args := []string{bin, "scenario", "--json", "--untimed", fmt.Sprint("-j", atATime), "--peer", l.nic(lab),
		"--program", fmt.Sprintf("tcp:%v:%d", g.Host, programPort), "--lacks", strings.Join(d.lacks(kernel), ",")}
	cmd := lab.Command(ctx, append(args, files...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run() // which fails where a scenario does
	if cmd.ProcessState.ExitCode() > 1 {
		t.Fatalf("softroce scenario: %v: %s", err, &said)
	}
	judgeScenarios(t, &out, files, func(name string) (departure, bool) {
		dep, ok := d.scenarios[name][kernel]
		return dep, ok
	})
}

// serveProgram has a verbs program wait for each connection to the guest, until the test ends.
func serveProgram(t *testing.T, g *rxelab.Guest) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	out, err := exec.Command("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "../scenario/program/program.c", "-libverbs").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := g.Put(t.Context(), program, "/tmp/program"); err != nil {
		t.Fatal(err)
	}
	p, err := g.Start(t.Context(), programTime, fmt.Sprintf("echo $$ >/tmp/program.pid; exec nc -ll -p %d -e /tmp/program", programPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if out, err := g.Run(ctx, 10*time.Second, "kill $(cat /tmp/program.pid)"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		<-p.Done()
	})
	if err := g.WaitListen(t.Context(), programPort); err != nil {
		t.Fatal(err)
	}
}

// unplayable are what a live NIC at the end of a real cable cannot take part in.
var unplayable = regexp.MustCompile(`(?m)^(\[live\] skip|pair|drop|duplicate|reorder|delay|corrupt|mark|set|xrcd)\b|\bsecond\b|\bXRC_|\bcable=|\bvlan=[1-9]|^frame\b`)

// judgeScenarios compares reports with what is known of the NIC that the scenarios were played against.
func judgeScenarios(t *testing.T, reports *bytes.Buffer, files []string, known func(name string) (departure, bool)) {
	t.Helper()
	counts := map[string]int{}
	left := map[string]int{} // out, by reason
	for _, f := range files {
		line, err := reports.ReadBytes('\n')
		if err != nil {
			t.Fatalf("%s and what follows was not played", f)
		}
		var r scenario.Report
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		dep, departs := known(r.Scenario)
		counts[r.Outcome]++
		switch {
		case r.Outcome == scenario.OutcomeSkipped:
			left[r.Reason]++
			text, err := os.ReadFile(f)
			if err != nil || departs || !unplayable.Match(text) {
				t.Errorf("%s was left out: %s (%v)", r.Scenario, r.Reason, err)
			}
		case !departs && r.Outcome == scenario.OutcomeFailed:
			t.Errorf("%s failed:\n%s", r.Scenario, r.Log)
		case departs && r.Outcome == scenario.OutcomeOK:
			t.Errorf("%s goes as specified, but %s says that the kernel %s:\n%s", r.Scenario, departuresFile, dep.does, r.Log)
		case departs && (r.Line != dep.line || !dep.says.MatchString(r.Reason)):
			t.Errorf("%s failed at line %d, but %s says that it does at %d, with %q:\n%s", r.Scenario, r.Line, departuresFile, dep.line, dep.says, r.Log)
		}
	}
	t.Logf("%d as specified, %d depart from it as known, %d left out", counts[scenario.OutcomeOK], counts[scenario.OutcomeFailed], counts[scenario.OutcomeSkipped])
	for _, why := range slices.Sorted(maps.Keys(left)) {
		t.Logf("%d left out: %s", left[why], why)
	}
}
