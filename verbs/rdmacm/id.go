package rdmacm

import (
	"context"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"softroce/cm"
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/verbs"
)

// PortSpace is enum rdma_port_space.
type PortSpace uint32

// Port spaces.
const (
	PSTCP PortSpace = PortSpace(cm.PortSpaceTCP)
	PSUDP PortSpace = PortSpace(cm.PortSpaceUDP)
	PSIB  PortSpace = PortSpace(cm.PortSpaceIB)
)

// String returns the name without its prefix, as "TCP".
func (p PortSpace) String() string { return cm.PortSpace(p).String() }

// An ID is a communication identifier, one end of a connection: rdma_cm_id.
//
// The queue pair that CreateQP creates follows the connection: Accept and Establish take it to RTS,
// Disconnect takes it to the error state. A program that creates its queue pair itself gives its
// number in ConnParam and changes its state with ModifyQP.
type ID struct {
	manager *Manager
	handle  uint32
	qp      atomic.Pointer[verbs.QP] // of CreateQP
}

// CreateID creates an identifier whose events go to ch, for a queue pair of type t: rdma_create_id.
func (m *Manager) CreateID(ctx context.Context, ch *EventChannel, ps PortSpace, t verbs.QPType) (*ID, error) {
	if ch.manager != m {
		return nil, errOtherManager
	}
	const name = "create identifier"
	req := abi.CMCreateIDRequest{Channel: ch.handle, PortSpace: uint32(ps), QPType: uint32(t)}
	return control.Await(ctx, name, func() (*ID, error) {
		var got abi.HandleReply
		if _, err := m.request(control.Request{Name: name, Op: abi.OpCMCreateID, Body: []any{req}, Reply: &got}); err != nil {
			return nil, err
		}
		return m.id(got.Handle), nil
	}, func(id *ID) { id.Destroy(context.Background()) })
}

// id returns the identifier with a handle: the one that exists, or a new one.
func (m *Manager) id(handle uint32) *ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := m.ids[handle]
	if id == nil {
		id = &ID{manager: m, handle: handle}
		m.ids[handle] = id
	}
	return id
}

// call performs an operation whose request holds only the identifier and whose reply is empty.
func (id *ID) call(ctx context.Context, name string, op uint16) error {
	return id.manager.call(ctx, name, op, nil, abi.HandleRequest{Handle: id.handle})
}

// Destroy destroys the identifier and ends its connection: rdma_destroy_id. It does not close the
// queue pair.
func (id *ID) Destroy(ctx context.Context) error {
	const name = "destroy identifier"
	m := id.manager
	return control.AwaitError(ctx, name, func() error {
		// Under the lock: the daemon may give the handle to a new identifier at once.
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.ids[id.handle] != id {
			return verbs.ErrClosed
		}
		_, err := m.request(control.Request{Name: name, Op: abi.OpCMDestroyID, Body: []any{abi.HandleRequest{Handle: id.handle}}})
		if err == nil {
			delete(m.ids, id.handle)
		}
		return err
	})
}

// BindAddr binds the identifier to a source address and port, which may be unspecified and 0:
// rdma_bind_addr. Errors are EINVAL, EADDRNOTAVAIL, EADDRINUSE and EACCES.
func (id *ID) BindAddr(ctx context.Context, a netip.AddrPort) error {
	return id.manager.call(ctx, "bind", abi.OpCMBind, new(abi.CMIdentifier),
		abi.CMBindRequest{ID: id.handle, Addr: abiAddr(a)})
}

// ResolveAddr finds the NIC and the next hop for dst: rdma_resolve_addr. EventAddrResolved or
// EventAddrError follows. src may be the zero AddrPort.
func (id *ID) ResolveAddr(ctx context.Context, src, dst netip.AddrPort, timeout time.Duration) error {
	return id.manager.call(ctx, "resolve address", abi.OpCMResolveAddr, nil, abi.CMResolveAddrRequest{
		ID: id.handle, Timeout: milliseconds(timeout), Src: abiAddr(src), Dst: abiAddr(dst),
	})
}

// ResolveRoute determines the path to the resolved address: rdma_resolve_route. EventRouteResolved
// follows.
func (id *ID) ResolveRoute(ctx context.Context) error {
	return id.call(ctx, "resolve route", abi.OpCMResolveRoute)
}

// Listen makes the identifier a listener: rdma_listen. Each EventConnectRequest brings a new
// identifier. A backlog of 0 is the largest.
func (id *ID) Listen(ctx context.Context, backlog int) error {
	return id.manager.call(ctx, "listen", abi.OpCMListen, new(abi.CMIdentifier),
		abi.CMListenRequest{ID: id.handle, Backlog: uint32(max(backlog, 0))})
}

// Connect requests a connection, or the peer's queue pair for datagrams: rdma_connect.
// EventConnectResponse (datagrams: EventEstablished), EventRejected or EventUnreachable follows.
func (id *ID) Connect(ctx context.Context, p ConnParam) error {
	return id.send(ctx, "connect", abi.OpCMConnect, p)
}

// Accept accepts an EventConnectRequest: rdma_accept. EventEstablished follows, except for
// datagrams.
func (id *ID) Accept(ctx context.Context, p ConnParam) error {
	if err := id.readyToSend(ctx); err != nil {
		return err
	}
	return id.send(ctx, "accept", abi.OpCMAccept, p)
}

