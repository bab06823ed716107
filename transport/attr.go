package transport

import (
	"errors"
	"fmt"

	"softroce/internal/ib"
	"softroce/packet"
)

// Errors of Modify; both are EINVAL to a verbs program.
var (
	ErrTransition = errors.New("QP state transition is not allowed")
	ErrAttribute  = errors.New("QP attribute is invalid")
)

// A transition lists the attributes that a state change requires and those that it allows.
type transition struct{ required, optional ib.QPAttrMask }

// transitions returns the allowed state changes of the queue pair's service.
func (c *Config) transitions() map[[2]ib.QPState]transition {
	switch {
	case c.Service == packet.UC:
		return ucTransitions
	case c.Service == packet.UD:
		return udTransitions
	case c.Role == Initiator:
		return initiatorTransitions
	case c.Role == Target:
		return targetTransitions
	}
	return rcTransitions
}

// rcTransitions are the transitions of RC (IBTA 11.2.5.2, table 91 and following).
var rcTransitions = map[[2]ib.QPState]transition{
	{ib.QPSReset, ib.QPSInit}: {ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess, 0},
	{ib.QPSInit, ib.QPSInit}:  {0, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess},
	{ib.QPSInit, ib.QPSRTR}: {ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN | ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer,
		ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPKeyIndex},
	{ib.QPSRTR, ib.QPSRTS}: {ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskSQPSN | ib.QPMaskMaxRDAtomic,
		ib.QPMaskCurState | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskMinRNRTimer | ib.QPMaskPathMigState},
	{ib.QPSRTS, ib.QPSRTS}: {0, ib.QPMaskCurState | ib.QPMaskAccess | ib.QPMaskAltPath | ib.QPMaskPathMigState | ib.QPMaskMinRNRTimer},
	{ib.QPSRTS, ib.QPSSQD}: {0, ib.QPMaskEnSQDNotify},
	{ib.QPSSQD, ib.QPSRTS}: {0, ib.QPMaskCurState | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskMinRNRTimer | ib.QPMaskPathMigState},
	{ib.QPSSQD, ib.QPSSQD}: {0, ib.QPMaskPort | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskMaxRDAtomic |
		ib.QPMaskMaxDestRDAtomic | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPKeyIndex | ib.QPMaskMinRNRTimer | ib.QPMaskPathMigState},
}

// ucTransitions are the transitions of UC, which has no attributes for acknowledgements.
var ucTransitions = map[[2]ib.QPState]transition{
	{ib.QPSReset, ib.QPSInit}: {ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess, 0},
	{ib.QPSInit, ib.QPSInit}:  {0, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess},
	{ib.QPSInit, ib.QPSRTR}:   {ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN, ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPKeyIndex},
	{ib.QPSRTR, ib.QPSRTS}:    {ib.QPMaskSQPSN, ib.QPMaskCurState | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPathMigState},
	{ib.QPSRTS, ib.QPSRTS}:    {0, ib.QPMaskCurState | ib.QPMaskAccess | ib.QPMaskAltPath | ib.QPMaskPathMigState},
	{ib.QPSRTS, ib.QPSSQD}:    {0, ib.QPMaskEnSQDNotify},
	{ib.QPSSQD, ib.QPSRTS}:    {0, ib.QPMaskCurState | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPathMigState},
	{ib.QPSSQD, ib.QPSSQD}:    {0, ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPKeyIndex | ib.QPMaskPathMigState},
	{ib.QPSSQE, ib.QPSRTS}:    {0, ib.QPMaskCurState | ib.QPMaskAccess},
}

