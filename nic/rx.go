package nic

import (
	"errors"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

const (
	rxBatch = 128 // frames of one Receive: beyond, they only leave the processor's cache

	// rxTurn is how many frames of one link a step processes before it answers: an ACK
	// that comes too late lets the peer's window run out.
	rxTurn = 256

	// rxBudget bounds what a step receives beyond its turn from a link that says it is due,
	// as links do that pass payload by reference. It is above what waits
	// in such a link at most.
	rxBudget = 4096
)

// rxState is what receiving reuses from frame to frame.
type rxState struct {
	batch []wire.RxFrame
	grhs  []packet.GRH // beside batch: receives that are written late refer to them
	addr  packet.Addressing
	pkt   transport.RxPacket
}

func (r *rxState) init(*Device) {
	r.batch, r.grhs = make([]wire.RxFrame, rxBatch), make([]packet.GRH, rxBatch)
	r.pkt.Payload = make([][]byte, 0, 8)
}

// receive processes what has come in. drained says that no frame waits whose
// payload is in somebody's memory: that memory may then be let go.
func (d *Device) receive() (n int, drained bool) {
	for n < rxTurn || n < rxBudget && d.linkDue() {
		k, err := d.link.Receive(d.engine.now, d.rx.batch)
		if err != nil {
			d.linkError = err
		}
		if k == 0 {
			return n, true
		}
		n += k
		for i := range d.rx.batch[:k] {
			d.receiveFrame(&d.rx.batch[i], &d.rx.grhs[i])
		}
		d.engine.flushWrites() // before the next Receive reuses the frames' bytes
	}
	return n, !d.linkDue()
}

// linkDue reports whether the link has something that it wants to be rid of now.
func (d *Device) linkDue() bool {
	at := d.link.NextDeadline()
	return at != 0 && at <= d.engine.now
}

// frame checks one frame and gives it to its queue pair, or those of its multicast group; or
// drops it, under one reason. Its GRH, if it needs one, is written to g.
func (d *Device) receiveFrame(f *wire.RxFrame, g *packet.GRH) {
	p := &d.rx.pkt
	if reason, ok := d.parse(f); !ok {
		d.counters.Drop(reason)
		return
	}
	if p.Opcode.Service() == packet.UD {
		d.rx.putGRH(f, g)
	}
	if p.DestQP == multicastQPN || f.Dst.IsMulticast() {
		d.multicast(f)
		return
	}
	if p.DestQP == gsiQPN {
		d.receiveMAD(f)
		return
	}
	q, reason := d.lookUpQP(f)
	if q == nil {
		d.counters.Drop(reason)
		return
	}
	d.deliver(q)
}

// deliver gives d.rx.pkt to a queue pair.
func (d *Device) deliver(q *QP) {
	q.t.Receive(d.env(q), &d.rx.pkt)
	q.stateChanged()
	d.tx.activate(q)
}

// parse reads f into d.rx.pkt. The checks of parse and admit stand in the order of IBTA
// 9.6.1, the ICRC being the last.
func (d *Device) parse(f *wire.RxFrame) (transport.DropReason, bool) {
	p := &d.rx.pkt
	n, err := p.Header.Parse(f.Head)
	switch {
	case err == nil:
	case errors.Is(err, packet.ErrOpcode):
		return transport.DropOpcode, false
	default:
		return transport.DropTruncated, false
	}
	if !d.rx.setPayload(f, n) {
		return transport.DropPad, false
	}
	if p.TVer != 0 {
		return transport.DropTVer, false
	}
	p.CE, p.VLAN = f.CE(), 0
	if f.Tagged {
		p.VLAN = f.TCI
	}
	return 0, true
}

// admit finds the queue pair that the parsed packet is for.
func (d *Device) lookUpQP(f *wire.RxFrame) (*QP, transport.DropReason) {
	p := &d.rx.pkt
	q := d.qps.get(p.DestQP)
	if q == nil {
		return nil, transport.DropQPN
	}
	if reason, ok := q.accepts(f, p); !ok {
		return nil, reason
	}
	switch {
	case f.BadICRC:
		return nil, transport.DropICRC
	case p.Opcode.Service() == packet.CNP:
		return nil, transport.DropCNP
	}
	return q, 0
}

// accepts checks a packet against the queue pair that it names.
func (q *QP) accepts(f *wire.RxFrame, p *transport.RxPacket) (transport.DropReason, bool) {
	if q.state == ib.QPSReset {
		return transport.DropState, false
	}
	if !q.t.PKeyMatches(p.PKey) {
		q.device.badPKeys++
		return transport.DropPKey, false
	}
	if s := p.Opcode.Service(); s != services[q.init.Type] && s != packet.CNP {
		return transport.DropService, false
	}
	if q.state < ib.QPSRTR || q.state == ib.QPSErr {
		return transport.DropState, false
	}
	// A connection has one peer, whatever UDP port that sends from. A datagram may be anybody's.
	if q.init.Type == ib.QPTypeUD {
		if !f.Dst.IsMulticast() && !q.device.gids.has(f.Dst, f.VLAN()) {
			return transport.DropGID, false
		}
		return 0, true
	}
	if q.path == nil || f.Src != q.path.Dst || f.Dst != q.path.Src || f.VLAN() != q.path.VLAN {
		return transport.DropSource, false
	}
	return 0, true
}

// setPayload makes the packet's payload what follows the n bytes of headers, without the pad.
func (r *rxState) setPayload(f *wire.RxFrame, n int) bool {
	p := &r.pkt
	p.Payload = p.Payload[:0]
	p.Len = len(f.Head) - n
	if p.Len > 0 {
		p.Payload = append(p.Payload, f.Head[n:])
	}
	for _, t := range f.Tail {
		if len(t) > 0 {
			p.Payload = append(p.Payload, t)
			p.Len += len(t)
		}
	}
	pad := int(p.Pad)
	if pad > p.Len {
		return false
	}
	p.Len -= pad
	for pad > 0 { // it may be spread over several slices
		last := len(p.Payload) - 1
		s := p.Payload[last]
		cut := min(pad, len(s))
		p.Payload[last] = s[:len(s)-cut]
		if pad -= cut; cut == len(s) {
			p.Payload = p.Payload[:last]
		}
	}
	return true
}

// What programs find in the low bits of wc.sl, as NICs put it there: the header in the GRH's place.
const (
	slIPv6 = 1
	slIPv4 = 2
)

// putGRH writes the headers that a receive of a datagram begins with. The packet is parsed.
func (r *rxState) putGRH(f *wire.RxFrame, g *packet.GRH) {
	p := &r.pkt
	r.addr = packet.Addressing{Src: f.Src, Dst: f.Dst, TClass: f.TClass, HopLimit: f.HopLimit,
		FlowLabel: f.FlowLabel, ID: f.ID, MayFragment: f.MayFragment}
	g.Put(&r.addr, p.Opcode.Info().HeaderLen+p.Len+int(p.Pad)+packet.ICRCLen)
	p.GRH, p.SL = g[:], slIPv6
	if f.Src.Is4() {
		p.SL = slIPv4
	}
}