func (id *ID) send(ctx context.Context, name string, op uint16, p ConnParam) error {
	if qp := id.qp.Load(); qp != nil && p.QPNum == 0 {
		p.QPNum = qp.QPNum()
	}
	req := abi.CMConnectRequest{ID: id.handle, Param: abi.CMConnParam{
		QPN: p.QPNum, QKey: p.QKey, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, PrivateLen: uint16(len(p.PrivateData)),
		ECEVendor: p.ECEVendor, ECEOptions: p.ECEOptions,
	}}
	if p.SRQ {
		req.Param.SRQ = 1
	}
	if copy(req.Param.PrivateData[:], p.PrivateData) < len(p.PrivateData) {
		return &verbs.Error{Op: name, Errno: syscall.EINVAL, Text: "too much private data"}
	}
	return id.manager.call(ctx, name, op, nil, req)
}

// Establish completes a connection after EventConnectResponse: rdma_establish.
func (id *ID) Establish(ctx context.Context) error {
	if err := id.readyToSend(ctx); err != nil {
		return err
	}
	return id.call(ctx, "establish", abi.OpCMEstablish)
}

// Disconnect ends the connection, or acknowledges that the peer ended it: rdma_disconnect.
// EventDisconnected and EventTimewaitExit follow.
func (id *ID) Disconnect(ctx context.Context) error {
	if qp := id.qp.Load(); qp != nil {
		if err := qp.Modify(ctx, &verbs.QPAttr{QPState: verbs.QPSErr}, verbs.QPMaskState); err != nil {
			return err
		}
	}
	return id.call(ctx, "disconnect", abi.OpCMDisconnect)
}

// Notify reports that the peer already uses the connection (verbs.EventCommEst): rdma_notify.
func (id *ID) Notify(ctx context.Context) error { return id.call(ctx, "notify", abi.OpCMNotify) }

// Reject rejects an EventConnectRequest or EventConnectResponse, with up to 148 bytes of private
// data: rdma_reject.
func (id *ID) Reject(ctx context.Context, private []byte) error {
	req := abi.CMRejectRequest{ID: id.handle, PrivateLen: uint32(len(private))}
	if copy(req.PrivateData[:], private) < len(private) {
		return &verbs.Error{Op: "reject", Errno: syscall.EINVAL, Text: "too much private data"}
	}
	return id.manager.call(ctx, "reject", abi.OpCMReject, nil, req)
}

// Info is what an identifier is bound to.
type Info struct {
	Device string // "" for none
	Src    netip.AddrPort
	Dst    netip.AddrPort
	QPType verbs.QPType
}

// Info returns what the identifier is bound to.
func (id *ID) Info(ctx context.Context) (Info, error) {
	const name = "query identifier"
	return control.Await(ctx, name, func() (Info, error) {
		var got abi.CMIdentifier
		_, err := id.manager.request(control.Request{
			Name: name, Op: abi.OpCMQueryID, Body: []any{abi.HandleRequest{Handle: id.handle}}, Reply: &got,
		})
		return Info{abi.Text(got.Device[:]), addrPort(got.Src), addrPort(got.Dst), verbs.QPType(got.QPType)}, err
	}, nil)
}

// IDOption is an option of an identifier: RDMA_OPTION_ID_….
type IDOption uint32

// Options of an identifier.
const (
	OptionTOS        IDOption = 0 // type of service of the connection's packets
	OptionReuseAddr  IDOption = 1
	OptionAFOnly     IDOption = 2 // an unspecified IPv6 address does not include IPv4
	OptionACKTimeout IDOption = 3 // code: 4.096 µs · 2^n
)

// SetOption sets an option: rdma_set_option. Errors are EINVAL and ENOSYS.
func (id *ID) SetOption(ctx context.Context, o IDOption, v uint32) error {
	return id.manager.call(ctx, "set option", abi.OpCMSetOption, nil,
		abi.CMSetOptionRequest{ID: id.handle, Option: uint32(o), Value: v})
}

// Migrate moves the identifier, with its events, to another channel: rdma_migrate_id.
func (id *ID) Migrate(ctx context.Context, ch *EventChannel) error {
	if ch.manager != id.manager {
		return errOtherManager
	}
	return id.manager.call(ctx, "migrate identifier", abi.OpCMMigrate, nil,
		abi.CMMigrateRequest{ID: id.handle, Channel: ch.handle})
}

// JoinMulticast joins a multicast group: rdma_join_multicast. EventMulticastJoin, with cookie,
// follows. The program attaches its queue pair itself (verbs.QP.AttachMcast).
func (id *ID) JoinMulticast(ctx context.Context, group netip.Addr, cookie uint64) error {
	return id.manager.call(ctx, "join multicast group", abi.OpCMJoin, nil, id.membership(group, cookie))
}

// LeaveMulticast leaves a multicast group: rdma_leave_multicast.
func (id *ID) LeaveMulticast(ctx context.Context, group netip.Addr) error {
	return id.manager.call(ctx, "leave multicast group", abi.OpCMLeave, nil, id.membership(group, 0))
}

func (id *ID) membership(group netip.Addr, cookie uint64) abi.CMJoinRequest {
	return abi.CMJoinRequest{ID: id.handle, Addr: abiAddr(netip.AddrPortFrom(group, 0)), Cookie: cookie}
}
