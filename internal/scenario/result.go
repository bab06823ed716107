package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Errors of a Result; match with errors.Is.
var (
	ErrFailed  = errors.New("scenario failed")
	ErrSkipped = errors.New("scenario skipped")
)

// A Result is the outcome of a scenario.
type Result struct {
	File    string
	Err     error         // nil, ErrFailed or ErrSkipped
	Line    int           // the line that failed; 0 for the end of the file
	Reason  string        // why it failed or was skipped
	Log     string        // each command and the packets after it
	Packets int           // packets on the link of the NIC under test
	Time    time.Duration // duration; virtual time in a simulation
}

// Name returns the scenario's name: the file name without directory and extension.
func (r *Result) Name() string {
	return strings.TrimSuffix(filepath.Base(r.File), filepath.Ext(r.File))
}

// A Report is the JSON form of a Result.
type Report struct {
	Scenario string  `json:"scenario"`
	Outcome  string  `json:"outcome"` // ok, failed or skipped
	Line     int     `json:"line,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Packets  int     `json:"packets"`
	Seconds  float64 `json:"seconds"`
	Log      string  `json:"log"`
}

// Outcomes of a Report.
const (
	OutcomeOK      = "ok"
	OutcomeFailed  = "failed"
	OutcomeSkipped = "skipped"
)

// MarshalJSON implements json.Marshaler. The form is that of a Report.
func (r *Result) MarshalJSON() ([]byte, error) {
	p := Report{Scenario: r.Name(), Outcome: OutcomeOK, Line: r.Line, Reason: r.Reason, Packets: r.Packets, Seconds: r.Time.Seconds(), Log: r.Log}
	switch {
	case errors.Is(r.Err, ErrSkipped):
		p.Outcome = OutcomeSkipped
	case r.Err != nil:
		p.Outcome = OutcomeFailed
	}
	return json.Marshal(&p)
}

// RunAll runs the scenarios in files, jobs at a time, and yields their results in the order of the
// files. With several jobs o.NewTestbed must allow concurrent testbeds.
func RunAll(files []string, o Options, jobs int) iter.Seq[*Result] {
	return func(yield func(*Result) bool) {
		stop := make(chan struct{})
		todo := make(chan int)
		results := make([]chan *Result, len(files))
		for i := range results {
			results[i] = make(chan *Result, 1)
		}
		var work sync.WaitGroup
		for range max(jobs, 1) {
			work.Go(func() {
				for i := range todo {
					results[i] <- Run(files[i], o)
				}
			})
		}
		work.Go(func() {
			defer close(todo)
			for i := range files {
				select {
				case todo <- i:
				case <-stop:
					return
				}
			}
		})
		defer work.Wait()
		defer close(stop)
		for i := range files {
			if !yield(<-results[i]) {
				return
			}
		}
	}
}

// fail records why a scenario failed.
func (r *Result) fail() {
	why := lastFailure(r.Log)
	r.Err = fmt.Errorf("%w: %s", ErrFailed, why)
	r.Line, r.Reason = splitFailure(r.File, why)
}

// skip records why a scenario was skipped.
func (r *Result) skip(why string) {
	r.Reason = why
	r.Err = fmt.Errorf("%w: %s", ErrSkipped, why)
}

// splitFailure splits FILE:LINE: REASON or FILE: REASON.
func splitFailure(file, why string) (line int, reason string) {
	rest := strings.TrimPrefix(why, file+":")
	number, after, ok := strings.Cut(rest, ":")
	if n, err := strconv.Atoi(number); ok && err == nil {
		return n, strings.TrimSpace(after)
	}
	return 0, strings.TrimSpace(rest)
}

// lastFailure returns the text of the last FAIL line of a log, with its continuation lines.
func lastFailure(log string) string {
	i := strings.LastIndex(log, "FAIL: ")
	if i < 0 {
		return "no reason given"
	}
	return strings.TrimSpace(log[i+len("FAIL: "):])
}
