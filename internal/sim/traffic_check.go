package sim

import (
	"fmt"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
)

// checkTraffic checks that nothing is sent again without a reason, and not too much with one.
func (sim *simulation) checkTraffic() error {
	p := &sim.profile
	if p.Disruptions > 0 || p.Errors > 0 || sim.failed() > 0 {
		return nil // a peer that is gone or in error does not reply
	}
	lossless := p.Loss+p.Duplicate+p.Reorder+p.Corrupt+p.Delay == 0
	if s := p.Switches; s != nil && (len(s.Failures) > 0 || sim.deadlocks != nil || sim.portStats().Dropped > 0) {
		return nil // packets were lost, or overtook others on another path
	}
	for _, g := range sim.programs {
		if g.Device.Counters().Drops[transport.DropMemoryWait] > 0 {
			return nil // more packets waited for memory that blocks than a NIC keeps
		}
	}
	for i, g := range sim.programs {
		c := g.Device.Counters()
		if c.TxStalled > 0 {
			return nil // the peer did not receive for so long that frames were discarded
		}
		again := c.LocalACKTimeout + c.AdaptiveRetransmissions + c.PacketSeqErr + c.ImpliedNAK
		peerStalled := sim.stalled.ever && len(sim.engines) > 1 && (p.Slices > 1 || sim.stalled.engine != i)
		if lossless && again > 0 && !peerStalled && !sim.peerBlocked(g.Device) {
			return fmt.Errorf("invariant 9: NIC %d retransmitted without loss: %d timeouts, %d sequence NAKs, %d implied NAKs",
				i, c.LocalACKTimeout+c.AdaptiveRetransmissions, c.PacketSeqErr, c.ImpliedNAK)
		}
	}
	onlyLoss := p.Duplicate+p.Reorder+p.Corrupt+p.Delay+p.LateRecv == 0 && !sim.stalled.ever
	if sent, needed := sim.sent(), sim.needed(); onlyLoss && p.Loss <= 0.01 && sent > 2*needed+lossSlack {
		return fmt.Errorf("invariant 10: %d packets were sent, %d are needed", sent, needed)
	}
	return nil
}

// lossSlack is what may be sent in addition in a run that is too short for its losses to be near
// their average. TestSeeds checks the average of all runs.
const lossSlack = 1000

// failed returns how many queue pairs of RC and XRC are in error.
func (sim *simulation) failed() (n int) {
	for _, x := range sim.pairs {
		for _, e := range x.endpoints {
			if e.State() == ib.QPSErr {
				n++
			}
		}
	}
	return n
}

// sent returns how many packets of RC and XRC with data, or an atomic's result, the NICs have sent.
func (sim *simulation) sent() (n int) {
	for _, ports := range sim.ports {
		for _, l := range ports {
			n += l.data
		}
	}
	return n
}

// needed returns how many such packets the completed work requests need.
func (sim *simulation) needed() (n int) {
	for _, x := range sim.pairs {
		for _, e := range x.endpoints {
			for _, k := range e.sends {
				switch {
				case !k.succeeded || k.op == ib.WRBindMW || k.op == ib.WRLocalInv:
				case k.op == ib.WRAtomicFetchAndAdd || k.op == ib.WRAtomicCmpAndSwp:
					n++
				default:
					n += packet.PSNCount(uint32(k.src.n), e.mtu)
				}
			}
		}
	}
	return n
}
