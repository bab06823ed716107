package fault

import (
	"fmt"
	"slices"
	"strings"

	"softroce/internal/ib"
	"softroce/packet"
)

var actionNames = [numActions]string{
	Drop:      "drop",
	Duplicate: "duplicate",
	Reorder:   "reorder",
	Delay:     "delay",
	Corrupt:   "corrupt",
	Mark:      "mark",
	Set:       "set",
	Rate:      "rate",
	Stall:     "stall",
}

// String returns the action's name in the fault language.
func (a Action) String() string {
	if a < numActions {
		return actionNames[a]
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

// kindNames are the values of the condition "kind".
var kindNames = map[string]func(in *packet.Info) bool{
	"send":          ofKind(packet.KindSend),
	"write":         ofKind(packet.KindWrite),
	"read":          ofKind(packet.KindRead),
	"read_response": ofKind(packet.KindReadResponse),
	"ack":           ofKind(packet.KindAck),
	"nak":           ofKind(packet.KindAck),
	"rnr":           ofKind(packet.KindAck),
	"atomic":        func(in *packet.Info) bool { return in.Kind.IsAtomic() },
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

var syndromeNames = map[string]SyndromeSet{"ack": SyndromeACK, "nak": SyndromeNAK, "rnr": SyndromeRNR}

// cmName is the name of a message of the connection manager.
func cmName(a ib.CMAttribute) string { return strings.ToLower(a.String()) }

// ofKind returns a test for opcodes of some kinds.
func ofKind(kinds ...packet.Kind) func(*packet.Info) bool {
	return func(in *packet.Info) bool { return slices.Contains(kinds, in.Kind) }
}

// at returns a test for opcodes of packets at a position in their message.
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

// opcodesNamed returns the opcodes of a name. Without the prefix of a service it names the opcodes
// of all services.
func opcodesNamed(name string) OpcodeSet {
	return opcodesWhere(func(_ packet.Opcode, in *packet.Info) bool {
		_, bare, _ := strings.Cut(in.Name, "_")
		return strings.EqualFold(name, in.Name) || strings.EqualFold(name, bare)
	})
}
