package nic_test

import (
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/transport/congestion"
	"softroce/wire"
)

// A timedFrame is a frame that a link has taken.
type timedFrame struct {
	at int64
	packet.Header
	path *wire.Path
	len  int
}

// A congestedLink records what a NIC sends, and marks it while ce is set.
type congestedLink struct {
	wire.Link
	ce     bool
	sent   []timedFrame
	joined int // the most packets of a run that the NIC received
}

func (l *congestedLink) Receive(now int64, batch []wire.RxFrame) (int, error) {
	n, err := l.Link.Receive(now, batch)
	for frames := batch[:n]; len(frames) > 0; frames = frames[nic.Joined(frames):] {
		l.joined = max(l.joined, nic.Joined(frames))
	}
	return n, err
}

func (l *congestedLink) Send(now int64, batch []wire.TxFrame) (int, error) {
	for i := range batch {
		batch[i].CE = l.ce
	}
	n, err := l.Link.Send(now, batch)
	for i := range batch[:n] {
		f := timedFrame{at: now, path: batch[i].Path, len: batch[i].Len}
		if _, err := f.Header.Parse(batch[i].Head[:batch[i].HeadLen]); err != nil {
			panic(err)
		}
		l.sent = append(l.sent, f)
	}
	return n, err
}

// cnps returns the CNPs that were sent.
func (l *congestedLink) cnps() (list []timedFrame) {
	for _, f := range l.sent {
		if f.Opcode == packet.OpcodeCNP {
			list = append(list, f)
		}
	}
	return list
}

// between returns how many bytes with payload were sent from one time to another.
func (l *congestedLink) between(from, to int64) (bytes int) {
	for _, f := range l.sent {
		if f.at >= from && f.at < to && f.len > 1000 {
			bytes += f.len
		}
	}
	return bytes
}

// congested returns two connected queue pairs, the links of their NICs, and a way to let a CNP
// arrive at the first.
func congested(t testing.TB, kind ib.QPType, change func(*congestion.Params)) (a, b *queue, left, right *congestedLink, cnp func()) {
	w := newTestFabric(t)
	p := congestion.Defaults()
	if change != nil {
		change(&p)
	}
	c := nic.DeviceConfig{Congestion: &p, Rate: 10e9}
	left, right = new(congestedLink), new(congestedLink)
	in := new(injectingLink)
	x := w.client(w.nicOf(1, c, func(l wire.Link) wire.Link { left.Link = l; in.Link = left; return in }))
	y := w.client(w.nicOf(2, c, func(l wire.Link) wire.Link { right.Link = l; return right }))
	a, b = x.qpOf(kind, smallCaps), y.qpOf(kind, smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	return a, b, left, right, func() {
		h := packet.Header{BTH: packet.BTH{Opcode: packet.OpcodeCNP, BECN: true, PKey: packet.DefaultPKey, DestQP: a.QPN()}}
		head := make([]byte, packet.MaxHeaderLen)
		head = append(head[:h.Put(head)], make([]byte, 16)...)
		in.frames = append(in.frames, wire.RxFrame{Head: head, Src: y.Device.GIDs()[1].GID.Addr(), Dst: x.Device.GIDs()[1].GID.Addr()})
		w.step()
	}
}

// write posts WRITEs of 64 KiB.
func (q *queue) write(peer *queue, n int) {
	for range n {
		q.store(&transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: peer.mr.RKey(), SGEs: q.sge(0, 64<<10)})
	}
	q.Publish()
}

// steady sets a first rate of 1 Gb/s that does not increase.
func steady(p *congestion.Params) { p.FirstRate, p.TimeReset, p.ByteReset = 1000, 131071, 1<<25 }

func rate(q *queue) int64 { return q.Device.Snapshot().QPs[0].Rate }

// Priorities are those of VLAN tags, so that only the one that a parameter sets is not 0 here.
func TestPriorityOfCNPs(t *testing.T) {
	for mode, want := range []uint8{5, 0} {
		a, b, left, right, _ := congested(t, ib.QPTypeRC, func(p *congestion.Params) {
			p.CNPPriority, p.CNPPriorityMode = 5, uint32(mode)
		})
		left.ce = true
		a.write(b, 8)
		a.run(int64(time.Millisecond))
		cnps := right.cnps()
		if len(cnps) == 0 {
			t.Fatalf("mode %d: no CNPs", mode)
		}
		for _, f := range cnps {
			if f.path.Priority != want || f.path.TClass>>2 != 48 {
				t.Errorf("mode %d: priority %d, traffic class %d", mode, f.path.Priority, f.path.TClass)
			}
		}
	}
}

