package nic

import (
	"errors"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
	"softroce/wire/fault"
)

const (
	// rxBatch is the number of frames per Receive: larger batches do not stay in the processor's
	// cache.
	rxBatch = 64

	// rxReferences bounds how many frames a step receives beyond stepBytes from a link that holds
	// references. It exceeds what such a link can queue.
	rxReferences = 4096
)

// FrameBuffers are storage that is reused for each frame that is received or made.
type FrameBuffers struct {
	batch []wire.RxFrame
	grhs  []packet.GRH // parallel to batch: deferred writes of receives refer to them
	addr  packet.Addressing
	pkt   transport.RxPacket
	part  wire.RunPart // of the packet of a run

	env    transport.Env
	envOf  *Device       // whose environment env is
	header packet.Header // of a CNP
}

// NewFrameBuffers returns buffers of a device, or of all those that one goroutine steps.
func NewFrameBuffers() *FrameBuffers {
	r := &FrameBuffers{batch: make([]wire.RxFrame, rxBatch), grhs: make([]packet.GRH, rxBatch)}
	r.pkt.Payload = make([][]byte, 0, 8)
	return r
}

// receive processes received frames: about stepLimit bytes, since others wait and the peers wait
// for ACKs, but in any case all whose payload is in a program's memory. Those are few, since a step
// does not transmit more than stepBytes. If the link does not pass some of those on yet, it copies
// their payload. unread means that the link has to be read again before the engine waits.
func (d *Device) receive() (n int, unread bool) {
	d.noteSentCNPs()
	for cost, seen := 0, 0; cost < d.engine.stepLimit || seen < rxReferences && wire.HoldsReferences(d.link); {
		k, err := wire.ReceiveRuns(d.link, d.engine.now, d.buffers.batch)
		if err != nil && err != wire.ErrUnread {
			d.linkError = err
		}
		if unread = err == wire.ErrUnread; unread && k == 0 {
			cost = d.engine.stepLimit // the rest waits, unless it is in a program's memory
			seen += len(d.buffers.batch)
			continue
		}
		if k == 0 {
			if err == nil {
				d.drainedAt = d.engine.timerNow() - d.lag
			}
			break
		}
		n += k
		seen += k
		if d.disabled {
			cost += k * frameCost
			continue
		}
		noting := wire.NoterOf(d.link).Noting()
		for batch, i := d.buffers.batch[:k], 0; i < k; {
			run := joined(batch[i:])
			next := i + run.Packets()
			d.prefetchReceivers(batch, i, next)
			if run.Repeat > 0 && d.takeRun(&batch[i], batch[i+1:next], run) {
				cost += max(d.buffers.pkt.Len, run.Packets()*frameCost)
				i = next
			}
			for ; i < next; i++ {
				cost += d.receiveAlone(&batch[i], &d.buffers.grhs[i], noting)
			}
		}
		d.engine.flush() // before the next Receive reuses the frames' storage
	}
	if wire.HoldsReferences(d.link) {
		d.link.CopyPayload()
	}
	return n, unread
}

// receiveAlone receives what the link passed as one frame, and returns its cost.
func (d *Device) receiveAlone(f *wire.RxFrame, g *packet.GRH, noting bool) int {
	d.buffers.pkt.Len = 0
	switch {
	case f.Run.Repeat > 0:
		return d.receiveRun(f, g)
	case noting:
		d.receiveNoted(f, g)
	default:
		d.receiveFrame(f, g)
	}
	return max(d.buffers.pkt.Len, frameCost)
}

// receiveNoted is receiveFrame for a NIC with a capture, which gets a note if the packet is
// dropped.
func (d *Device) receiveNoted(f *wire.RxFrame, g *packet.GRH) {
	before := d.counters.Drops
	d.receiveFrame(f, g)
	for r := range before {
		if d.counters.Drops[r] != before[r] {
			d.noteDrop(f, transport.DropReason(r))
		}
	}
}

// noteDrop gives captures a note about a frame that was dropped.
func (d *Device) noteDrop(f *wire.RxFrame, r transport.DropReason) {
	noter := wire.NoterOf(d.link)
	if !noter.Noting() {
		return
	}
	p := fault.PacketInfo{Src: f.Src, Dst: f.Dst, Len: len(f.Head)}
	p.Parse(f.Head, nil)
	noter.Note(d.engine.now, f.Mark,
		&fault.Note{NoRule: true, Text: "dropped: " + r.String(), Direction: fault.Received, Packet: p.String()})
}

// receiveFrame checks a frame and gives it to its queue pair, or to those of its multicast group,
// or drops it and counts one reason. The GRH of a datagram is written to g.
func (d *Device) receiveFrame(f *wire.RxFrame, g *packet.GRH) {
	p := &d.buffers.pkt
	if reason, ok := d.parse(f); !ok {
		d.counters.Drop(reason)
		return
	}
	if p.Opcode.Service() == packet.UD {
		d.buffers.putGRH(f, g)
	}
	if p.DestQP == multicastQPN || f.Dst.IsMulticast() {
		d.multicast(f)
		return
	}
	if p.DestQP == ib.GSIQPN {
		d.receiveMAD(f)
		return
	}
	q, reason := d.lookUpQP(f)
	if q == nil {
		d.counters.Drop(reason)
		return
	}
	if p.Opcode.Service() == packet.CNP {
		d.receiveCNP(q)
		return
	}
	if q.held() {
		d.keep(q, f)
		return
	}
	d.deliver(q)
}

