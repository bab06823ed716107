package transport

import (
	"errors"
	"fmt"
	"unsafe"

	"softroce/internal/ib"
	"softroce/internal/prefetch"
	"softroce/mrtable"
	"softroce/packet"
	"softroce/transport/congestion"
)

// A QP is a queue pair. It is not safe for concurrent use.
type QP struct {
	cfg   Config
	attr  ib.QPAttr
	state ib.QPState

	readsAhead   bool    // what was read and not sent may have to be discarded
	repliedFirst bool    // the last Transmit emitted replies before requests
	sqdNotify    bool    // EventSQDrained is due when the send queue is drained
	respWriter   *Writer // tag of memory writes by the responder
	resp         responder

	// Requests do not use what follows: see ResponderSize.
	sq  sendQueue
	req requester

	controller congestion.Controller // nil: congestion control does not limit it

	dest      any     // SendWR.Dest of the UD packet being emitted
	reqWriter *Writer // tag of memory writes by the requester since the last reset

	counters QPCounters
	failure  *Failure // why it is in the error state, or in SQE
}

// What there is to prefetch of a QP, in bytes from its start.
const (
	QPSize        = unsafe.Sizeof(QP{})
	ResponderSize = unsafe.Offsetof(QP{}.sq) // what requests and their replies use, except counters of NAKs
)

// ErrService is returned by New for an unsupported transport service.
var ErrService = errors.New("transport service is not supported")

// New returns a queue pair in state RESET.
func New(c Config) (*QP, error) {
	switch c.Service {
	case packet.RC, packet.UC, packet.UD:
	case packet.XRC:
		if c.Role != Initiator && (c.Role != Target || c.Domain == nil) {
			return nil, fmt.Errorf("%w: an XRC QP needs a role, and a target an XRC domain", ErrAttribute)
		}
	default:
		return nil, fmt.Errorf("%w: %v", ErrService, c.Service)
	}
	if c.SendDepth < 0 || c.MaxSendSGE < 0 || c.MaxInline < 0 {
		return nil, fmt.Errorf("%w: negative send queue size", ErrAttribute)
	}
	if c.Counters == nil {
		c.Counters = new(Counters)
	}
	if c.Pool == nil {
		c.Pool = new(Pool)
	}
	q := &QP{cfg: c}
	q.newWriters()
	q.sq.init(&c)
	return q, nil
}

// QPN returns the queue pair number.
func (q *QP) QPN() uint32 { return q.cfg.QPN }

// Service returns the transport service.
func (q *QP) Service() packet.Service { return q.cfg.Service }

// PathMTU returns the path MTU in bytes, 0 before RTR.
func (q *QP) PathMTU() int { return q.attr.PathMTU }

// DestQPN returns the number of the peer's queue pair.
func (q *QP) DestQPN() uint32 { return q.attr.DestQPN }

// PD returns the protection domain.
func (q *QP) PD() *mrtable.PD { return q.cfg.PD }

// UserData returns Config.UserData.
func (q *QP) UserData() any { return q.cfg.UserData }

// State returns the current state.
func (q *QP) State() ib.QPState { return q.state }

// Counters returns what the queue pair has counted since it was created.
func (q *QP) Counters() QPCounters { return q.counters }

// Query returns the attributes. SQPSN and RQPSN are the next PSN of each direction.
func (q *QP) Query() ib.QPAttr {
	a := q.attr
	a.State, a.CurState, a.Draining = q.state, q.state, q.state == ib.QPSSQD && !q.drained()
	if q.state >= ib.QPSRTR {
		a.RQPSN = q.resp.epsn
	}
	if q.state >= ib.QPSRTS {
		a.SQPSN = uint32(q.req.next) & packet.PSNMask
	}
	return a
}

// PKeyMatches reports whether the queue pair accepts a packet with P_Key k: both belong to the same
// partition and at least one is a full member (IBTA 10.9.3). Partition 0 is invalid (10.9.1.1).
func (q *QP) PKeyMatches(k uint16) bool {
	return k&0x7fff != 0 && k&0x7fff == q.attr.PKey&0x7fff && (k|q.attr.PKey)&0x8000 != 0
}

