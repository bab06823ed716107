// Testreport runs `go test` and then lists the tests that were skipped, and those that failed, with
// the reasons.
//
//	go run ./scripts/testreport [arguments of go test]
//
// go test prints skipped tests only with -v. Testreport lists each test that was skipped because
// the machine lacks a privilege or a program. Where $CI is "true" such a test makes the run fail,
// since it would never run otherwise. Fuzz targets may skip inputs.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// An event is a line of go test -json (see go doc test2json).
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64 // seconds
	Output      string
	ImportPath  string // of build-output
	FailedBuild string // the ImportPath that did not build, if that is why the package failed
}

// A report collects the results of a run.
type report struct {
	out    io.Writer
	output map[string][]string // of tests and packages that have not ended
	build  map[string][]string // errors of the compiler, by ImportPath
	skips  []*skip
	failed []failure
	passed int
}

// A failure is a test that failed, or a package outside of its tests.
type failure struct {
	pkg, test string
	reason    []string // lines
}

// A skip is the tests of a package that were skipped for one reason.
type skip struct {
	pkg, reason string
	tests       int
	names       []string // of the top-level tests
}

// slow is the time from which on a passed test is printed.
const slow = 2 * time.Second

func main() {
	os.Exit(run(os.Args[1:], os.Getenv("CI") == "true"))
}

func run(args []string, ci bool) int {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		return 1
	}
	r := &report{out: printable{os.Stdout}, output: map[string][]string{}, build: map[string][]string{}}
	r.read(stdout)
	status := 0
	if err := cmd.Wait(); err != nil {
		status = 1
	}
	return r.close(status, ci)
}

func (r *report) read(in io.Reader) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(r.out, lines.Text()) // not an event: an error of the go command
			continue
		}
		r.event(e)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(r.out, "testreport:", err)
	}
}

func (r *report) event(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		if e.Test == "" {
			r.packageLine(e.Output)
		}
		r.output[key] = append(r.output[key], e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
		if s := strings.TrimSpace(e.Output); !strings.HasPrefix(s, "#") {
			r.build[e.ImportPath] = append(r.build[e.ImportPath], s)
		}
	case "pass":
		e.Elapsed -= r.waited(key).Seconds()
		r.ended(e, key)
		if e.Test != "" { // a package passes without any test that matches -run
			r.passed++
		}
	case "fail":
		if e.Test == "" {
			r.addUnfinished(e.Package)
		}
		r.addFailure(e, key)
		r.printOutput(e, key)
		r.ended(e, key)
	case "skip":
		r.skipped(e, key)
	}
}

