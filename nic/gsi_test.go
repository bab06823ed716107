package nic_test

import (
	"net/netip"
	"testing"

	"softroce/internal/ib"
	"softroce/nic"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// madBetween returns a datagram between two addresses whose last byte is b.
func madBetween(src, dst string, b byte) *nic.MAD {
	m := &nic.MAD{Path: wire.Path{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), HopLimit: 64}}
	m.Data[0], m.Data[ib.MADSize-1] = 1, b
	return m
}

func TestMADsReachPeerAndOwnGSI(t *testing.T) {
	w := newTestFabric(t)
	a, b := w.nic(1), w.nic(2)
	var atA, atB []*nic.MAD
	a.HandleMADs(func(m *nic.MAD) bool { atA = append(atA, m); return true })
	b.HandleMADs(func(m *nic.MAD) bool {
		atB = append(atB, m)
		answer := &nic.MAD{Data: m.Data, Path: m.Path}
		answer.Data[ib.MADSize-1]++
		b.SendMAD(answer)
		return true
	})
	for i := range 300 { // more than one batch holds
		a.SendMAD(madBetween("192.0.2.1", "192.0.2.2", byte(i)))
	}
	w.step()
	if len(atA) != 300 || len(atB) != 300 {
		t.Fatalf("B received %d datagrams and A %d responses, want 300 each", len(atB), len(atA))
	}
	for i, m := range atA {
		if m.Data[ib.MADSize-1] != byte(i)+1 || m.Path.Src != netip.MustParseAddr("192.0.2.1") || m.PKey != packet.DefaultPKey {
			t.Fatalf("response %d: last byte %d, to %v", i, m.Data[ib.MADSize-1], m.Path.Src)
		}
	}
	a.SendMAD(madBetween("192.0.2.1", "192.0.2.1", 77))
	w.step()
	if m := atA[len(atA)-1]; len(atA) != 301 || m.Data[ib.MADSize-1] != 77 {
		t.Errorf("a datagram from A to itself did not arrive")
	}
	c := a.Counters()
	if c.TxOpcode[0x64] != 301 || c.RxOpcode[0x64] != 301 {
		t.Errorf("counted %d sent and %d received, want 301", c.TxOpcode[0x64], c.RxOpcode[0x64])
	}
}

func TestInvalidPacketsForGSIAreDropped(t *testing.T) {
	for _, c := range []struct {
		name   string
		reason transport.DropReason
		do     func(f *wire.RxFrame, h *packet.Header, size *int)
	}{
		{"P_Key of another partition", transport.DropPKey, func(_ *wire.RxFrame, h *packet.Header, _ *int) { h.PKey = 0x8001 }},
		{"opcode of RC", transport.DropService, func(_ *wire.RxFrame, h *packet.Header, _ *int) { h.Opcode = packet.SendOnly }},
		{"with immediate data", transport.DropService, func(_ *wire.RxFrame, h *packet.Header, _ *int) {
			h.Opcode = packet.Opcode(packet.UD) | packet.SendOnlyImm
		}},
		{"wrong Q_Key", transport.DropQKey, func(_ *wire.RxFrame, h *packet.Header, _ *int) { h.DETH.QKey = 0x11111111 }},
		{"wrong ICRC", transport.DropICRC, func(f *wire.RxFrame, _ *packet.Header, _ *int) { f.BadICRC = true }},
		{"too long", transport.DropRecvTooShort, func(_ *wire.RxFrame, _ *packet.Header, n *int) { *n = 260 }},
		{"too short", transport.DropInvalid, func(_ *wire.RxFrame, _ *packet.Header, n *int) { *n = 252 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestFabric(t)
			var in *injectingLink
			d := w.nic(1, func(l wire.Link) wire.Link { in = &injectingLink{Link: l}; return in })
			received := 0
			d.HandleMADs(func(*nic.MAD) bool { received++; return true })
			h := packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(packet.UD) | packet.SendOnly, PKey: packet.DefaultPKey, DestQP: 1},
				DETH: packet.DETH{QKey: 0x80010000, SrcQP: 1}}
			f := wire.RxFrame{Src: netip.MustParseAddr("192.0.2.9"), Dst: netip.MustParseAddr("192.0.2.1")}
			size := ib.MADSize
			c.do(&f, &h, &size)
			b := make([]byte, packet.MaxHeaderLen+size)
			n := h.Put(b)
			f.Head = b[:n+size]
			in.frames = append(in.frames, f)
			w.step()
			if n := d.Counters().Drops[c.reason]; n != 1 || received != 0 {
				t.Errorf("%d drops as %v, %d received; all: %v", n, c.reason, received, d.Counters().Drops)
			}
		})
	}
}

// A link that accepts nothing must not make the queue grow without bound.
func TestMADQueueIsBounded(t *testing.T) {
	w := newTestFabric(t)
	d := w.nic(1)
	for range 5000 {
		d.SendMAD(madBetween("192.0.2.1", "192.0.2.2", 0))
	}
	if n := d.Counters().TxStalled; n != 5000-1024 {
		t.Errorf("%d discarded, want %d", n, 5000-1024)
	}
}
