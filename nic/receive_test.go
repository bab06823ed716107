package nic_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
	"softroce/wire/fault"
)

// An injectingLink receives frames that a test provides.
type injectingLink struct {
	wire.Link
	frames []wire.RxFrame
}

func (l *injectingLink) Join(g netip.Addr) error { return wire.Join(l.Link, g) }
func (l *injectingLink) Leave(g netip.Addr)      { wire.Leave(l.Link, g) }

func (l *injectingLink) Receive(now int64, batch []wire.RxFrame) (int, error) {
	if n := copy(batch, l.frames); n > 0 {
		l.frames = l.frames[n:]
		return n, nil
	}
	return l.Link.Receive(now, batch)
}

// A markingLink marks every frame that it sends with "congestion experienced".
type markingLink struct{ wire.Link }

func (l markingLink) Send(now int64, frames []wire.TxFrame) (int, error) {
	for i := range frames {
		frames[i].CE = true
	}
	return l.Link.Send(now, frames)
}

func TestMarkedPacketsAreCounted(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { return markingLink{l} })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	a.connect(1024, b)
	b.connect(1024, a)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 3000)})
	w.run(int64(time.Millisecond))
	a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
	if x, y := a.Device.Counters().RxECNMarked, b.Device.Counters().RxECNMarked; x != 0 || y != 3 {
		t.Errorf("counted %d and %d marked packets, want 0 and 3", x, y)
	}
}

// dropNotes is a capture that keeps its notes, each with the mark of its frame.
type dropNotes struct {
	last uint64 // the mark of the last frame
	list []string
}

func (*dropNotes) WriteFrame(int64, int, []byte) error { panic("a NoteSink gets marked frames") }

func (n *dropNotes) WriteMarked(_ int64, _ int, _ []byte, mark uint64) error {
	n.last = mark
	return nil
}

func (n *dropNotes) WriteNote(_ int64, _ int, mark uint64, note *fault.Note) error {
	n.list = append(n.list, fmt.Sprint(mark, " ", note.Comment()))
	return nil
}

