package nic_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// paced returns two connected queue pairs on NICs of 10 Gb/s and the link of the first, whose
// address vector has a static rate.
func paced(t testing.TB, kind ib.QPType, staticRate uint8) (a, b *queue, left *congestedLink) {
	w := newTestFabric(t)
	left = new(congestedLink)
	c := nic.DeviceConfig{Rate: 10e9}
	x := w.client(w.nicOf(1, c, func(l wire.Link) wire.Link { left.Link = l; return left }))
	y := w.client(w.nicOf(2, c))
	a, b = x.qpOf(kind, smallCaps), y.qpOf(kind, smallCaps)
	attr := attrs(1024, b)
	attr.AV.StaticRate = staticRate
	a.connectWith(attr)
	b.connect(1024, a)
	return a, b, left
}

func (q *queue) limitRate(kbps uint32) error {
	return q.Modify(&nic.QPAttr{RateLimit: kbps}, ib.QPMaskRateLimit)
}

// keepsRate reports an error if the payload that left in 10 ms, up to now, is not that of a rate.
func (l *congestedLink) keepsRate(t *testing.T, now int64, rate float64) {
	t.Helper()
	const window = 10e6
	want := rate / 8 * window / 1e9 * 1048 / 1098 // without the headers before the BTH and the ICRC
	if got := float64(l.between(now-window, now)); got < 0.95*want || got > 1.05*want {
		t.Errorf("%.0f bytes in 10 ms, want %.0f", got, want)
	}
}

