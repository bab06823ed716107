package cm

import (
	"net/netip"
	"syscall"

	"softroce/internal/ib"
	"softroce/packet"
)

// UDPQKey is the default Q_Key of datagrams: RDMA_UDP_QKEY.
const UDPQKey = 0x01234567

// Connect requests a connection or, for datagrams, the peer's queue pair. EventConnectResponse
// (then Establish), EventEstablished, EventRejected or EventUnreachable reports the outcome. Errors
// are EINVAL, EPERM (a queue pair of another user) and ENOMEM.
func (id *ID) Connect(p *ConnParam) error {
	if id.state != idRouteResolved {
		return errnoError(syscall.EINVAL, "the identifier is %v", id.state)
	}
	if err := id.checkQP(p.QPN); err != nil {
		return err
	}
	h := IPHeader{SrcPort: id.src.Port(), Src: id.src.Addr(), Dst: id.dst.Addr().WithZone("")}
	service := ServiceID(id.ps, id.dst.Port())
	if err := id.session.checkConn(); err != nil {
		return err
	}
	a, now := id.session.manager.agent, id.session.manager.now
	var c *Conn
	var err error
	if err := id.checkPrivate(p); err != nil {
		return err
	}
	if m := id.session.manager; m.Isolate != nil && m.Isolate(id.nic, id.session.owner) {
		id.qpn, id.qkey, id.state = p.QPN, id.queueKey(p), idConnect
		id.post(&Event{Type: EventUnreachable, Status: -int(syscall.ETIMEDOUT)})
		return nil
	}
	if id.datagrams() {
		q := &SIDRREQ{PKey: id.route.PKey, ServiceID: service}
		h.Put(q.Private[:])
		copy(q.Private[IPHeaderSize:], p.Private)
		c, err = a.RequestSIDR(now, id.nic, id.route, q)
	} else {
		q := id.request(p, service)
		h.Put(q.Private[:])
		copy(q.Private[IPHeaderSize:], p.Private)
		id.req = q
		c, err = a.Connect(now, id.nic, id.route, q)
	}
	if err != nil {
		return errnoError(syscall.ENOMEM, "%v", err)
	}
	id.qpn, id.qkey = p.QPN, id.queueKey(p)
	id.conn, c.Owner, id.state = c, id, idConnect
	id.session.own(c)
	return nil
}

// checkPrivate rejects private data that is too long for a request.
func (id *ID) checkPrivate(p *ConnParam) error {
	most := MaxREQData
	if id.datagrams() {
		most = MaxSIDRREQData
	}
	if len(p.Private) > most {
		return errnoError(syscall.EINVAL, "%d bytes of private data exceed the %d of the message", len(p.Private), most)
	}
	return nil
}

// request returns the REQ of a connection.
func (id *ID) request(p *ConnParam, service uint64) *REQ {
	q := &REQ{
		ServiceID: service, LocalQPN: p.QPN & 0xffffff, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RemoteResponseTime: ResponseTime, LocalResponseTime: ResponseTime, FlowControl: p.FlowControl, StartingPSN: id.psn,
		RetryCount: min(p.RetryCount, 7), RNRRetryCount: min(p.RNRRetryCount, 7), PKey: id.route.PKey,
		PathMTU: id.nic.MTU(), MaxCMRetries: MaxRetries, SRQ: p.SRQ, VendorID: p.ECEVendor & 0xffffff, Options: p.ECEOptions,
	}
	switch id.qpType {
	case ib.QPTypeUC:
		q.Service = ServiceUC
	case ib.QPTypeXRCSend, ib.QPTypeXRCRecv:
		q.Service, q.Extended = ServiceExt, 1
	}
	q.Primary = PathRecord{
		LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: id.route.Src.As16(), RemoteGID: id.route.Dst.As16(),
		FlowLabel: id.route.FlowLabel, TrafficClass: id.route.TClass, SL: id.route.SL, HopLimit: id.route.HopLimit, ACKTimeout: id.remoteACKTimeout(),
	}
	return q
}

// remoteACKTimeout is the local ACK timeout code for the peer: twice the packet lifetime plus the
// ACK delay of this side.
func (id *ID) remoteACKTimeout() uint8 {
	if id.ackTimeout != 0 {
		return id.ackTimeout
	}
	return ackTimeout(id.nic.ACKDelay(), PacketLife)
}

// ackTimeout is the code of a local ACK timeout (IBTA 12.7.34): 2 · life + delay, in powers of two.
func ackTimeout(delay, life uint8) uint8 {
	t := life + 1
	if t >= delay {
		if delay >= life {
			t++
		}
	} else {
		t = delay
		if life+1 >= delay-1 {
			t++
		}
	}
	return min(t, 31)
}

