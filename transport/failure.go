package transport

import (
	"errors"
	"fmt"

	"softroce/internal/ib"
	"softroce/mrtable"
	"softroce/packet"
)

// A Failure is why a queue pair has entered the error state, or SQE. It is recorded on the way
// there; packets that are accepted cost nothing. Fields that do not concern the reason are zero.
type Failure struct {
	Reason    Reason          `json:"reason"`
	Check     Check           `json:"check,omitempty"`    // of a region, that did not pass
	Status    ib.WCStatus     `json:"-"`                  // of the completion that reports it; WCSuccess: none does
	Syndrome  packet.Syndrome `json:"syndrome,omitempty"` // of the NAK that was received or sent
	Operation string          `json:"operation,omitempty"`
	PSN       uint32          `json:"psn"`                // of the request
	Address   uint64          `json:"address,omitempty"`  // of the memory that could not be accessed
	Key       uint32          `json:"key,omitempty"`      // its key, if no region has it
	Need      ib.Access       `json:"need,omitempty"`     // access that a region or the queue pair must grant
	Length    uint64          `json:"length,omitempty"`   // bytes of the message or of the access
	Room      uint64          `json:"room,omitempty"`     // bytes that there was room for
	Limit     uint8           `json:"limit,omitempty"`    // retry_cnt, rnr_retry or max_dest_rd_atomic that was exhausted
	Timeouts  uint8           `json:"timeouts,omitempty"` // in a row, when the last retry was used
	Silent    bool            `json:"silent,omitempty"`   // the peer had not replied since the request was posted
	At        int64           `json:"at"`                 // Env.Now
}

// A Reason is what made a queue pair fail.
type Reason uint8

// Reasons.
const (
	ReasonNone Reason = iota

	// The requester, because of the peer.
	ReasonRetryExceeded     // no progress after retry_cnt retransmissions
	ReasonRNRExceeded       // RNR NAKs after rnr_retry repetitions
	ReasonRemoteInvalid     // NAK: invalid request
	ReasonRemoteAccess      // NAK: remote access error
	ReasonRemoteOperational // NAK: remote operational error
	ReasonBadResponse       // a response that does not match its request

	// The requester, because of a work request.
	ReasonSendMemory  // its scatter/gather list
	ReasonSendInvalid // the operation, or the form of its list
	ReasonSendLength  // longer than the operation allows
	ReasonReadDepth   // a READ or atomic, and max_rd_atomic is 0
	ReasonWindow      // a bind or local invalidation

	// The responder, because of a request.
	ReasonMessageOrder   // First, Middle, Last and Only are not in order
	ReasonNoSRQ          // XRC: no such shared receive queue in the domain
	ReasonNotPermitted   // the queue pair's access flags
	ReasonNotSupported   // the NIC does not have the operation
	ReasonPacketLength   // payload does not fit the position, the path MTU or the RETH
	ReasonMessageTooLong // more than a message may have
	ReasonReadsExceeded  // more READs and atomics than max_dest_rd_atomic
	ReasonMisaligned     // an atomic at an address that is not a multiple of 8
	ReasonRemoteMemory   // R_Key
	ReasonInvalidate     // a SEND with invalidate whose R_Key may not be invalidated

	// The responder, because of a receive work request.
	ReasonRecvTooShort // the message is longer
	ReasonRecvMemory   // its scatter/gather list

	// Either.
	ReasonMemoryGone // the process or its pages are gone
	ReasonInjected   // a fault program
	ReasonCQ         // a completion queue has no room, or has failed
	ReasonSRQ        // the shared receive queue has failed
	ReasonEvent      // an event was raised
	ReasonModified   // the program, by ibv_modify_qp
	numReasons
)

var reasonNames = [numReasons]string{
	"", "retry_exceeded", "rnr_retry_exceeded", "remote_invalid_request", "remote_access_error", "remote_operational_error", "bad_response",
	"send_memory", "send_invalid", "send_length", "max_rd_atomic", "memory_window",
	"message_order", "xrc_srq", "qp_access_flags", "not_supported", "packet_length", "message_too_long", "max_dest_rd_atomic", "misaligned",
	"remote_memory", "invalidate", "receive_too_short", "receive_memory",
	"memory_gone", "fault_rule", "cq_error", "srq_error", "event", "modified",
}

