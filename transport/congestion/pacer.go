package congestion

import "math"

// A Pacer spreads the packets of one queue pair over time, at rates that its program has chosen:
// that of the queue pair (ibv_modify_qp_rate_limit), and that of each packet's address vector
// (static_rate). It is independent of congestion. The zero value has sent nothing.
//
// A burst is how much may be sent at once, as a time at the rate, in nanoseconds: an engine cannot
// wake up for each packet. As much is saved for one that wakes up late, so that twice that may
// follow a pause. A packet may be sent in any case.
type Pacer struct {
	now  int64
	debt float64 // nanoseconds that the packets sent so far take at their rates, after now
}

// Sent counts bytes that left at now and may take no less time than at a rate in b/s.
func (p *Pacer) Sent(now int64, bytes int, rate, burst int64) {
	p.advance(now, burst)
	p.debt += float64(bytes) * 8e9 / float64(rate)
}

// Allowance returns how many bytes may be sent at now at a rate in b/s or, if that is 0, when the
// next may be sent.
func (p *Pacer) Allowance(now, rate, burst int64) (bytes int, next int64) {
	p.advance(now, burst)
	if p.debt > 0 {
		return 0, now + int64(math.Ceil(p.debt))
	}
	return min(1+int((float64(burst)-p.debt)*float64(rate)/8e9), maxBurst), 0
}

// advance makes up for the time until now. What is not used is not saved beyond a burst.
func (p *Pacer) advance(now, burst int64) {
	p.debt = max(p.debt-float64(now-p.now), -float64(burst))
	p.now = now
}
