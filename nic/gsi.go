package nic

import (
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

// The general services interface: QP 1, through which NICs exchange management datagrams (MADs). It
// has no rings and no state machine. The connection manager receives each datagram and sends its
// own.

const (
	udSendOnly = packet.Opcode(packet.UD) | packet.SendOnly

	// maxMADs is how many datagrams may wait to be sent. They only wait for the link, so this limit
	// is reached only if the link has failed.
	maxMADs = 1024
)

// A MAD is a management datagram that was received or is to be sent.
type MAD struct {
	Data [ib.MADSize]byte
	Path wire.Path // received: the path back to the sender
	PKey uint16    // received: that of the packet. Sent: the port's own key of this partition, or its first key
}

// gsi is QP 1 of a device.
type gsi struct {
	queue   []*MAD          // datagrams to send
	receive func(*MAD) bool // nil: the device has no QP 1
	psn     uint32
	header  packet.Header
}

// HandleMADs enables QP 1: the engine calls f for each received datagram. f owns the MAD, must not
// block, and returns false if it has no room for it. Call it before Run.
func (d *Device) HandleMADs(f func(*MAD) bool) { d.gsi.receive = f }

// SendMAD sends a datagram along m.Path, whose source port it sets. It may be called from any
// goroutine, and takes ownership of m. The datagram may be lost.
func (d *Device) SendMAD(m *MAD) {
	d.engine.post(func() {
		if len(d.gsi.queue) >= maxMADs {
			d.tx.discarded++
			return
		}
		if m.Path.SrcPort = d.link.Capabilities().SrcPort; m.Path.SrcPort == 0 {
			m.Path.SrcPort = datagramPort(ib.GSIQPN)
		}
		d.gsi.queue, d.tx.mads = append(d.gsi.queue, m), true
	})
}

// receiveMAD handles a parsed packet for QP 1, with the checks of a UD queue pair in the same
// order.
func (d *Device) receiveMAD(f *wire.RxFrame) {
	p := &d.buffers.pkt
	_, member := d.PKeyIndex(p.PKey) // QP 1 accepts every partition of the port
	switch {
	case d.gsi.receive == nil:
		d.counters.Drop(transport.DropQPN)
	case !member:
		d.counters.Drop(transport.DropPKey)
	case p.Opcode != udSendOnly:
		d.counters.Drop(transport.DropService)
	case p.DETH.QKey != ib.GSIQKey:
		d.counters.Drop(transport.DropQKey)
	case !d.gids.has(f.Dst, f.VLAN(), f.Network):
		d.counters.Drop(transport.DropGID)
	case f.BadICRC:
		d.counters.Drop(transport.DropICRC)
	case p.Len > ib.MADSize:
		d.counters.Drop(transport.DropRecvTooShort)
	case p.Len < ib.MADSize:
		d.counters.Drop(transport.DropInvalid)
	default:
		d.counters.RxOpcode[p.Opcode]++
		m := &MAD{PKey: p.PKey, Path: wire.Path{
			Network: f.Network, Src: f.Dst, Dst: f.Src, VLAN: f.VLAN(), Priority: f.Priority(), DstMAC: f.SrcMAC, TClass: f.TClass &^ 3, HopLimit: defaultHopLimit, FlowLabel: f.FlowLabel,
		}}
		n := 0
		for _, s := range p.Payload {
			n += copy(m.Data[n:], s)
		}
		if !d.gsi.receive(m) {
			d.counters.Drop(transport.DropReceiverNotReady)
		}
	}
}

// madPKey returns the P_Key with which a datagram of a partition is sent.
func (d *Device) madPKey(partition uint16) uint16 {
	if i, ok := d.PKeyIndex(partition); ok {
		return d.pkeys[i]
	}
	k, _ := d.PKey(0)
	return k
}

// fillMADs moves waiting datagrams to free frames.
func (d *Device) fillMADs() {
	g, t := &d.gsi, &d.tx
	if !t.mads {
		return
	}
	kept := g.queue[:0]
	for _, m := range g.queue {
		if t.free() == 0 || t.isClosed(&m.Path) {
			kept = append(kept, m)
			continue
		}
		f := t.frame(&t.data, &m.Path, false)
		g.header.BTH = packet.BTH{Opcode: udSendOnly, MigReq: true, PKey: d.madPKey(m.PKey), DestQP: ib.GSIQPN, PSN: g.psn}
		g.header.DETH = packet.DETH{QKey: ib.GSIQKey, SrcQP: ib.GSIQPN}
		g.psn = (g.psn + 1) & 0xffffff
		f.Tx.Set(&g.header, m.Data[:])
		d.counters.TxOpcode[udSendOnly]++
	}
	clear(g.queue[len(kept):])
	g.queue, t.mads = kept, len(kept) > 0
}

// QPOwner returns the user ID of a queue pair's client. Call it on the engine.
func (d *Device) QPOwner(qpn uint32) (uid uint32, ok bool) {
	q := d.qps.get(qpn)
	if q == nil {
		return 0, false
	}
	return q.ctx.opt.UID, true
}
