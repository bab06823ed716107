package netsim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/goccy/go-yaml/ast"

	"softroce/internal/network"
	"softroce/internal/suggest"
	"softroce/internal/yamlfile"
)

// A Failure is something that does not work for a time.
type Failure struct {
	Kind        string  `json:"kind"`
	Link        string  `json:"link,omitempty"` // the name of a port at one of its ends
	Switch      string  `json:"switch,omitempty"`
	Probability float64 `json:"probability,omitempty"`
	Start       int64   `json:"start_ns"`
	End         int64   `json:"end_ns,omitempty"` // 0: it lasts until the end

	line int // in the workload file
}

// A FailureResult is a failure and what it has done in the whole run.
type FailureResult struct {
	Failure
	Frames   uint64 `json:"lost_frames"`
	Bytes    uint64 `json:"lost_bytes"`
	Unmarked uint64 `json:"unmarked"` // frames that would have been marked
}

// Kinds of failures.
const (
	linkDown = "link_down"
	loss     = "loss"
	ecnOff   = "ecn_off"
)

var failureKinds = []string{linkDown, loss, ecnOff}

// failureFile is the layout of a failure in a workload file.
type failureFile struct {
	Kind        string     `yaml:"kind"`
	Link        string     `yaml:"link"`
	Switch      string     `yaml:"switch"`
	Probability shareValue `yaml:"probability"`
	Start       timeValue  `yaml:"start"`
	End         timeValue  `yaml:"end"`

	line int
}

// UnmarshalYAML checks the failure, so that what is wrong with it has its line.
func (f *failureFile) UnmarshalYAML(n ast.Node) error {
	type plain failureFile // without this method
	line, err := yamlfile.Map(n, (*plain)(f))
	if err != nil {
		return err
	}
	f.line = line
	r := f.failure()
	if err := r.check(); err != nil {
		return &yamlfile.LineError{Line: f.line, Err: err}
	}
	return nil
}

func (f *failureFile) failure() Failure {
	return Failure{Kind: f.Kind, Link: f.Link, Switch: f.Switch, Probability: float64(f.Probability), Start: int64(f.Start), End: int64(f.End), line: f.line}
}

func (f *Failure) check() error {
	switch {
	case !slices.Contains(failureKinds, f.Kind):
		return fmt.Errorf("kind %q%s", f.Kind, suggest.Word(f.Kind, slices.Clone(failureKinds)))
	case f.End != 0 && f.End <= f.Start:
		return errors.New("end: must be after start")
	case f.Kind == ecnOff && (f.Switch == "" || f.Link != ""):
		return errors.New("ecn_off: want the name of a switch")
	case f.Kind != ecnOff && (f.Link == "" || f.Switch != ""):
		return fmt.Errorf("%s: want a link: the name of a port at one of its ends", f.Kind)
	case (f.Kind == loss) != (f.Probability > 0):
		return errors.New("probability: want that of loss, above 0")
	}
	return nil
}

// planFailures makes the failures of the workload occur.
func (sim *simulation) planFailures() error {
	var planned []network.Failure
	for i, f := range sim.workload.Failures {
		p, err := sim.planFailure(&f)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", sim.workload.path, f.line, err)
		}
		for j := range planned {
			if overlap(&planned[j], &p) {
				return fmt.Errorf("%s:%d: %s of %s overlaps that of line %d", sim.workload.path, f.line, f.Kind, f.where(), sim.workload.Failures[j].line)
			}
		}
		planned = append(planned, p)
		sim.network.Fail(planned[i])
	}
	return nil
}

func (sim *simulation) planFailure(f *Failure) (p network.Failure, err error) {
	p.Start, p.Probability = f.Start+1, f.Probability // time begins at 1
	if f.End != 0 {
		p.End = f.End + 1
	}
	switch f.Kind {
	case linkDown, loss:
		if p.Kind = network.LinkDown; f.Kind == loss {
			p.Kind = network.Loss
		}
		port, err := sim.port(f.Link)
		p.Link = port / 2 // the two ports of a link follow each other
		return p, err
	}
	p.Kind = network.ECNOff
	var names []string
	for i, d := range sim.topology.Network.Nodes {
		if d.Switch && d.Name == f.Switch {
			p.Node = i
			return p, nil
		} else if d.Switch {
			names = append(names, d.Name)
		}
	}
	return p, fmt.Errorf("no switch %q%s", f.Switch, suggest.Word(f.Switch, names[:min(40, len(names))]))
}

// overlap reports whether two failures are of one kind, place and time.
func overlap(a, b *network.Failure) bool {
	return a.Kind == b.Kind && a.Link == b.Link && a.Node == b.Node && (a.End == 0 || b.Start < a.End) && (b.End == 0 || a.Start < b.End)
}

// where returns the name of what fails.
func (f *Failure) where() string { return cmp.Or(f.Link, f.Switch) }

func (sim *simulation) failureResults() (l []FailureResult) {
	stats := sim.network.FailureStats()
	for i, f := range sim.workload.Failures {
		l = append(l, FailureResult{f, stats[i].Frames, stats[i].Bytes, stats[i].Unmarked})
	}
	return l
}

func (r *Result) printFailures(b *strings.Builder) {
	if len(r.Failures) == 0 {
		return
	}
	table(b, "FAILURE  OF  START  END  LOST frames  bytes  NOT MARKED", func(w *tabwriter.Writer) {
		for _, f := range r.Failures {
			end := "-"
			if f.End != 0 {
				end = duration(f.End).String()
			}
			fmt.Fprintf(w, "%s\t%s\t%v\t%s\t%d\t%s\t%d\n", f.Kind, f.where(), duration(f.Start), end, f.Frames, size(float64(f.Bytes)), f.Unmarked)
		}
	})
}