// Reasons returns all reasons but ReasonNone.
func Reasons() (l []Reason) {
	for r := ReasonNone + 1; r < numReasons; r++ {
		l = append(l, r)
	}
	return l
}

func (r Reason) String() string { return nameOf(r, reasonNames[:]) }

// MarshalText implements encoding.TextMarshaler.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Reason) UnmarshalText(text []byte) error { return parseName(r, text, reasonNames[:]) }

// A Check is a check of a memory region or window.
type Check uint8

// Checks, in their order.
const (
	CheckNone   Check = iota
	CheckKey          // no region has the key
	CheckQP           // the window is bound to another queue pair
	CheckPD           // the region is of another protection domain
	CheckAccess       // the region does not grant the access
	CheckBounds       // the range is not inside the region
	CheckLive         // the region was deregistered, or the window unbound, during the message
	numChecks
)

var checkNames = [numChecks]string{"", "key", "window_qp", "pd", "access", "bounds", "deregistered"}

func (c Check) String() string { return nameOf(c, checkNames[:]) }

// MarshalText implements encoding.TextMarshaler.
func (c Check) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Check) UnmarshalText(text []byte) error { return parseName(c, text, checkNames[:]) }

func nameOf[T ~uint8](v T, names []string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown"
}

func parseName[T ~uint8](v *T, text []byte, names []string) error {
	for i, n := range names {
		if n == string(text) {
			*v = T(i)
			return nil
		}
	}
	return fmt.Errorf("unknown name %q", text)
}

// checkOf returns the check that an error of mrtable.Table.Local or Remote stands for.
func checkOf(err error) Check {
	for c, e := range [...]error{CheckKey: mrtable.ErrKey, CheckQP: mrtable.ErrQP, CheckPD: mrtable.ErrPD,
		CheckAccess: mrtable.ErrAccess, CheckBounds: mrtable.ErrBounds} {
		if e != nil && errors.Is(err, e) {
			return Check(c)
		}
	}
	return CheckNone
}

// Failure returns why the queue pair failed, or nil.
func (q *QP) Failure() *Failure { return q.failure }

// Blame records why the queue pair is about to fail, unless an earlier reason is recorded.
func (q *QP) Blame(e *Env, f Failure) {
	if q.failure == nil {
		f.At = e.Now
		q.failure = &f
	}
}

// blameRequest blames the work request w.
func (q *QP) blameRequest(e *Env, w *wqe, f Failure) {
	if w != nil {
		f.Operation, f.PSN, f.Length = w.Opcode.String(), uint32(w.first)&packet.PSNMask, max(f.Length, uint64(w.length))
	}
	q.Blame(e, f)
}

// blameHead blames the oldest work request.
func (q *QP) blameHead(e *Env, f Failure) {
	var w *wqe
	if !q.sq.empty() {
		w = q.sq.head()
	}
	q.blameRequest(e, w, f)
}

// blameInvalid blames w, in which the requester has found an error itself.
func (q *QP) blameInvalid(e *Env, w *wqe) {
	f := Failure{Status: w.status, Reason: ReasonSendInvalid}
	switch {
	case w.status == w.Fault.Status:
		f.Reason = ReasonInjected
	case w.status == ib.WCLocProtErr:
		f.Reason = ReasonSendMemory
		q.findInvalid(e, w.SGEs, q.cfg.PD, 0, &f)
		if f.Check == CheckNone {
			f.Reason = ReasonMemoryGone
		}
	case w.status == ib.WCLocLenErr:
		f.Reason = ReasonSendLength
	case w.status == ib.WCMWBindErr:
		f.Reason = ReasonWindow
	case w.ownResponse && q.attr.MaxRDAtomic == 0 && w.kind != packet.KindNone:
		f.Reason = ReasonReadDepth
	}
	q.blameRequest(e, w, f)
}

// findInvalid looks up the elements of a list again, to find the one that was refused and why.
func (q *QP) findInvalid(e *Env, sges []SGE, pd *mrtable.PD, need ib.Access, f *Failure) {
	for _, g := range sges {
		if g.Length == 0 {
			continue
		}
		if _, err := e.Table.Local(pd, g.LKey, g.Addr, g.Length, need); err != nil {
			f.memory(err, g.LKey, g.Addr, uint64(g.Length), need)
			return
		}
	}
}

