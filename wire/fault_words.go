package wire

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"softroce/packet"
)

var actionNames = [numFaultActions]string{
	FaultDrop:      "drop",
	FaultDuplicate: "duplicate",
	FaultReorder:   "reorder",
	FaultDelay:     "delay",
	FaultCorrupt:   "corrupt",
	FaultMark:      "mark",
	FaultSet:       "set",
	FaultRate:      "rate",
}

func (a FaultAction) String() string {
	if a < numFaultActions {
		return actionNames[a]
	}
	return fmt.Sprintf("FaultAction(%d)", uint8(a))
}

// kindNames are the words after "kind".
var kindNames = map[string]func(in *packet.Info) bool{
	"send":          ofKind(packet.KindSend),
	"write":         ofKind(packet.KindWrite),
	"read":          ofKind(packet.KindRead),
	"read_response": ofKind(packet.KindReadResponse),
	"ack":           ofKind(packet.KindAck),
	"nak":           ofKind(packet.KindAck),
	"rnr":           ofKind(packet.KindAck),
	"atomic":        ofKind(packet.KindCompareSwap, packet.KindFetchAdd),
	"atomic_ack":    ofKind(packet.KindAtomicAck),
	"flush":         ofKind(packet.KindFlush),
	"atomic_write":  ofKind(packet.KindAtomicWrite),
	"cnp":           ofKind(packet.KindCNP),
	"request":       func(in *packet.Info) bool { return in.Request },
	"response":      func(in *packet.Info) bool { return !in.Request && in.Kind != packet.KindCNP },
	"imm":           func(in *packet.Info) bool { return in.Headers&packet.HasImmDt != 0 },
	"first":         at(packet.First),
	"middle":        at(packet.Middle),
	"last":          at(packet.Last),
	"only":          at(packet.Only),
}

var syndromeNames = map[string]SyndromeClass{"ack": ClassACK, "nak": ClassNAK, "rnr": ClassRNR}

func ofKind(kinds ...packet.Kind) func(*packet.Info) bool {
	return func(in *packet.Info) bool { return slices.Contains(kinds, in.Kind) }
}

func at(p packet.Position) func(*packet.Info) bool {
	return func(in *packet.Info) bool { return in.Position == p }
}

// opcodesWhere returns the assigned opcodes for which ok holds.
func opcodesWhere(ok func(packet.Opcode, *packet.Info) bool) (s OpcodeSet) {
	for o := range 256 {
		if in := packet.Opcode(o).Info(); in.Valid && ok(packet.Opcode(o), in) {
			s.add(packet.Opcode(o))
		}
	}
	return s
}

// opcodesNamed returns the opcodes with a name, of all services where it has no prefix.
func opcodesNamed(name string) OpcodeSet {
	return opcodesWhere(func(_ packet.Opcode, in *packet.Info) bool {
		_, bare, _ := strings.Cut(in.Name, "_")
		return strings.EqualFold(name, in.Name) || strings.EqualFold(name, bare)
	})
}

// String returns the rule in the words of the fault language, or as it stands in its file.
func (r FaultRule) String() string {
	if r.Text != "" {
		return r.Text
	}
	w := []string{r.Action.String()}
	say := func(ok bool, format string, args ...any) {
		if ok {
			w = append(w, fmt.Sprintf(format, args...))
		}
	}
	switch r.Action {
	case FaultDuplicate:
		say(r.Copies != 0, "%d", r.Copies)
	case FaultReorder:
		say(r.By != 0, "%d", r.By)
		say(r.Within != 0, "within %v", r.Within)
	case FaultDelay:
		say(true, "%v", r.Delay)
		say(r.Jitter != 0, "jitter %v", r.Jitter)
	case FaultCorrupt:
		say(r.Bit != 0, "bit %d", r.Bit-1)
	case FaultSet:
		say(true, "%v %#x", r.Field, r.Value)
	case FaultRate:
		say(true, "%dbit", r.Rate)
		say(r.Queue != 0, "queue %d", r.Queue)
	}
	say(r.NIC != "", "nic %s", r.NIC)
	say(r.Direction == Sent, "send")
	say(r.Direction == Received, "receive")
	say(len(r.QPs) != 0, "qp %s", list(r.QPs, func(q uint32) string { return fmt.Sprintf("%#x", q) }))
	say(!r.Opcodes.empty(), "opcode %s", r.Opcodes)
	say(r.Syndrome != 0, "syndrome %s", r.Syndrome)
	say(len(r.PSNs) != 0, "psn %s", list(r.PSNs, PSNRange.String))
	say(r.Src.IsValid(), "src %v", r.Src)
	say(r.Dst.IsValid(), "dst %v", r.Dst)
	say(r.From != 0 || r.Until != 0, "time %s", timeRange(r.From, r.Until))
	say(r.Skip != 0, "skip %d", r.Skip)
	say(len(r.Nth) != 0, "nth %s", list(r.Nth, func(n uint64) string { return strconv.FormatUint(n, 10) }))
	say(r.Every != 0, "every %d", r.Every)
	say(r.Chance != 0, "chance %s%%", strconv.FormatFloat(100*r.Chance, 'f', -1, 64))
	say(r.Count != 0, "count %d", r.Count)
	say(r.Match != nil, "# and a condition in Go")
	return strings.ReplaceAll(strings.Join(w, " "), "µs", "us")
}

func list[T any](items []T, word func(T) string) string {
	var w []string
	for _, i := range items {
		w = append(w, word(i))
	}
	return strings.Join(w, ",")
}

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
func (c SyndromeClass) String() string {
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

func parsePrefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		return p.Masked(), err
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.Prefix(a.BitLen())
}
