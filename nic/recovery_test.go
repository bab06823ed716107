package nic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
	"softroce/wire/fault"
)

// A cable is a link of a rate with a send buffer that fills, as that of a socket, and with losses.
type cable struct {
	wire.Link
	perByte float64 // ns
	buffer  int64   // ns until the buffer is empty
	lost    func(f *wire.TxFrame) bool

	idleAt int64 // when everything accepted has left
	data   int   // packets of a WRITE or a READ response that were accepted
}

const ethernet = 14 + 20 + 8 + 24 // bytes: Ethernet with preamble, FCS and gap, IPv4 and UDP headers

func (c *cable) Send(now int64, batch []wire.TxFrame) (int, error) {
	for i := range batch {
		if c.idleAt > now+c.buffer {
			return i, nil
		}
		if c.lost == nil || !c.lost(&batch[i]) {
			if n, err := c.Link.Send(now, batch[i:i+1]); n == 0 || err != nil {
				return i, err
			}
		}
		if k := opcode(&batch[i]).Info().Kind; k == packet.KindWrite || k == packet.KindReadResponse {
			c.data++
		}
		c.idleAt = max(c.idleAt, now) + int64(c.perByte*float64(batch[i].Len+ethernet))
	}
	return len(batch), nil
}

func opcode(f *wire.TxFrame) packet.Opcode { return packet.Opcode(f.Head[0]) }

// cablePair makes two connected queue pairs on two NICs with a cable of a rate between them. lost
// decides for each frame of either direction.
func cablePair(t *testing.T, mem int, mbit float64, lost func(*wire.TxFrame) bool) (a, b *queue) {
	w := newTestFabric(t)
	w.mem = mem
	wrap := func(l wire.Link) wire.Link {
		p, err := fault.Parse(strings.NewReader("delay 50us send"))
		check(t, err)
		return &cable{Link: wire.NewFaultLink(l, p), perByte: 8000 / mbit, buffer: 100_000, lost: lost}
	}
	a, b = w.client(w.nic(1, wrap)).qp(smallCaps), w.client(w.nic(2, wrap)).qp(smallCaps)
	a.connect(4096, b)
	b.connect(4096, a)
	return a, b
}

// transfer posts n messages of a size and returns when all are complete, in ns.
func transfer(a, b *queue, op ib.WROpcode, n, size int) int64 {
	a.t.Helper()
	for i := range n {
		a.post(transport.SendWR{ID: uint64(i), Opcode: op, RKey: b.mr.RKey(), SGEs: a.sge(0, size)})
	}
	start := a.now
	for done := 0; done < n; {
		a.now += 5000
		a.engine.Step(a.now)
		for c, ok := a.cq.Poll(); ok; c, ok = a.cq.Poll() {
			if c.Status != ib.WCSuccess {
				a.t.Fatalf("%v after %d of %d messages", c.Status, done, n)
			}
			done++
		}
		if a.now-start > 1000e9 {
			a.t.Fatalf("%d of %d messages are complete after 1000 s", done, n)
		}
	}
	return a.now - start
}

// dataPackets returns how many packets with data left the two NICs.
func dataPackets(a, b *queue) int {
	return a.Device.Link().(*cable).data + b.Device.Link().(*cable).data
}

// TestLossCostsLittle loses one packet in a hundred, of data, requests and replies alike.
func TestLossCostsLittle(t *testing.T) {
	const total, mbit = 64 << 20, 10_000
	for _, op := range []ib.WROpcode{ib.WRRDMARead, ib.WRRDMAWrite} {
		for _, size := range []int{1 << 20, 16 << 20, 64 << 20} {
			t.Run(fmt.Sprint(op, "/", size>>20), func(t *testing.T) {
				a, b := cablePair(t, size, mbit, nil)
				fill(a.mem, 1)
				fill(b.mem, 2)
				lossless := transfer(a, b, op, total/size, size)
				r := rand.New(rand.NewPCG(1, uint64(size)))
				a, b = cablePair(t, size, mbit, func(*wire.TxFrame) bool { return r.Float64() < 0.01 })
				fill(a.mem, 1)
				fill(b.mem, 2)
				took := transfer(a, b, op, total/size, size)
				sent := float64(dataPackets(a, b)) / float64(total/4096)
				t.Logf("%.2f times the packets, %.2f times the time", sent, float64(took)/float64(lossless))
				if sent > 2 || took > 3*lossless {
					t.Errorf("at 1 %% loss %.2f times the packets were sent in %.2f times the time", sent, float64(took)/float64(lossless))
				}
				if !bytes.Equal(a.mem, b.mem) {
					t.Error("the data differs")
				}
			})
		}
	}
}

// TestLostReadResponseCostsOneRoundTrip loses one response near the start of a READ that takes
// longer than all retries of the local ACK timeout. Only what is on the cable and in its buffer at
// that time is sent needlessly, not what waits in the NIC.
func TestLostReadResponseCostsOneRoundTrip(t *testing.T) {
	const inFlight = 10 // packets
	for _, c := range []struct{ size, mbit int }{{32 << 20, 100}, {256 << 20, 1000}} {
		responses := 0
		a, b := cablePair(t, c.size, float64(c.mbit), func(f *wire.TxFrame) bool {
			if opcode(f) == packet.ReadResponseMid {
				responses++
			}
			return responses == 100 && opcode(f) == packet.ReadResponseMid
		})
		transfer(a, b, ib.WRRDMARead, 1, c.size)
		sent, needed := dataPackets(a, b), c.size/4096
		n := a.Device.Counters()
		if n.ImpliedNAK != 1 || n.LocalACKTimeout+n.AdaptiveRetransmissions != 0 || sent > needed+inFlight {
			t.Errorf("%d MiB at %d Mbit/s: %d packets for %d, %d implied NAKs, %d timeouts", c.size>>20, c.mbit, sent, needed, n.ImpliedNAK, n.LocalACKTimeout)
		}
	}
}
