package fault

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"softroce/internal/ib"
)

// A CompletionRule makes work requests fail, or their completions late, or refuses peers access to
// memory. A work request or an access matches if it meets every condition that is set. The
// selection then picks among those that match.
type CompletionRule struct {
	Source

	Access    bool          // it refuses accesses, and does nothing to work requests
	Status    ib.WCStatus   // with which the work request completes, not carried out; 0: it does not fail
	VendorErr uint32        // 0: that of the NIC
	Delay     time.Duration // of the completion, and of those behind it in its CQ
	Hold      bool          // they wait until the rule is removed

	// Conditions.
	ClientConditions
	QPs     []uint32      // the program's own queue pairs
	Opcodes []ib.WCOpcode // of completions; WCRecv is every receive
	RKeys   []uint32      // of the access

	Selection
}

// A WorkRequest is one that the NIC takes from a queue, or that is complete.
type WorkRequest struct {
	PID      int // of the program
	Comm     string
	QPN      uint32
	Opcode   ib.WCOpcode // WCRecv for every receive
	Reliable bool        // the service acknowledges messages
}

// A RemoteAccess is one of a peer to the memory of a program.
type RemoteAccess struct {
	PID  int // of the program
	Comm string
	QPN  uint32 // of the program
	RKey uint32
}

func (r *CompletionRule) matchesAccess(a *RemoteAccess, since time.Duration) bool {
	return r.Access && r.ClientConditions.matches(r.NIC, a.PID, a.Comm, since) &&
		(len(r.QPs) == 0 || slices.Contains(r.QPs, a.QPN)) &&
		(len(r.RKeys) == 0 || slices.Contains(r.RKeys, a.RKey))
}

func (r *CompletionRule) matches(w *WorkRequest, since time.Duration) bool {
	return !r.Access && r.ClientConditions.matches(r.NIC, w.PID, w.Comm, since) &&
		(len(r.QPs) == 0 || slices.Contains(r.QPs, w.QPN)) &&
		(len(r.Opcodes) == 0 || slices.Contains(r.Opcodes, w.Opcode)) &&
		(r.Status == ib.WCSuccess || slices.Contains(statuses(w.Opcode), r.Status) && (w.Reliable || !fromReply(r.Status)))
}

// completionOpcodes are the values of the condition "opcode" of rules for completions.
var completionOpcodes = func() map[string]ib.WCOpcode {
	m := map[string]ib.WCOpcode{}
	for _, o := range []ib.WCOpcode{ib.WCSend, ib.WCRDMAWrite, ib.WCRDMARead, ib.WCCompSwap, ib.WCFetchAdd, ib.WCBindMW, ib.WCLocalInv,
		ib.WCFlush, ib.WCAtomicWrite, ib.WCRecv} {
		m[strings.ToLower(o.String())] = o
	}
	return m
}()

// statuses returns the errors that a work request can complete with by itself: not the flush that
// follows an error of another one.
func statuses(o ib.WCOpcode) []ib.WCStatus {
	l := []ib.WCStatus{ib.WCLocQPOpErr, ib.WCLocProtErr, ib.WCFatalErr, ib.WCGeneralErr}
	switch o {
	case ib.WCBindMW, ib.WCLocalInv:
		return append(l, ib.WCMWBindErr)
	case ib.WCRecv:
		return append(l, ib.WCLocLenErr, ib.WCLocAccessErr, ib.WCRemAbortErr)
	}
	l = append(l, ib.WCLocLenErr, ib.WCRemInvReqErr, ib.WCRemAccessErr, ib.WCRemOpErr, ib.WCRetryExcErr, ib.WCRemAbortErr, ib.WCRespTimeoutErr)
	if o == ib.WCSend || o == ib.WCRDMAWrite {
		return append(l, ib.WCRNRRetryExcErr)
	}
	return append(l, ib.WCBadRespErr)
}

// fromReply reports whether a send work request has a status because of a reply, or because there
// is none.
func fromReply(s ib.WCStatus) bool {
	switch s {
	case ib.WCRemInvReqErr, ib.WCRemAccessErr, ib.WCRemOpErr, ib.WCRetryExcErr, ib.WCRespTimeoutErr, ib.WCRNRRetryExcErr, ib.WCBadRespErr:
		return true
	}
	return false
}

