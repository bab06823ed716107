package congestion

import (
	"math"
	"math/rand/v2"
	"testing"
)

const us = 1000

// An event of a sequence: what happens at a time.
type event struct {
	at  int64 // µs
	do  string
	arg int // bytes that are sent, or how often
}

// Each sequence ends with a rate that is calculated here from the definition: a CNP sets RT = RC,
// RC = RC(1-alpha/2), alpha = (1-g)alpha + g; alpha = (1-g)alpha after K without one; RC =
// (RT+RC)/2 after each increase, which raises RT beyond fast recovery.
func TestRatesAfterEvents(t *testing.T) {
	const line, g = 40e9, 4.0 / 1024
	const a0 = 1023.0 / 1024
	cut := func(rate, alpha float64) float64 { return rate * (1 - alpha/2) }
	next := func(alpha float64) float64 { return (1-g)*alpha + g }
	after := func(alpha float64, n int) float64 {
		for range n {
			alpha *= 1 - g
		}
		return alpha
	}
	halves := func(rate, target float64, n int) float64 {
		for range n {
			rate = (rate + target) / 2
		}
		return rate
	}
	first := cut(line, a0)
	for _, c := range []struct {
		name   string
		change func(*Params)
		events []event
		want   float64
	}{
		{"without a CNP", nil, []event{{1000, "sent", 1 << 30}}, line},
		{"the first CNP", nil, []event{{10, "cnp", 1}}, first},
		{"the first CNP sets a rate", func(p *Params) { p.FirstRate = 5000 }, []event{{10, "cnp", 1}}, 5e9},
		{"the second CNP does not", func(p *Params) { p.FirstRate = 5000 }, []event{{10, "cnp", 1}, {20, "cnp", 1}}, cut(5e9, next(a0))},
		{"two CNPs at once reduce it once", nil, []event{{10, "cnp", 2}}, first},
		{"two CNPs beyond the monitor period", nil, []event{{10, "cnp", 1}, {14, "cnp", 1}}, cut(first, next(a0))},
		{"alpha decreases without CNPs", func(p *Params) { p.TimeReset = 100_000 },
			[]event{{10, "cnp", 1}, {10 + 3*55, "cnp", 1}}, cut(first, after(next(a0), 3))},
		{"alpha of a period that is not over", func(p *Params) { p.TimeReset = 100_000 },
			[]event{{10, "cnp", 1}, {10 + 3*55 - 1, "cnp", 1}}, cut(first, after(next(a0), 2))},
		{"one period of the timer", nil, []event{{10, "cnp", 1}, {65, "look", 0}}, halves(first, line, 1)},
		{"one µs less", nil, []event{{10, "cnp", 1}, {64, "look", 0}}, first},
		{"fast recovery by time", nil, []event{{10, "cnp", 1}, {10 + 4*55, "look", 0}}, halves(first, line, 4)},
		{"fast recovery by bytes", nil, []event{{10, "cnp", 1}, {11, "sent", 30e6}}, halves(first, line, 3)},
		{"a CNP sets the target", nil, []event{{10, "cnp", 1}, {20, "cnp", 1}, {75, "look", 0}}, halves(cut(first, next(a0)), first, 1)},
		{"or not, before an increase", func(p *Params) { p.ClampTarget = 0 },
			[]event{{10, "cnp", 1}, {20, "cnp", 1}, {75, "look", 0}}, halves(cut(first, next(a0)), line, 1)},
		{"but after one", func(p *Params) { p.ClampTarget = 0 },
			[]event{{10, "cnp", 1}, {20, "sent", 10e6}, {21, "cnp", 1}, {76, "look", 0}},
			halves(cut(halves(first, line, 1), next(a0)), halves(first, line, 1), 1)},
		{"time is not one without ati", func(p *Params) { p.ClampTarget, p.ClampTargetAfterTime, p.AlphaPeriod = 0, 0, 1000 },
			[]event{{10, "cnp", 1}, {65, "cnp", 1}, {120, "look", 0}}, halves(cut(halves(first, line, 1), next(a0)), line, 1)},
		// From 1 Gb/s, which is below the target by far: after four periods of fast recovery the
		// target rises by 40 Mb/s each time.
		{"additive increase", func(p *Params) { p.FirstRate = 1000 }, []event{{10, "cnp", 1}, {20, "cnp", 1}, {20 + 6*55, "look", 0}},
			halves(halves(halves(cut(1e9, next(a0)), 1e9, 4), 1.04e9, 1), 1.08e9, 1)},
		// The sixth increase of both kinds is the first hyper increase.
		{"hyper increase", func(p *Params) { p.FirstRate = 1000 }, []event{{10, "cnp", 1}, {20, "cnp", 1}, {20 + 6*55, "sent", 60e6}},
			func() float64 {
				rate, target := halves(cut(1e9, next(a0)), 1e9, 4), 1e9
				for range 2 + 5 { // by time, and then by bytes
					target += 40e6
					rate = (rate + target) / 2
				}
				return (rate + target + 400e6) / 2
			}()},
		{"the least share that a CNP leaves", func(p *Params) { p.MinDecrease = 80 }, []event{{10, "cnp", 1}}, 0.8 * line},
		{"gd 12 halves the reduction", func(p *Params) { p.DecreaseLog = 12 }, []event{{10, "cnp", 1}}, line * (1 - a0/4)},
		{"the lowest rate", func(p *Params) { p.MinRate = 30_000 }, []event{{10, "cnp", 1}}, 30e9},
		{"the highest rate", func(p *Params) { p.MaxRate = 10_000 }, []event{{10, "cnp", 1}, {1e6, "look", 0}}, 10e9},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Defaults()
			if c.change != nil {
				c.change(&p)
			}
			r := NewReactionPoint(&p, line, 1)
			now := int64(0)
			for _, e := range c.events {
				now = e.at * us
				switch e.do {
				case "cnp":
					for range e.arg {
						r.Notified(now)
					}
				case "sent":
					r.Sent(now, e.arg)
				}
			}
			if got := float64(r.Rate(now)); math.Abs(got-c.want) > 2 {
				t.Errorf("rate %.0f, want %.0f", got, c.want)
			}
		})
	}
}