// SetPKey replaces the P_Key after a change of the P_Key table. 0 means that the table entry is
// empty.
func (q *QP) SetPKey(k uint16) { q.attr.PKey = k }

// Modify changes state and attributes. It returns ErrTransition or ErrAttribute, and changes
// nothing, if the combination is not allowed.
func (q *QP) Modify(e *Env, a *ib.QPAttr, mask ib.QPAttrMask) error {
	to := q.state
	if mask&ib.QPMaskState != 0 {
		to = a.State
	}
	if mask&ib.QPMaskCurState != 0 && a.CurState != q.state {
		return fmt.Errorf("%w: current state is %v, not %v", ErrTransition, q.state, a.CurState)
	}
	if err := q.cfg.checkTransition(q.state, to, mask); err != nil {
		return err
	}
	if err := checkAttr(a, mask); err != nil {
		return err
	}
	if err := q.checkMTUChange(a, mask); err != nil {
		return err
	}
	q.assign(a, mask)
	from := q.state
	q.state = to
	switch {
	case from == ib.QPSSQE && to == ib.QPSRTS:
		q.failure = nil
	case to == ib.QPSReset:
		q.reset()
	case to == ib.QPSErr:
		q.blameHead(e, Failure{Reason: ReasonModified})
		q.resp.discardReplies()
		q.flush(e)
	case from == ib.QPSInit && to == ib.QPSRTR:
		if q.cfg.Service == packet.UD {
			q.attr.PathMTU = q.cfg.PortMTU
		}
		q.resp.start(q)
	case from == ib.QPSRTR && to == ib.QPSRTS:
		q.req.start(q)
	case to == ib.QPSSQD && from == ib.QPSRTS:
		q.sqdNotify = mask&ib.QPMaskEnSQDNotify != 0 && a.EnSQDNotify
		q.checkDrained(e)
	}
	return nil
}

func (q *QP) assign(a *ib.QPAttr, mask ib.QPAttrMask) {
	d := &q.attr
	if mask&ib.QPMaskPKeyIndex != 0 {
		d.PKey = a.PKey
	}
	if mask&ib.QPMaskAccess != 0 {
		d.Access = a.Access
	}
	if mask&ib.QPMaskQKey != 0 {
		d.QKey = a.QKey
	}
	if mask&ib.QPMaskPathMTU != 0 {
		d.PathMTU = a.PathMTU
	}
	if mask&ib.QPMaskDestQPN != 0 {
		d.DestQPN = a.DestQPN
	}
	if mask&ib.QPMaskRQPSN != 0 {
		d.RQPSN = a.RQPSN
	}
	if mask&ib.QPMaskSQPSN != 0 {
		d.SQPSN = a.SQPSN
	}
	if mask&ib.QPMaskMaxDestRDAtomic != 0 {
		d.MaxDestRDAtomic = a.MaxDestRDAtomic
		if q.state == ib.QPSSQD {
			q.resp.replies.resize(int(a.MaxDestRDAtomic))
		}
	}
	if mask&ib.QPMaskMaxRDAtomic != 0 {
		d.MaxRDAtomic = a.MaxRDAtomic
	}
	if mask&ib.QPMaskMinRNRTimer != 0 {
		d.MinRNRTimer = a.MinRNRTimer
	}
	if mask&ib.QPMaskTimeout != 0 {
		d.Timeout = a.Timeout
	}
	if mask&ib.QPMaskRetryCount != 0 {
		d.RetryCount, q.req.retries = a.RetryCount, a.RetryCount
	}
	if mask&ib.QPMaskRNRRetry != 0 {
		d.RNRRetry, q.req.rnrRetries = a.RNRRetry, a.RNRRetry
	}
}

func (q *QP) reset() {
	q.attr = ib.QPAttr{}
	q.sq.reset()
	q.req = requester{}
	q.resp.reset()
	q.sqdNotify, q.failure = false, nil
	q.newWriters()
}

