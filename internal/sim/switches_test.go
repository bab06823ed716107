package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"softroce/internal/network"
	"softroce/packet"
	"softroce/transport/congestion"
)

func TestSeedsDrawEveryKindOfSwitches(t *testing.T) {
	want := []string{"drops", "ecn", "pfc", "lossless", "weights", "several classes", "ring", "down", "loss", "no marks", "two NICs", "six NICs"}
	for _, name := range congestion.Algorithms() {
		want = append(want, "algorithm "+name)
	}
	for n := range 5 {
		want = append(want, fmt.Sprint(n+1, " switches"))
	}
	want = slices.DeleteFunc(want, func(w string) bool { return w == "3 switches" })
	drawn := map[string]int{}
	for seed := range uint64(2000) {
		p := ProfileOf(seed)
		s := p.Switches
		if s == nil {
			continue
		}
		if err := s.Topology.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		c := &s.Topology.Switch
		switches := 0
		for _, n := range s.Topology.Nodes {
			if n.Switch {
				switches++
			}
		}
		kinds := map[network.FailureKind]bool{}
		for _, f := range s.Failures {
			kinds[f.Kind] = true
		}
		for what, is := range map[string]bool{
			"drops": c.Buffer < 1<<16, "ecn": c.ECN != nil, "pfc": c.PFC != nil, "lossless": s.lossless(), "ring": s.Cyclic,
			"weights": c.Weights != [packet.Priorities]int{}, "several classes": len(s.TClasses) > 1,
			"down": kinds[network.LinkDown], "loss": kinds[network.Loss], "no marks": kinds[network.ECNOff],
			"two NICs": p.NICs == 2, "six NICs": p.NICs == 6,
			"algorithm " + s.Congestion.Algorithm.String(): true, fmt.Sprint(switches, " switches"): true,
		} {
			if is {
				drawn[what]++
			}
		}
	}
	for _, what := range want {
		if drawn[what] < 10 {
			t.Errorf("%s: %d of 2000 seeds", what, drawn[what])
		}
	}
	for _, what := range slices.Sorted(maps.Keys(drawn)) {
		if !slices.Contains(want, what) {
			t.Errorf("%s is drawn", what)
		}
	}
}

// pausing returns a profile whose NICs send much through a network of small lossless queues.
func pausing(seed uint64, draw func(*Switches, int, *rand.Rand)) Profile {
	p := ProfileOf(seed).withoutFaults().withoutFailures()
	p.Slices, p.NICs, p.Pairs, p.XRC, p.PerQueue, p.MaxMessage, p.Depth, p.LongReads, p.OneWay = 1, 5, 40, 0, 8, 8192, 64, 0, false
	p.Operations, p.Windows, p.UC, p.UD, p.Errors, p.LateRecv, p.Rate, p.Buffer = writes[:1], false, 0, 0, 0, 0, 0, 0
	s := &Switches{TClasses: []uint8{3 << 5}, Congestion: congestion.Defaults()}
	s.Congestion.Algorithm = congestion.None
	draw(s, p.NICs, rand.New(rand.NewPCG(seed, 5)))
	for i := range s.Topology.Links {
		s.Topology.Links[i].Rate = 10e9
	}
	s.Topology.Switch = network.SwitchConfig{Buffer: 1 << 20, Queue: 1 << 20, PFC: &network.PFC{XOff: 10_000, XOn: 5000, Headroom: s.headroom()}}
	s.Topology.Switch.PFC.Priorities[3] = true
	p.Switches = s
	return p
}

// A PFC deadlock is reported, and ended by a cable that is down for a moment.
func TestDeadlockIsReported(t *testing.T) {
	for _, seed := range []uint64{4, 5, 6} { // not every seed has one
		r, err := RunProfile(seed, pausing(seed, (*Switches).drawRing))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if r.Deadlocks == nil || len(r.Deadlocks[0].Cycle) != 5 || r.Failed > 0 || r.Ports.Lost == 0 {
			t.Errorf("seed %d: %d deadlocks, %d queue pairs failed, %d frames were lost", seed, len(r.Deadlocks), r.Failed, r.Ports.Lost)
		}
	}
}

func TestPausesWithoutCircleEnd(t *testing.T) {
	for seed := range uint64(3) {
		for i, draw := range []func(*Switches, int, *rand.Rand){(*Switches).drawStar, (*Switches).drawTwoSwitches, (*Switches).drawLeafSpine} {
			r, err := RunProfile(seed, pausing(seed, draw))
			if err != nil {
				t.Fatalf("seed %d, %d: %v", seed, i, err)
			}
			if r.Deadlocks != nil || r.Failed > 0 || r.Ports.Dropped > 0 || r.Ports.PausesSent == 0 {
				t.Errorf("seed %d, %d: %d deadlocks, %d queue pairs failed, %d frames were dropped, %d pauses",
					seed, i, len(r.Deadlocks), r.Failed, r.Ports.Dropped, r.Ports.PausesSent)
			}
		}
	}
}

// The hash of a run covers what switches do, and what NICs do about it.
func TestRunsWithSwitchesRepeat(t *testing.T) {
	n := 0
	for seed := range uint64(200) {
		if ProfileOf(seed).Switches == nil {
			continue
		}
		var hashes [2]uint64
		for i := range hashes {
			r, err := Run(seed)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			hashes[i] = r.Hash
		}
		if n++; hashes[0] != hashes[1] {
			t.Errorf("invariant 6: seed %d: two runs differ", seed)
		}
	}
	if n < 20 {
		t.Errorf("%d seeds have switches", n)
	}
}

func TestLosslessNetworkNeedsNoRecovery(t *testing.T) {
	var pauses uint64
	for seed := range uint64(100) {
		p := ProfileOf(seed).withoutFaults().withoutFailures()
		p.Errors, p.LateRecv = 0, 0
		if p.Switches == nil || p.Switches.Cyclic {
			continue
		}
		r, err := RunProfile(seed, p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		pauses += r.Ports.PausesSent
		for _, c := range r.Counters {
			if c.AdaptiveRetransmissions+c.PacketSeqErr+c.ImpliedNAK+c.LocalACKTimeout > 0 || r.Failed > 0 {
				t.Errorf("seed %d: %d early retransmissions, %d sequence NAKs, %d implied, %d timeouts, %d QPs failed",
					seed, c.AdaptiveRetransmissions, c.PacketSeqErr, c.ImpliedNAK, c.LocalACKTimeout, r.Failed)
			}
		}
	}
	if pauses == 0 {
		t.Error("no network paused anything")
	}
}
