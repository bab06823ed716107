package congestion

import "math"

// A swift is the controller of the algorithm of that name. The publication has a window, and paces
// when it is below a packet. This has a rate, by which it always paces. The window follows from it:
// what the rate carries in the target delay.
//
// Each reply changes the rate. The transport times one request at a time, so that there is one in a
// round trip.
type swift struct {
	p    *Params
	line float64 // rate of the port, b/s

	rate      float64 // b/s
	roundTrip int64   // the last one; 0: there was none
	cutAt     int64   // when the rate was last reduced
	pacer     Pacer
}

// increases is in how many round trips a rate rises from 0 to the highest, if no step is set.
const increases = 256

// newSwift returns the controller of a queue pair that has sent nothing; the rate of the port is in
// b/s.
func newSwift(p *Params, line int64) *swift {
	return &swift{p: p, line: float64(line), rate: float64(line), cutAt: math.MinInt64 / 2}
}

// Limited implements Controller. The rate of the port is a limit, too: a queue pair then forms no
// queue in its own NIC. One without replies, which sends READ responses, has no limit.
func (s *swift) Limited() bool { return s.roundTrip != 0 }

// Rate implements Controller.
func (s *swift) Rate(int64) int64 { return int64(s.bounded()) }

// bounded returns the rate within the bounds, which may have been set after it.
func (s *swift) bounded() float64 {
	return math.Min(math.Max(s.rate, mbps(s.p.MinRate)), s.p.highest(s.line))
}

// Allowance implements Controller.
func (s *swift) Allowance(now int64) (bytes int, next int64) {
	return s.pacer.Allowance(now, s.Rate(now), s.p.Burst())
}

// Sent implements Controller.
func (s *swift) Sent(now int64, bytes int) { s.pacer.Sent(now, bytes, s.Rate(now), s.p.Burst()) }

// Window implements Controller. As long as replies take longer than the target delay, fewer packets
// leave than the rate allows: a queue pair does not add to a queue that has not replied yet.
func (s *swift) Window(mtu int) uint64 {
	bytes := s.bounded() / 8e9 * s.target()
	return max(uint64(math.Ceil(bytes/float64(mtu))), MinWindow)
}

// Notified implements Controller: CNPs have no effect.
func (s *swift) Notified(int64) {}

// Replied implements Controller.
func (s *swift) Replied(now, roundTrip int64) {
	s.roundTrip = roundTrip
	over := float64(roundTrip) - s.target()
	if over < 0 {
		s.rate = s.bounded() + s.step()
		return
	}
	s.decrease(now, float64(s.p.DelayWeight)/1024*over/float64(roundTrip))
}

// Lost implements Controller.
func (s *swift) Lost(now int64) { s.decrease(now, 1) }

// target returns how long a round trip should take at most, in nanoseconds.
func (s *swift) target() float64 {
	flows := s.p.highest(s.line) / s.bounded() // that share the port, if all have this rate
	return 1000 * (float64(s.p.TargetDelay) + float64(s.p.FlowDelay)*(math.Sqrt(flows)-1))
}

// step returns by how much a reply in time increases the rate, in b/s.
func (s *swift) step() float64 {
	if s.p.DelayIncrease != 0 {
		return mbps(s.p.DelayIncrease)
	}
	return s.p.highest(s.line) / increases
}

// decrease reduces the rate by a share of it, at most once in a round trip.
func (s *swift) decrease(now int64, share float64) {
	if now-s.cutAt < s.roundTrip {
		return
	}
	s.rate = s.bounded() * (1 - math.Min(share, float64(s.p.MaxDecrease)/100))
	s.cutAt = now
}
