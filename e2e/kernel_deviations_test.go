package e2e

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/reference/interop.md")

const (
	deviationsFile = "testdata/rxe.txt"
	scenarioFiles  = "../internal/scenario/testdata/*.txt"
	interopFile    = "../docs/reference/interop.md"
	scenariosFile  = "../docs/reference/scenario-language.md"
)

// A deviation is what the kernel's rxe does instead of what a scenario requires.
type deviation struct {
	behavior string
	line     int // line of the scenario that fails; 0 is its end
	failure  *regexp.Regexp
}

// matches reports whether a scenario failed in the expected way. A packet that the scenario forbids
// may arrive later than expected, and is then reported at the end of the scenario.
func (d deviation) matches(line int, reason string) bool {
	if line == d.line {
		return d.failure.MatchString(reason)
	}
	late := strings.Replace(d.failure.String(), "but got", "not expected", 1)
	return line == 0 && late != d.failure.String() && regexp.MustCompile(late).MatchString(reason)
}

// deviations is the content of deviationsFile.
type deviations struct {
	scenarios map[string]map[string]deviation // by scenario and kernel
	events    map[string]map[string]bool      // missing events, by event and kernel
}

// kernels lists those that deviationsFile covers.
var kernels = []string{"6.1", "6.12"}

// kernelOf returns the kernel of a release such as 6.1.0-56-amd64.
func kernelOf(release string) (string, error) {
	for _, k := range kernels {
		if strings.HasPrefix(release, k+".") {
			return k, nil
		}
	}
	return "", fmt.Errorf("%s does not cover kernel %s", deviationsFile, release)
}

// missingEvents lists the asynchronous events that a kernel never raises.
func (d *deviations) missingEvents(kernel string) (events []string) {
	for e, of := range d.events {
		if of[kernel] {
			events = append(events, e)
		}
	}
	slices.Sort(events)
	return events
}

// Forms of the lines of deviationsFile, by indentation.
var (
	subjectForm  = regexp.MustCompile(`^(event )?(\S+)$`)
	behaviorForm = regexp.MustCompile(`^    (\d[0-9. ]*): (.+)$`)
	failureForm  = regexp.MustCompile(`^        (\d+): (.+)$`)
)

func readDeviations() (*deviations, error) {
	b, err := os.ReadFile(deviationsFile)
	if err != nil {
		return nil, err
	}
	p := deviationParser{d: &deviations{map[string]map[string]deviation{}, map[string]map[string]bool{}}}
	for i, line := range strings.Split(string(b), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", deviationsFile, i+1, err)
		}
	}
	return p.d, nil
}

// A deviationParser holds what the preceding lines have set.
type deviationParser struct {
	d        *deviations
	event    bool
	subject  string
	kernels  []string
	behavior string
}

func (p *deviationParser) line(line string) error {
	if m := subjectForm.FindStringSubmatch(line); m != nil {
		p.event, p.subject, p.kernels = m[1] != "", m[2], nil
		if p.d.scenarios[p.subject] != nil || p.d.events[p.subject] != nil {
			return fmt.Errorf("%s appears twice", p.subject)
		}
		return nil
	}
	if m := behaviorForm.FindStringSubmatch(line); m != nil && p.subject != "" {
		p.kernels, p.behavior = strings.Fields(m[1]), m[2]
		for _, k := range p.kernels {
			if !slices.Contains(kernels, k) {
				return fmt.Errorf("kernel %s is not one of %v", k, kernels)
			}
			if p.event {
				addTo(p.d.events, p.subject, k, true)
			}
		}
		return nil
	}
	m := failureForm.FindStringSubmatch(line)
	if m == nil || p.event || p.kernels == nil {
		return fmt.Errorf("cannot parse %q", line)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return err
	}
	says, err := regexp.Compile(`(?s)` + m[2])
	if err != nil {
		return err
	}
	for _, k := range p.kernels {
		addTo(p.d.scenarios, p.subject, k, deviation{p.behavior, n, says})
	}
	return nil
}

func addTo[T any](m map[string]map[string]T, name, kernel string, v T) {
	if m[name] == nil {
		m[name] = map[string]T{}
	}
	m[name][kernel] = v
}

// TestInteropDocument verifies that the tables in docs/reference/interop.md are generated from
// deviationsFile.
func TestInteropDocument(t *testing.T) {
	d, err := readDeviations()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(interopFile)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- deviations -->\n", "<!-- end of deviations -->"
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s does not contain %s and %s", interopFile, begin, end)
	}
	table, err := d.markdown()
	if err != nil {
		t.Fatal(err)
	}
	want := before + begin + table + end + after
	if *update {
		if err := os.WriteFile(interopFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(b) {
		t.Errorf("%s does not match %s; to update it: go test ./e2e -run TestInteropDocument -update", interopFile, deviationsFile)
	}
}

// sections of the tables, by prefix of the scenarios' names.
var sections = []struct{ title, prefix string }{
	{"Requester, RC", "rc-req-"},
	{"Responder, RC", "rc-resp-"},
	{"UC", "uc-"},
	{"UD", "ud-"},
	{"XRC", "xrc-"},
}

// markdown returns the tables of the document.
func (d *deviations) markdown() (string, error) {
	files, err := filepath.Glob(scenarioFiles)
	if err != nil {
		return "", err
	}
	claims := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		claims[strings.TrimSuffix(filepath.Base(f), ".txt")] = scenarioClaim(string(b))
	}
	var s strings.Builder
	listed := 0
	for _, sec := range sections {
		rows := ""
		for _, f := range files {
			name := strings.TrimSuffix(filepath.Base(f), ".txt")
			if of := d.scenarios[name]; of != nil && strings.HasPrefix(name, sec.prefix) {
				rows += fmt.Sprintf("| [%s](../../internal/scenario/testdata/%s.txt) | %s | %s | %s |\n", name, name, claims[name],
					deviationCell(of, "6.1"), deviationCell(of, "6.12"))
				listed++
			}
		}
		if rows != "" {
			fmt.Fprintf(&s, "\n### %s\n\n| scenario | specification, and softroce | rxe 6.1 | rxe 6.12 |\n|---|---|---|---|\n%s", sec.title, rows)
		}
	}
	if listed != len(d.scenarios) {
		return "", fmt.Errorf("%s has %d scenarios, of which %d exist", deviationsFile, len(d.scenarios), listed)
	}
	fmt.Fprintf(&s, "\n### Asynchronous events\n\n| event | rxe 6.1 | rxe 6.12 |\n|---|---|---|\n")
	for _, e := range slices.Sorted(maps.Keys(d.events)) {
		cell := func(k string) string {
			if d.events[e][k] {
				return "not generated"
			}
			return "generated"
		}
		fmt.Fprintf(&s, "| %s | %s | %s |\n", e, cell("6.1"), cell("6.12"))
	}
	return s.String() + "\n", nil
}

func deviationCell(of map[string]deviation, kernel string) string {
	if d, ok := of[kernel]; ok {
		return d.behavior
	}
	return "as specified"
}

// scenarioClaim returns the first line of a scenario, which states what it shows.
func scenarioClaim(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	return strings.ReplaceAll(strings.TrimPrefix(first, "# "), "|", "\\|")
}
