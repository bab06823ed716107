package nic

import (
	"fmt"
	"slices"

	"softroce/internal/ib"
	"softroce/transport"
	"softroce/wire"
	"softroce/wire/fault"
)

// AddFaults adds the rules of a program for the packets and completions of the device.
func (d *Device) AddFaults(p *fault.Program) {
	p = p.For(d.name)
	d.completionFaults.Add(d.engine.Now(), p)
	d.refuseAccess()
	if len(p.Rules) == 0 {
		return
	}
	f, ok := d.link.(*wire.FaultLink)
	if !ok {
		f = wire.NewFaultLink(d.link, nil)
		f.SetOwner(d.owner)
		f.OnFirst(func(r *fault.Rule) { d.logRule(r.Source, r.String()) })
		d.link = f
		for _, s := range d.slices[1:] {
			s.link = f.Share(s.link)
		}
	}
	f.Add(d.engine.Now(), p)
}

// owner returns the program whose queue pair has a number, 0 if there is none.
func (d *whole) owner(qpn uint32) (pid int, comm string) {
	q := d.qps.get(qpn)
	if q == nil || q.ctx == nil {
		return 0, ""
	}
	return q.ctx.opt.PID, q.ctx.opt.Comm
}

// logRule logs that a rule has acted for the first time. The engine does not wait for the log.
func (d *whole) logRule(s fault.Source, rule string) {
	if d.log != nil {
		go d.log.Info("a rule of the fault program acts for the first time", "id", s.ID, "line", s.Line, "rule", rule, "nic", d.name)
	}
}

// Note gives a note to the captures of the device. It is for the goroutine of the engine.
func (d *Device) Note(n *fault.Note) { wire.NoterOf(d.link).Note(d.engine.Now(), 0, n) }

// workRequestRuleActed notes that a rule has acted on a work request, and logs it the first time.
func (d *Device) workRequestRuleActed(r *fault.CompletionRule, first bool, w fault.WorkRequest) {
	d = d.sliceOf(w.QPN)
	d.completionRuleActed(r, first, func() fault.Note {
		return fault.Note{PID: w.PID, Comm: w.Comm, QPN: w.QPN, Result: fmt.Sprintf("%v work request", w.Opcode)}
	})
}

// completionRuleActed notes what a rule has done, and logs it the first time.
func (d *Device) completionRuleActed(r *fault.CompletionRule, first bool, note func() fault.Note) {
	if first {
		d.logRule(r.Source, r.Text)
	}
	if wire.NoterOf(d.link).Noting() {
		n := note()
		n.Rule, n.Text = r.ID, r.Text
		d.Note(&n)
	}
}

// SetFaults replaces the rules for completions by those of a program.
func (d *Device) SetFaults(p *fault.Program) {
	d.completionFaults.Clear()
	d.completionFaults.Add(d.engine.Now(), p.For(d.name))
	d.refuseAccess()
}

// refuseAccess makes the rules for accesses apply, if there are any.
func (d *Device) refuseAccess() {
	d.table.Refuse = nil
	if d.completionFaults.RefusesAccess() {
		d.table.Refuse = d.refuses
	}
}

// refuses reports whether a rule refuses an access by a packet to queue pair qpn.
func (d *Device) refuses(qpn, rkey uint32) bool {
	q := d.qps.get(qpn)
	if q == nil {
		return false
	}
	d = q.device
	a := fault.RemoteAccess{PID: q.ctx.opt.PID, Comm: q.ctx.opt.Comm, QPN: qpn, RKey: rkey}
	r, first := d.completionFaults.Refuse(d.engine.now, &a)
	if r == nil {
		return false
	}
	d.completionRuleActed(r, first, func() fault.Note {
		return fault.Note{PID: a.PID, Comm: a.Comm, QPN: qpn, Result: fmt.Sprintf("access with R_Key %#x", rkey)}
	})
	return true
}

