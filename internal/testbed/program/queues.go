package program

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"softroce/verbs"
)

// The default capacities of queue pairs.
const (
	defaultWR          = 64
	maxSGE             = 4
	maxInline          = 128
	anonymousCQEntries = 128
)

// cq NAME ENTRIES
func (s *session) cq(w request) (string, error) {
	q, err := s.nic.CreateCQ(context.Background(), int(w.number(2)), s.channel)
	if err == nil {
		s.cqs[w.text(1)] = q
	}
	return "", err
}

// cqNamed returns the completion queue of a name, or creates an unnamed one.
func (s *session) cqNamed(name string) (*verbs.CQ, error) {
	if q := s.cqs[name]; q != nil {
		return q, nil
	}
	q, err := s.nic.CreateCQ(context.Background(), anonymousCQEntries, s.channel)
	if err == nil {
		s.anonymousCQs++
		s.cqs[fmt.Sprint("own ", s.anonymousCQs)] = q // cannot collide: names in a line contain no space
	}
	return q, err
}

// arm NAME SOLICITED-ONLY
func (s *session) arm(w request) (string, error) {
	q, err := lookup(s.cqs, w.text(1))
	if err != nil {
		return "", err
	}
	return "", q.Arm(w.number(2) != 0)
}

// pollTimeout bounds the wait for an event that may be pending: verbs have no non-blocking query.
const pollTimeout = time.Millisecond

func (s *session) shortContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.ctx, pollTimeout)
}

func (s *session) notice(request) (string, error) {
	ctx, cancel := s.shortContext()
	defer cancel()
	q, err := s.channel.GetEvent(ctx)
	if err != nil {
		return "", nil // no event, or the NIC is gone, which poll reports
	}
	return nameOf(s.cqs, q), nil
}

func nameOf[T comparable](m map[string]T, o T) string {
	for name, p := range m {
		if p == o {
			return name
		}
	}
	return "-"
}

// srq NAME ENTRIES LIMIT XRCD CQ
func (s *session) srq(w request) (string, error) {
	pd, err := s.pd("-")
	if err != nil {
		return "", err
	}
	a := verbs.SRQAttr{MaxWR: uint32(w.number(2)), MaxSGE: maxSGE}
	var q *verbs.SRQ
	if x := s.xrcds[w.text(4)]; x != nil {
		cq, err := s.cqNamed(w.text(5))
		if err != nil {
			return "", err
		}
		q, err = pd.CreateXRCSRQ(context.Background(), a, x, cq)
		if err != nil {
			return "", err
		}
	} else if q, err = pd.CreateSRQ(context.Background(), a); err != nil {
		return "", err
	}
	s.srqs[w.text(1)] = q
	if n := uint32(w.number(3)); n > 0 {
		err = q.Modify(context.Background(), verbs.SRQAttr{SRQLimit: n}, verbs.SRQMaskLimit)
	}
	return fmt.Sprint(q.Number()), err
}

// resize NAME ENTRIES
func (s *session) resize(w request) (string, error) {
	if q := s.cqs[w.text(1)]; q != nil {
		return "", q.Resize(context.Background(), int(w.number(2)))
	}
	q, err := lookup(s.srqs, w.text(1))
	if err != nil {
		return "", err
	}
	return "", q.Modify(context.Background(), verbs.SRQAttr{MaxWR: uint32(w.number(2))}, verbs.SRQMaskMaxWR)
}

// limit SRQ N
func (s *session) limit(w request) (string, error) {
	q, err := lookup(s.srqs, w.text(1))
	if err != nil {
		return "", err
	}
	return "", q.Modify(context.Background(), verbs.SRQAttr{SRQLimit: uint32(w.number(2))}, verbs.SRQMaskLimit)
}

// qp NAME TYPE CQ SRQ PD SIG-ALL MAX-SEND-WR MAX-RECV-WR XRCD
func (s *session) qp(w request) (string, error) {
	q := &queuePair{typ: verbs.QPType(w.number(2))}
	var err error
	if q.typ == verbs.XRCRecv {
		x, err := lookup(s.xrcds, w.text(9))
		if err != nil {
			return "", err
		}
		if q.QP, err = x.CreateQP(context.Background()); err != nil {
			return "", err
		}
	} else if q.QP, err = s.createQP(q.typ, w); err != nil {
		return "", err
	}
	s.qps[w.text(1)] = q
	return fmt.Sprint(q.QPNum()), nil
}

