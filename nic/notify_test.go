package nic_test

import (
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic/nictest"
	"softroce/transport"
	"softroce/wire"
)

// A sendObserver calls a function when its NIC sends.
type sendObserver struct {
	wire.Link
	sends func(frames int)
}

func (l *sendObserver) Send(now int64, batch []wire.TxFrame) (int, error) {
	l.sends(len(batch))
	return l.Link.Send(now, batch)
}

// The woken program may preempt the engine and reply, so the ACK must leave first. A program that
// polls before that and arms the queue again has seen the message and gets no second event.
func TestACKLeavesBeforeNotification(t *testing.T) {
	w := newTestFabric(t)
	acks, notified := 0, 0
	a := w.client(w.nic(1))
	var cq *nictest.CQ
	b := w.client(w.nic(2, func(l wire.Link) wire.Link {
		return &sendObserver{l, func(n int) {
			acks += n
			if n := cq.Len(); n != 1 {
				t.Errorf("a poll when the acknowledgement is sent returns %d completions", n)
			}
			if notified != 0 {
				t.Errorf("notified before the acknowledgement was sent")
			}
			cq.Arm(false)
		}}
	}))
	cq = b.newCQ(16)
	cq.OnNotify = func() {
		if notified++; acks != 1 {
			t.Errorf("notified after %d acknowledgements were sent", acks)
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
	if notified != 1 || cq.CompletionEvents() != 1 || cq.Armed() != abi.CQArmNext {
		t.Errorf("notified %d times, %d events, armed %d; want 1, 1 and CQArmNext", notified, cq.CompletionEvents(), cq.Armed())
	}
}
