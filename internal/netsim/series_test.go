package netsim

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const sampledTopology = "switch: {" + ecn + ", pfc: {xoff: 40kB, xon: 20kB, headroom: 60kB}}\nstar: {nics: 5}"

func total(l []int64) (n int64) {
	for _, v := range l {
		n += v
	}
	return n
}

// Whatever the interval, what is sampled of a port adds up to its statistics, and its longest queue
// is the same.
func TestSeriesAddUp(t *testing.T) {
	for _, interval := range []string{"100ns", "3us", "10us", "1ms", "1h"} {
		r := run(t, sampledTopology, "time: 5ms\nsample_interval: "+interval+"\ntraffic: [{pattern: incast}]\nfailures: [{kind: loss, link: n0, probability: 0.01}]")
		s := r.Series
		if n := len(s.Times); n == 0 || n > maxSamples || s.Times[n-1] != r.Time || !slices.IsSorted(s.Times) {
			t.Errorf("%s: %d samples until %d, the run until %d", interval, n, s.Times[n-1], r.Time)
		}
		for i, at := range s.Times[:len(s.Times)-1] {
			if at != int64(i+1)*s.Interval {
				t.Fatalf("%s: sample %d ends at %d, the interval is %d", interval, i, at, s.Interval)
			}
		}
		var cnps, lost int64
		for _, n := range s.NICs {
			bytes, begin := 0.0, int64(0)
			for i, rate := range n.Rate {
				bytes += float64(rate) / 8e9 * float64(s.Times[i]-begin)
				begin = s.Times[i]
			}
			if sent := float64(r.port(n.NIC).Bytes); bytes < sent-1000 || bytes > sent {
				t.Errorf("%s: %s sent %.0f bytes, its rates say %.0f", interval, n.NIC, sent, bytes)
			}
			cnps += total(n.CNPs)
		}
		if uint64(cnps) != r.NICs.CNPs || cnps == 0 {
			t.Errorf("%s: %d CNPs, %d sampled", interval, r.NICs.CNPs, cnps)
		}
		for _, p := range s.Ports {
			of := r.port(p.Port)
			lost += total(p.Lost)
			if uint64(total(p.Marked)) != of.Marked || uint64(total(p.Dropped)) != of.Dropped || total(p.Paused) != of.Paused ||
				of.MaxQueue > 0 && slices.Max(p.Queue) != int64(of.MaxQueue) {
				t.Errorf("%s: sampled %d marks, %d drops, %d ns of pauses; %+v", interval, total(p.Marked), total(p.Dropped), total(p.Paused), of)
			}
		}
		if uint64(lost) != r.Failures[0].Frames || lost == 0 {
			t.Errorf("%s: %d lost, %d sampled", interval, r.Failures[0].Frames, lost)
		}
	}
}

// Samples do not change the run. The warm-up is among them.
func TestSeriesDoNotChangeResult(t *testing.T) {
	var results []*Result
	for _, interval := range []string{"500ns", "7us", "1h"} {
		r := run(t, sampledTopology, "time: 5ms\nwarmup: 2ms\nsample_interval: "+interval+"\ntraffic: [{pattern: incast}]")
		if n := total(r.Series.NICs[0].Rate) / int64(len(r.Series.Times)); n < 1e9 {
			t.Errorf("%s: a mean rate of %d b/s", interval, n)
		}
		r.Series = nil
		results = append(results, r)
	}
	for _, r := range results[1:] {
		if !reflect.DeepEqual(r, results[0]) {
			t.Error("results differ with the interval")
		}
	}
}

func TestSeriesAsCSV(t *testing.T) {
	r := run(t, sampledTopology, "time: 1ms\ntraffic: [{pattern: incast}]")
	var b bytes.Buffer
	if err := r.Series.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(&b).ReadAll()
	if err != nil || strings.Join(lines[0], ",") != "time_ns,of,measure,value" {
		t.Fatal(err, lines[0])
	}
	seen := map[string][]int64{}
	for i, l := range lines[1:] {
		v, err := strconv.ParseInt(l[3], 10, 64)
		if key := l[1] + " " + l[2]; err == nil {
			if l[0] != fmt.Sprint(r.Series.Times[len(seen[key])]) {
				t.Fatalf("line %d: %v", i+2, l)
			}
			seen[key] = append(seen[key], v)
		} else {
			t.Fatal(err)
		}
	}
	if !slices.Equal(seen["n0 rate_bps"], r.Series.NICs[0].Rate) || len(seen["n0 paused_ns"]) == 0 || len(seen["switch:n4 queue_bytes"]) != len(r.Series.Times) {
		t.Errorf("%d columns", len(seen))
	}
}

// Groups have at least 50 flows, if there are so many, and flows of one size are in one group.
func TestGroupsBySize(t *testing.T) {
	for _, c := range []struct {
		flows  int
		size   func(i int) int64
		groups []int
	}{
		{0, nil, nil},
		{10, func(i int) int64 { return int64(i) }, []int{10}},
		{149, func(i int) int64 { return int64(i) }, []int{50, 99}},
		{150, func(i int) int64 { return int64(i) }, []int{50, 50, 50}},
		{200, func(i int) int64 { return int64(i / 120) }, []int{120, 80}},
		{4000, func(i int) int64 { return int64(-i) }, slices.Repeat([]int{200}, 20)},
	} {
		var flows []FlowResult
		for i := range c.flows {
			flows = append(flows, FlowResult{Flow: Flow{Size: c.size(i)}, FCT: 1, Slowdown: float64(i)}, FlowResult{})
		}
		var got []int
		for i, g := range groupBySize(flows) {
			if got = append(got, g.Flows); i > 0 && g.Limit <= groupBySize(flows)[i-1].Limit {
				t.Errorf("%d flows: group %d up to %d", c.flows, i, g.Limit)
			}
		}
		if !slices.Equal(got, c.groups) {
			t.Errorf("%d flows: groups of %v, want %v", c.flows, got, c.groups)
		}
	}
}

// The progress has a bar, of whichever is nearer to its end: the time or the flows.
func TestProgressShowsVirtualAndRealTime(t *testing.T) {
	p := NewProgress()
	p.flows.Store(4)
	p.ended.Store(1)
	p.now.Store(3e6)
	for end, want := range map[int64]string{
		0:    `^█{5}░{15} 3ms simulated in \d+s; 1 of 4 flows ended$`,
		6e6:  `^█{10}░{10} 3ms of 6ms simulated in \d+s; 1 of 4 flows ended$`,
		30e6: `^█{5}░{15} 3ms of 30ms simulated in \d+s; 1 of 4 flows ended$`,
	} {
		p.end.Store(end)
		if got := p.String(); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
