package nic_test

import (
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// shapedClient returns a client of a NIC whose port has a rate or a delay.
func (w *testFabric) shapedClient(n byte, s wire.Shape) *client {
	return w.client(w.nic(n, func(l wire.Link) wire.Link { return wire.NewShapedLink(l, s) }))
}

// The NIC sends what its port carries, whether one queue pair sends or two, which share it evenly.
func TestQueuePairsShareTheRateOfThePort(t *testing.T) {
	const (
		length = 32 << 10
		depth  = 32
		mtu    = 4096
		warmUp = 10 * time.Millisecond
		step   = 1000 // ns, of an engine that has work
	)
	for _, rate := range []int64{1e9, 10e9, 25e9} {
		for _, s := range []wire.Shape{{Rate: rate}, {Rate: rate, Delay: 50 * time.Microsecond}} {
			for n := 1; n <= 2; n++ {
				w := newTestFabric(t)
				a, b := w.shapedClient(1, s), w.shapedClient(2, s)
				var senders []*queue
				caps := nic.Caps{MaxSendWR: depth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
				post := func(i int) {
					senders[i].post(transport.SendWR{ID: uint64(i), Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, length)})
				}
				for i := range n {
					from, to := a.qp(caps), b.qp(caps)
					from.connect(mtu, to)
					to.connect(mtu, from)
					senders = append(senders, from)
					for range depth {
						post(i)
					}
				}
				// Long enough for hundreds of messages.
				span := int64(400 * length * 8 * 1e9 / rate)
				start := w.now + int64(warmUp)
				bytes := make([]int64, n)
				for w.now < start+span {
					next, busy := w.engine.Step(w.now)
					if busy {
						next = w.now + step
					}
					for _, c := range a.cq.PollAll() {
						if c.Status != ib.WCSuccess {
							t.Fatalf("rate %d: %+v", rate, c)
						}
						if w.now >= start {
							bytes[c.WRID] += length
						}
						post(int(c.WRID))
					}
					w.now = max(w.now+1, next)
				}
				total := int64(0)
				for _, k := range bytes {
					total += k
				}
				// Ethernet, IPv4, UDP, BTH and ICRC of each packet.
				const header = packet.EthernetLen + 20 + 8 + 12 + packet.ICRCLen
				got := float64(total) * 8 * (mtu + header) / mtu / float64(w.now-start) * 1e9
				if ratio := got / float64(rate); ratio < 0.98 || ratio > 1.02 {
					t.Errorf("rate %d, delay %v, %d queue pairs: %.0f b/s, %.3f of the rate", rate, s.Delay, n, got, ratio)
				}
				if n == 2 {
					if share := float64(bytes[0]) / float64(total); share < 0.48 || share > 0.52 {
						t.Errorf("rate %d, delay %v: the first of two queue pairs has %.3f of the bytes", rate, s.Delay, share)
					}
				}
			}
		}
	}
}

// A message and its acknowledgement pass the delay of both ports.
func TestRoundTripIsTheSumOfDelays(t *testing.T) {
	for _, delay := range []time.Duration{12500 * time.Nanosecond, 50 * time.Microsecond, time.Millisecond} {
		w := newTestFabric(t)
		ca, cb := w.shapedClient(1, wire.Shape{Delay: delay}), w.shapedClient(2, wire.Shape{Delay: delay})
		a, b := ca.qp(smallCaps), cb.qp(smallCaps)
		a.connect(4096, b)
		b.connect(4096, a)
		for i := range uint64(10) {
			start := w.now
			a.post(transport.SendWR{ID: i, Opcode: ib.WRRDMAWrite, RKey: cb.mr.RKey(), SGEs: ca.sge(0, 8)})
			for ca.cq.Len() == 0 {
				next := w.step()
				if ca.cq.Len() > 0 {
					break
				}
				if next == 0 {
					t.Fatal("nothing is due, and the message has not arrived")
				}
				w.now = max(w.now, next)
			}
			a.want(i, ib.WCSuccess, ib.WCRDMAWrite)
			sum := 4 * int64(delay)
			if took := w.now - start; took < sum || took > sum+100 { // ns: a step takes one
				t.Errorf("delay %v: a round trip takes %d ns, want %d", delay, took, sum)
			}
		}
	}
}
