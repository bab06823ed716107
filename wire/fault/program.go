package fault

import (
	"cmp"
	"errors"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"softroce/internal/ib"
	"softroce/internal/suggest"
	"softroce/packet"
)

// A Program is a list of rules in the order of their evaluation. Evaluators do not change it, so
// several links can share one.
type Program struct {
	Seed        uint64 // of all random choices
	Rules       []Rule // for packets
	Verbs       []VerbRule
	Completions []CompletionRule

	seeded bool // a line has set Seed
}

// A Source says where a rule comes from.
type Source struct {
	ID   int    // see Verbs.Number
	Line int    // in the program; 0 for a rule that was not parsed
	Text string // of the line

	// stream tells the random numbers of the rules of one seed apart; 0: the rule's index does. It
	// is that of the rule in its program if the program has a seed, so that the program decides
	// the same each time that it is added.
	stream int
}

// sources returns those of all rules, which may be changed.
func (p *Program) sources() (l []*Source) {
	for i := range p.Rules {
		l = append(l, &p.Rules[i].Source)
	}
	for i := range p.Verbs {
		l = append(l, &p.Verbs[i].Source)
	}
	for i := range p.Completions {
		l = append(l, &p.Completions[i].Source)
	}
	return l
}

// An Action is what a rule does to the packets that it selects.
type Action uint8

const (
	Drop      Action = iota // discard it; evaluation ends
	Duplicate               // send or deliver Copies more after it
	Reorder                 // hold it until By later packets of its flow have passed; evaluation ends
	Delay                   // hold it for Delay, plus or minus Jitter
	Corrupt                 // invert Bit after the ICRC was computed
	Mark                    // set the ECN bits to "congestion experienced"
	Set                     // write Value to Field; the ICRC is computed again
	Rate                    // send it over a virtual wire of Rate bits per second
	Stall                   // hold it until Until
	numActions
)

// Directions of a packet, as seen from the NIC.
const (
	Sent Direction = 1 << iota
	Received
)

// A Direction is a set of Sent and Received. In a rule, 0 means both.
type Direction uint8

// Classes of AETH syndromes (IBTA 9.7.5.2.1).
const (
	SyndromeACK SyndromeSet = 1 << iota
	SyndromeNAK
	SyndromeRNR
)

// A SyndromeSet is a set of SyndromeACK, SyndromeNAK and SyndromeRNR. In a rule, 0 means all.
type SyndromeSet uint8

// A PSNRange is the PSNs from First to Last, both included. It wraps around if Last is less than
// First.
type PSNRange struct{ First, Last uint32 }

// contains reports whether psn is in the range.
func (p PSNRange) contains(psn uint32) bool {
	return (psn-p.First)&packet.PSNMask <= (p.Last-p.First)&packet.PSNMask
}

// An OpcodeSet is a set of opcodes.
type OpcodeSet [4]uint64

// Opcodes returns the set of the given opcodes.
func Opcodes(ops ...packet.Opcode) (s OpcodeSet) {
	for _, o := range ops {
		s.add(o)
	}
	return s
}

func (s *OpcodeSet) add(o packet.Opcode)      { s[o/64] |= 1 << (o % 64) }
func (s *OpcodeSet) remove(o packet.Opcode)   { s[o/64] &^= 1 << (o % 64) }
func (s *OpcodeSet) has(o packet.Opcode) bool { return s[o/64]>>(o%64)&1 != 0 }
func (s *OpcodeSet) empty() bool              { return *s == OpcodeSet{} }

// any reports whether ok holds for an opcode of the set.
func (s *OpcodeSet) any(ok func(packet.Opcode) bool) bool {
	for o := range 256 {
		if op := packet.Opcode(o); s.has(op) && ok(op) {
			return true
		}
	}
	return false
}