// udTransitions are the transitions of UD, which has a Q_Key and no peer.
var udTransitions = map[[2]ib.QPState]transition{
	{ib.QPSReset, ib.QPSInit}: {ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskQKey, 0},
	{ib.QPSInit, ib.QPSInit}:  {0, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskQKey},
	{ib.QPSInit, ib.QPSRTR}:   {0, ib.QPMaskPKeyIndex | ib.QPMaskQKey},
	{ib.QPSRTR, ib.QPSRTS}:    {ib.QPMaskSQPSN, ib.QPMaskCurState | ib.QPMaskQKey},
	{ib.QPSRTS, ib.QPSRTS}:    {0, ib.QPMaskCurState | ib.QPMaskQKey},
	{ib.QPSRTS, ib.QPSSQD}:    {0, ib.QPMaskEnSQDNotify},
	{ib.QPSSQD, ib.QPSRTS}:    {0, ib.QPMaskCurState | ib.QPMaskQKey},
	{ib.QPSSQD, ib.QPSSQD}:    {0, ib.QPMaskPKeyIndex | ib.QPMaskQKey},
	{ib.QPSSQE, ib.QPSRTS}:    {0, ib.QPMaskCurState | ib.QPMaskQKey},
}

// initiatorTransitions are the transitions of an XRC initiator, targetTransitions those of an XRC
// target (annex A14).
var initiatorTransitions = map[[2]ib.QPState]transition{
	{ib.QPSReset, ib.QPSInit}: {ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess, 0},
	{ib.QPSInit, ib.QPSInit}:  {0, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess},
	{ib.QPSInit, ib.QPSRTR}:   {ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN, ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPKeyIndex},
	{ib.QPSRTR, ib.QPSRTS}: {ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskSQPSN | ib.QPMaskMaxRDAtomic,
		ib.QPMaskCurState | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPathMigState},
	{ib.QPSRTS, ib.QPSRTS}: {0, ib.QPMaskCurState | ib.QPMaskAccess | ib.QPMaskAltPath | ib.QPMaskPathMigState},
	{ib.QPSRTS, ib.QPSSQD}: {0, ib.QPMaskEnSQDNotify},
	{ib.QPSSQD, ib.QPSRTS}: {0, ib.QPMaskCurState | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPathMigState},
	{ib.QPSSQD, ib.QPSSQD}: {0, ib.QPMaskPort | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskTimeout | ib.QPMaskRetryCount | ib.QPMaskRNRRetry | ib.QPMaskMaxRDAtomic |
		ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPKeyIndex | ib.QPMaskPathMigState},
}

var targetTransitions = map[[2]ib.QPState]transition{
	{ib.QPSReset, ib.QPSInit}: {ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess, 0},
	{ib.QPSInit, ib.QPSInit}:  {0, ib.QPMaskPKeyIndex | ib.QPMaskPort | ib.QPMaskAccess},
	{ib.QPSInit, ib.QPSRTR}: {ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskDestQPN | ib.QPMaskRQPSN | ib.QPMaskMaxDestRDAtomic | ib.QPMaskMinRNRTimer,
		ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskPKeyIndex},
	{ib.QPSRTR, ib.QPSRTS}: {ib.QPMaskTimeout | ib.QPMaskSQPSN, ib.QPMaskCurState | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskMinRNRTimer | ib.QPMaskPathMigState},
	{ib.QPSRTS, ib.QPSRTS}: {0, ib.QPMaskCurState | ib.QPMaskAccess | ib.QPMaskAltPath | ib.QPMaskPathMigState | ib.QPMaskMinRNRTimer},
	{ib.QPSRTS, ib.QPSSQD}: {0, ib.QPMaskEnSQDNotify},
	{ib.QPSSQD, ib.QPSRTS}: {0, ib.QPMaskCurState | ib.QPMaskAltPath | ib.QPMaskAccess | ib.QPMaskMinRNRTimer | ib.QPMaskPathMigState},
	{ib.QPSSQD, ib.QPSSQD}: {0, ib.QPMaskPort | ib.QPMaskAV | ib.QPMaskPathMTU | ib.QPMaskTimeout | ib.QPMaskMaxDestRDAtomic | ib.QPMaskAltPath | ib.QPMaskAccess |
		ib.QPMaskPKeyIndex | ib.QPMaskMinRNRTimer | ib.QPMaskPathMigState},
}

