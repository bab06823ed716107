package nic

import (
	"math/bits"
	"sync/atomic"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/transport"
)

// pullBudget is how many send work requests one turn of a queue pair takes from its ring.
const fetchBudget = 64

// doorbells finds the queue pairs whose clients posted something. Bits of queue pairs
// that do not exist mean nothing.
func (d *Device) doorbells() (any bool) {
	for _, c := range d.contexts {
		words := (len(c.doorbells) + 63) / 64
		for w := range words {
			p := word64(c.opt.Doorbell, abi.DoorbellBits+8*w)
			if atomic.LoadUint64(p) == 0 {
				continue
			}
			set := atomic.SwapUint64(p, 0)
			for set != 0 {
				n := w*64 + bits.TrailingZeros64(set)
				set &= set - 1
				if n < len(c.doorbells) && c.doorbells[n] != nil {
					d.tx.activate(c.doorbells[n])
					any = true
				}
			}
		}
	}
	return any
}

// pull gives the transport what the client posted. Each slot is copied once; the copy is
// checked. It returns true if more is there than one turn takes.
func (q *QP) fetchSends() (more bool) {
	if q.ctx.fatal != nil || q.state < ib.QPSRTS {
		return false // what is posted too early waits in the ring
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

// post gives the transport the next work request of the ring. What is wrong with it in
// ways that the ring's layout does not forbid shows in its completion.
func (q *QP) fetchSend() bool {
	wr := &q.device.engine.wr
	if !q.parseSend(wr) || q.t.PostSend(wr) != nil {
		return false // a breach; or its time has not come
	}
	q.sqFetched++
	return true
}

// parseSend copies a send WQE out of the client's reach and reads the copy.
func (q *QP) parseSend(wr *transport.SendWR) bool {
	e := q.device.engine
	slot := q.sq.slot(q.sqFetched)
	var w abi.SendWQE
	w.Parse(slot)
	*wr = transport.SendWR{
		ID:         w.WRID,
		Opcode:     ib.WROpcode(w.Opcode),
		Flags:      ib.SendFlags(w.Flags),
		Imm:        w.Immediate(),
		RemoteAddr: w.RemoteAddr,
		RKey:       w.RKey,
		CompareAdd: w.CompareAdd,
		Swap:       w.Swap,
		RemoteQPN:  w.RemoteQPN,
		RemoteQKey: w.RemoteQKey,
		SGEs:       wr.SGEs[:0],
	}
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
		wr.Flush = transport.Flush{Length: f.Length, Placement: f.Placement, Selectivity: f.Selectivity}
	}
	data := e.scratch[:]
	n := int(w.NumSGE)
	caps := &q.init.Caps
	if wr.Flags&ib.SendInline != 0 {
		if n < 0 || n > caps.MaxInline {
			q.ctx.breach("QP %#x: send WQE %d: %d bytes inline, of %d at most", q.qpn, q.sqFetched, n, caps.MaxInline)
			return false
		}
		wr.Inline = data[:copy(data, slot[abi.SendWQESize:][:n])]
		return true
	}
	if n < 0 || n > caps.MaxSendSGE {
		q.ctx.breach("QP %#x: send WQE %d: %d scatter/gather elements, of %d at most", q.qpn, q.sqFetched, n, caps.MaxSendSGE)
		return false
	}
	copy(data, slot[abi.SendWQESize:][:n*abi.SGESize])
	wr.SGEs = abi.AppendSGEs(wr.SGEs, data, n)
	return true
}
