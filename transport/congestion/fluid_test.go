package congestion_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"softroce/transport/congestion"
	"softroce/transport/congestion/fluid"
)

// share lets n flows that always have something to send share a port, and returns the mean queue
// and the mean rates of the last part. Packets and CNPs have a delay in ns.
func share(b *fluid.Bottleneck, delay int64, p *congestion.Params, n int, seed uint64, until int64) (queue float64, rates []float64) {
	rnd := rand.New(rand.NewPCG(seed, 2))
	rps, nps := make([]*congestion.ReactionPoint, n), make([]congestion.NotificationPoint, n)
	next := make([]int64, n)
	for i := range rps {
		rps[i] = congestion.NewReactionPoint(p, int64(b.Capacity), 1)
		next[i] = 1 + int64(i)*100
	}
	type cnp struct {
		at   int64
		flow int
	}
	var cnps []cnp
	perByte := 8e9 / b.Capacity
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
		rps[i].Sent(now, int(b.Packet))
		next[i] = now + int64(b.Packet*perByte)
		arrives := float64(now + delay)
		backlog := max(0, idle-arrives) / perByte
		idle = max(idle, arrives) + b.Packet*perByte
		if leaves := int64(idle); nps[i].Received(p, rnd.Float64() < b.Mark(backlog), leaves) {
			nps[i].Sent(p, leaves)
			cnps = append(cnps, cnp{leaves + delay, i})
		}
		if now >= from {
			queue += backlog
			samples++
			rates[i] += 8 * b.Packet
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
	p := congestion.Defaults()
	p.AdditiveIncrease = 10
	for _, c := range []struct {
		flows          int
		capacity, pmax float64
	}{{2, 5e9, 0.05}, {8, 40e9, 0.01}, {32, 40e9, 0.05}} {
		n := c.flows
		b := fluid.Bottleneck{Capacity: c.capacity, Packet: 1000, Kmin: 5e3, Kmax: 200e3, Pmax: c.pmax}
		want := b.FixedPoint(&p, n)
		queue, rates := share(&b, 1000, &p, n, 1, 400e6)
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