func (s *session) createQP(t verbs.QPType, w request) (*verbs.QP, error) {
	pd, err := s.pd(w.text(5))
	if err != nil {
		return nil, err
	}
	cq, err := s.cqNamed(w.text(3))
	if err != nil {
		return nil, err
	}
	or := func(n uint64) uint32 {
		if n == 0 {
			return defaultWR
		}
		return uint32(n)
	}
	return pd.CreateQP(context.Background(), verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: s.srqs[w.text(4)], QPType: t, SQSigAll: w.number(6) != 0,
		Cap: verbs.QPCap{MaxSendWR: or(w.number(7)), MaxRecvWR: or(w.number(8)), MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInlineData: maxInline}})
}

func (s *session) destroy(w request) (string, error) {
	q, err := lookup(s.qps, w.text(1))
	if err != nil {
		return "", err
	}
	if err := q.Close(context.Background()); err != nil {
		return "", err
	}
	delete(s.qps, w.text(1))
	return "", nil
}

// modify NAME MASK STATE MTU QKEY RQ-PSN SQ-PSN DEST-QPN ACCESS MAX-RD-ATOMIC MAX-DEST-RD-ATOMIC
// MIN-RNR-TIMER TIMEOUT RETRY-CNT RNR-RETRY PKEY-INDEX DGID TCLASS HOP-LIMIT FLOW-LABEL SL
// [SGID-INDEX]
func (s *session) modify(w request) (string, error) {
	q, err := lookup(s.qps, w.text(1))
	if err != nil {
		return "", err
	}
	to, err := netip.ParseAddr(w.text(17))
	if err != nil {
		return "", err
	}
	sgid := s.gid.Index
	if len(w) > 22 {
		sgid = int(w.number(22))
	}
	mtu, _ := verbs.ParseMTU(int(w.number(4)))
	mask := verbs.QPAttrMask(w.number(2))
	a := verbs.QPAttr{
		QPState: verbs.QPState(w.number(3)), PathMTU: mtu, QKey: uint32(w.number(5)), RQPSN: uint32(w.number(6)), SQPSN: uint32(w.number(7)),
		DestQPNum: uint32(w.number(8)), QPAccessFlags: verbs.Access(w.number(9)), MaxRdAtomic: uint8(w.number(10)),
		MaxDestRdAtomic: uint8(w.number(11)), MinRNRTimer: uint8(w.number(12)), Timeout: uint8(w.number(13)), RetryCnt: uint8(w.number(14)),
		RNRRetry: uint8(w.number(15)), PKeyIndex: uint16(w.number(16)), PortNum: 1, EnSQDAsyncNotify: mask&verbs.QPMaskEnSQDAsyncNotify != 0,
		AHAttr: verbs.AHAttr{SL: uint8(w.number(21)), PortNum: 1, GRH: verbs.GlobalRoute{DGID: verbs.GIDFromAddr(to), SGIDIndex: uint8(sgid),
			TrafficClass: uint8(w.number(18)), HopLimit: uint8(w.number(19)), FlowLabel: uint32(w.number(20))}},
	}
	q.av = a.AHAttr
	return "", q.Modify(s.ctx, &a, mask)
}

func (s *session) query(w request) (string, error) {
	q, err := lookup(s.qps, w.text(1))
	if err != nil {
		return "", err
	}
	a, err := q.Query(context.Background())
	g := a.AHAttr.GRH
	return fmt.Sprint(uint32(a.QPState), a.PathMTU.Bytes(), a.QKey, a.RQPSN, a.SQPSN, a.DestQPNum, uint32(a.QPAccessFlags), a.MaxRdAtomic, a.MaxDestRdAtomic,
		a.MinRNRTimer, a.Timeout, a.RetryCnt, a.RNRRetry, a.PKeyIndex, g.TrafficClass, g.HopLimit, g.FlowLabel, a.AHAttr.SL), err
}

func (s *session) state(w request) (string, error) {
	q, err := lookup(s.qps, w.text(1))
	if err != nil {
		return "", err
	}
	a, err := q.Query(context.Background())
	return fmt.Sprint(uint32(a.QPState)), err
}

func (s *session) attach(w request) (string, error) { return s.group(w, (*verbs.QP).AttachMcast) }
func (s *session) detach(w request) (string, error) { return s.group(w, (*verbs.QP).DetachMcast) }

func (s *session) group(w request, change func(*verbs.QP, context.Context, verbs.GID) error) (string, error) {
	q, err := lookup(s.qps, w.text(1))
	if err != nil {
		return "", err
	}
	a, err := netip.ParseAddr(w.text(2))
	if err != nil {
		return "", err
	}
	return "", change(q.QP, context.Background(), verbs.GroupGID(a))
}