func TestMarkedPacketsCauseCNPs(t *testing.T) {
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		a, b, left, right, _ := congested(t, kind, func(p *congestion.Params) { p.MinRate = 1000 })
		left.ce = true
		start := a.now
		a.write(b, 32)
		a.run(int64(time.Millisecond))
		left.ce = false
		cnps := right.cnps()
		if len(cnps) < 5 {
			t.Fatalf("%v: %d CNPs", kind, len(cnps))
		}
		for i, f := range cnps {
			if !f.BECN || f.PSN != 0 || f.AckReq || f.MigReq || f.DestQP != a.QPN() || f.PKey != packet.DefaultPKey || f.len != packet.BTHLen+16 {
				t.Errorf("%v: CNP %+v of %d bytes", kind, f.Header, f.len)
			}
			if f.path.TClass>>2 != 48 || f.path.Priority != 6 || f.path.Dst != a.Device.GIDs()[1].GID.Addr() {
				t.Errorf("%v: path of a CNP: %+v", kind, f.path)
			}
			if i > 0 && f.at-cnps[i-1].at < 50_000 {
				t.Errorf("%v: CNPs %d ns apart", kind, f.at-cnps[i-1].at)
			}
		}
		x, y := a.Device.Counters(), b.Device.Counters()
		if y.CNPSent != uint64(len(cnps)) || x.CNPHandled != y.CNPSent || y.TxOpcode[packet.OpcodeCNP] != y.CNPSent || x.RxOpcode[packet.OpcodeCNP] != y.CNPSent {
			t.Errorf("%v: %d CNPs, counted %d sent and %d handled", kind, len(cnps), y.CNPSent, x.CNPHandled)
		}
		if len(left.cnps()) > 0 || x.CNPSent != 0 {
			t.Errorf("%v: the sender sent CNPs", kind)
		}
		if got := rate(a); got < 1e9 || got > 5e9 {
			t.Errorf("%v: rate %d b/s after %d CNPs", kind, got, len(cnps))
		}
		a.run(int64(time.Second))
		a.step()
		if got := rate(a); got != 0 {
			t.Errorf("%v: rate %d b/s a second after the last mark, want no limit", kind, got)
		}
		for range 32 {
			a.want(0, ib.WCSuccess, ib.WCRDMAWrite)
		}
		if a.now-start < int64(time.Second) || a.Device.Counters().Retransmitted != 0 {
			t.Errorf("%v: %d packets retransmitted", kind, a.Device.Counters().Retransmitted)
		}
	}
}

// A CNP that is delayed by the minimum time between two is sent when the next packet arrives, even
// if the NIC receives that packet as part of a run.
func TestPacketsWithoutMarkFindPendingCNP(t *testing.T) {
	a, b, left, right, _ := congested(t, ib.QPTypeRC, nil)
	write := func() {
		a.store(&transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8<<10)})
		a.Publish()
		a.run(int64(10 * time.Microsecond))
	}
	cnps := func(when string, want int) {
		t.Helper()
		if n := len(right.cnps()); n != want {
			t.Fatalf("%d CNPs %s, want %d", n, when, want)
		}
	}
	left.ce = true
	write()
	cnps("for the first marked packets", 1)
	write()
	left.ce = false
	a.run(int64(time.Millisecond))
	cnps("before the next packets", 1)
	right.joined = 0
	write()
	cnps("with the next packets", 2)
	if right.joined < 8 {
		t.Errorf("the longest run has %d packets, want 8", right.joined)
	}
}

