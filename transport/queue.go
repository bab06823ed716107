package transport

import (
	"cmp"
	"unsafe"

	"softroce/internal/ib"
	"softroce/internal/prefetch"
	"softroce/packet"
)

// A wqe is an entry of the send queue: a work request and its progress.
type wqe struct {
	SendWR
	kind        packet.Kind
	length      uint32      // message bytes
	psns        uint32      // number of PSNs
	first       uint64      // first PSN, extended; valid once started
	received    uint32      // response packets received
	ssn         uint64      // send sequence number, starting at 1
	started     bool        // PSNs are assigned
	ownResponse bool        // an ACKNOWLEDGE does not complete it: READ, atomics, FLUSH, ATOMIC WRITE
	local       bool        // bind or invalidation, which uses no PSN
	done        bool        // the response of its own is complete
	original    [8]byte     // atomics: the returned value, until it is written to memory
	status      ib.WCStatus // error that the requester found itself
}

// end is the PSN after the last one of the message.
func (w *wqe) end() uint64 { return w.first + uint64(w.psns) }

// sendQueue holds the posted and incomplete work requests. Indices increase modulo 2^32. Entries
// are in blocks, which the queue has only while they contain work requests: most queue pairs have
// none at a time.
type sendQueue struct {
	pool       *Pool
	blocks     []*wqeBlock // block n is at n modulo its length, a power of two
	depth      uint32
	maxSGE     int
	maxReadSGE int
	maxInline  int
	headIndex  uint32 // oldest
	tailIndex  uint32 // next to post
	nextNumber uint64 // SSN
}

func (s *sendQueue) init(c *Config) {
	sges := max(c.MaxSendSGE, 1)
	*s = sendQueue{pool: c.Pool, depth: uint32(c.SendDepth), maxSGE: sges, maxReadSGE: cmp.Or(c.MaxReadSGE, sges), maxInline: c.MaxInline}
}

// at returns entry i, which was posted.
func (s *sendQueue) at(i uint32) *wqe { return &(*s.block(i)).wqes[i%wqesPerBlock] }

// block returns the place of the block of entry i.
func (s *sendQueue) block(i uint32) **wqeBlock {
	return &s.blocks[i/wqesPerBlock&uint32(len(s.blocks)-1)]
}

// blockToPost returns the block of the next entry.
func (s *sendQueue) blockToPost() *wqeBlock {
	first := s.headIndex &^ (wqesPerBlock - 1)
	if (s.tailIndex-first)/wqesPerBlock == uint32(len(s.blocks)) {
		s.grow()
	}
	b := s.block(s.tailIndex)
	if *b == nil {
		*b = s.pool.take()
	}
	return *b
}

// entryToPost returns the next entry, which is in the block b.
func (s *sendQueue) entryToPost(b *wqeBlock) *wqe { return &b.wqes[s.tailIndex%wqesPerBlock] }

// grow doubles the number of blocks that the queue can have.
func (s *sendQueue) grow() {
	old := *s
	s.blocks = make([]*wqeBlock, max(1, 2*len(old.blocks)))
	for n := range uint32(len(old.blocks)) {
		i := s.headIndex + n*wqesPerBlock
		*s.block(i) = *old.block(i)
	}
}

// pop removes the oldest entry. Its memory is not used for another one before Pool.Recycle.
func (s *sendQueue) pop() {
	b := s.block(s.headIndex)
	s.headIndex++
	if s.headIndex%wqesPerBlock == 0 || s.empty() {
		s.pool.put(*b)
		*b = nil
	}
}

func (s *sendQueue) empty() bool  { return s.headIndex == s.tailIndex }
func (s *sendQueue) head() *wqe   { return s.at(s.headIndex) }
func (s *sendQueue) used() uint32 { return s.tailIndex - s.headIndex }

func (s *sendQueue) reset() {
	for !s.empty() {
		s.pop()
	}
	s.headIndex, s.tailIndex, s.nextNumber = 0, 0, 0
}

// PrefetchOldest starts to load the oldest work request, which the next ACK may complete. q should
// be in the cache.
func (q *QP) PrefetchOldest() {
	if !q.sq.empty() {
		b := *q.sq.block(q.sq.headIndex)
		prefetch.Lines(unsafe.Pointer(b), 1)
		prefetch.Range(unsafe.Pointer(&b.wqes[q.sq.headIndex%wqesPerBlock]), unsafe.Sizeof(wqe{}))
	}
}

// SendQueueLen returns the number of posted and incomplete send work requests.
func (q *QP) SendQueueLen() int { return int(q.sq.used()) }

// PostSend copies wr into the send queue, as NextSend and PostNextSend do. It returns only ErrFull,
// and ErrState before RTS.
func (q *QP) PostSend(wr *SendWR) error {
	if q.state < ib.QPSRTS {
		return ErrState
	}
	next := q.NextSend()
	if next == nil {
		return ErrFull
	}
	*next = *wr
	q.PostNextSend()
	return nil
}

