package nic_test

import (
	"net/netip"
	"strings"
	"testing"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/nic"
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
	owner := nic.Owner{PID: 1, Comm: "test"}
	if q := s.SRQs; len(q) != 1 || q[0] != (nic.SRQInfo{Owner: owner, Entries: 16, MaxSGE: 1, Limit: 3}) || srq.Number() != 0 {
		t.Errorf("SRQs: %+v", q)
	}
	if m := s.MWs; len(m) != 1 || m[0] != (nic.MWInfo{Owner: owner, Type: "2B"}) {
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