// A queue pair keeps the rate that its program sets, whichever operation sends, and the rate may
// change while packets wait.
func TestRateLimitOfQueuePair(t *testing.T) {
	for name, use := range map[string]struct {
		kind ib.QPType
		low  uint32 // kb/s; a requester gives up if READ responses take too long
		post func(a, b *queue)
	}{
		"WRITE of RC": {ib.QPTypeRC, 1, func(a, b *queue) { a.write(b, 100) }},
		"WRITE of UC": {ib.QPTypeUC, 1, func(a, b *queue) { a.write(b, 100) }},
		"READ response": {ib.QPTypeRC, 1000, func(a, b *queue) {
			for range 8 {
				b.post(transport.SendWR{Opcode: ib.WRRDMARead, RKey: a.mr.RKey(), SGEs: b.sge(0, 1<<20)})
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, left := paced(t, use.kind, 0)
			check(t, a.limitRate(500_000))
			if got, err := a.Query(); err != nil || got.RateLimit != 500_000 {
				t.Errorf("rate limit %d, %v", got.RateLimit, err)
			}
			use.post(a, b)
			a.run(10e6)
			left.keepsRate(t, a.now, 500e6)
			if got := rate(a); got != 500e6 {
				t.Errorf("the queue pair shows %d b/s", got)
			}
			check(t, a.limitRate(use.low)) // at 1 kb/s a packet takes seconds
			a.run(100e6)
			sent := len(left.sent)
			a.run(100e6)
			if n := len(left.sent) - sent; n > 1+int(use.low)*100/(8*1098) {
				t.Errorf("%d packets in 100 ms at %d kb/s", n, use.low)
			}
			check(t, a.limitRate(2_000_000))
			a.run(int64(9 * time.Second)) // the last packet at 1 kb/s takes as long
			if n := a.Device.Counters().Retransmitted + b.Device.Counters().Retransmitted; n != 0 {
				t.Errorf("%d packets retransmitted", n)
			}
			use.post(a, b)
			a.run(10e6)
			left.keepsRate(t, a.now, 2e9)
			check(t, a.limitRate(0))
			if got := rate(a); got != 0 {
				t.Errorf("the queue pair shows %d b/s without a limit", got)
			}
			a.run(10e6)
			if got := left.between(a.now-10e6, a.now); got == 0 {
				t.Error("nothing is sent without a limit")
			}
			a.run(int64(time.Second))
			for {
				c, ok := a.cq.Poll()
				if !ok {
					break
				}
				if c.Status != ib.WCSuccess {
					t.Fatalf("completion %+v", c)
				}
			}
		})
	}
}

// The lower one of the rates of the queue pair and of its address vector counts, and none that the
// port does not reach.
func TestStaticRateOfConnection(t *testing.T) {
	const gbps2_5, gbps10, gbps40 = 2, 3, 7
	for _, c := range []struct {
		code  uint8
		limit uint32 // kb/s
		want  float64
	}{{gbps2_5, 0, 2.5e9}, {gbps2_5, 1_000_000, 1e9}, {gbps2_5, 5_000_000, 2.5e9}, {gbps10, 0, 0}, {gbps40, 0, 0}, {0, 0, 0}} {
		a, b, left := paced(t, ib.QPTypeRC, c.code)
		check(t, a.limitRate(c.limit))
		if got, err := a.Query(); err != nil || got.AV.StaticRate != c.code {
			t.Errorf("static rate %d, %v", got.AV.StaticRate, err)
		}
		if got := rate(a); got != int64(c.want) {
			t.Errorf("static rate %d, limit %d: the queue pair shows %d b/s", c.code, c.limit, got)
		}
		a.write(b, 100)
		a.run(10e6)
		if c.want != 0 {
			left.keepsRate(t, a.now, c.want)
		} else if got := left.between(0, a.now); got < 100*64<<10 {
			t.Errorf("static rate %d: %d bytes were sent", c.code, got)
		}
	}
}

// Datagrams keep the static rates of their address handles.
func TestStaticRateOfAddressHandles(t *testing.T) {
	w := newTestFabric(t)
	left := new(congestedLink)
	c := nic.DeviceConfig{Rate: 10e9}
	x := w.client(w.nicOf(1, c, func(l wire.Link) wire.Link { left.Link = l; return left }))
	y := w.client(w.nicOf(2, c))
	a, b := x.ud(), y.ud()
	for n, code := range []uint8{0, 2, 5} { // none, 2.5 Gb/s, 5 Gb/s
		av := nic.AddressVector{DGID: y.Device.GIDs()[1].GID, SGIDIndex: 1, Port: 1, StaticRate: code}
		var err error
		av.Path, err = x.Device.ResolvePath(context.Background(), &av)
		check(t, err)
		_, err = x.Context.CreateAH(x.pd, uint32(n+1), av)
		check(t, err)
	}
	send := func(ahs ...uint32) (took int64) {
		first := len(left.sent)
		for i := range 120 {
			a.sendTo(uint64(i), ahs[i%len(ahs)], b.QPN(), 2048)
			w.run(1000)
		}
		w.run(int64(time.Second))
		if n := len(left.sent) - first; n != 120 {
			t.Fatalf("%d datagrams", n)
		}
		return left.sent[len(left.sent)-1].at - left.sent[first].at
	}
	size := float64(2048 + datagramHeaders)
	for _, c := range []struct {
		ahs  []uint32
		want float64 // ns
	}{{[]uint32{2}, 120 * size * 8 / 2.5}, {[]uint32{3}, 120 * size * 8 / 5}, {[]uint32{2, 3}, 60*size*8/2.5 + 60*size*8/5}, {[]uint32{1}, 119_000}} {
		if got := float64(send(c.ahs...)); got < 0.9*c.want || got > 1.05*c.want+1000 {
			t.Errorf("address handles %v: 120 datagrams took %.0f ns, want %.0f", c.ahs, got, c.want)
		}
	}
}

// datagramHeaders is what surrounds the payload of a datagram over IPv4: headers, DETH and ICRC.
const datagramHeaders = 14 + 20 + 8 + 12 + 8 + 4

func TestRateLimitNeedsQueuePairThatSends(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).qp(smallCaps), w.client(w.nic(2)).qp(smallCaps)
	invalid := func(state string) {
		t.Helper()
		if err := a.limitRate(1000); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("in %s: %v", state, err)
		}
	}
	invalid("RESET")
	attr := attrs(1024, b)
	attr.State = ib.QPSInit
	check(t, a.Modify(&attr, toInit))
	invalid("INIT")
	check(t, a.SetState(ib.QPSReset))
	a.connect(1024, b)
	check(t, a.limitRate(1000))
	check(t, a.SetState(ib.QPSSQD))
	check(t, a.limitRate(2000))
	check(t, a.SetState(ib.QPSErr))
	invalid("ERR")
	check(t, a.SetState(ib.QPSReset))
	a.connect(1024, b)
	if got, _ := a.Query(); got.RateLimit != 0 {
		t.Errorf("rate limit %d after RESET", got.RateLimit)
	}
	av := nic.AddressVector{DGID: b.Device.GIDs()[1].GID, SGIDIndex: 1, Port: 1, StaticRate: 1}
	if _, err := a.Device.ResolvePath(context.Background(), &av); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("static rate 1: %v", err)
	}
}
