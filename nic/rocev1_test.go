package nic_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// firstV1 is the SGID index of RoCE v1 that belongs to index 0.
const firstV1 = 32

// attrsV1 is attrs with a GID of RoCE v1.
func attrsV1(mtu int, peer *queue) nic.QPAttr {
	a := attrs(mtu, peer)
	a.AV.SGIDIndex += firstV1
	return a
}

// A networkRecorder is a link that counts the frames of each network that it receives.
type networkRecorder struct {
	wire.Link
	received map[packet.Network]int
}

func (r *networkRecorder) Receive(now int64, batch []wire.RxFrame) (int, error) {
	n, err := r.Link.Receive(now, batch)
	for i := range batch[:n] {
		r.received[batch[i].Network]++
	}
	return n, err
}

func record(r *networkRecorder) func(wire.Link) wire.Link {
	return func(l wire.Link) wire.Link {
		r.Link, r.received = l, map[packet.Network]int{}
		return r
	}
}

func TestConnectionsOfRoCEv1TransferMessages(t *testing.T) {
	for _, kind := range []ib.QPType{ib.QPTypeRC, ib.QPTypeUC} {
		t.Run(kind.String(), func(t *testing.T) {
			w := newTestFabric(t)
			var r networkRecorder
			a, b := w.client(w.nic(1)).qpOf(kind, smallCaps), w.client(w.nic(2, record(&r))).qpOf(kind, smallCaps)
			a.connectWith(attrsV1(1024, b))
			b.connectWith(attrsV1(1024, a))
			fill(a.mem[:5000], 1)
			b.recv(70, b.sge(1<<20, 1<<20))
			a.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 5000)})
			w.run(1e9)
			a.want(1, ib.WCSuccess, ib.WCSend)
			b.want(70, ib.WCSuccess, ib.WCRecv)
			if !bytes.Equal(b.mem[1<<20:][:5000], a.mem[:5000]) {
				t.Error("the received data differs")
			}
			if r.received[packet.RoCEv1] != 5 || r.received[packet.RoCEv2] != 0 {
				t.Errorf("received packets of %v, want 5 of RoCE v1", r.received)
			}
			if p := b.Device.Snapshot().QPs[0]; !p.RoCEv1 {
				t.Errorf("path %+v", p.PathInfo)
			}
		})
	}
}

// A connection receives the packets of its own version of RoCE only.
func TestConnectionsDropPacketsOfTheOtherVersion(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b func(int, *queue) nic.QPAttr
	}{{"v1 to v2", attrsV1, attrs}, {"v2 to v1", attrs, attrsV1}} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestFabric(t)
			a, b := w.client(w.nic(1)).qp(smallCaps), w.client(w.nic(2)).qp(smallCaps)
			attrs := c.a(1024, b)
			attrs.RetryCount = 0
			a.connectWith(attrs)
			b.connectWith(c.b(1024, a))
			b.recv(70, b.sge(0, 100))
			a.post(transport.SendWR{ID: 1, Opcode: ib.WRSend, SGEs: a.sge(0, 100)})
			w.run(10e9)
			a.want(1, ib.WCRetryExcErr, 0)
			b.wantNone()
			if n := b.Device.Counters().Drops[transport.DropSource]; n != 1 {
				t.Errorf("%d drops as %v, want 1; all: %v", n, transport.DropSource, b.Device.Counters().Drops)
			}
		})
	}
}

// ahTo creates address handle n of c with a GID of its own.
func (c *client) ahTo(n uint32, index int, dst nic.GID) {
	c.t.Helper()
	av := nic.AddressVector{DGID: dst, SGIDIndex: index, Port: 1, TClass: 0x28, FlowLabel: 0x12345, HopLimit: 9}
	var err error
	av.Path, err = c.Device.ResolvePath(context.Background(), &av)
	check(c.t, err)
	_, err = c.Context.CreateAH(c.pd, n, av)
	check(c.t, err)
}

func TestDatagramOfRoCEv1HasItsGRH(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).ud(), w.client(w.nic(2)).ud()
	a.ahTo(7, firstV1+1, b.Device.GIDs()[1].GID)
	fill(a.mem[:1000], 1)
	b.recv(70, b.sge(0, 4096))
	a.sendTo(1, 7, b.QPN(), 1000)
	w.run(1e6)
	a.want(1, ib.WCSuccess, ib.WCSend)
	if c := b.want(70, ib.WCSuccess, ib.WCRecv); c.ByteLen != 1040 || c.Flags != ib.WCGRH || c.SL != 0 {
		t.Errorf("completion %+v", c)
	}
	src, dst := a.Device.GIDs()[1].GID, b.Device.GIDs()[1].GID
	want := append([]byte{0x62, 0x81, 0x23, 0x45, 0x04, 0x00, 0x1b, 9}, append(src[:], dst[:]...)...)
	want[5] = byte(12 + 8 + 1000 + 4 - 0x400)
	if !bytes.Equal(b.mem[:40], want) {
		t.Errorf("GRH\n% x, want\n% x", b.mem[:40], want)
	}
	if !bytes.Equal(b.mem[40:1040], a.mem[:1000]) {
		t.Error("the received data differs")
	}
}

