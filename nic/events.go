package nic

import "softroce/internal/ib"

// An Event is an asynchronous event. At most one of QP, CQ and SRQ is set: the object that it is
// about.
type Event struct {
	Type ib.EventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port int // 1 for events of the port, else 0
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
