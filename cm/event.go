package cm

import (
	"fmt"
	"slices"
	"syscall"
)

// A NoticeType is what a program hears of an identifier: enum rdma_cm_event_type.
type EventType uint32

// What programs hear.
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

// A Notice is an event as a program hears it.
type Event struct {
	Type   EventType
	Status int // 0, a negative errno, a Reason (NoticeRejected) or SIDRStatus (NoticeUnreachable)
	ID     *ID
	Listen *ID    // ConnectRequest: the listener
	Cookie uint64 // MulticastJoin, MulticastError: given to Join
	Conn   ConnParam
	UD     *UDParam // datagrams: instead of Conn, but for the private data
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

// UDParam is where datagrams go.
type UDParam struct {
	AH   AddressVector
	QPN  uint32
	QKey uint32
}

// A Vector is an address vector, as queue pairs and address handles take it.
type AddressVector struct {
	DGID      GID
	SGIDIndex uint8
	FlowLabel uint32
	HopLimit  uint8
	TClass    uint8
}

// A Channel queues the events of some identifiers.
type Channel struct {
	session *Session
	signal  func()
	queue   []*Event
	users   int
	closed  bool
}

// NewChannel makes an event channel. signal is called for each event that is put on it, and must
// not block. The error is ENOMEM.
func (s *Session) NewChannel(signal func()) (*Channel, error) {
	if s.channels >= MaxChannels {
		return nil, errnoError(syscall.ENOMEM, "program has its %d event channels", MaxChannels)
	}
	s.channels++
	return &Channel{session: s, signal: signal}, nil
}

// Close ends the channel; EBUSY while identifiers use it.
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

// Next takes the next event from the channel, nil if there is none.
func (ch *Channel) Next() *Event {
	if len(ch.queue) == 0 {
		return nil
	}
	n := ch.queue[0]
	ch.queue = ch.queue[1:]
	ch.session.events--
	if n.Listen != nil {
		n.Listen.waiting--
	}
	return n
}

// post puts an event on the identifier's channel.
func (id *ID) post(n *Event) {
	if id.session.closed {
		return
	}
	if n.ID == nil {
		n.ID = id
	}
	id.session.events++
	id.channel.queue = append(id.channel.queue, n)
	id.channel.signal()
}

// purge takes the identifier's events from its channel. What a connection request made, goes.
func (id *ID) purge() {
	var requests []*ID
	id.channel.queue = slices.DeleteFunc(id.channel.queue, func(n *Event) bool {
		if n.ID != id && n.Listen != id {
			return false
		}
		id.session.events--
		if n.Listen != nil {
			n.Listen.waiting--
			if n.ID != id {
				requests = append(requests, n.ID)
			}
		}
		return true
	})
	for _, r := range requests {
		r.destroy()
	}
}

// Migrate moves the identifier and its events to another channel of the session.
func (id *ID) Migrate(to *Channel) error {
	if to.session != id.session || to.closed {
		return errnoError(syscall.EINVAL, "event channel of another program")
	}
	from := id.channel
	if from == to {
		return nil
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
		if n.Listen == id { // what was asked for goes with the listener
			n.ID.channel.users--
			n.ID.channel = to
			to.users++
		}
		to.queue = append(to.queue, n)
		to.signal()
	}
	return nil
}
