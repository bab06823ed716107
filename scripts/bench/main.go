// Bench measures softroce beside TCP, UCX, the kernel's copy and the kernel's Soft-RoCE:
//
//	bench [-rows REGEXP] [-runs 5] [-seconds 2] [-o FILE] [-check FILE]
//
// It runs in namespaces of its own (sandbox.go), so it needs root, leaves nothing behind however it
// ends, and uses no daemon of the machine. A row of its table compares two measurements (rows.go).
// Each round carries out every measurement once, one after the other, so that both sides of a row
// meet the same machine. The table has medians.
//
// The exit status is 0 if every row was measured and, with -check, none fell behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"
)

type options struct {
	rows     string
	runs     int
	seconds  float64
	out      string
	recorded string
	softroce string
}

func main() {
	var o options
	flag.StringVar(&o.rows, "rows", "", "measure only the rows whose name this regular expression matches")
	flag.IntVar(&o.runs, "runs", 5, "how often each measurement is repeated")
	flag.Float64Var(&o.seconds, "seconds", 2, "about how long a run takes")
	flag.StringVar(&o.out, "o", "", "write the rows to this file as JSON; rows that it has and that were not measured stay")
	flag.StringVar(&o.recorded, "check", "", "compare the ratios with those in this file")
	flag.StringVar(&o.softroce, "softroce", "bin/softroce", "the softroce binary")
	flag.Parse()
	err := inSandbox(func() error { return run(&o) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o *options) error {
	match, err := regexp.Compile(o.rows)
	if err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	selected := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !match.MatchString(r.name) })
	if len(selected) == 0 {
		return fmt.Errorf("-rows %s: no row has such a name", o.rows)
	}
	if o.runs < 1 || o.seconds <= 0 {
		return fmt.Errorf("-runs %d, -seconds %v: want more than 0", o.runs, o.seconds)
	}
	var recorded *report
	if o.recorded != "" {
		if recorded, err = readReport(o.recorded); err != nil {
			return err
		}
	}
	b, err := newBench(o)
	if err != nil {
		return err
	}
	b.measure(context.Background(), selected)
	r := newReport()
	for _, row := range selected {
		r.Rows = append(r.Rows, b.result(row))
	}
	fmt.Print(r.table())
	err = r.failures()
	if o.out != "" {
		err = errors.Join(err, r.write(o.out))
	}
	if recorded != nil {
		err = errors.Join(err, r.compare(recorded))
	}
	return err
}

// A bench carries out measurements.
type bench struct {
	softroce string
	runTime  time.Duration
	rounds   int
	results  map[*measurement]*series
}

// A series is what one measurement has found.
type series struct {
	count   int // operations of one run, chosen so that it takes about as long as it should
	samples []sample
	err     error // of the last run that failed
}

// A sample is the result of one run.
type sample struct {
	value float64 // in the measurement's unit
	mean  float64 // of latencies, whose value is the median
	cpu   float64 // seconds for each GiB or million messages; 0 if it says nothing
}

func newBench(o *options) (*bench, error) {
	b := &bench{
		softroce: o.softroce, rounds: o.runs, runTime: time.Duration(o.seconds * float64(time.Second)),
		results: map[*measurement]*series{},
	}
	return b, makeNetwork()
}

// runLimit ends a run that hangs.
const runLimit = 2 * time.Minute

// measure carries out the measurements that rows need, each once a round. The first run of each,
// which is short, is not counted: it shows how many operations take as long as a run should.
func (b *bench) measure(ctx context.Context, rows []row) {
	var all []*measurement
	for _, r := range rows {
		for _, m := range []*measurement{r.beside, r.of} {
			if m != nil && !slices.Contains(all, m) {
				all = append(all, m)
				b.results[m] = &series{}
			}
		}
	}
	for round := range b.rounds + 1 {
		for _, m := range all {
			s := b.results[m]
			if round == 0 && m.first == 0 {
				continue
			}
			if round == 0 {
				s.count = m.first
			}
			result, err := b.once(ctx, m, s.count)
			if err != nil {
				s.err = err
				fmt.Fprintf(os.Stderr, "%d/%d %s: %v\n", round, b.rounds, m.name, err)
				continue
			}
			fmt.Fprintf(os.Stderr, "%d/%d %s: %s %s\n", round, b.rounds, m.name, significant(result.value), m.unit)
			if round == 0 {
				s.count = m.countFor(result, b.runTime)
				continue
			}
			s.samples = append(s.samples, result)
		}
	}
}

func (b *bench) once(ctx context.Context, m *measurement, count int) (sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit, fmt.Errorf("not done within %v", runLimit))
	defer cancel()
	return m.run(ctx, b, count)
}
