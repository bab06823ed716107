package congestion

import (
	"math"
	"testing"
)

// Each sequence ends with a rate and a window that are calculated here from the definition: the
// target is 100 µs + 20 µs (sqrt(line/rate) - 1); a faster reply adds a 256th of the line; one of d
// leaves 1 - min(0.8 (d-target)/d, 0.5) of the rate, once in a round trip; the window is what the
// rate carries in the target.
func TestSwiftAfterEvents(t *testing.T) {
	const line, mtu = 10e9, 4096
	const step = line / 256
	target := func(rate float64) float64 { return 100 + 20*(math.Sqrt(line/rate)-1) } // µs
	cut := func(rate, d float64) float64 { return rate * (1 - min(819.0/1024*(d-target(rate))/d, 0.5)) }
	type event struct {
		at    int64 // µs
		reply int64 // µs that it took; 0: a loss
	}
	first := cut(line, 200)
	half := cut(first, 200)
	replies := func(l []event, n int, every int64) []event {
		for range n {
			at := every
			if len(l) > 0 {
				at += l[len(l)-1].at
			}
			l = append(l, event{at, every})
		}
		return l
	}
	for _, c := range []struct {
		name   string
		change func(*Params)
		events []event
		want   float64
	}{
		{"no reply", nil, nil, line},
		{"fast replies at the highest rate", nil, replies(nil, 100, 20), line},
		{"a reply of the target", nil, []event{{100, 100}}, line},
		{"twice the target", nil, []event{{200, 200}}, first},
		{"a little more than the target", nil, []event{{101, 101}}, cut(line, 101)},
		{"far beyond the target", nil, []event{{3000, 3000}}, line / 2},
		{"a second one after less than a round trip", nil, []event{{200, 200}, {399, 200}}, first},
		{"a second one after a round trip", nil, []event{{200, 200}, {400, 200}}, half},
		{"a fast one increases it", nil, []event{{200, 200}, {250, 50}}, first + step},
		{"each fast one does", nil, replies([]event{{200, 200}}, 7, 50), first + 7*step},
		{"a slower queue pair has a longer target", nil, replies([]event{{3000, 3000}, {6000, 3000}, {9000, 3000}}, 1, 130), line/8 + step},
		{"than a faster one", nil, replies([]event{{3000, 3000}}, 1, 130), cut(line/2, 130)},
		{"unless all have the same", func(p *Params) { p.FlowDelay = 0 }, []event{{3000, 3000}, {3130, 130}},
			line / 2 * (1 - 819.0/1024*30/130)},
		{"up to that of the port", nil, replies([]event{{200, 200}}, 200, 50), line},
		{"a loss", nil, []event{{10, 0}}, line / 2},
		{"losses of a round trip", nil, []event{{50, 50}, {60, 0}, {70, 0}, {109, 0}}, line / 2},
		{"a loss of the next one", nil, []event{{50, 50}, {60, 0}, {110, 0}}, line / 4},
		{"a loss after a slow reply", nil, []event{{200, 200}, {399, 0}}, first},
		{"another target", func(p *Params) { p.TargetDelay = 50 }, []event{{100, 100}}, line * (1 - 819.0/1024/2)},
		{"another increase", func(p *Params) { p.DelayIncrease = 5 }, []event{{200, 200}, {250, 50}}, first + 5e6},
		{"another weight", func(p *Params) { p.DelayWeight = 256 }, []event{{200, 200}}, line * (1 - 0.25/2)},
		{"another largest decrease", func(p *Params) { p.MaxDecrease = 10 }, []event{{3000, 3000}, {3001, 0}, {6000, 3000}}, line * 0.9 * 0.9},
		{"the lowest rate", func(p *Params) { p.MinRate = 3000 }, []event{{3000, 3000}, {6000, 3000}, {9000, 3000}}, 3e9},
		{"the highest rate", func(p *Params) { p.MaxRate = 4000 }, replies(nil, 9, 50), 4e9},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Defaults()
			p.Algorithm = Swift
			if c.change != nil {
				c.change(&p)
			}
			s := NewController(&p, line, 1)
			now := int64(1)
			for _, e := range c.events {
				if now = e.at * us; e.reply != 0 {
					s.Replied(now, e.reply*us)
				} else {
					s.Lost(now)
				}
			}
			if got := float64(s.Rate(now)); math.Abs(got-c.want) > 1 {
				t.Errorf("rate %.0f, want %.0f", got, c.want)
			}
			if c.change != nil {
				return
			}
			if got, want := float64(s.Window(mtu)), c.want/8*target(c.want)/1e6/mtu; got < want-1e-6 || got > want+1 {
				t.Errorf("a window of %.0f packets, want %.2f", got, want)
			}
		})
	}
}

// A new bound or another step holds for queue pairs that exist.
func TestSwiftParametersTakeEffectAtOnce(t *testing.T) {
	p := Defaults()
	p.Algorithm = Swift
	s := NewController(&p, 10e9, 1)
	for _, c := range []struct {
		name  string
		value uint32
		want  int64
	}{{"rp_max_rate", 1000, 1e9}, {"rp_max_rate", 0, 10e9}, {"rp_max_rate", 500, 5e8}} {
		if err := p.Set(c.name, c.value); err != nil || s.Rate(1) != c.want {
			t.Errorf("%s=%d: %v, rate %d, want %d", c.name, c.value, err, s.Rate(1), c.want)
		}
	}
}

// Below a packet in a round trip the rate still passes, packet by packet, and two may be
// unacknowledged.
func TestSwiftPacesLessThanAPacketInARoundTrip(t *testing.T) {
	p := Defaults()
	p.Algorithm = Swift
	s := NewController(&p, 10e9, 1)
	now := int64(1)
	for range 8 { // to 39 Mb/s: a packet of 4178 bytes takes 857 µs
		now += 3000 * us
		s.Replied(now, 3000*us)
	}
	if s.Window(4096) != MinWindow {
		t.Errorf("a window of %d packets at %d b/s", s.Window(4096), s.Rate(now))
	}
	const packets, size = 100, 4178
	start := now
	for range packets {
		n, next := s.Allowance(now)
		if n == 0 {
			now = next
			if n, _ = s.Allowance(now); n == 0 {
				t.Fatal("nothing may be sent at the time that Allowance returned")
			}
		}
		if n > size {
			t.Fatalf("a burst of %d bytes", n)
		}
		s.Sent(now, size)
	}
	if took, want := float64(now-start), (packets-1)*size*8e9/(10e9/256); math.Abs(took-want) > 0.01*want {
		t.Errorf("%d packets took %.0f ns, want %.0f", packets, took, want)
	}
}

func TestSwiftDoesNotAllocate(t *testing.T) {
	p := Defaults()
	p.Algorithm = Swift
	s := NewController(&p, 10e9, 1)
	now := int64(1)
	if n := testing.AllocsPerRun(1000, func() {
		now += 300_000
		s.Replied(now, now%300_000+1)
		s.Lost(now)
		s.Notified(now)
		s.Sent(now, 4096)
		s.Allowance(now)
		s.Window(4096)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
