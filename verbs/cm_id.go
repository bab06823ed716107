package verbs

import (
	"net/netip"
	"syscall"
	"time"

	"softroce/internal/abi"
)

// CMPortSpace is enum rdma_port_space.
type CMPortSpace uint32

// Port spaces.
const (
	CMTCP CMPortSpace = 0x0106
	CMUDP CMPortSpace = 0x0111
	CMIB  CMPortSpace = 0x013f
)

// A CMID is an identifier: rdma_cm_id. Its queue pair is the program's own, and so are that one's states: QPAttr says
// what each needs.
type CMID struct {
	cm     *CM
	handle uint32
}

// NewID makes an identifier whose events go to ch, for a queue pair of a type.
func (m *CM) NewID(ch *CMChannel, ps CMPortSpace, t QPType) (*CMID, error) {
	if ch.cm != m {
		return nil, errChannel
	}
	var got abi.HandleReply
	err := m.call("create identifier", abi.OpCMCreateID, &got, abi.CMCreateIDRequest{Channel: ch.handle, PortSpace: uint32(ps), QPType: uint32(t)})
	if err != nil {
		return nil, err
	}
	return &CMID{m, got.Handle}, nil
}

// Handle returns the daemon's name for the identifier: that of one event is that of another if it is the same.
func (id *CMID) Handle() uint32 { return id.handle }

var errChannel error = &Error{Op: "event channel", Errno: syscall.EINVAL, Text: "of another CM"}

func (id *CMID) ask(name string, op uint16) error {
	return id.cm.call(name, op, nil, abi.HandleRequest{Handle: id.handle})
}

// Destroy ends the identifier and what it is at; the peer hears of it.
func (id *CMID) Destroy() error { return id.ask("destroy identifier", abi.OpCMDestroyID) }

// Bind gives the identifier a source address and port, which may be unspecified and 0. Errors are EINVAL, EADDRNOTAVAIL,
// EADDRINUSE and EACCES.
func (id *CMID) Bind(a netip.AddrPort) error {
	var info abi.CMIdentifier
	return id.cm.call("bind", abi.OpCMBind, &info, abi.CMBindRequest{ID: id.handle, Addr: cmAddr(a)})
}

// ResolveAddr finds the way to dst; CMAddrResolved or CMAddrError follows. src may be the zero AddrPort.
func (id *CMID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	return id.cm.call("resolve address", abi.OpCMResolveAddr, nil,
		abi.CMResolveAddrRequest{ID: id.handle, Timeout: milliseconds(timeout), Src: cmAddr(src), Dst: cmAddr(dst)})
}

// ResolveRoute completes the way; CMRouteResolved follows.
func (id *CMID) ResolveRoute() error { return id.ask("resolve route", abi.OpCMResolveRoute) }

// Listen makes the identifier a listener: each CMConnectRequest has a new identifier. A backlog of 0 is as much as there is.
func (id *CMID) Listen(backlog int) error {
	var info abi.CMIdentifier
	return id.cm.call("listen", abi.OpCMListen, &info, abi.CMListenRequest{ID: id.handle, Backlog: uint32(max(backlog, 0))})
}

func (id *CMID) connection(name string, op uint16, p *CMParam) error {
	ask := abi.CMConnectRequest{ID: id.handle, Param: abi.CMConnParam{QPN: p.QPN, QKey: p.QKey, ResponderResources: p.ResponderResources,
		InitiatorDepth: p.InitiatorDepth, RetryCount: p.RetryCnt, RNRRetryCount: p.RNRRetry, SRQ: bit(p.SRQ), PrivateLen: uint16(len(p.Private)),
		ECEVendor: p.ECEVendor, ECEOptions: p.ECEOptions}}
	if copy(ask.Param.PrivateData[:], p.Private) < len(p.Private) {
		return &Error{Op: name, Errno: syscall.EINVAL, Text: "too much private data"}
	}
	return id.cm.call(name, op, nil, ask)
}

// Connect asks for a connection, or for the peer's queue pair for datagrams. CMConnectResponse, CMEstablished (datagrams),
// CMRejected or CMUnreachable follows.
func (id *CMID) Connect(p CMParam) error { return id.connection("connect", abi.OpCMConnect, &p) }

