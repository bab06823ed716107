package explain

import (
	"fmt"
	"io"
	"strings"

	"softroce/nic"
)

// WriteText writes explanations in the style of softroce show: a line for each queue pair, and
// below it what there is to say.
func WriteText(w io.Writer, l []Explanation) error {
	var b strings.Builder
	for i := range l {
		x := &l[i]
		q := &x.QP
		fmt.Fprintf(&b, "link %s/%d lqpn %d rqpn %d type %s state %s", x.NIC, x.Port, q.QPN, q.RemoteQPN, q.Type, q.State)
		if x.Ended {
			b.WriteString(" (ended)")
		}
		if q.Dst.IsValid() {
			fmt.Fprintf(&b, " path %v > %v", q.Src, q.Dst)
		}
		fmt.Fprintf(&b, " client %d pid %d comm %s\n", q.Client, q.PID, q.Comm)
		var counters []string
		for _, c := range x.Counters {
			counters = append(counters, fmt.Sprintf("%s %d", c.Name, c.Value))
		}
		for _, row := range []struct{ key, text string }{
			{"why", x.Why}, {"peer", x.Peer}, {"mend", x.Mend}, {"counters", strings.Join(counters, ", ")}, {"psn", psns(q)},
		} {
			if row.text != "" {
				fmt.Fprintf(&b, "    %-8s %s\n", row.key, row.text)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// psns returns the PSN of the request that failed, or that is not acknowledged, by which
// it is found in a capture.
func psns(q *nic.QPInfo) string {
	switch f, s := q.Failure, q.Stall; {
	case q.Hidden:
	case f != nil && (f.Syndrome != 0 || f.Operation != ""):
		return fmt.Sprintf("%d of the request that failed", f.PSN)
	case s != nil && s.Operation != "":
		return fmt.Sprintf("%d is the oldest that is not acknowledged", s.PSN)
	}
	return ""
}
