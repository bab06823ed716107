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

// A Result is how one scenario went.
type Result struct {
	File    string
	Err     error         // nil, ErrFailed with Line and Reason, or ErrSkipped with Reason
	Line    int           // that failed; 0 if it is none
	Reason  string        // for which it failed or was skipped
	Log     string        // every command with the packets that followed it
	Packets int           // on the cable of the NIC under test
	Time    time.Duration // that went by, virtual in a simulation
}

// Name is the scenario's: the file's without folder and extension.
func (r *Result) Name() string {
	return strings.TrimSuffix(filepath.Base(r.File), filepath.Ext(r.File))
}

// A Report is a Result as JSON has it.
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

// MarshalJSON implements json.Marshaler: a Report.
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

// PlayAll plays the scenarios in files, so many at the same time, and yields their results in the order of
// the files. The benches have to stand that, see Cable.
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

// fail puts down for what reason a scenario failed.
func (r *Result) fail() {
	why := lastFailure(r.Log)
	r.Err = fmt.Errorf("%w: %s", ErrFailed, why)
	r.Line, r.Reason = splitFailure(r.File, why)
}

// skip puts down for what reason a scenario was skipped.
func (r *Result) skip(why string) {
	r.Reason = why
	r.Err = fmt.Errorf("%w: %s", ErrSkipped, why)
}

// splitFailure takes FILE:LINE: reason or FILE: reason apart.
func splitFailure(file, why string) (line int, reason string) {
	rest := strings.TrimPrefix(why, file+":")
	number, after, ok := strings.Cut(rest, ":")
	if n, err := strconv.Atoi(number); ok && err == nil {
		return n, strings.TrimSpace(after)
	}
	return 0, strings.TrimSpace(rest)
}

// lastFailure returns what the last FAIL line of a log says, with the lines that belong to it.
func lastFailure(log string) string {
	i := strings.LastIndex(log, "FAIL: ")
	if i < 0 {
		return "no reason given"
	}
	return strings.TrimSpace(log[i+len("FAIL: "):])
}
