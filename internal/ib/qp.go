package ib

import "fmt"

// QPType is the type of a queue pair: enum ibv_qp_type.
type QPType uint32

// Queue pair types.
const (
	QPTypeRC      QPType = 2
	QPTypeUC      QPType = 3
	QPTypeUD      QPType = 4
	QPTypeXRCSend QPType = 9  // XRC initiator: has a send queue only
	QPTypeXRCRecv QPType = 10 // XRC target: has no queue and receives into the SRQs of its XRC domain
)

// XRC reports whether t is an XRC initiator or target.
func (t QPType) XRC() bool { return t == QPTypeXRCSend || t == QPTypeXRCRecv }

// Reliable reports whether the responder acknowledges the requests of this type.
func (t QPType) Reliable() bool { return t == QPTypeRC || t.XRC() }

func (t QPType) String() string {
	switch t {
	case QPTypeRC:
		return "RC"
	case QPTypeUC:
		return "UC"
	case QPTypeUD:
		return "UD"
	case QPTypeXRCSend:
		return "XRC_INI"
	case QPTypeXRCRecv:
		return "XRC_TGT"
	}
	return fmt.Sprintf("QPType(%d)", uint32(t))
}

// QPState is the state of a queue pair (IBTA 10.3.1): enum ibv_qp_state.
type QPState uint32

// Queue pair states.
const (
	QPSReset QPState = iota
	QPSInit
	QPSRTR
	QPSRTS
	QPSSQD
	QPSSQE
	QPSErr
)

var qpStateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string {
	if int(s) < len(qpStateNames) {
		return qpStateNames[s]
	}
	return fmt.Sprintf("QPState(%d)", uint32(s))
}

// QPAttr are the attributes of a queue pair that the transport keeps: struct ibv_qp_attr without
// the address vector, the port and the capacities, which belong to the device.
type QPAttr struct {
	State           QPState
	CurState        QPState
	PathMTU         int // bytes: 256, 512, 1024, 2048 or 4096
	QKey            uint32
	RQPSN           uint32 // 24 bits
	SQPSN           uint32 // 24 bits
	DestQPN         uint32 // 24 bits
	Access          Access // operations that the peer may request
	MaxRDAtomic     uint8  // READs and atomics outstanding as requester
	MaxDestRDAtomic uint8  // READs and atomics outstanding as responder
	MinRNRTimer     uint8  // timer code, 5 bits (IBTA 9.7.5.2.8)
	Timeout         uint8  // local ACK timeout code, 5 bits: see ACKTimeout
	RetryCount      uint8  // 3 bits
	RNRRetry        uint8  // 3 bits; 7 retries without limit
	PKey            uint16 // the value at the P_Key index
	EnSQDNotify     bool   // to SQD: report EventSQDrained
	Draining        bool   // query only: the state is SQD and a started work request is not complete
}

// QPAttrMask names attributes of a queue pair: enum ibv_qp_attr_mask.
type QPAttrMask uint32

// Bits of QPAttrMask.
const (
	QPMaskState           QPAttrMask = 1 << 0
	QPMaskCurState        QPAttrMask = 1 << 1
	QPMaskEnSQDNotify     QPAttrMask = 1 << 2
	QPMaskAccess          QPAttrMask = 1 << 3
	QPMaskPKeyIndex       QPAttrMask = 1 << 4
	QPMaskPort            QPAttrMask = 1 << 5
	QPMaskQKey            QPAttrMask = 1 << 6
	QPMaskAV              QPAttrMask = 1 << 7
	QPMaskPathMTU         QPAttrMask = 1 << 8
	QPMaskTimeout         QPAttrMask = 1 << 9
	QPMaskRetryCount      QPAttrMask = 1 << 10
	QPMaskRNRRetry        QPAttrMask = 1 << 11
	QPMaskRQPSN           QPAttrMask = 1 << 12
	QPMaskMaxRDAtomic     QPAttrMask = 1 << 13
	QPMaskAltPath         QPAttrMask = 1 << 14
	QPMaskMinRNRTimer     QPAttrMask = 1 << 15
	QPMaskSQPSN           QPAttrMask = 1 << 16
	QPMaskMaxDestRDAtomic QPAttrMask = 1 << 17
	QPMaskPathMigState    QPAttrMask = 1 << 18
	QPMaskCap             QPAttrMask = 1 << 19
	QPMaskDestQPN         QPAttrMask = 1 << 20
	QPMaskRateLimit       QPAttrMask = 1 << 25
)

// SRQType is the type of a shared receive queue: enum ibv_srq_type.
type SRQType uint32

// Shared receive queue types.
const (
	SRQBasic SRQType = 0
	SRQXRC   SRQType = 1
)

// SRQAttrMask names attributes of a shared receive queue: enum ibv_srq_attr_mask.
type SRQAttrMask uint32

// Bits of SRQAttrMask.
const (
	SRQMaskMaxWR SRQAttrMask = 1 << 0
	SRQMaskLimit SRQAttrMask = 1 << 1
)

// ACKTimeout returns the nanoseconds of a local ACK timeout code: 4.096 µs · 2^code for 1 to 31, 0
// (no timeout) for 0 (IBTA 9.7.6.1.3). Only the low 5 bits of the code count.
func ACKTimeout(code uint8) int64 {
	if code&31 == 0 {
		return 0
	}
	return TimeCode(code & 31)
}

// TimeCode returns the nanoseconds of a 5-bit time code, 4.096 µs · 2^code: response times and
// packet lifetimes in management datagrams. A code above 31 counts as 31.
func TimeCode(code uint8) int64 { return 4096 << min(code, 31) }
