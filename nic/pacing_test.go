package nic_test

import (
	"fmt"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// Queue pairs keep a link of 1 Gbit/s busy in both directions. No packet is lost, so no timer must
// expire: responses do not wait behind the data of other queue pairs, and each queue pair has its
// turn in time.
func TestBusyLinkWithoutLossCausesNoTimeout(t *testing.T) {
	const mbit, seconds, size = 1000, 1, 1 << 20
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
		for _, n := range []int{16, 64, 1024} {
			t.Run(fmt.Sprintf("%v/%d", op, n), func(t *testing.T) {
				w := newTestFabric(t)
				w.mem = size
				sent := 0 // bytes
				wrap := func(l wire.Link) wire.Link {
					return &cable{Link: l, perByte: 8000. / mbit, buffer: 1e6, lost: func(f *wire.TxFrame) bool {
						sent += f.Len + ethernet
						return false
					}}
				}
				a, b := w.client(w.nic(1, wrap)), w.client(w.nic(2, wrap))
				var queues []*queue
				for range n {
					caps := nic.Caps{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
					x, y := a.qp(caps), b.qp(caps)
					x.connect(4096, y)
					y.connect(4096, x)
					queues = append(queues, x, y)
				}
				for w.now < seconds*1e9 {
					w.now += 4 * 4096 * 8000 / mbit
					for _, q := range queues {
						peer := b
						if q.client == b {
							peer = a
						}
						for q.SendRoom() > 0 {
							q.post(transport.SendWR{Opcode: op, RKey: peer.mr.RKey(), SGEs: q.sge(0, size)})
						}
					}
					w.engine.Step(w.now)
					for _, c := range append(a.cq.PollAll(), b.cq.PollAll()...) {
						if c.Status != ib.WCSuccess {
							t.Fatalf("completion %+v", c)
						}
					}
				}
				x, y := a.Device.Counters(), b.Device.Counters()
				if x.LocalACKTimeout+y.LocalACKTimeout != 0 || x.Retransmitted+y.Retransmitted != 0 {
					t.Errorf("%d timeouts, %d packets retransmitted", x.LocalACKTimeout+y.LocalACKTimeout, x.Retransmitted+y.Retransmitted)
				}
				if used := float64(sent) * 8 / (2 * mbit * 1e6 * seconds); used < 0.95 {
					t.Errorf("only %.0f %% of the link was used", 100*used)
				}
			})
		}
	}
}
