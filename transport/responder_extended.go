package transport

import (
	"encoding/binary"
	"errors"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// Operations added to RC by later editions and annexes: SEND with invalidate, FLUSH and ATOMIC
// WRITE.

// invalidateFailed handles a SEND with invalidate whose R_Key this queue pair may not invalidate.
// The receive completes in error and the queue pair fails without a NAK (IBTA 9.9.3, class J).
func (q *QP) invalidateFailed(e *Env, p *RxPacket) {
	q.Blame(e, Failure{Reason: ReasonInvalidate, Status: ib.WCRemInvReqErr, Operation: ib.WRSendWithInv.String(), PSN: p.PSN})
	q.cfg.Counters.RespRemoteAccess++
	q.cfg.Counters.Drop(DropLocalError)
	q.completeRecv(e, Completion{Status: ib.WCRemInvReqErr, Opcode: ib.WCRecv})
	q.toError(e)
	e.Sink.Event(q, ib.EventQPAccessErr)
}

// acceptFlush accepts a FLUSH. Replies leave only after all earlier WRITEs are in place, so there
// is nothing to do beyond the checks.
func (q *QP) acceptFlush(e *Env, p *RxPacket) packet.Syndrome {
	placement, selectivity := ib.FlushPlacement(p.FETH.Placement), ib.FlushSelectivity(p.FETH.Selectivity)
	var need ib.Access
	if placement&ib.FlushGlobal != 0 {
		need |= ib.AccessFlushGlobal
	}
	if placement&ib.FlushPersistent != 0 {
		need |= ib.AccessFlushPersistent
	}
	switch {
	case q.resp.replies.full():
		return q.refuseReads(e, p)
	case p.Len != 0 || need == 0 || selectivity > ib.FlushMR:
		return q.refuseLength(e, p)
	case q.attr.Access&need != need:
		return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonNotPermitted, Need: need})
	}
	var err error
	if selectivity == ib.FlushMR {
		_, err = e.Table.RemoteWhole(q.pd(), q.cfg.QPN, p.RETH.RKey, need)
	} else {
		_, err = e.Table.Remote(q.pd(), q.cfg.QPN, p.RETH.RKey, p.RETH.VA, p.RETH.Length, need)
	}
	if err != nil {
		return q.refuseMemory(e, p, err, &p.RETH, need)
	}
	q.cfg.Counters.RxFlushRequests++
	q.acceptWithResponse(response{kind: packet.KindFlush, psn: q.resp.epsn, psns: 1})
	return 0
}

// acceptAtomicWrite executes an ATOMIC WRITE with a single store.
func (q *QP) acceptAtomicWrite(e *Env, p *RxPacket) packet.Syndrome {
	switch {
	case q.resp.replies.full():
		return q.refuseReads(e, p)
	case p.Len != atomicLen || p.RETH.Length != atomicLen:
		return q.refuseLength(e, p)
	case p.RETH.VA%atomicLen != 0:
		return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonMisaligned, Address: p.RETH.VA})
	}
	region, err := e.Table.Remote(q.pd(), q.cfg.QPN, p.RETH.RKey, p.RETH.VA, atomicLen, ib.AccessRemoteWrite)
	if err != nil {
		return q.refuseMemory(e, p, err, &p.RETH, ib.AccessRemoteWrite)
	}
	var word [atomicLen]byte
	n := 0
	for _, b := range p.Payload {
		n += copy(word[n:], b)
	}
	if err := e.Mem.StoreWord(q.respWriter, region, p.RETH.VA, binary.NativeEndian.Uint64(word[:])); err != nil {
		return q.refuseAtomic(e, p, err, p.RETH.VA)
	}
	q.cfg.Counters.RxAtomicWrites++
	q.acceptWithResponse(response{kind: packet.KindAtomicWrite, psn: q.resp.epsn, psns: 1})
	return 0
}

// refuseAtomic refuses an atomic that failed at the memory. With a zero-based window an aligned
// virtual address can map to an unaligned one.
func (q *QP) refuseAtomic(e *Env, p *RxPacket, err error, addr uint64) packet.Syndrome {
	if errors.Is(err, mrtable.ErrAlign) {
		return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonMisaligned, Address: addr})
	}
	return q.refuse(e, packet.NAKRemoteOperational, p, Failure{Reason: ReasonMemoryGone, Address: addr})
}