func TestDatagramsReachGroupOfRoCEv1(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.client(w.nic(1)).ud(), w.client(w.nic(2)).ud()
	group := nic.GIDOf(netip.MustParseAddr("ff0e::ffff:ef01:203")) // that of 239.1.2.3
	check(t, b.Context.AttachMcast(b.QP.QP, group))
	a.ahTo(7, firstV1+1, group)
	b.recv(70, b.sge(0, 4096))
	a.sendTo(1, 7, 0xffffff, 100)
	w.run(1e6)
	a.want(1, ib.WCSuccess, ib.WCSend)
	b.want(70, ib.WCSuccess, ib.WCRecv)
	if g := packet.GRH(b.mem[:40]); g.IsIP() || g.Src().String() != "192.0.2.1" || nic.GIDOf(g.Dst()) != group {
		t.Errorf("GRH % x", g)
	}
	av := nic.AddressVector{DGID: group, SGIDIndex: 1, Port: 1}
	_, err := a.Device.ResolvePath(context.Background(), &av)
	wantErrno(t, "a group of IPv6 with a GID of RoCE v2 and IPv4", err, syscall.EINVAL)
}

// A NIC that does not offer RoCE v1 drops datagrams, of programs and to QP 1.
func TestDatagramsOfRoCEv1AreDroppedWithoutItsGIDs(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1)).ud()
	d := w.nicOf(2, nic.DeviceConfig{Identity: nic.Identity{RoCEv1GIDs: nic.NoRoCEv1GIDs}})
	d.HandleMADs(func(*nic.MAD) bool { t.Error("QP 1 received a datagram"); return true })
	b := w.client(d).ud()
	group := nic.GIDOf(netip.MustParseAddr("239.1.2.3"))
	check(t, b.Context.AttachMcast(b.QP.QP, group))
	a.ahTo(7, firstV1+1, d.GIDs()[1].GID)
	a.ahTo(8, firstV1+1, group)
	b.recv(70, b.sge(0, 4096))
	a.sendTo(1, 7, b.QPN(), 100)
	a.sendTo(2, 8, 0xffffff, 100)
	m := madBetween("192.0.2.1", "192.0.2.2", 0)
	m.Path.Network = packet.RoCEv1
	a.Device.SendMAD(m)
	w.run(1e6)
	b.wantNone()
	if n := d.Counters().Drops[transport.DropGID]; n != 3 {
		t.Errorf("%d drops as %v, want 3; all: %v", n, transport.DropGID, d.Counters().Drops)
	}
}

// The path back to the sender of a MAD has its version of RoCE.
func TestMADsAreAnsweredInTheirVersion(t *testing.T) {
	w := newTestFabric(t)
	var r networkRecorder
	a, b := w.nic(1, record(&r)), w.nic(2)
	received := 0
	a.HandleMADs(func(*nic.MAD) bool { received++; return true })
	b.HandleMADs(func(m *nic.MAD) bool { b.SendMAD(m); return true })
	for _, network := range []packet.Network{packet.RoCEv1, packet.RoCEv2} {
		m := madBetween("192.0.2.1", "192.0.2.2", 0)
		m.Path.Network = network
		a.SendMAD(m)
	}
	w.step()
	if received != 2 || r.received[packet.RoCEv1] != 1 || r.received[packet.RoCEv2] != 1 {
		t.Errorf("%d datagrams received, of %v", received, r.received)
	}
}

// A CNP is a packet of RoCE v2 (annex A17.9), and so are the marks that cause it.
func TestConnectionOfRoCEv1IgnoresCongestionMarks(t *testing.T) {
	w := newTestFabric(t)
	var in *injectingLink
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { in = &injectingLink{Link: l}; return in })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	a.connectWith(attrsV1(1024, b))
	b.connectWith(attrsV1(1024, a))
	for _, h := range []packet.Header{
		{BTH: packet.BTH{Opcode: packet.OpcodeCNP, BECN: true, PKey: packet.DefaultPKey, DestQP: a.QPN()}},
		{BTH: packet.BTH{Opcode: packet.WriteOnly, PKey: packet.DefaultPKey, DestQP: a.QPN(), PSN: 100}},
	} {
		head := make([]byte, packet.MaxHeaderLen+16)
		n := h.Put(head)
		if h.Opcode == packet.OpcodeCNP {
			n += 16
		}
		in.frames = append(in.frames, wire.RxFrame{Network: packet.RoCEv1, TClass: 3, Head: head[:n],
			Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr("192.0.2.1")})
	}
	w.run(1e6)
	c := a.Device.Counters()
	if c.Drops[transport.DropService] != 1 || c.CNPSent != 0 || c.RxECNMarked != 0 || c.RxOpcode[packet.WriteOnly] != 1 {
		t.Errorf("%d CNPs dropped as %v, %d sent, %d marks; all drops: %v", c.Drops[transport.DropService], transport.DropService, c.CNPSent, c.RxECNMarked, c.Drops)
	}
}