// deliver gives d.buffers.pkt to a queue pair that is not held.
func (d *Device) deliver(q *QP) {
	if d.buffers.pkt.CE || q.congestion.notification.Pending() {
		d.mark(q)
	}
	q.t.Receive(d.env(q), &d.buffers.pkt)
	q.stateChanged()
	d.received(q, d.buffers.pkt.Opcode)
}

// received gives a queue pair its turn after it has received a packet, or a run with this last one.
func (d *Device) received(q *QP, last packet.Opcode) {
	if l := &d.engine.lender; !d.engine.stepped && l.processor != 0 {
		l.notePacket(d.engine.now, q.ctx, endsMessage(last))
	}
	switch {
	case !d.buffers.pkt.Opcode.Info().Request:
		if q.t.Requesting() {
			d.tx.activate(q)
		} else {
			q.scheduleTimer()
		}
	case !q.reply.queued && q.t.Replying():
		d.tx.due.push(&q.reply)
	}
}

// parse reads f into d.buffers.pkt. parse and lookUpQP check in the order of IBTA 9.6.1; the ICRC
// comes last.
func (d *Device) parse(f *wire.RxFrame) (transport.DropReason, bool) {
	p := &d.buffers.pkt
	n, err := p.Header.Parse(f.Head)
	switch {
	case err == nil:
	case errors.Is(err, packet.ErrOpcode):
		return transport.DropOpcode, false
	default:
		return transport.DropTruncated, false
	}
	if !d.buffers.setPayload(f, n) {
		return transport.DropPad, false
	}
	if p.TVer != 0 {
		return transport.DropTVer, false
	}
	p.CE, p.VLAN, p.Run = f.CE(), 0, f.Run
	if f.Tagged {
		p.VLAN = f.TCI
	}
	return 0, true
}

// lookUpQP returns the queue pair that the parsed packet is for.
func (d *Device) lookUpQP(f *wire.RxFrame) (*QP, transport.DropReason) {
	p := &d.buffers.pkt
	q := d.lookUp(p.DestQP)
	if q == nil {
		return nil, transport.DropQPN
	}
	if reason, ok := q.accepts(f, p); !ok {
		return nil, reason
	}
	if f.BadICRC {
		return nil, transport.DropICRC
	}
	return q, 0
}

// accepts checks a packet against its destination queue pair.
func (q *QP) accepts(f *wire.RxFrame, p *transport.RxPacket) (transport.DropReason, bool) {
	if q.state == ib.QPSReset {
		return transport.DropState, false
	}
	if !q.t.PKeyMatches(p.PKey) {
		return transport.DropPKey, false
	}
	if s := p.Opcode.Service(); s != q.t.Service() && (s != packet.CNP || f.Network != packet.RoCEv2) {
		return transport.DropService, false
	}
	if q.state < ib.QPSRTR || q.state == ib.QPSErr {
		return transport.DropState, false
	}
	// A connection has one peer and one version of RoCE, and the peer sends from whatever UDP port.
	// Datagrams may come from anywhere.
	if q.init.Type == ib.QPTypeUD {
		if q.port != 1 { // all frames arrive at port 1
			return transport.DropGID, false
		}
		if g := &q.device.gids; !g.carries(f.Network) || !f.Dst.IsMulticast() && !g.has(f.Dst, f.VLAN(), f.Network) {
			return transport.DropGID, false
		}
		return 0, true
	}
	if q.path == nil || f.Network != q.path.Network || f.Src != q.path.Dst || f.Dst != q.path.Src || f.VLAN() != q.path.VLAN {
		return transport.DropSource, false
	}
	return 0, true
}

// setPayload sets the packet's payload: what follows the n bytes of headers, without the pad.
func (r *FrameBuffers) setPayload(f *wire.RxFrame, n int) bool {
	p := &r.pkt
	p.Payload, p.Len = p.Payload[:0], 0
	r.addPayload(f, n)
	pad := int(p.Pad)
	if pad > p.Len {
		return false
	}
	p.Len -= pad
	for pad > 0 { // the pad may span several slices
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

// addPayload adds what follows the n bytes of headers of f to the payload.
func (r *FrameBuffers) addPayload(f *wire.RxFrame, n int) {
	p := &r.pkt
	if len(f.Head) > n {
		p.Payload = append(p.Payload, f.Head[n:])
	}
	for _, t := range f.Tail {
		if len(t) > 0 {
			p.Payload = append(p.Payload, t)
		}
	}
	p.Len += f.Len() - n
}

// What NICs report in the low bits of wc.sl: the IP version of the header in the GRH's place.
const (
	slGRH  = 0
	slIPv6 = 1
	slIPv4 = 2
)

// putGRH writes the GRH of a datagram. The packet is parsed already.
func (r *FrameBuffers) putGRH(f *wire.RxFrame, g *packet.GRH) {
	p := &r.pkt
	r.addr = packet.Addressing{Network: f.Network, Src: f.Src, Dst: f.Dst, TClass: f.TClass, HopLimit: f.HopLimit,
		FlowLabel: f.FlowLabel, ID: f.ID, MayFragment: f.MayFragment}
	g.Put(&r.addr, p.Opcode.Info().HeaderLen+p.Len+int(p.Pad)+packet.ICRCLen)
	p.GRH, p.SL = g[:], slIPv6
	switch {
	case f.Network == packet.RoCEv1:
		p.SL = slGRH
	case f.Src.Is4():
		p.SL = slIPv4
	}
}
