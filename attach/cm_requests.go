package attach

import (
	"math"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softroce/cm"
	"softroce/internal/abi"
	"softroce/internal/control"
	"softroce/internal/ib"
)

// A cmChannel is an event channel of the connection manager.
type cmChannel struct {
	channel *cm.Channel
	events  *eventSocket
}

// cmRequest returns the operation of a connection manager request with a body of type T. f runs on
// the manager's goroutine.
func cmRequest[T any](name string, f func(*conn, *T, *control.Packet) ([]any, error)) *operation {
	return request(name, false, func(c *conn, v *T, p *control.Packet) (a reply, err error) {
		if c.session == nil {
			return reply{}, errorf(syscall.EINVAL, "%s: the connection manager is not open", name)
		}
		if !c.server.cm.do(func() { a.body, err = f(c, v, p) }) {
			err = errorf(syscall.ESHUTDOWN, "the daemon is shutting down")
		}
		return a, err
	})
}

// cmIDRequest is cmRequest for a request on an identifier. Its body begins with the identifier's
// handle.
func cmIDRequest[T any](name string, f func(*conn, *cm.ID, *T) ([]any, error)) *operation {
	o := cmRequest(name, func(c *conn, v *T, p *control.Packet) ([]any, error) {
		var first abi.HandleRequest
		if _, err := abi.Decode(p.Body, &first); err != nil {
			return nil, err
		}
		id, err := c.session.ID(first.Handle)
		if err != nil {
			return nil, err
		}
		return f(c, id, v)
	})
	o.onID = true
	return o
}

// cmNIC returns the name of the NIC that a request to the connection manager is about; "": it is
// not known.
func (c *conn) cmNIC(op *operation, p *control.Packet) (name string) {
	c.mu.Lock()
	session := c.session
	c.mu.Unlock()
	if session == nil {
		return ""
	}
	var first abi.HandleRequest // 0 is the handle of no identifier
	if op.onID {
		if _, err := abi.Decode(p.Body, &first); err != nil {
			return ""
		}
	}
	c.server.cm.do(func() {
		if n := session.NICOf(first.Handle); n != nil {
			name = n.Name()
		}
	})
	return name
}

// cmIDCall is cmIDRequest for a request whose body is the identifier's handle alone.
func cmIDCall(name string, f func(*cm.ID) error) *operation {
	return cmIDRequest(name, func(_ *conn, id *cm.ID, _ *abi.HandleRequest) ([]any, error) { return nil, f(id) })
}

func (c *conn) cmOpen(v *abi.CMOpenRequest, _ *control.Packet) (reply, error) {
	if c.session != nil {
		return reply{}, errorf(syscall.EBUSY, "the connection manager is already open")
	}
	var err error
	owner := cm.Owner{Client: c.number, UID: c.peer.UID, Privileged: c.peer.privileged(), PID: c.peer.PID, Comm: c.comm}
	c.server.cm.do(func() { c.session, err = c.server.cm.manager.Open(owner, abi.Text(v.Device[:])) })
	if err == nil && c.session == nil {
		err = errorf(syscall.ESHUTDOWN, "the daemon is shutting down")
	}
	return reply{}, err
}

// cmClose destroys the connection's identifiers and event channels.
func (c *conn) cmClose() {
	if c.session == nil {
		return
	}
	c.server.cm.do(c.session.Close)
	c.session = nil
	for h, o := range c.objects.m {
		if ch, ok := o.(*cmChannel); ok {
			c.account.closeEventSocket(ch.events)
			c.objects.remove(h)
		}
	}
}

func (c *conn) cmCreateChannel(*empty, *control.Packet) (reply, error) {
	if c.session == nil {
		return reply{}, errorf(syscall.EINVAL, "create event channel: the connection manager is not open")
	}
	events, fd, err := c.account.newEventSocket()
	if err != nil {
		return reply{}, err
	}
	ch := &cmChannel{events: events}
	c.server.cm.do(func() { ch.channel, err = c.session.NewChannel(events.signal) })
	if ch.channel == nil && err == nil {
		err = errorf(syscall.ESHUTDOWN, "the daemon is shutting down")
	}
	if err != nil {
		unix.Close(fd)
		c.account.closeEventSocket(events)
		return reply{}, err
	}
	a := handleReply(c.objects.add(ch))
	a.fds, a.closeAfter = []int{fd}, []int{fd}
	return a, nil
}

func (c *conn) cmDestroyChannel(v *abi.HandleRequest, _ *control.Packet) ([]any, error) {
	ch, err := lookUp[*cmChannel](&c.objects, v.Handle)
	if err != nil {
		return nil, err
	}
	if err := ch.channel.Close(); err != nil {
		return nil, err
	}
	c.account.closeEventSocket(ch.events)
	c.objects.remove(v.Handle)
	return nil, nil
}