// The error in a frame determines the one counter; with several errors, the first check does.
func TestDroppedFrameCountsOneReason(t *testing.T) {
	head := func(h packet.Header, tail ...byte) []byte {
		b := make([]byte, packet.MaxHeaderLen)
		return append(b[:h.Put(b)], tail...)
	}
	for _, c := range []struct {
		name   string
		reason transport.DropReason
		do     func(f *wire.RxFrame, h *packet.Header)
	}{
		{"shorter than a BTH", transport.DropTruncated, func(f *wire.RxFrame, _ *packet.Header) { f.Head = f.Head[:11] }},
		{"shorter than its RETH", transport.DropTruncated, func(f *wire.RxFrame, _ *packet.Header) { f.Head = f.Head[:20] }},
		{"opcode not assigned", transport.DropOpcode, func(f *wire.RxFrame, h *packet.Header) { f.Head[0] = 0x1f }},
		{"pad longer than the payload", transport.DropPad, func(f *wire.RxFrame, h *packet.Header) {
			h.Pad = 3
			f.Head = head(*h, 0, 0)
		}},
		{"transport version 1", transport.DropTVer, func(f *wire.RxFrame, h *packet.Header) {
			h.TVer = 1
			f.Head = head(*h)
		}},
		{"unknown queue pair", transport.DropQPN, func(f *wire.RxFrame, h *packet.Header) {
			h.DestQP = 0xabcdef
			f.Head = head(*h)
		}},
		{"QP 1 without a handler", transport.DropQPN, func(f *wire.RxFrame, h *packet.Header) {
			h.DestQP = 1
			f.Head = head(*h)
		}},
		{"P_Key of another partition", transport.DropPKey, func(f *wire.RxFrame, h *packet.Header) {
			h.PKey = 0x8001
			f.Head = head(*h)
		}},
		{"opcode of UC", transport.DropService, func(f *wire.RxFrame, h *packet.Header) { f.Head[0] |= byte(packet.UC) }},
		{"from another host", transport.DropSource, func(f *wire.RxFrame, h *packet.Header) {
			f.Src = netip.MustParseAddr("192.0.2.99")
		}},
		{"to another address of this host", transport.DropSource, func(f *wire.RxFrame, h *packet.Header) {
			f.Dst = netip.MustParseAddr("192.0.2.98")
		}},
		{"wrong ICRC", transport.DropICRC, func(f *wire.RxFrame, h *packet.Header) { f.BadICRC = true }},
		{"wrong ICRC and P_Key of another partition", transport.DropPKey, func(f *wire.RxFrame, h *packet.Header) {
			h.PKey = 0x8001
			f.Head, f.BadICRC = head(*h), true
		}},
		{"congestion notification without BECN", transport.DropCNP, func(f *wire.RxFrame, h *packet.Header) {
			h.Opcode = packet.OpcodeCNP
			f.Head = head(*h, make([]byte, 16)...)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestFabric(t)
			var in *injectingLink
			var notes dropNotes
			a := w.client(w.nic(1, func(l wire.Link) wire.Link {
				in = &injectingLink{Link: l}
				return wire.NewCaptureLink(in, &notes, wire.CaptureOptions{})
			})).qp(smallCaps)
			b := w.client(w.nic(2)).qp(smallCaps)
			a.connect(1024, b)
			b.connect(1024, a)
			h := packet.Header{BTH: packet.BTH{Opcode: packet.Opcode(packet.WriteOnly), PKey: packet.DefaultPKey,
				DestQP: a.QPN(), PSN: 100}}
			f := wire.RxFrame{Head: head(h), Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr("192.0.2.1")}
			c.do(&f, &h)
			in.frames = append(in.frames, f)
			w.step()
			counters := a.Device.Counters()
			total := uint64(0)
			for _, n := range counters.Drops {
				total += n
			}
			if total != 1 || counters.Drops[c.reason] != 1 {
				t.Errorf("drops %v, want one %v", counters.Dropped(), c.reason)
			}
			if want := fmt.Sprintf("%d dropped: %v (receive)", notes.last, c.reason); !slices.Equal(notes.list, []string{want}) {
				t.Errorf("the capture has the notes %q, want %q", notes.list, want)
			}
			// The connection still works.
			b.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: a.mr.RKey(), SGEs: b.sge(0, 8)})
			w.run(1e9)
			b.want(1, ib.WCSuccess, ib.WCRDMAWrite)
		})
	}
}

func TestPadIsRemovedAcrossSlices(t *testing.T) {
	w := newTestFabric(t)
	var in *injectingLink
	a := w.client(w.nic(1, func(l wire.Link) wire.Link { in = &injectingLink{Link: l}; return in })).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	a.connect(1024, b)
	h := packet.Header{
		BTH: packet.BTH{Opcode: packet.Opcode(packet.WriteOnly), PKey: packet.DefaultPKey, DestQP: a.QPN(),
			PSN: 100, Pad: 3},
		RETH: packet.RETH{RKey: a.mr.RKey(), Length: 5},
	}
	head := make([]byte, packet.MaxHeaderLen)
	head = append(head[:h.Put(head)], 1, 2)
	in.frames = append(in.frames, wire.RxFrame{Head: head, Tail: [][]byte{{3, 4, 5, 0xee}, {0xee}, {0xee}},
		Src: netip.MustParseAddr("192.0.2.2"), Dst: netip.MustParseAddr("192.0.2.1")})
	w.step()
	if got := a.mem[:6]; string(got) != "\x01\x02\x03\x04\x05\x00" {
		t.Errorf("memory holds %x", got)
	}
}

func TestPacketBeforeRTRIsDropped(t *testing.T) {
	w := newTestFabric(t)
	a := w.client(w.nic(1)).qp(smallCaps)
	b := w.client(w.nic(2)).qp(smallCaps)
	a.connect(1024, b)
	a.post(transport.SendWR{ID: 1, Opcode: ib.WRRDMAWrite, RKey: b.mr.RKey(), SGEs: a.sge(0, 8)})
	w.step()
	if n := b.Device.Counters().Drops[transport.DropState]; n != 1 {
		t.Errorf("%d packets counted", n)
	}
	b.connect(1024, a)
	w.run(1e9)
	a.want(1, ib.WCSuccess, ib.WCRDMAWrite)
}
