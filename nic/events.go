package nic

import (
	"slices"

	"softroce/internal/ib"
)

// An Event is an asynchronous event. At most one of QP, CQ and SRQ is set: the object that it is
// about.
type Event struct {
	Type ib.EventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port int // of events of a port or the device, else 0
}

// A raisedEvent waits for the end of the step.
type raisedEvent struct {
	ctx *Context
	Event
}

// event reports e to the client. An event of an object may refer to completions, as
// QP_LAST_WQE_REACHED and SQ_DRAINED do, so it is delivered after those of the step are published.
func (c *Context) event(e Event) {
	switch {
	case c.events == nil:
	case e.QP == nil && e.CQ == nil && e.SRQ == nil:
		c.events.AsyncEvent(e)
	default:
		r := raisedEvent{c, e}
		first := c.device.engine
		c.device.onControl(func() { first.raised, first.unusual = append(first.raised, r), true })
	}
}

// deliverEvents delivers the events that the step has raised, except those of objects and contexts
// that have been destroyed, and calls what Repeat was given.
func (e *Engine) deliverEvents() {
	for i := range e.raised {
		if r := &e.raised[i]; r.ctx.events != nil && !r.isStale() {
			r.ctx.events.AsyncEvent(r.Event)
		}
	}
	clear(e.raised)
	e.raised = e.raised[:0]
	if len(e.repeated) > 0 {
		e.repeated = slices.DeleteFunc(e.repeated, func(f func() bool) bool { return !f() })
	}
}

// Repeat calls f at the end of each step until it returns false. Only the engine may call it. An
// EventSink uses it when it has no room for an event.
func (e *Engine) Repeat(f func() (again bool)) {
	e.repeated, e.unusual = append(e.repeated, f), true
}

// isStale reports whether the object of e has been destroyed.
func (e *Event) isStale() bool {
	return e.QP != nil && e.QP.ctx == nil || e.CQ != nil && e.CQ.ctx == nil || e.SRQ != nil && e.SRQ.ctx == nil
}

// An EventSink receives the events of a context. Its methods run on the engine: they must not block
// or call the engine.
type EventSink interface {
	// AsyncEvent is called for each asynchronous event.
	AsyncEvent(Event)

	// Killed is called after the engine has closed the context because its client broke the rules
	// of its rings. No object of it is left; the control socket should be closed.
	Killed(reason error)
}
