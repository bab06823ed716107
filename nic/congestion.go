package nic

import (
	"cmp"
	"math"

	"softroce/internal/ib"
	"softroce/packet"
	"softroce/transport"
	"softroce/transport/congestion"
	"softroce/wire"
)

// Congestion control of a device: package congestion has the algorithms, and this file what an
// engine adds to it. A queue pair that has received no CNP and no mark costs a comparison for each
// turn and each packet.
//
//  1. A packet with a mark makes its queue pair send a CNP (mark, sendCNPs), ahead of all replies.
//  2. A CNP gives its queue pair a controller (receiveCNP), whose rate limits it from then on. With
//     an algorithm that goes by round trips, each queue pair has one since it became able to send
//     (begin), and the transport reports to it.
//  3. A limited queue pair may send less in its turn (limit), and what it sends is counted (sent).
//     If it is ahead of its rate it has no turn until a time (mustWait), for which the heap of
//     paced queue pairs waits (releasePaced).
//
// The rates that a program has set, of a queue pair (ibv_modify_qp_rate_limit) and of an address
// vector (static_rate), limit it in the same way, whatever the algorithm: programRate.
//
// ACKs, NAKs and the results of atomics are not limited. READ responses are, as requests are.

// A congestionState is the congestion control of a device.
type congestionState struct {
	due    fifo[QP] // queue pairs that are to send a CNP
	sent   fifo[QP] // queue pairs that have sent a CNP in this step or in the last one
	paced  qpHeap   // queue pairs that wait for their rate, by its time
	line   int64    // rate of the port, b/s
	params congestion.Params
}

// A qpCongestion is the congestion control of a queue pair.
type qpCongestion struct {
	notification congestion.NotificationPoint
	controller   congestion.Controller // nil: nothing has required one
	pacer        congestion.Pacer      // of the rates that the program has set
	datagramRate int64                 // that of the last datagram's address handle, b/s; 0: none
	due, sent    place[QP]             // in the lists of congestionState
	cnpPath      *wire.Path            // of CNPs; nil: none was sent on path
	path         *wire.Path            // QP.path when cnpPath was made

	paced heapTicket // of congestionState.paced
}

// cnpReserved is what follows the BTH of a CNP (IBTA A17.9.3).
var cnpReserved [16]byte

func (d *Device) initCongestion(c *DeviceConfig) {
	s := &d.congestion
	s.params = congestion.Defaults()
	if c.Congestion != nil {
		s.params = *c.Congestion
	}
	s.line = cmp.Or(c.Rate, int64(ib.BitRate(d.identity.ActiveSpeed, d.identity.ActiveWidth)))
}

// Congestion returns the parameters of congestion control.
func (d *Device) Congestion() congestion.Params { return d.congestion.params }

// SetCongestion sets a parameter of congestion control, which takes effect at once. With another
// algorithm, the rates of all queue pairs start again.
func (d *Device) SetCongestion(name, value string) error {
	p := &d.congestion.params
	before := p.Algorithm
	if err := p.SetText(name, value); err != nil {
		return err
	}
	for _, s := range d.slices[1:] {
		s.congestion.params = *p
	}
	if p.Algorithm == before {
		return nil
	}
	for _, c := range d.contexts {
		for _, q := range c.qps {
			q.device.congestion.forget(q)
			q.device.congestion.begin(q)
			q.device.tx.activate(q)
		}
	}
	return nil
}

// begin gives q a controller if its state allows it to send, and the algorithm needs to know the
// round trips of what it sends.
func (s *congestionState) begin(q *QP) {
	timed := q.init.Type == ib.QPTypeRC || q.init.Type == ib.QPTypeXRCSend
	if timed && q.state == ib.QPSRTS && s.params.Algorithm.UsesRoundTrips() && q.congestion.controller == nil {
		s.control(q)
	}
}

// forget ends the congestion control of q: its connection ends.
func (s *congestionState) forget(q *QP) {
	s.due.remove(&q.congestion.due)
	s.sent.remove(&q.congestion.sent)
	s.paced.forget(&q.congestion.paced)
	q.t.SetController(nil)
	q.congestion = qpCongestion{due: place[QP]{of: q}, sent: place[QP]{of: q}}
}

// control gives q a controller.
func (s *congestionState) control(q *QP) {
	c := congestion.NewController(&s.params, s.line, q.device.engine.now)
	q.congestion.controller = c
	q.t.SetController(c)
}

// mark handles the mark of the packet in d.buffers, if it has one, or the end of the interval
// between two CNPs of q. Only a connection has a peer to which CNPs can be addressed.
func (d *Device) mark(q *QP) {
	if d.buffers.pkt.CE {
		d.counters.RxECNMarked++
	}
	s, k := &d.congestion, &q.congestion
	if q.path != nil && k.notification.Received(&s.params, d.buffers.pkt.CE, d.engine.now) && !k.due.queued {
		s.due.push(&k.due)
	}
}

// sendCNPs sends the CNPs that are due. They overtake what waits for a congested link.
func (d *Device) sendCNPs() {
	s, t, h := &d.congestion, &d.tx, &d.buffers.header
	if s.due.empty() {
		return
	}
	t.into = &t.data
	if t.congested {
		t.into = &t.replies
	}
	for !s.due.empty() && t.free() > 0 {
		q := s.due.pop()
		if q.path == nil || q.state < ib.QPSRTR || q.state == ib.QPSErr {
			continue
		}
		if t.isClosed(q.cnpPath()) { // so are those of all others
			s.due.pushFirst(&q.congestion.due)
			return
		}
		f := t.frame(t.into, q.cnpPath(), false)
		f.QPN = q.qpn
		a := q.t.Query()
		h.BTH = packet.BTH{Opcode: packet.OpcodeCNP, PKey: a.PKey, BECN: true, DestQP: a.DestQPN}
		f.Set(h, cnpReserved[:])
		q.congestion.notification.Sent(&s.params, d.engine.now)
		if !q.congestion.sent.queued {
			s.sent.push(&q.congestion.sent)
		}
		d.counters.CNPSent++
		d.counters.TxOpcode[packet.OpcodeCNP]++
	}
}

