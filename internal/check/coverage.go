package check

import (
	"fmt"
	"strings"

	"softroce/internal/conversation"
)

// This file says what of a capture was judged. "No rule is broken" means little without it.

// An Unpaired is a flow of RC or XRC whose opposite direction was not found, so that its requests
// were judged without replies and its replies not at all.
type Unpaired struct {
	Flow     string `json:"flow"`
	Requests int    `json:"requests"`
	Replies  int    `json:"replies"`
}

// unpaired records a flow without an opposite direction.
func (r *Report) unpaired(f *flow) {
	r.UnpairedFlows++
	if len(r.Unpaired) < maxUnpaired {
		r.Unpaired = append(r.Unpaired, Unpaired{f.name, f.requests, f.replies})
	}
}

// Incomplete returns why "no rule is broken" would say too much: nothing was judged, or replies and
// requests of some queue pairs were not compared. It returns nil if all was judged that can be.
func (r *Report) Incomplete() []string {
	var why []string
	if r.RoCE == 0 {
		why = append(why, "nothing was judged: there is no RoCE or InfiniBand packet")
	} else if r.RoCE == r.Cut {
		why = append(why, "nothing was judged: the capture has only a part of each packet")
	}
	if n := r.UnpairedFlows; n > 0 {
		var b strings.Builder
		fmt.Fprintf(&b, "requests and replies were not compared: %s without an opposite direction", count(n, "flow"))
		for i, u := range r.Unpaired {
			if i == maxListed {
				fmt.Fprintf(&b, ", and %d more", n-i)
				break
			}
			fmt.Fprintf(&b, "%s%s (%s, %s)", map[bool]string{true: ": ", false: ", "}[i == 0], u.Flow, count(u.Requests, "request"), count(u.Replies, "reply"))
		}
		why = append(why, b.String())
	}
	if r.Beyond > 0 {
		why = append(why, fmt.Sprintf("%s were not judged: there are more than %d flows", count(r.Beyond, "packet"), conversation.MaxFlows))
	}
	if r.RD > 0 {
		why = append(why, fmt.Sprintf("%s not judged: reliable datagrams, manufacturer opcodes or CNPs of InfiniBand or RoCE v1", count(r.RD, "packet")))
	}
	return why
}

// nothingJudged reports whether no packet was judged.
func (r *Report) nothingJudged() bool { return r.RoCE-r.Views == r.Cut+r.RD }

// verdict returns the last line: what was judged, and whether it breaks a rule.
func (r *Report) verdict() string {
	judged := r.judged()
	switch {
	case r.Total > 0:
		return fmt.Sprintf("%s%s in %s", count(r.Total, "violation"), list(r.ByRule), judged)
	case r.nothingJudged():
		return "nothing was judged"
	case len(r.Incomplete()) > 0:
		return "no rule is broken as far as was judged: " + judged
	}
	return "no rule is broken: judged " + judged
}

// judged says what was judged.
func (r *Report) judged() string {
	var parts []string
	if r.Connections > 0 {
		parts = append(parts, fmt.Sprintf("%s with %s", count(r.Connections, "connection"), count(r.Messages, "message")))
	}
	if r.UCMessages > 0 {
		parts = append(parts, count(r.UCMessages, "message")+" of UC")
	}
	if parts == nil {
		parts = append(parts, "no connection")
	}
	return fmt.Sprintf("%s, %s", strings.Join(parts, ", "), count(r.RoCE-r.Views-r.Cut-r.RD, "packet"))
}

// lost says what the recoveries and the PSNs show of loss, "" for nothing.
func (r *Report) lost() string {
	var parts []string
	if n := r.SentAgain[CauseNAK].Recoveries + r.SentAgain[CauseResponse].Recoveries + r.SentAgain[CauseTimeout].Recoveries; n > 0 {
		parts = append(parts, fmt.Sprintf("at least %s after the point of capture", count(n, "packet")))
	}
	if r.Gaps > 0 {
		parts = append(parts, fmt.Sprintf("%s in the PSNs, of requests that are late or not in the capture", count(r.Gaps, "gap")))
	}
	return strings.Join(parts, "; ")
}

// againByCause counts the packets that were sent again by cause, "" if there are none.
func (r *Report) againByCause() string {
	var parts []string
	for _, c := range causes {
		if n := r.SentAgain[c]; n.Recoveries > 0 {
			parts = append(parts, fmt.Sprintf("%s after %s", count(n.Packets, "packet"), count(n.Recoveries, c.noun())))
		}
	}
	return strings.Join(parts, ", ")
}

// count returns a number with the noun that is counted.
func count(n int, what string) string {
	if n != 1 {
		if y, ok := strings.CutSuffix(what, "y"); ok {
			what = y + "ie"
		}
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
