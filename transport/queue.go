package transport

import (
	"softroce/internal/ib"
	"softroce/packet"
)

// A wqe is a send work request on its way.
type wqe struct {
	SendWR
	kind        packet.Kind
	length      uint32      // bytes of the message
	psns        uint32      // PSNs it takes
	first       uint64      // its first PSN, extended; valid once started
	received    uint32      // responses received: READs
	ssn         uint64      // send sequence number, from 1
	started     bool        // has its PSNs
	ownResponse bool        // an ACKNOWLEDGE does not complete it: READ, atomics, FLUSH, ATOMIC WRITE
	local       bool        // a bind or an invalidation: takes no PSN
	done        bool        // READs and atomics: the response is complete
	original    [8]byte     // atomics: the answer on its way to memory
	status      ib.WCStatus // what the requester itself found wrong
}

// end is the PSN behind the message's last.
func (w *wqe) end() uint64 { return w.first + uint64(w.psns) }

// sendQueue is the ring of work requests that are posted and not complete.
// Indices only grow, modulo 2^32.
type sendQueue struct {
	ring       []wqe
	sges       []SGE
	inline     []byte
	depth      uint32
	maxSGE     int
	maxInline  int
	headIndex  uint32 // oldest
	tailIndex  uint32 // next to post
	nextNumber uint64 // SSN
}

func (s *sendQueue) init(depth, maxSGE, maxInline int) {
	n := 1
	for n < depth {
		n *= 2
	}
	maxSGE = max(maxSGE, 1)
	*s = sendQueue{ring: make([]wqe, n), sges: make([]SGE, n*maxSGE), inline: make([]byte, n*maxInline),
		depth: uint32(depth), maxSGE: maxSGE, maxInline: maxInline}
}

func (s *sendQueue) at(i uint32) *wqe { return &s.ring[i&uint32(len(s.ring)-1)] }
func (s *sendQueue) empty() bool      { return s.headIndex == s.tailIndex }
func (s *sendQueue) head() *wqe       { return s.at(s.headIndex) }
func (s *sendQueue) used() uint32     { return s.tailIndex - s.headIndex }
func (s *sendQueue) reset()           { s.headIndex, s.tailIndex, s.nextNumber = 0, 0, 0 }

// SendQueueLen returns how many send work requests are posted and not complete.
func (q *QP) SendQueueLen() int { return int(q.sq.used()) }

// PostSend copies wr into the send queue. A request that cannot be carried out (an
// operation this service lacks, too many elements) takes its place in the queue and
// completes in error there; only ErrFull and ErrState (before RTS) are returned. In the error
// state it is flushed by the next Transmit.
func (q *QP) PostSend(wr *SendWR) error {
	s := &q.sq
	if q.state < ib.QPSRTS {
		return ErrState
	}
	if s.used() >= s.depth {
		return ErrFull
	}
	slot := s.tailIndex & uint32(len(s.ring)-1)
	w := &s.ring[slot]
	*w = wqe{SendWR: *wr, kind: q.wrKind(wr.Opcode)}
	w.ownResponse = w.kind.HasOwnResponse()
	w.status = s.copyPayload(w, wr, int(slot))
	switch w.kind {
	case packet.KindNone:
		w.status = ib.WCLocQPOpErr
		if w.local = q.isLocal(wr.Opcode); w.local {
			w.SGEs, w.length, w.status = nil, 0, ib.WCSuccess
		}
	case packet.KindSend:
		if q.cfg.Service == packet.UD && wr.Dest == nil {
			w.status = ib.WCLocQPOpErr
		}
	case packet.KindRead, packet.KindCompareSwap, packet.KindFetchAdd:
		if wr.Flags&ib.SendInline != 0 || w.kind != packet.KindRead && w.length != atomicLen {
			w.status = ib.WCLocQPOpErr
		}
	case packet.KindFlush, packet.KindAtomicWrite:
		if w.kind == packet.KindFlush && w.length > 0 || w.kind == packet.KindAtomicWrite && w.length != atomicLen {
			w.status = ib.WCLocQPOpErr
		}
	}
	if !w.local {
		s.nextNumber++
	}
	w.ssn = s.nextNumber
	s.tailIndex++
	return nil
}