// memory sets the access that err has refused.
func (f *Failure) memory(err error, key uint32, addr, n uint64, need ib.Access) {
	f.Check, f.Address, f.Length, f.Need = checkOf(err), addr, n, need
	if f.Check == CheckKey {
		f.Key = key
	}
}

// blameResponse blames the oldest work request, whose response could not be accepted.
func (q *QP) blameResponse(e *Env, s ib.WCStatus) {
	f := Failure{Reason: ReasonBadResponse, Status: s}
	if s != ib.WCBadRespErr && !q.sq.empty() {
		f.Reason = ReasonSendMemory
		q.findInvalid(e, q.sq.head().SGEs, q.cfg.PD, ib.AccessLocalWrite, &f)
	}
	q.blameHead(e, f)
}

// operationOf returns the name of the operation of a request.
func operationOf(in *packet.Info) string {
	for o, k := range rcOperations {
		if k != in.Kind || k == packet.KindNone {
			continue
		}
		if ib.WROpcode(o) == ib.WRRDMAWriteWithImm || ib.WROpcode(o) == ib.WRSendWithImm || ib.WROpcode(o) == ib.WRSendWithInv {
			continue
		}
		return ib.WROpcode(o).String()
	}
	return ""
}

// refuse returns the NAK that refuses request p, and records the reason. The unreliable services
// drop such a request and go on.
func (q *QP) refuse(e *Env, nak packet.Syndrome, p *RxPacket, f Failure) packet.Syndrome {
	if q.reliable() {
		f.Syndrome, f.Operation, f.PSN = nak, operationOf(p.Opcode.Info()), p.PSN
		q.Blame(e, f)
	}
	return nak
}

// refuseMemory refuses a request because of its R_Key or range.
func (q *QP) refuseMemory(e *Env, p *RxPacket, err error, h *packet.RETH, need ib.Access) packet.Syndrome {
	f := Failure{Reason: ReasonRemoteMemory}
	f.memory(err, h.RKey, h.VA, uint64(h.Length), need)
	return q.refuse(e, packet.NAKRemoteAccess, p, f)
}

// blameReceive blames the current receive work request.
func (q *QP) blameReceive(e *Env, s ib.WCStatus, p *RxPacket) {
	r := &q.resp
	f := Failure{Reason: ReasonRecvMemory, Status: s, PSN: p.PSN, Operation: operationOf(p.Opcode.Info())}
	switch {
	case s == r.recv.Fault.Status:
		f.Reason = ReasonInjected
	case s == ib.WCLocLenErr:
		f.Reason, f.Room = ReasonRecvTooShort, listLength(r.recv.SGEs)
		f.Length = uint64(r.placed) + uint64(p.Len) // at least
	default:
		q.findInvalid(e, r.recv.SGEs, q.recvPD(), ib.AccessLocalWrite, &f)
	}
	if q.reliable() {
		f.Syndrome = packet.NAKRemoteOperational
		if f.Reason == ReasonRecvTooShort {
			f.Syndrome = packet.NAKInvalidRequest
		}
	}
	q.Blame(e, f)
}

// refuseLength refuses a request whose payload has the wrong length.
func (q *QP) refuseLength(e *Env, p *RxPacket) packet.Syndrome {
	return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonPacketLength, Length: uint64(p.Len), Room: uint64(q.attr.PathMTU)})
}

// refuseMessage refuses a request for more bytes than a message may have.
func (q *QP) refuseMessage(e *Env, p *RxPacket) packet.Syndrome {
	return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonMessageTooLong, Length: uint64(p.RETH.Length), Room: MaxMessage})
}

// refuseReads refuses a READ or atomic that exceeds max_dest_rd_atomic.
func (q *QP) refuseReads(e *Env, p *RxPacket) packet.Syndrome {
	return q.refuse(e, packet.NAKInvalidRequest, p, Failure{Reason: ReasonReadsExceeded, Limit: q.attr.MaxDestRDAtomic})
}
