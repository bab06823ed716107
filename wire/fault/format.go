package fault

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"softroce/packet"
)

// String returns the text of a rule that was parsed, or else the rule in the fault language.
func (r Rule) String() string {
	if r.Text != "" {
		return r.Text
	}
	w := []string{r.Action.String()}
	add := func(isSet bool, format string, args ...any) {
		if isSet {
			w = append(w, fmt.Sprintf(format, args...))
		}
	}
	switch r.Action {
	case Duplicate:
		add(r.Copies != 0, "%d", r.Copies)
	case Reorder:
		add(r.By != 0, "%d", r.By)
		add(r.Within != 0, "within %v", r.Within)
	case Delay:
		add(true, "%v", r.Delay)
		add(r.Jitter != 0, "jitter %v", r.Jitter)
	case Corrupt:
		add(r.Bit != 0, "bit %d", r.Bit-1)
	case Set:
		add(true, "%v %#x", r.Field, r.Value)
	case Rate:
		add(true, "%dbit", r.Rate)
		add(r.Queue != 0, "queue %d", r.Queue)
	}
	add(r.NIC != "", "nic %s", r.NIC)
	add(r.Direction == Sent, "send")
	add(r.Direction == Received, "receive")
	add(len(r.Clients) != 0, "client %s", strings.Join(r.Clients, ","))
	add(len(r.QPs) != 0, "qp %s", list(r.QPs, func(q uint32) string { return fmt.Sprintf("%#x", q) }))
	add(!r.Opcodes.empty(), "opcode %s", r.Opcodes)
	add(r.Syndrome != 0, "syndrome %s", r.Syndrome)
	add(len(r.PSNs) != 0, "psn %s", list(r.PSNs, PSNRange.String))
	add(len(r.Messages) != 0, "cm %s", list(r.Messages, cmName))
	add(r.Src.IsValid(), "src %v", r.Src)
	add(r.Dst.IsValid(), "dst %v", r.Dst)
	add(r.RoCE != 0, "roce v%d", r.RoCE)
	add(r.From != 0 || r.Until != 0, "time %s", timeRange(r.From, r.Until))
	add(r.Skip != 0, "skip %d", r.Skip)
	add(len(r.Nth) != 0, "nth %s", list(r.Nth, func(n uint64) string { return strconv.FormatUint(n, 10) }))
	add(r.Every != 0, "every %d", r.Every)
	add(r.Chance != 0, "chance %s%%", strconv.FormatFloat(100*r.Chance, 'f', -1, 64))
	add(r.Count != 0, "count %d", r.Count)
	add(r.Match != nil, "# and a condition in Go")
	return strings.ReplaceAll(strings.Join(w, " "), "µs", "us")
}

// list joins the texts of items with commas.
func list[T any](items []T, text func(T) string) string {
	var w []string
	for _, i := range items {
		w = append(w, text(i))
	}
	return strings.Join(w, ",")
}

// String returns the range in the fault language.
func (p PSNRange) String() string {
	if p.First == p.Last {
		return fmt.Sprint(p.First)
	}
	return fmt.Sprintf("%d..%d", p.First, p.Last)
}

// String lists the opcodes, separated by commas.
func (s OpcodeSet) String() string {
	var w []string
	for o := range 256 {
		if op := packet.Opcode(o); s.has(op) {
			if in := op.Info(); in.Valid {
				w = append(w, in.Name)
			} else {
				w = append(w, fmt.Sprintf("%#02x", o))
			}
		}
	}
	return strings.Join(w, ",")
}

// String lists the classes, separated by commas.
func (c SyndromeSet) String() string {
	var w []string
	for _, name := range []string{"ack", "nak", "rnr"} {
		if c&syndromeNames[name] != 0 {
			w = append(w, name)
		}
	}
	return strings.Join(w, ",")
}

func timeRange(from, until time.Duration) string {
	if until == 0 {
		return from.String() + ".."
	}
	return from.String() + ".." + until.String()
}
