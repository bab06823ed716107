package netsim

import (
	"fmt"
	"math"
	"testing"
)

// With Swift senders share a port evenly and fill it, without marks. Two bounds hold for its queue:
//
//   - At any time it is no longer than the senders' windows. Each is at first what the port carries
//     in the target delay. All of them fit into the buffer of the switch.
//   - Later it is what the port carries in the target delay of such a share of it, what the rates
//     rise by in that time, and a packet of each sender, because these may arrive at once.
func TestIncastWithSwift(t *testing.T) {
	const (
		rate   = 10e9
		target = 100e-6 // and 20 µs (sqrt(n)-1) for the nth part of a port
		mtu    = 4096
	)
	frame := float64(frameSize(mtu + 16 + 12)) // BTH, RETH
	for _, n := range []int{2, 8, 32} {
		topology := fmt.Sprintf("nic: {congestion: swift}\nstar: {nics: %d}", n+1)
		incast := fmt.Sprintf("traffic: [{pattern: incast, senders: %d}]", n)
		longest := func(r *Result) float64 {
			for _, p := range r.Ports {
				if p.Port == fmt.Sprintf("switch:n%d", n) {
					return float64(p.MaxQueue)
				}
			}
			t.Fatal("no port of the receiver")
			return 0
		}

		r := run(t, topology, "time: 30ms\n"+incast)
		r.log(t, fmt.Sprint(n, ":1 from the start"))
		windows := float64(n) * math.Ceil(rate/8*target/mtu) * frame
		if longest(r) > windows || r.dropped() > 0 || r.NICs.Retransmitted > 0 {
			t.Errorf("%d:1: a queue of %.0f bytes, want up to %.0f; %d dropped, %d sent again", n, longest(r), windows, r.dropped(), r.NICs.Retransmitted)
		}

		r = run(t, topology, "time: 60ms\nwarmup: 30ms\n"+incast)
		r.log(t, fmt.Sprint(n, ":1"))
		if r.Receivers[0].Share < 0.9*payload(mtu) || r.Jain < 0.9 || r.Starved > 0 || r.Failed > 0 || r.NICs.CNPs > 0 {
			t.Errorf("%d:1: goodput %.3f of the port, Jain %.3f, %d starved, %d failed, %d CNPs", n, r.Receivers[0].Share, r.Jain, r.Starved, r.Failed, r.NICs.CNPs)
		}
		shared := target + 20e-6*(math.Sqrt(float64(n))-1)
		if want := rate/8*shared*(1+float64(n)/256) + float64(n)*frame; longest(r) > want {
			t.Errorf("%d:1: a queue of %.0f bytes later, want up to %.0f", n, longest(r), want)
		}
	}
}

// A flow gets its share from one that had the whole port, and takes what another one leaves.
func TestSwiftFollowsFlowsThatComeAndGo(t *testing.T) {
	r := run(t, "nic: {congestion: swift}\nstar: {nics: 3}", `
time: 60ms
warmup: 30ms
traffic:
  - {pattern: flow, from: n0, to: n2}
  - {pattern: flow, from: n1, to: n2, start: 20ms}
`)
	if r.Jain < 0.95 || r.Receivers[0].Share < 0.9*payload(4096) {
		t.Errorf("Jain %.3f, goodput %.3f, 10 ms after a second flow began", r.Jain, r.Receivers[0].Share)
	}
	r = run(t, "nic: {congestion: swift}\nstar: {nics: 9}", `
time: 60ms
warmup: 40ms
traffic:
  - {pattern: flow, from: n8, to: n0}
  - {pattern: incast, senders: 7, nics: [n1, n2, n3, n4, n5, n6, n7], to: n0, size: 2MB}
`)
	if f := r.Flows[0]; r.Ended != 7 || f.Rate < 0.9*payload(4096)*10e9 {
		t.Errorf("%d flows ended, and the last one has %.2f Gb/s", r.Ended, f.Rate/1e9)
	}
}

// The round trip of an empty network, and what a queue pair adds to it, are below the target.
func TestSwiftDoesNotSlowALoneFlow(t *testing.T) {
	r := run(t, "nic: {congestion: swift}\nleaf_spine: {leaves: 2, spines: 2, nics: 2, uplink: 10G}",
		"traffic: [{pattern: flow, from: n0, to: n3, size: 10MB}]")
	if r.Flows[0].Slowdown > 1.02 {
		t.Errorf("slowdown %.3f", r.Flows[0].Slowdown)
	}
}
