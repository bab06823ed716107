package sim

import (
	"fmt"
	"slices"
	"strings"

	"softroce/internal/network"
)

// buildSwitches makes the network of switches.
func (sim *simulation) buildSwitches(seed uint64) (err error) {
	s := sim.profile.Switches
	if err := s.Topology.Check(); err != nil {
		return err
	}
	if sim.network, err = network.New(&s.Topology, seed); err != nil {
		return err
	}
	for _, f := range s.Failures {
		sim.network.Fail(f)
	}
	return nil
}

// portStats returns the sum of what all ports have counted.
func (sim *simulation) portStats() (sum network.PortStats) {
	for _, p := range sim.network.Ports() {
		s := sim.network.Stats(p)
		sum.Marked += s.Marked
		sum.Dropped += s.Dropped
		sum.Lost += s.Lost
		sum.PausesSent += s.PausesSent
	}
	return sum
}

// checkTClass checks the traffic class with which a datagram arrived.
func (sim *simulation) checkTClass(got uint8) error {
	if sim.network == nil {
		return nil
	}
	for _, t := range sim.profile.Switches.TClasses {
		marked := t|3 == got && (t&3 != 0 || sim.profile.Delay > 0) // a fault rule marks any packet
		if t == got || marked {
			return nil
		}
	}
	return fmt.Errorf("a datagram has traffic class %#02x, sent were %#02x", got, sim.profile.Switches.TClasses)
}

// deadlockRepair is how long a cable is down to end a deadlock, in ns.
const deadlockRepair = 1000

// endDeadlock looks for ports that are paused forever, if frames have moved since it did last, and
// none does now or time is to jump. It takes down the cable of one of them for a moment, as the
// watchdog of a switch would discard what it holds, and reports whether it did.
func (sim *simulation) endDeadlock(jump bool) (ended bool, err error) {
	n := sim.network
	if n == nil || n.Hops() == sim.atRest || n.Next() != 0 && !jump {
		return false, nil
	}
	sim.atRest = n.Hops()
	d := n.Deadlock()
	if d == nil {
		return false, nil
	}
	if sim.profile.Switches.acyclic() {
		return false, fmt.Errorf("invariant 14: at %d ns, ports wait for each other in a network without a circle: %s",
			sim.now, strings.Join(slices.Concat(d.Cycle, d.Waiting), ", "))
	}
	sim.deadlocks = append(sim.deadlocks, d)
	sim.atRest = 0
	for i, p := range n.Ports() {
		if p.Name == d.Cycle[0] {
			sim.fabric.Fail(network.Failure{Kind: network.LinkDown, Link: i / 2, Start: sim.now, End: sim.now + deadlockRepair})
		}
	}
	return true, nil
}

// checkSwitches checks the end of the run, and adds what the ports have done to its hash.
func (sim *simulation) checkSwitches() error {
	if sim.network == nil {
		return nil
	}
	if n := sim.portStats().Dropped; n > 0 && sim.profile.Switches.lossless() && sim.deadlocks == nil {
		return fmt.Errorf("invariant 13: switches dropped %d frames of lossless priorities", n)
	}
	for _, p := range sim.network.Ports() {
		s := sim.network.Stats(p)
		sim.hashWords(s.Frames, s.Bytes, s.Marked, s.Dropped, s.Lost, s.PausesSent, uint64(s.MaxQueue), uint64(s.Paused))
	}
	return nil
}
