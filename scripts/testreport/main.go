// Testreport runs `go test` and ends with a list of the tests that were left out and why.
//
//	go run ./scripts/testreport [arguments of go test]
//
// go test says nothing of skipped tests unless it is asked to print everything. Here a
// test that is skipped because the machine lacks something, a right or a program, is
// named at the end with its reason; where $CI is "true" it makes the run fail, since
// what does not run there is never run. Fuzz targets may skip inputs as they like.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// An event is a line of go test -json (see go doc test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
	Output  string
}

// A report gathers what to say at the end.
type report struct {
	out     io.Writer
	output  map[string][]string // of tests and packages not yet ended
	leftOut []*omission
	passed  int
	failed  int
}

// An omission is what a package has left out for one reason.
type omission struct {
	pkg, reason string
	tests       int
	names       []string // of the top-level tests
}

// slow is how long a test must take for its end to be worth a line.
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
	r := &report{out: os.Stdout, output: map[string][]string{}}
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
			fmt.Fprintln(r.out, lines.Text()) // not an event: go's own complaint
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
			return
		}
		r.output[key] = append(r.output[key], e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "pass":
		e.Elapsed -= r.waited(key).Seconds()
		r.ended(e, key)
		r.passed++
	case "fail":
		r.tell(e, key)
		r.ended(e, key)
		r.failed++
	case "skip":
		r.skipped(e, key)
	}
}

// tell prints what a test said, or, of a package, what those tests said that were under way when it died.
func (r *report) tell(e event, key string) {
	keys := []string{key}
	if e.Test == "" {
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

// packageLine prints the line that go test ends a package with, and what else a package
// writes outside its tests.
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

// lane is what a test says that had to wait until it could have something to itself.
var lane = regexp.MustCompile(`: waited (\S+) for exclusive use\n$`)

func (r *report) waited(key string) time.Duration {
	for _, s := range r.output[key] {
		if m := lane.FindStringSubmatch(s); m != nil {
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
			reason = place.ReplaceAllString(s, "") // the last thing that it said
		}
	}
	r.omit(e.Package, strings.TrimPrefix(reason, "left out: "), e.Test)
}

// place is where a test said something.
var place = regexp.MustCompile(`^\S+\.go:\d+: `)

func (r *report) omit(pkg, reason, test string) {
	var o *omission
	for _, have := range r.leftOut {
		if have.pkg == pkg && have.reason == reason {
			o = have
		}
	}
	if o == nil {
		o = &omission{pkg: pkg, reason: reason}
		r.leftOut = append(r.leftOut, o)
	}
	o.tests++
	if top, _, _ := strings.Cut(test, "/"); !slices.Contains(o.names, top) {
		o.names = append(o.names, top)
	}
}

func (r *report) close(status int, ci bool) int {
	if len(r.leftOut) > 0 {
		fmt.Fprintln(r.out, "\nLeft out:")
		for _, o := range r.leftOut {
			fmt.Fprintf(r.out, "  %s, %d tests: %s\n    %s\n", o.pkg, o.tests, o.reason, strings.Join(o.names, " "))
		}
		if ci {
			fmt.Fprintln(r.out, "With CI=true nothing may be left out: this run has failed.")
			status = 1
		}
	}
	if status == 0 && r.passed == 0 {
		fmt.Fprintln(r.out, "No test ran: this run has failed.")
		status = 1
	}
	return status
}
