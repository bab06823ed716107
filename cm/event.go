package cm

import (
	"fmt"
	"slices"
	"syscall"
)

// An EventType is the type of an event of an identifier: enum rdma_cm_event_type.
type EventType uint32

// Types of events.
const (
	EventAddrResolved EventType = iota
	EventAddrError
	EventRouteResolved
	EventRouteError
	EventConnectRequest
	EventConnectResponse
	EventConnectError
	EventUnreachable
	EventRejected
	EventEstablished
	EventDisconnected
	EventDeviceRemoval
	EventMulticastJoin
	EventMulticastError
	EventAddrChange
	EventTimewaitExit
)

var eventNames = [...]string{
	"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
	"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN",
	"MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
}

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("EventType(%d)", uint32(t))
}

// An Event is an event of an identifier, for the program: struct rdma_cm_event.
type Event struct {
	Type   EventType
	Status int // 0, a negative errno, a Reason (EventRejected) or SIDRStatus (EventUnreachable)
	ID     *ID
	Listen *ID    // EventConnectRequest: the listener
	Cookie uint64 // EventMulticastJoin, EventMulticastError: given to Join
	Conn   ConnParam
	UD     *UDParam // datagrams: in place of Conn, except for its private data
}

// ConnParam is struct rdma_conn_param.
type ConnParam struct {
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8
	RNRRetryCount      uint8
	SRQ                bool
	QPN                uint32
	QKey               uint32 // datagrams: 0 for the default
	ECEVendor          uint32 // enhanced connection establishment: 0 for none
	ECEOptions         uint32
	Private            []byte
}

// UDParam is the destination of datagrams.
type UDParam struct {
	AH   AddressVector
	QPN  uint32
	QKey uint32
}

// An AddressVector is the part of an address vector that the route determines.
type AddressVector struct {
	DGID      GID
	SGIDIndex uint8
	FlowLabel uint32
	HopLimit  uint8
	TClass    uint8
	SL        uint8
}

// A Channel queues the events of identifiers: struct rdma_event_channel.
type Channel struct {
	session *Session
	signal  func()
	queue   []*Event
	spare   int // signals of connection requests that were displaced: later events need none
	users   int
	closed  bool
}

// NewChannel creates an event channel. It calls signal for each event that it queues; signal must
// not block. The error is ENOMEM.
func (s *Session) NewChannel(signal func()) (*Channel, error) {
	if s.channels >= MaxChannels {
		return nil, errnoError(syscall.ENOMEM, "the program has the maximum of %d event channels", MaxChannels)
	}
	s.channels++
	return &Channel{session: s, signal: signal}, nil
}

// Close closes the channel; EBUSY while identifiers use it.
func (ch *Channel) Close() error {
	if ch.users > 0 {
		return errnoError(syscall.EBUSY, "%d identifiers use the event channel", ch.users)
	}
	if !ch.closed {
		ch.closed = true
		ch.session.channels--
	}
	return nil
}

// Next removes the next event from the channel, nil if there is none.
func (ch *Channel) Next() *Event {
	if len(ch.queue) == 0 {
		ch.spare = max(ch.spare-1, 0)
		return nil
	}
	n := ch.queue[0]
	ch.queue = ch.queue[1:]
	ch.session.countEvents(-1)
	if m := n.ID.member; n.Listen != nil && m != nil && m.of != n.ID.halfOpen {
		n.ID.leaveBacklog()
		if m.withdrawn != nil && n.ID.conn != nil {
			n.ID.session.manager.Event(n.ID.conn, m.withdrawn)
		}
	}
	return n
}

// post queues an event on the identifier's channel.
func (id *ID) post(n *Event) {
	if id.session.closed {
		return
	}
	if n.ID == nil {
		n.ID = id
	}
	id.session.countEvents(1)
	id.channel.add(n)
}

// add queues an event.
func (ch *Channel) add(n *Event) {
	ch.queue = append(ch.queue, n)
	if ch.spare > 0 {
		ch.spare--
	} else {
		ch.signal()
	}
}

// purge removes the identifier's events from its channel, destroys the identifiers of its
// connection requests, and returns how many events it has removed.
func (id *ID) purge() (removed int) {
	var requests []*ID
	id.channel.queue = slices.DeleteFunc(id.channel.queue, func(n *Event) bool {
		if n.ID != id && n.Listen != id {
			return false
		}
		id.session.countEvents(-1)
		removed++
		if n.Listen != nil {
			n.ID.leaveBacklog()
			if n.ID != id {
				requests = append(requests, n.ID)
			}
		}
		return true
	})
	for _, r := range requests {
		removed += r.Destroy()
	}
	return removed
}

// Migrate moves the identifier and its events to another channel of the session, and returns how
// many events it has moved.
func (id *ID) Migrate(to *Channel) (moves int, err error) {
	if to.session != id.session || to.closed {
		return 0, errnoError(syscall.EINVAL, "the event channel belongs to another program")
	}
	from := id.channel
	if from == to {
		return 0, nil
	}
	var moved []*Event
	from.queue = slices.DeleteFunc(from.queue, func(n *Event) bool {
		mine := n.ID == id && n.Listen == nil || n.Listen == id
		if mine {
			moved = append(moved, n)
		}
		return mine
	})
	from.users--
	to.users++
	id.channel = to
	for _, n := range moved {
		if n.Listen == id { // its connection requests move with the listener
			n.ID.channel.users--
			n.ID.channel = to
			to.users++
		}
		to.add(n)
	}
	return len(moved), nil
}
