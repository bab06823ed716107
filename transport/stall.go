package transport

import (
	"softroce/internal/ib"
	"softroce/packet"
)

// A Stall is what the requester waits for, and what the peer last said.
type Stall struct {
	For       Wait   `json:"for"`
	Operation string `json:"operation,omitempty"` // of the oldest incomplete work request
	PSN       uint32 `json:"psn"`                 // the oldest that is not acknowledged
	Length    uint64 `json:"length,omitempty"`
	Timeouts  uint8  `json:"timeouts,omitempty"` // in a row, up to maxBackoff

	// How often the requester still retransmits, and continues after an RNR NAK.
	RetriesLeft    uint8 `json:"retries_left"`
	RNRRetriesLeft uint8 `json:"rnr_retries_left"` // 7: without end

	Silent bool `json:"silent,omitempty"` // the peer has not replied since the work request was posted

	// NAK is the last NAK, unless a later ACK has acknowledged something.
	NAK packet.Syndrome `json:"nak,omitempty"`

	Limit uint8 `json:"limit,omitempty"` // max_rd_atomic, for WaitReads
}

// A Wait is what a requester waits for.
type Wait uint8

// Waits.
const (
	WaitNothing Wait = iota // no work request is incomplete
	WaitTurn                // the next packet can be sent
	WaitReply               // acknowledgements or responses
	WaitRNR                 // the end of the time that an RNR NAK has named
	WaitCredits             // the peer to post receives
	WaitReads               // as many READs and atomics are outstanding as max_rd_atomic allows
	WaitFence               // a fenced work request waits for READs and atomics
	WaitSQD                 // the send queue is drained, or about to be
	numWaits
)

var waitNames = [numWaits]string{"", "turn", "reply", "rnr_timer", "credits", "max_rd_atomic", "fence", "sqd"}

func (w Wait) String() string { return nameOf(w, waitNames[:]) }

// MarshalText implements encoding.TextMarshaler.
func (w Wait) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *Wait) UnmarshalText(text []byte) error { return parseName(w, text, waitNames[:]) }

// noteNAK remembers what the peer has said about the oldest PSN.
func (q *QP) noteNAK(s packet.Syndrome) { q.req.nak, q.req.nakAt = s, q.req.una }

// lastNAK returns the last NAK if nothing was acknowledged since.
func (r *requester) lastNAK() packet.Syndrome {
	if r.nak == 0 || r.nakAt != r.una {
		return 0
	}
	return r.nak
}

// silent reports whether the peer has not replied since the oldest work request was posted.
func (q *QP) silent() bool { return int32(q.req.answered-q.sq.headIndex) <= 0 }

// Stall returns what the requester waits for.
func (q *QP) Stall() Stall {
	r := &q.req
	s := Stall{PSN: uint32(r.una) & packet.PSNMask, Timeouts: r.timeouts, RetriesLeft: r.retries, RNRRetriesLeft: r.rnrRetries, NAK: r.lastNAK()}
	if q.sq.empty() || q.state != ib.QPSRTS && q.state != ib.QPSSQD {
		return s
	}
	w := q.sq.head()
	s.Operation, s.Length, s.Silent = w.Opcode.String(), uint64(w.length), q.silent()
	s.For = q.waitsFor()
	if s.For == WaitReads {
		s.Limit = q.attr.MaxRDAtomic
	}
	return s
}

func (q *QP) waitsFor() Wait {
	r := &q.req
	switch {
	case r.rnrUntil != 0:
		return WaitRNR
	case r.cur == q.sq.tailIndex || r.timeouts > 0:
		return WaitReply
	}
	w := q.sq.at(r.cur)
	switch {
	case w.started:
		if r.windowFull() && r.una != r.next {
			return WaitReply
		}
		return WaitTurn
	case q.state == ib.QPSSQD:
		return WaitSQD
	case q.fenced(w):
		return WaitFence
	case w.ownResponse && r.reads >= int(q.attr.MaxRDAtomic):
		return WaitReads
	case r.credited && w.ssn > r.limit && consumesRecv(w) && r.una != r.next:
		return WaitCredits
	case r.una != r.next && r.windowFull():
		return WaitReply
	}
	return WaitTurn
}
