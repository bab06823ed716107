package nic_test

import (
	"context"
	"net/netip"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/transport"
	"softroce/wire"
)

// A fakeNeighbors is an interface on which a neighbor's MAC changes without notice.
type fakeNeighbors struct {
	wire.Interface
	mac      [6]byte // the actual MAC of every neighbor
	resolved [6]byte // the MAC that Resolve returns
	notify   func(wire.Station, [6]byte)
	checks   int
}

func (s *fakeNeighbors) OnNeighbor(f func(wire.Station, [6]byte)) { s.notify = f }

func (s *fakeNeighbors) Resolve(_ context.Context, p *wire.Path) error {
	p.DstMAC = s.resolved
	return nil
}

func (s *fakeNeighbors) ProbeNeighbor(dst wire.Station) {
	s.checks++
	s.notify(dst, s.mac)
}

// A macFilter drops frames that are not for the neighbor's current MAC, as Ethernet does.
type macFilter struct {
	wire.Link
	street *fakeNeighbors
}

func (s *macFilter) Send(now int64, batch []wire.TxFrame) (int, error) {
	for i := range batch {
		if batch[i].Path.DstMAC != s.street.mac {
			continue // lost
		}
		if n, err := s.Link.Send(now, batch[i:i+1]); n == 0 || err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

func TestNewMACOfPeerIsFoundBeforeRetriesRunOut(t *testing.T) {
	w := newTestFabric(t)
	prefix := netip.MustParsePrefix("192.0.2.1/24")
	s := &fakeNeighbors{Interface: wire.StaticInterface("lan0", [6]byte{2, 0, 0, 0, 0, 1}, 9000, prefix), resolved: [6]byte{2, 1}, mac: [6]byte{2, 1}}
	d, err := w.engine.AddDevice(nic.DeviceConfig{Name: "nic1", Iface: s,
		Link: &macFilter{w.fabric.NewLink(w.engine, prefix.Addr()), s}})
	check(t, err)
	a, b := w.client(d).qp(smallCaps), w.client(w.nic(2)).qp(smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	send := func(id uint64) {
		t.Helper()
		a.post(transport.SendWR{ID: id, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
		w.run(1e9)
		a.want(id, ib.WCSuccess, ib.WCRDMAWrite)
	}
	send(1)
	if s.checks != 0 {
		t.Errorf("%d checks of the neighbor although the peer responds", s.checks)
	}
	s.mac = [6]byte{2, 2}
	send(2)
	if n := d.Counters().LocalACKTimeout; s.checks != 1 || n != 1 {
		t.Errorf("%d checks of the neighbor after %d timeouts, want 1", s.checks, n)
	}
}