// noteSentCNPs handles the CNPs of the last step. Another process may have had the processor
// between its beginning and the moment when they left, which is not later than now.
func (d *Device) noteSentCNPs() {
	for s := &d.congestion; !s.sent.empty(); {
		if q := s.sent.pop(); d.engine.continues {
			q.congestion.notification.Left(&s.params, d.engine.now)
		}
	}
}

// cnpPath returns the path of q's CNPs: that of its packets, with the DSCP and the priority of
// CNPs. They are ECN-capable, so that a switch with a long queue does not drop them.
func (q *QP) cnpPath() *wire.Path {
	k, p := &q.congestion, &q.device.congestion.params
	tclass, priority := uint8(p.CNPDSCP<<2|ect0), uint8(p.CNPPriority)
	if p.CNPPriorityMode != 0 {
		priority = q.path.Priority
	}
	if k.path != q.path || k.cnpPath.TClass != tclass || k.cnpPath.Priority != priority {
		c := *q.path
		c.TClass, c.Priority = tclass, priority
		k.path, k.cnpPath = q.path, &c
	}
	return k.cnpPath
}

// ect0 are the ECN bits of an ECN-capable packet without a mark (RFC 3168).
const ect0 = 2

// receiveCNP handles the CNP in d.buffers, which q's peer has sent.
func (d *Device) receiveCNP(q *QP) {
	s, k := &d.congestion, &q.congestion
	if !s.params.Algorithm.UsesCNPs() || q.init.Type == ib.QPTypeUD || !d.buffers.pkt.BECN {
		d.counters.Drop(transport.DropCNP)
		return
	}
	d.counters.CNPHandled++
	d.counters.RxOpcode[packet.OpcodeCNP]++
	if k.controller == nil {
		s.control(q)
	}
	k.controller.Notified(d.engine.now)
}

// limited reports whether q's rate is below that of the port. In an error state there is nothing to
// send, and work requests are flushed without delay.
func (q *QP) limited() bool {
	return (q.controlled() || q.programRate() != 0) && q.state != ib.QPSErr && q.state != ib.QPSSQE
}

// controlled reports whether congestion control limits q.
func (q *QP) controlled() bool {
	c := q.congestion.controller
	return c != nil && c.Limited()
}

// programRate returns the rate in b/s that the program has set for what q sends next, 0 if it has
// set none. The next datagram is taken to have the rate of the last one.
func (q *QP) programRate() int64 {
	if q.path != nil {
		return lower(q.rateLimit, q.path.Rate)
	}
	return lower(q.rateLimit, q.congestion.datagramRate)
}

// lower returns the lower one of two rates, where 0 means no limit.
func lower(a, b int64) int64 {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// allowance returns how many bytes q, which is limited, may send or, if that is 0, when it may send
// next.
func (q *QP) allowance() (bytes int, next int64) {
	now := q.device.engine.now
	bytes = math.MaxInt
	if q.controlled() {
		bytes, next = q.congestion.controller.Allowance(now)
	}
	if rate := q.programRate(); rate != 0 {
		n, at := q.congestion.pacer.Allowance(now, rate, q.device.congestion.params.Burst())
		bytes, next = min(bytes, n), max(next, at)
	}
	return bytes, next
}

// mustWait reports whether q is ahead of its rate. Then releasePaced gives it a turn in time.
func (d *Device) mustWait(q *QP) bool {
	if !q.limited() {
		return false
	}
	n, at := q.allowance()
	if n > 0 {
		return false
	}
	d.congestion.paced.set(q, &q.congestion.paced, at)
	return true
}

// limit returns how much of a turn q may use. A control operation may give a turn to a queue pair
// that is ahead of its rate: then it has a whole one, and waits longer afterwards.
func (q *QP) limit(turn int) int {
	if !q.limited() {
		return turn
	}
	n, _ := q.allowance()
	return min(turn, cmp.Or(n, turn))
}

// sent counts the frames that q has added to a batch.
func (q *QP) sent(frames []wire.TxFrame) {
	if !q.limited() && q.init.Type != ib.QPTypeUD {
		return
	}
	k, now, total := &q.congestion, q.device.engine.now, 0
	for i := range frames {
		p := frames[i].Path
		bytes := frames[i].Run.Packets()*packet.EthernetLen + frames[i].IPBytes()
		if rate := lower(q.rateLimit, p.Rate); rate != 0 {
			k.pacer.Sent(now, bytes, rate, q.device.congestion.params.Burst())
		}
		if q.path == nil {
			k.datagramRate = p.Rate
		}
		total += bytes
	}
	if q.controlled() {
		k.controller.Sent(now, total)
	}
}

// releasePaced gives turns to the queue pairs whose time has come.
func (d *Device) releasePaced() (any bool) {
	for {
		q := d.congestion.paced.pop(d.engine.now)
		if q == nil {
			return any
		}
		d.tx.activate(q)
		any = true
	}
}

// rate returns the rate of q in b/s, 0 if it has no limit.
func (q *QP) rate() int64 {
	var controlled int64
	if q.congestion.controller != nil {
		controlled = q.congestion.controller.Rate(q.device.engine.now)
	}
	switch {
	case !q.limited():
		return 0
	case !q.controlled():
		return q.programRate()
	}
	return lower(controlled, q.programRate())
}
