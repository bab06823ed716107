package wire

import (
	"math/rand/v2"
	"slices"
	"time"

	"softroce/packet"
)

// ruleState is a rule at work.
type ruleState struct {
	*FaultRule
	rnd    *rand.Rand
	count  FaultCount
	free   int64 // when the cable of a rate is free again
	queued int   // packets that wait for the rate
}

// A judge decides what becomes of each packet.
type judge struct {
	rules []*ruleState
	start int64 // time of the first call
	began bool
	sees  Direction // of any rule
}

func newJudge(p *FaultProgram) judge {
	j := judge{}
	for i := range p.Rules {
		r := p.Rules[i]
		// A generator for each rule: another rule does not change what this one picks.
		s := &ruleState{FaultRule: &r, rnd: rand.New(rand.NewPCG(p.Seed, uint64(i)))}
		s.count.Rule = r
		j.rules = append(j.rules, s)
		if r.Direction == 0 {
			j.sees = Sent | Received
		}
		j.sees |= r.Direction
	}
	return j
}

func (j *judge) begin(now int64) {
	if !j.began {
		j.start, j.began = now, true
	}
}

// A verdict is what becomes of a packet.
type verdict struct {
	drop    bool
	changed bool // flip, mark or fields
	flip    uint32
	mark    bool
	fields  []*ruleState
	copies  int
	due     int64
	by      int
	limit   int64
	rate    *ruleState
	holder  *ruleState // the first that wants the packet or copies of it kept
}

// plain says that the packet goes on as if there were no Fault.
func (v *verdict) plain(now int64) bool {
	return !v.changed && v.copies == 0 && v.by == 0 && v.due <= now
}

// decide asks the rules in their order. room is how many packets may still be held.
func (j *judge) decide(now int64, s *subject, v *verdict, room int) {
	*v = verdict{due: now, fields: v.fields[:0]}
	for _, r := range j.rules {
		if !r.picks(s, time.Duration(now-j.start)) {
			continue
		}
		r.act(s, v, now)
		if v.drop || v.by > 0 {
			break
		}
	}
	if v.drop || v.holder == nil {
		return
	}
	if room < 1+v.copies {
		v.drop = true
		v.holder.count.Overflowed++
	} else if v.rate != nil {
		v.rate.queued += 1 + v.copies
	}
}

// picks counts a packet that meets the rule's conditions and reports whether the rule acts.
func (r *ruleState) picks(s *subject, since time.Duration) bool {
	if !r.meets(s, since) {
		return false
	}
	c := &r.count
	c.Matched++
	if c.Matched <= r.Skip || r.Count != 0 && c.Acted >= r.Count {
		return false
	}
	n := c.Matched - r.Skip
	if len(r.Nth) != 0 && !slices.Contains(r.Nth, n) || r.Every != 0 && n%r.Every != 0 {
		return false
	}
	if r.Chance != 0 && r.rnd.Float64() >= r.Chance {
		return false
	}
	c.Acted++
	return true
}

// act adds what the rule does to a verdict.
func (r *ruleState) act(s *subject, v *verdict, now int64) {
	switch r.Action {
	case FaultDuplicate, FaultReorder, FaultDelay, FaultRate:
		if v.holder == nil {
			v.holder = r
		}
	}
	switch r.Action {
	case FaultDrop:
		v.drop = true
	case FaultDuplicate:
		v.copies += max(1, r.Copies)
	case FaultReorder:
		v.by, v.limit = max(1, r.By), now+int64(r.Within)
		if r.Within == 0 {
			v.limit = now + int64(DefaultWithin)
		}
	case FaultDelay:
		v.due += int64(r.Delay)
		if r.Jitter > 0 {
			v.due += r.rnd.Int64N(2*int64(r.Jitter)+1) - int64(r.Jitter)
		}
		v.due = max(v.due, now)
	case FaultCorrupt:
		v.flip, v.changed = r.bit(s.n), true
	case FaultMark:
		v.mark, v.changed = true, true
	case FaultSet:
		v.fields, v.changed = append(v.fields, r), true
	case FaultRate:
		r.queue(s, v)
	}
}

// bit chooses a bit of a packet of n bytes and its ICRC; one that ICRC covers, unless
// the rule names it.
func (r *ruleState) bit(n int) uint32 {
	if r.Bit != 0 {
		return uint32(r.Bit)
	}
	bits := 8 * (n + packet.ICRCLen)
	b := r.rnd.IntN(bits - 8)
	if b >= 8*bthVariant {
		b += 8
	}
	return uint32(b + 1)
}

// queue lets the packet wait until the cable has carried it and those before it.
func (r *ruleState) queue(s *subject, v *verdict) {
	limit := r.Queue
	if limit == 0 {
		limit = DefaultQueue
	}
	if r.queued >= limit {
		r.count.Overflowed++
		v.drop = true
		return
	}
	bits := 8 * uint64(packet.EthernetLen+ipLen(s.n, s.dst.Is4()))
	begin := max(v.due, r.free)
	r.free = begin + int64(bits*uint64(time.Second)/max(1, r.Rate))
	v.due, v.rate = r.free, r
}
