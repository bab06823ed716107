package congestion

import "math"

// A ReactionPoint is the rate of one queue pair. It is made when the first CNP arrives, from when
// on each packet of the queue pair is counted, until the rate is that of the port again.
//
// Between two events the rate is constant. Those that the time causes, the timer and the decrease
// of alpha, are made up for by the next call.
type ReactionPoint struct {
	p    *Params
	line float64 // rate of the port, b/s

	rate, target float64 // RC and RT of the publication, b/s
	alpha        float64 // estimate of congestion, 0 to 1

	now     int64   // up to which the events are made up for
	alphaAt int64   // since when alpha has not changed
	timerAt int64   // when the timer began
	cutAt   int64   // when a CNP last reduced the rate
	bytes   uint64  // sent since the byte counter last increased
	byTime  uint32  // increases by time since the last CNP
	byBytes uint32  // increases by bytes since the last CNP
	debt    float64 // bits sent ahead of the rate
	limited bool    // the rate is below the highest
}

// Sizes of a burst.
// maxBurst bounds a burst at any rate, in bytes, and so a super-packet.
const maxBurst = 64 << 10

// maxEvents bounds the timer events that one call makes up for. A queue pair that was idle for
// longer recovers over several calls.
const maxEvents = 4096

// full is the share of the highest rate from which on a queue pair counts as not limited: fast
// recovery only approaches it.
const full = 1 - 1.0/1024

// NewReactionPoint returns that of a queue pair without limit; the rate of the port is in b/s.
func NewReactionPoint(p *Params, line int64, now int64) *ReactionPoint {
	r := &ReactionPoint{p: p, line: float64(line), now: now, cutAt: math.MinInt64}
	r.rate = p.highest(r.line)
	r.target = r.rate
	r.alpha = float64(p.InitialAlpha) / 1024
	r.alphaAt = now
	return r
}

// Limited reports whether the queue pair may only send as Allowance says.
func (r *ReactionPoint) Limited() bool { return r.limited }

// Rate returns the current rate in b/s.
func (r *ReactionPoint) Rate(now int64) int64 {
	r.advance(now)
	return int64(r.rate)
}

// Window implements Controller: there is no limit but the rate.
func (r *ReactionPoint) Window(int) uint64 { return unlimited }

// Replied and Lost implement Controller: only CNPs show congestion.

func (r *ReactionPoint) Replied(int64, int64) {}
func (r *ReactionPoint) Lost(int64)           {}

// Notified handles a CNP.
func (r *ReactionPoint) Notified(now int64) {
	r.advance(now)
	p := r.p
	r.decayAlpha(now)
	first := r.cutAt == math.MinInt64
	if first || now-r.cutAt >= microseconds(p.MonitorPeriod) {
		r.cut(first)
		r.cutAt = now
	}
	g := 1 - float64(p.AlphaWeight)/1024
	r.alpha = (1-g)*r.alpha + g
	r.alphaAt, r.timerAt = now, now
	r.bytes, r.byTime, r.byBytes = 0, 0, 0
}

// cut reduces the rate.
func (r *ReactionPoint) cut(first bool) {
	p := r.p
	if first || p.ClampTarget != 0 || r.byBytes > 0 || r.byTime > 0 && p.ClampTargetAfterTime != 0 {
		r.target = r.rate
	}
	r.rate *= math.Max(1-r.alpha*1024/float64(uint32(1)<<p.DecreaseLog), float64(p.MinDecrease)/100)
	if first && p.FirstRate != 0 {
		r.rate = mbps(p.FirstRate)
	}
	r.rate = math.Min(math.Max(r.rate, mbps(p.MinRate)), r.p.highest(r.line))
	if !r.limited {
		r.limited, r.debt = true, 0
	}
}

// decayAlpha decreases alpha once for each period without a CNP.
func (r *ReactionPoint) decayAlpha(now int64) {
	period := microseconds(r.p.AlphaPeriod)
	if n := (now - r.alphaAt) / period; n > 0 {
		r.alpha *= math.Pow(float64(r.p.AlphaWeight)/1024, float64(n))
		r.alphaAt += n * period
	}
}

// Sent counts bytes that left at now, with all their headers.
func (r *ReactionPoint) Sent(now int64, bytes int) {
	r.advance(now)
	if !r.limited {
		return
	}
	r.debt += 8 * float64(bytes)
	r.bytes += uint64(bytes)
	for unit := uint64(r.p.ByteReset) * byteUnit; r.bytes >= unit && r.limited; r.bytes -= unit {
		r.byBytes++
		r.increase()
	}
}

// Allowance returns how many bytes the queue pair may send at now, or, if that is 0, when it may
// send next. A CNP may delay that time.
func (r *ReactionPoint) Allowance(now int64) (bytes int, next int64) {
	r.advance(now)
	if !r.limited {
		return maxBurst, 0
	}
	if r.debt > 0 {
		return 0, r.paid()
	}
	return min(1+int((r.rate*float64(r.p.Burst())/1e9-r.debt)/8), maxBurst), 0
}

// paid returns when the debt will be paid if no CNP arrives.
func (r *ReactionPoint) paid() int64 {
	future := *r
	for range maxEvents {
		at := future.now + int64(math.Ceil(future.debt/future.rate*1e9))
		if at <= future.now {
			return future.now + 1
		}
		event := future.nextEvent()
		if !future.limited || at <= event {
			return at
		}
		future.advance(event)
		if future.debt <= 0 {
			return event
		}
	}
	return future.now
}

// nextEvent returns when the timer expires.
func (r *ReactionPoint) nextEvent() int64 { return r.timerAt + microseconds(r.p.TimeReset) }

// advance makes up for the events until now.
func (r *ReactionPoint) advance(now int64) {
	for n := 0; r.limited && n < maxEvents; n++ {
		at := r.nextEvent()
		if at > now {
			break
		}
		r.pay(at)
		r.timerAt = at
		r.byTime++
		r.increase()
	}
	r.pay(now)
}

// pay reduces the debt by what the rate allows until a time. What is not used is not saved beyond a
// burst, which makes up for an engine that wakes up late.
func (r *ReactionPoint) pay(to int64) {
	if to <= r.now {
		return
	}
	if !r.limited {
		r.now = to
		return
	}
	r.debt = math.Max(r.debt-r.rate*float64(to-r.now)/1e9, -r.rate*float64(r.p.Burst())/1e9)
	r.now = to
}

// increase increases the rate after an event of the timer or the byte counter.
func (r *ReactionPoint) increase() {
	f := r.p.Threshold
	switch low := min(r.byTime, r.byBytes); {
	case max(r.byTime, r.byBytes) < f: // fast recovery
	case low > f: // hyper increase
		r.target += float64(low-f) * mbps(r.p.HyperIncrease)
	default:
		r.target += mbps(r.p.AdditiveIncrease)
	}
	top := r.p.highest(r.line)
	r.target = math.Min(r.target, top)
	r.rate = math.Min((r.rate+r.target)/2, top)
	if r.rate >= full*top {
		r.rate, r.target, r.limited = top, top, false
	}
}
