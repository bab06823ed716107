package nic_test

import (
	"net/netip"
	"strings"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
	"softroce/nic/nictest"
	"softroce/transport"
	"softroce/wire"
	"softroce/wire/fault"
)

func TestSnapshotHasAllKindsOfObjects(t *testing.T) {
	w := newTestFabric(t)
	program, err := fault.Parse(strings.NewReader("# twice\nduplicate send kind write nth 1\n"))
	check(t, err)
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { return wire.NewFaultLink(l, program) })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	for id := range uint64(2) {
		a.post(transport.SendWR{ID: id, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
		w.run(1e9)
		a.want(id, ib.WCSuccess, ib.WCRDMAWrite)
	}
	slots, sges := 10, 1
	check(t, a.Device.RoundSRQ(&slots, &sges))
	srq, err := a.Context.CreateSRQ(nic.SRQInit{PD: a.pd, MaxWR: slots, MaxSGE: sges, Limit: 3, Ring: nic.NewPage(abi.RingSize(slots, abi.RecvSlotSize(sges)))})
	check(t, err)
	_, err = a.Context.AllocMW(a.pd, ib.MWType2)
	check(t, err)
	a.ah(1, "192.0.2.2")
	ud := a.qpOf(ib.QPTypeUD, smallCaps)
	group := netip.MustParseAddr("239.1.2.3")
	check(t, a.Context.AttachMcast(ud.QP.QP, nic.GIDOf(group)))

	s := a.Device.Snapshot()
	if f := s.Faults; len(f) != 1 || f[0] != (nic.FaultInfo{Line: 2, Rule: "duplicate send kind write nth 1", Matched: 2, Acted: 1}) {
		t.Errorf("faults: %+v", f)
	}
	owner, pd := nic.Owner{PID: 1, Comm: "test"}, s.PDs[0].ID
	if q := s.SRQs; len(q) != 1 || q[0] != (nic.SRQInfo{Owner: owner, ID: q[0].ID, PD: pd, Entries: 16, MaxSGE: 1, Limit: 3}) || srq.Number() != 0 {
		t.Errorf("SRQs: %+v", q)
	}
	if m := s.MWs; len(m) != 1 || m[0] != (nic.MWInfo{Owner: owner, ID: m[0].ID, PD: pd, Type: "2B"}) {
		t.Errorf("MWs: %+v", m)
	}
	if h := s.AHs; len(h) != 1 || h[0].Dst != netip.MustParseAddr("192.0.2.2") || h[0].TClass != 0x28 || h[0].HopLimit != 64 {
		t.Errorf("AHs: %+v", h)
	}
	if g := s.Groups; len(g) != 1 || g[0].Addr != group || len(g[0].QPs) != 1 || g[0].QPs[0] != ud.QPN() {
		t.Errorf("groups: %+v", g)
	}
	if p := s.PDs; len(p) != 1 || p[0].Users != 6 { // MR, two QPs, SRQ, MW, AH
		t.Errorf("PDs: %+v", p)
	}
	if c := s.Contexts; len(c) != 1 || c[0].MWs != 1 || c[0].SRQs != 1 || c[0].AHs != 1 || c[0].QPs != 2 {
		t.Errorf("contexts: %+v", c)
	}
	if n := b.Device.Snapshot(); len(n.Faults)+len(n.Groups)+len(n.SRQs)+len(n.MWs)+len(n.AHs) != 0 {
		t.Errorf("the second NIC's snapshot is %+v", n)
	}
}

// The numbers of objects are those by which other objects refer to them.
func TestSnapshotNumbersJoinObjects(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1)).qp(smallCaps)
	dm, err := a.Context.AllocDM(64, 0)
	check(t, err)
	_, err = a.Context.RegDM(a.pd, dm, 0, 64, ib.AccessZeroBased)
	check(t, err)
	slots, sges := 10, 1
	check(t, a.Device.RoundSRQ(&slots, &sges))
	_, err = a.Context.CreateSRQ(nic.SRQInit{PD: a.pd, MaxWR: slots, MaxSGE: sges, Ring: nic.NewPage(abi.RingSize(slots, abi.RecvSlotSize(sges)))})
	check(t, err)

	s := a.Device.Snapshot()
	numbers := map[uint32]bool{}
	add := func(n uint32) {
		if n == 0 || numbers[n] {
			t.Errorf("number %d is 0 or taken", n)
		}
		numbers[n] = true
	}
	cqs := map[uint32]bool{}
	for _, q := range s.CQs {
		add(q.ID)
		cqs[q.ID] = true
	}
	for _, m := range s.MRs {
		add(m.ID)
		if m.PD != s.PDs[0].ID || (m.DM != 0) != (m.Length == 64) {
			t.Errorf("MR: %+v", m)
		}
	}
	add(s.PDs[0].ID)
	add(s.SRQs[0].ID)
	add(s.DMs[0].ID)
	if s.MRs[len(s.MRs)-1].DM != s.DMs[0].ID || s.SRQs[0].PD != s.PDs[0].ID {
		t.Errorf("MRs %+v, DMs %+v, SRQs %+v", s.MRs, s.DMs, s.SRQs)
	}
	if q := s.QPs[0]; q.PD != s.PDs[0].ID || !cqs[q.SendCQ] || !cqs[q.RecvCQ] || q.SRQ != 0 {
		t.Errorf("QP: %+v", q)
	}
}

