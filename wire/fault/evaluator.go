package fault

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"softroce/packet"
)

// RuleCounters counts what a rule did.
type RuleCounters struct {
	Rule       Rule
	Matched    uint64 // packets that met its conditions
	Acted      uint64 // packets that it selected
	Overflowed uint64 // selected packets that were dropped because a queue was full
}

// An Evaluator applies a program to the packets of one link. Its methods are for one goroutine.
type Evaluator struct {
	// OnFirst, if it is not nil, is called when a rule acts for the first time. It must not block.
	OnFirst func(*Rule)

	rules      []*ruleState
	directions Direction
	began      bool
}

// ruleState is a rule with its counters and its random numbers.
type ruleState struct {
	*Rule
	choice
	start int64 // from which its times count
	count RuleCounters
	queue RateQueue // of a Rate rule
}

// A RateQueue is the packets that a Rate rule delays until its virtual wire has sent them.
type RateQueue struct {
	free   int64        // when the wire has sent all of them
	queued atomic.Int64 // the slices of a NIC share the queue
}

// Remove notes that a packet has left the queue.
func (q *RateQueue) Remove() { q.queued.Add(-1) }

// NewEvaluator returns an evaluator of a program; nil is the empty program.
func NewEvaluator(p *Program) Evaluator {
	e := Evaluator{}
	if p != nil {
		e.Add(0, p)
	}
	return e
}

// Add adds the rules of a program behind the others. Their times count from now; before the first
// call of Begin, from that.
func (e *Evaluator) Add(now int64, p *Program) {
	for i := range p.Rules {
		r := p.Rules[i]
		// Each rule has a generator, so that adding a rule does not change what another one
		// selects.
		s := &ruleState{Rule: &r, choice: choice{rnd: rand.New(rand.NewPCG(p.Seed, uint64(cmp.Or(r.stream, i))))}, start: now}
		s.count.Rule = r
		e.rules = append(e.rules, s)
		e.directions |= cmp.Or(r.Direction, Sent|Received)
	}
}

// Remove removes the rule with an ID and reports whether there was one.
func (e *Evaluator) Remove(id int) bool {
	n := len(e.rules)
	e.rules = slices.DeleteFunc(e.rules, func(r *ruleState) bool { return r.ID == id })
	e.directions = 0
	for _, r := range e.rules {
		e.directions |= cmp.Or(r.Direction, Sent|Received)
	}
	return len(e.rules) < n
}

// Begin sets the time from which the rules' times count, if it is the first call.
func (e *Evaluator) Begin(now int64) {
	if e.began {
		return
	}
	e.began = true
	for _, r := range e.rules {
		r.start = now
	}
}

// AppliesTo reports whether any rule may match packets of a direction.
func (e *Evaluator) AppliesTo(d Direction) bool { return e.directions&d != 0 }

// Counters returns what each rule did, in the order of the program.
func (e *Evaluator) Counters() []RuleCounters {
	var c []RuleCounters
	for _, r := range e.rules {
		c = append(c, r.count)
	}
	return c
}

// A Verdict is what the rules decided about a packet. The copies of a packet share its verdict.
type Verdict struct {
	Drop    bool
	FlipBit uint32 // 1 + the number of a bit to invert, from the first bit of the BTH; 0: none
	Mark    bool   // set the ECN bits to "congestion experienced"
	Copies  int    // to pass in addition to the packet

	Due          int64 // not to pass before
	Stalled      int   // ID of the Stall rule that Due is from; 0: none
	Reorder      int   // later packets of the flow that have to pass first
	ReorderUntil int64 // when it no longer waits for them

	Queue *RateQueue // has its Remove called when the packet passes; nil: none

	// Rules have acted, in this order. Overflowed is the one of them by which the packet is
	// dropped, because a queue is full; nil: none. Both are valid until the next Evaluate.
	Rules      []*Rule
	Overflowed *Rule

	set    []*ruleState // Set rules
	holder *ruleState   // the first rule that needs the packet or copies of it queued
}

// Changes reports whether the packet's bytes or marks change.
func (v *Verdict) Changes() bool { return v.FlipBit != 0 || v.Mark || len(v.set) != 0 }

// Passes reports whether the packet goes on at once, once, and as it is.
func (v *Verdict) Passes(now int64) bool {
	return !v.Drop && !v.Changes() && v.Copies == 0 && v.Reorder == 0 && v.Due <= now
}

// SetFields writes the fields of Set rules to a packet that begins with head.
func (v *Verdict) SetFields(head []byte) {
	for _, r := range v.set {
		r.Field.Put(head, r.Value)
	}
}

