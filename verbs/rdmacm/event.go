package rdmacm

import (
	"context"
	"errors"
	"syscall"

	"softroce/cm"
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/verbs"
)

// EventType is enum rdma_cm_event_type.
type EventType uint32

// Events.
const (
	EventAddrResolved    EventType = EventType(cm.EventAddrResolved)
	EventAddrError       EventType = EventType(cm.EventAddrError)
	EventRouteResolved   EventType = EventType(cm.EventRouteResolved)
	EventRouteError      EventType = EventType(cm.EventRouteError)
	EventConnectRequest  EventType = EventType(cm.EventConnectRequest)
	EventConnectResponse EventType = EventType(cm.EventConnectResponse)
	EventConnectError    EventType = EventType(cm.EventConnectError)
	EventUnreachable     EventType = EventType(cm.EventUnreachable)
	EventRejected        EventType = EventType(cm.EventRejected)
	EventEstablished     EventType = EventType(cm.EventEstablished)
	EventDisconnected    EventType = EventType(cm.EventDisconnected)
	EventDeviceRemoval   EventType = EventType(cm.EventDeviceRemoval)
	EventMulticastJoin   EventType = EventType(cm.EventMulticastJoin)
	EventMulticastError  EventType = EventType(cm.EventMulticastError)
	EventAddrChange      EventType = EventType(cm.EventAddrChange)
	EventTimewaitExit    EventType = EventType(cm.EventTimewaitExit)
)

// String returns the name without its prefix, as "ADDR_RESOLVED".
func (t EventType) String() string { return cm.EventType(t).String() }

// An Event reports something that happened to an identifier: rdma_cm_event.
type Event struct {
	Type EventType

	// Status is 0, a negative errno, the reason of EventRejected (IBTA 12.6.7.2), or for
	// EventUnreachable of a datagram service the status of the SIDR reply (IBTA 12.11.2.1).
	Status int

	ID       *ID       // for EventConnectRequest a new one, which the program destroys
	ListenID *ID       // EventConnectRequest: the listener
	Cookie   uint64    // EventMulticastJoin: the value given to JoinMulticast
	Param    ConnParam // as the peer sent it: its InitiatorDepth is ResponderResources here
	UD       *UDParam  // datagrams: where to send
}

// ConnParam is rdma_conn_param.
type ConnParam struct {
	QPNum              uint32 // the default is the queue pair of ID.CreateQP
	QKey               uint32 // datagrams; 0 is the default Q_Key
	ResponderResources uint8
	InitiatorDepth     uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	SRQ                bool
	PrivateData        []byte // at most 56 bytes to connect, 196 to accept; datagrams: 180 and 136
	ECEVendor          uint32 // enhanced connection establishment, 0 for none
	ECEOptions         uint32
}

// UDParam says where datagrams go, to a peer or a multicast group: rdma_ud_param.
type UDParam struct {
	AHAttr verbs.AHAttr
	QPNum  uint32
	QKey   uint32
}

// A fetch is the outcome of a request for the next event.
type fetch struct {
	event *Event
	err   error
}

// GetEvent waits for an event: rdma_get_cm_event. Other errors than ctx's are verbs.ErrClosed and,
// when the daemon is gone, verbs.ErrDeviceFatal. There is nothing to acknowledge.
func (ch *EventChannel) GetEvent(ctx context.Context) (*Event, error) {
	if err := ch.socket.Acquire(ctx); err != nil {
		return nil, err
	}
	defer ch.socket.Release()
	for {
		if ch.fetching == nil {
			if err := ch.socket.Wait(ctx); err != nil {
				return nil, err
			}
			ch.startFetch()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err() // the next GetEvent receives the event
		case f := <-ch.fetching:
			ch.fetching = nil
			if errors.Is(f.err, syscall.EAGAIN) {
				continue // the identifier of the event was destroyed
			}
			return f.event, f.err
		}
	}
}

// startFetch asks the daemon for the next event.
func (ch *EventChannel) startFetch() {
	fetching := make(chan fetch, 1)
	ch.fetching = fetching
	go func() {
		var e abi.CMEvent
		_, err := ch.manager.request(control.Request{
			Name: "get event", Op: abi.OpCMGetEvent, Body: []any{abi.HandleRequest{Handle: ch.handle}}, Reply: &e,
		})
		if err != nil {
			fetching <- fetch{err: err}
			return
		}
		event, err := ch.manager.event(&e)
		fetching <- fetch{event, err}
	}()
}

func (m *Manager) event(e *abi.CMEvent) (*Event, error) {
	p := &e.Param
	out := &Event{
		Type: EventType(e.Type), Status: int(e.Status), ID: m.id(e.ID), Cookie: e.Cookie,
		Param: ConnParam{
			QPNum: p.QPN, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
			RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, SRQ: p.SRQ != 0,
			PrivateData: append([]byte(nil), p.PrivateData[:min(int(p.PrivateLen), len(p.PrivateData))]...),
			ECEVendor:   p.ECEVendor, ECEOptions: p.ECEOptions,
		},
	}
	if e.Listen != 0 {
		out.ListenID = m.id(e.Listen)
	}
	if e.IsDatagram != 0 {
		out.UD = &UDParam{QPNum: e.RemoteQPN, QKey: e.RemoteQKey}
		if err := out.UD.AHAttr.UnmarshalBinary(abi.Append(nil, e.AH)); err != nil {
			return nil, err
		}
	}
	return out, nil
}