// RemoveFault removes a rule for packets or completions and reports whether there was one of this
// ID.
func (d *Device) RemoveFault(id int) bool {
	f, ok := d.link.(*wire.FaultLink)
	if d.completionFaults.Remove(id) {
		d.refuseAccess()
		return true
	}
	if !ok || !f.Remove(id) {
		return false
	}
	for _, s := range d.slices[1:] {
		s.link.(*wire.FaultLink).Release(id)
	}
	return true
}

// faultInfos lists the rules for packets and completions.
func (d *Device) faultInfos() (l []FaultInfo) {
	if f, ok := d.link.(*wire.FaultLink); ok {
		for _, c := range f.RuleCounters() {
			l = append(l, FaultInfo{c.Rule.ID, c.Rule.Line, c.Rule.String(), c.Matched, c.Acted, c.Overflowed})
		}
	}
	for _, c := range d.completionFaults.Counters() {
		l = append(l, FaultInfo{ID: c.Rule.ID, Line: c.Rule.Line, Rule: c.Rule.Text, Matched: c.Matched, Acted: c.Acted})
	}
	return l
}

// fault returns the fault of a work request of q that the engine takes from a queue of c. In ERR it
// would be flushed, with or without one.
func (q *QP) fault(c *Context, o ib.WCOpcode) transport.Fault {
	d := q.device
	if d.completionFaults.Empty() || q.t.State() == ib.QPSErr {
		return transport.Fault{}
	}
	w := q.workRequest(c, o)
	if r := d.completionFaults.Fail(d.engine.now, &w); r != nil {
		return transport.Fault{Status: r.Status, VendorErr: r.VendorErr}
	}
	return transport.Fault{}
}

// workRequest describes a work request of q, in a queue of c, to rules.
func (q *QP) workRequest(c *Context, o ib.WCOpcode) fault.WorkRequest {
	return fault.WorkRequest{PID: c.opt.PID, Comm: c.opt.Comm, QPN: q.qpn, Opcode: o, Reliable: q.init.Type.Reliable()}
}

// A lateCompletion waits because of a rule, or behind one that does.
type lateCompletion struct {
	deferred
	due  int64                 // not staged before
	held *fault.CompletionRule // nor while the device has this rule; nil: none
}

// isDue reports whether the completion waits no longer.
func (l *lateCompletion) isDue(now int64) bool {
	return l.due <= now && (l.held == nil || !l.q.device.completionFaults.Has(l.held))
}

// isLate adds a completion to those of q that wait, and returns true, if a rule makes it late or if
// others wait.
func (q *CQ) isLate(e *Engine, qp *QP, c *transport.Completion) bool {
	o := c.Opcode
	if c.Recv {
		o = ib.WCRecv
	}
	w := qp.workRequest(q.ctx, o)
	delay, held := qp.device.completionFaults.Late(e.now, &w)
	if len(q.late) == 0 {
		if delay == 0 && held == nil {
			return false
		}
		e.lateCQs, e.unusual = append(e.lateCQs, q), true
	}
	if uint32(len(q.late)) >= q.slots() {
		q.lose(e)
		return true
	}
	q.late = append(q.late, lateCompletion{deferred{q: qp, generation: qp.generation, cq: q, written: true, Completion: *c}, e.now + int64(delay), held})
	return true
}

// releaseLate writes the completions that no longer wait.
func (e *Engine) releaseLate() {
	e.lateCQs = slices.DeleteFunc(e.lateCQs, func(q *CQ) bool {
		if q.ctx == nil {
			return true
		}
		n := 0
		for n < len(q.late) {
			l := &q.late[n]
			ended := l.generation != l.q.generation && !l.outlives()
			if !ended && !l.isDue(e.now) {
				break
			}
			if !ended {
				q.write(e, l.q, &l.Completion)
			}
			n++
		}
		q.late = slices.Delete(q.late, 0, n)
		return len(q.late) == 0
	})
}

// lateDeadline returns when the next completion no longer waits, 0 if that is not known.
func (e *Engine) lateDeadline() (at int64) {
	for _, q := range e.lateCQs {
		if l := &q.late[0]; (l.held == nil || l.isDue(e.now)) && (at == 0 || l.due < at) {
			at = l.due
		}
	}
	return at
}
