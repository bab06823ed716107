package netsim

import (
	"fmt"
	"slices"
	"testing"
)

// port returns the result of a port.
func (r *Result) port(name string) PortResult {
	i := slices.IndexFunc(r.Ports, func(p PortResult) bool { return p.Port == name })
	return r.Ports[i]
}

// A flow survives a cable that is down for less than its retries: go-back-N sends again what was
// lost, after a timeout of 2^10 times 4.096 µs.
func TestFlowSurvivesCableThatIsDown(t *testing.T) {
	const topology = "nic: {timeout: 10}\nstar: {nics: 2}"
	const work = "traffic: [{pattern: flow, from: n0, to: n1, size: 10MB}]"
	intact := run(t, topology, work)
	r := run(t, topology, work+"\nfailures: [{kind: link_down, link: n1, start: 1ms, end: 3ms}]")
	f := r.Failures[0]
	if r.Ended != 1 || r.NICs.Timeouts == 0 || r.Flows[0].FCT < intact.Flows[0].FCT+2e6 {
		t.Errorf("%d ended, %d timeouts, FCT %d ns, %d without the failure", r.Ended, r.NICs.Timeouts, r.Flows[0].FCT, intact.Flows[0].FCT)
	}
	if f.Frames == 0 || f.Frames != r.port("switch:n1").Lost+r.port("n1").Lost || f.Bytes < f.Frames*60 || r.dropped() != 0 {
		t.Errorf("%+v, ports lost %d and %d", f, r.port("switch:n1").Lost, r.port("n1").Lost)
	}
}

// A flow whose cable stays down fails, and the run ends.
func TestFlowFailsWithoutCable(t *testing.T) {
	r := run(t, "nic: {timeout: 8}\nstar: {nics: 3}", `
traffic: [{pattern: permutation, size: 10MB}]
failures: [{kind: link_down, link: n1, start: 1ms}]`)
	if r.Ended != 1 || r.Failed != 2 || r.Failures[0].Frames == 0 {
		t.Errorf("%d flows ended, %d failed, %+v", r.Ended, r.Failed, r.Failures)
	}
	for _, f := range r.Flows {
		if want := "transport retry counter exceeded"; (f.From == "n1" || f.To == "n1") != (f.Failed != "") || f.Failed != "" && f.Failed != want {
			t.Errorf("flow from %s to %s: %q, want %q", f.From, f.To, f.Failed, want)
		}
	}
}

// With a second spine, all flows end soon after one is lost, whichever it is.
func TestFlowsAvoidSpineThatIsDown(t *testing.T) {
	lost := uint64(0)
	for spine := range 2 {
		r := run(t, "delay: 10us\nnic: {timeout: 8}\nleaf_spine: {leaves: 2, spines: 2, nics: 4, uplink: 40G}", fmt.Sprintf(`
traffic: [{pattern: permutation, size: 5MB}]
failures:
  - {kind: link_down, link: "leaf0:spine%[1]d", start: 1ms}
  - {kind: link_down, link: "spine%[1]d:leaf1", start: 1ms}`, spine))
		if r.Ended != 8 || r.Time > 50e6 {
			t.Errorf("spine %d: %d flows ended, the last after %d ns; %+v", spine, r.Ended, r.Time, r.Failures)
		}
		lost += r.Failures[0].Frames + r.Failures[1].Frames
	}
	if lost == 0 {
		t.Error("neither spine had a frame to lose")
	}
}

// Each lost frame is one of the failure's, and the same ones are lost again with the same seed.
func TestLossIsThatOfSeed(t *testing.T) {
	work := "time: 20ms\ntraffic: [{pattern: incast}]\nfailures: [{kind: loss, link: n0, probability: 0.002, start: 1ms, end: 10ms}]"
	lossOf := func(seed uint64) FailureResult {
		r, err := simulate(t, "switch: {"+ecn+"}\nstar: {nics: 3}", work, Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		if f := r.Failures[0]; f.Frames != r.port("n0").Lost+r.port("switch:n0").Lost || r.NICs.SequenceNAKs == 0 {
			t.Errorf("%+v: n0 has lost %d, the switch %d; %d NAKs", f, r.port("n0").Lost, r.port("switch:n0").Lost, r.NICs.SequenceNAKs)
		}
		return r.Failures[0]
	}
	a, b, c := lossOf(1), lossOf(1), lossOf(2)
	// Half of 10 Gb/s are about 150000 packets a second, and as many ACKs at most.
	if a != b || a == c || a.Frames < 1 || a.Frames > 10 {
		t.Errorf("%+v, %+v, %+v", a, b, c)
	}
}

// Without marks there are no CNPs, and the queue grows.
func TestSwitchThatDoesNotMark(t *testing.T) {
	const topology = "switch: {" + ecn + "}\nstar: {nics: 5}"
	work := "time: 20ms\nwarmup: 10ms\ntraffic: [{pattern: incast}]\n%s"
	with := run(t, topology, fmt.Sprintf(work, ""))
	r := run(t, topology, fmt.Sprintf(work, "failures: [{kind: ecn_off, switch: switch, start: 9ms}]"))
	if r.Failures[0].Unmarked < 1000 || r.NICs.Marked != 0 || r.NICs.CNPs != 0 || r.port("switch:n4").MaxQueue < 4*with.port("switch:n4").MaxQueue {
		t.Errorf("%+v, %d marked, %d CNPs, queue of %d bytes, %d with marks", r.Failures[0], r.NICs.Marked, r.NICs.CNPs,
			r.port("switch:n4").MaxQueue, with.port("switch:n4").MaxQueue)
	}
	r = run(t, topology, fmt.Sprintf(work, "failures: [{kind: ecn_off, switch: switch, start: 9ms, end: 12ms}]"))
	if r.NICs.Marked == 0 || r.NICs.CNPs == 0 {
		t.Errorf("%d marked and %d CNPs after the failure", r.NICs.Marked, r.NICs.CNPs)
	}
}
