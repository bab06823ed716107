package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"softroce/internal/ib"
	"softroce/internal/testbed"
	"softroce/nic"
	"softroce/packet"
)

// parseQPOptions parses the options that qp and pair share.
func (s *script) parseQPOptions(args *arguments) (o testbed.QPOptions, a nic.QPAttr, to ib.QPState, err error) {
	o.Type, a, to = ib.QPTypeRC, defaultAttr(), ib.QPSRTS
	for name, t := range qpTypes.values {
		if args.flag(name) {
			o.Type = t
		}
	}
	o.SigAll = args.flag("sq_sig_all")
	o.CQ, _ = args.option("cq")
	o.SRQ, _ = args.option("srq")
	o.PD, _ = args.option("pd")
	o.XRCD, _ = args.option("xrcd")
	if v, ok := args.option("state"); ok {
		if to, err = states.parse(v); err != nil {
			return o, a, to, err
		}
	}
	var sends, recvs uint64
	if err := errors.Join(args.number("max_send_wr", 8, &sends), args.number("max_recv_wr", 8, &recvs)); err != nil {
		return o, a, to, err
	}
	o.MaxSendWR, o.MaxRecvWR = int(sends), int(recvs)
	_, err = parseAttributes(args, &a)
	return o, a, to, err
}

// cmdQP creates a queue pair whose peer is the script: qp NAME [TYPE] [sq_sig_all] [state=STATE]
// [cq=NAME] [srq=NAME] [pd=NAME] [xrcd=NAME] [to=ADDRESS] [vlan=N] [roce=v1] [max_send_wr=N]
// [max_recv_wr=N] [ATTRIBUTE=VALUE]…
func (s *script) cmdQP(args *arguments) error {
	name, err := args.next("a name")
	if err != nil {
		return err
	}
	o, a, to, err := s.parseQPOptions(args)
	if err != nil {
		return err
	}
	far, err := s.parseDestination(args)
	if err != nil {
		return err
	}
	vlan := uint64(0)
	if err := args.number("vlan", 12, &vlan); err != nil {
		return err
	}
	network, err := parseRoCE(args, packet.RoCEv2)
	if err != nil {
		return err
	}
	if a.AV.SGIDIndex, err = s.dut.GID(uint16(vlan), network); err != nil {
		return err
	}
	if err := errors.Join(args.end(), s.reserveName(name)); err != nil {
		return err
	}
	if a.DestQPN == 0 {
		a.DestQPN = s.nextPeerQPN
		s.nextPeerQPN++
	}
	q, err := s.create(name, s.dut, o)
	if err != nil {
		return err
	}
	a.AV.DGID, q.vlan, q.network = nic.GIDOf(far), uint16(vlan), network
	return q.connect(a, to)
}

// parseRoCE parses the option roce=v1 or roce=v2.
func parseRoCE(args *arguments, unless packet.Network) (packet.Network, error) {
	switch v, ok := args.option("roce"); {
	case !ok:
		return unless, nil
	case v == "v1":
		return packet.RoCEv1, nil
	case v == "v2":
		return packet.RoCEv2, nil
	default:
		return 0, fmt.Errorf("roce=%s: want v1 or v2", v)
	}
}

// parseDestination parses the option to=ADDRESS, a multicast group. Without it the destination is
// the script.
func (s *script) parseDestination(args *arguments) (netip.Addr, error) {
	v, ok := args.option("to")
	if !ok {
		return s.testbed.Peer(), nil
	}
	a, err := s.parseAddress(v)
	if err == nil && a.IsMulticast() {
		err = s.testbed.Join(a)
	}
	return a, err
}

// cmdPair creates a queue pair on each NIC and connects the two: pair NAME NAME, and the options of
// qp.
func (s *script) cmdPair(args *arguments) error {
	first, err := args.next("a name")
	if err != nil {
		return err
	}
	second, err := args.next("a second name")
	if err != nil {
		return err
	}
	o, a, to, err := s.parseQPOptions(args)
	if err != nil {
		return err
	}
	if err := errors.Join(args.end(), s.reserveName(first), s.reserveName(second)); err != nil {
		return err
	}
	n, err := s.secondNIC()
	if err != nil {
		return err
	}
	p, err := s.create(first, s.dut, o)
	if err != nil {
		return err
	}
	o.CQ, o.SRQ, o.PD = "", "", ""
	q, err := s.create(second, n, o)
	if err != nil {
		return err
	}
	b := a
	if a.AV.SGIDIndex, err = s.dut.GID(0, packet.RoCEv2); err != nil {
		return err
	}
	if b.AV.SGIDIndex, err = n.GID(0, packet.RoCEv2); err != nil {
		return err
	}
	b.SQPSN, b.RQPSN = a.RQPSN, a.SQPSN
	a.DestQPN, b.DestQPN = q.qpn, p.qpn
	a.AV.DGID, b.AV.DGID = nic.GIDOf(n.Addr()), nic.GIDOf(s.dut.Addr())
	return errors.Join(p.connect(a, to), q.connect(b, to))
}

