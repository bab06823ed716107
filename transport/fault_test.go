package transport

import (
	"testing"

	"softroce/internal/ib"
)

// A work request with a fault completes with it, after those before it. It is not carried out, and
// the queue pair fails as with an error of its own.
func TestFaultOfSendWorkRequest(t *testing.T) {
	fault := Fault{ib.WCRetryExcErr, 0x81}
	for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite, ib.WRRDMARead, ib.WRAtomicFetchAndAdd, ib.WRLocalInv} {
		a, b := connect(t, defaults)
		b.recv(9, 0, 100)
		a.post(SendWR{ID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey()})
		a.post(SendWR{ID: 2, Opcode: op, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey(), Fault: fault})
		a.post(SendWR{ID: 3, Opcode: ib.WRSend, SGEs: a.sge(0, 8)})
		run(t, a, b, deliverAll)
		if got := statuses(a.done); got != "1:0 2:12 3:5" || a.qp.State() != ib.QPSErr {
			t.Errorf("%v: %s in %v", op, got, a.qp.State())
		}
		for _, c := range a.done {
			if want := map[uint64]uint32{2: 0x81}[c.WRID]; c.VendorErr != want {
				t.Errorf("%v: vendor error %#x of work request %d, want %#x", op, c.VendorErr, c.WRID, want)
			}
		}
		if len(b.done) != 0 {
			t.Errorf("%v: the peer completed %s", op, statuses(b.done))
		}
	}
}

// A receive work request with a fault completes with it when a message arrives. A reliable peer
// learns of it.
func TestFaultOfReceiveWorkRequest(t *testing.T) {
	fault := Fault{ib.WCLocAccessErr, 0x55}
	for name, c := range map[string]struct {
		pair func(*testing.T) (a, b *side)
		op   ib.WROpcode
		want string // completion of the sender
	}{
		"SEND":            {func(t *testing.T) (a, b *side) { return connect(t, defaults) }, ib.WRSend, "1:11"},
		"WRITE with imm":  {func(t *testing.T) (a, b *side) { return connect(t, defaults) }, ib.WRRDMAWriteWithImm, "1:11"},
		"SEND of UC":      {connectUC, ib.WRSend, "1:0"},
		"WRITE imm of UC": {connectUC, ib.WRRDMAWriteWithImm, "1:0"},
		"datagram":        {func(t *testing.T) (a, b *side) { return newUD(t, 17), newUD(t, 18) }, ib.WRSend, "1:0"},
	} {
		a, b := c.pair(t)
		b.rq.wrs = append(b.rq.wrs, RecvWR{ID: 9, SGEs: b.sge(100, 100), Fault: fault})
		b.recv(10, 200, 100)
		a.mem[0] = 7
		a.post(SendWR{ID: 1, Opcode: c.op, Flags: ib.SendSignaled, SGEs: a.sge(0, 8), RemoteAddr: sideBase, RKey: b.region.RKey(),
			Dest: "somewhere", RemoteQPN: 18, RemoteQKey: testQKey})
		run(t, a, b, deliverAll)
		if got := statuses(a.done); got != c.want {
			t.Errorf("%s: the sender completed %s, want %s", name, got, c.want)
		}
		if got := statuses(b.done); got != "9:8 10:5" || b.done[0].VendorErr != 0x55 || b.done[1].VendorErr != 0 || b.qp.State() != ib.QPSErr {
			t.Errorf("%s: completed %s in %v", name, got, b.qp.State())
		}
		if b.mem[100] != 0 || b.mem[200] != 0 {
			t.Errorf("%s: the message is in memory", name)
		}
	}
}