// GIDs of RoCE v1 have indices of their own behind those of RoCE v2, which do not move.
func TestGIDsOfRoCEv1AreBehindThoseOfRoCEv2(t *testing.T) {
	for _, c := range []struct {
		size int
		want string // indices of RoCE v2, and those of RoCE v1
	}{
		{0, "[0 1 2] [32 33 34]"}, {1024, "[0 1 2] [32 33 34]"}, {8, "[0 1 2] [4 5 6]"},
		{4, "[0 1 2] [3]"}, {3, "[0 1 2] []"}, {1, "[0] []"},
	} {
		w := newTestFabric(t)
		p := netip.MustParsePrefix
		i := wire.StaticInterface("eth0", [6]byte{0x02, 0, 0, 0, 0, 1}, 1500, p("192.0.2.1/24"), p("2001:db8::1/64"))
		d, err := w.engine.AddDevice(nic.DeviceConfig{Name: "x", Link: w.fabric.NewLink(w.engine), Iface: i, Limits: nic.Limits{GIDTableSize: c.size}})
		check(t, err)
		v2, v1, gids := []int{}, []int{}, map[int]nic.GID{}
		for _, e := range d.GIDs() {
			gids[e.Index] = e.GID
			if e.RoCEv1 {
				v1 = append(v1, e.Index)
			} else {
				v2 = append(v2, e.Index)
			}
		}
		if got := fmt.Sprint(v2, v1); got != c.want {
			t.Errorf("table of %d: indices %s, want %s", c.size, got, c.want)
		}
		for _, k := range v1 {
			if half := min(d.QueryPort().GIDTableLen, 64) / 2; gids[k] != gids[k-half] {
				t.Errorf("table of %d: index %d has %v, index %d %v", c.size, k, gids[k], k-half, gids[k-half])
			}
		}
	}
}

// A link of IP packets offers no RoCE v1. Those of a persona are listed and cannot be used.
func TestGIDsOfRoCEv1OnLinkWithoutIt(t *testing.T) {
	w := newTestFabric(t)
	onlyIP := func(l wire.Link) wire.Link { return ipLink{l} }
	if l := w.nic(1, onlyIP).GIDs(); len(l) != 2 || l[0].RoCEv1 || l[1].RoCEv1 {
		t.Errorf("GIDs %+v", l)
	}
	d := w.nicOf(2, nic.DeviceConfig{Identity: nic.Identity{RoCEv1GIDs: nic.RoCEv1GIDsBefore}}, onlyIP)
	for _, e := range d.GIDs() {
		av := nic.AddressVector{DGID: e.GID, SGIDIndex: e.Index, Port: 1}
		_, err := d.ResolvePath(context.Background(), &av)
		if e.RoCEv1 {
			wantErrno(t, e.GID.String(), err, syscall.EOPNOTSUPP)
		} else {
			check(t, err)
		}
	}
}

// An ipLink is a link that carries IP packets only.
type ipLink struct{ wire.Link }

func (l ipLink) Capabilities() wire.Capabilities {
	c := l.Link.Capabilities()
	c.RoCEv1 = false
	return c
}

// A NIC without GIDs of RoCE v1 cannot have it as the default mode.
func TestDefaultRoCEModeNeedsGIDs(t *testing.T) {
	w := newTestFabric(t)
	if d := w.nicOf(1, nic.DeviceConfig{DefaultRoCEMode: packet.RoCEv1}); d.DefaultRoCEMode() != packet.RoCEv1 {
		t.Errorf("default mode %v", d.DefaultRoCEMode())
	}
	iface := wire.StaticInterface("fab0", [6]byte{2, 0, 0, 0, 0, 2}, 9000)
	c := nic.DeviceConfig{Name: "nic2", Link: w.fabric.NewLink(w.engine), Iface: iface, DefaultRoCEMode: packet.RoCEv1}
	c.Identity.RoCEv1GIDs = nic.NoRoCEv1GIDs
	if _, err := w.engine.AddDevice(c); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("%v, want EINVAL", err)
	}
}