func (c *conn) cmGetEvent(v *abi.HandleRequest, _ *control.Packet) ([]any, error) {
	ch, err := lookUp[*cmChannel](&c.objects, v.Handle)
	if err != nil {
		return nil, err
	}
	n := ch.channel.Next()
	if n == nil {
		return nil, errorf(syscall.EAGAIN, "no event is queued")
	}
	e := abi.CMEvent{Type: uint32(n.Type), Status: int32(n.Status), ID: n.ID.Handle(), Cookie: n.Cookie, Info: cmIDOut(n.ID)}
	if n.Listen != nil {
		e.Listen = n.Listen.Handle()
	}
	p := &n.Conn
	e.Param = abi.CMConnParam{QPN: p.QPN, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: flag(p.FlowControl), RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, SRQ: flag(p.SRQ),
		ECEVendor: p.ECEVendor, ECEOptions: p.ECEOptions}
	e.Param.PrivateLen = uint16(copy(e.Param.PrivateData[:], p.Private))
	if n.UD != nil {
		e.IsDatagram, e.RemoteQPN, e.RemoteQKey, e.AH = 1, n.UD.QPN, n.UD.QKey, ahOut(&n.UD.AH)
	}
	return []any{e}, nil
}

func flag(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}

func ahOut(v *cm.AddressVector) abi.AHAttr {
	return abi.AHAttr{DGID: v.DGID, FlowLabel: v.FlowLabel, SGIDIndex: v.SGIDIndex, HopLimit: v.HopLimit, TrafficClass: v.TClass,
		SL: v.SL, IsGlobal: 1, PortNum: 1}
}

// cmIDOut describes the addresses and the path of an identifier.
func cmIDOut(id *cm.ID) abi.CMIdentifier {
	src, dst := id.Addresses()
	i := abi.CMIdentifier{PortSpace: uint32(id.PortSpace()), QPType: uint32(id.QPType())}
	scope := uint32(0)
	if n := id.NIC(); n != nil {
		abi.PutText(i.Device[:], n.Name())
		i.PortNum = 1
		if src.Addr().IsLinkLocalUnicast() && src.Addr().Is6() {
			if f, err := net.InterfaceByName(id.Netdev()); err == nil {
				scope = uint32(f.Index)
			}
		}
	}
	i.Src, i.Dst = addrOut(src, scope), addrOut(dst, scope)
	if p, ok := id.Path(); ok {
		i.SGID, i.DGID, i.FlowLabel, i.PKey = p.SGID, p.DGID, p.FlowLabel, p.PKey
		i.MTU, i.PacketLife, i.SGIDIndex, i.HopLimit, i.TClass = p.MTU, p.PacketLife, p.SGIDIndex, p.HopLimit, p.TClass
		i.SL = p.SL
	}
	return i
}

func addrOut(a netip.AddrPort, scope uint32) (o abi.CMAddr) {
	switch {
	case !a.Addr().IsValid():
		return o
	case a.Addr().Is4():
		v := a.Addr().As4()
		o.Family = unix.AF_INET
		copy(o.Addr[:], v[:])
	default:
		o.Family, o.Addr, o.Scope = unix.AF_INET6, a.Addr().As16(), scope
	}
	o.Port = a.Port()
	return o
}

// addrIn converts an address. Family 0 gives the zero AddrPort.
func addrIn(a *abi.CMAddr) (netip.AddrPort, error) {
	switch a.Family {
	case 0:
		return netip.AddrPort{}, nil
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.Addr[:4])), a.Port), nil
	case unix.AF_INET6:
		ip := netip.AddrFrom16(a.Addr).Unmap()
		if ip.Is6() && ip.IsLinkLocalUnicast() && a.Scope != 0 {
			zone := strconv.FormatUint(uint64(a.Scope), 10)
			if f, err := net.InterfaceByIndex(int(min(a.Scope, math.MaxInt32))); err == nil {
				zone = f.Name
			}
			ip = ip.WithZone(zone)
		}
		return netip.AddrPortFrom(ip, a.Port), nil
	}
	return netip.AddrPort{}, errorf(syscall.EAFNOSUPPORT, "address family %d: want AF_INET or AF_INET6", a.Family)
}

func (c *conn) cmCreateID(v *abi.CMCreateIDRequest, _ *control.Packet) ([]any, error) {
	ch, err := lookUp[*cmChannel](&c.objects, v.Channel)
	if err != nil {
		return nil, err
	}
	if v.PortSpace > math.MaxUint16 {
		return nil, errorf(syscall.EINVAL, "unknown port space %#x", v.PortSpace)
	}
	id, err := c.session.NewID(ch.channel, cm.PortSpace(v.PortSpace), ib.QPType(v.QPType))
	if err != nil {
		return nil, err
	}
	return []any{abi.HandleReply{Handle: id.Handle()}}, nil
}

