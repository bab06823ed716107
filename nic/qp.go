package nic

import (
	"errors"
	"syscall"

	"softroce/internal/abi"
	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
	"softroce/wire"
)

var services = map[ib.QPType]packet.Service{ib.QPTypeRC: packet.RC, ib.QPTypeUC: packet.UC, ib.QPTypeUD: packet.UD,
	ib.QPTypeXRCSend: packet.XRC, ib.QPTypeXRCRecv: packet.XRC}

// Caps are the capacities of a queue pair: struct ibv_qp_cap.
type Caps struct {
	MaxSendWR  int `json:"max_send_wr"`
	MaxRecvWR  int `json:"max_recv_wr"`
	MaxSendSGE int `json:"max_send_sge"`
	MaxRecvSGE int `json:"max_recv_sge"`
	MaxInline  int `json:"max_inline_data"` // bytes
}

// RoundCaps rounds capacities up to what is granted: rings have a power of two of slots. EINVAL if
// they exceed the limits.
func (d *Device) RoundCaps(c *Caps) error { return d.limits.roundCaps(c) }

func (l *Limits) roundCaps(c *Caps) error {
	for _, f := range []struct {
		name   string
		v, max int
	}{
		{"max_send_wr", c.MaxSendWR, l.MaxQPWR}, {"max_recv_wr", c.MaxRecvWR, l.MaxQPWR},
		{"max_send_sge", c.MaxSendSGE, l.MaxSGE}, {"max_recv_sge", c.MaxRecvSGE, l.MaxSGE},
		{"max_inline_data", c.MaxInline, l.MaxInline},
	} {
		if f.v < 0 || f.v > f.max {
			return errorf(syscall.EINVAL, "%s %d: must be 0 to %d", f.name, f.v, f.max)
		}
	}
	c.MaxSendWR, c.MaxRecvWR = roundSlots(c.MaxSendWR), roundSlots(c.MaxRecvWR)
	c.MaxSendSGE, c.MaxRecvSGE = max(c.MaxSendSGE, 1), max(c.MaxRecvSGE, 1)
	c.MaxInline = min(l.MaxInline, abi.SendSlotSize(c.MaxSendSGE, c.MaxInline)-abi.SendWQESize)
	return nil
}

// SendRingSize returns the size in bytes of the send ring of a QP with these rounded Caps.
func (c *Caps) SendRingSize() int {
	return abi.RingSize(c.MaxSendWR, abi.SendSlotSize(c.MaxSendSGE, c.MaxInline))
}

// RecvRingSize returns the size in bytes of the receive ring of a QP with these rounded Caps.
func (c *Caps) RecvRingSize() int { return abi.RingSize(c.MaxRecvWR, abi.RecvSlotSize(c.MaxRecvSGE)) }

// QPInit configures a queue pair. What packets and turns use comes first: see QP.
type QPInit struct {
	Type ib.QPType
	Caps Caps // from RoundCaps

	PD     *PD
	SendCQ *CQ
	RecvCQ *CQ
	SRQ    *SRQ // nil: the queue pair has a receive queue
	SigAll bool
	SQ     []byte // Caps.SendRingSize() bytes
	RQ     []byte // Caps.RecvRingSize() bytes; nil with an SRQ

	SendOps ib.SendOps // that the device must have; it also executes others

	// An XRC initiator has no RecvCQ, SRQ and RQ. An XRC target has only an XRCD.
	XRCD *XRCD
}

// A QP is a queue pair: the transport's, its rings, and the path of its packets.
type QP struct {
	// What packets and turns use comes first, as in Device: prefetch loads it.
	ctx    *Context
	part   *contextPart // of ctx, of the slice
	device *Device      // the slice
	t      *transport.QP
	path   *wire.Path // RC, UC, XRC
	qpn    uint32
	state  ib.QPState // as last seen by stateChanged

	// The engine's scheduling.
	reply     place[QP]  // in txState.due
	turn      place[QP]  // in schedule.ready of its client
	aside     place[QP]  // in pauseState.aside
	waits     int64      // since when it waits for its turn
	rest      int        // bytes left of a turn that the budget of the step has cut short, else 0
	lastReply uint64     // frameBatch.last of the data when it last put replies there
	timer     heapTicket // of Device.timers
	checkAt   int64      // its time there; 0: it is not there

	recv      recvQueue
	sq        ring
	sqFetched uint32 // WQEs that were fetched
	sqDone    uint32 // WQEs that are complete: the consumer index
	rateLimit int64  // set by the program, b/s; 0: none

	sendCQ, recvCQ *CQ
	srq            *SRQ
	pd             *PD
	doorbell       int // number of its doorbell
	port           int
	pkeyIndex      int
	congestion     qpCongestion
	init           QPInit // prefetch loads what is in front of PD

	revocation *revocation // of its last bind; nil: none

	generation   uint32       // how often it was reset or destroyed
	lastDeferred ib.EventType // the event that was deferred behind its last deferred completion; 0: none
	av           AddressVector
	groups       []GID // multicast groups that it is attached to
}

