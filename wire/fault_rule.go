package wire

import (
	"hash/fnv"
	"net/netip"
	"time"

	"softroce/packet"
)

// A FaultProgram is what a Fault does to the packets that pass it. It is not changed
// by use, so that many links can have the same one.
type FaultProgram struct {
	Seed  uint64 // of everything random
	Rules []FaultRule
}

// A FaultAction is what a rule does to a packet that it picks.
type FaultAction uint8

const (
	FaultDrop      FaultAction = iota // and no further rule is asked
	FaultDuplicate                    // Copies more follow it
	FaultReorder                      // hold it until By later ones of its QP have passed; no further rule is asked
	FaultDelay                        // by Delay, give or take Jitter
	FaultCorrupt                      // invert Bit after the ICRC was computed
	FaultMark                         // ECN: congestion experienced
	FaultSet                          // Field becomes Value, and the ICRC right
	FaultRate                         // hold it until a cable of Rate bits a second were done with it
	numFaultActions
)

// Directions of a rule.
const (
	Sent     Direction = 1 << iota // by the NIC above the Fault
	Received                       // for it
)

// A Direction is a set of Sent and Received; 0 is both.
type Direction uint8

// Classes of syndromes.
const (
	ClassACK SyndromeClass = 1 << iota
	ClassNAK
	ClassRNR
)

// A SyndromeClass is a set of ClassACK, ClassNAK and ClassRNR; 0 is all.
type SyndromeClass uint8

// A PSNRange goes from First to Last, over the wrap if Last is before First.
type PSNRange struct{ First, Last uint32 }

// An OpcodeSet is a set of opcodes.
type OpcodeSet [4]uint64

// Opcodes returns the set of those given.
func Opcodes(ops ...packet.Opcode) (s OpcodeSet) {
	for _, o := range ops {
		s.add(o)
	}
	return s
}

func (s *OpcodeSet) add(o packet.Opcode)      { s[o/64] |= 1 << (o % 64) }
func (s *OpcodeSet) has(o packet.Opcode) bool { return s[o/64]>>(o%64)&1 != 0 }
func (s *OpcodeSet) empty() bool              { return *s == OpcodeSet{} }

// A FaultRule picks packets and says what happens to them. A packet matches if it meets
// all conditions of the first group that are set; of the packets that match, the second
// group picks some. The zero value picks everything.
type FaultRule struct {
	Action FaultAction
	Line   int    // in the file it comes from, or 0
	Text   string // as it stands there

	NIC       string // only at this NIC, see FaultProgram.For
	Direction Direction
	QPs       []uint32 // destination QPs
	Opcodes   OpcodeSet
	Syndrome  SyndromeClass // an ACKNOWLEDGE has to be of these
	PSNs      []PSNRange
	Src, Dst  netip.Prefix
	From      time.Duration // since the Fault's first call
	Until     time.Duration // 0 is never
	Match     func(*packet.Header) bool

	Skip   uint64   // not the first of those that match
	Nth    []uint64 // these, the first being 1, of those that match and are not skipped
	Every  uint64   // the n-th, 2n-th …
	Chance float64  // each with this probability; 0 is all
	Count  uint64   // at most so many; 0 is no limit

	Copies        int           // 0 is 1
	By            int           // 0 is 1
	Within        time.Duration // limit of a reorder, 0 is DefaultWithin
	Delay, Jitter time.Duration
	Bit           int // one more than the number of a bit from the first of the BTH; 0 is a random one
	Field         HeaderField
	Value         uint64
	Rate          uint64 // bits a second, of Ethernet frames
	Queue         int    // packets that wait for Rate; further ones are dropped. 0 is DefaultQueue
}

// Defaults of rules.
const (
	DefaultWithin = time.Millisecond // the longest wait for packets to be overtaken by
	DefaultQueue  = 1000             // packets
)

// For returns the program of the NIC with this name: without the rules for others, and
// with a seed of its own, so that two NICs do not meet with the same accidents.
func (p *FaultProgram) For(nic string) *FaultProgram {
	h := fnv.New64a()
	h.Write([]byte(nic))
	own := &FaultProgram{Seed: p.Seed ^ h.Sum64()}
	for _, r := range p.Rules {
		if r.NIC == "" || r.NIC == nic {
			own.Rules = append(own.Rules, r)
		}
	}
	return own
}

// FaultCount is what a rule has done.
type FaultCount struct {
	Rule       FaultRule
	Matched    uint64 // packets that met its conditions
	Acted      uint64 // of these, those that it picked
	Overflowed uint64 // of these, those dropped because too many were held
}

// subject is a packet that rules look at.
type subject struct {
	dir      Direction
	src, dst netip.Addr
	h        packet.Header
	parsed   int // 0 nothing, 1 the BTH, 2 all headers
	n        int // bytes from BTH to pad
}

// look parses what there is of the headers.
func (s *subject) look(head []byte) {
	if s.parsed = 0; len(head) < packet.BTHLen {
		s.h.BTH = packet.BTH{}
		return
	}
	s.parsed = 1
	if _, err := s.h.Parse(head); err == nil {
		s.parsed = 2
	}
}

// meets reports whether s meets the conditions of r, at a time since the first call.
func (r *FaultRule) meets(s *subject, since time.Duration) bool {
	switch {
	case r.Direction != 0 && r.Direction&s.dir == 0,
		since < r.From,
		r.Until != 0 && since >= r.Until,
		r.Src.IsValid() && !r.Src.Contains(s.src),
		r.Dst.IsValid() && !r.Dst.Contains(s.dst),
		r.needsBTH() && s.parsed == 0,
		!r.Opcodes.empty() && !r.Opcodes.has(s.h.Opcode),
		len(r.QPs) != 0 && !r.wantsQP(s.h.DestQP),
		len(r.PSNs) != 0 && !r.wantsPSN(s.h.PSN),
		r.Syndrome != 0 && !r.wantsSyndrome(s),
		r.Action == FaultSet && !r.Field.in(s.h.Opcode):
		return false
	}
	return r.Match == nil || r.Match(&s.h)
}

func (r *FaultRule) needsBTH() bool {
	return !r.Opcodes.empty() || len(r.QPs) != 0 || len(r.PSNs) != 0 || r.Syndrome != 0 || r.Match != nil ||
		r.Action == FaultSet
}

func (r *FaultRule) wantsQP(qp uint32) bool {
	for _, q := range r.QPs {
		if q == qp {
			return true
		}
	}
	return false
}

func (r *FaultRule) wantsPSN(psn uint32) bool {
	for _, p := range r.PSNs {
		if (psn-p.First)&packet.PSNMask <= (p.Last-p.First)&packet.PSNMask {
			return true
		}
	}
	return false
}

func (r *FaultRule) wantsSyndrome(s *subject) bool {
	if s.h.Opcode.Info().Kind != packet.KindAck {
		return true
	}
	if s.parsed < 2 {
		return false
	}
	switch syn := s.h.AETH.Syndrome; {
	case syn.IsACK():
		return r.Syndrome&ClassACK != 0
	case syn.IsRNR():
		return r.Syndrome&ClassRNR != 0
	case syn.IsNAK():
		return r.Syndrome&ClassNAK != 0
	}
	return false
}
