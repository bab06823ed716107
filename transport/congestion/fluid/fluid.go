// Package fluid is the fluid model of DCQCN (Zhu et al., SIGCOMM 2015, section 5.1) in equilibrium:
// the queue that a number of flows without an end have in front of the port that they share. Tests
// compare with it.
package fluid

import (
	"math"

	"softroce/transport/congestion"
)

// A Bottleneck is the port of a switch with RED marking.
type Bottleneck struct {
	Capacity         float64 // b/s
	Packet           float64 // bytes
	Kmin, Kmax, Pmax float64 // bytes, bytes, share
}

// Mark returns the chance that a packet is marked.
func (b *Bottleneck) Mark(queue float64) float64 {
	switch {
	case queue <= b.Kmin:
		return 0
	case queue >= b.Kmax:
		return 1
	}
	return b.Pmax * (queue - b.Kmin) / (b.Kmax - b.Kmin)
}

// FixedPoint returns the queue at which n flows are in equilibrium: with the derivatives of RC, RT
// and alpha zero and RC = C/n, the share p of marked packets solves
//
//	a² alpha = tau² R_AI RC (b+d)(c+e)
//
// where a is the chance of a CNP in an interval tau, b and d are the rates of increases by bytes
// and by time for each packet, and c and e those beyond fast recovery. A queue that is longer than
// Kmax means that the model has no fixed point: such a queue would mark all packets.
func (b *Bottleneck) FixedPoint(p *congestion.Params, n int) float64 {
	const unitOfByteReset, mega = 64, 1e6
	unit := 8 * b.Packet
	rc := b.Capacity / float64(n) / unit // packets a second
	rai := float64(p.AdditiveIncrease) * mega / unit
	tau, k, t := float64(p.MinTimeBetweenCNPs)/mega, float64(p.AlphaPeriod)/mega, float64(p.TimeReset)/mega
	bytes, f := float64(p.ByteReset)*unitOfByteReset/b.Packet, float64(p.Threshold)
	excess := func(m float64) float64 {
		none := func(packets float64) float64 { return math.Pow(1-m, packets) } // of so many is marked
		a, alpha := 1-none(tau*rc), 1-none(k*rc)
		byBytes, byTime := m/(math.Pow(1-m, -bytes)-1), m/(math.Pow(1-m, -t*rc)-1)
		beyond := none(f*bytes)*byBytes + none(f*t*rc)*byTime
		return a*a*alpha - tau*tau*rai*rc*(byBytes+byTime)*beyond
	}
	low, high := 1e-9, 0.5
	for range 200 {
		if mid := (low + high) / 2; excess(mid) < 0 {
			low = mid
		} else {
			high = mid
		}
	}
	return b.Kmin + low/b.Pmax*(b.Kmax-b.Kmin)
}
