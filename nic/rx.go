package nic

import (
	"errors"

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
	pkt   transport.Packet
}

func (r *rxState) init(*Device) {
	r.batch = make([]wire.RxFrame, rxBatch)
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
			d.frame(&d.rx.batch[i])
		}
		d.engine.settle() // before the next Receive reuses the frames' bytes
	}
	return n, !d.linkDue()
}

// linkDue reports whether the link has something that it wants to be rid of now.
func (d *Device) linkDue() bool {
	at := d.link.NextDeadline()
	return at != 0 && at <= d.engine.now
}

// frame checks one frame and gives it to its queue pair; or drops it, under one reason.
func (d *Device) frame(f *wire.RxFrame) {
	q, reason := d.admit(f)
	if q == nil {
		d.counters.Drop(reason)
		return
	}
	q.t.Receive(d.enter(q), &d.rx.pkt)
	q.noteState()
	d.tx.activate(q)
}

// admit parses f into d.rx.pkt and finds the queue pair that it is for. The checks stand
// in the order of IBTA 9.6.1, the ICRC being the last.
func (d *Device) admit(f *wire.RxFrame) (*QP, transport.DropReason) {
	p := &d.rx.pkt
	n, err := p.Header.Parse(f.Head)
	switch {
	case err == nil:
	case errors.Is(err, packet.ErrOpcode):
		return nil, transport.DropOpcode
	default:
		return nil, transport.DropTruncated
	}
	if !d.rx.setPayload(f, n) {
		return nil, transport.DropPad
	}
	if p.TVer != 0 {
		return nil, transport.DropTVer
	}
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
	p.CE = f.CE()
	return q, 0
}

// accepts checks a packet against the queue pair that it names.
func (q *QP) accepts(f *wire.RxFrame, p *transport.Packet) (transport.DropReason, bool) {
	if q.state == transport.Reset {
		return transport.DropState, false
	}
	if !q.t.PKeyMatches(p.PKey) {
		q.device.badPKeys++
		return transport.DropPKey, false
	}
	if s := p.Opcode.Service(); s != services[q.init.Type] && s != packet.CNP {
		return transport.DropService, false
	}
	if q.state < transport.RTR || q.state == transport.Error {
		return transport.DropState, false
	}
	// A connection has one peer, whatever UDP port that sends from.
	if q.path == nil || f.Src != q.path.Dst || f.Dst != q.path.Src {
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