// CreateQP creates a queue pair in RESET. Errors are EINVAL, ENOMEM and EOPNOTSUPP.
func (c *Context) CreateQP(o QPInit) (*QP, error) {
	if err := c.checkInit(&o); err != nil {
		return nil, err
	}
	d := c.device
	if err := c.checkLimit(kindQP); err != nil {
		return nil, err
	}
	q := &QP{ctx: c, device: d, init: o, pd: o.PD, sendCQ: o.SendCQ, recvCQ: o.RecvCQ, srq: o.SRQ}
	q.turn.of, q.reply.of, q.aside.of, q.congestion.due.of, q.congestion.sent.of = q, q, q, q, q
	if err := q.makeRings(); err != nil {
		return nil, err
	}
	bytes := len(o.SQ) + len(o.RQ)
	if err := c.chargeRing(bytes); err != nil {
		return nil, err
	}
	if err := q.register(); err != nil {
		c.releaseRing(bytes)
		return nil, err
	}
	q.addUsers(1)
	return q, nil
}

// register assigns q a QPN, a doorbell and a queue pair of the transport.
func (q *QP) register() error {
	c, d := q.ctx, q.device
	qpn, ok := d.qps.allocate()
	if !ok {
		return errorf(syscall.ENOMEM, "%s: all QPNs are in use", d.name)
	}
	d = d.sliceOf(qpn)
	q.device, q.part = d, &c.parts[d.number]
	bell, err := q.part.allocDoorbell(q)
	if err != nil {
		return err
	}
	o := &q.init
	config := transport.Config{
		QPN: qpn, Service: services[o.Type],
		SendDepth: o.Caps.MaxSendWR, MaxSendSGE: o.Caps.MaxSendSGE, MaxReadSGE: d.limits.MaxReadSGE, MaxInline: o.Caps.MaxInline,
		Recv: &q.recv, PortMTU: d.activeMTU(), SigAll: o.SigAll, Counters: &d.counters, Pool: &d.engine.pool, UserData: q,
	}
	if o.PD != nil {
		config.PD = o.PD.pd
	}
	if o.SRQ != nil {
		config.RecvPD = o.SRQ.pd.pd
	}
	if o.Type.XRC() {
		q.xrcConfig(&config)
	}
	config.Refused, config.NoInvalidate = d.refusedKinds(), !d.has(CapLocalInvalidate)
	t, err := transport.New(config)
	if err != nil {
		q.part.freeDoorbell(bell)
		return errorf(syscall.EOPNOTSUPP, "%v", err)
	}
	q.t, q.qpn, q.doorbell = t, qpn, bell
	q.share()
	d.qps.put(qpn, q)
	return nil
}

// addUsers adds n, 1 or -1, to the user counts of the objects that q uses.
func (q *QP) addUsers(n int) {
	c := q.ctx
	if q.pd != nil {
		q.pd.users += n
	}
	if q.sendCQ != nil {
		q.sendCQ.users += n
	}
	if q.recvCQ != nil {
		q.recvCQ.users += n
	}
	if q.init.XRCD != nil {
		q.init.XRCD.users += n
	}
	if q.srq != nil {
		q.srq.users += n
	}
	c.add(kindQP, n)
	if n > 0 {
		c.qps = append(c.qps, q)
	} else {
		c.qps = remove(c.qps, q)
	}
}

func (c *Context) checkInit(o *QPInit) error {
	if err := c.device.checkSendOps(o.SendOps); err != nil {
		return err
	}
	if o.Type.XRC() {
		if err := c.device.require(CapXRC, "XRC"); err != nil {
			return err
		}
		return c.checkXRCInit(o)
	}
	if err := c.own(o.PD); err != nil {
		return err
	}
	switch {
	case o.SendCQ == nil || o.SendCQ.ctx != c || o.RecvCQ == nil || o.RecvCQ.ctx != c:
		return errorf(syscall.EINVAL, "QP needs two CQs of its context")
	case o.SRQ != nil && o.SRQ.ctx != c:
		return errorf(syscall.EINVAL, "SRQ is not of the QP's context")
	case o.SRQ != nil && o.RQ != nil:
		return errorf(syscall.EINVAL, "QP with an SRQ has no receive ring")
	}
	if _, ok := services[o.Type]; !ok {
		return errorf(syscall.EOPNOTSUPP, "QP type %d is not supported", o.Type)
	}
	return c.device.granted.roundCaps(&o.Caps)
}

