package netsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softroce/capture"
	"softroce/packet"
)

// write writes a file into a directory of the test.
func write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// simulate runs a workload on a topology, both as they are in files.
func simulate(t testing.TB, topology, workload string, o Options) (*Result, error) {
	t.Helper()
	dir := t.TempDir()
	top, err := LoadTopology(write(t, dir, "topology.yaml", topology))
	if err != nil {
		t.Fatal(err)
	}
	w, err := LoadWorkload(write(t, dir, "workload.yaml", workload))
	if err != nil {
		t.Fatal(err)
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	r, err := Run(context.Background(), top, w, o)
	if err != nil && !errors.Is(err, ErrDeadlock) {
		t.Fatal(err)
	}
	return r, err
}

// run is simulate of what does not come to a deadlock.
func run(t testing.TB, topology, workload string) *Result {
	t.Helper()
	r, err := simulate(t, topology, workload, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	ecn = "ecn: {kmin: 5kB, kmax: 200kB, pmax: 0.01}"
	pfc = "pfc: {priorities: [0], xoff: 100kB, xon: 80kB, headroom: 60kB}"
)

func (r *Result) dropped() (n uint64) {
	for _, p := range r.Ports {
		n += p.Dropped
	}
	return n
}

func (r *Result) pauses() (n uint64) {
	for _, p := range r.Ports {
		n += p.PausesSent
	}
	return n
}

func (r *Result) log(t testing.TB, what string) {
	longest := slices.MaxFunc(r.Ports, func(a, b PortResult) int { return a.MaxQueue - b.MaxQueue })
	t.Logf("%s: goodput %.1f %% of the port, Jain %.3f, %d starved; queue of %s %.0f kB on average, %.0f at most; %d dropped, %d pauses, %d CNPs, %d timeouts",
		what, 100*r.Receivers[0].Share, r.Jain, r.Starved, longest.Port, longest.MeanQueue/1e3, float64(longest.MaxQueue)/1e3,
		r.dropped(), r.pauses(), r.NICs.CNPs, r.NICs.Timeouts)
}

// payload returns which share of a port is payload when it carries only full packets of a path MTU.
func payload(mtu int) float64 { return float64(mtu) / float64(mtu+frameSize(packet.BTHLen)+frameGap) }

// With DCQCN senders share a port evenly and fill it, with the publication's parameters. The port
// of 128 senders has 40 Gb/s as the publication's do.
func TestIncastWithECN(t *testing.T) {
	for _, c := range []struct {
		senders, mtu int
		rate         string
		least        float64 // goodput, of the rate of the port
	}{{2, 4096, "10G", 0.9}, {4, 4096, "10G", 0.9}, {8, 4096, "10G", 0.9}, {32, 4096, "10G", 0.9},
		{128, 4096, "40G", 0.9}, {128, 1024, "40G", 0.9 * payload(1024)}} {
		r := run(t, fmt.Sprintf("rate: %s\nswitch: {%s}\nnic: {mtu: %d}\nstar: {nics: %d}", c.rate, ecn, c.mtu, c.senders+1),
			fmt.Sprintf("time: 50ms\nwarmup: 30ms\ntraffic: [{pattern: incast, senders: %d}]", c.senders))
		r.log(t, fmt.Sprint(c.senders, ":1"))
		if r.Receivers[0].Share < c.least || r.Jain < 0.9 || r.Starved > 0 || r.Failed > 0 || len(r.Flows) != c.senders {
			t.Errorf("%d:1: goodput %.3f of the port, Jain %.3f, %d starved, %d failed", c.senders, r.Receivers[0].Share, r.Jain, r.Starved, r.Failed)
		}
		if r.NICs.CNPs == 0 || r.NICs.Marked == 0 {
			t.Errorf("%d:1: %d marked, %d CNPs", c.senders, r.NICs.Marked, r.NICs.CNPs)
		}
	}
}

// With PFC and nothing else, nothing is lost.
func TestIncastWithPFC(t *testing.T) {
	for _, n := range []int{2, 4, 8, 32, 128} {
		r := run(t, fmt.Sprintf("switch: {%s}\nnic: {congestion: none}\nstar: {nics: %d}", pfc, n+1),
			fmt.Sprintf("time: 60ms\nwarmup: 20ms\ntraffic: [{pattern: incast, senders: %d}]", n))
		r.log(t, fmt.Sprint(n, ":1"))
		if r.dropped() != 0 || r.NICs.Retransmitted != 0 || r.pauses() == 0 || r.Receivers[0].Share < 0.9 || r.Jain < 0.9 || r.Starved > 0 {
			t.Errorf("%d:1: %d dropped, %d sent again, %d pauses, goodput %.3f, Jain %.3f", n, r.dropped(), r.NICs.Retransmitted, r.pauses(), r.Receivers[0].Share, r.Jain)
		}
	}
}

// With neither, a port of 1000 packets drops whole bursts. The senders come to share it all the
// same.
func TestIncastWithDrops(t *testing.T) {
	for _, c := range []struct {
		senders, queue int
		seed           uint64
	}{{2, 4200, 1}, {4, 4200, 1}, {8, 4200, 1}, {32, 4200, 1}, {128, 3000, 1}, {128, 4170, 2}, {128, 4200, 1}, {128, 4210, 3}} {
		n := c.senders
		r, _ := simulate(t, fmt.Sprintf("switch: {queue: %dkB}\nnic: {congestion: none}\nstar: {nics: %d}", c.queue, n+1),
			fmt.Sprintf("time: 1500ms\nwarmup: 1s\ntraffic: [{pattern: incast, senders: %d}]", n), Options{Seed: c.seed})
		r.log(t, fmt.Sprintf("%d:1, %d kB", n, c.queue))
		if r.Receivers[0].Share < 0.7 || r.Jain < 0.9 || r.Starved > 0 || r.Failed > 0 || n >= 8 && r.NICs.Retransmitted == 0 {
			t.Errorf("%d:1: goodput %.3f of the port, Jain %.3f, %d starved, %d failed, %d sent again", n, r.Receivers[0].Share, r.Jain, r.Starved, r.Failed, r.NICs.Retransmitted)
		}
	}
}

// Six NICs beside the receiver and two behind another switch send to it. The victim sends from that
// switch to an idle NIC. PFC divides the receiver's port among the switch's seven ports, and what
// the cable between the switches gets among three NICs: the victim has 10 Gb/s / 7 / 2, that of one
// sender, although there is room for 10. With DCQCN, the pauses end.
const victimTopology = `
switch: {SWITCH}
nic: {congestion: CC}
switches: [s0, s1]
nics: [a0, a1, victim, b0, b1, b2, b3, b4, b5, receiver, idle]
links:
  - {from: s0, to: s1, rate: 40G}
  - {from: a0, to: s0}
  - {from: a1, to: s0}
  - {from: victim, to: s0}
  - {from: b0, to: s1}
  - {from: b1, to: s1}
  - {from: b2, to: s1}
  - {from: b3, to: s1}
  - {from: b4, to: s1}
  - {from: b5, to: s1}
  - {from: receiver, to: s1}
  - {from: idle, to: s1}
`

func TestVictimOfPFC(t *testing.T) {
	const workload = `
time: 40ms
warmup: 20ms
traffic:
  - {pattern: incast, to: receiver, nics: [a0, a1, b0, b1, b2, b3, b4, b5]}
  - {pattern: flow, from: victim, to: idle}
`
	victim := func(config, cc string) float64 {
		r := run(t, strings.NewReplacer("SWITCH", config, "CC", cc).Replace(victimTopology), workload)
		f := r.Flows[len(r.Flows)-1]
		if len(r.Flows) != 9 || f.From != "victim" || r.dropped() > 0 {
			t.Fatalf("%+v, %d dropped", f, r.dropped())
		}
		t.Logf("%s, %s: the victim has %.2f Gb/s", config, cc, f.Rate/1e9)
		return f.Rate
	}
	if got, theory := victim(pfc, "none"), 10e9/7/2*payload(4096); got < 0.7*theory || got > 1.5*theory {
		t.Errorf("with PFC alone the victim has %.2f Gb/s, want %.2f", got/1e9, theory/1e9)
	}
	if got := victim(ecn+", "+pfc, "dcqcn"); got < 8e9 {
		t.Errorf("with DCQCN the victim has %.2f Gb/s", got/1e9)
	}
}

// ringTopology has five switches in a ring: flows to the next but one all go the same way around.
func ringTopology() string {
	b := &strings.Builder{}
	b.WriteString("switch: {buffer: 1MB, pfc: {xoff: 20kB, xon: 10kB, headroom: 40kB}}\nnic: {congestion: none}\n")
	b.WriteString("switches: [s0, s1, s2, s3, s4]\nnics: [n0, n1, n2, n3, n4]\nlinks:\n")
	for i := range 5 {
		fmt.Fprintf(b, "  - {from: s%d, to: s%d}\n  - {from: n%d, to: s%d}\n", i, (i+1)%5, i, i)
	}
	return b.String()
}

func flowsAround(by int) string {
	text := "time: 5ms\ntraffic:\n"
	for i := range 5 {
		text += fmt.Sprintf("  - {pattern: flow, from: n%d, to: n%d}\n", i, (i+by)%5)
	}
	return text
}

// A deadlock ends the run, whether the flows would end or not, and with the time of the workload at
// the latest.
func TestDeadlockIsReported(t *testing.T) {
	cycle := []string{"s0:s1", "s1:s2", "s2:s3", "s3:s4", "s4:s0"}
	endless := flowsAround(2)
	for name, workload := range map[string]string{
		"endless flows":  endless,
		"flows that end": strings.ReplaceAll(strings.Replace(endless, "time: 5ms\n", "", 1), "}", ", size: 10MB}"),
		"short time":     strings.Replace(endless, "5ms", "900us", 1),
	} {
		r, err := simulate(t, ringTopology(), workload, Options{})
		if !errors.Is(err, ErrDeadlock) || r == nil || r.Time > 3e6 || r.Ended > 0 {
			t.Errorf("%s: error %v", name, err)
			continue
		}
		if !slices.Equal(r.Deadlock.Cycle, cycle) || !slices.Contains(r.Deadlock.Waiting, "n0") || !strings.Contains(err.Error(), strings.Join(cycle, " ")) {
			t.Errorf("%s: %+v, %v", name, r.Deadlock, err)
		}
	}
	if r, err := simulate(t, ringTopology(), flowsAround(1), Options{}); err != nil || r.Goodput < 45e9 || r.Deadlock != nil {
		t.Errorf("flows to the next switch: %v, goodput %v", err, r.Goodput)
	}
}

// A cable of the ring that is down makes the flows go the other way, and there is no cycle.
func TestRingWithoutCableHasNoDeadlock(t *testing.T) {
	if r, err := simulate(t, ringTopology(), flowsAround(2)+"failures: [{kind: link_down, link: 's4:s0'}]", Options{}); err != nil || r.pauses() == 0 {
		t.Errorf("%v, %d pauses", err, r.pauses())
	}
}

func TestSameSeedSameResult(t *testing.T) {
	text := func(seed uint64) string {
		r, err := simulate(t, "switch: {"+ecn+", queue: 100kB}\nleaf_spine: {leaves: 2, spines: 2, nics: 4}",
			"traffic: [{pattern: poisson, load: 0.5, count: 100, sizes: hadoop}, {pattern: incast, size: 1MB}]\n"+
				"failures: [{kind: loss, link: n0, probability: 0.01}, {kind: link_down, link: 'leaf0:spine0', start: 100us, end: 1ms}]", Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if a, b := text(7), text(7); a != b {
		t.Error("two runs with one seed differ")
	}
	if text(7) == text(8) {
		t.Error("two seeds give the same result")
	}
}

// In an empty network flows last as long as is computed, also over several switches.
func TestLoneFlowHasSlowdownOfOne(t *testing.T) {
	for _, size := range []string{"1B", "4096B", "100kB", "5MB"} {
		for _, topology := range []string{"star: {nics: 2}", "leaf_spine: {leaves: 2, spines: 1, nics: 1, uplink: 40G}", "rate: 100G\ndelay: 10us\nstar: {nics: 2}"} {
			r := run(t, topology, "traffic: [{pattern: flow, from: n0, to: n1, size: "+size+"}]")
			f := r.Flows[0]
			if f.Slowdown < 0.97 || f.Slowdown > 1.35 || f.Acked != f.Size || r.Ended != 1 {
				t.Errorf("%s on %q: %+v", size, topology, f)
			}
		}
	}
}

func TestWorkloads(t *testing.T) {
	star := "star: {nics: 8}"
	r := run(t, star, "time: 10ms\nwarmup: 2ms\ntraffic: [{pattern: permutation}]")
	if len(r.Flows) != 8 || len(r.Receivers) != 8 || r.Jain < 0.999 || r.Goodput < 8*10e9*0.95*payload(4096) {
		t.Errorf("permutation: %d flows to %d NICs, goodput %v, Jain %v", len(r.Flows), len(r.Receivers), r.Goodput, r.Jain)
	}
	r = run(t, "switch: {"+ecn+"}\n"+star, "traffic: [{pattern: all_to_all, size: 500kB}]")
	if len(r.Flows) != 56 || r.Ended != 56 || len(r.Receivers) != 8 {
		t.Errorf("all_to_all: %d of %d flows ended", r.Ended, len(r.Flows))
	}
	// 14 steps of 1 MB at 10 Gb/s.
	r = run(t, star, "traffic: [{pattern: ring_all_reduce, size: 8MB}]")
	if theory := 14 * 1e6 * 8 / (10 * payload(4096)); len(r.Flows) != 14*8 || r.Ended != 14*8 || float64(r.Time) < theory || float64(r.Time) > 1.1*theory {
		t.Errorf("ring_all_reduce: %d of %d flows ended after %d ns, want %.0f", r.Ended, len(r.Flows), r.Time, theory)
	}
	r = run(t, star, "traffic: [{pattern: poisson, load: 0.4, count: 500, cdf: {10kB: 0.5, 1MB: 1}}]")
	var bytes int64
	for _, f := range r.Flows {
		bytes += f.Size
	}
	if load := float64(bytes*8) / float64(r.Time) / 80; r.Ended != 500 || load < 0.3 || load > 0.5 {
		t.Errorf("poisson: %d flows ended, load %.2f", r.Ended, load)
	}
	if len(r.Sizes) < 2 || r.Sizes[0].Flows < 200 || r.Sizes[0].Slowdown.P50 < 1 || r.Sizes[0].Slowdown.P99 < r.Sizes[0].Slowdown.P50 {
		t.Errorf("poisson: size classes %+v", r.Sizes)
	}
}

func TestErrorOfFlowNamesLineOfCSVFile(t *testing.T) {
	dir := t.TempDir()
	top, err := LoadTopology(write(t, dir, "t.yaml", "star: {nics: 2}"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "flows.csv", "start,from,to,size\n0s,n0,n1,1kB\n\n0s,\"n0\",n2,1kB\n")
	w, err := LoadWorkload(write(t, dir, "w.yaml", "flows: flows.csv"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(context.Background(), top, w, Options{}); err == nil || !strings.Contains(err.Error(), `flows.csv:4: no NIC "n2"`) {
		t.Errorf("%v", err)
	}
}

func TestFlowsOfCSVFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "flows.csv", "start,from,to,size,priority\n0us,n0,n1,10kB,3\n1ms,n1,n2,1MB,0\n")
	top, err := LoadTopology(write(t, dir, "t.yaml", "star: {nics: 3}"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := LoadWorkload(write(t, dir, "w.yaml", "flows: flows.csv"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(context.Background(), top, w, Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Flows) != 2 || r.Ended != 2 || r.Flows[0].Priority != 3 || r.Flows[1].Start != 1e6 || r.Flows[1].End < 1.8e6 {
		t.Errorf("%+v", r.Flows)
	}
}

// A capture of a port has its packets with valid ICRCs, CNPs, and pause frames.
func TestCaptureOfPort(t *testing.T) {
	file := filepath.Join(t.TempDir(), "n0.pcapng")
	r, err := simulate(t, "switch: {"+ecn+", pfc: {xoff: 40kB, xon: 20kB, headroom: 60kB}}\nstar: {nics: 5}",
		"time: 2ms\ntraffic: [{pattern: incast}]", Options{Captures: []Capture{{"n0", file}}})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := capture.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var packets, pauses, cnps, sent int
	for rec, err := range reader.Records() {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Data[12] == 0x88 && rec.Data[13] == 0x08 {
			pauses++
			continue
		}
		var p packet.Frame
		if err := packet.ParseFrame(rec.Data, &p); err != nil || !p.ICRCOK() || !p.IPChecksumOK() {
			t.Fatalf("packet %d: %v, ICRC %v", packets, err, p.ICRCOK())
		}
		packets++
		if p.Src == nicAddr(0) {
			sent++
		}
		if packet.Opcode(p.Transport[0]) == packet.OpcodeCNP {
			cnps++
		}
	}
	i := slices.IndexFunc(r.Ports, func(p PortResult) bool { return p.Port == "n0" })
	if sent != int(r.Ports[i].Frames) || packets == sent || pauses == 0 || cnps == 0 {
		t.Errorf("%d packets, %d of them sent, %d CNPs and %d pause frames; the port counts %d sent", packets, sent, cnps, pauses, r.Ports[i].Frames)
	}
	if _, err := simulateError(t, "star: {nics: 2}", "traffic: [{pattern: permutation, size: 1kB}]", Options{Captures: []Capture{{"n7", file}}}); err == nil || !strings.Contains(err.Error(), `no port "n7"`) {
		t.Errorf("an unknown port: %v", err)
	}
}

// While the packets of one priority are paused, a NIC sends those of another.
func TestPauseOfOnePriorityLeavesOthers(t *testing.T) {
	r, err := simulate(t, "switch: {pfc: {priorities: [3], xoff: 40kB, xon: 20kB, headroom: 60kB}}\nnic: {congestion: none}\nstar: {nics: 5}",
		"time: 20ms\nwarmup: 5ms\ntraffic: [{pattern: incast, to: n4, nics: [n0, n1, n2], priority: 3}, {pattern: flow, from: n0, to: n3}]", Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := r.Ports[slices.IndexFunc(r.Ports, func(p PortResult) bool { return p.Port == "n0" })]
	if p.Utilization < 0.99 || p.Paused < 4e6 || p.Dropped > 0 {
		t.Errorf("the port of a NIC with a second priority is used to %.1f %%, paused for %d ns", 100*p.Utilization, p.Paused)
	}
}

func simulateError(t testing.TB, topology, workload string, o Options) (*Result, error) {
	dir := t.TempDir()
	top, err := LoadTopology(write(t, dir, "t.yaml", topology))
	if err != nil {
		return nil, err
	}
	w, err := LoadWorkload(write(t, dir, "w.yaml", workload))
	if err != nil {
		return nil, err
	}
	return Run(context.Background(), top, w, o)
}

func TestErrorsOfFiles(t *testing.T) {
	const good, work = "star: {nics: 2}", "traffic: [{pattern: permutation, size: 1kB}]"
	for _, c := range []struct{ topology, workload, err string }{
		{"rat: 5G\nstar: {nics: 2}", work, `t.yaml:1: key "rat" is unknown here; did you mean "rate"?`},
		{"star:\n  nic: 2", work, `t.yaml:2: key "nic" is unknown`},
		{"star: {nics: 2}\nswitch:\n  ecn: {kmin: 5, kmax: 3}", work, "t.yaml:3: ecn: kmin 5, kmax 3 and pmax 0: want 0 <= kmin <= kmax"},
		{"rate: fast\nstar: {nics: 2}", work, `t.yaml:1: rate "fast"`},
		{"delay: 1\nstar: {nics: 2}", work, `t.yaml:1: time "1"`},
		{"star: {nics: 0}", work, "want a number from 1"},
		{"star: {nics: 1}", work, "1 NICs"},
		{"star: {nics: 100000}", work, "want 2 to 4096"},
		{"leaf_spine: {leaves: 1000, spines: 1000, nics: 1000}", work, "leaf_spine"},
		{"leaf_spine: {leaves: 1, spines: 65000, nics: 2}", work, "65001 switches: want up to 1024"},
		{"", work, "want one of star"},
		{"switches: [s]\nnics: [a, b]\nlinks: [{from: a, to: s}, {from: b, to: t}]", work, `t.yaml:3: links: no switch or NIC "t"`},
		{"switches: [s]\nnics: [a, b]\nlinks: [{from: a, to: s}]", work, "NIC b has 0 links"},
		{"star: {nics: 2}\nnic: {congestion: tcp}", work, `t.yaml:2: congestion control "tcp" (have: dcqcn, none, swift)`},
		{"star: {nics: 2}\nnic: {mtu: 1500}", work, `t.yaml:2: mtu "1500": want 256`},
		{"star: {nics: 2}\nswitch: {pfc: {priorities: [8], xoff: 1, xon: 1, headroom: 1MB}}", work, `t.yaml:2: priority "8": want 0 to 7`},
		{"star: {nics: 2}\nswitch: {pfc: {xoff: 1kB, xon: 1kB}}", work, "t.yaml:2: pfc: xon 1000, xoff 1000 and headroom 0: want"},
		{"star: {nics: 2}\nnic:\n  parameters:\n    rp_ai_rat: 5", work, `t.yaml:4: "rp_ai_rat" is not a parameter of congestion control; did you mean "rp_ai_rate"?`},
		{"star: {nics: 2}\nnic:\n  parameters: {rp_ai_rate: 0}", work, "t.yaml:3: rp_ai_rate 0: must be 1 to"},
		{"star: {nics: 2}\nnic: {parameters: [5]}", work, "t.yaml:2: want keys with values"},
		{"star: {nics: 2}\nnic: {timeout: 32}", work, `t.yaml:2: timeout "32": want 1 to 31`},
		{"star: {nics: 2}\nswitch:\n  weights:\n    9: 1", work, `t.yaml:4: priority "9": want 0 to 7`},
		{"switches: [s]\nnics: [a, b]\nlinks:\n  - {from: a, to: s}\n  - {from: a, to: b}", work, "t.yaml:5: link from a to b: one end must be a switch"},
		{"switches: [s]\nnics: [a, b]\nlinks:\n  - {from: a, to: s}\n  - {from: s, to: a}", work, "t.yaml:5: link from s to a: there is another one"},
		{good, "traffic: [{pattrn: incast}]", `w.yaml:1: key "pattrn" is unknown here; did you mean "pattern"?`},
		{good, "traffic: [{pattern: incest, size: 1}]", `w.yaml:1: pattern "incest"; did you mean "incast"?`},
		{good, "time: 1s\ntraffic:\n  - {pattern: permutation}\n  - {pattern: permutation, nics: [n0, n0]}", "w.yaml:4: nics: n0 is there twice"},
		{good, "traffic: [{pattern: permutation, to: n0, size: 1kB}]", "w.yaml:1: the pattern permutation has no to"},
		{good, "traffic: [{pattern: flow, from: n0, to: n1, nics: [n0, n1], size: 1kB}]", "w.yaml:1: the pattern flow has no nics"},
		{good, "traffic: [{pattern: flow, from: n0, size: 1kB}]", "w.yaml:1: flow: want from and to"},
		{good, "traffic: [{pattern: incast}]", "w.yaml:1: without a size"},
		{good, "traffic: [{pattern: flow, from: n0, to: n9, size: 1kB}]", `w.yaml:1: no NIC "n9"; did you mean`},
		{good, "traffic: [{pattern: flow, from: n0, to: n0, size: 1kB}]", "to itself"},
		{good, "traffic: [{pattern: incast, senders: 2, size: 1kB}]", "2 senders"},
		{good, "traffic: [{pattern: poisson, load: 0.1, count: 5, sizes: websearch}]", `did you mean "web_search"?`},
		{good, "traffic: [{pattern: poisson, load: 0.1, count: 5, cdf: {1kB: 0.5}}]", "must be 1"},
		{good, "traffic: [{pattern: poisson, load: 2, count: 5, size: 1kB}]", "w.yaml:1"},
		{good, "time: 1ms\nwarmup: 2ms\n" + work, "warmup"},
		{good, "flows: missing.csv", "missing.csv"},
		{good, work + "\nfailures:\n  - kind: link_dwn\n    link: n0", `w.yaml:3: kind "link_dwn"; did you mean "link_down"?`},
		{good, work + "\nfailures:\n  - {kind: link_down, lnk: n0}", `w.yaml:3: key "lnk" is unknown here; did you mean "link"?`},
		{good, work + "\nfailures:\n  - {kind: link_down, link: n0}\n  - kind: loss\n    link: n0\n    probability: 2", `w.yaml:6: "2": want a number from 0 to 1`},
		{good, work + "\nfailures:\n  - {kind: link_down, link: n9}", `w.yaml:3: no port "n9"`},
		{good, work + "\nfailures: [{kind: ecn_off, switch: n0}]", `w.yaml:2: no switch "n0"`},
		{good, work + "\nfailures: [{kind: ecn_off, link: n0}]", "w.yaml:2: ecn_off: want the name of a switch"},
		{good, work + "\nfailures: [{kind: link_down}]", "w.yaml:2: link_down: want a link"},
		{good, work + "\nfailures: [{kind: loss, link: n0}]", "w.yaml:2: probability"},
		{good, work + "\nfailures: [{kind: link_down, link: n0, start: 2ms, end: 1ms}]", "w.yaml:2: end: must be after start"},
		{good, work + "\nfailures: [5]", "w.yaml:2"},
		{good, work + "\nfailures:\n  - {kind: link_down, link: n0}\n  - {kind: link_down, link: 'switch:n0', start: 1ms}", "w.yaml:4: link_down of switch:n0 overlaps that of line 3"},
		{good, "", "want traffic or flows"},
		{good, "traffic: 5", "w.yaml:1"},
	} {
		if _, err := simulateError(t, c.topology, c.workload, Options{}); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q and %q: %v, want %q", c.topology, c.workload, err, c.err)
		}
	}
	for text, want := range map[string]string{
		"":                                     "flows.csv: want the header",
		"start,from,to,size\n0s,n0,\"n1,1kB\n": "flows.csv:2: ",
		"from,to\n":                            "flows.csv:1: want the header",
		"start,from,to,size\n0s,n0\n":          "flows.csv:2: 2 fields",
		"start,from,to,size\n0s,n0,n1,0\n":     "flows.csv:2: size 0",
		"start,from,to,size\n\n5,n0,n1,1kB\n":  `flows.csv:3: time "5"`,
		"start,from,to,size,priority\n0s,n0,n1,1kB,9\n": `flows.csv:2: priority "9"`,
	} {
		if _, err := loadFlows(write(t, t.TempDir(), "flows.csv", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestInterruptEndsRun(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := t.TempDir()
	top, _ := LoadTopology(write(t, dir, "t.yaml", "star: {nics: 2}"))
	w, err := LoadWorkload(write(t, dir, "w.yaml", "time: 1h\ntraffic: [{pattern: permutation}]"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(ctx, top, w, Options{Seed: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func FuzzFiles(f *testing.F) {
	f.Add("star: {nics: 2}", "traffic: [{pattern: permutation, size: 1kB}]", "start,from,to,size\n0s,n0,n1,1kB\n")
	f.Add(ringTopology(), flowsAround(2), "")
	f.Add("star: {nics: 2}", "failures:\n  - {kind: loss, link: n0, probability: 0.5, start: 1us, end: 2us}\n  - kind: ecn_off\n    switch: switch", "")
	f.Fuzz(func(t *testing.T, topology, workload, flows string) {
		dir := t.TempDir()
		LoadTopology(write(t, dir, "t.yaml", topology))
		LoadWorkload(write(t, dir, "w.yaml", workload))
		loadFlows(write(t, dir, "f.csv", flows))
	})
}

// Packet hops for each second of processor time, in leaf-spine networks of two sizes.
func BenchmarkLeafSpine(b *testing.B) {
	for _, leaves := range []int{8, 63} {
		b.Run(fmt.Sprint(leaves*16, "NICs"), func(b *testing.B) {
			hops, before := uint64(0), processorTime(b)
			for b.Loop() {
				r := run(b, fmt.Sprintf("rate: 10G\nswitch: {%s, %s}\nnic: {mtu: 1024}\nleaf_spine: {leaves: %d, spines: 4, nics: 16, uplink: 40G}", ecn, pfc, leaves),
					"time: 2ms\ntraffic: [{pattern: permutation}]")
				hops += r.Hops
			}
			b.ReportMetric(float64(hops)/(processorTime(b)-before).Seconds(), "hops/cpu-s")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// The heap that a NIC and a queue pair take, from the difference of runs.
func BenchmarkMemory(b *testing.B) {
	heap := func(nics int, pattern string) (bytes float64, qps int) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := run(b, fmt.Sprintf("star: {nics: %d}", nics), "traffic: [{pattern: "+pattern+", size: 1}]")
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc - before.TotalAlloc), r.QPs
	}
	for b.Loop() {
		few, qps := heap(64, "permutation")
		more, moreQPs := heap(64, "all_to_all")
		perQP := (more - few) / float64(moreQPs-qps)
		twice, twiceQPs := heap(120, "permutation")
		b.ReportMetric(perQP/1024, "KiB/QP")
		b.ReportMetric((twice-few-perQP*float64(twiceQPs-qps))/(120-64)/1024, "KiB/NIC")
	}
}
