package nic

import (
	"softroce/internal/ib"
	"softroce/transport"
)

// completions passes the completions of one step from the transport to the programs. A completion
// goes through these states:
//
//	deferred   in a list of the engine, because writes to memory that were queued before it are
//	           not carried out. Its data may not be in place yet, and the write may fail. Or
//	           because other engines may still use the window that a bind has replaced. Events
//	           of its queue pair that follow wait in the list, too.
//	staged     in the CQ's ring, beyond the producer index: the program does not see it.
//	published  below the producer index: the program may poll it. If the CQ was armed, the ring
//	           counts a completion event.
//	notified   the program's completion channel was signaled.
//
//	from       to         by              when
//	(new)      deferred   complete        a write is queued or another completion is deferred,
//	                                      or a bind has other slices to wait for
//	(new)      staged     complete        otherwise
//	deferred   staged     stageDeferred   the writes are carried out; an error if one failed
//	staged     published  publish(false)  after the writes of a received batch, or of the step
//	staged     published  publish(true)   after the links' Send, if memory is released
//	published  notified   notify          at the end of the step, if an event was counted
//
// A program that sees a completion finds its data in memory, and the memory that it releases is not
// read any more. A sleeping program is woken after the acknowledgements of the step have left, and
// finds everything that the step published, in all of its CQs.
type completions struct {
	staged   []*CQ // CQs in which the step has staged something
	deferred []deferred
	faults   []writeFault
	overrun  []*CQ // CQs that had no room
}

func (p *completions) empty() bool {
	return len(p.staged) == 0 && len(p.deferred) == 0 && len(p.faults) == 0 && len(p.overrun) == 0
}

// A deferred completion waits for the writes that were queued before it, and for a revocation. A
// deferred event waits for the completions before it.
type deferred struct {
	q          *QP
	generation uint32 // QP.generation at the time
	cq         *CQ
	revocation *revocation  // QP.revocation at the time
	written    bool         // it does not wait for writes
	event      ib.EventType // 0: it is a completion
	transport.Completion
}

// hold returns what holds the context that gets it, nil if nothing does.
func (d *deferred) hold() *hold {
	if d.event != 0 {
		return d.q.part.hold
	}
	return d.cq.holdOf(d.q.device)
}

// A writeFault is a side of a queue pair one of whose writes failed.
type writeFault struct {
	by       *transport.Writer
	reported bool // by a completion; the completions after that one are flushed
}

// complete stages a completion of q, or defers it.
func (e *Engine) complete(q *QP, cq *CQ, c *transport.Completion) {
	if p := &e.completions; len(p.deferred) > 0 || e.io.HasPending() || q.held() || cq.holdOf(q.device) != nil ||
		c.Opcode == ib.WCBindMW && !q.revocation.done() {
		e.completing, q.lastDeferred = true, 0
		p.deferred = append(p.deferred, deferred{q: q, generation: q.generation, cq: cq, revocation: q.revocation, Completion: *c})
		return
	}
	if c.Recv || c.Signaled {
		cq.stage(e, q, c)
	}
}

// event reports an event of q behind its completions. Those of a slice may be staged by a control
// operation, and are published by the slice's engine.
func (e *Engine) event(q *QP, t ib.EventType) {
	p := &e.completions
	switch {
	case len(p.deferred) == 0 && !q.held() && len(q.device.slices) == 1:
		q.ctx.event(Event{Type: t, QP: q})
	case q.lastDeferred != t: // else one is enough, or a client could defer any number
		e.completing, q.lastDeferred = true, t
		p.deferred = append(p.deferred, deferred{q: q, generation: q.generation, revocation: q.revocation, written: true, event: t})
	}
}

// flush carries out the operations on memory that are queued, stages the completions that waited
// for them, and publishes. It runs after each batch of received frames, whose bytes writes may
// refer to, and before frames are sent.
func (e *Engine) flush() {
	if e.io.HasPending() {
		e.flushPending()
	}
	e.settle()
}

func (e *Engine) flushPending() {
	e.watchdog.flush.Add(1)
	e.io.Flush()
	e.endedSenders = e.endedSenders[:0]
}

// settle handles the results of flushed operations.
func (e *Engine) settle() {
	if e.io.HasOutcomes() {
		e.io.Results(e.atomicDone)
		e.io.Failed(e.failed)
	}
	if !e.completing {
		return
	}
	e.stageDeferred()
	for p := &e.completions; len(p.overrun) > 0; {
		q := p.overrun[len(p.overrun)-1]
		p.overrun = p.overrun[:len(p.overrun)-1]
		if q.ctx != nil {
			q.ctx.device.onControl(q.fail)
		}
	}
	e.publish(false)
}

// atomicDone passes the result of an atomic operation to the queue pair that replies with it.
func atomicDone(tag any, id, original uint64) {
	by := tag.(*transport.Writer)
	q := by.QP.UserData().(*QP)
	if q.ctx == nil || by.Stale() {
		return
	}
	q.t.AtomicDone(id, original)
	q.device.tx.activate(q)
}