// Completions applies the rules for completions of one NIC. Its methods are for one goroutine.
type Completions struct {
	// OnAct, if it is not nil, is called when a rule acts on a work request, with true the first
	// time.
	OnAct func(r *CompletionRule, first bool, w WorkRequest)

	rules []*completionState
}

// completionState is a rule with its random numbers and what it has counted.
type completionState struct {
	*CompletionRule
	choice
	start int64 // from which its times count
}

// Add adds the rules for completions of a program, which Program.For has returned. Their times
// count from now.
func (c *Completions) Add(now int64, p *Program) {
	for i := range p.Completions {
		r := p.Completions[i]
		rnd := rand.New(rand.NewPCG(p.Seed, completionRules|uint64(cmp.Or(r.stream, i))))
		c.rules = append(c.rules, &completionState{&r, choice{rnd: rnd}, now})
	}
}

// completionRules keeps the random numbers of these rules apart from those of other rules.
const completionRules = 2 << 32

// Clear removes all rules.
func (c *Completions) Clear() { c.rules = nil }

// Remove removes the rule with an ID and reports whether there was one.
func (c *Completions) Remove(id int) bool {
	n := len(c.rules)
	c.rules = slices.DeleteFunc(c.rules, func(r *completionState) bool { return r.ID == id })
	return len(c.rules) < n
}

// Empty reports whether there is no rule.
func (c *Completions) Empty() bool { return len(c.rules) == 0 }

// Has reports whether r is one of the rules.
func (c *Completions) Has(r *CompletionRule) bool {
	return slices.ContainsFunc(c.rules, func(s *completionState) bool { return s.CompletionRule == r })
}

// Fail returns the first rule by which a work request fails that the NIC takes from its queue, or
// nil.
func (c *Completions) Fail(now int64, w *WorkRequest) *CompletionRule {
	for _, r := range c.rules {
		if r.Status != ib.WCSuccess && c.selects(r, w, now) {
			return r.CompletionRule
		}
	}
	return nil
}

// Late returns how long the completion of a work request waits, and the first rule that holds it,
// or nil.
func (c *Completions) Late(now int64, w *WorkRequest) (delay time.Duration, held *CompletionRule) {
	for _, r := range c.rules {
		if r.Status == ib.WCSuccess && c.selects(r, w, now) {
			delay += r.Delay
			if r.Hold {
				return delay, r.CompletionRule
			}
		}
	}
	return delay, nil
}

// Refuse returns the rule that refuses an access, and whether it is the first that it refuses; nil:
// none does.
func (c *Completions) Refuse(now int64, a *RemoteAccess) (r *CompletionRule, first bool) {
	for _, r := range c.rules {
		if r.matchesAccess(a, since(r.start, now)) && r.choose(&r.Selection) {
			return r.CompletionRule, r.acted == 1
		}
	}
	return nil, false
}

// RefusesAccess reports whether there is a rule that refuses accesses.
func (c *Completions) RefusesAccess() bool {
	return slices.ContainsFunc(c.rules, func(r *completionState) bool { return r.Access })
}

// selects counts a work request that matches a rule, and reports whether the rule acts on it.
func (c *Completions) selects(r *completionState, w *WorkRequest, now int64) bool {
	if !r.matches(w, since(r.start, now)) || !r.choose(&r.Selection) {
		return false
	}
	if c.OnAct != nil {
		c.OnAct(r.CompletionRule, r.acted == 1, *w)
	}
	return true
}

// CompletionCounters counts what a rule did with the work requests of a NIC.
type CompletionCounters struct {
	Rule           *CompletionRule
	Matched, Acted uint64
}

// Counters returns what each rule did, in the order of the program.
func (c *Completions) Counters() (l []CompletionCounters) {
	for _, r := range c.rules {
		l = append(l, CompletionCounters{r.CompletionRule, r.matched, r.acted})
	}
	return l
}
