package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestOutputsOfPrograms(t *testing.T) {
	for _, c := range []struct {
		name, unit, out string
		parse           func(out, unit string) (sample, error)
		want            sample
	}{
		{
			"bandwidth", gbps, ` #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             16.26              7.77   		   0.014820
---------------------------------------------------------------------------------------
`, parsePerftest, sample{value: 7.77},
		},
		{"rate", mega, " 8          100000           0.00               0.03   		   0.460000\n", parsePerftest, sample{value: 0.46}},
		{
			"latency", micros, ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       20000          8.45           85048.96      34.80    	       89.29       	-nan   		791.18  		5078.41
`, parsePerftest, sample{value: 34.8, mean: 89.29},
		},
		{"UCX bandwidth", gbps, "Final:  20000  6.463  391.490  1256.912  159.65  1000.00  2554  796\n", parseUCX, sample{value: 8.388608}},
		{"UCX rate", mega, "        20000  6.463  391.490  1256.912  159.65  49.73  2554  500000\n", parseUCX, sample{value: 0.5}},
		{"UCX latency", micros, "20000  11.024  90.899  369.368  0.08  0.02  11001  2707\n", parseUCX, sample{value: 11.024, mean: 369.368}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.parse(c.out, c.unit)
			if err != nil || got != c.want {
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
			if s, err := c.parse("Couldn't connect to 10.79.0.2:18515\n", c.unit); err == nil {
				t.Errorf("an error message is a result: %+v", s)
			}
		})
	}
	if s, err := parsePerftest(" 65536      500             0.00               0.00   		   0.000001\n", gbps); err == nil {
		t.Errorf("a run without throughput has a result: %+v", s)
	}
	if s, err := parseUCX("Final:  20000  6.463  391.490  1256.912  0.00  0.00  0  0\n", gbps); err == nil {
		t.Errorf("a run without throughput has a result: %+v", s)
	}
	bits, bytes, err := parseIperf3(`{"end": {"sum_received": {"bytes": 3000, "bits_per_second": 24000.5}}}`)
	if bits != 24000.5 || bytes != 3000 || err != nil {
		t.Errorf("iperf3: %v bit/s, %v bytes, %v", bits, bytes, err)
	}
	if _, _, err := parseIperf3(`{"start": {}, "end": {}, "error": "unable to connect"}`); err == nil {
		t.Error("an error of iperf3 is a result")
	}
}

func TestOutputOfBenchmark(t *testing.T) {
	const out = "goos: linux\nBenchmarkPackets/xdp/64/IPv4-2 \t  200000\t 995.0 ns/op\t 64.32 MB/s\t 1.005 Mpackets/s\t 1835 cpu-ns/op\t 0 B/op\t 0 allocs/op\nPASS\n"
	if s, err := parseBenchmark(out); s != (sample{value: 1.005, cpu: 1.835}) || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	for _, out := range []string{"PASS\n", "BenchmarkPackets/xdp/64/IPv4-2 \t  200000\t 995.0 ns/op\n", "BenchmarkPackets \t 200000\t fast Mpackets/s\n"} {
		if s, err := parseBenchmark(out); err == nil {
			t.Errorf("%q is the result %+v", out, s)
		}
	}
}

func TestRunsTakeAboutAsLongAsTheyShould(t *testing.T) {
	for _, c := range []struct {
		name string
		m    measurement
		s    sample
		want int
	}{
		{"64 KiB at 8.192 Gb/s", measurement{unit: gbps, size: 64000}, sample{value: 8.192}, 32000},
		{"messages", measurement{unit: mega, size: 8}, sample{value: 0.5}, 1000000},
		{"round trips", measurement{unit: micros, size: 8}, sample{value: 5, mean: 10}, 100000},
		{"slow ones", measurement{unit: mega, size: 8, first: 2000}, sample{value: 1e-5}, 2000},
	} {
		if got := c.m.countFor(c.s, 2*time.Second); got != c.want {
			t.Errorf("%s: %d operations in 2 s, want %d", c.name, got, c.want)
		}
	}
}

func TestCompareFindsRatiosThatFell(t *testing.T) {
	one := func(name string, ratio float64, lower bool, beside int) result {
		goal := 2.0
		if lower {
			goal = 0.5
		}
		return result{Name: name, Ratio: ratio, Lower: lower, Goal: goal, Of: figures{Runs: 5}, Beside: figures{Runs: beside}}
	}
	reported := func(rate, time, high, alone float64) *report {
		return &report{Machine: "machine with two processors", Rows: []result{
			one("rate", rate, false, 5), one("time", time, true, 5), one("high rate", high, false, 5), one("time alone", alone, true, 0)}}
	}
	recorded := reported(1, 1, 8, 0.05)
	for _, c := range []struct {
		rate, time, high, alone float64
		want                    string
	}{
		{0.76, 1.3, 6.1, 0.06, ""},
		{2, 0.5, 9, 0.5, ""},
		{0.74, 1, 8, 0.05, "rate: the ratio is 0.740, recorded is 1.00"},
		{1, 1.4, 8, 0.05, "time: the ratio is 1.40, recorded is 1.00"},
		{1, 1, 5.9, 0.05, "high rate: the ratio is 5.90, recorded is 8.00"},
		{1, 1, 8, 0.51, "time alone: the ratio is 0.510, recorded is 0.050"},
	} {
		r := reported(c.rate, c.time, c.high, c.alone)
		r.Rows = append(r.Rows, one("new", 0.1, false, 5))
		got := ""
		if err := r.compare([]*report{recorded}); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
		r.Machine = "another processor"
		if err := r.compare([]*report{recorded}); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), "not on a another processor") {
			t.Errorf("%+v elsewhere: %v", c, err)
		}
	}
}

func TestWriteKeepsRowsThatWereNotMeasured(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	at := func(i int, ratio float64) result {
		return result{Name: rows[i].name, Ratio: ratio, Of: figures{Runs: 5}}
	}
	failed := at(2, 0)
	failed.Of.Runs = 0
	for _, r := range []*report{{Rows: []result{at(0, 1), at(2, 3)}}, {Rows: []result{at(1, 2), failed}}, {Rows: []result{at(0, 4)}}} {
		if err := r.write(file); err != nil {
			t.Fatal(err)
		}
	}
	r, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []result{at(0, 4), at(1, 2), at(2, 3)}
	if len(r.Rows) != len(want) {
		t.Fatalf("rows %+v, want %+v", r.Rows, want)
	}
	for i, res := range r.Rows {
		if res != want[i] {
			t.Errorf("row %+v, want %+v", res, want[i])
		}
	}
}

func TestRowsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.name] || strings.TrimSpace(r.name) == "" {
			t.Errorf("two rows are named %q", r.name)
		}
		seen[r.name] = true
	}
}

var update = flag.Bool("update", false, "write the tables of docs/internals/performance.md")

func TestRatiosAreComparedWithTheBest(t *testing.T) {
	for _, c := range []struct {
		lower  bool
		ratios []float64 // as written one after the other
		best   float64
		falls  bool // the last, beside the best
	}{
		{false, []float64{4, 3.5}, 4, false},
		{false, []float64{4, 3.5, 2.9}, 4, true},
		{false, []float64{2, 4}, 4, false},
		{true, []float64{2, 2.5}, 2, false},
		{true, []float64{2, 2.5, 2.7}, 2, true},
		{true, []float64{2, 1}, 1, false},
	} {
		file := filepath.Join(t.TempDir(), "bench.json")
		last := &report{}
		for _, ratio := range c.ratios {
			last.Rows = []result{{Name: rows[0].name, Lower: c.lower, Ratio: ratio, Of: figures{Runs: 5}, Beside: figures{Runs: 5}}}
			if err := last.write(file); err != nil {
				t.Fatal(err)
			}
		}
		recorded, err := readRecorded(file)
		if err != nil {
			t.Fatal(err)
		}
		got := recorded[0].Rows[0]
		if got.Ratio != last.Rows[0].Ratio || got.best() != c.best {
			t.Errorf("%v: recorded %v, best %v, want best %v", c.ratios, got.Ratio, got.best(), c.best)
		}
		if err := last.compare(recorded); (err != nil) != c.falls {
			t.Errorf("%v: compared with the best: %v", c.ratios, err)
		}
	}
}

func TestRatiosAreComparedWithThoseOfTheSameProcessor(t *testing.T) {
	dir := t.TempDir()
	of := func(processor string, ratio float64, lower bool) *report {
		return &report{Machine: processor + ", Linux 6.18, go1.26", Rows: []result{
			{Name: rows[0].name, Ratio: ratio, Lower: lower, Of: figures{Runs: 1}, Beside: figures{Runs: 1}}}}
	}
	for _, c := range []struct {
		lower         bool
		slow, fast    float64 // recorded, of two processors
		here, outcome string
		ratio         float64
	}{
		{false, 2, 4, "slow", "", 1.6},
		{false, 2, 4, "slow", "recorded is 2.00", 1.4},
		{false, 2, 4, "fast", "recorded is 4.00", 1.6},
		{false, 2, 4, "other", "", 1.6},
		{false, 2, 4, "other", "elsewhere (fast; slow), and not on a other", 1.4},
		{true, 2, 1, "slow", "", 2.5},
		{true, 2, 1, "fast", "recorded is 1.00", 2.5},
		{true, 2, 1, "other", "", 2.5},
		{true, 2, 1, "other", "elsewhere (fast; slow), and not on a other", 2.7},
	} {
		for _, processor := range []string{"slow", "fast"} {
			ratio := map[string]float64{"slow": c.slow, "fast": c.fast}[processor]
			os.Remove(filepath.Join(dir, processor+".json")) // it would keep its best ratio
			if err := of(processor, ratio, c.lower).write(filepath.Join(dir, processor+".json")); err != nil {
				t.Fatal(err)
			}
		}
		recorded, err := readRecorded(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = of(c.here, c.ratio, c.lower).compare(recorded)
		if (err == nil) != (c.outcome == "") || err != nil && !strings.Contains(err.Error(), c.outcome) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := readRecorded(t.TempDir()); err == nil {
		t.Error("a directory without recorded ratios")
	}
	if err := of("other", 1, false).write(filepath.Join(dir, "slow.json")); err == nil || !strings.Contains(err.Error(), "on a slow") {
		t.Errorf("the file of another machine was written: %v", err)
	}
}

// TestPerformancePageHasTheRecordedRows holds the page to the files of recorded.
func TestPerformancePageHasTheRecordedRows(t *testing.T) {
	const file, start, end = "../../docs/internals/performance.md", "<!-- recorded -->\n", "<!-- end of recorded -->\n"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := readRecorded("recorded")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), start)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q or %q", file, start, end)
	}
	want := "\n"
	for _, r := range recorded {
		want += r.Machine + ":\n\n" + r.table() + "\n"
	}
	switch {
	case old == want:
	case *update:
		if err := os.WriteFile(file, []byte(before+start+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has other tables than recorded: go test ./scripts/bench -run %s -update", file, t.Name())
	}
	seen := map[string]bool{}
	for _, r := range recorded {
		if seen[r.processors()] {
			t.Errorf("two files are of a %s", r.processors())
		}
		seen[r.processors()] = true
		for _, row := range rows {
			if r.row(row.name) == nil {
				t.Errorf("%s is not recorded on a %s", row.name, r.processors())
			}
		}
		for _, res := range r.Rows {
			if row := find(res.Name); row == nil || row.floor != res.Floor || row.goal != res.Goal {
				t.Errorf("%s: recorded with floor %v and goal %v, now %+v", res.Name, res.Floor, res.Goal, row)
			}
		}
	}
}

func find(name string) *row {
	for i := range rows {
		if rows[i].name == name {
			return &rows[i]
		}
	}
	return nil
}

func TestMeasurementsAlternate(t *testing.T) {
	var order []string
	named := func(name string, repeats int) *measurement {
		return &measurement{name: name, repeats: repeats, run: func(context.Context, *bench, int) (sample, error) {
			order = append(order, name)
			return sample{value: 1}, nil
		}}
	}
	r := row{of: named("of", 2), beside: named("beside", 2)}
	once := row{of: named("once", 0)}
	b := &bench{rounds: 2, results: map[*measurement]*series{}}
	b.measure(t.Context(), []row{r, once})
	if got, want := strings.Join(order, " "), "beside of once beside of beside of once beside of"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if n := len(b.results[r.of].samples); n != 4 {
		t.Errorf("%d samples of 2 rounds with 2 repeats", n)
	}
}

// Rows that fell are measured again, others are not, and the runs of both passes count together.
func TestRowsThatFellAreMeasuredAgain(t *testing.T) {
	var selected []row
	recorded := &report{}
	beside := &measurement{run: func(context.Context, *bench, int) (sample, error) { return sample{value: 1}, nil }}
	for name, values := range map[string][]float64{"recovers": {2, 2, 8, 8, 8, 8}, "stays": {2, 2, 2, 8, 2, 2}, "has not fallen": {6, 6}} {
		m := &measurement{name: name, run: func(context.Context, *bench, int) (sample, error) {
			v := values[0]
			values = values[1:]
			return sample{value: v}, nil
		}}
		selected = append(selected, row{name: name, of: m, beside: beside})
		recorded.Rows = append(recorded.Rows, result{Name: name, Ratio: 6})
	}
	b := &bench{rounds: 2, results: map[*measurement]*series{}}
	b.measure(t.Context(), selected)
	r := &report{Rows: b.resultsOf(selected)}
	b.repeatFallen(r, []*report{recorded}, selected)
	for name, want := range map[string]figures{"recovers": {Median: 5, Runs: 4}, "stays": {Median: 2, Runs: 4}, "has not fallen": {Median: 6, Runs: 2}} {
		if got := r.row(name).Of; got.Median != want.Median || got.Runs != want.Runs {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	const want = "stays: the ratio is 2.00, recorded is 6.00"
	if err := r.compare([]*report{recorded}); err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}

// A row whose yardstick could not be measured has failed, but not fallen.
func TestFailedYardstickIsNoFall(t *testing.T) {
	r := &report{Rows: []result{{Name: "rate", Of: figures{Runs: 5}, Beside: figures{Name: "TCP"}}}}
	if fallen := r.fallenRows([]*report{{Rows: []result{{Name: "rate", Ratio: 6}}}}); len(fallen) != 0 {
		t.Errorf("%+v", fallen)
	}
}

func TestProcessorTimeOfAUnit(t *testing.T) {
	for _, c := range []struct {
		name  string
		m     measurement
		count int
		want  float64
	}{
		{"GiB", measurement{unit: gbps, size: 1 << 20}, 2048, 1},
		{"million messages", measurement{unit: mega}, 2e6, 1},
		{"round trips, of two messages", measurement{unit: micros}, 1e6, 1},
	} {
		if got := c.m.perUnit(2*time.Second, c.count); got != c.want {
			t.Errorf("%s: %v s, want %v", c.name, got, c.want)
		}
	}
}

func TestProcessorTimeIsThatOfTheTraffic(t *testing.T) {
	at := func(ms, cpu int, sent uint64) usage {
		return usage{time.Duration(ms) * time.Millisecond, time.Duration(cpu) * time.Millisecond, sent}
	}
	for _, c := range []struct {
		name string
		list []usage
		want float64
	}{
		{"set-up, traffic, end", []usage{at(0, 0, 0), at(50, 100, 10), at(100, 120, 1000), at(150, 150, 2200), at(200, 250, 2300)}, 0.5},
		{"a pause in it", []usage{at(0, 0, 0), at(50, 50, 1000), at(100, 50, 1000), at(200, 100, 3000), at(250, 160, 3010)}, 0.5},
		{"no traffic", []usage{at(0, 0, 7), at(50, 100, 7)}, 0},
		{"no time", []usage{at(0, 0, 0)}, 0},
		{"nothing", nil, 0},
	} {
		if got := processorsAtWork(c.list); got != c.want {
			t.Errorf("%s: %v processors, want %v", c.name, got, c.want)
		}
	}
	const dev = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n  veth0: 10 1 0 0 0 0 0 0 77 1 0 0 0 0 0 0\n"
	if n, err := sentBytes(dev, "veth0"); n != 77 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := sentBytes(dev, "veth"); err == nil {
		t.Error("an interface that does not exist has sent something")
	}
	if d, err := cpuTicks("42 (softroce) S 1 1 1 0 -1 0 0 0 0 0 120 30 0 0 20 0\n"); d != 1500*time.Millisecond || err != nil {
		t.Errorf("%v, %v", d, err)
	}
	if _, err := cpuTicks("cpu 1 2 3 4 5 6 7 8 9 10\ncpu0 11 12 13 14 15 16 17 18 19 20\n"); err == nil {
		t.Error("the machine's time is that of a process")
	}
}

func TestOnlyRunsWithoutClockAreRepeated(t *testing.T) {
	for _, c := range []struct {
		failure string
		runs    int
	}{{"no result: Correlation coefficient r^2: 0.88 < 0.9", 2}, {"no result: aborted", 1}} {
		runs := 0
		m := &measurement{run: func(context.Context, *bench, int) (sample, error) {
			if runs++; runs == 1 {
				return sample{}, errors.New(c.failure)
			}
			return sample{value: 1}, nil
		}}
		if _, err := new(bench).once(t.Context(), m, 1); runs != c.runs || (err == nil) != (c.runs == 2) {
			t.Errorf("%s: %d runs, error %v, want %d runs", c.failure, runs, err, c.runs)
		}
	}
}
