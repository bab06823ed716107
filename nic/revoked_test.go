package nic_test

import (
	"testing"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/transport"
)

// A copy to memory that blocks takes its data from the sender's memory. The sender ends meanwhile
// and uses its memory again: the message does not arrive, but that of another queue pair does.
func TestCopiesInProgressDoNotReadReleasedMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		op   ib.WROpcode
		end  func(q *queue) error
		both bool // both queue pairs of the sender end
	}{
		{"SEND, then ERR", ib.WRSend, func(q *queue) error { return q.SetState(ib.QPSErr) }, false},
		{"SEND, then RESET", ib.WRSend, func(q *queue) error { return q.SetState(ib.QPSReset) }, false},
		{"SEND, then destroy", ib.WRSend, func(q *queue) error { return q.Destroy() }, false},
		{"SEND, then deregister", ib.WRSend, func(q *queue) error { return q.Context.DeregMR(q.mr) }, true},
		{"SEND, then register again", ib.WRSend, registerAgain, true},
		{"SEND, then close", ib.WRSend, func(q *queue) error { q.Context.Close(); return nil }, true},
		{"READ, then ERR", ib.WRRDMARead, func(q *queue) error { return q.SetState(ib.QPSErr) }, false},
		{"READ, then RESET", ib.WRRDMARead, func(q *queue) error { return q.SetState(ib.QPSReset) }, false},
		{"READ, then destroy", ib.WRRDMARead, func(q *queue) error { return q.Destroy() }, false},
		{"READ, then deregister", ib.WRRDMARead, func(q *queue) error { return q.Context.DeregMR(q.mr) }, true},
		{"READ, then register again", ib.WRRDMARead, registerAgain, true},
		{"READ, then close", ib.WRRDMARead, func(q *queue) error { q.Context.Close(); return nil }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestFabric(t)
			far, near := w.client(w.nic(1)), w.client(w.nic(2))
			var from, to [2]*queue
			for i := range from {
				from[i], to[i] = far.qp(smallCaps), near.qp(smallCaps)
				from[i].connect(1024, to[i])
				to[i].connect(1024, from[i])
			}
			near.useCopiedMemory()
			fill(far.mem[:1000], 7)
			b := w.block(to[0])
			for i := range from {
				at, id := i*500, uint64(i)
				if c.op == ib.WRSend {
					to[i].recv(id, to[i].sge(at, 500))
					from[i].post(transport.SendWR{Opcode: c.op, SGEs: from[i].sge(at, 500)})
				} else {
					to[i].post(transport.SendWR{ID: id, Opcode: c.op, RemoteAddr: uint64(at), RKey: far.mr.RKey(), SGEs: to[i].sge(at, 500)})
				}
			}
			w.run(1e6)
			b.one()
			check(t, c.end(from[0]))
			copy(far.mem, secret)
			if c.both {
				copy(far.mem[500:], secret)
			}
			b.one().Return()
			w.run(1e9)
			wantNoSecret(t, near)
			ended := map[uint64]ib.WCStatus{}
			for _, wc := range near.cq.PollAll() {
				ended[wc.WRID] = wc.Status
			}
			for id := range uint64(2) {
				status, ok := ended[id]
				lost := id == 0 || c.both
				if !ok || lost == (status == ib.WCSuccess) {
					t.Errorf("message %d: status %v, reported %v", id, status, ok)
				}
			}
		})
	}
}

func registerAgain(q *queue) error {
	return q.Context.ReregMR(q.mr, q.pd, mrtable.HeapMemory(make([]byte, 64)), 0, 64, allow)
}

// The sender fails after its message was received and before the copy blocks, in the same step.
func TestCopyThatBlocksAfterItsSenderFailedReadsNoReleasedMemory(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	far, near := w.client(d), w.client(d)
	from, to := far.qp(smallCaps), near.qp(smallCaps)
	to.connect(1024, from)
	from.connect(1024, to) // the last one transmits first
	near.useCopiedMemory()
	b := w.block(to)
	to.recv(1, to.sge(0, 500))
	to.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, RKey: ^far.mr.RKey(), Flags: ib.SendInline, Inline: make([]byte, 8)})
	from.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: from.sge(0, 500)})
	w.run(1e6)
	far.want(2, ib.WCWRFlushErr, ib.WCSend)
	copy(far.mem, secret)
	b.one().Return()
	w.run(1e9)
	wantNoSecret(t, near)
	for _, wc := range near.cq.PollAll() {
		if wc.WRID == 1 && wc.Status == ib.WCSuccess {
			t.Error("the message of the queue pair that failed has arrived")
		}
	}
}