func (id *ID) queueKey(p *ConnParam) uint32 {
	if p.QKey != 0 {
		return p.QKey
	}
	return UDPQKey
}

// checkQP rejects a queue pair of another user: connecting it would make its peer end the
// connection that it has.
func (id *ID) checkQP(qpn uint32) error {
	if qpn > 0xffffff {
		return errnoError(syscall.EINVAL, "QPN %#x has more than 24 bits", qpn)
	}
	if qpn != 0 && !id.nic.Owns(qpn, id.session.owner) {
		return errnoError(syscall.EPERM, "queue pair %#x of %s belongs to another user or does not exist", qpn, id.nic.Name())
	}
	return nil
}

// Accept accepts a connection request. On the side that requested the connection, it is Establish.
func (id *ID) Accept(p *ConnParam) error {
	if !id.passive {
		return id.Establish()
	}
	if id.conn == nil || id.state != idConnect {
		return errnoError(syscall.EINVAL, "there is no request to accept")
	}
	if err := id.checkQP(p.QPN); err != nil {
		return err
	}
	now := id.session.manager.now
	if id.datagrams() {
		r := &SIDRREP{QPN: p.QPN, QKey: id.queueKey(p), ServiceID: id.sidr.ServiceID}
		if copy(r.Private[:], p.Private) < len(p.Private) {
			return errnoError(syscall.EINVAL, "%d bytes of private data exceed the %d of the message", len(p.Private), SIDRREPPrivate)
		}
		id.qpn, id.qkey = p.QPN, r.QKey
		return id.done(id.conn.ReplySIDR(now, r))
	}
	r := &REP{LocalQPN: p.QPN, StartingPSN: id.psn, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		TargetACKDelay: id.nic.ACKDelay(), FlowControl: p.FlowControl, RNRRetryCount: min(p.RNRRetryCount, 7), SRQ: p.SRQ, Options: p.ECEOptions}
	r.SetVendor(p.ECEVendor)
	if copy(r.Private[:], p.Private) < len(p.Private) {
		return errnoError(syscall.EINVAL, "%d bytes of private data exceed the %d of the message", len(p.Private), REPPrivate)
	}
	id.qpn = p.QPN
	if err := id.done(id.conn.Accept(now, r)); err != nil {
		return err
	}
	id.awaitRTU()
	return nil
}

// awaitRTU counts the connection among those that wait for their peer, and ends the wait of another
// if there are too many.
func (id *ID) awaitRTU() {
	if id.conn.State() != StateREPSent {
		return
	}
	id.leaveBacklog() // a program may guess the handle of a request that it has not received
	b := id.halfOpen
	b.add(id)
	if b.len() > maxHalfOpen {
		b.largest().id.conn.GiveUp(id.session.manager.now)
	}
}

// done converts the agent's errors to errnos.
func (id *ID) done(err error) error {
	if err != nil {
		return errnoError(syscall.EINVAL, "%v", err)
	}
	return nil
}

// Establish completes a connection that the peer accepted, after EventConnectResponse.
func (id *ID) Establish() error {
	if id.conn == nil || id.passive {
		return errnoError(syscall.EINVAL, "there is no response to establish")
	}
	return id.done(id.conn.Ready())
}

// Reject rejects a connection request, or the peer's response.
func (id *ID) Reject(why Reason, private []byte) error {
	if id.conn == nil || id.state != idConnect {
		return errnoError(syscall.EINVAL, "there is nothing to reject")
	}
	if id.datagrams() {
		r := &SIDRREP{Status: SIDRReject, ServiceID: id.service()}
		if copy(r.Private[:], private) < len(private) {
			return errnoError(syscall.EINVAL, "%d bytes of private data exceed the %d of the message", len(private), SIDRREPPrivate)
		}
		return id.done(id.conn.ReplySIDR(id.session.manager.now, r))
	}
	if len(private) > REJPrivate {
		return errnoError(syscall.EINVAL, "%d bytes of private data exceed the %d of the message", len(private), REJPrivate)
	}
	if err := id.done(id.conn.Reject(why, nil, private)); err != nil {
		return err
	}
	id.leaveBacklog()
	id.conn = nil
	return nil
}

func (id *ID) service() uint64 {
	if id.sidr != nil {
		return id.sidr.ServiceID
	}
	return 0
}

// Disconnect ends the connection, or acknowledges that the peer ended it.
func (id *ID) Disconnect() error {
	if id.conn == nil || id.datagrams() {
		return errnoError(syscall.EINVAL, "there is no connection")
	}
	if err := id.conn.Disconnect(id.session.manager.now); err != nil {
		return errnoError(syscall.EINVAL, "the connection is %v", id.conn.State())
	}
	return nil
}