// printOutput prints the output of a test. For a package it prints that of the tests that were
// running when it ended.
func (r *report) printOutput(e event, key string) {
	keys := []string{key}
	if e.Test == "" {
		delete(r.output, key) // printed already
		for k := range r.output {
			if strings.HasPrefix(k, key) {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
	}
	for _, k := range keys {
		for _, s := range r.output[k] {
			fmt.Fprint(r.out, s)
		}
		delete(r.output, k)
	}
}

// packageLine prints the result line of a package, and what the package prints outside its tests.
func (r *report) packageLine(s string) {
	if s != "PASS\n" && !strings.Contains(s, "[no test files]") {
		fmt.Fprint(r.out, s)
	}
}

func (r *report) ended(e event, key string) {
	delete(r.output, key)
	if e.Test != "" && e.Action == "pass" && e.Elapsed >= slow.Seconds() {
		fmt.Fprintf(r.out, "      %s %s (%.1fs)\n", strings.TrimPrefix(e.Package, "softroce/"), e.Test, e.Elapsed)
	}
}

// exclusiveWait matches the log line of a test that waited for the exclusive use of something.
var exclusiveWait = regexp.MustCompile(`: waited (\S+) for exclusive use\n$`)

func (r *report) waited(key string) time.Duration {
	for _, s := range r.output[key] {
		if m := exclusiveWait.FindStringSubmatch(s); m != nil {
			d, _ := time.ParseDuration(m[1])
			return d
		}
	}
	return 0
}

func (r *report) skipped(e event, key string) {
	defer delete(r.output, key)
	if e.Test == "" || strings.HasPrefix(e.Test, "Fuzz") {
		return
	}
	var reason string
	for _, s := range r.output[key] {
		s = strings.TrimSpace(s)
		if s != "" && !strings.HasPrefix(s, "===") && !strings.HasPrefix(s, "---") {
			reason = logPosition.ReplaceAllString(s, "") // the last line that it printed
		}
	}
	r.addSkip(e.Package, strings.TrimPrefix(reason, "left out: "), e.Test)
}

// logPosition matches the source position of a log line.
var logPosition = regexp.MustCompile(`^\S+\.go:\d+: `)

func (r *report) addSkip(pkg, reason, test string) {
	var o *skip
	for _, have := range r.skips {
		if have.pkg == pkg && have.reason == reason {
			o = have
		}
	}
	if o == nil {
		o = &skip{pkg: pkg, reason: reason}
		r.skips = append(r.skips, o)
	}
	o.tests++
	if top, _, _ := strings.Cut(test, "/"); !slices.Contains(o.names, top) {
		o.names = append(o.names, top)
	}
}

// maxReason is how many lines a reason may have, and how long they may be.
const (
	maxReason = 3
	maxLine   = 200
)

// crash matches the first line of what the runtime prints before it ends the process.
var crash = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE|SIG\w+: )`)

// addFailure notes why a test or a package failed. A test or package that only failed because one
// of its tests did has no reason of its own, and is not noted.
func (r *report) addFailure(e event, key string) {
	var crashed, logged, other []string
	for _, s := range r.output[key] {
		waited := exclusiveWait.MatchString(s)
		s = strings.TrimSpace(s)
		switch {
		case waited || s == "" || strings.HasPrefix(s, "===") || strings.HasPrefix(s, "---") || strings.HasPrefix(s, "FAIL"):
		case crash.MatchString(s):
			crashed = append(crashed, s)
		case logPosition.MatchString(s):
			logged = append(logged, s)
		default:
			other = append(other, s)
		}
	}
	f := failure{pkg: e.Package, test: e.Test, reason: crashed}
	if len(f.reason) == 0 {
		f.reason = logged
	}
	inside := slices.ContainsFunc(r.failed, func(o failure) bool {
		return o.pkg == e.Package && (e.Test == "" || strings.HasPrefix(o.test, e.Test+"/"))
	})
	switch {
	case len(f.reason) > 0:
	case inside || e.Action != "fail":
		return
	case e.FailedBuild != "":
		f.reason = append([]string{"it does not build"}, r.build[e.FailedBuild]...)
	case len(other) > 0:
		f.reason = other
	default:
		f.reason = []string{"no reason was printed"}
	}
	f.reason = f.reason[:min(len(f.reason), maxReason)]
	r.failed = append(r.failed, f)
}

// addUnfinished notes the tests that had printed a reason when the process of a package ended.
func (r *report) addUnfinished(pkg string) {
	for _, key := range slices.Sorted(maps.Keys(r.output)) {
		if test, ok := strings.CutPrefix(key, pkg+" "); ok && test != "" {
			r.addFailure(event{Package: pkg, Test: test}, key)
		}
	}
}

// printable removes from what tests print the control characters that a terminal obeys.
type printable struct{ to io.Writer }

var controls = regexp.MustCompile(`\x1b(\[[0-9;?]*[ -/]*[@-~]|[^\[])|[\x00-\x08\x0b-\x1f\x7f]`)

func (p printable) Write(b []byte) (int, error) {
	_, err := p.to.Write(controls.ReplaceAll(b, nil))
	return len(b), err
}

func (r *report) close(status int, ci bool) int {
	if len(r.skips) > 0 {
		fmt.Fprintln(r.out, "\nSkipped:")
		for _, o := range r.skips {
			fmt.Fprintf(r.out, "  %s, %d tests: %s\n    %s\n", o.pkg, o.tests, o.reason, strings.Join(o.names, " "))
		}
		if ci {
			fmt.Fprintln(r.out, "Tests must not be skipped where CI=true: this run has failed.")
			status = 1
		}
	}
	if len(r.failed) > 0 {
		fmt.Fprintf(r.out, "\nFailed: %d\n", len(r.failed))
		for _, f := range r.failed {
			fmt.Fprintf(r.out, "  %s\n", strings.TrimSpace(f.pkg+" "+f.test))
			for _, l := range f.reason {
				fmt.Fprintf(r.out, "    %s\n", strings.ToValidUTF8(l[:min(len(l), maxLine)], ""))
			}
		}
	}
	if status == 0 && r.passed == 0 {
		fmt.Fprintln(r.out, "No test ran: this run has failed.")
		status = 1
	}
	return status
}
