package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"softroce/e2e/harness"
	"softroce/e2e/rxelab"
	"softroce/internal/scenario"
	"softroce/internal/testbed"
)

const (
	programPort        = 18601           // TCP port of the verbs program in the guest
	programTimeLimit   = 4 * time.Minute // for all scenarios of a link
	parallelScenarios  = 6               // how many scenarios play at the same time
	sampleEvery        = 5               // one scenario of that many is played on links other than packet
	alwaysInSample     = `^u[cd]-`       // and all of these
	sampleEveryIPv6    = 17              // one of that many is played over IPv6
	alwaysInSampleIPv6 = `^ud-`          // and all of these
)

// TestScenariosAgainstKernel plays the scenarios against the kernel's rxe. Each must pass as in a
// simulation, or deviate exactly as testdata/rxe.txt states.
func TestScenariosAgainstKernel(t *testing.T) {
	harness.NeedRoot(t, "network namespaces and a guest's network")
	t.Parallel()
	files, err := filepath.Glob(scenarioFiles)
	if err != nil {
		t.Fatal(err)
	}
	d, err := readDeviations()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range harness.Links {
		play := files
		if l.Name != "packet" {
			play = sampleScenarios(files)
		}
		t.Run(l.Name, func(t *testing.T) {
			l.Exclusive.Acquire(t)
			playScenarios(t, l, d, scenarioRun{play, nil}, scenarioRun{selectScenarios(sampleEveryIPv6, alwaysInSampleIPv6, files), []string{"--ipv6"}})
		})
	}
}

// reboot protects later tests from a kernel that the scenarios may have damaged: 6.12 destroys some
// queue pairs while references to them remain ("rxe_destroy_qp: cleanup failed, err = -110" on its
// console).
func reboot(t *testing.T, lab *rxelab.Lab) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	if err := lab.Reboot(ctx); err != nil {
		t.Errorf("rebooting the guest: %v", err)
	}
}

func sampleScenarios(files []string) []string {
	return selectScenarios(sampleEvery, alwaysInSample, files)
}

// selectScenarios returns one of every so many files, and those whose names match always.
func selectScenarios(many int, always string, files []string) (l []string) {
	all := regexp.MustCompile(always)
	for i, f := range files {
		if i%many == 0 || all.MatchString(filepath.Base(f)) {
			l = append(l, f)
		}
	}
	return l
}

// A scenarioRun is a set of scenarios and the flags with which they are played.
type scenarioRun struct{ files, flags []string }

func playScenarios(t *testing.T, l harness.Link, d *deviations, rounds ...scenarioRun) {
	lab := l.Lab(t)
	kernel, err := kernelOf(lab.Release)
	if err != nil {
		t.Fatal(err)
	}
	bin := harness.Binary(t)
	g := lab.Guests[0]
	if err := g.ClearImpairments(t.Context()); err != nil {
		t.Fatal(err)
	}
	if harness.OtherKernel() {
		t.Cleanup(func() { reboot(t, lab) }) // ends the programs
		startProgram(t, g)
	} else {
		serveProgram(t, g)
	}
	ctx, cancel := context.WithTimeout(t.Context(), programTimeLimit)
	defer cancel()
	args := []string{bin, "scenario", "--json", "--untimed", fmt.Sprint("-j", parallelScenarios), "--peer", l.NIC(lab),
		"--program", fmt.Sprintf("tcp:%v:%d", g.Host, programPort), "--lacks", strings.Join(d.missingEvents(kernel), ",")}
	for _, r := range rounds {
		cmd := lab.Command(ctx, slices.Concat(args, r.flags, r.files)...)
		var out, diag bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &diag
		err = cmd.Run() // fails if a scenario fails
		if cmd.ProcessState.ExitCode() > 1 {
			t.Fatalf("softroce scenario: %v: %s", err, &diag)
		}
		checkScenarios(t, &out, r.files, func(name string) (deviation, bool) {
			dep, ok := d.scenarios[name][kernel]
			return dep, ok
		})
	}
}

// scenarioProgram compiles the verbs program of the scenarios.
func scenarioProgram(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("../internal/testbed/program/c/*.c")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	harness.RunCommand(t, "cc", slices.Concat([]string{"-O2", "-Wall", "-Wextra", "-Werror", "-o", program}, files, []string{"-libverbs"})...)
	return program
}

