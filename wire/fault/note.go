package fault

import (
	"fmt"
	"strings"
)

// A Note says what a rule did to a packet or a program, what an operator did, or why a NIC dropped
// a packet. What does not apply is zero.
type Note struct {
	Rule   int    // its ID; 0: it has none
	Text   string // the rule
	NoRule bool   // no rule did it: Text says what happened
	Result string // what else happened, which the rule does not say

	NIC       string
	Direction Direction // of a packet
	PID       int       // of the program
	Comm      string    // its name
	QPN       uint32    // its queue pair
	Packet    string    // the packet
}

// Comment returns the note without its packet.
func (n *Note) Comment() string {
	text := n.Text
	switch {
	case n.Rule != 0:
		text = fmt.Sprintf("fault rule %d: %s", n.Rule, n.Text)
	case !n.NoRule:
		text = "fault rule: " + n.Text
	}
	if n.Result != "" {
		text += ", " + n.Result
	}
	var about []string
	add := func(isSet bool, s string) {
		if isSet {
			about = append(about, s)
		}
	}
	add(n.NIC != "", n.NIC)
	add(n.Direction == Sent, "send")
	add(n.Direction == Received, "receive")
	add(n.PID != 0, fmt.Sprintf("pid %d", n.PID))
	add(n.Comm != "", n.Comm)
	add(n.QPN != 0, fmt.Sprintf("qp %#x", n.QPN))
	if len(about) > 0 {
		text += " (" + strings.Join(about, ", ") + ")"
	}
	return text
}

// String returns the note as captures have it.
func (n *Note) String() string {
	if n.Packet != "" {
		return n.Comment() + ": " + n.Packet
	}
	return n.Comment()
}

// String describes the packet as captures do.
func (p *PacketInfo) String() string {
	if !p.hasBTH {
		return fmt.Sprintf("%v > %v, %d bytes", p.Src, p.Dst, p.Len)
	}
	return fmt.Sprintf("%v > %v qp %#x psn %d %v", p.Src, p.Dst, p.Header.DestQP, p.Header.PSN, p.Header.Opcode)
}