// copyPayload moves the scatter/gather list or the inline data to the queue's own storage.
func (s *sendQueue) copyPayload(w *wqe, wr *SendWR, slot int) ib.WCStatus {
	w.SGEs, w.Inline = nil, nil
	if wr.Flags&ib.SendInline != 0 {
		if len(wr.Inline) > s.maxInline {
			return ib.WCLocQPOpErr
		}
		w.Inline = s.inline[slot*s.maxInline:][:len(wr.Inline):len(wr.Inline)]
		copy(w.Inline, wr.Inline)
		w.length = uint32(len(wr.Inline))
		return ib.WCSuccess
	}
	if len(wr.SGEs) > s.maxSGE {
		return ib.WCLocQPOpErr
	}
	w.SGEs = s.sges[slot*s.maxSGE:][:len(wr.SGEs):len(wr.SGEs)]
	copy(w.SGEs, wr.SGEs)
	total := listLength(w.SGEs)
	if total > MaxMessage {
		return ib.WCLocLenErr
	}
	w.length = uint32(total)
	return ib.WCSuccess
}

// rcOperations says what each verbs operation is on the wire.
var rcOperations = [...]packet.Kind{
	ib.WRRDMAWrite: packet.KindWrite, ib.WRRDMAWriteWithImm: packet.KindWrite,
	ib.WRSend: packet.KindSend, ib.WRSendWithImm: packet.KindSend,
	ib.WRSendWithInv: packet.KindSend,
	ib.WRRDMARead:    packet.KindRead, ib.WRAtomicCmpAndSwp: packet.KindCompareSwap, ib.WRAtomicFetchAndAdd: packet.KindFetchAdd,
	ib.WRFlush: packet.KindFlush, ib.WRAtomicWrite: packet.KindAtomicWrite,
}

// wrKind is KindNone for what the service does not have.
func (q *QP) wrKind(o ib.WROpcode) packet.Kind {
	if int(o) >= len(rcOperations) {
		return packet.KindNone
	}
	k := rcOperations[o]
	switch q.cfg.Service {
	case packet.XRC:
		if k == packet.KindFlush || k == packet.KindAtomicWrite {
			return packet.KindNone
		}
	case packet.UC:
		if k != packet.KindSend && k != packet.KindWrite || o == ib.WRSendWithInv {
			return packet.KindNone
		}
	case packet.UD:
		if k != packet.KindSend || o == ib.WRSendWithInv {
			return packet.KindNone
		}
	}
	return k
}

// finish completes the oldest work request, w, and frees its slot.
func (q *QP) completeWR(e *Env, w *wqe, status ib.WCStatus) {
	c := &q.wc
	*c = Completion{
		WRID: w.ID, Status: status, Opcode: wcOpcode(w.Opcode),
		Signaled: status != ib.WCSuccess || q.cfg.SigAll || w.Flags&ib.SendSignaled != 0,
	}
	if w.ownResponse && status == ib.WCSuccess {
		c.ByteLen = w.length
	}
	switch status {
	case ib.WCSuccess:
	case ib.WCWRFlushErr:
		q.cfg.Counters.ReqCQEFlush++
	default:
		q.cfg.Counters.ReqCQEError++
	}
	if w.ownResponse && w.started {
		q.req.reads--
		q.req.readPSNs -= uint64(w.psns - w.received)
	}
	if q.req.cur == q.sq.headIndex {
		q.req.cur, q.req.pkt = q.sq.headIndex+1, 0
	}
	w.Dest = nil
	q.sq.headIndex++
	e.Sink.Complete(q, c)
}

func wcOpcode(o ib.WROpcode) ib.WCOpcode {
	switch o {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		return ib.WCRDMAWrite
	case ib.WRRDMARead:
		return ib.WCRDMARead
	case ib.WRAtomicCmpAndSwp:
		return ib.WCCompSwap
	case ib.WRAtomicFetchAndAdd:
		return ib.WCFetchAdd
	case ib.WRBindMW:
		return ib.WCBindMW
	case ib.WRLocalInv:
		return ib.WCLocalInv
	case ib.WRFlush:
		return ib.WCFlush
	case ib.WRAtomicWrite:
		return ib.WCAtomicWrite
	}
	return ib.WCSend
}