// Notify reports that the peer uses the connection though its last message has not arrived.
func (id *ID) Notify() error {
	if id.conn == nil {
		return errnoError(syscall.EINVAL, "there is no connection")
	}
	if id.conn.State() == StateEstablished {
		return nil
	}
	return id.done(id.conn.Notify())
}

// Request implements Handler: it finds the listener of a REQ.
func (m *Manager) Request(c *Conn, q *REQ) Reason {
	n := c.port.(NIC)
	h, err := ParseIPHeader(q.Private[:])
	if err != nil {
		return RejectInvalidService
	}
	l := m.listener(n, q.ServiceID, station{h.Dst, c.route.VLAN})
	switch {
	case l == nil:
		return RejectInvalidService
	case l.datagrams():
		return RejectInvalidType
	case netip.AddrFrom16(q.Primary.LocalGID).Unmap() != c.route.Dst || netip.AddrFrom16(q.Primary.RemoteGID).Unmap() != c.route.Src:
		return RejectInvalidGID
	case q.PathMTU < 1 || q.PathMTU > n.MTU():
		return RejectInvalidMTU
	}
	var t ib.QPType
	switch {
	case q.Service == ServiceUC:
		t = ib.QPTypeUC
	case q.Service == ServiceExt && q.Extended == 1:
		t = ib.QPTypeXRCRecv
	case q.Service == ServiceRC:
		t = ib.QPTypeRC
	default:
		return RejectInvalidType
	}
	if m.Refuse != nil {
		if why := m.Refuse(n, l.session.owner); why != 0 {
			return why
		}
	}
	id := l.newRequestID(c, h)
	if id == nil {
		return NoReply
	}
	id.qpType, id.req = t, q
	id.route.TClass, id.route.SL, id.route.FlowLabel = q.Primary.TrafficClass, q.Primary.SL, q.Primary.FlowLabel
	id.usePKey(q.PKey)
	l.postRequest(id, &Event{Type: EventConnectRequest, ID: id, Listen: l, Conn: ConnParam{
		ResponderResources: q.InitiatorDepth, InitiatorDepth: q.ResponderResources, FlowControl: q.FlowControl,
		RetryCount: q.RetryCount, RNRRetryCount: q.RNRRetryCount, SRQ: q.SRQ, QPN: q.LocalQPN, Private: q.Private[IPHeaderSize:],
		ECEVendor: q.VendorID, ECEOptions: q.Options,
	}})
	return 0
}

// Lookup implements Handler.
func (m *Manager) Lookup(c *Conn, q *SIDRREQ) (SIDRStatus, bool) {
	n := c.port.(NIC)
	h, err := ParseIPHeader(q.Private[:])
	if err != nil {
		return SIDRUnsupported, false
	}
	l := m.listener(n, q.ServiceID, station{h.Dst, c.route.VLAN})
	if l == nil || !l.datagrams() {
		return SIDRUnsupported, false
	}
	id := l.newRequestID(c, h)
	if id == nil {
		return 0, true
	}
	id.sidr = q
	id.usePKey(q.PKey)
	l.postRequest(id, &Event{Type: EventConnectRequest, ID: id, Listen: l, UD: &UDParam{}, Conn: ConnParam{Private: q.Private[IPHeaderSize:]}})
	return SIDRSuccess, false
}

// listener finds the listener for a service at an address of a device. One bound to that address
// precedes a wildcard.
func (m *Manager) listener(n NIC, service uint64, dst station) (found *ID) {
	if service>>32 != 0 {
		return nil
	}
	for _, l := range m.ports[portKey{PortSpace(service >> 16), uint16(service)}] {
		if l.state != idListen || l.nic != nil && l.nic != n || !l.session.uses(n) {
			continue
		}
		if a := l.src.Addr(); a == dst.addr && l.local.VLAN == dst.vlan {
			return l
		} else if overlap(l, a, &ID{}, dst.addr) && isWildcard(a) {
			found = l
		}
	}
	return found
}

func (s *Session) uses(n NIC) bool {
	for _, o := range s.nics {
		if o == n {
			return true
		}
	}
	return false
}