// newWriters makes the results of earlier memory writes stale: they no longer concern the queue
// pair.
func (q *QP) newWriters() { q.reqWriter, q.respWriter = &Writer{q, true}, &Writer{q, false} }

// Receive handles a packet addressed to this queue pair. Transmit emits the replies.
func (q *QP) Receive(e *Env, p *RxPacket) {
	c := q.cfg.Counters
	in := p.Opcode.Info()
	c.RxOpcode[p.Opcode]++
	q.discardReads()
	switch {
	case in.Service != q.cfg.Service || in.Request && q.cfg.Role == Initiator || !in.Request && q.cfg.Role == Target:
		c.Drop(DropService)
	case q.state < ib.QPSRTR || q.state == ib.QPSErr:
		c.Drop(DropState)
	case in.Request:
		if q.state == ib.QPSRTR && !q.resp.established && q.cfg.Service != packet.UD {
			q.resp.established = true
			e.Sink.Event(q, ib.EventCommEst)
		}
		q.dispatchRequest(e, p, in)
	case q.state < ib.QPSRTS:
		c.Drop(DropState)
	default:
		q.handleResponse(e, p, in)
	}
}

// dispatchRequest passes a request to the responder of the queue pair's service.
func (q *QP) dispatchRequest(e *Env, p *RxPacket, in *packet.Info) {
	switch q.cfg.Service {
	case packet.UC:
		q.respondUC(e, p, in)
	case packet.UD:
		q.respondUD(e, p, in)
	default:
		q.respond(e, p, in)
	}
}

// reliable reports whether the service has acknowledgements.
func (q *QP) reliable() bool { return q.cfg.Service == packet.RC || q.cfg.Service == packet.XRC }

// Destination returns SendWR.Dest of the UD packet that is being emitted.
func (q *QP) Destination() any { return q.dest }

// Requesting reports whether the next Transmit may emit requests or complete work requests. It
// does nothing for those that wait for replies.
func (q *QP) Requesting() bool { return q.req.cur != q.sq.tailIndex || q.state != ib.QPSRTS }

// Replying reports whether replies are pending.
func (q *QP) Replying() bool {
	s := &q.resp.replies
	return s.next != s.added || s.ack || s.nak != 0
}

// Reading reports whether READ responses are among the pending replies. All others are short.
func (q *QP) Reading() bool {
	s := &q.resp.replies
	for n := s.next; n != s.added; n++ {
		if s.at(n).kind == packet.KindRead {
			return true
		}
	}
	return false
}

// Acknowledge emits the pending replies. It returns true if it stopped because Sink.Packet returned
// nil.
func (q *QP) Acknowledge(e *Env) (more bool) { return q.reply(e) }

// Transmit emits pending replies and requests. They alternate in going first, so that neither
// starves the other. Transmit returns true if it stopped because Sink.Packet returned nil or a
// memory read has to wait, see Waiting.
func (q *QP) Transmit(e *Env) (more bool) {
	q.req.ahead.begin()
	q.resp.ahead.begin()
	more = q.transmit(e)
	q.req.ahead.end(q.cfg.Pool)
	q.resp.ahead.end(q.cfg.Pool)
	return more
}

func (q *QP) transmit(e *Env) (more bool) {
	if q.state == ib.QPSErr {
		more = q.reply(e)
		q.flush(e)
		return more
	}
	if q.state == ib.QPSSQE {
		q.flushSend(e)
	}
	if !q.reliable() {
		more = q.request(e)
		q.checkDrained(e)
		return more
	}
	// A lone ACK or NAK precedes requests, so that a peer's completion precedes the message that it
	// may have caused, unless the NIC changes that. Longer responses alternate with requests.
	acknowledge := q.resp.replies.next == q.resp.replies.added
	if !acknowledge {
		q.repliedFirst = !q.repliedFirst
	}
	if acknowledge || q.repliedFirst {
		more = q.reply(e)
		return q.request(e) || more
	}
	more = q.request(e)
	return q.reply(e) || more
}

