package nic_test

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// trunk adds a NIC with 192.0.2.n untagged and in VLANs 7 and 8.
func (w *testFabric) trunk(n byte, wrap ...func(wire.Link) wire.Link) *nic.Device {
	addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 24)
	iface := wire.StaticTrunk("eth0", [6]byte{2, 0, 0, 0, 0, n}, 9000,
		[]wire.VLANAddress{{Prefix: addr, VLAN: 7, Netdev: "eth0.7"}, {Prefix: addr, VLAN: 8, Netdev: "eth0.8"}}, addr)
	port := w.fabric.NewLink(w.engine)
	port.Follow(iface)
	var link wire.Link = port
	for _, f := range wrap {
		link = f(link)
	}
	d, err := w.engine.AddDevice(nic.DeviceConfig{Name: fmt.Sprint("nic", n), Link: link, Iface: iface})
	check(w.t, err)
	return d
}

// A tagRecorder records the VLAN tags of sent frames.
type tagRecorder struct {
	wire.Link
	vlans, priorities []int
}

func (l *tagRecorder) Send(now int64, batch []wire.TxFrame) (int, error) {
	for _, f := range batch {
		l.vlans, l.priorities = append(l.vlans, int(f.Path.VLAN)), append(l.priorities, int(f.Path.Priority))
	}
	return l.Link.Send(now, batch)
}

func TestGIDOfVLANSendsTag(t *testing.T) {
	w := newTestFabric(t)
	var log *tagRecorder
	a := w.client(w.trunk(1, func(l wire.Link) wire.Link { log = &tagRecorder{Link: l}; return log })).qp(smallCaps)
	b := w.client(w.trunk(2)).qp(smallCaps)
	gids := a.Device.GIDs()
	if len(gids) != 8 || gids[1].VLAN != 0 || gids[2].VLAN != 7 || gids[2].Netdev != "eth0.7" || gids[3].VLAN != 8 || gids[1].GID != gids[3].GID {
		t.Fatalf("GIDs %+v", gids)
	}
	for _, x := range []struct{ q, peer *queue }{{a, b}, {b, a}} {
		at := attrs(1024, x.peer)
		at.AV.SGIDIndex, at.AV.SL = 2, 8+5
		x.q.connectWith(at)
	}
	b.recv(1, b.sge(0, 4000))
	a.post(transport.SendWR{ID: 2, Opcode: ib.WRSend, SGEs: a.sge(0, 4000)})
	w.run(1e9)
	a.want(2, ib.WCSuccess, ib.WCSend)
	if c := b.want(1, ib.WCSuccess, ib.WCRecv); c.VLAN != 5<<13|7 {
		t.Errorf("cvlan %#x", c.VLAN)
	}
	for i := range log.vlans {
		if log.vlans[i] != 7 || log.priorities[i] != 5 {
			t.Fatalf("frame %d has VLAN %d, priority %d", i, log.vlans[i], log.priorities[i])
		}
	}
	got, err := a.Query()
	if err != nil || got.AV.SL != 13 || got.AV.SGIDIndex != 2 {
		t.Errorf("query: SL %d, SGID index %d, %v", got.AV.SL, got.AV.SGIDIndex, err)
	}
	if q := a.Device.Snapshot().QPs[0]; q.VLAN != 7 {
		t.Errorf("the snapshot has VLAN %d", q.VLAN)
	}
}

func TestConnectionOnlyReceivesFromItsVLAN(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.trunk(1)).qp(smallCaps), w.client(w.trunk(2)).qp(smallCaps)
	at := attrs(1024, b)
	at.AV.SGIDIndex, at.Timeout, at.RetryCount = 2, 1, 1
	a.connectWith(at)
	at = attrs(1024, a)
	at.AV.SGIDIndex = 3 // an address in VLAN 8, where the peer has none
	b.connectWith(at)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	w.run(1e9)
	a.want(1, ib.WCRetryExcErr, 0)
	if n := b.Device.Counters().Drops[transport.DropSource]; n != 2 {
		t.Errorf("%d drops because of the source, want 2", n)
	}
	bad := attrs(1024, b)
	bad.AV.SL = 16
	_, err := a.Device.ResolvePath(context.Background(), &bad.AV)
	wantErrno(t, "service level 16", err, syscall.EINVAL)
}

// A link may pass up frames that are not for the NIC.
func TestDatagramNeedsGIDOfNIC(t *testing.T) {
	w := newTestFabric(t)
	var in *injectingLink
	a := w.client(w.trunk(1, func(l wire.Link) wire.Link { in = &injectingLink{Link: l}; return in })).ud()
	b := w.client(w.trunk(2)).ud()
	av := nic.AddressVector{DGID: a.Device.GIDs()[1].GID, SGIDIndex: 2, Port: 1, SL: 3, FlowLabel: 0x12345}
	var err error
	av.Path, err = b.Device.ResolvePath(context.Background(), &av)
	check(t, err)
	_, err = b.Context.CreateAH(b.pd, 1, av)
	check(t, err)
	var seen []wire.RxFrame
	for range 3 {
		a.recv(1, a.sge(0, 100))
	}
	b.sendTo(1, 1, a.QPN(), 8)
	keep := in.Link
	in.Link = &frameRecorder{keep, &seen}
	w.run(1e6)
	if c := a.want(1, ib.WCSuccess, ib.WCRecv); c.VLAN != 3<<13|7 {
		t.Errorf("cvlan %#x", c.VLAN)
	}
	if want := uint16(0xc000 | 0x12345&0x3fff ^ 0x12345>>14); len(seen) != 1 || seen[0].SrcPort != want {
		t.Fatalf("%d frames, source port %#x, want %#x from the flow label", len(seen), seen[0].SrcPort, want)
	}
	f := seen[0]
	for _, change := range []func(*wire.RxFrame){
		func(f *wire.RxFrame) { f.TCI = 9 },
		func(f *wire.RxFrame) { f.Dst = netip.MustParseAddr("192.0.2.77") },
	} {
		g := f
		change(&g)
		in.frames = append(in.frames, g)
	}
	w.run(1e6)
	a.wantNone()
	if n := a.Device.Counters().Drops[transport.DropGID]; n != 2 {
		t.Errorf("%d drops, want 2: %v", n, a.Device.Counters().Drops)
	}
	g := f
	g.Tagged, g.TCI = true, 6<<13 // a priority tag
	in.frames = append(in.frames, g)
	w.run(1e6)
	a.want(1, ib.WCSuccess, ib.WCRecv)
}

// A frameRecorder copies the frames that it receives.
type frameRecorder struct {
	wire.Link
	seen *[]wire.RxFrame
}

func (l *frameRecorder) Receive(now int64, batch []wire.RxFrame) (int, error) {
	n, err := l.Link.Receive(now, batch)
	for _, f := range batch[:n] {
		head := append([]byte(nil), f.Head...)
		for _, t := range f.Tail {
			head = append(head, t...)
		}
		f.Head, f.Tail = head, nil
		*l.seen = append(*l.seen, f)
	}
	return n, err
}
