package verbs

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"softroce/internal/abi"
	"softroce/internal/control"
)

// CM is a program's connection to the daemon's connection manager: what librdmacm offers. Identifiers and event
// channels come from it. Its methods, and theirs, may be called from several goroutines.
type CM struct{ ctx *Context }

// OpenCM connects to the connection manager. With the name of a device it uses that one alone. Errors are those of
// Open.
func OpenCM(ctx context.Context, device string, opts ...Option) (*CM, error) {
	client, err := dial(ctx, opts)
	if err != nil {
		return nil, err
	}
	var ask abi.CMOpenRequest
	abi.PutText(ask.Device[:], device)
	if _, err := client.Call(ctx, control.Request{Name: "open connection manager", Op: abi.OpCMOpen, Body: []any{ask}}); err != nil {
		client.Close()
		return nil, err
	}
	return &CM{&Context{client: client}}, nil
}

// Close ends everything that the program has in the connection manager: connections end, listeners are gone.
func (m *CM) Close() error { return m.ctx.client.Shutdown() }

// call asks for something of the connection manager.
func (m *CM) call(name string, op uint16, reply any, body ...any) error {
	_, err := m.ctx.call(control.Request{Name: name, Op: op, Body: body, Reply: reply})
	return err
}

// A CMChannel queues the events of some identifiers: rdma_event_channel.
type CMChannel struct {
	cm     *CM
	handle uint32
	*semaphore
}

// NewChannel makes an event channel.
func (m *CM) NewChannel() (*CMChannel, error) {
	var got abi.HandleReply
	p, err := m.ctx.call(control.Request{Name: "create event channel", Op: abi.OpCMCreateChannel, Reply: &got, Want: 1})
	if err != nil {
		return nil, err
	}
	return &CMChannel{m, got.Handle, newSemaphore(m.ctx, p.Take())}, nil
}

// Close ends the channel; EBUSY while identifiers use it.
func (ch *CMChannel) Close() error {
	err := ch.cm.call("destroy event channel", abi.OpCMDestroyChannel, nil, abi.HandleRequest{Handle: ch.handle})
	if err == nil || ch.cm.ctx.client.Ended() {
		ch.close()
	}
	return err
}

// Event waits for an event. Otherwise its error is that of ctx, ErrClosed, or, when the daemon is gone, ErrDeviceFatal.
func (ch *CMChannel) Event(ctx context.Context) (*CMEvent, error) {
	if err := ch.acquire(ctx); err != nil {
		return nil, err
	}
	defer ch.release()
	for {
		if err := ch.wait(ctx); err != nil {
			return nil, err
		}
		var e abi.CMEvent
		err := ch.cm.call("get event", abi.OpCMGetEvent, &e, abi.HandleRequest{Handle: ch.handle})
		if errors.Is(err, syscall.EAGAIN) {
			continue // what it was about is gone
		}
		if err != nil {
			return nil, err
		}
		return cmEvent(ch.cm, &e), nil
	}
}

// CMEventType is enum rdma_cm_event_type.
type CMEventType uint32

// Events.
const (
	CMAddrResolved    CMEventType = 0
	CMAddrError       CMEventType = 1
	CMRouteResolved   CMEventType = 2
	CMRouteError      CMEventType = 3
	CMConnectRequest  CMEventType = 4
	CMConnectResponse CMEventType = 5
	CMConnectError    CMEventType = 6
	CMUnreachable     CMEventType = 7
	CMRejected        CMEventType = 8
	CMEstablished     CMEventType = 9
	CMDisconnected    CMEventType = 10
	CMDeviceRemoval   CMEventType = 11
	CMMulticastJoin   CMEventType = 12
	CMMulticastError  CMEventType = 13
	CMAddrChange      CMEventType = 14
	CMTimewaitExit    CMEventType = 15
)

var cmEventNames = [...]string{"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
	"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR",
	"ADDR_CHANGE", "TIMEWAIT_EXIT"}

func (t CMEventType) String() string {
	if int(t) < len(cmEventNames) {
		return cmEventNames[t]
	}
	return "unknown"
}

// A CMEvent is something that happened to an identifier: rdma_cm_event.
type CMEvent struct {
	Type   CMEventType
	Status int     // 0, a negative errno, the reason of a CMRejected, or the status that a datagram service answered
	ID     *CMID   // CMConnectRequest: new, and the program's to destroy
	Listen uint32  // CMConnectRequest: handle of the listener
	Cookie uint64  // CMMulticastJoin: given to Join
	Param  CMParam // as the peer states it, seen from here
	UD     *CMDatagrams
}

// CMParam is rdma_conn_param.
type CMParam struct {
	QPN                uint32
	QKey               uint32 // datagrams; 0 stands for the usual one
	ResponderResources uint8
	InitiatorDepth     uint8
	RetryCnt           uint8
	RNRRetry           uint8
	SRQ                bool
	Private            []byte // at most 56 bytes to connect, 196 to accept; datagrams: 180 and 136
	ECEVendor          uint32 // enhanced connection establishment, 0 for none
	ECEOptions         uint32
}

// CMDatagrams says where datagrams go, to a peer or a multicast group.
type CMDatagrams struct {
	AH   AHAttr
	QPN  uint32
	QKey uint32
}

func cmEvent(m *CM, e *abi.CMEvent) *CMEvent {
	p := &e.Param
	out := &CMEvent{Type: CMEventType(e.Type), Status: int(e.Status), ID: &CMID{m, e.ID}, Listen: e.Listen, Cookie: e.Cookie,
		Param: CMParam{QPN: p.QPN, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, RetryCnt: p.RetryCount,
			RNRRetry: p.RNRRetryCount, SRQ: p.SRQ != 0, Private: append([]byte(nil), p.PrivateData[:min(int(p.PrivateLen), len(p.PrivateData))]...),
			ECEVendor: p.ECEVendor, ECEOptions: p.ECEOptions}}
	if e.IsDatagram != 0 {
		out.UD = &CMDatagrams{ahAttr(e.AH), e.RemoteQPN, e.RemoteQKey}
	}
	return out
}

// cmAddr turns an address into what the daemon reads. The zone of a link-local one names an interface.
func cmAddr(a netip.AddrPort) (o abi.CMAddr) {
	ip := a.Addr()
	switch {
	case !ip.IsValid():
		return o
	case ip.Is4():
		v := ip.As4()
		o.Family = syscall.AF_INET
		copy(o.Addr[:], v[:])
	default:
		o.Family, o.Addr = syscall.AF_INET6, ip.As16()
		if f, err := net.InterfaceByName(ip.Zone()); err == nil {
			o.Scope = uint32(f.Index)
		}
	}
	o.Port = a.Port()
	return o
}

func cmAddrPort(a abi.CMAddr) netip.AddrPort {
	switch a.Family {
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.Addr[:4])), a.Port)
	case syscall.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), a.Port)
	}
	return netip.AddrPort{}
}

// milliseconds rounds up what is not 0.
func milliseconds(d time.Duration) uint32 {
	return uint32(min(max((d+time.Millisecond-1)/time.Millisecond, 0), 1<<31))
}
