package nic

import "fmt"

// An EventType is enum ibv_event_type.
type EventType uint32

// Events that a device gives.
const (
	EventCQErr           EventType = 0
	EventQPFatal         EventType = 1
	EventQPRequestErr    EventType = 2
	EventQPAccessErr     EventType = 3
	EventCommEstablished EventType = 4
	EventSQDrained       EventType = 5
	EventPathMigrated    EventType = 6
	EventPathMigErr      EventType = 7
	EventDeviceFatal     EventType = 8
	EventPortActive      EventType = 9
	EventPortErr         EventType = 10
	EventPKeyChange      EventType = 12
	EventSRQErr          EventType = 14
	EventSRQLimit        EventType = 15
	EventLastWQEReached  EventType = 16
	EventGIDChange       EventType = 18
)

var eventNames = map[EventType]string{
	EventCQErr: "CQ_ERR", EventQPFatal: "QP_FATAL", EventQPRequestErr: "QP_REQ_ERR",
	EventQPAccessErr: "QP_ACCESS_ERR", EventCommEstablished: "COMM_EST", EventSQDrained: "SQ_DRAINED",
	EventPathMigrated: "PATH_MIG", EventPathMigErr: "PATH_MIG_ERR", EventDeviceFatal: "DEVICE_FATAL",
	EventPortActive: "PORT_ACTIVE", EventPortErr: "PORT_ERR", EventPKeyChange: "PKEY_CHANGE", EventSRQErr: "SRQ_ERR",
	EventSRQLimit: "SRQ_LIMIT_REACHED", EventLastWQEReached: "QP_LAST_WQE_REACHED", EventGIDChange: "GID_CHANGE",
}

func (t EventType) String() string {
	if s, ok := eventNames[t]; ok {
		return s
	}
	return fmt.Sprintf("EventType(%d)", uint32(t))
}

// An Event is an asynchronous event. Of QP, CQ and SRQ the one it is about is set, if any.
type Event struct {
	Type EventType
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
