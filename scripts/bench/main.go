// Bench measures softroce beside TCP, UCX, the kernel's copy and the kernel's Soft-RoCE:
//
//	bench [-rows REGEXP] [-runs 5] [-seconds 2] [-o FILE] [-check FILE|DIR] [-profile DIR]
//
// It runs in namespaces of its own (sandbox.go), so it needs root, leaves nothing behind however it
// ends, and uses no daemon of the machine. A row of its table compares two measurements (rows.go).
// Each round carries out every measurement once, one after the other, so that both sides of a row
// meet the same machine; latencies in a guest three times. With -check, rows that fell behind are
// measured for as many rounds again. The table has medians.
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
	"strings"
	"time"

	"softroce/e2e/rxelab"
)

type options struct {
	rows     string
	runs     int
	seconds  float64
	out      string
	recorded string
	softroce string
	profiles string
}

func main() {
	var o options
	flag.StringVar(&o.rows, "rows", "", "measure only the rows whose name this regular expression matches")
	flag.IntVar(&o.runs, "runs", 5, "how often each measurement is repeated")
	flag.Float64Var(&o.seconds, "seconds", 2, "about how long a run takes")
	flag.StringVar(&o.out, "o", "", "write the rows to this file as JSON; rows that it has and that were not measured stay")
	flag.StringVar(&o.recorded, "check", "", "compare the ratios with those in this file, or in the files of this directory")
	flag.StringVar(&o.softroce, "softroce", "bin/softroce", "the softroce binary")
	flag.StringVar(&o.profiles, "profile", "", "record a profile of each daemon in this directory (profile.go)")
	flag.Parse()
	selected, err := o.selectRows()
	if err == nil {
		err = inSandbox(func() error { return prepare(selected) }, func() error { return run(&o, selected) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (o *options) selectRows() ([]row, error) {
	match, err := regexp.Compile(o.rows)
	if err != nil {
		return nil, fmt.Errorf("-rows: %w", err)
	}
	if o.runs < 1 || o.seconds <= 0 {
		return nil, fmt.Errorf("-runs %d, -seconds %v: want more than 0", o.runs, o.seconds)
	}
	selected := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !match.MatchString(r.name) })
	if len(selected) == 0 {
		return nil, fmt.Errorf("-rows %s: no row has such a name", o.rows)
	}
	return selected, nil
}

// prepare does what the sandbox cannot do.
func prepare(selected []row) error {
	for _, k := range guestKernels {
		if !slices.ContainsFunc(selected, func(r row) bool { return r.of.guest != nil && *r.of.guest == k }) {
			continue
		}
		if err := k.build(); err != nil {
			return err
		}
	}
	return nil
}

func run(o *options, selected []row) error {
	var recorded []*report
	var err error
	if o.recorded != "" {
		if recorded, err = readRecorded(o.recorded); err != nil {
			return err
		}
	}
	r := newReport()
	if o.out != "" {
		if _, err := r.readOwn(o.out); err != nil {
			return err
		}
	}
	b, err := newBench(o)
	if err != nil {
		return err
	}
	b.measure(context.Background(), selected)
	r.Rows = b.resultsOf(selected)
	b.repeatFallen(r, recorded, selected)
	fmt.Print(r.table())
	err = r.failures()
	if o.out != "" {
		err = errors.Join(err, r.write(o.out))
	}
	return errors.Join(err, r.compare(recorded))
}

// repeatFallen measures the rows of a report that have fallen for as many rounds again. Twice as
// many runs tell a fall from a host that was busy for a while.
func (b *bench) repeatFallen(r *report, recorded []*report, selected []row) {
	var repeated []row
	for _, res := range r.fallenRows(recorded) {
		fmt.Fprintf(os.Stderr, "%s: the ratio is %s; measuring again\n", res.Name, significant(res.Ratio))
		i := slices.IndexFunc(selected, func(row row) bool { return row.name == res.Name })
		repeated = append(repeated, selected[i])
	}
	b.measure(context.Background(), repeated)
	for _, res := range b.resultsOf(repeated) {
		*r.row(res.Name) = res
	}
}

// A bench carries out measurements.
type bench struct {
	softroce string
	profiles string // directory
	running  *measurement
	runTime  time.Duration
	rounds   int
	labs     map[guestKernel]*rxelab.Lab // that have been booted
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
		softroce: o.softroce, profiles: o.profiles, rounds: o.runs, runTime: time.Duration(o.seconds * float64(time.Second)),
		labs:    map[guestKernel]*rxelab.Lab{},
		results: map[*measurement]*series{},
	}
	return b, makeNetwork()
}

// runLimit ends a run that hangs.
const runLimit = 2 * time.Minute

// measure carries out the measurements that rows need, each once a round or as often as it says,
// and adds to what they have found before.
func (b *bench) measure(ctx context.Context, rows []row) {
	var all []*measurement
	for _, r := range rows {
		for _, m := range []*measurement{r.beside, r.of} {
			if m != nil && !slices.Contains(all, m) {
				all = append(all, m)
				if b.results[m] == nil {
					b.results[m] = &series{}
				}
			}
		}
	}
	for round := range b.rounds {
		for repeat := range maxRepeats {
			for _, m := range all {
				if repeat < max(m.repeats, 1) {
					b.measureOnce(ctx, m, round)
				}
			}
		}
	}
}

func (b *bench) measureOnce(ctx context.Context, m *measurement, round int) {
	s := b.results[m]
	if s.count == 0 && m.first > 0 {
		s.count = b.calibrate(ctx, m)
	}
	result, err := b.once(ctx, m, s.count)
	if err != nil {
		s.err = err
		fmt.Fprintf(os.Stderr, "%d/%d %s: %v\n", round+1, b.rounds, m.name, err)
		return
	}
	fmt.Fprintf(os.Stderr, "%d/%d %s: %s %s\n", round+1, b.rounds, m.name, significant(result.value), m.unit)
	s.samples = append(s.samples, result)
	s.count = m.countFor(result, b.runTime)
}

// calibrate finds out how many operations take about as long as a run should. Short runs say
// little, so each is longer than the one before it.
func (b *bench) calibrate(ctx context.Context, m *measurement) int {
	count := m.first
	for range 3 {
		result, err := b.once(ctx, m, count)
		if err != nil || m.countFor(result, b.runTime) < 2*count {
			break
		}
		count = m.countFor(result, b.runTime)
	}
	return count
}

func (b *bench) once(ctx context.Context, m *measurement, count int) (sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit, fmt.Errorf("not done within %v", runLimit))
	defer cancel()
	b.running = m
	result, err := m.run(ctx, b, count)
	if err != nil && strings.Contains(err.Error(), clockUnknown) {
		return m.run(ctx, b, count)
	}
	return result, err
}

// clockUnknown is what perftest says if it could not find out the frequency of its clock: while it
// measured that, the host was busy for a moment. It has no result then.
const clockUnknown = "Correlation coefficient"
