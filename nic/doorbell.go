package nic

import (
	"math/bits"
	"sync/atomic"

	"softroce/internal/abi"
	"softroce/mrtable"
	"softroce/transport"
)

// pullBudget is how many send work requests one turn of a queue pair takes from its ring.
const pullBudget = 64

// doorbells finds the queue pairs whose clients posted something. Bits of queue pairs
// that do not exist mean nothing.
func (d *Device) doorbells() (any bool) {
	for _, c := range d.contexts {
		words := (len(c.bells) + 63) / 64
		for w := range words {
			p := word64(c.opt.Doorbell, abi.DoorbellBits+8*w)
			if atomic.LoadUint64(p) == 0 {
				continue
			}
			set := atomic.SwapUint64(p, 0)
			for set != 0 {
				n := w*64 + bits.TrailingZeros64(set)
				set &= set - 1
				if n < len(c.bells) && c.bells[n] != nil {
					d.tx.activate(c.bells[n])
					any = true
				}
			}
		}
	}
	return any
}

// pull gives the transport what the client posted. Each slot is copied once; the copy is
// checked. It returns true if more is there than one turn takes.
func (q *QP) pull() (more bool) {
	if q.ctx.broken != nil || q.state < transport.RTS {
		return false // what is posted too early waits in the ring
	}
	p := q.sq.loadProducer()
	n := p - q.sqTaken
	if p-q.sqDone > q.sq.size() {
		q.ctx.breach("QP %#x: send ring: producer index %d with consumer index %d and %d slots",
			q.qpn, p, q.sqDone, q.sq.size())
		return false
	}
	if n > pullBudget {
		n, more = pullBudget, true
	}
	for range n {
		if !q.post() {
			return false
		}
	}
	return more
}

// post gives the transport the next work request of the ring. What is wrong with it in
// ways that the ring's layout does not forbid shows in its completion.
func (q *QP) post() bool {
	wr := &q.device.engine.wr
	if !q.parseSend(wr) || q.t.PostSend(wr) != nil {
		return false // a breach; or its time has not come
	}
	q.sqTaken++
	return true
}

// parseSend copies a send WQE out of the client's reach and reads the copy.
func (q *QP) parseSend(wr *transport.SendWR) bool {
	e := q.device.engine
	slot := q.sq.slot(q.sqTaken)
	b := e.scratch[:]
	copy(b[:abi.SendSGEs], slot)
	*wr = transport.SendWR{
		ID:         le.Uint64(b[abi.SendWRID:]),
		Opcode:     transport.WROpcode(le.Uint32(b[abi.SendOpcode:])),
		Flags:      transport.SendFlags(le.Uint32(b[abi.SendFlags:])),
		Imm:        be.Uint32(b[abi.SendImm:]),
		RemoteAddr: le.Uint64(b[abi.SendRemoteAddr:]),
		RKey:       le.Uint32(b[abi.SendRKey:]),
		CompareAdd: le.Uint64(b[abi.SendCompareAdd:]),
		Swap:       le.Uint64(b[abi.SendSwap:]),
		RemoteQPN:  le.Uint32(b[abi.SendRemoteQPN:]),
		RemoteQKey: le.Uint32(b[abi.SendRemoteQKey:]),
		SGEs:       wr.SGEs[:0],
	}
	if q.init.Type == TypeUD {
		wr.Dest = q.handle(le.Uint32(b[abi.SendAH:]))
	}
	switch wr.Opcode {
	case transport.WRSendInv, transport.WRLocalInv:
		wr.Imm = le.Uint32(b[abi.SendImm:]) // an R_Key, not a number of the program's making
	case transport.WRBindMW:
		wr.Bind = transport.Bind{LKey: le.Uint32(b[abi.SendBindLKey:]), Access: mrtable.Access(le.Uint32(b[abi.SendBindAccess:])),
			Addr: le.Uint64(b[abi.SendBindAddr:]), Length: le.Uint64(b[abi.SendBindLength:])}
	case transport.WRFlush:
		wr.Flush = transport.Flush{Length: le.Uint32(b[abi.SendFlushLength:]),
			Placement: b[abi.SendFlushPlacement], Selectivity: b[abi.SendFlushSelectivity]}
	}
	if q.init.Type == TypeXRCSend {
		wr.RemoteSRQ = le.Uint32(b[abi.SendRemoteSRQ:])
	}
	n := int(le.Uint32(b[abi.SendNumSGE:]))
	caps := &q.init.Caps
	if wr.Flags&transport.Inline != 0 {
		if n < 0 || n > caps.MaxInline {
			q.ctx.breach("QP %#x: send WQE %d: %d bytes inline, of %d at most", q.qpn, q.sqTaken, n, caps.MaxInline)
			return false
		}
		wr.Inline = b[abi.SendSGEs:][:copy(b[abi.SendSGEs:], slot[abi.SendSGEs:][:n])]
		return true
	}
	if n < 0 || n > caps.MaxSendSGE {
		q.ctx.breach("QP %#x: send WQE %d: %d scatter/gather elements, of %d at most", q.qpn, q.sqTaken, n, caps.MaxSendSGE)
		return false
	}
	copy(b[abi.SendSGEs:], slot[abi.SendSGEs:][:n*abi.SGESize])
	wr.SGEs = parseSGEs(wr.SGEs, b[abi.SendSGEs:], n)
	return true
}
