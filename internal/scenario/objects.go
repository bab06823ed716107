package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"softroce/internal/ib"
	"softroce/internal/testbed"
	"softroce/nic"
)

// side takes the word that says on which NIC something is made.
func (s *stage) side(w *words) (testbed.NIC, error) {
	if w.flag("second") {
		return s.other()
	}
	return s.under, nil
}

// cmdMR registers memory: mr NAME SIZE [second] [access=FLAGS] [fill=CHARACTER] [pd=NAME] [foreign]; or that of another region
// once more: mr NAME of=REGION [access=FLAGS] [pd=NAME].
func (s *stage) cmdMR(w *words) error {
	n, err := s.side(w)
	if err != nil {
		return err
	}
	o := testbed.RegionOptions{Fill: '.', Access: accessFlags.values["all"], Foreign: w.flag("foreign")}
	name, err := s.memory(w, &o)
	if err != nil {
		return err
	}
	if a, ok := w.option("access"); ok {
		if o.Access, err = parseAccess(a); err != nil {
			return err
		}
	}
	if f, ok := w.option("fill"); ok {
		if len(f) != 1 {
			return fmt.Errorf("fill=%s: must be one character", f)
		}
		o.Fill = f[0]
	}
	o.PD, _ = w.option("pd")
	if err := errors.Join(w.end(), s.claim(name)); err != nil {
		return err
	}
	r, err := n.Register(name, o)
	if err != nil {
		delete(s.names, name)
		return refused(err)
	}
	s.regions[name] = &region{Region: r, name: name, nic: n}
	return nil
}

// memory takes a region's name, and how much or whose memory it has.
func (s *stage) memory(w *words, o *testbed.RegionOptions) (name string, err error) {
	of, ok := w.option("of")
	if !ok {
		name, o.Size, err = nameAndNumber(w, "a size in bytes")
		return name, err
	}
	r := s.regions[of]
	if r == nil || r.window != 0 {
		return "", fmt.Errorf("of=%s: there is no such region", of)
	}
	o.Of, o.Size = of, r.Size
	return w.next("a name")
}

func nameAndNumber(w *words, what string) (name string, n int, err error) {
	if name, err = w.next("a name"); err != nil {
		return "", 0, err
	}
	v, err := w.next(what)
	if err != nil {
		return "", 0, err
	}
	if n, err = strconv.Atoi(v); err != nil || n < 0 || n > maxData {
		return "", 0, fmt.Errorf("%q must be %s, at most %d", v, what, maxData)
	}
	return name, n, nil
}

// cmdDereg deregisters memory: dereg NAME. The name remains, for keys that are not valid any more.
func (s *stage) cmdDereg(w *words) error {
	name, err := w.next("a memory region")
	if err != nil {
		return err
	}
	r := s.regions[name]
	if r == nil {
		return fmt.Errorf("there is no memory region %q", name)
	}
	return errors.Join(w.end(), refused(r.nic.Deregister(name)))
}

// cmdFill writes to memory as its program does: fill PLACE DATA.
func (s *stage) cmdFill(w *words) error {
	p, err := s.placeInside(w)
	if err != nil {
		return err
	}
	d, err := w.next("data")
	if err != nil {
		return err
	}
	data, err := parseData(d)
	if err != nil {
		return err
	}
	if uint64(len(data)) > p.length {
		return fmt.Errorf("%d bytes do not fit in %d", len(data), p.length)
	}
	return errors.Join(w.end(), p.region.nic.WriteMemory(p.region.name, p.off, data))
}

// placeInside takes a place all of which is in its region.
func (s *stage) placeInside(w *words) (p place, err error) {
	at, err := w.next("a place in a memory region")
	if err != nil {
		return p, err
	}
	if p, err = s.place(at); err != nil {
		return p, err
	}
	if size := uint64(p.region.Size); p.off > size || p.length > size-p.off {
		return p, fmt.Errorf("%s lies outside of the region", at)
	}
	return p, nil
}

// cmdCQ creates a completion queue: cq NAME ENTRIES [second].
func (s *stage) cmdCQ(w *words) error {
	n, err := s.side(w)
	if err != nil {
		return err
	}
	name, entries, err := nameAndNumber(w, "a number of entries")
	if err != nil {
		return err
	}
	if err := errors.Join(w.end(), s.claim(name)); err != nil {
		return err
	}
	return refused(n.CreateCQ(name, entries))
}

// cmdArm asks a completion queue for a notice: arm NAME [solicited].
func (s *stage) cmdArm(w *words) error {
	name, err := w.next("a completion queue")
	if err != nil {
		return err
	}
	solicited := w.flag("solicited")
	s.armed = true
	return errors.Join(w.end(), s.under.Arm(name, solicited))
}