// eager is the reaction point as the publication describes it: everything happens at its time, in
// steps of a microsecond.
type eager struct {
	rate, target, alpha, debt float64
	quiet, timer              int // µs since the last change of alpha, and of the timer
	sent                      int
	t, b                      int
	limited                   bool
}

func (e *eager) tick(line float64) {
	if e.quiet++; e.quiet == 55 {
		e.quiet = 0
		e.alpha *= 1020.0 / 1024
	}
	if !e.limited {
		return
	}
	e.debt = max(e.debt-e.rate/1e6, -e.rate*20/1e6)
	if e.timer++; e.timer == 55 {
		e.timer = 0
		e.t++
		e.increase(line)
	}
}

func (e *eager) increase(line float64) {
	if e.t >= 5 || e.b >= 5 {
		if e.t > 5 && e.b > 5 {
			e.target += 400e6 * float64(min(e.t, e.b)-5)
		} else {
			e.target += 40e6
		}
	}
	e.target = min(e.target, line)
	e.rate = (e.rate + e.target) / 2
	if e.rate >= line*1023/1024 {
		e.rate, e.target, e.limited = line, line, false
	}
}

func (e *eager) cnp() {
	if !e.limited {
		e.debt = 0
	}
	e.target = e.rate
	e.rate = max(e.rate*(1-e.alpha/2), 10e6)
	e.alpha = e.alpha*1020/1024 + 4.0/1024
	e.quiet, e.timer, e.sent, e.t, e.b, e.limited = 0, 0, 0, 0, 0, true
}

// A reaction point that is asked rarely has the rates, and lets as much pass, as one that follows
// each microsecond.
func TestLazyEventsEqualEagerOnes(t *testing.T) {
	const line = 100e9
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := Defaults()
		r := NewReactionPoint(&p, line, 1)
		e := eager{rate: line, target: line, alpha: 1023.0 / 1024}
		r.alphaAt = 0
		now := int64(0)
		for range 300 {
			for range rnd.IntN(400) {
				now++
				e.tick(line)
			}
			if rnd.IntN(2) == 0 || !e.limited {
				r.Notified(now * us)
				e.cnp()
			} else if n := rnd.IntN(3_000_000); true {
				r.Sent(now*us, n)
				e.debt += 8 * float64(n)
				for e.sent += n; e.sent >= 10e6 && e.limited; e.sent -= 10e6 {
					e.b++
					e.increase(line)
				}
			}
			now += 5 // beyond the monitor period
			for range 5 {
				e.tick(line)
			}
			if got := float64(r.Rate(now * us)); math.Abs(got-e.rate) > 2+e.rate*1e-9 {
				t.Fatalf("seed %d at %d µs: rate %.0f, want %.0f", seed, now, got, e.rate)
			}
			if e.limited && math.Abs(r.debt-e.debt) > 1+math.Abs(e.debt)*1e-6 {
				t.Fatalf("seed %d at %d µs: debt %.0f bits, want %.0f", seed, now, r.debt, e.debt)
			}
		}
	}
}

// What Allowance says is what a client may rely on: it sends at that time, and not before.
func TestAllowanceReturnsTheNextTime(t *testing.T) {
	p := Defaults()
	r := NewReactionPoint(&p, 10e9, 1)
	if n, at := r.Allowance(5 * us); n < 1<<16 || at != 0 {
		t.Fatalf("without a CNP: %d bytes at %d", n, at)
	}
	for i := range int64(60) {
		r.Notified((10 + 5*i) * us)
	}
	now := int64(310 * us)
	for range 2000 {
		n, at := r.Allowance(now)
		if n == 0 {
			if before, _ := r.clone().Allowance(at - 2); before != 0 {
				t.Fatalf("at %d: %d bytes 2 ns before the time that Allowance returned", at, before)
			}
			now = at
			if n, _ = r.Allowance(now); n == 0 {
				t.Fatalf("at %d: nothing may be sent at the time that Allowance returned", at)
			}
		}
		r.Sent(now, 4096)
	}
	if r.Limited() && r.Rate(now) < 20e6 {
		t.Errorf("rate %d after %d ns without CNPs", r.Rate(now), now)
	}
}

