package netsim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"softroce/packet"
	"softroce/transport/congestion"
	"softroce/transport/congestion/fluid"
)

// The experiments of docs/use/published.md.
const experiments = "../../examples/networks/"

// experiment runs a workload of examples/networks on a topology there, after change.
func experiment(t *testing.T, topology, workload string, change func(*Workload)) *Result {
	t.Helper()
	return experimentAt(t, topology, workload, func(_ *Topology, w *Workload) {
		if change != nil {
			change(w)
		}
	})
}

// experimentAt is experiment with a change of the topology, too.
func experimentAt(t *testing.T, topology, workload string, change func(*Topology, *Workload)) *Result {
	t.Helper()
	top, err := LoadTopology(experiments + topology + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	w, err := LoadWorkload(experiments + workload + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	change(top, w)
	r, err := Run(context.Background(), top, w, Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// meanRate returns the mean rate of a NIC between two times.
func (r *Result) meanRate(t *testing.T, nic string, from, to int64) float64 {
	t.Helper()
	i := slices.IndexFunc(r.Series.NICs, func(s NICSeries) bool { return s.NIC == nic })
	sum, n := 0.0, 0
	for k, at := range r.Series.Times {
		if at > from && at <= to && i >= 0 && k < len(r.Series.NICs[i].Rate) {
			sum += float64(r.Series.NICs[i].Rate[k])
			n++
		}
	}
	if n == 0 {
		t.Fatalf("no rates of %s from %d to %d ns", nic, from, to)
	}
	return sum / float64(n)
}

// The page names all files of examples/networks, and no others.
func TestExperimentsLoad(t *testing.T) {
	page, err := os.ReadFile("../../docs/use/published.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile(`[a-z0-9-]+\.yaml`).FindAllString(string(page), -1) {
		named[experiments+name] = true
	}
	files, err := filepath.Glob(experiments + "*.yaml")
	if err != nil || len(files) != len(named) {
		t.Errorf("%d files, the page names %d, %v", len(files), len(named), err)
	}
	for _, f := range files {
		if !named[f] {
			t.Errorf("the page does not name %s", f)
		}
		if regexp.MustCompile(`-(star|testbed|tree)\.yaml$`).MatchString(f) {
			_, err = LoadTopology(f)
		} else {
			_, err = LoadWorkload(f)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// A flow that has the port shares it with one that begins later. Both lose most of their rate at
// once. Additive increases, 40 Mb/s each 55 µs, bring them to the fair share within 30 ms, and they
// keep it.
func TestSecondFlowConvergesToFairShare(t *testing.T) {
	r := experiment(t, "dcqcn-star", "dcqcn-join", nil)
	const join, fair = 20e6, 40e9 / 2
	if got := r.meanRate(t, "n0", 0, join); got < 0.97*2*fair {
		t.Errorf("the first flow has %.1f Gb/s alone", got/1e9)
	}
	for _, nic := range []string{"n0", "n1"} {
		after := r.meanRate(t, nic, join+2e6, join+4e6)
		soon := r.meanRate(t, nic, join+25e6, join+45e6)
		late := r.meanRate(t, nic, join+80e6, join+180e6)
		t.Logf("%s has %.1f Gb/s after 3 ms, %.1f after 35, %.1f after 130", nic, after/1e9, soon/1e9, late/1e9)
		if after > 0.5*fair || soon < 0.8*fair || soon > 1.2*fair || late < 0.9*fair || late > 1.1*fair {
			t.Errorf("%s: want less than %.1f, then %.1f Gb/s", nic, 0.5*fair/1e9, fair/1e9)
		}
	}
}

// The queue of an incast is that of the fluid model, as long as that is shorter than Kmax, and a
// fraction of that with PFC alone.
func TestQueueOfIncastIsThatOfTheFluidModel(t *testing.T) {
	p := congestion.Defaults()
	frame := frameSize(1024 + packet.BTHLen)
	b := fluid.Bottleneck{Capacity: 40e9 * float64(frame) / float64(frame+frameGap), Packet: float64(frame), Kmin: 5e3, Kmax: 200e3, Pmax: 0.01}
	for _, n := range []int{2, 4, 8} {
		senders := func(w *Workload) { w.Traffic[0].Senders = n }
		r := experiment(t, "dcqcn-star", "dcqcn-incast-8", senders)
		port, want := r.port("switch:n20"), b.FixedPoint(&p, n)
		r.log(t, fmt.Sprint(n, ":1"))
		t.Logf("%d:1: mean queue %.1f kB, fixed point %.1f kB, %.1f %% of the port used", n, port.MeanQueue/1e3, want/1e3, 100*port.Utilization)
		if port.MeanQueue < 0.85*want || port.MeanQueue > 1.15*want || port.Utilization < 0.975 || r.Jain < 0.99 {
			t.Errorf("%d:1: want %.1f kB; Jain %.3f", n, want/1e3, r.Jain)
		}
		short := func(w *Workload) { senders(w); w.Warmup, w.Time = 2e6, 5e6 }
		if alone := experiment(t, "pfc-star", "dcqcn-incast-8", short).port("switch:n20"); alone.MeanQueue < 5*port.MeanQueue {
			t.Errorf("%d:1: with PFC alone the mean queue has %.1f kB", n, alone.MeanQueue/1e3)
		}
	}
	one := experimentAt(t, "dcqcn-star", "dcqcn-incast-20", func(top *Topology, w *Workload) {
		top.NIC.Congestion.BurstTime = 1
		w.Warmup, w.Time = 50e6, 100e6
	})
	one.log(t, "20:1, packet by packet")
	if port := one.port("switch:n20"); port.MeanQueue > 100e3 || port.Utilization < 0.96 || one.Jain < 0.99 {
		t.Errorf("20:1, packet by packet: mean queue %.1f kB, %.1f %% of the port used, Jain %.3f", port.MeanQueue/1e3, 100*port.Utilization, one.Jain)
	}
	if want := b.FixedPoint(&p, 20); want < b.Kmax {
		t.Errorf("20:1: the fixed point is %.1f kB, the page says that it is beyond Kmax", want/1e3)
	}
}

// PFC divides the receiver's port among the ports of its switch, so that the sender beside it has
// more than those of which several share a port. With DCQCN each has the same.
func TestUnfairnessOfPFC(t *testing.T) {
	rates := func(r *Result) (beside, most float64) {
		for _, f := range r.Flows {
			if f.From == "h41" {
				beside = f.Rate
			} else {
				most = max(most, f.Rate)
			}
		}
		return beside, most
	}
	beside, most := rates(experiment(t, "pfc-testbed", "dcqcn-unfairness", func(w *Workload) { w.Warmup, w.Time = 10e6, 30e6 }))
	if beside < 1.5*most {
		t.Errorf("with PFC alone the sender beside the receiver has %.1f Gb/s, others up to %.1f", beside/1e9, most/1e9)
	}
	r := experiment(t, "dcqcn-testbed", "dcqcn-unfairness", nil)
	if beside, most := rates(r); r.Jain < 0.99 {
		t.Errorf("with DCQCN the sender beside the receiver has %.1f Gb/s, others up to %.1f; Jain %.3f", beside/1e9, most/1e9, r.Jain)
	}
}