func (c *conn) cmBind(id *cm.ID, v *abi.CMBindRequest) ([]any, error) {
	a, err := addrIn(&v.Addr)
	if err != nil {
		return nil, err
	}
	if err := id.Bind(a); err != nil {
		return nil, err
	}
	return []any{cmIDOut(id)}, nil
}

// maxResolveTime is the longest timeout of an address resolution.
const maxResolveTime = time.Minute

func (c *conn) cmResolveAddr(id *cm.ID, v *abi.CMResolveAddrRequest) ([]any, error) {
	src, err := addrIn(&v.Src)
	if err != nil {
		return nil, err
	}
	dst, err := addrIn(&v.Dst)
	if err != nil {
		return nil, err
	}
	return nil, id.ResolveAddr(src, dst, min(time.Duration(v.Timeout)*time.Millisecond, maxResolveTime))
}

func (c *conn) cmListen(id *cm.ID, v *abi.CMListenRequest) ([]any, error) {
	if err := id.Listen(int(min(v.Backlog, math.MaxInt32))); err != nil {
		return nil, err
	}
	return []any{cmIDOut(id)}, nil
}

func connParamIn(v *abi.CMConnParam) (cm.ConnParam, error) {
	if int(v.PrivateLen) > len(v.PrivateData) {
		return cm.ConnParam{}, errorf(syscall.EINVAL, "%d bytes of private data: at most %d fit", v.PrivateLen, len(v.PrivateData))
	}
	return cm.ConnParam{
		QPN: v.QPN, QKey: v.QKey, ResponderResources: v.ResponderResources, InitiatorDepth: v.InitiatorDepth,
		FlowControl: v.FlowControl != 0, RetryCount: v.RetryCount, RNRRetryCount: v.RNRRetryCount, SRQ: v.SRQ != 0,
		Private: v.PrivateData[:v.PrivateLen], ECEVendor: v.ECEVendor, ECEOptions: v.ECEOptions,
	}, nil
}

// cmConnection returns the operation of connect or accept.
func cmConnection(name string, f func(*cm.ID, *cm.ConnParam) error) *operation {
	return cmIDRequest(name, func(_ *conn, id *cm.ID, v *abi.CMConnectRequest) ([]any, error) {
		p, err := connParamIn(&v.Param)
		if err != nil {
			return nil, err
		}
		return nil, f(id, &p)
	})
}

func (c *conn) cmReject(id *cm.ID, v *abi.CMRejectRequest) ([]any, error) {
	if v.PrivateLen > uint32(len(v.PrivateData)) || v.Reason > math.MaxUint16 {
		return nil, errorf(syscall.EINVAL, "reject reason %d with %d bytes of private data: want a 16-bit reason and at most %d bytes", v.Reason, v.PrivateLen, len(v.PrivateData))
	}
	why := cm.Reason(v.Reason)
	if why == 0 {
		why = cm.RejectConsumer
	}
	return nil, id.Reject(why, v.PrivateData[:v.PrivateLen])
}

func (c *conn) cmInitQPAttr(id *cm.ID, v *abi.CMInitQPAttrRequest) ([]any, error) {
	a, err := id.InitQPAttr(ib.QPState(v.State))
	if err != nil {
		return nil, err
	}
	r := abi.CMInitQPAttrReply{Mask: uint32(a.Mask), Attr: transportAttrOut(&a.QPAttr)}
	r.Attr.AH, r.Attr.PKeyIndex, r.Attr.PortNum = ahOut(&a.AH), a.PKeyIndex, 1
	return []any{r}, nil
}

func (c *conn) cmQueryID(id *cm.ID, v *abi.HandleRequest) ([]any, error) {
	return []any{cmIDOut(id)}, nil
}

func (c *conn) cmSetOption(id *cm.ID, v *abi.CMSetOptionRequest) ([]any, error) {
	return nil, id.SetOption(cm.Option(v.Option), v.Value)
}

func (c *conn) cmMigrate(id *cm.ID, v *abi.CMMigrateRequest) ([]any, error) {
	ch, err := lookUp[*cmChannel](&c.objects, v.Channel)
	if err != nil {
		return nil, err
	}
	n, err := id.Migrate(ch.channel)
	return []any{abi.CMRemovedReply{Events: uint32(n)}}, err
}

func (c *conn) cmDestroyID(id *cm.ID, _ *abi.HandleRequest) ([]any, error) {
	return []any{abi.CMRemovedReply{Events: uint32(id.Destroy())}}, nil
}

// cmGroup returns the operation of joining or leaving a multicast group.
func cmGroup(name string, f func(id *cm.ID, group netip.Addr, cookie uint64) error) *operation {
	return cmIDRequest(name, func(_ *conn, id *cm.ID, v *abi.CMJoinRequest) ([]any, error) {
		a, err := addrIn(&v.Addr)
		if err != nil {
			return nil, err
		}
		return nil, f(id, a.Addr(), v.Cookie)
	})
}