// Accept agrees to a CMConnectRequest. CMEstablished follows where there is a connection.
func (id *CMID) Accept(p CMParam) error { return id.connection("accept", abi.OpCMAccept, &p) }

// Establish completes a connection after CMConnectResponse.
func (id *CMID) Establish() error { return id.ask("establish", abi.OpCMEstablish) }

// Disconnect ends the connection, or answers that the peer does; CMDisconnected, then CMTimewaitExit follow.
func (id *CMID) Disconnect() error { return id.ask("disconnect", abi.OpCMDisconnect) }

// Notify tells that the peer uses the connection already (EventCommEst).
func (id *CMID) Notify() error { return id.ask("notify", abi.OpCMNotify) }

// Reject refuses a CMConnectRequest or CMConnectResponse, with up to 148 bytes of private data.
func (id *CMID) Reject(private []byte) error {
	ask := abi.CMRejectRequest{ID: id.handle, PrivateLen: uint32(len(private))}
	if copy(ask.PrivateData[:], private) < len(private) {
		return &Error{Op: "reject", Errno: syscall.EINVAL, Text: "too much private data"}
	}
	return id.cm.call("reject", abi.OpCMReject, nil, ask)
}

// QPAttr returns what a queue pair of the identifier needs to go to a state.
func (id *CMID) QPAttr(s QPState) (QPAttr, QPAttrMask, error) {
	var got abi.CMInitQPAttrReply
	err := id.cm.call("initialize QP attributes", abi.OpCMInitQPAttr, &got, abi.CMInitQPAttrRequest{ID: id.handle, State: uint32(s)})
	return qpAttr(got.Attr), QPAttrMask(got.Mask), err
}

// To takes a queue pair to states, one after the other, with the attributes that QPAttr returns.
func (id *CMID) To(q *QP, states ...QPState) error {
	for _, s := range states {
		a, mask, err := id.QPAttr(s)
		if err != nil {
			return err
		}
		if err := q.Modify(&a, mask); err != nil {
			return err
		}
	}
	return nil
}

// CMInfo is what an identifier is bound to.
type CMInfo struct {
	Device string // "" for none
	Src    netip.AddrPort
	Dst    netip.AddrPort
	QPType QPType
}

// Info returns what the identifier is bound to.
func (id *CMID) Info() (CMInfo, error) {
	var got abi.CMIdentifier
	err := id.cm.call("query identifier", abi.OpCMQueryID, &got, abi.HandleRequest{Handle: id.handle})
	return CMInfo{abi.Text(got.Device[:]), cmAddrPort(got.Src), cmAddrPort(got.Dst), QPType(got.QPType)}, err
}

// CMOption is RDMA_OPTION_ID_….
type CMOption uint32

// Options.
const (
	CMTOS        CMOption = 0 // type of service of the connection's packets
	CMReuseAddr  CMOption = 1
	CMAFOnly     CMOption = 2 // an unspecified IPv6 address does not stand for IPv4
	CMACKTimeout CMOption = 3 // code of 4.096 µs · 2^n
)

// SetOption sets an option. Errors are EINVAL and ENOSYS.
func (id *CMID) SetOption(o CMOption, v uint32) error {
	return id.cm.call("set option", abi.OpCMSetOption, nil, abi.CMSetOptionRequest{ID: id.handle, Option: uint32(o), Value: v})
}

// Migrate moves the identifier, with its events, to another channel.
func (id *CMID) Migrate(ch *CMChannel) error {
	if ch.cm != id.cm {
		return errChannel
	}
	return id.cm.call("migrate identifier", abi.OpCMMigrate, nil, abi.CMMigrateRequest{ID: id.handle, Channel: ch.handle})
}

// Join makes the identifier a member of a multicast group. CMMulticastJoin follows; the program attaches its queue pair itself.
func (id *CMID) Join(group netip.Addr, cookie uint64) error {
	return id.cm.call("join multicast group", abi.OpCMJoin, nil, abi.CMJoinRequest{ID: id.handle, Addr: cmAddr(netip.AddrPortFrom(group, 0)), Cookie: cookie})
}

// Leave ends a membership.
func (id *CMID) Leave(group netip.Addr) error {
	return id.cm.call("leave multicast group", abi.OpCMLeave, nil, abi.CMJoinRequest{ID: id.handle, Addr: cmAddr(netip.AddrPortFrom(group, 0))})
}
