package nic_test

import (
	"testing"
	"time"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// A program on the engine's processor replies before the engine acknowledges, so that the ACK and
// the reply leave together. If several clients transmit, none of them delays the ACKs of others,
// and among many threads the engine does not wait for the program.
func TestReplyLeavesWithTheACK(t *testing.T) {
	for _, c := range []struct {
		name    string
		pids    [2]int
		crowded bool
		want    string
	}{
		{"one client", [2]int{1, 1}, false, "RC_ACKNOWLEDGE RC_SEND_ONLY"},
		{"two clients", [2]int{1, 2}, false, "RC_ACKNOWLEDGE"},
		{"many threads", [2]int{1, 1}, true, "RC_ACKNOWLEDGE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nic.Pin(t)
			w := newTestFabric(t)
			var program func()
			reads := 0
			e, err := nic.NewEngine(nic.EngineConfig{Seed: 1, ReadArena: 1 << 20, Clock: func() int64 {
				if reads++; program != nil && reads == 2 { // before and after it lends the processor
					program()
				}
				return w.now
			}})
			check(t, err)
			t.Cleanup(func() { e.Close() })
			w.engine = e

			var sent []string
			x := w.clientOf(w.nic(1), nic.ContextOptions{PID: c.pids[0]}).qp(smallCaps)
			y := w.clientOf(w.nic(2, func(l wire.Link) wire.Link { return &opcodeObserver{l, &sent} }), nic.ContextOptions{PID: c.pids[1]}).qp(smallCaps)
			x.connect(1024, y)
			y.connect(1024, x)
			send := transport.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled}
			for _, q := range []*queue{x, y, x} { // both have transmitted
				map[*queue]*queue{x: y, y: x}[q].recv(1, nil)
				q.post(send)
				w.step()
			}

			sent = nil
			if c.crowded {
				e.SeeManyThreads()
			}
			*nictest.Word(y.DoorbellPage, abi.DoorbellProcessor) = e.ShareProcessor()
			x.recv(2, nil)
			y.recv(2, nil)
			x.post(send)
			// The program has the processor for long. No timer runs then: the ACK waits for it.
			program = func() { w.now += int64(time.Second); y.post(send) }
			reads = 0
			w.step()
			if len(sent) == 0 || sent[0] != c.want {
				t.Errorf("sent %q, want first %q", sent, c.want)
			}
			if n := x.Device.Counters().LocalACKTimeout; n != 0 {
				t.Errorf("%d timeouts", n)
			}
		})
	}
}

// An opcodeObserver records the opcodes of each batch that its NIC sends.
type opcodeObserver struct {
	wire.Link
	sent *[]string
}

func (l *opcodeObserver) Send(now int64, batch []wire.TxFrame) (int, error) {
	names := ""
	for i := range batch {
		if i > 0 {
			names += " "
		}
		names += packet.Opcode(batch[i].Head[0]).Info().Name
	}
	*l.sent = append(*l.sent, names)
	return l.Link.Send(now, batch)
}