// A Rule selects packets and says what happens to them. A packet matches if it meets every
// condition that is set. The selection then picks among the packets that match, which are counted
// from 1. The zero Rule drops every packet.
type Rule struct {
	Action Action
	Source

	// Conditions.
	NIC       string // only at the NIC of this name: see Program.For
	Direction Direction
	Clients   []string // names or process IDs, of those whose queue pair sends or receives
	QPs       []uint32 // destination QPs
	Opcodes   OpcodeSet
	Syndrome  SyndromeSet // of an ACKNOWLEDGE; other packets match
	PSNs      []PSNRange
	Src, Dst  netip.Prefix
	RoCE      uint8            // version: 1 or 2; 0: any
	Messages  []ib.CMAttribute // of the connection manager
	From      time.Duration    // since the first call of Evaluator.Begin
	Until     time.Duration    // 0 means no end
	Match     func(*packet.Header) bool

	Selection

	// Parameters of the action.
	Copies        int           // Duplicate; 0 means 1
	By            int           // Reorder: packets that have to pass first; 0 means 1
	Within        time.Duration // Reorder: longest wait; 0 means DefaultWithin
	Delay, Jitter time.Duration
	Bit           int    // Corrupt: 1 + the bit's number, from the first bit of the BTH; 0 means random
	Field         Field  // Set
	Value         uint64 // Set
	Rate          uint64 // in bits per second, of Ethernet frames without FCS
	Queue         int    // Rate: packets that may wait, more are dropped; 0 means DefaultQueue
}

// ClientConditions are conditions on the program that calls a verb or posts a work request.
type ClientConditions struct {
	NIC     string        // that it uses
	Clients []string      // its name or process ID
	From    time.Duration // since the start of the daemon or of the fabric, or since the rule was added
	Until   time.Duration // 0 means no end
}

func (c *ClientConditions) matches(nic string, pid int, comm string, since time.Duration) bool {
	return (c.NIC == "" || c.NIC == nic) &&
		(len(c.Clients) == 0 || isClient(c.Clients, pid, comm)) &&
		since >= c.From && (c.Until == 0 || since < c.Until)
}

// isClient reports whether a program is one of those that a rule names.
func isClient(clients []string, pid int, comm string) bool {
	return slices.Contains(clients, comm) || slices.Contains(clients, strconv.Itoa(pid))
}

// A Selection picks among the packets, calls of verbs or work requests that match a rule.
type Selection struct {
	Skip   uint64   // do not count the first Skip
	Nth    []uint64 // only these
	Every  uint64   // only multiples of Every
	Chance float64  // each with this probability; 0 means always
	Count  uint64   // at most Count; 0 means no limit
}

// Defaults and limits of rules.
const (
	DefaultWithin = time.Millisecond
	DefaultQueue  = 1000 // packets

	// MaxQueued is the number of packets that a link holds in each direction, for all rules
	// together.
	MaxQueued = 16384
)

// CheckNICs returns an error if a rule names a NIC that is none of have: it could not match
// anything. The error joins an *Error for each of the first such rules.
func (p *Program) CheckNICs(have []string) error {
	var errs []*Error
	check := func(nic string, s *Source) {
		if nic != "" && !slices.Contains(have, nic) {
			errs = append(errs, &Error{s.Line, nic, "no such NIC" + suggest.Word(nic, slices.Clone(have))})
		}
	}
	for i := range p.Rules {
		check(p.Rules[i].NIC, &p.Rules[i].Source)
	}
	for i := range p.Verbs {
		check(p.Verbs[i].NIC, &p.Verbs[i].Source)
	}
	for i := range p.Completions {
		check(p.Completions[i].NIC, &p.Completions[i].Source)
	}
	slices.SortFunc(errs, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	var first []error
	for _, e := range errs[:min(len(errs), maxErrors)] {
		first = append(first, e)
	}
	return errors.Join(first...)
}

// For returns the program for the packets and completions of the NIC of this name: without the
// rules for other NICs and for verbs, and with a seed that depends on the name, so that random
// choices differ between NICs.
func (p *Program) For(nic string) *Program {
	h := fnv.New64a()
	h.Write([]byte(nic))
	own := &Program{Seed: p.Seed ^ h.Sum64()}
	for _, r := range p.Rules {
		if r.NIC == "" || r.NIC == nic {
			own.Rules = append(own.Rules, r)
		}
	}
	for _, r := range p.Completions {
		if r.NIC == "" || r.NIC == nic {
			own.Completions = append(own.Completions, r)
		}
	}
	return own
}
