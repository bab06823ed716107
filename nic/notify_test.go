package nic_test

import (
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic/nictest"
	"softroce/transport"
	"softroce/wire"
)

// A watched link says when its NIC sends.
type watched struct {
	wire.Link
	sends func(frames int)
}

func (l *watched) Send(now int64, batch []wire.TxFrame) (int, error) {
	l.sends(len(batch))
	return l.Link.Send(now, batch)
}

// Who waits for a message may have the processor as soon as he is told, and answer it: the acknowledgement comes first. Who
// polls meanwhile, and arms the queue again, has seen the message: he gets no second event for it.
func TestAMessageIsAcknowledgedBeforeItsReceiverIsTold(t *testing.T) {
	w := newWorld(t)
	acks, told := 0, 0
	a := w.client(w.nic(1))
	var cq *nictest.CQ
	b := w.client(w.nic(2, func(l wire.Link) wire.Link {
		return &watched{l, func(n int) {
			acks += n
			if n := cq.Len(); n != 1 {
				t.Errorf("when the acknowledgement leaves, who polls finds %d completions", n)
			}
			if told != 0 {
				t.Errorf("told before the acknowledgement has left")
			}
			cq.Arm(false)
		}}
	}))
	cq = b.newCQ(16)
	cq.OnNotify = func() {
		if told++; acks != 1 {
			t.Errorf("told when %d acknowledgements have left", acks)
		}
	}
	b.cq = cq
	cq.Arm(false)

	x, y := a.qp(smallCaps), b.qp(smallCaps)
	x.connect(1024, y)
	y.connect(1024, x)
	y.recv(1, nil)
	x.post(transport.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
	w.step()
	a.want(0, ib.WCSuccess, ib.WCSend)
	if told != 1 || cq.CompletionEvents() != 1 || cq.Armed() != abi.CQArmNext {
		t.Errorf("told %d times, %d events, armed %d; want 1, 1 and what it was armed for since", told, cq.CompletionEvents(), cq.Armed())
	}
}
