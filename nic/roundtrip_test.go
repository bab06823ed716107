package nic_test

import (
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/transport/congestion"
	"softroce/wire"
)

// swiftPair returns two connected queue pairs of NICs with Swift and ports of 10 Gb/s, and the link
// of the first. A round trip takes a time at least.
func swiftPair(t *testing.T, kind ib.QPType, roundTrip time.Duration) (a, b *queue, sent *congestedLink) {
	w := newTestFabric(t)
	p := congestion.Defaults()
	p.Algorithm = congestion.Swift
	c := nic.DeviceConfig{Congestion: &p, Rate: 10e9}
	sent = new(congestedLink)
	far := func(l wire.Link) wire.Link { return wire.NewShapedLink(l, wire.Shape{Delay: roundTrip / 4}) }
	x := w.client(w.nicOf(1, c, far, func(l wire.Link) wire.Link { sent.Link = l; return sent }))
	y := w.client(w.nicOf(2, c, far))
	a, b = x.qpOf(kind, smallCaps), y.qpOf(kind, smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	return a, b, sent
}

// The rate comes to be that whose target is the round trip: the square root of 10 Gb/s / rate is
// 1 + (200 µs - 100 µs) / 20 µs.
func TestRoundTripsLimitTheRate(t *testing.T) {
	a, b, sent := swiftPair(t, ib.QPTypeRC, 200*time.Microsecond)
	if got := rate(a); got != 0 {
		t.Errorf("rate %d b/s before the first reply", got)
	}
	for range 60 {
		a.write(b, 16)
		a.run(40e6)
		for range 16 {
			a.want(0, ib.WCSuccess, ib.WCRDMAWrite)
		}
	}
	const want = 10e9 / 36
	if got := float64(rate(a)); got < 0.7*want || got > 1.3*want {
		t.Errorf("rate %.0f b/s, want %.0f", got, want)
	}
	start := a.now
	a.write(b, 32)
	a.run(20e6)
	if got := 8e3 * float64(sent.between(start, start+20e6)) / 20e6; got < 0.6*want/1e6 || got > 1.3*want/1e6 {
		t.Errorf("%.0f Mb/s were sent, want %.0f", got, want/1e6)
	}
	if n := a.Device.Counters().Retransmitted; n != 0 {
		t.Errorf("%d packets retransmitted", n)
	}
}

// READ responses have no replies, and no limit.
func TestReadResponsesHaveNoRate(t *testing.T) {
	a, b, _ := swiftPair(t, ib.QPTypeRC, 400*time.Microsecond)
	for range 8 {
		b.post(transport.SendWR{Opcode: ib.WRRDMARead, RKey: a.mr.RKey(), SGEs: b.sge(0, 64<<10)})
	}
	a.run(100e6)
	for range 8 {
		b.want(0, ib.WCSuccess, ib.WCRDMARead)
	}
	if rate(a) != 0 || rate(b) != 0 {
		t.Errorf("rates %d and %d b/s after READs", rate(a), rate(b))
	}
}

func TestFastRoundTripsDoNotLimitTheRate(t *testing.T) {
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		a, b, _ := swiftPair(t, kind, 0)
		start := a.now
		for range 10 {
			a.write(b, 32)
			a.run(1e9)
			for range 32 {
				a.want(0, ib.WCSuccess, ib.WCRDMAWrite)
			}
		}
		if want := map[ib.QPType]int64{ib.QPTypeRC: 10e9}[kind]; rate(a) != want {
			t.Errorf("%v: rate %d b/s after %d ns, want %d", kind, rate(a), a.now-start, want)
		}
	}
}

// The algorithm can change while a queue pair sends, and forgets what the last one did.
func TestAlgorithmChanges(t *testing.T) {
	a, b, left, right, cnp := congested(t, ib.QPTypeRC, steady)
	cnp()
	for _, c := range []struct {
		algorithm   string
		rate, later int64
	}{{"dcqcn", 1e9, 1e9}, {"swift", 0, 10e9}, {"swift", 10e9, 10e9}, {"none", 0, 0}, {"swift", 0, 10e9}, {"dcqcn", 0, 0}} {
		check(t, a.Device.SetCongestion("algorithm", c.algorithm))
		if got := rate(a); got != c.rate {
			t.Errorf("%s: rate %d b/s, want %d", c.algorithm, got, c.rate)
		}
		a.write(b, 8)
		a.run(int64(20 * time.Millisecond))
		for range 8 {
			a.want(0, ib.WCSuccess, ib.WCRDMAWrite)
		}
		if got := rate(a); got != c.later {
			t.Errorf("%s: rate %d b/s after replies, want %d", c.algorithm, got, c.later)
		}
	}
	check(t, a.Device.SetCongestion("algorithm", "swift"))
	check(t, b.Device.SetCongestion("algorithm", "swift"))
	ignored := a.Device.Counters().Drops[transport.DropCNP]
	cnp()
	left.ce = true
	a.write(b, 8)
	a.run(1e6)
	if rate(a) != 10e9 || a.Device.Counters().Drops[transport.DropCNP] != ignored+1 || len(right.cnps()) != 0 {
		t.Errorf("rate %d b/s after a CNP, %d ignored, %d sent", rate(a), a.Device.Counters().Drops[transport.DropCNP]-ignored, len(right.cnps()))
	}
}

func TestRateOfNewConnection(t *testing.T) {
	a, b, _ := swiftPair(t, ib.QPTypeRC, 400*time.Microsecond)
	a.write(b, 8)
	a.run(40e6)
	if got := rate(a); got == 0 || got > 9e9 {
		t.Errorf("rate %d b/s after slow replies", got)
	}
	check(t, a.SetState(ib.QPSReset))
	if got := rate(a); got != 0 {
		t.Errorf("rate %d b/s in RESET", got)
	}
	a.connect(1024, b)
	if got := rate(a); got != 0 {
		t.Errorf("rate %d b/s of a new connection", got)
	}
}