func (r *ReactionPoint) clone() *ReactionPoint {
	c := *r
	return &c
}

// At a constant rate the bytes that pass are those of the rate, whatever their packets are.
func TestAllowancePacesTheRate(t *testing.T) {
	for _, c := range []struct {
		size  int
		burst uint32 // µs
	}{{64, 20}, {1100, 20}, {4200, 20}, {1100, 0}, {1100, 100}} {
		size := c.size
		p := Defaults()
		p.FirstRate, p.TimeReset, p.ByteReset = 1000, 131071, 1<<25 // the rate stays
		p.BurstTime = c.burst
		r := NewReactionPoint(&p, 10e9, 1)
		r.Notified(1)
		sent := 0
		for now := int64(1); now < 100e6; {
			n, at := r.Allowance(now)
			if n == 0 {
				now = at
				continue
			}
			if want := 1000*int(c.burst)*2/8 + 1; n > want {
				t.Fatalf("a burst of %d bytes, want up to %d", n, want)
			}
			r.Sent(now, size)
			sent += size
		}
		if want := 100e6 / 8.0; math.Abs(float64(sent)-want) > 8000 {
			t.Errorf("packets of %d bytes: %d bytes in 100 ms at 1 Gb/s, want %.0f", size, sent, want)
		}
	}
}

func TestLimitEndsAtTheHighestRate(t *testing.T) {
	p := Defaults()
	r := NewReactionPoint(&p, 10e9, 1)
	r.Notified(1000)
	if !r.Limited() {
		t.Fatal("not limited after a CNP")
	}
	r.Rate(1e9)
	if r.Limited() || r.Rate(1e9) != 10e9 {
		t.Errorf("limited %v at %d b/s a second later", r.Limited(), r.Rate(1e9))
	}
}

func TestReactionPointDoesNotAllocate(t *testing.T) {
	p := Defaults()
	r := NewReactionPoint(&p, 10e9, 1)
	now := int64(1)
	if n := testing.AllocsPerRun(1000, func() {
		now += 10_000
		r.Notified(now)
		r.Sent(now, 4096)
		r.Allowance(now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNotificationPoint(t *testing.T) {
	p := Defaults()
	var n NotificationPoint
	for _, c := range []struct {
		at     int64
		marked bool
		want   bool
	}{
		{1, false, false}, {2, true, true}, // at once
		{3, false, false}, {4, true, false}, {50 * us, false, false}, // within the interval
		{50*us + 2, false, true},                          // at its end
		{60 * us, false, false}, {200 * us, false, false}, // no mark since
		{201 * us, true, true}, {300 * us, true, true}, {301 * us, true, false}, // and again
	} {
		got := n.Received(&p, c.marked, c.at)
		if got != c.want {
			t.Errorf("a packet at %d ns, marked %v: CNP %v, want %v", c.at, c.marked, got, c.want)
		}
		if got {
			n.Sent(&p, c.at)
		}
	}
	n.Left(&p, 309*us) // the CNP of 300 us was hardly delayed
	if !n.Received(&p, true, 350*us) {
		t.Error("no CNP at the end of the interval")
	}
	n.Left(&p, 310*us+1) // it was
	if n.Received(&p, true, 360*us) || !n.Received(&p, false, 360*us+1) || !n.Received(&p, false, 361*us) {
		t.Error("not one CNP 50 us after the last one left, until it is sent")
	}
	p.Algorithm = None
	if n.Received(&p, true, 2e9) || n.Pending() {
		t.Error("a CNP without congestion control")
	}
}

func TestParams(t *testing.T) {
	p := Defaults()
	for _, v := range p.Values() {
		if err := p.Set(v.Name, v.Value); err != nil {
			t.Errorf("the default is refused: %v", err)
		}
	}
	if p != Defaults() {
		t.Error("setting the values changed them")
	}
	if err := p.Set("rp_ai_rate", 5); err != nil || p.AdditiveIncrease != 5 {
		t.Errorf("rp_ai_rate: %v, %d", err, p.AdditiveIncrease)
	}
	for name, v := range map[string]uint32{"rp_time_reset": 0, "np_cnp_dscp": 64, "rp_min_dec_fac": 101, "rp_dce_tcp_g": 1024, "speed": 1} {
		if p.Set(name, v) == nil {
			t.Errorf("%s %d is accepted", name, v)
		}
	}
	for _, a := range []Algorithm{None, DCQCN, Swift} {
		if got, err := ParseAlgorithm(a.String()); got != a || err != nil {
			t.Errorf("%v: %v, %v", a, got, err)
		}
	}
	if _, err := ParseAlgorithm("cubic"); err == nil {
		t.Error("cubic is accepted")
	}
}