// A limited queue pair keeps its rate, in bursts whose length is bounded.
func TestLimitedQueuePairIsPaced(t *testing.T) {
	for name, use := range map[string]struct {
		kind ib.QPType
		post func(a, b *queue)
	}{
		"WRITE of RC": {ib.QPTypeRC, func(a, b *queue) { a.write(b, 64) }},
		"WRITE of UC": {ib.QPTypeUC, func(a, b *queue) { a.write(b, 64) }},
		"READ response": {ib.QPTypeRC, func(a, b *queue) {
			for range 4 {
				b.post(transport.SendWR{Opcode: ib.WRRDMARead, RKey: a.mr.RKey(), SGEs: b.sge(0, 1<<20)})
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, left, _, cnp := congested(t, use.kind, steady)
			cnp()
			if got := rate(a); got != 1e9 {
				t.Fatalf("rate %d b/s", got)
			}
			start := a.now
			use.post(a, b)
			a.run(10e6)
			// With headers, which the rate includes.
			if got, want := left.between(start, start+10e6), 10e6*1024/1098; float64(got) < 0.95*want/8 || float64(got) > 1.05*want/8 {
				t.Errorf("%d bytes in 10 ms at 1 Gb/s", got)
			}
			burst := 0
			for i, f := range left.sent {
				if i > 0 && f.at > left.sent[i-1].at {
					burst = 0
				}
				if burst += f.len; burst > 8<<10 {
					t.Fatalf("%d bytes at once at %d ns", burst, f.at-start)
				}
			}
			a.run(int64(time.Second))
			if a.Device.Counters().Retransmitted+b.Device.Counters().Retransmitted != 0 {
				t.Error("retransmission without a loss")
			}
		})
	}
}

// Other queue pairs of the NIC do not wait for one that does.
func TestOnlyTheNotifiedQueuePairIsLimited(t *testing.T) {
	a, b, _, _, cnp := congested(t, ib.QPTypeRC, func(p *congestion.Params) { steady(p); p.FirstRate = 1 })
	x, y := connected(a.client, b.client, smallCaps)
	cnp()
	a.write(b, 4)
	x.post(transport.SendWR{ID: 7, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 1<<20)})
	a.run(1e6)
	a.want(7, ib.WCSuccess, ib.WCRDMAWrite)
	a.wantNone()
}

// What a program does to a queue pair does not wait for its rate.
func TestControlOfLimitedQueuePair(t *testing.T) {
	for name, do := range map[string]func(a *queue) error{
		"ERR":     func(a *queue) error { return a.SetState(ib.QPSErr) },
		"RESET":   func(a *queue) error { return a.SetState(ib.QPSReset) },
		"destroy": func(a *queue) error { return a.Destroy() },
		"none":    func(a *queue) error { return a.Device.SetCongestion("algorithm", "none") },
	} {
		t.Run(name, func(t *testing.T) {
			a, b, left, _, cnp := congested(t, ib.QPTypeRC, func(p *congestion.Params) { steady(p); p.FirstRate = 1 })
			cnp()
			a.write(b, 32)
			a.run(1e6)
			a.wantNone()
			check(t, do(a))
			a.run(1e6)
			for range 32 {
				switch c, ok := a.cq.Poll(); {
				case name == "RESET" || name == "destroy":
					if ok && c.Status != ib.WCSuccess {
						t.Fatalf("completion %+v", c)
					}
				case !ok || (c.Status == ib.WCSuccess) != (name == "none") && c.Status != ib.WCWRFlushErr:
					t.Fatalf("completion %+v, %v", c, ok)
				}
			}
			sent := len(left.sent)
			a.run(int64(10 * time.Second))
			if len(left.sent) != sent {
				t.Errorf("%d frames later", len(left.sent)-sent)
			}
		})
	}
}

func TestCNPsWithoutEffect(t *testing.T) {
	a, b, left, right, cnp := congested(t, ib.QPTypeRC, func(p *congestion.Params) { p.Algorithm = congestion.None })
	left.ce = true
	a.write(b, 8)
	cnp()
	a.run(1e6)
	x, y := a.Device.Counters(), b.Device.Counters()
	if x.CNPHandled != 0 || x.Drops[transport.DropCNP] != 1 || y.CNPSent != 0 || len(right.cnps()) != 0 || y.RxECNMarked == 0 || rate(a) != 0 {
		t.Errorf("without congestion control: handled %d, ignored %d, sent %d, marked %d, rate %d",
			x.CNPHandled, x.Drops[transport.DropCNP], y.CNPSent, y.RxECNMarked, rate(a))
	}
	check(t, a.Device.SetCongestion("algorithm", "dcqcn"))
	check(t, a.Device.SetCongestion("rp_rate_to_set_on_first_cnp", "2000"))
	cnp()
	if got := rate(a); got != 2e9 {
		t.Errorf("rate %d b/s after the parameters were set", got)
	}
	if err := a.Device.SetCongestion("rp_ai_rate", "0"); err == nil {
		t.Error("rp_ai_rate 0 is accepted")
	}
}