// checkTransition reports whether a state change is allowed with these attributes.
func (c *Config) checkTransition(from, to ib.QPState, mask ib.QPAttrMask) error {
	mask &^= ib.QPMaskState | ib.QPMaskCurState
	if to == ib.QPSReset || to == ib.QPSErr {
		if to == ib.QPSErr && from == ib.QPSReset {
			return fmt.Errorf("%w: %v to %v", ErrTransition, from, to)
		}
		if mask != 0 {
			return fmt.Errorf("%w: a transition to %v takes none", ErrAttribute, to)
		}
		return nil
	}
	t, ok := c.transitions()[[2]ib.QPState{from, to}]
	if !ok {
		return fmt.Errorf("%w: %v to %v", ErrTransition, from, to)
	}
	if missing := t.required &^ mask; missing != 0 {
		return fmt.Errorf("%w: %v to %v requires mask bits %#x as well", ErrAttribute, from, to, uint32(missing))
	}
	if extra := mask &^ (t.required | t.optional); extra != 0 {
		return fmt.Errorf("%w: %v to %v does not allow mask bits %#x", ErrAttribute, from, to, uint32(extra))
	}
	return nil
}

// checkMTUChange rejects a change of the path MTU in SQD while a message is in progress in either
// direction. When it accepts the change, it drops the responder resources: a duplicate READ request
// for packets of the new size cannot repeat responses of the old size.
func (q *QP) checkMTUChange(a *ib.QPAttr, mask ib.QPAttrMask) error {
	if q.state != ib.QPSSQD || mask&ib.QPMaskPathMTU == 0 || a.PathMTU == q.attr.PathMTU {
		return nil
	}
	s := &q.resp.replies
	if !q.drained() || q.resp.message != packet.KindNone || s.next != s.added {
		return fmt.Errorf("%w: path MTU cannot change while a message is in progress", ErrAttribute)
	}
	s.added, s.next = 0, 0
	clear(s.resources)
	return nil
}

// checkAttr rejects attributes that are out of range.
func checkAttr(a *ib.QPAttr, mask ib.QPAttrMask) error {
	bad := func(name string, v any) error { return fmt.Errorf("%w: %s %v is out of range", ErrAttribute, name, v) }
	switch {
	case mask&ib.QPMaskPathMTU != 0 && !validMTU(a.PathMTU):
		return bad("path MTU", a.PathMTU)
	case mask&ib.QPMaskRQPSN != 0 && a.RQPSN > packet.PSNMask:
		return bad("rq_psn", a.RQPSN)
	case mask&ib.QPMaskSQPSN != 0 && a.SQPSN > packet.PSNMask:
		return bad("sq_psn", a.SQPSN)
	case mask&ib.QPMaskDestQPN != 0 && a.DestQPN > packet.PSNMask:
		return bad("dest_qp_num", a.DestQPN)
	case mask&ib.QPMaskMinRNRTimer != 0 && a.MinRNRTimer > 31:
		return bad("min_rnr_timer", a.MinRNRTimer)
	case mask&ib.QPMaskTimeout != 0 && a.Timeout > 31:
		return bad("timeout", a.Timeout)
	case mask&ib.QPMaskRetryCount != 0 && a.RetryCount > 7:
		return bad("retry_cnt", a.RetryCount)
	case mask&ib.QPMaskRNRRetry != 0 && a.RNRRetry > 7:
		return bad("rnr_retry", a.RNRRetry)
	case mask&ib.QPMaskMaxRDAtomic != 0 && a.MaxRDAtomic > MaxRDAtomic:
		return bad("max_rd_atomic", a.MaxRDAtomic)
	case mask&ib.QPMaskMaxDestRDAtomic != 0 && a.MaxDestRDAtomic > MaxRDAtomic:
		return bad("max_dest_rd_atomic", a.MaxDestRDAtomic)
	}
	return nil
}

// MaxRDAtomic is the limit of max_rd_atomic and max_dest_rd_atomic.
const MaxRDAtomic = 128

func validMTU(n int) bool {
	switch n {
	case 256, 512, 1024, 2048, 4096:
		return true
	}
	return false
}