// cmdSRQ creates a shared receive queue: srq NAME ENTRIES [second] [limit=N] [xrcd=NAME [cq=NAME]].
func (s *stage) cmdSRQ(w *words) error {
	n, err := s.side(w)
	if err != nil {
		return err
	}
	name, entries, err := nameAndNumber(w, "a number of work requests")
	if err != nil {
		return err
	}
	limit := uint64(0)
	o := testbed.SRQOptions{Entries: entries}
	o.XRCD, _ = w.option("xrcd")
	o.CQ, _ = w.option("cq")
	if err := errors.Join(w.number("limit", 16, &limit), w.end(), s.claim(name)); err != nil {
		return err
	}
	o.Limit = int(limit)
	number, err := n.CreateSRQ(name, o)
	if err != nil {
		delete(s.names, name)
		return refused(err)
	}
	s.srqs[name] = number
	return nil
}

// cmdXRCD opens an XRC domain: xrcd NAME.
func (s *stage) cmdXRCD(w *words) error {
	name, err := w.next("a name")
	if err != nil {
		return err
	}
	if err := errors.Join(w.end(), s.claim(name)); err != nil {
		return err
	}
	return refused(s.under.OpenXRCD(name))
}

// cmdAttach makes a queue pair receive what is sent to a multicast group: attach QP ADDRESS.
func (s *stage) cmdAttach(w *words) error { return s.attach(w, false) }

// cmdDetach ends it: detach QP ADDRESS.
func (s *stage) cmdDetach(w *words) error { return s.attach(w, true) }

func (s *stage) attach(w *words, detach bool) error {
	q, err := s.namedQP(w)
	if err != nil {
		return err
	}
	group, err := w.next("a multicast address")
	if err != nil {
		return err
	}
	a, err := s.address(group)
	if err != nil {
		return err
	}
	return errors.Join(w.end(), refused(q.nic.Attach(q.name, nic.GIDOf(a), detach)))
}

// qpWords takes what creating a queue pair and connecting it have in common.
func (s *stage) qpWords(w *words) (o testbed.QPOptions, a nic.QPAttr, to ib.QPState, err error) {
	o.Type, a, to = ib.QPTypeRC, usualAttr(), ib.QPSRTS
	for name, t := range qpTypes.values {
		if w.flag(name) {
			o.Type = t
		}
	}
	o.SigAll = w.flag("sq_sig_all")
	o.CQ, _ = w.option("cq")
	o.SRQ, _ = w.option("srq")
	o.PD, _ = w.option("pd")
	o.XRCD, _ = w.option("xrcd")
	if v, ok := w.option("state"); ok {
		if to, err = states.parse(v); err != nil {
			return o, a, to, err
		}
	}
	var sends, recvs uint64
	if err := errors.Join(w.number("max_send_wr", 8, &sends), w.number("max_recv_wr", 8, &recvs)); err != nil {
		return o, a, to, err
	}
	o.MaxSendWR, o.MaxRecvWR = int(sends), int(recvs)
	_, err = attributes(w, &a)
	return o, a, to, err
}

// cmdQP creates a queue pair whose peer the script plays: qp NAME [TYPE] [sq_sig_all] [state=STATE] [cq=NAME] [srq=NAME]
// [pd=NAME] [xrcd=NAME] [to=ADDRESS] [vlan=N] [max_send_wr=N] [max_recv_wr=N]
// [ATTRIBUTE=VALUE]…
func (s *stage) cmdQP(w *words) error {
	name, err := w.next("a name")
	if err != nil {
		return err
	}
	o, a, to, err := s.qpWords(w)
	if err != nil {
		return err
	}
	far, err := s.destination(w)
	if err != nil {
		return err
	}
	vlan := uint64(0)
	if err := w.number("vlan", 12, &vlan); err != nil {
		return err
	}
	if a.AV.SGIDIndex, err = s.under.GID(uint16(vlan)); err != nil {
		return err
	}
	if err := errors.Join(w.end(), s.claim(name)); err != nil {
		return err
	}
	if a.DestQPN == 0 {
		a.DestQPN = s.handQPN
		s.handQPN++
	}
	q, err := s.create(name, s.under, o)
	if err != nil {
		return err
	}
	a.AV.DGID, q.vlan = nic.GIDOf(far), uint16(vlan)
	return q.connect(a, to)
}

// destination takes whom packets are for, if not for the script alone: a multicast group.
func (s *stage) destination(w *words) (netip.Addr, error) {
	v, ok := w.option("to")
	if !ok {
		return s.testbed.Peer(), nil
	}
	a, err := s.address(v)
	if err == nil && a.IsMulticast() {
		err = s.testbed.Join(a)
	}
	return a, err
}

