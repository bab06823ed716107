package fault

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"softroce/internal/ib"
)

// A VerbRule makes control verbs of programs fail or take longer, rejects requests for connections
// to programs, makes the peers to which programs connect unreachable, or prolongs the timewait of
// connections. A call or event matches if it meets every condition that is set. The selection then
// picks among those that match.
type VerbRule struct {
	Source

	Verbs       []string // of VerbNames, or VerbConnection, VerbPeer or VerbTimewait
	Errno       syscall.Errno
	Delay       time.Duration   // before the verb is carried out or fails
	Hold        bool            // it waits until the rule is removed
	Close       bool            // the daemon closes the program's connection
	Reason      ib.RejectReason // with which a connection is rejected
	Unreachable bool            // the peer does not answer

	ClientConditions
	Selection
}

// What takes the place of a verb in a Call.
const (
	VerbConnection = "connection" // a request for a connection arrives for the program
	VerbPeer       = "peer"       // the program requests a connection, and its arguments are right
	VerbTimewait   = "timewait"   // a connection of the program has ended, and its timewait begins
)

// A Call is a call of a control verb, or one of the events of the constants above.
type Call struct {
	Verb string
	NIC  string // "" if none is open
	PID  int
	Comm string // name of the program
}

func (r *VerbRule) matches(c *Call, since time.Duration) bool {
	return slices.Contains(r.Verbs, c.Verb) && r.ClientConditions.matches(c.NIC, c.PID, c.Comm, since)
}

// Verbs applies rules for verbs. Its methods may be called from any goroutine.
type Verbs struct {
	start time.Time

	mu    sync.Mutex
	rules []*verbState
	last  int // ID
}

// NewVerbs returns a Verbs without rules. Times of rules count from this call.
func NewVerbs() *Verbs { return &Verbs{start: time.Now()} }

// verbState is a rule with its random numbers and what it has counted.
type verbState struct {
	*VerbRule
	choice
	start    time.Time
	removed  chan struct{}            // closed when it is removed
	by       string                   // see SetProgram
	counters map[string]*VerbCounters // by NIC
}

// VerbCounters counts what a rule did with the verbs on a NIC.
type VerbCounters struct {
	Rule           *VerbRule
	Matched, Acted uint64
}

// SetProgram replaces the rules for verbs on a NIC, or on all NICs together if its name is "", by
// those of a program.
func (v *Verbs) SetProgram(nic string, p *Program) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.remove(func(r *verbState) bool { return r.by == nic })
	v.add(nic, p, v.start)
}

// Number gives the rules of a program the next IDs, in the order of their lines, and returns the
// first and the last of them.
func (v *Verbs) Number(p *Program) (first, last int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := p.sources()
	slices.SortFunc(l, func(a, b *Source) int { return cmp.Compare(a.Line, b.Line) })
	first = v.last + 1
	for i, s := range l {
		v.last++
		s.ID, s.stream = v.last, v.last
		if p.seeded {
			s.stream = i + 1
		}
	}
	return first, v.last
}

// Add adds the rules for verbs of a program. Their times count from now.
func (v *Verbs) Add(p *Program) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.add("", p, time.Now())
}

// Remove removes the rule with an ID and reports whether there was one.
func (v *Verbs) Remove(id int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.remove(func(r *verbState) bool { return r.ID == id })
}

// remove removes the rules for which is holds, and reports whether there were any.
func (v *Verbs) remove(is func(*verbState) bool) (found bool) {
	v.rules = slices.DeleteFunc(v.rules, func(r *verbState) bool {
		if !is(r) {
			return false
		}
		close(r.removed)
		found = true
		return true
	})
	return found
}

func (v *Verbs) add(nic string, p *Program, start time.Time) {
	for i, r := range p.Verbs {
		if nic != "" && r.NIC != "" && r.NIC != nic {
			continue
		}
		r.NIC = cmp.Or(r.NIC, nic)
		rnd := rand.New(rand.NewPCG(p.Seed, verbRules|uint64(cmp.Or(r.stream, i))))
		v.rules = append(v.rules, &verbState{&r, choice{rnd: rnd}, start, make(chan struct{}), nic, map[string]*VerbCounters{}})
	}
}

// verbRules keeps the random numbers of rules for verbs apart from those of rules for packets.
const verbRules = 1 << 32

// A VerbVerdict is what the rules decided about a call.
type VerbVerdict struct {
	Delay time.Duration   // before it is carried out
	Held  <-chan struct{} // after the delay it waits until this is closed; nil: it does not
	Rules []*VerbRule     // that have acted; only the last one may do more than delay it
}

// Evaluate returns what the rules decide about a call. The first rule that does more than delay it
// ends the search; delays add up.
func (v *Verbs) Evaluate(c Call) (d VerbVerdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	for _, r := range v.rules {
		if !r.matches(&c, now.Sub(r.start)) {
			continue
		}
		n := r.counters[c.NIC]
		if n == nil {
			n = &VerbCounters{Rule: r.VerbRule}
			r.counters[c.NIC] = n
		}
		n.Matched++
		if !r.choose(&r.Selection) {
			continue
		}
		n.Acted++
		d.Rules = append(d.Rules, r.VerbRule)
		d.Delay += r.Delay
		if r.Hold {
			d.Held = r.removed
		}
		if r.Hold || r.Close || r.Errno != 0 || r.Reason != 0 || r.Unreachable {
			break
		}
	}
	return d
}

// Empty reports whether there is no rule.
func (v *Verbs) Empty() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.rules) == 0
}

// Counters returns what each rule did with the verbs on NICs, in the order of the program. The name
// "" stands for verbs of programs that have opened none. Rules for other NICs are left out.
func (v *Verbs) Counters(nics ...string) (l []VerbCounters) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range v.rules {
		if r.NIC != "" && !slices.Contains(nics, r.NIC) {
			continue
		}
		sum := VerbCounters{Rule: r.VerbRule}
		for _, nic := range nics {
			if n := r.counters[nic]; n != nil {
				sum.Matched += n.Matched
				sum.Acted += n.Acted
			}
		}
		l = append(l, sum)
	}
	return l
}