// NextSend returns the next entry of the send queue, whose fields are zero, to be filled in and
// then posted with PostNextSend. It returns nil if PostSend would fail. To copy a work request that
// was just filled in elsewhere takes longer, for the reason that abi.In gives.
func (q *QP) NextSend() *SendWR {
	if q.state < ib.QPSRTS || q.sq.used() >= q.sq.depth {
		return nil
	}
	w := q.sq.entryToPost(q.sq.blockToPost())
	*w = wqe{}
	return &w.SendWR
}

// PostNextSend posts the entry that NextSend returned last. It copies SGEs and Inline, and reads
// them once. One that cannot be executed, because the service lacks the operation or it has too
// many elements, completes in error in its turn. In the error state the next Transmit flushes it.
func (q *QP) PostNextSend() {
	s := &q.sq
	b := s.blockToPost()
	w := s.entryToPost(b)
	w.kind = q.wrKind(w.Opcode)
	w.ownResponse = w.kind.HasOwnResponse()
	w.status = s.copyPayload(w, b)
	switch w.kind {
	case packet.KindNone:
		w.status = ib.WCLocQPOpErr
		if w.local = q.isLocal(w.Opcode); w.local {
			w.SGEs, w.length, w.status = nil, 0, ib.WCSuccess
		}
	case packet.KindSend:
		if q.cfg.Service == packet.UD && w.Dest == nil {
			w.status = ib.WCLocQPOpErr
		}
	case packet.KindRead:
		if w.Flags&ib.SendInline != 0 || len(w.SGEs) > s.maxReadSGE {
			w.status = ib.WCLocQPOpErr
		}
	case packet.KindCompareSwap, packet.KindFetchAdd, packet.KindAtomicWrite:
		switch {
		case w.status != ib.WCSuccess:
		case w.Flags&ib.SendInline != 0 && w.kind != packet.KindAtomicWrite || w.length < atomicLen:
			w.status = ib.WCLocQPOpErr
		case w.length > atomicLen:
			w.status = ib.WCLocLenErr
		}
	case packet.KindFlush:
		if w.length > 0 {
			w.status = ib.WCLocQPOpErr
		}
	}
	if w.Fault.Status != ib.WCSuccess {
		w.status = w.Fault.Status
	}
	if !w.local {
		s.nextNumber++
	}
	w.ssn = s.nextNumber
	s.tailIndex++
}

// copyPayload copies the scatter/gather list or the inline data into the block.
func (s *sendQueue) copyPayload(w *wqe, b *wqeBlock) ib.WCStatus {
	sges, inline := w.SGEs, w.Inline
	w.SGEs, w.Inline = nil, nil
	if w.Flags&ib.SendInline != 0 {
		if len(inline) > s.maxInline {
			return ib.WCLocQPOpErr
		}
		w.Inline = b.inline.add(inline)
		w.length = uint32(len(inline))
		return ib.WCSuccess
	}
	if len(sges) > s.maxSGE {
		return ib.WCLocQPOpErr
	}
	w.SGEs = b.sges.add(sges)
	total := listLength(w.SGEs)
	if total > MaxMessage {
		return ib.WCLocLenErr
	}
	w.length = uint32(total)
	return ib.WCSuccess
}

// rcOperations maps each work request opcode to the kind of packet that carries it.
var rcOperations = [...]packet.Kind{
	ib.WRRDMAWrite: packet.KindWrite, ib.WRRDMAWriteWithImm: packet.KindWrite,
	ib.WRSend: packet.KindSend, ib.WRSendWithImm: packet.KindSend,
	ib.WRSendWithInv: packet.KindSend,
	ib.WRRDMARead:    packet.KindRead, ib.WRAtomicCmpAndSwp: packet.KindCompareSwap, ib.WRAtomicFetchAndAdd: packet.KindFetchAdd,
	ib.WRFlush: packet.KindFlush, ib.WRAtomicWrite: packet.KindAtomicWrite,
}

// wrKind returns the kind of packet that carries o, or KindNone if the service does not support o.
func (q *QP) wrKind(o ib.WROpcode) packet.Kind {
	if int(o) >= len(rcOperations) {
		return packet.KindNone
	}
	k := rcOperations[o]
	if q.cfg.Refused.Has(k) || q.cfg.NoInvalidate && o == ib.WRSendWithInv {
		return packet.KindNone
	}
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

// completeWR completes w, the oldest work request, and frees its slot.
func (q *QP) completeWR(e *Env, w *wqe, status ib.WCStatus) {
	c := &e.wc
	*c = Completion{
		WRID: w.ID, Status: status, Opcode: w.Opcode.WCOpcode(),
		Signaled: status != ib.WCSuccess || q.cfg.SigAll || w.Flags&ib.SendSignaled != 0,
	}
	if w.ownResponse && status == ib.WCSuccess {
		c.ByteLen = w.length
	}
	if status != ib.WCSuccess && status == w.Fault.Status {
		c.VendorErr = w.Fault.VendorErr
	}
	switch status {
	case ib.WCSuccess:
		if c.Opcode == ib.WCSend {
			q.cfg.Counters.TxSendRequests++
		}
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
	if q.sq.pop(); q.sq.empty() {
		q.req.src = gather{} // it refers to w
	}
	e.Sink.Complete(q, c)
}