// serveProgram is startProgram until the test ends.
func serveProgram(t *testing.T, g *rxelab.Guest) {
	t.Helper()
	p := startProgram(t, g)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if out, err := g.Run(ctx, 10*time.Second, "kill $(cat /tmp/program.pid)"); err != nil {
			t.Errorf("%v: %s\nthe server: %s", err, out, p.Output())
		}
		<-p.Done()
	})
}

// startProgram makes the guest run a verbs program for each TCP connection. It returns the server.
func startProgram(t *testing.T, g *rxelab.Guest) *rxelab.Process {
	t.Helper()
	program := scenarioProgram(t)
	if err := g.Put(t.Context(), program, "/tmp/program"); err != nil {
		t.Fatal(err)
	}
	// Without WithoutCancel, the end of t's context would kill the server while the cleanup does.
	p, err := g.Start(context.WithoutCancel(t.Context()), programTimeLimit, fmt.Sprintf("echo $$ >/tmp/program.pid; exec nc -ll -p %d -e /tmp/program", programPort))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.WaitListen(t.Context(), programPort); err != nil {
		t.Fatal(err)
	}
	return p
}

// isUnsupported reports whether a scenario was skipped because the NIC supports no XRC or no FLUSH,
// or the NIC or the link no RoCE v1.
func isUnsupported(r *scenario.Report) bool {
	return strings.HasPrefix(r.Scenario, "xrc-") && strings.Contains(r.Reason, testbed.ErrNoXRC.Error()) ||
		strings.HasPrefix(r.Scenario, "rc-req-flush") && strings.Contains(r.Reason, testbed.ErrNoFlush.Error()) ||
		strings.HasSuffix(r.Scenario, "-rocev1") && strings.Contains(r.Reason, testbed.ErrNoRoCEv1.Error())
}

// notPlayableLive returns the scenarios that cannot be played live, from the table in
// scenariosFile.
func notPlayableLive(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(scenariosFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "| why | scenarios |\n|---|---|\n")
	table, _, ok2 := strings.Cut(rest, "\n\n")
	if !ok || !ok2 {
		t.Fatalf("%s has no table of scenarios that cannot be played live", scenariosFile)
	}
	names := map[string]bool{}
	for row := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(row, "|")
		for name := range strings.SplitSeq(cells[len(cells)-2], ",") {
			names[strings.TrimSpace(name)] = true
		}
	}
	return names
}

// checkScenarios compares the reports with the known deviations of the NIC.
func checkScenarios(t *testing.T, reports *bytes.Buffer, files []string, known func(name string) (deviation, bool)) {
	t.Helper()
	counts := map[string]int{}
	skipped := map[string]int{} // number of skipped scenarios by reason
	documented := notPlayableLive(t)
	for _, f := range files {
		line, err := reports.ReadBytes('\n')
		if err != nil {
			t.Fatalf("no report for %s and later scenarios", f)
		}
		var r scenario.Report
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		dep, departs := known(r.Scenario)
		counts[r.Outcome]++
		switch {
		case r.Outcome == scenario.OutcomeSkipped:
			skipped[r.Reason]++
			if departs || !documented[r.Scenario] && !isUnsupported(&r) {
				t.Errorf("%s was skipped: %s", r.Scenario, r.Reason)
			}
		case documented[r.Scenario]:
			t.Errorf("%s was played: %s, but %s lists it as not playable", r.Scenario, r.Outcome, scenariosFile)
		case !departs && r.Outcome == scenario.OutcomeFailed:
			t.Errorf("%s failed at line %d: %s\n%s", r.Scenario, r.Line, oneLine(r.Reason), r.Log)
		case departs && r.Outcome == scenario.OutcomeOK:
			t.Errorf("%s passes, but according to %s the kernel %s:\n%s", r.Scenario, deviationsFile, dep.behavior, r.Log)
		case departs && !dep.matches(r.Line, r.Reason):
			t.Errorf("%s failed at line %d, but %s expects a failure at line %d that matches %q:\n%s", r.Scenario, r.Line, deviationsFile, dep.line, dep.failure, r.Log)
		}
	}
	t.Logf("%d passed, %d failed as known, %d skipped", counts[scenario.OutcomeOK], counts[scenario.OutcomeFailed], counts[scenario.OutcomeSkipped])
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		t.Logf("%d skipped: %s", skipped[why], why)
	}
}

// oneLine puts a reason into the first line of a log message, the only one that a summary shows.
func oneLine(reason string) string { return strings.Join(strings.Fields(reason), " ") }
