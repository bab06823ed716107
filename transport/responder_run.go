package transport

import (
	"softroce/internal/ib"
	"softroce/packet"
)

// ReceiveRun is Receive for a run, which it takes as a whole: it checks once what all its packets
// have in common. The payload may be in any number of pieces. It does so only if each of them would
// be accepted, and the first one would not change more than the others. Otherwise it returns false
// and has changed nothing. Then each packet is to be received by itself.
func (q *QP) ReceiveRun(e *Env, p *RxPacket) bool {
	r := &q.resp
	in := p.Opcode.Info()
	starts := in.Position == packet.First
	switch {
	case in.Service != packet.RC || q.cfg.Service != packet.RC || !in.Request || !starts && in.Position != packet.Middle:
		return false
	case q.state < ib.QPSRTR || q.state == ib.QPSErr || q.state == ib.QPSRTR && !r.established:
		return false
	case p.PSN != r.epsn || p.AckReq || p.Len != p.Run.Packets()*q.attr.PathMTU:
		return false
	case !r.inSequence(in) || !q.permits(in.Kind) || q.cfg.Refused.Has(in.Kind):
		return false
	}
	middle, last := p.Run.Opcodes(p.Opcode)
	switch {
	case in.Kind == packet.KindWrite:
		va, left, region := r.va, r.left, r.region
		if starts {
			va, left = p.RETH.VA, p.RETH.Length
		}
		if uint32(p.Len) > left || p.Run.Ends != (uint32(p.Len) == left) || left > MaxMessage {
			return false
		}
		if starts {
			var err error
			if region, err = e.Table.Remote(q.pd(), q.cfg.QPN, p.RETH.RKey, va, left, ib.AccessRemoteWrite); err != nil {
				return false
			}
		}
		if !region.Live() {
			return false
		}
		if starts {
			r.placed = left
		}
		r.va, r.left, r.region = va, left, region
		q.placeWrite(e, p, last.Info())
	case !starts && !p.Run.Ends:
		if uint64(r.placed)+uint64(p.Len) > MaxMessage || r.into.check(e, p.Len) != ib.WCSuccess {
			return false
		}
		r.into.write(e, q.respWriter, p.Payload, p.Len, false)
		r.placed += uint32(p.Len)
	default:
		return false
	}
	q.discardReads()
	r.replies.expectedReceived()
	r.epsn, r.accepted = packet.PSNAdd(r.epsn, int(p.Run.Repeat)), r.accepted+uint64(p.Run.Repeat)
	p.AckReq = p.Run.Ends
	q.advance(p, last.Info(), in.Kind)
	c := q.cfg.Counters
	c.RxOpcode[p.Opcode]++
	c.RxOpcode[middle] += uint64(p.Run.Repeat - 1)
	c.RxOpcode[last]++
	if p.Run.Ends {
		c.RxWriteRequests++
	}
	return true
}