func (q *QP) makeRings() (err error) {
	o := &q.init
	if o.Type.XRC() {
		return q.makeXRCRings()
	}
	if err = q.makeSendRing(); err != nil {
		return err
	}
	if o.SRQ != nil {
		q.recv = recvQueue{qp: q, ring: o.SRQ.ring, sges: make([]transport.SGE, 0, o.SRQ.ring.maxSGE), shared: true}
		return nil
	}
	r, err := newRecvRing(q.ctx, o.RQ, o.Caps.MaxRecvWR, o.Caps.MaxRecvSGE)
	q.recv = recvQueue{qp: q, ring: r, sges: make([]transport.SGE, 0, o.Caps.MaxRecvSGE)}
	return err
}

func (q *QP) makeSendRing() (err error) {
	caps := &q.init.Caps
	q.sq, err = newRing("send", q.init.SQ, caps.MaxSendWR, abi.SendSlotSize(caps.MaxSendSGE, caps.MaxInline))
	if err == nil {
		q.sqDone = q.sq.loadConsumer()
		q.sqFetched = q.sqDone
	}
	return err
}

// DestroyQP destroys q; EBUSY while it is attached to a multicast group. Its completions that are
// not polled stay in the CQ. What was posted before is transmitted, once, as by ModifyQP.
func (c *Context) DestroyQP(q *QP) error {
	if q == nil || q.ctx != c {
		return errorf(syscall.ENOENT, "the QP is not of this context")
	}
	if n := len(q.groups); n > 0 {
		return errorf(syscall.EBUSY, "QP is attached to %d multicast groups", n)
	}
	q.takePosted()
	q.device.engine.copyPayload()
	q.remove()
	return nil
}

func (q *QP) remove() {
	c, d := q.ctx, q.device
	d.engine.revokeData(q)
	d.ended.add(q.ending())
	for len(q.groups) > 0 {
		q.detach(q.groups[0])
	}
	q.unbind()
	d.qps.remove(q.qpn)
	d.forgetRecent(q)
	d.timers.forget(&q.timer)
	d.tx.deactivate(q)
	q.part.freeDoorbell(q.doorbell)
	c.releaseRing(len(q.init.SQ) + len(q.init.RQ))
	q.addUsers(-1)
	q.ctx = nil
	q.generation, q.lastDeferred = q.generation+1, 0
}

// QPN returns the queue pair number.
func (q *QP) QPN() uint32 { return q.qpn }

// Doorbell returns the number of q's bit in the doorbell page of its context.
func (q *QP) Doorbell() int { return q.doorbell }

// Caps returns the granted capacities.
func (q *QP) Caps() Caps { return q.init.Caps }

// State returns the current state.
func (q *QP) State() ib.QPState { return q.t.State() }

// QPAttr is struct ibv_qp_attr: the transport's attributes and those of the device.
type QPAttr struct {
	ib.QPAttr // its PKey is set from PKeyIndex
	AV        AddressVector
	Port      int
	PKeyIndex int
	RateLimit uint32 // of what the queue pair sends, kb/s; 0: none
	Caps      Caps   // QueryQP only
}

// QueryQP returns q's attributes.
func (c *Context) QueryQP(q *QP) (QPAttr, error) {
	if q == nil || q.ctx != c {
		return QPAttr{}, errorf(syscall.ENOENT, "the QP is not of this context")
	}
	return QPAttr{QPAttr: q.t.Query(), AV: q.av, Port: q.port, PKeyIndex: q.pkeyIndex,
		RateLimit: uint32(q.rateLimit / kilobit), Caps: q.init.Caps}, nil
}

