package nic

import (
	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/transport"
)

// fetchBudget is how many send work requests a queue pair fetches per turn.
const fetchBudget = 64

// fetchSends copies posted send work requests to the transport. Each slot is read once, and the
// copy is checked. It returns true if more are posted than one turn fetches.
func (q *QP) fetchSends() (more bool) {
	if q.ctx.fatal.Load() != nil || q.state < ib.QPSRTS {
		return false // a work request that was posted before RTS waits in the ring
	}
	p := q.sq.loadProducer()
	n := p - q.sqFetched
	if p-q.sqDone > q.sq.size() {
		q.ctx.breach("QP %#x: send ring: producer index %d with consumer index %d and %d slots",
			q.qpn, p, q.sqDone, q.sq.size())
		return false
	}
	if n > fetchBudget {
		n, more = fetchBudget, true
	}
	for range n {
		if !q.fetchSend() {
			return false
		}
	}
	return more
}

// fetchSend copies the next work request of the ring to the transport. An error in it that does not
// break the layout of the ring is reported in its completion.
func (q *QP) fetchSend() bool {
	wr := q.t.NextSend()
	if wr == nil || !q.parseSend(wr) {
		return false // or the client broke the rules
	}
	wr.Fault = q.fault(q.ctx, wr.Opcode.WCOpcode())
	q.t.PostNextSend()
	q.sqFetched++
	return true
}

// parseSend copies a send slot, except its inline data, to private memory and parses the copy.
func (q *QP) parseSend(wr *transport.SendWR) bool {
	e := q.device.engine
	slot := q.sq.slot(q.sqFetched)
	var w abi.SendWQE
	w.Parse(slot)
	wr.ID, wr.Opcode, wr.Flags = w.WRID, ib.WROpcode(w.Opcode), ib.SendFlags(w.Flags)
	wr.Imm = w.Immediate()
	wr.RemoteAddr, wr.RKey = w.RemoteAddr, w.RKey
	wr.CompareAdd, wr.Swap = w.CompareAdd, w.Swap
	wr.RemoteQPN, wr.RemoteQKey = w.RemoteQPN, w.RemoteQKey
	switch q.init.Type {
	case ib.QPTypeUD:
		wr.Dest = q.handle(w.AHOrSRQ)
	case ib.QPTypeXRCSend:
		wr.RemoteSRQ = w.AHOrSRQ
	}
	switch wr.Opcode {
	case ib.WRSendWithInv, ib.WRLocalInv:
		wr.Imm = w.Imm // an R_Key
	case ib.WRBindMW:
		b := w.Bind()
		wr.Bind = transport.Bind{LKey: b.LKey, Access: ib.Access(b.Access), Addr: b.Addr, Length: b.Length}
	case ib.WRFlush:
		f := w.Flush()
		wr.Flush = transport.Flush{Length: f.Length, Placement: ib.FlushPlacement(f.Placement), Selectivity: ib.FlushSelectivity(f.Selectivity)}
	}
	n := int(w.NumSGE)
	caps := &q.init.Caps
	if wr.Flags&ib.SendInline != 0 {
		if n < 0 || n > caps.MaxInline {
			q.ctx.breach("QP %#x: send WQE %d: %d bytes inline, at most %d", q.qpn, q.sqFetched, n, caps.MaxInline)
			return false
		}
		wr.Inline = slot[abi.SendWQESize:][:n:n] // PostNextSend reads it once
		return true
	}
	if n < 0 || n > caps.MaxSendSGE {
		q.ctx.breach("QP %#x: send WQE %d: %d scatter/gather elements, at most %d", q.qpn, q.sqFetched, n, caps.MaxSendSGE)
		return false
	}
	wr.SGEs = abi.AppendSGEs(e.sges, slot[abi.SendWQESize:], n)
	return true
}
