package explain

import (
	"fmt"
	"slices"
	"strings"

	"softroce/internal/daemon"
	"softroce/nic"
	"softroce/transport"
)

// An Explanation is what is known of a queue pair.
type Explanation struct {
	NIC   string     `json:"ifname"`
	Port  int        `json:"port"`
	Ended bool       `json:"ended"` // it was destroyed or reset
	QP    nic.QPInfo `json:"qp"`

	Severity Severity `json:"severity"`
	Why      string   `json:"why"`
	Peer     string   `json:"peer,omitempty"` // what the peer has recorded, or what is wrong with it
	Mend     string   `json:"mend,omitempty"`
	Counters []Count  `json:"counters"`
}

// A Count is a counter that has moved.
type Count struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// A Severity says how badly a queue pair is off.
type Severity int

// Severities, the worst first.
const (
	Failed  Severity = iota // it is in ERR or SQE, and not because the program said so
	Stalled                 // it retransmits, or waits for the peer to post receives
	Idle                    // it is not connected, or was moved to ERR by its program
	Working
)

var severityNames = [...]string{"failed", "stalled", "idle", "working"}

func (s Severity) String() string { return severityNames[s] }

// MarshalText implements encoding.TextMarshaler.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Severity) UnmarshalText(text []byte) error {
	i := slices.Index(severityNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown severity %q", text)
	}
	*s = Severity(i)
	return nil
}

// All explains every queue pair of a snapshot and those in the histories, the worst first, and
// those that exist before those that have ended.
func All(s *daemon.Snapshot) (l []Explanation) {
	for i := range s.Devices {
		d := &s.Devices[i]
		for k := range d.QPs {
			l = append(l, explain(s, d, &d.QPs[k], false))
		}
		for k := len(d.Ended) - 1; k >= 0; k-- {
			l = append(l, explain(s, d, &d.Ended[k].QPInfo, true))
		}
	}
	slices.SortStableFunc(l, func(a, b Explanation) int {
		if a.Ended != b.Ended {
			if b.Ended {
				return -1
			}
			return 1
		}
		return int(a.Severity) - int(b.Severity)
	})
	return l
}

// SeverityOf returns the severity of a queue pair that exists.
func SeverityOf(q *nic.QPInfo) Severity {
	switch f, s := q.Failure, q.Stall; {
	case f != nil && f.Reason == transport.ReasonModified:
		return Idle
	case f != nil:
		return Failed
	case s == nil:
		return Idle
	case s.Timeouts > 0 || s.For == transport.WaitRNR || s.For == transport.WaitCredits:
		return Stalled
	}
	return Working
}

func explain(s *daemon.Snapshot, d *daemon.Device, q *nic.QPInfo, ended bool) Explanation {
	x := Explanation{NIC: d.Name, Port: 1, Ended: ended, QP: *q, Severity: SeverityOf(q), Counters: counts(d, q)}
	peer := findPeer(s, q)
	switch {
	case q.Failure != nil:
		x.Why, x.Mend = explainFailure(q)
		x.explainPeer(q.Failure, peer)
	case q.Stall != nil:
		x.Why, x.Mend = explainStall(d, q)
		if x.Severity == Stalled {
			x.notePeer(peer)
		}
	default:
		x.Why, x.Mend = explainState(q)
	}
	if f := q.Failure; q.Stall != nil && x.Severity == Stalled && q.Stall.Timeouts > 0 || f != nil && f.Reason == transport.ReasonRetryExceeded {
		x.explainLink(d)
	}
	if f := q.Failure; f != nil && f.Check == transport.CheckPD && f.Reason == transport.ReasonRemoteMemory && q.PD != 0 {
		x.Mend += fmt.Sprintf("; that of this queue pair is pdn %d", q.PD)
	}
	return x
}

// Line returns the explanation in one line.
func (x *Explanation) Line() string {
	parts := []string{fmt.Sprintf("queue pair %d of %s: %s", x.QP.QPN, x.NIC, x.Why)}
	if x.Peer != "" {
		parts = append(parts, x.Peer)
	}
	if x.Mend != "" {
		parts = append(parts, x.Mend)
	}
	return strings.Join(parts, "; ")
}

// counts returns the counters that have moved: those of the queue pair, and those of its NIC that
// belong to the reason.
func counts(d *daemon.Device, q *nic.QPInfo) (l []Count) {
	l = []Count{}
	for _, c := range []Count{
		{"retransmitted", q.Retransmitted}, {"timeouts", q.Timeouts}, {"nak_sent", q.NAKsSent}, {"nak_received", q.NAKsReceived},
		{"rnr_nak_sent", q.RNRNAKsSent}, {"rnr_nak_received", q.RNRNAKsReceived},
	} {
		if c.Value > 0 {
			l = append(l, c)
		}
	}
	if q.Failure == nil {
		return l
	}
	for _, name := range reasons[q.Failure.Reason].counters {
		if v := d.Counters.Values[name]; v > 0 {
			l = append(l, Count{d.Name + " " + name, v})
		}
	}
	return l
}