// writeFailed fails the queue pair one of whose writes failed after the transport had accepted the
// data.
func (e *Engine) writeFailed(tag any, _ error) {
	by := tag.(*transport.Writer)
	q := by.QP.UserData().(*QP)
	if q.ctx == nil || by.Stale() {
		return
	}
	p := &e.completions
	reported := false
	for i := range p.deferred {
		d := &p.deferred[i]
		reported = reported || d.q == q && !d.written && d.reportsData(by)
	}
	e.completing = true
	p.faults = append(p.faults, writeFault{by: by})
	q.t.MemoryFault(q.device.env(q), by, reported)
	q.stateChanged()
	q.device.tx.activate(q)
}

// reportsData reports whether d says that data which a side of a queue pair has written is in
// memory.
func (d *deferred) reportsData(by *transport.Writer) bool {
	if d.Status != ib.WCSuccess || d.Recv == by.Requester {
		return false
	}
	return d.Recv || d.Opcode == ib.WCRDMARead || d.Opcode == ib.WCCompSwap || d.Opcode == ib.WCFetchAdd
}

// stageDeferred stages the deferred completions after the writes were carried out.
func (e *Engine) stageDeferred() {
	p := &e.completions
	if len(p.deferred) == 0 && len(p.faults) == 0 {
		return
	}
	kept := p.deferred[:0]
	for i := range p.deferred {
		d := &p.deferred[i]
		if h := d.hold(); h != nil {
			h.deferred = append(h.deferred, *d)
			continue
		}
		if d.q.ctx != nil && d.q.held() {
			kept = append(kept, *d)
			continue
		}
		if d.generation != d.q.generation && (d.event != 0 || !d.outlives()) {
			continue // the queue pair was reset or destroyed meanwhile
		}
		for k := range p.faults {
			p.faults[k].apply(d)
		}
		if !d.revocation.done() {
			d.written = true
			kept = append(kept, *d)
			continue
		}
		switch {
		case d.event != 0:
			d.q.lastDeferred = 0
			d.q.ctx.event(Event{Type: d.event, QP: d.q})
		case d.Recv || d.Signaled:
			d.cq.stage(e, d.q, &d.Completion)
		}
	}
	clear(p.deferred[len(kept):])
	clear(p.faults)
	p.deferred, p.faults = kept, p.faults[:0]
}

// outlives makes d a flushed completion, and returns true, if it concerns a program that does not
// know of the end of the queue pair: a receive of an SRQ of XRC. No ACK of its message has left.
func (d *deferred) outlives() bool {
	if d.q.init.Type != ib.QPTypeXRCRecv {
		return false
	}
	if d.Status == ib.WCSuccess {
		d.Status = ib.WCWRFlushErr
		d.q.device.counters.RespCQEFlush++
	}
	return true
}

// apply makes d an error if it is of the side whose write failed. The first completion that reports
// data gets a local protection error, that of a WRITE with immediate a local access error (IBTA
// 11.6.2), signaled or not. Those after it are flushed, as after any error.
func (f *writeFault) apply(d *deferred) {
	if d.q.t != f.by.QP || d.Recv == f.by.Requester || d.written || d.Status != ib.WCSuccess {
		return
	}
	switch {
	case f.reported:
		d.Status = ib.WCWRFlushErr
	case d.reportsData(f.by):
		d.Status, f.reported = ib.WCLocProtErr, true
		if d.Opcode == ib.WCRecvRDMAWithImm {
			d.Status = ib.WCLocAccessErr
		}
	default:
		return
	}
	d.Signaled = true
	c := &d.q.device.counters
	switch {
	case d.Status == ib.WCWRFlushErr && d.Recv:
		c.RespCQEFlush++
	case d.Status == ib.WCWRFlushErr:
		c.ReqCQEFlush++
	case d.Recv:
		c.RespCQEError++
	default:
		c.ReqCQEError++
	}
}

// publish makes staged completions visible to programs. A CQ with a completion staged that releases
// memory (QP.releasesMemory) waits for the end of the step (last): then the link has the frames, or
// txState.copyWaiting has copied their payload.
func (e *Engine) publish(last bool) {
	if !e.completing {
		return
	}
	for _, q := range e.completions.staged {
		if !q.afterSend || last {
			q.publish(e)
		}
	}
}

// notify signals the completion channels of the CQs that counted an event. It is the last phase of
// a step: the woken program may preempt the engine and reply, and by then the acknowledgement of
// what it received has left. It also finds what its other CQs got in the same step. Programs with
// two CQs on one channel rely on a send's completion being there before that of the reply.
func (e *Engine) notify() {
	if !e.completing {
		return
	}
	p := &e.completions
	for _, q := range p.staged {
		q.notify(e)
	}
	clear(p.staged)
	p.staged = p.staged[:0]
	e.completing = !p.empty()
}