// Evaluate sets v to what the rules decide about a packet. room is the number of packets that can
// still be queued: a packet that needs more is dropped.
func (e *Evaluator) Evaluate(now int64, p *PacketInfo, v *Verdict, room int) {
	*v = Verdict{Due: now, set: v.set[:0], Rules: v.Rules[:0]}
	for _, r := range e.rules {
		if !r.selects(p, now) {
			continue
		}
		v.Rules = append(v.Rules, r.Rule)
		if r.acted == 1 && e.OnFirst != nil {
			e.OnFirst(r.Rule)
		}
		r.act(p, v, now)
		if v.Drop || v.Reorder > 0 {
			break
		}
	}
	if v.Drop || v.holder == nil {
		return
	}
	if room < 1+v.Copies {
		v.Drop, v.Overflowed = true, v.holder.Rule
		v.holder.count.Overflowed++
	} else if v.Queue != nil {
		v.Queue.queued.Add(int64(1 + v.Copies))
	}
}

// selects counts a packet that matches the rule and reports whether the rule selects it.
func (r *ruleState) selects(p *PacketInfo, now int64) bool {
	if !r.matches(p, since(r.start, now)) {
		return false
	}
	acts := r.choose(&r.Selection)
	r.count.Matched, r.count.Acted = r.matched, r.acted
	return acts
}

// since returns the time that has passed since a rule was added. A step of the engine that adds a
// rule goes on with the time at which the step began, which is earlier.
func since(start, now int64) time.Duration { return time.Duration(max(0, now-start)) }

// A choice is the state of a Selection.
type choice struct {
	rnd            *rand.Rand
	matched, acted uint64
}

// choose counts a match and reports whether s picks it.
func (c *choice) choose(s *Selection) bool {
	c.matched++
	if c.matched <= s.Skip || s.Count != 0 && c.acted >= s.Count {
		return false
	}
	n := c.matched - s.Skip
	if len(s.Nth) != 0 && !slices.Contains(s.Nth, n) || s.Every != 0 && n%s.Every != 0 {
		return false
	}
	if s.Chance != 0 && c.rnd.Float64() >= s.Chance {
		return false
	}
	c.acted++
	return true
}

// act adds the rule's action to a verdict.
func (r *ruleState) act(p *PacketInfo, v *Verdict, now int64) {
	switch r.Action {
	case Duplicate, Reorder, Delay, Rate, Stall:
		if v.holder == nil {
			v.holder = r
		}
	}
	switch r.Action {
	case Drop:
		v.Drop = true
	case Duplicate:
		v.Copies += max(1, r.Copies)
	case Reorder:
		v.Reorder, v.ReorderUntil = max(1, r.By), now+int64(r.Within)
		if r.Within == 0 {
			v.ReorderUntil = now + int64(DefaultWithin)
		}
	case Delay:
		v.Due += int64(r.Delay)
		if r.Jitter > 0 {
			v.Due += r.rnd.Int64N(2*int64(r.Jitter)+1) - int64(r.Jitter)
		}
		v.Due = max(v.Due, now)
	case Corrupt:
		v.FlipBit = r.bit(p.Len)
	case Mark:
		v.Mark = true
	case Set:
		v.set = append(v.set, r)
	case Rate:
		r.enqueue(p, v)
	case Stall:
		if end := r.start + int64(r.Until); end > v.Due {
			v.Due, v.Stalled = end, r.ID
		}
	}
}

// bit chooses a bit of a packet of n bytes and its ICRC, and returns its number plus one. Without a
// bit in the rule, it is one that the ICRC covers.
func (r *ruleState) bit(n int) uint32 {
	if r.Bit != 0 {
		return uint32(r.Bit)
	}
	bits := 8 * (n + packet.ICRCLen)
	b := r.rnd.IntN(bits - 8)
	if b >= 8*packet.BTHMaskedByte {
		b += 8
	}
	return uint32(b + 1)
}

// enqueue delays the packet until the rule's virtual wire has sent it and the packets before it.
func (r *ruleState) enqueue(p *PacketInfo, v *Verdict) {
	limit := r.Queue
	if limit == 0 {
		limit = DefaultQueue
	}
	q := &r.queue
	if q.queued.Load() >= int64(limit) {
		r.count.Overflowed++
		v.Drop, v.Overflowed = true, r.Rule
		return
	}
	bits := 8 * uint64(p.FrameLen)
	begin := max(v.Due, q.free)
	q.free = begin + int64(bits*uint64(time.Second)/max(1, r.Rate))
	v.Due, v.Queue = q.free, q
}
