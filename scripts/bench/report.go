package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// A report is the JSON of a run.
type report struct {
	Machine string   `json:"machine"`
	Rows    []result `json:"rows"`
}

// A result is a row of a report.
type result struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Of     figures `json:"softroce"`
	Beside figures `json:"beside"`
	Ratio  float64 `json:"ratio"`          // of the medians
	Best   float64 `json:"best,omitempty"` // the best ratio of this run and those that the file had before; 0 is Ratio
	Lower  bool    `json:"lower_is_better,omitempty"`
	Floor  float64 `json:"floor"`
	Goal   float64 `json:"goal"`

	err error
}

// Figures are what repeated runs of a measurement have found.
type figures struct {
	Name   string  `json:"name,omitempty"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	CPU    float64 `json:"cpu_seconds,omitempty"` // for each GiB or million messages, median
	Runs   int     `json:"runs"`
}

// resultsOf returns the rows of a report.
func (b *bench) resultsOf(rows []row) (list []result) {
	for _, r := range rows {
		list = append(list, b.result(r))
	}
	return list
}

// result returns a row of the report.
func (b *bench) result(r row) result {
	res := result{Name: r.name, Unit: r.of.unit, Lower: r.lower, Floor: r.floor, Goal: r.goal}
	if r.what == cpu {
		res.Unit = "s/GiB"
	}
	res.Of = b.figures(r.of, r.what)
	res.err = b.results[r.of].err
	res.Ratio = res.Of.Median
	if r.beside != nil {
		res.Beside = b.figures(r.beside, r.what)
		res.err = cmp.Or(res.err, b.results[r.beside].err)
		res.Ratio = 0
		if res.Beside.Median > 0 {
			res.Ratio = round(res.Of.Median / res.Beside.Median)
		}
	}
	return res
}

func (b *bench) figures(m *measurement, what quantity) figures {
	var values, cpus []float64
	for _, s := range b.results[m].samples {
		values, cpus = append(values, s.of(what)), append(cpus, s.cpu)
	}
	f := figures{Name: m.name, Runs: len(values)}
	if f.Runs > 0 {
		f.Median, f.Min, f.Max = round(median(values)), round(slices.Min(values)), round(slices.Max(values))
		if what == value {
			f.CPU = round(median(cpus))
		}
	}
	return f
}

// round leaves six digits, more than a measurement has.
func round(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	return v
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// newReport returns a report without rows.
func newReport() *report { return &report{Machine: machine()} }

// machine describes the machine in general terms.
func machine() string {
	var u unix.Utsname
	unix.Uname(&u)
	release := regexp.MustCompile(`^\d+\.\d+`).FindString(unix.ByteSliceToString(u.Release[:]))
	info, _ := os.ReadFile("/proc/cpuinfo")
	model := "unknown processor"
	if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(info); m != nil {
		model = string(m[1])
	}
	kind := ""
	if bytes.Contains(info, []byte(" hypervisor ")) {
		kind = "virtual machine, "
	}
	return fmt.Sprintf("%s%s, %d processors, Linux %s, %s", kind, model, runtime.NumCPU(), release, runtime.Version())
}

// processors returns the part of the description that ratios depend on most.
func (r *report) processors() string {
	processors, _, _ := strings.Cut(r.Machine, ", Linux")
	return processors
}

// readRecorded reads the report in a file, or in each file of a directory.
func readRecorded(path string) (list []*report, err error) {
	files := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(path, "*.json")); len(files) == 0 {
			return nil, cmp.Or(err, fmt.Errorf("%s has no recorded ratios", path))
		}
	}
	for _, file := range files {
		r, err := readReport(file)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

func readReport(file string) (*report, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// readOwn reads an earlier report of this machine, or returns nil if there is no such file.
func (r *report) readOwn(file string) (*report, error) {
	old, err := readReport(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && old.processors() != r.processors():
		return nil, fmt.Errorf("%s was measured on a %s", file, old.processors())
	}
	return old, err
}

// write writes the report. Rows of the file that were not measured stay, and those that were keep
// their best ratio.
func (r *report) write(file string) error {
	old, err := r.readOwn(file)
	if err != nil {
		return err
	}
	merged := &report{Machine: r.Machine}
	for _, row := range rows {
		res, was := r.row(row.name), old.row(row.name)
		switch {
		case res == nil || res.Of.Runs == 0:
			res = was
		case was != nil && res.worse(was.best()):
			res.Best = was.best()
		}
		if res != nil {
			merged.Rows = append(merged.Rows, *res)
		}
	}
	b, err := json.MarshalIndent(merged, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// row returns the row with a name, or nil.
func (r *report) row(name string) *result {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Rows, func(res result) bool { return res.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Rows[i]
}

// table returns the rows as a table in Markdown.
func (r *report) table() string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| row\t| softroce\t| beside it\t| ratio\t| floor\t| goal\t| CPU\t| CPU beside\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, res := range r.Rows {
		relation := "≥"
		if res.Lower {
			relation = "≤"
		}
		missed := ""
		if res.missesFloor() {
			missed = " **misses**"
		}
		fmt.Fprintf(t, "| %s\t| %s\t| %s\t| %s%s\t| %s %v\t| %s %v\t| %s\t| %s\t|\n", res.Name, res.Of.text(res.Unit),
			res.Beside.named(res.Unit), significant(res.Ratio), missed, relation, res.Floor, relation, res.Goal,
			res.Of.cpu(), res.Beside.cpu())
	}
	t.Flush()
	return b.String()
}

// best returns the best ratio that is known.
func (r *result) best() float64 { return cmp.Or(r.Best, r.Ratio) }

// worse reports whether the ratio is worse than another.
func (r *result) worse(than float64) bool {
	return r.Lower && r.Ratio > than || !r.Lower && r.Ratio < than
}

func (r *result) missesFloor() bool {
	return r.Of.Runs > 0 && r.worse(r.Floor)
}

func (r *result) reachesGoal() bool {
	return !r.worse(r.Goal)
}

func (f figures) text(unit string) string {
	if f.Runs == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s to %s) %s", significant(f.Median), significant(f.Min), significant(f.Max), unit)
}

func (f figures) named(unit string) string {
	if f.Name == "" {
		return ""
	}
	return f.Name + ": " + f.text(unit)
}

func (f figures) cpu() string {
	if f.CPU == 0 {
		return ""
	}
	return significant(f.CPU)
}

// significant formats a number with three significant digits.
func significant(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// failures returns an error for each row that has a run that failed.
func (r *report) failures() (err error) {
	for _, res := range r.Rows {
		if res.err != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", res.Name, res.err))
		}
	}
	return err
}

// hasFallen reports whether the ratio is worse than a recorded one by more than a quarter.
func (r *result) hasFallen(recorded float64) bool {
	const least = 1 - 0.25
	if r.Lower {
		return r.worse(recorded / least)
	}
	return r.worse(recorded * least)
}

// comparable returns the reports of recorded that r is compared with: those of machines with the
// same processors, or if there is none, all.
func (r *report) comparable(recorded []*report) []*report {
	same := slices.DeleteFunc(slices.Clone(recorded), func(other *report) bool { return other.processors() != r.processors() })
	if len(same) == 0 {
		return recorded
	}
	return same
}

// bestRatios returns the best ratios of a row in reports.
func bestRatios(reports []*report, name string) (list []float64) {
	for _, r := range reports {
		if row := r.row(name); row != nil {
			list = append(list, row.best())
		}
	}
	return list
}

// fallenRows returns the rows whose ratio has fallen below the best one of each report that r is
// compared with. A figure with nothing beside it counts only if it misses its goal: it may be too
// small to repeat so closely.
func (r *report) fallenRows(recorded []*report) (list []result) {
	for _, res := range r.Rows {
		failed := res.Of.Runs == 0 || res.Beside.Name != "" && res.Beside.Runs == 0
		if failed || res.Beside.Runs == 0 && res.reachesGoal() {
			continue
		}
		was := bestRatios(r.comparable(recorded), res.Name)
		if len(was) > 0 && !slices.ContainsFunc(was, func(ratio float64) bool { return !res.hasFallen(ratio) }) {
			list = append(list, res)
		}
	}
	return list
}

// compare returns an error for each row that has fallen.
func (r *report) compare(recorded []*report) (err error) {
	others := r.comparable(recorded)
	for _, res := range r.fallenRows(recorded) {
		var was []string
		for _, ratio := range bestRatios(others, res.Name) {
			was = append(was, significant(ratio))
		}
		err = errors.Join(err, fmt.Errorf("%s: the ratio is %s, recorded is %s", res.Name, significant(res.Ratio), strings.Join(was, ", ")))
	}
	if err == nil || others[0].processors() == r.processors() {
		return err
	}
	var machines []string
	for _, other := range others {
		machines = append(machines, other.processors())
	}
	return errors.Join(err, fmt.Errorf("recorded elsewhere (%s), and not on a %s, where ratios may differ: "+
		"for a comparison here, measure an earlier commit with -o FILE, and then this one with -check FILE",
		strings.Join(machines, "; "), r.processors()))
}