// ModifyQP changes the attributes in mask. With ib.QPMaskAV, a.AV.Path is the result of
// Device.ResolvePath. Errors are EINVAL and EPERM (a controlled Q_Key, see
// ContextOptions.Privileged). After an error nothing has changed.
//
// As an adapter sees the doorbell before the command that follows it, the work requests that were
// posted before a change of state are transmitted first, as much as a step transmits at most.
func (c *Context) ModifyQP(q *QP, a *QPAttr, mask ib.QPAttrMask) error {
	if err := c.usable(); err != nil {
		return err
	}
	if q == nil || q.ctx != c {
		return errorf(syscall.ENOENT, "the QP is not of this context")
	}
	if mask&ib.QPMaskState != 0 {
		q.takePosted()
		if err := c.usable(); err != nil {
			return err
		}
	}
	path, err := q.checkModify(a, mask)
	if err != nil {
		return err
	}
	if mask&ib.QPMaskState != 0 && (a.State == ib.QPSErr || a.State == ib.QPSReset) {
		q.device.engine.copyPayload()
	}
	var before *QPInfo
	if mask&ib.QPMaskState != 0 && a.State == ib.QPSReset {
		before = q.ending()
	}
	if err = q.t.Modify(q.device.env(q), &a.QPAttr, mask&^ib.QPMaskRateLimit); err != nil {
		return modifyError(err)
	}
	q.device.ended.add(before)
	if mask&ib.QPMaskPort != 0 {
		q.port = a.Port
	}
	if mask&ib.QPMaskPKeyIndex != 0 {
		q.pkeyIndex = a.PKeyIndex
	}
	if mask&ib.QPMaskAV != 0 {
		q.path, q.av = path, a.AV
	}
	if mask&ib.QPMaskRateLimit != 0 {
		q.rateLimit = int64(a.RateLimit) * kilobit
	}
	q.stateChanged()
	q.device.tx.activate(q)
	return nil
}

// takePosted gives q turns before a control operation, for what is posted to it. The frames leave,
// or are copied and wait for the link, and the completions are published.
//
// A queue pair in SQE flushes what is posted. None of it may be executed after the queue pair has
// left that state. At most a full ring is flushed, because the client may keep posting meanwhile.
func (q *QP) takePosted() {
	if q.hasPosted() || q.turn.queued || q.reply.queued {
		q.serveNow(stepBytes)
	}
	for first := q.sqFetched; q.state == ib.QPSSQE && q.sqFetched-first < q.sq.size(); {
		before := q.sqFetched
		q.fetchSends()
		q.t.Transmit(q.device.env(q))
		if q.sqFetched == before {
			return
		}
	}
}

// Serve lets q transmit what is posted to it in the step that follows, and reports whether that is
// not done yet, and whether it waits for the memory of a client. If a caller waits until it is done
// before it starts a control operation, that operation does not have to read memory, for which the
// engine would wait.
func (q *QP) Serve() (again, held bool) {
	switch {
	case q.ctx == nil || q.ctx.fatal.Load() != nil:
		return false, false
	case q.held():
		return true, true
	case q.hasPosted():
		q.device.tx.activate(q)
	}
	return q.turn.queued, false
}

// hasPosted reports whether the engine has not fetched all posted send work requests.
func (q *QP) hasPosted() bool { return q.sqFetched != q.sq.loadProducer() }

// serveNow gives q turns at once until it has no more to send, cannot send, or about budget bytes
// are emitted. It returns how many were. They count for the client's turns in the schedule.
func (q *QP) serveNow(budget int) (spent int) {
	d := q.device
	t := &d.tx
	d.engine.budget = 0 // no turns for others
	for !q.held() {
		t.rewind()
		t.activate(q)
		q.part.schedule.ready.remove(&q.turn)
		fetched, frames := q.sqFetched, t.data.last()
		cost, more := d.serveQP(q, budget-spent)
		spent += cost
		q.part.schedule.credit -= cost
		if more {
			t.activate(q)
		}
		d.engine.emit()
		if !q.turn.queued || q.sqFetched == fetched && t.data.last() == frames || spent >= budget {
			break
		}
	}
	return spent
}

func modifyError(err error) error {
	no := syscall.EINVAL
	errors.As(err, &no)
	return &Error{Errno: no, Text: err.Error()}
}

