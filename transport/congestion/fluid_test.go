package congestion

import (
	"math"
	"math/rand/v2"
	"testing"
)

// A bottleneck is a switch port with RED marking, and what the fluid model of DCQCN needs.
type bottleneck struct {
	capacity         float64 // b/s
	packet           float64 // bytes
	kmin, kmax, pmax float64 // bytes, bytes, share
	delay            int64   // ns, of a packet and of a CNP
}

// mark returns the chance that a packet is marked.
func (b *bottleneck) mark(queue float64) float64 {
	switch {
	case queue <= b.kmin:
		return 0
	case queue >= b.kmax:
		return 1
	}
	return b.pmax * (queue - b.kmin) / (b.kmax - b.kmin)
}

// fixedPoint returns the queue at which n flows are in equilibrium, by the fluid model: with the
// derivatives of RC, RT and alpha zero and RC = C/n, the share p of marked packets solves
//
//	a² alpha = tau² R_AI RC (b+d)(c+e)
//
// where a is the chance of a CNP in an interval tau, b and d are the rates of increases by bytes
// and by time for each packet, and c and e those beyond fast recovery.
func (b *bottleneck) fixedPoint(p *Params, n int) float64 {
	unit := 8 * b.packet
	rc := b.capacity / float64(n) / unit // packets a second
	rai := float64(p.AdditiveIncrease) * 1e6 / unit
	tau, k, t := float64(p.MinTimeBetweenCNPs)/1e6, float64(p.AlphaPeriod)/1e6, float64(p.TimeReset)/1e6
	bytes, f := float64(p.ByteReset)*64/b.packet, float64(p.Threshold)
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
	return b.kmin + low/b.pmax*(b.kmax-b.kmin)
}

// run lets n flows that always have something to send share the port, and returns the mean queue
// and the mean rates of the last part.
func (b *bottleneck) run(p *Params, n int, seed uint64, until int64) (queue float64, rates []float64) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	rps, nps := make([]*ReactionPoint, n), make([]NotificationPoint, n)
	next := make([]int64, n)
	for i := range rps {
		rps[i] = NewReactionPoint(p, int64(b.capacity), 1)
		next[i] = 1 + int64(i)*100
	}
	type cnp struct {
		at   int64
		flow int
	}
	var cnps []cnp
	perByte := 8e9 / b.capacity
	idle := float64(0) // when the queue will be empty
	rates = make([]float64, n)
	from, samples := until/2, 0.0
	for {
		i := 0
		for j := range next {
			if next[j] < next[i] {
				i = j
			}
		}
		now := next[i]
		if len(cnps) > 0 && cnps[0].at <= now {
			rps[cnps[0].flow].Notified(cnps[0].at)
			cnps = cnps[1:]
			continue
		}
		if now >= until {
			break
		}
		if ok, at := rps[i].Allowance(now); ok == 0 {
			next[i] = at
			continue
		}
		rps[i].Sent(now, int(b.packet))
		next[i] = now + int64(b.packet*perByte)
		arrives := float64(now + b.delay)
		backlog := max(0, idle-arrives) / perByte
		idle = max(idle, arrives) + b.packet*perByte
		if leaves := int64(idle); nps[i].Received(p, rnd.Float64() < b.mark(backlog), leaves) {
			nps[i].Sent(p, leaves)
			cnps = append(cnps, cnp{leaves + b.delay, i})
		}
		if now >= from {
			queue += backlog
			samples++
			rates[i] += 8 * b.packet
		}
	}
	for i := range rates {
		rates[i] /= float64(until-from) / 1e9
	}
	return queue / samples, rates
}

// The model describes small changes around its fixed point. So the parameters are the publication's
// but for R_AI, 10 Mb/s, and Pmax and the port's rate: with these the queue does not become empty,
// nor longer than Kmax, when the rates of few flows go up and down.
func TestFluidModelFixedPoint(t *testing.T) {
	p := Defaults()
	p.AdditiveIncrease = 10
	for _, c := range []struct {
		flows          int
		capacity, pmax float64
	}{{2, 5e9, 0.05}, {8, 40e9, 0.01}, {32, 40e9, 0.05}} {
		n := c.flows
		b := bottleneck{capacity: c.capacity, packet: 1000, kmin: 5e3, kmax: 200e3, pmax: c.pmax, delay: 1000}
		want := b.fixedPoint(&p, n)
		queue, rates := b.run(&p, n, 1, 400e6)
		t.Logf("%d flows: mean queue %.1f kB, fixed point %.1f kB", n, queue/1e3, want/1e3)
		if math.Abs(queue-want) > 0.15*want {
			t.Errorf("%d flows: mean queue %.1f kB, want %.1f kB by the fluid model", n, queue/1e3, want/1e3)
		}
		for i, r := range rates {
			if fair := c.capacity / float64(n); math.Abs(r-fair) > 0.1*fair {
				t.Errorf("%d flows: flow %d has %.2f Gb/s, want %.2f", n, i, r/1e9, fair/1e9)
			}
		}
	}
}