// newRequestID creates the identifier of a connection request, nil if the listener's backlog is
// full and the request may not displace another one.
func (l *ID) newRequestID(c *Conn, h IPHeader) *ID {
	n := c.port.(NIC)
	local, ok := findAddress(n, station{c.route.Src, c.route.VLAN})
	ok = ok && (c.route.Network != packet.RoCEv1 || local.RoCEv1Index >= 0)
	if !ok || l.session.checkEvents() != nil || l.session.checkConn() != nil {
		return nil
	}
	if l.queued.len() >= l.room {
		old := l.queued.displacedBy(&c.route)
		if old == nil {
			return nil
		}
		old.displace()
	}
	id, err := l.session.NewID(l.channel, l.ps, l.qpType)
	if err != nil {
		return nil
	}
	id.nic, id.local, id.route, id.passive, id.conn, id.state = n, local, c.route, true, c, idConnect
	id.halfOpen = &l.accepted
	id.src, id.dst = netip.AddrPortFrom(h.Dst, l.src.Port()), netip.AddrPortFrom(h.Src, h.SrcPort)
	id.tos, id.ackTimeout = l.tos, l.ackTimeout
	c.Owner = id
	l.session.own(c)
	return id
}

// usePKey puts a connection into the partition that the peer names. If this NIC is not a member,
// the connection stays in the partition of the request.
func (id *ID) usePKey(key uint16) {
	if _, ok := id.nic.PKeyIndex(key); ok {
		id.route.PKey = key
	}
}

// postRequest posts a connection request to the listener's channel.
func (l *ID) postRequest(id *ID, n *Event) {
	l.queued.add(id)
	id.post(n)
}

// displace destroys a connection request that the program has not received yet. The sender, if it
// still waits, repeats it.
func (id *ID) displace() {
	c := id.conn
	id.conn = nil
	id.channel.spare += id.Destroy()
	c.Drop()
}

// Event implements Handler.
func (m *Manager) Event(c *Conn, e *ConnEvent) {
	id, ok := c.Owner.(*ID)
	if !ok || id.conn != c {
		return
	}
	if id.member != nil {
		if id.member.of != id.halfOpen {
			// The program has not received the request, but may have been notified of it: it stays
			// until another one displaces it.
			id.member.withdrawn = e
			return
		}
		id.leaveBacklog() // the wait for the RTU is over
	}
	switch e.Kind {
	case ConnReplied:
		id.rep = e.REP
		id.post(&Event{Type: EventConnectResponse, Conn: ConnParam{
			ResponderResources: e.REP.InitiatorDepth, InitiatorDepth: e.REP.ResponderResources, FlowControl: e.REP.FlowControl,
			RNRRetryCount: e.REP.RNRRetryCount, SRQ: e.REP.SRQ, QPN: e.REP.LocalQPN, Private: e.Private,
			ECEVendor: e.REP.Vendor(), ECEOptions: e.REP.Options,
		}})
	case ConnEstablished:
		id.post(&Event{Type: EventEstablished})
	case ConnRejected:
		id.conn = unlessClosed(c)
		id.post(&Event{Type: EventRejected, Status: int(e.Reason), Conn: ConnParam{Private: e.Private}})
	case ConnUnreachable:
		id.conn = nil
		id.post(&Event{Type: EventUnreachable, Status: -int(syscall.ETIMEDOUT)})
	case ConnDisconnected:
		status := 0
		if e.Timeout {
			status = -int(syscall.ETIMEDOUT)
		}
		id.post(&Event{Type: EventDisconnected, Status: status})
	case ConnTimewaitExit:
		id.conn = nil
		id.post(&Event{Type: EventTimewaitExit})
	case ConnSIDRReply:
		id.lookedUp(e)
	}
}

// unlessClosed returns the connection if it can still report events, else nil.
func unlessClosed(c *Conn) *Conn {
	if c.State() == StateClosed {
		return nil
	}
	return c
}

func (id *ID) lookedUp(e *ConnEvent) {
	id.conn = nil
	if e.SIDR.Status != SIDRSuccess {
		id.post(&Event{Type: EventUnreachable, Status: int(e.SIDR.Status)})
		return
	}
	id.post(&Event{Type: EventEstablished, Conn: ConnParam{Private: e.Private},
		UD: &UDParam{AH: id.addressVector(), QPN: e.SIDR.QPN, QKey: e.SIDR.QKey}})
}

// addressVector returns the address vector of the peer.
func (id *ID) addressVector() AddressVector {
	a, _ := findAddress(id.nic, station{id.route.Src, id.route.VLAN})
	index := a.GIDIndex
	if id.route.Network == packet.RoCEv1 {
		index = a.RoCEv1Index
	}
	return AddressVector{DGID: id.route.Dst.As16(), SGIDIndex: uint8(index), FlowLabel: id.route.FlowLabel,
		HopLimit: id.route.HopLimit, TClass: id.route.TClass, SL: id.route.SL}
}