func (s *script) create(name string, n testbed.NIC, o testbed.QPOptions) (*queuePair, error) {
	qpn, err := n.CreateQP(name, o)
	if err != nil {
		delete(s.names, name)
		return nil, refused(err)
	}
	q := &queuePair{name: name, nic: n, typ: o.Type, qpn: qpn}
	s.qps[name] = q
	return q, nil
}

// A transition is one of the transitions from RESET to RTS, with its required attributes.
type transition struct {
	to   ib.QPState
	mask ib.QPAttrMask
}

// transitions lists the transitions of each transport service (IBTA 11.2.5.2).
var transitions = map[ib.QPType][]transition{
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

// connect brings q to a state up to RTS.
func (q *queuePair) connect(a nic.QPAttr, to ib.QPState) error {
	q.attr, q.peerQPN = a, a.DestQPN
	for _, step := range transitions[q.typ] {
		if step.to > to {
			break
		}
		if err := q.modifyTo(step); err != nil {
			return err
		}
	}
	return nil
}

func (q *queuePair) modifyTo(up transition) error {
	a := q.attr
	a.State = up.to
	return refused(q.nic.ModifyQP(q.name, a, up.mask|ib.QPMaskState))
}

// cmdModify modifies a queue pair: modify QP [STATE] [sqd_notify] [bare] [ATTRIBUTE=VALUE]…
func (s *script) cmdModify(args *arguments) error {
	name, err := args.next("a queue pair")
	if err != nil {
		return err
	}
	q, err := s.qp(name)
	if err != nil {
		return err
	}
	mask, err := parseAttributes(args, &q.attr)
	if err != nil {
		return err
	}
	if args.flag("sqd_notify") {
		mask |= ib.QPMaskEnSQDNotify
	}
	bare := args.flag("bare")
	a := q.attr
	a.EnSQDNotify = mask&ib.QPMaskEnSQDNotify != 0
	if len(args.plain) > 0 {
		word, _ := args.next("a state")
		if a.State, err = states.parse(word); err != nil {
			return err
		}
		mask |= ib.QPMaskState
		if now, err := q.nic.State(name); err == nil && !bare {
			mask |= q.defaultMask(now, a.State)
		}
	}
	if err := args.end(); err != nil {
		return err
	}
	q.peerQPN = a.DestQPN
	return refused(q.nic.ModifyQP(name, a, mask))
}

// defaultMask returns the attributes that a transition requires, which the script need not name.
func (q *queuePair) defaultMask(from, to ib.QPState) ib.QPAttrMask {
	if from+1 != to {
		return 0
	}
	for _, step := range transitions[q.typ] {
		if step.to == to {
			return step.mask
		}
	}
	return 0
}

// cmdDestroy destroys a queue pair: destroy QP.
func (s *script) cmdDestroy(args *arguments) error {
	name, err := args.next("a queue pair")
	if err != nil {
		return err
	}
	q, err := s.qp(name)
	if err != nil {
		return err
	}
	return errors.Join(args.end(), refused(q.nic.DestroyQP(name)))
}

// expectAttributes expects attributes of a queue pair: attributes QP ATTRIBUTE=VALUE….
func (s *script) expectAttributes(args *arguments) error {
	text := strings.Join(slices.Concat(args.plain, formatOptions(args.options)), " ")
	q, err := s.parseQP(args)
	if err != nil {
		return err
	}
	got, err := q.nic.Query(q.name)
	if err != nil {
		return err
	}
	for name, o := range attrOptions {
		v, ok := args.option(name)
		if !ok {
			continue
		}
		n, err := parseNumber(v, o.bits)
		if err != nil {
			return fmt.Errorf("%s=%s: %w", name, v, err)
		}
		if want := got; o.set != nil {
			if o.set(&want, n); want != got {
				return fmt.Errorf("expected attributes %s, but %s differs: %+v", text, name, got)
			}
		}
	}
	if v, ok := args.option("access"); ok {
		if a, err := parseAccess(v); err != nil || a != got.Access {
			return errors.Join(err, fmt.Errorf("expected attributes %s, but access is %#x", text, uint32(got.Access)))
		}
	}
	return nil
}