// Fail moves the queue pair to the error state for a reason outside the transport, such as a
// completion queue overflow, and reports ev. All posted work requests are flushed.
func (q *QP) Fail(e *Env, ev ib.EventType) {
	if q.state == ib.QPSErr || q.state == ib.QPSReset {
		return
	}
	q.Blame(e, Failure{Reason: ReasonEvent})
	q.resp.discardReplies()
	q.toError(e)
	e.Sink.Event(q, ev)
}

// MemoryFault reports that a memory write failed after the transport had treated it as done: the
// process or its pages are gone. It must precede the next Transmit, so that the failed write is not
// acknowledged. If completed is set, a completion of the message already reports the error;
// otherwise the work request in progress does.
//
// A failed responder write is answered with a remote operational error. If no completion reports
// it, an event does.
func (q *QP) MemoryFault(e *Env, w *Writer, completed bool) {
	if q.state < ib.QPSRTR || q.state == ib.QPSErr {
		return
	}
	if w.Requester {
		q.blameHead(e, Failure{Reason: ReasonMemoryGone, Status: ib.WCLocProtErr})
		q.failRequester(e, completed)
		return
	}
	r := &q.resp
	f := Failure{Reason: ReasonMemoryGone, PSN: r.epsn}
	if q.reliable() {
		f.Syndrome = packet.NAKRemoteOperational
	}
	q.Blame(e, f)
	if q.reliable() {
		r.unwind()
		r.fatalNAK(packet.NAKRemoteOperational)
	}
	if !completed && r.hasRecv && r.message == packet.KindSend {
		q.completeRecv(e, Completion{Status: ib.WCLocProtErr, Opcode: ib.WCRecv})
		completed = true
	}
	q.toError(e)
	if !completed {
		e.Sink.Event(q, ib.EventQPFatal)
	}
}

// failRequester fails the queue pair because a response could not be written to memory.
func (q *QP) failRequester(e *Env, completed bool) {
	if !completed && !q.sq.empty() {
		q.failHead(e, ib.WCLocProtErr)
		return
	}
	q.resp.discardReplies()
	q.toError(e)
}

// toError enters the error state and flushes both queues. Pending replies, including a fatal NAK,
// are still emitted.
func (q *QP) toError(e *Env) {
	q.state = ib.QPSErr
	q.flush(e)
}

// flush completes all posted work requests with WCWRFlushErr.
func (q *QP) flush(e *Env) {
	q.flushSend(e)
	q.resp.flush(q, e)
}

func (q *QP) flushSend(e *Env) {
	for !q.sq.empty() {
		q.completeWR(e, q.sq.head(), ib.WCWRFlushErr)
	}
	q.req.stop(q)
}

// drained reports whether no work request is started and incomplete.
func (q *QP) drained() bool { return q.sq.empty() || !q.sq.head().started }

// checkDrained reports EventSQDrained once a queue pair in SQD has nothing outstanding.
func (q *QP) checkDrained(e *Env) {
	if q.state == ib.QPSSQD && q.sqdNotify && q.drained() {
		q.sqdNotify = false
		e.Sink.Event(q, ib.EventSQDrained)
	}
}

// NextDeadline returns the time by which Expire and Transmit must be called, 0 for none.
func (q *QP) NextDeadline() int64 {
	r := &q.req
	if r.rnrUntil != 0 {
		return r.rnrUntil
	}
	return r.deadline
}

// PrefetchDeadline starts to load what NextDeadline reads.
func (q *QP) PrefetchDeadline() { prefetch.Lines(unsafe.Pointer(&q.req.deadline), 1) }

// Progress returns the requester's PSNs: the oldest unacknowledged, the next to emit, and the next
// unused. During retransmission send is behind next.
func (q *QP) Progress() (una, send, next uint32) {
	r := &q.req
	return uint32(r.una) & packet.PSNMask, uint32(r.send) & packet.PSNMask, uint32(r.next) & packet.PSNMask
}

// Expected returns the responder's expected PSN and its MSN.
func (q *QP) Expected() (psn, msn uint32) { return q.resp.epsn, q.resp.msn }
