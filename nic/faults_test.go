package nic_test

import (
	"fmt"
	"strings"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
	"softroce/wire/fault"
)

// faults adds the rules of a program to the NIC of a client. Their IDs are their lines.
func (c *client) faults(program string) {
	c.t.Helper()
	p, err := fault.Parse(strings.NewReader(program))
	check(c.t, err)
	fault.NewVerbs().Number(p)
	c.Device.AddFaults(p)
}

// Every error that a rule may choose arrives at the program, for every operation, with its number
// of the vendor. The queue pair fails, what was posted behind is flushed, and another one goes on.
func TestWorkRequestsFailByRule(t *testing.T) {
	ops := map[string]ib.WROpcode{"send": ib.WRSend, "rdma_write": ib.WRRDMAWriteWithImm, "rdma_read": ib.WRRDMARead,
		"comp_swap": ib.WRAtomicCmpAndSwp, "fetch_add": ib.WRAtomicFetchAndAdd, "bind_mw": ib.WRBindMW, "local_inv": ib.WRLocalInv,
		"flush": ib.WRFlush, "atomic_write": ib.WRAtomicWrite, "recv": ib.WRSend}
	tried := 0
	for name, status := range ib.WCStatuses {
		for opcode, op := range ops {
			rule := fmt.Sprintf("fail completion %s vendor_err 0x1234 opcode %s qp", name, opcode)
			if _, err := fault.Parse(strings.NewReader(rule + " 1")); err != nil {
				continue
			}
			tried++
			w := newTestFabric(t)
			x, y := pair(w, 1024)
			other, peer := x.client.qp(smallCaps), y.client.qp(smallCaps)
			other.connect(1024, peer)
			peer.connect(1024, other)
			fails := x
			if opcode == "recv" {
				fails = y
			}
			fails.faults(fmt.Sprintf("%s %d", rule, fails.QPN()))
			y.recv(1, y.sge(0, 100))
			for id := range uint64(2) {
				x.post(transport.SendWR{ID: 1 + id, Opcode: op, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
			}
			w.run(1e9)
			l := fails.cq.PollAll()
			if len(l) == 0 || l[0].WRID != 1 || l[0].Status != status || l[0].VendorErr != 0x1234 || fails.State() != ib.QPSErr {
				t.Errorf("%s: completions %+v in %v", rule, l, fails.State())
			}
			if fails == x && (len(l) != 2 || l[1].Status != ib.WCWRFlushErr || l[1].VendorErr != 0) {
				t.Errorf("%s: completions %+v, want a flush behind", rule, l)
			}
			if l := x.cq.PollAll(); opcode == "recv" && (len(l) != 2 || l[0].Status != ib.WCRemOpErr) {
				t.Errorf("%s: the sender's completions %+v", rule, l)
			}
			other.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
			w.run(1e9)
			other.want(3, ib.WCSuccess, ib.WCRDMAWrite)
			if i := fails.Device.Snapshot().Faults; len(i) != 1 || i[0].Acted != i[0].Matched || i[0].Acted == 0 {
				t.Errorf("%s: counted %+v", rule, i)
			}
		}
	}
	if tried < 80 {
		t.Errorf("tried only %d combinations", tried)
	}
}

// A step receives all frames that refer to memory, also if a rule drops more of them than one
// Receive of the link drops.
func TestStepReceivesAllReferencesThatRuleDrops(t *testing.T) {
	const senders, each = 6, 100
	w := newTestFabric(t)
	b := w.client(w.nic(1))
	caps := nic.Caps{MaxSendWR: each, MaxRecvWR: 1, MaxSendSGE: 1}
	var sent [senders]*payloadRecorder
	for i := range sent {
		a := w.client(w.nic(byte(i+2), func(l wire.Link) wire.Link {
			sent[i] = &payloadRecorder{Link: l, fabric: true}
			return sent[i]
		}))
		x, y := a.qpOf(ib.QPTypeUC, caps), b.qpOf(ib.QPTypeUC, caps)
		x.connect(1024, y)
		y.connect(1024, x)
		for range each {
			x.post(transport.SendWR{Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
		}
	}
	b.faults("drop receive")
	most, before := 0, 0
	for range 10 {
		frames := 0
		for _, l := range sent {
			frames += l.frames
		}
		w.now++
		w.engine.Step(w.now)
		if n := b.Device.Snapshot().Faults[0].Acted; n != uint64(frames) {
			t.Errorf("%d of %d frames were received", n, frames)
		}
		most, before = max(most, frames-before), frames
	}
	if most <= 4*64 {
		t.Errorf("at most %d frames waited", most)
	}
}

// A rule for packets of a client acts on what its queue pairs send and receive, and on no others.
func TestRulesForPacketsOfClients(t *testing.T) {
	for _, rule := range []string{"drop send client victim", "drop receive client 7", "drop client other,victim"} {
		w := newTestFabric(t)
		d, peers := w.nic(1), w.client(w.nic(2))
		fails := w.clientOf(d, nic.ContextOptions{PID: 7, Comm: "victim"})
		works := w.clientOf(d, nic.ContextOptions{PID: 8, Comm: "bystander"})
		fails.faults(rule)
		for _, c := range []*client{fails, works} {
			q, peer := c.qp(smallCaps), peers.qp(smallCaps)
			q.connect(1024, peer)
			peer.connect(1024, q)
			q.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: peers.mr.RKey(), SGEs: c.sge(0, 8)})
			w.run(20e9)
			want := ib.WCSuccess
			if c == fails {
				want = ib.WCRetryExcErr
			}
			q.want(1, want, ib.WCRDMAWrite)
		}
		if i := d.Snapshot().Faults; len(i) != 1 || i[0].Acted == 0 || i[0].Acted != i[0].Matched {
			t.Errorf("%s: counted %+v", rule, i)
		}
	}
}

// An access that a rule refuses is one with an R_Key that does not exist. Another queue pair of the
// client goes on, and so does the same memory without the rule.
func TestAccessesAreRefusedByRule(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAndAdd,
		ib.WRAtomicWrite} {
		w := newTestFabric(t)
		x, y := pair(w, 1024)
		other, peer := x.client.qp(smallCaps), y.client.qp(smallCaps)
		other.connect(1024, peer)
		peer.connect(1024, other)
		y.faults(fmt.Sprintf("fail access rkey %d qp %d", y.mr.RKey(), y.QPN()))
		y.recv(1, y.sge(0, 100))
		x.post(transport.SendWR{ID: 1, Opcode: op, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
		other.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
		w.run(1e9)
		got := map[uint64]ib.WCStatus{}
		for _, c := range x.cq.PollAll() {
			got[c.WRID] = c.Status
		}
		if got[1] != ib.WCRemAccessErr || got[2] != ib.WCSuccess || x.State() != ib.QPSErr || y.State() != ib.QPSErr {
			t.Errorf("%v: statuses %v, %v to %v", op, got, x.State(), y.State())
		}
		if i := y.Device.Snapshot().Faults; len(i) != 1 || i[0].Acted != 1 {
			t.Errorf("%v: counted %+v", op, i)
		}
		if !y.Device.RemoveFault(1) {
			t.Error("the rule cannot be removed")
		}
		a, b := x.client.qp(smallCaps), y.client.qp(smallCaps)
		a.connect(1024, b)
		b.connect(1024, a)
		a.post(transport.SendWR{ID: 3, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
		w.run(1e9)
		a.want(3, ib.WCSuccess, ib.WCRDMAWrite)
	}
}

// A completion that is late makes those behind it in its queue late, and no others.
func TestCompletionsAreLateByRule(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 1024)
	write := func(id uint64) {
		x.post(transport.SendWR{ID: id, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
		w.run(1e6)
	}
	x.faults("slow completion 20ms nth 2")
	write(1)
	write(2)
	write(3)
	x.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	x.wantNone()
	w.run(10e6)
	x.wantNone()
	y.recv(5, y.sge(0, 8))
	x.post(transport.SendWR{ID: 4, Opcode: ib.WRSend, SGEs: x.sge(0, 8)})
	w.run(1e6)
	y.want(5, ib.WCSuccess, ib.WCRecv)
	w.run(10e6)
	x.want(2, ib.WCSuccess, ib.WCRDMAWrite)
	x.want(3, ib.WCSuccess, ib.WCRDMAWrite)
	x.want(4, ib.WCSuccess, ib.WCSend)
	w.run(1e9)
	if w.step() != 0 {
		t.Error("the engine does not sleep after a late completion")
	}
}

func TestHeldCompletionsWaitForTheEndOfTheRule(t *testing.T) {
	w := newTestFabric(t)
	x, y := pair(w, 1024)
	gone := x.client.qp(smallCaps)
	gone.connect(1024, y)
	x.faults("hold completion")
	gone.post(transport.SendWR{ID: 9, Opcode: 77}) // completes in error at once
	x.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
	x.post(transport.SendWR{ID: 2, Opcode: ib.WRRDMARead, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
	w.run(1e9)
	x.wantNone()
	if w.step() != 0 {
		t.Error("the engine does not sleep while completions are held")
	}
	check(t, gone.Context.DestroyQP(gone.QP.QP))
	if x.Device.RemoveFault(2) || !x.Device.RemoveFault(1) || x.Device.RemoveFault(1) {
		t.Error("RemoveFault")
	}
	w.run(1e6)
	x.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	x.want(2, ib.WCSuccess, ib.WCRDMARead)
	x.wantNone() // the work request of the queue pair that was destroyed
}

func TestHeldCompletionsOverrunTheirQueue(t *testing.T) {
	w := newTestFabric(t)
	c, y := w.client(w.nic(1)), w.client(w.nic(2)).qp(smallCaps)
	c.cq = c.newCQ(4)
	x := c.qp(smallCaps)
	x.connect(1024, y)
	y.connect(1024, x)
	x.faults("hold completion")
	for id := range uint64(5) {
		if id == 4 && x.had(ib.EventCQErr) {
			t.Fatal("overrun with 4 of 4 completions")
		}
		x.post(transport.SendWR{ID: id, Opcode: ib.WRRDMAWrite, RKey: y.mr.RKey(), SGEs: x.sge(0, 8)})
		w.run(1e6)
	}
	if !x.had(ib.EventCQErr) || x.State() != ib.QPSErr {
		t.Errorf("events %v in %v", x.Events, x.State())
	}
}