// checkModify checks what the transport does not know: port, P_Key index and address vector.
func (q *QP) checkModify(a *QPAttr, mask ib.QPAttrMask) (path *wire.Path, err error) {
	d := q.device
	if mask&ib.QPMaskState != 0 && a.State == ib.QPSInit && (q.sendCQ.failed() || q.recvCQ.failed()) {
		return nil, errorf(syscall.EINVAL, "a CQ of the QP has overrun and accepts no more completions")
	}
	port := q.port
	if mask&ib.QPMaskPort != 0 {
		if err := d.checkPort(a.Port); err != nil {
			return nil, err
		}
		port = a.Port
	}
	if mask&ib.QPMaskPKeyIndex != 0 {
		k, ok := d.PKey(a.PKeyIndex)
		if !ok {
			return nil, errorf(syscall.EINVAL, "no P_Key at index %d", a.PKeyIndex)
		}
		a.PKey = k
	}
	if mask&ib.QPMaskQKey != 0 && a.QKey>>31 != 0 && !q.ctx.opt.Privileged {
		return nil, errorf(syscall.EPERM, "Q_Key %#x is controlled: only root and the daemon's user may set it", a.QKey)
	}
	if mask&ib.QPMaskPathMTU != 0 && a.PathMTU > d.activeMTU() {
		return nil, errorf(syscall.EINVAL, "path MTU %d is above the port's active MTU %d", a.PathMTU, d.activeMTU())
	}
	if limit := d.limits.MaxInitRDAtomic; mask&ib.QPMaskMaxRDAtomic != 0 && int(a.MaxRDAtomic) > limit {
		return nil, errorf(syscall.EINVAL, "max_rd_atomic must be at most %d", limit)
	}
	if limit := d.limits.MaxRDAtomic; mask&ib.QPMaskMaxDestRDAtomic != 0 && int(a.MaxDestRDAtomic) > limit {
		return nil, errorf(syscall.EINVAL, "max_dest_rd_atomic must be at most %d", limit)
	}
	if mask&ib.QPMaskRateLimit != 0 && !q.mayLimitRate(a, mask) {
		return nil, errorf(syscall.EINVAL, "rate_limit: the QP must be in RTS or SQD, or go to RTS")
	}
	if mask&(ib.QPMaskAltPath|ib.QPMaskPathMigState) != 0 {
		return nil, errorf(syscall.EINVAL, "automatic path migration is not supported")
	}
	if mask&ib.QPMaskAV == 0 {
		return nil, nil
	}
	if path, err = d.resolved(&a.AV); err != nil {
		return nil, err
	}
	if port != a.AV.Port {
		return nil, errorf(syscall.EINVAL, "port %d of the address vector: the QP has port %d", a.AV.Port, port)
	}
	peer := a.DestQPN
	if mask&ib.QPMaskDestQPN == 0 {
		peer = q.t.Query().DestQPN
	}
	if path.SrcPort = d.link.Capabilities().SrcPort; path.SrcPort == 0 {
		path.SrcPort = d.connectionPort(a.AV.FlowLabel, q.qpn, peer)
	}
	return d.paths.share(path), nil
}

// kilobit is the unit of rate_limit in b/s.
const kilobit = 1000

// mayLimitRate reports whether a change of attributes may set the rate limit, as in Linux: of a
// queue pair that can send afterwards.
func (q *QP) mayLimitRate(a *QPAttr, mask ib.QPAttrMask) bool {
	to := q.t.State()
	if mask&ib.QPMaskState != 0 {
		to = a.State
	}
	return to == ib.QPSRTS || to == ib.QPSSQD
}

// stateChanged is called after the transport may have changed the state, for each packet. It is
// short, so that the compiler inlines it.
func (q *QP) stateChanged() {
	if s := q.t.State(); s != q.state {
		q.enter(s)
	}
}

// enter updates the rings, and what else depends on the state, after a change to s.
func (q *QP) enter(s ib.QPState) {
	q.state = s
	if !q.recv.shared {
		q.recv.ring.requestDoorbell(s == ib.QPSErr)
	}
	switch s {
	case ib.QPSReset:
		q.sqFetched = q.sq.loadProducer()
		q.sqDone = q.sqFetched
		q.sq.storeConsumer(q.sqDone)
		if !q.recv.shared {
			q.recv.ring.discard()
		}
		q.device.engine.revokeData(q)
		q.path, q.rateLimit = nil, 0
		q.device.congestion.forget(q)
		q.generation, q.lastDeferred = q.generation+1, 0
	case ib.QPSRTS:
		q.device.congestion.begin(q)
	case ib.QPSErr:
		q.device.endReferences()
		q.device.engine.revokeData(q)
		q.device.tx.activate(q) // to flush what is posted from now on
	}
}

// fail takes q to ERR because of an error outside the transport.
func (q *QP) fail(r transport.Reason) {
	if s := q.t.State(); s != ib.QPSReset && s != ib.QPSErr {
		q.t.Blame(q.device.env(q), transport.Failure{Reason: r})
	}
	q.failWith(ib.EventQPFatal)
}

// failWith is fail with another event than QP_FATAL.
func (q *QP) failWith(t ib.EventType) {
	q.t.Fail(q.device.env(q), t)
	q.stateChanged()
	q.device.tx.activate(q)
}
