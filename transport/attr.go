package transport

import (
	"errors"
	"fmt"

	"softroce/mrtable"
	"softroce/packet"
)

// State is enum ibv_qp_state.
type State uint8

const (
	Reset State = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Error
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Attr are the attributes of a queue pair that the transport knows; the address
// vector is its owner's affair.
type Attr struct {
	State           State
	CurState        State
	PathMTU         int // bytes: 256, 512, 1024, 2048 or 4096
	QKey            uint32
	RQPSN           uint32
	SQPSN           uint32
	DestQPN         uint32
	Access          mrtable.Access // remote operations allowed
	MaxRDAtomic     uint8          // READs and atomics outstanding as requester
	MaxDestRDAtomic uint8          // the same as responder
	MinRNRTimer     uint8          // code, 5 bits
	Timeout         uint8          // code, 5 bits: 4.096 µs * 2^code, 0 for none
	RetryCount      uint8          // 3 bits
	RNRRetry        uint8          // 3 bits, 7 for ever
	PKey            uint16         // the value behind the P_Key index
	Draining        bool           // Query only: in SQD, and what was begun is not complete
}

// AttrMask is enum ibv_qp_attr_mask.
type AttrMask uint32

const (
	MaskState           AttrMask = 1 << 0
	MaskCurState        AttrMask = 1 << 1
	MaskEnSQDNotify     AttrMask = 1 << 2
	MaskAccess          AttrMask = 1 << 3
	MaskPKeyIndex       AttrMask = 1 << 4
	MaskPort            AttrMask = 1 << 5
	MaskQKey            AttrMask = 1 << 6
	MaskAV              AttrMask = 1 << 7
	MaskPathMTU         AttrMask = 1 << 8
	MaskTimeout         AttrMask = 1 << 9
	MaskRetryCount      AttrMask = 1 << 10
	MaskRNRRetry        AttrMask = 1 << 11
	MaskRQPSN           AttrMask = 1 << 12
	MaskMaxRDAtomic     AttrMask = 1 << 13
	MaskAltPath         AttrMask = 1 << 14
	MaskMinRNRTimer     AttrMask = 1 << 15
	MaskSQPSN           AttrMask = 1 << 16
	MaskMaxDestRDAtomic AttrMask = 1 << 17
	MaskPathMigState    AttrMask = 1 << 18
	MaskCap             AttrMask = 1 << 19
	MaskDestQPN         AttrMask = 1 << 20
	MaskRateLimit       AttrMask = 1 << 25
)

// Errors of Modify; both are EINVAL to a verbs program.
var (
	ErrTransition = errors.New("QP cannot go to this state")
	ErrAttribute  = errors.New("QP attribute is wrong")
)

// A transition's attributes: those that must be given and those that may.
type transition struct{ required, optional AttrMask }

// transitions returns the state machine of a queue pair's service.
func (c *Config) transitions() map[[2]State]transition {
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

// rcTransitions is table 91 and following of IBTA 11.2.5.2 for RC.
var rcTransitions = map[[2]State]transition{
	{Reset, Init}: {MaskPKeyIndex | MaskPort | MaskAccess, 0},
	{Init, Init}:  {0, MaskPKeyIndex | MaskPort | MaskAccess},
	{Init, RTR}: {MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN | MaskMaxDestRDAtomic | MaskMinRNRTimer,
		MaskAltPath | MaskAccess | MaskPKeyIndex},
	{RTR, RTS}: {MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskSQPSN | MaskMaxRDAtomic,
		MaskCurState | MaskAltPath | MaskAccess | MaskMinRNRTimer | MaskPathMigState},
	{RTS, RTS}: {0, MaskCurState | MaskAccess | MaskAltPath | MaskPathMigState | MaskMinRNRTimer},
	{RTS, SQD}: {0, MaskEnSQDNotify},
	{SQD, RTS}: {0, MaskCurState | MaskAltPath | MaskAccess | MaskMinRNRTimer | MaskPathMigState},
	{SQD, SQD}: {0, MaskPort | MaskAV | MaskPathMTU | MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskMaxRDAtomic |
		MaskMaxDestRDAtomic | MaskAltPath | MaskAccess | MaskPKeyIndex | MaskMinRNRTimer | MaskPathMigState},
}

// ucTransitions is the same for UC, which has nothing that concerns acknowledgements.
var ucTransitions = map[[2]State]transition{
	{Reset, Init}: {MaskPKeyIndex | MaskPort | MaskAccess, 0},
	{Init, Init}:  {0, MaskPKeyIndex | MaskPort | MaskAccess},
	{Init, RTR}:   {MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN, MaskAltPath | MaskAccess | MaskPKeyIndex},
	{RTR, RTS}:    {MaskSQPSN, MaskCurState | MaskAltPath | MaskAccess | MaskPathMigState},
	{RTS, RTS}:    {0, MaskCurState | MaskAccess | MaskAltPath | MaskPathMigState},
	{RTS, SQD}:    {0, MaskEnSQDNotify},
	{SQD, RTS}:    {0, MaskCurState | MaskAltPath | MaskAccess | MaskPathMigState},
	{SQD, SQD}:    {0, MaskAV | MaskPathMTU | MaskAltPath | MaskAccess | MaskPKeyIndex | MaskPathMigState},
	{SQE, RTS}:    {0, MaskCurState | MaskAccess},
}

// udTransitions is the same for UD, which has no peer and a Q_Key instead.
var udTransitions = map[[2]State]transition{
	{Reset, Init}: {MaskPKeyIndex | MaskPort | MaskQKey, 0},
	{Init, Init}:  {0, MaskPKeyIndex | MaskPort | MaskQKey},
	{Init, RTR}:   {0, MaskPKeyIndex | MaskQKey},
	{RTR, RTS}:    {MaskSQPSN, MaskCurState | MaskQKey},
	{RTS, RTS}:    {0, MaskCurState | MaskQKey},
	{RTS, SQD}:    {0, MaskEnSQDNotify},
	{SQD, RTS}:    {0, MaskCurState | MaskQKey},
	{SQD, SQD}:    {0, MaskPKeyIndex | MaskQKey},
	{SQE, RTS}:    {0, MaskCurState | MaskQKey},
}

// initiatorTransitions is the same for the end of an XRC connection that sends requests, and
// targetTransitions for the one that answers them (annex A14).
var initiatorTransitions = map[[2]State]transition{
	{Reset, Init}: {MaskPKeyIndex | MaskPort | MaskAccess, 0},
	{Init, Init}:  {0, MaskPKeyIndex | MaskPort | MaskAccess},
	{Init, RTR}:   {MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN, MaskAltPath | MaskAccess | MaskPKeyIndex},
	{RTR, RTS}: {MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskSQPSN | MaskMaxRDAtomic,
		MaskCurState | MaskAltPath | MaskAccess | MaskPathMigState},
	{RTS, RTS}: {0, MaskCurState | MaskAccess | MaskAltPath | MaskPathMigState},
	{RTS, SQD}: {0, MaskEnSQDNotify},
	{SQD, RTS}: {0, MaskCurState | MaskAltPath | MaskAccess | MaskPathMigState},
	{SQD, SQD}: {0, MaskPort | MaskAV | MaskPathMTU | MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskMaxRDAtomic |
		MaskAltPath | MaskAccess | MaskPKeyIndex | MaskPathMigState},
}

var targetTransitions = map[[2]State]transition{
	{Reset, Init}: {MaskPKeyIndex | MaskPort | MaskAccess, 0},
	{Init, Init}:  {0, MaskPKeyIndex | MaskPort | MaskAccess},
	{Init, RTR}: {MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN | MaskMaxDestRDAtomic | MaskMinRNRTimer,
		MaskAltPath | MaskAccess | MaskPKeyIndex},
	{RTR, RTS}: {MaskTimeout | MaskSQPSN, MaskCurState | MaskAltPath | MaskAccess | MaskMinRNRTimer | MaskPathMigState},
	{RTS, RTS}: {0, MaskCurState | MaskAccess | MaskAltPath | MaskPathMigState | MaskMinRNRTimer},
	{RTS, SQD}: {0, MaskEnSQDNotify},
	{SQD, RTS}: {0, MaskCurState | MaskAltPath | MaskAccess | MaskMinRNRTimer | MaskPathMigState},
	{SQD, SQD}: {0, MaskPort | MaskAV | MaskPathMTU | MaskTimeout | MaskMaxDestRDAtomic | MaskAltPath | MaskAccess |
		MaskPKeyIndex | MaskMinRNRTimer | MaskPathMigState},
}

// checkTransition finds out whether mask may accompany the way from one state to another.
func (c *Config) checkTransition(from, to State, mask AttrMask) error {
	mask &^= MaskState | MaskCurState
	if to == Reset || to == Error {
		if to == Error && from == Reset {
			return fmt.Errorf("%w: %v to %v", ErrTransition, from, to)
		}
		if mask != 0 {
			return fmt.Errorf("%w: none may accompany the way to %v", ErrAttribute, to)
		}
		return nil
	}
	t, ok := c.transitions()[[2]State{from, to}]
	if !ok {
		return fmt.Errorf("%w: %v to %v", ErrTransition, from, to)
	}
	if missing := t.required &^ mask; missing != 0 {
		return fmt.Errorf("%w: %v to %v lacks mask bits %#x", ErrAttribute, from, to, uint32(missing))
	}
	if extra := mask &^ (t.required | t.optional); extra != 0 {
		return fmt.Errorf("%w: %v to %v does not take mask bits %#x", ErrAttribute, from, to, uint32(extra))
	}
	return nil
}

// canResize refuses a new path MTU while messages are under way that were cut by the old one, in either direction. A
// READ that was answered cannot be asked for again by packets of another size: what is kept of it goes.
func (q *QP) canResize(a *Attr, mask AttrMask) error {
	if q.state != SQD || mask&MaskPathMTU == 0 || a.PathMTU == q.attr.PathMTU {
		return nil
	}
	s := &q.resp.answers
	if !q.drained() || q.resp.message != packet.KindNone || s.head != s.tail {
		return fmt.Errorf("%w: path MTU cannot change while messages are under way", ErrAttribute)
	}
	clear(s.kept)
	return nil
}

// check finds values that are out of range.
func (a *Attr) check(mask AttrMask) error {
	bad := func(name string, v any) error { return fmt.Errorf("%w: %s %v is out of range", ErrAttribute, name, v) }
	switch {
	case mask&MaskPathMTU != 0 && !validMTU(a.PathMTU):
		return bad("path MTU", a.PathMTU)
	case mask&MaskRQPSN != 0 && a.RQPSN > packet.PSNMask:
		return bad("rq_psn", a.RQPSN)
	case mask&MaskSQPSN != 0 && a.SQPSN > packet.PSNMask:
		return bad("sq_psn", a.SQPSN)
	case mask&MaskDestQPN != 0 && a.DestQPN > packet.PSNMask:
		return bad("dest_qp_num", a.DestQPN)
	case mask&MaskMinRNRTimer != 0 && a.MinRNRTimer > 31:
		return bad("min_rnr_timer", a.MinRNRTimer)
	case mask&MaskTimeout != 0 && a.Timeout > 31:
		return bad("timeout", a.Timeout)
	case mask&MaskRetryCount != 0 && a.RetryCount > 7:
		return bad("retry_cnt", a.RetryCount)
	case mask&MaskRNRRetry != 0 && a.RNRRetry > 7:
		return bad("rnr_retry", a.RNRRetry)
	case mask&MaskMaxRDAtomic != 0 && a.MaxRDAtomic > MaxRDAtomic:
		return bad("max_rd_atomic", a.MaxRDAtomic)
	case mask&MaskMaxDestRDAtomic != 0 && a.MaxDestRDAtomic > MaxRDAtomic:
		return bad("max_dest_rd_atomic", a.MaxDestRDAtomic)
	}
	return nil
}

// MaxRDAtomic bounds the READs and atomics outstanding on a queue pair, either way.
const MaxRDAtomic = 128

func validMTU(n int) bool {
	switch n {
	case 256, 512, 1024, 2048, 4096:
		return true
	}
	return false
}