// A queue pair counts its own retransmissions.
func TestSnapshotShowsRecoveryOfQueuePair(t *testing.T) {
	w := newTestFabric(t)
	program, err := fault.Parse(strings.NewReader("drop send kind write nth 1\n"))
	check(t, err)
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { return wire.NewFaultLink(l, program) })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	for id := range uint64(2) { // the second arrives first, and draws a NAK
		a.post(transport.SendWR{ID: id, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	}
	w.run(1e9)
	requester, responder := a.Device.Snapshot().QPs[0].QPCounters, b.Device.Snapshot().QPs[0].QPCounters
	if want := (transport.QPCounters{Retransmitted: 2, NAKsReceived: 1}); requester != want {
		t.Errorf("requester: %+v, want %+v", requester, want)
	}
	if want := (transport.QPCounters{NAKsSent: 1}); responder != want {
		t.Errorf("responder: %+v, want %+v", responder, want)
	}
}

// A snapshot is made in visits, between which clients create and destroy objects and leave.
func TestSnapshotVisitsDescribeFewObjects(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1))
	d := a.Device
	gone, err := nictest.Open(d, nic.ContextOptions{})
	check(t, err)
	const each, visited = 40, 7
	var cqs []*nictest.CQ
	for i := range each {
		_, err := a.Context.AllocPD()
		check(t, err)
		a.ah(uint32(each-i), "192.0.2.2")
		cq, err := a.CreateCQ(4)
		check(t, err)
		cqs = append(cqs, cq)
		_, err = gone.CreateCQ(4)
		check(t, err)
	}
	visit, finish := nic.Describe(d)
	count := func(s nic.Snapshot) int { return len(s.PDs) + len(s.CQs) + len(s.QPs) + len(s.MRs) + len(s.AHs) }
	before, created, destroyed := 0, 0, 0
	for done := false; !done; {
		done = visit(visited)
		s := finish()
		if n := count(s); n > before+visited {
			t.Fatalf("a visit described %d objects", n-before)
		} else {
			before = n
		}
		switch {
		case created < 5:
			_, err := a.Context.AllocPD()
			check(t, err)
			created++
		case !gone.Context.Closed():
			gone.Context.Close()
		}
		if len(s.CQs) == 0 && destroyed < each/2 { // before they are described: their rings go
			check(t, a.Context.DestroyCQ(cqs[destroyed].CQ))
			destroyed++
		}
	}
	s := finish()
	if len(s.AHs) != each || len(s.Contexts) == 0 || destroyed == 0 {
		t.Errorf("%d AHs of %d, %d contexts, %d CQs destroyed", len(s.AHs), each, len(s.Contexts), destroyed)
	}
	// One CQ is the client's own; those of the client that left are not among them.
	if n := len(s.CQs) - (each - destroyed); n < 0 || n > 1 {
		t.Errorf("%d CQs, want the %d that lived", len(s.CQs), each-destroyed)
	}
	if n := len(s.PDs); n < each || n > each+created+1 {
		t.Errorf("%d PDs; %d lived all the time, %d were created meanwhile", n, each, created)
	}
	whole := d.Snapshot()
	for i := range whole.AHs {
		if s.AHs[i] != whole.AHs[i] {
			t.Errorf("AH %d differs from that of a snapshot in one piece", i)
		}
	}
}
