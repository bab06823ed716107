package nic

import "softroce/internal/ib"

// An Event is an asynchronous event. Of QP, CQ and SRQ the one it is about is set, if any.
type Event struct {
	Type ib.EventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port int // 1 for events of the port
}

// An EventSink hears what happens to a context. Its methods run on the engine: they
// do not block and do not call back into the engine.
type EventSink interface {
	// AsyncEvent is told of each asynchronous event.
	AsyncEvent(Event)

	// Killed says that the engine closed the context because its client broke the
	// rules of its rings. No object of it is left; the control socket should be closed.
	Killed(reason error)
}
