package transport

import (
	"errors"
	"fmt"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// A QP is a queue pair. Its methods are for one goroutine at a time.
type QP struct {
	cfg   Config
	attr  ib.QPAttr
	state ib.QPState

	sq   sendQueue
	req  requester
	resp responder

	hdr          packet.Header // of the packet being built
	dest         any           // of the UD packet being emitted
	wc           Completion    // being given to the sink
	reqWriter    Writer        // for the requester
	respWriter   Writer        // for the responder
	repliedFirst bool          // replies went first in the last Transmit
	sqdNotify    bool          // EventSQDrained is due when the send queue has drained
}

// ErrService is returned by New for a transport service that is not implemented.
var ErrService = errors.New("transport service is not supported")

// New makes a queue pair in state Reset.
func New(c Config) (*QP, error) {
	switch c.Service {
	case packet.RC, packet.UC, packet.UD:
	case packet.XRC:
		if c.Role != Initiator && (c.Role != Target || c.Domain == nil) {
			return nil, fmt.Errorf("%w: XRC without a role or a domain", ErrAttribute)
		}
	default:
		return nil, fmt.Errorf("%w: %v", ErrService, c.Service)
	}
	if c.SendDepth < 0 || c.MaxSendSGE < 0 || c.MaxInline < 0 {
		return nil, fmt.Errorf("%w: negative capacity", ErrAttribute)
	}
	if c.Counters == nil {
		c.Counters = new(Counters)
	}
	q := &QP{cfg: c}
	q.reqWriter, q.respWriter = Writer{q, true}, Writer{q, false}
	q.sq.init(c.SendDepth, c.MaxSendSGE, c.MaxInline)
	return q, nil
}

// QPN returns the queue pair number.
func (q *QP) QPN() uint32 { return q.cfg.QPN }

// PD returns the protection domain.
func (q *QP) PD() *mrtable.PD { return q.cfg.PD }

// UserData returns what Config gave.
func (q *QP) UserData() any { return q.cfg.UserData }

// State returns the present state.
func (q *QP) State() ib.QPState { return q.state }

// Query returns the attributes, SQPSN and RQPSN being the next PSN of each direction.
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

// PKeyMatches reports whether a packet's P_Key may come in: same partition, and not
// limited members both (IBTA 10.9.3). Partition 0 is nobody's (10.9.1.1).
func (q *QP) PKeyMatches(k uint16) bool {
	return k&0x7fff != 0 && k&0x7fff == q.attr.PKey&0x7fff && (k|q.attr.PKey)&0x8000 != 0
}

// SetPKey changes the P_Key, because what stands at the queue pair's index of the table has changed; 0 is none.
func (q *QP) SetPKey(k uint16) { q.attr.PKey = k }

// Modify changes state and attributes. It returns ErrTransition or ErrAttribute and
// changes nothing where the combination is not allowed.
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
	case to == ib.QPSReset:
		q.reset()
	case to == ib.QPSErr:
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
		q.sqdNotify = mask&ib.QPMaskEnSQDNotify != 0
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
	q.req = requester{segs: q.req.segs[:0]}
	q.resp.reset()
	q.sqdNotify = false
}

// Receive takes a packet that was sent to this queue pair. What there is to answer is
// emitted by Transmit.
func (q *QP) Receive(e *Env, p *RxPacket) {
	c := q.cfg.Counters
	in := p.Opcode.Info()
	c.RxOpcode[p.Opcode]++
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

// responderOf gives a request to the responder of the queue pair's service.
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

// reliable reports whether the service acknowledges.
func (q *QP) reliable() bool { return q.cfg.Service == packet.RC || q.cfg.Service == packet.XRC }

// Destination returns the Dest of the work request whose packet is being emitted: UD.
func (q *QP) Destination() any { return q.dest }

// Transmit emits what is due: answers and requests, the two taking turns to go first so that
// neither starves the other. It returns true if it stopped only for want of room.
func (q *QP) Transmit(e *Env) (more bool) {
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
	// An acknowledgement goes first: who gets it together with the next message hears in the natural order that
	// its own was taken and what came of it. Longer answers take turns with requests.
	acknowledge := q.resp.replies.head == q.resp.replies.tail
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

// Fail takes the queue pair to the error state because of something outside the
// transport (a completion queue overflow): everything posted is flushed.
func (q *QP) Fail(e *Env, ev ib.EventType) {
	if q.state == ib.QPSErr || q.state == ib.QPSReset {
		return
	}
	q.resp.discardReplies()
	q.toError(e)
	e.Sink.Event(q, ev)
}

// MemoryFault says that a write to memory, which the transport had taken for done,
// failed: the process is gone, or its pages are. It comes before the next Transmit, so that
// what could not be written was not acknowledged. told says that a completion which was given
// since the write has become an error; if not, the work request under way gets it.
//
// A peer whose data had no place hears a remote operational error.
func (q *QP) MemoryFault(e *Env, w *Writer, completed bool) {
	if q.state < ib.QPSRTR || q.state == ib.QPSErr {
		return
	}
	if w.Requester {
		q.failRequester(e, completed)
		return
	}
	r := &q.resp
	if q.reliable() {
		r.unwind()
		r.fatalNAK(packet.NAKRemoteOperational)
	}
	if !completed && r.hasRecv && r.message == packet.KindSend {
		q.completeRecv(e, Completion{Status: ib.WCLocProtErr, Opcode: ib.WCRecv})
	}
	q.toError(e)
	e.Sink.Event(q, ib.EventQPFatal)
}

// askedInVain fails the requester, whose response could not be stored.
func (q *QP) failRequester(e *Env, completed bool) {
	if !completed && !q.sq.empty() {
		q.failHead(e, ib.WCLocProtErr)
		return
	}
	q.resp.discardReplies()
	q.toError(e)
}

// toError enters the error state and flushes both queues. Answers that wait, a fatal
// NAK among them, still go out.
func (q *QP) toError(e *Env) {
	q.state = ib.QPSErr
	q.flush(e)
}

// flush completes what is posted with WRFlushErr.
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

// drained reports whether nothing in the send queue is begun and not complete.
func (q *QP) drained() bool { return q.sq.empty() || !q.sq.head().started }

// checkDrained tells when a queue pair in SQD has nothing outstanding any more.
func (q *QP) checkDrained(e *Env) {
	if q.state == ib.QPSSQD && q.sqdNotify && q.drained() {
		q.sqdNotify = false
		e.Sink.Event(q, ib.EventSQDrained)
	}
}

// NextDeadline says when Expire and Transmit are to be called at the latest, 0 for never.
func (q *QP) NextDeadline() int64 {
	r := &q.req
	if r.rnrUntil != 0 {
		return r.rnrUntil
	}
	return r.deadline
}

// Progress tells where the requester is: PSNs, the oldest not acknowledged, the next to
// emit, and the next never used. send is behind next while packets are sent again.
func (q *QP) Progress() (una, send, next uint32) {
	r := &q.req
	return uint32(r.una) & packet.PSNMask, uint32(r.send) & packet.PSNMask, uint32(r.next) & packet.PSNMask
}

// Expected tells where the responder is: the PSN that it expects, and its MSN.
func (q *QP) Expected() (psn, msn uint32) { return q.resp.epsn, q.resp.msn }
