package transport

import (
	"encoding/binary"
	"errors"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// What came to RC after its first edition: SEND with invalidate, FLUSH and ATOMIC WRITE.

// cannotInvalidate handles a SEND with invalidate whose key is not one that this queue pair may
// invalidate. The message is in its buffer, but not whole: its receive completes in error and the
// queue pair fails, without a NAK (IBTA 9.9.3, class J).
func (q *QP) cannotInvalidate(e *Env) {
	q.cfg.Counters.RespRemoteAccess++
	q.cfg.Counters.Drop(DropLocalError)
	q.received(e, Completion{Status: ib.WCRemInvReqErr, Opcode: ib.WCRecv})
	q.toError(e)
	e.Sink.Event(q, ib.EventQPAccessErr)
}

// Values of the FETH (annex A19).
const (
	placeGlobal     = 1 << 0
	placePersistent = 1 << 1
	selectWhole     = 1
)

// acceptFlush notes that a FLUSH is to be answered. The bytes of all WRITEs before it are in place
// for everyone when an answer goes out, so there is nothing else to do.
func (q *QP) acceptFlush(e *Env, p *Packet) packet.Syndrome {
	var need ib.Access
	if p.FETH.Placement&placeGlobal != 0 {
		need |= ib.AccessFlushGlobal
	}
	if p.FETH.Placement&placePersistent != 0 {
		need |= ib.AccessFlushPersistent
	}
	if q.resp.answers.full() || p.Len != 0 || need == 0 || p.FETH.Selectivity > selectWhole || q.attr.Access&need != need {
		return packet.NAKInvalidRequest
	}
	var err error
	if p.FETH.Selectivity == selectWhole {
		_, err = e.Table.RemoteWhole(q.pd(), q.cfg.QPN, p.RETH.RKey, need)
	} else {
		_, err = e.Table.Remote(q.pd(), q.cfg.QPN, p.RETH.RKey, p.RETH.VA, p.RETH.Length, need)
	}
	if err != nil {
		return packet.NAKRemoteAccess
	}
	q.cfg.Counters.RxFlushRequests++
	q.acceptAnswered(answer{kind: packet.KindFlush, psn: q.resp.epsn, n: 1})
	return 0
}

// acceptAtomicWrite stores eight bytes at once, which a duplicate does not do again.
func (q *QP) acceptAtomicWrite(e *Env, p *Packet) packet.Syndrome {
	if q.resp.answers.full() || p.Len != atomicLen || p.RETH.Length != atomicLen || p.RETH.VA%atomicLen != 0 {
		return packet.NAKInvalidRequest
	}
	region, err := e.Table.Remote(q.pd(), q.cfg.QPN, p.RETH.RKey, p.RETH.VA, atomicLen, ib.AccessRemoteWrite)
	if err != nil {
		return packet.NAKRemoteAccess
	}
	var word [atomicLen]byte
	n := 0
	for _, b := range p.Payload {
		n += copy(word[n:], b)
	}
	if err := e.Mem.StoreWord(region, p.RETH.VA, binary.NativeEndian.Uint64(word[:])); err != nil {
		return cannotChange(err)
	}
	q.cfg.Counters.RxAtomicWrites++
	q.acceptAnswered(answer{kind: packet.KindAtomicWrite, psn: q.resp.epsn, n: 1})
	return 0
}

// cannotChange is the NAK for an atomic that memory refused: a zero-based window may make an
// aligned address one that is not.
func cannotChange(err error) packet.Syndrome {
	if errors.Is(err, mrtable.ErrAlign) {
		return packet.NAKInvalidRequest
	}
	return packet.NAKRemoteOperational
}