// cmdPair creates two queue pairs, the second one on the second NIC, and connects them: pair NAME NAME, and what qp takes.
func (s *stage) cmdPair(w *words) error {
	first, err := w.next("a name")
	if err != nil {
		return err
	}
	second, err := w.next("the other name")
	if err != nil {
		return err
	}
	o, a, to, err := s.qpWords(w)
	if err != nil {
		return err
	}
	if err := errors.Join(w.end(), s.claim(first), s.claim(second)); err != nil {
		return err
	}
	n, err := s.other()
	if err != nil {
		return err
	}
	p, err := s.create(first, s.under, o)
	if err != nil {
		return err
	}
	o.CQ, o.SRQ, o.PD = "", "", ""
	q, err := s.create(second, n, o)
	if err != nil {
		return err
	}
	p.peer, q.peer = q, p
	b := a
	if a.AV.SGIDIndex, err = s.under.GID(0); err != nil {
		return err
	}
	if b.AV.SGIDIndex, err = n.GID(0); err != nil {
		return err
	}
	b.SQPSN, b.RQPSN = a.RQPSN, a.SQPSN
	a.DestQPN, b.DestQPN = q.qpn, p.qpn
	a.AV.DGID, b.AV.DGID = nic.GIDOf(n.Addr()), nic.GIDOf(s.under.Addr())
	return errors.Join(p.connect(a, to), q.connect(b, to))
}

func (s *stage) create(name string, n testbed.NIC, o testbed.QPOptions) (*queuePair, error) {
	qpn, err := n.CreateQP(name, o)
	if err != nil {
		delete(s.names, name)
		return nil, refused(err)
	}
	q := &queuePair{name: name, nic: n, typ: o.Type, qpn: qpn}
	s.qps[name] = q
	return q, nil
}

// A stepUp is a transition on the way to RTS, and what has to go with it.
type stepUp struct {
	to   ib.QPState
	mask ib.QPAttrMask
}

// stepsUp are the transitions of each service (IBTA 11.2.5.2).
var stepsUp = map[ib.QPType][]stepUp{
	ib.QPTypeRC: {
		{ib.QPSInit, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess},
		{ib.QPSRTR, ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN |
			ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer},
		{ib.QPSRTS, ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry |
			ib.QPMaskSQPSN | ib.QPMaskMaxRDAtomic},
	},
	ib.QPTypeUC: {
		{ib.QPSInit, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess},
		{ib.QPSRTR, ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN},
		{ib.QPSRTS, ib.QPMaskSQPSN},
	},
	ib.QPTypeXRCSend: {
		{ib.QPSInit, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess},
		{ib.QPSRTR, ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN},
		{ib.QPSRTS, ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry |
			ib.QPMaskSQPSN | ib.QPMaskMaxRDAtomic},
	},
	ib.QPTypeXRCRecv: {
		{ib.QPSInit, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess},
		{ib.QPSRTR, ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN |
			ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer},
		{ib.QPSRTS, ib.QPMaskTimeout | ib.QPMaskSQPSN},
	},
	ib.QPTypeUD: {
		{ib.QPSInit, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskQKey},
		{ib.QPSRTR, 0},
		{ib.QPSRTS, ib.QPMaskSQPSN},
	},
}

// connect takes q up to a state.
func (q *queuePair) connect(a nic.QPAttr, to ib.QPState) error {
	q.attr, q.remote = a, a.DestQPN
	for _, step := range stepsUp[q.typ] {
		if step.to > to {
			break
		}
		if err := q.step(step); err != nil {
			return err
		}
	}
	return nil
}

func (q *queuePair) step(up stepUp) error {
	a := q.attr
	a.State = up.to
	return refused(q.nic.ModifyQP(q.name, a, up.mask|ib.QPMaskState))
}

// cmdModify changes a queue pair: modify QP [STATE] [sqd_notify] [bare] [ATTRIBUTE=VALUE]…
func (s *stage) cmdModify(w *words) error {
	name, err := w.next("a queue pair")
	if err != nil {
		return err
	}
	q, err := s.qp(name)
	if err != nil {
		return err
	}
	mask, err := attributes(w, &q.attr)
	if err != nil {
		return err
	}
	if w.flag("sqd_notify") {
		mask |= ib.QPMaskEnSQDNotify
	}
	bare := w.flag("bare")
	a := q.attr
	if len(w.plain) > 0 {
		word, _ := w.next("a state")
		if a.State, err = states.parse(word); err != nil {
			return err
		}
		mask |= ib.QPMaskState
		if now, err := q.nic.State(name); err == nil && !bare {
			mask |= q.usualMask(now, a.State)
		}
	}
	if err := w.end(); err != nil {
		return err
	}
	q.remote = a.DestQPN
	return refused(q.nic.ModifyQP(name, a, mask))
}

// usualMask is what has to go with a transition, so that the script need not name it.
func (q *queuePair) usualMask(from, to ib.QPState) ib.QPAttrMask {
	if from+1 != to {
		return 0
	}
	for _, step := range stepsUp[q.typ] {
		if step.to == to {
			return step.mask
		}
	}
	return 0
}

// cmdDestroy destroys a queue pair: destroy QP.
func (s *stage) cmdDestroy(w *words) error {
	name, err := w.next("a queue pair")
	if err != nil {
		return err
	}
	q, err := s.qp(name)
	if err != nil {
		return err
	}
	return errors.Join(w.end(), refused(q.nic.DestroyQP(name)))
}
