package cm

import "softroce/internal/ib"

// A State is the state of a connection on this side (IBTA 12.9).
type State uint8

// States. Whether an MRA was received is not part of the state.
const (
	StateREQSent State = iota + 1
	StateREQReceived
	StateREPSent
	StateREPReceived
	StateEstablished
	StateDREQSent
	StateDREQReceived
	StateTimewait
	StateSIDRSent
	StateSIDRReceived
	StateSIDRAnswered
	StateClosed // removed from the agent
)

var stateNames = [...]string{"idle", "REQ sent", "REQ received", "REP sent", "REP received", "established", "DREQ sent",
	"DREQ received", "timewait", "SIDR_REQ sent", "SIDR_REQ received", "SIDR_REP sent", "closed"}

func (s State) String() string { return stateNames[s] }

// A Conn is one side of a connection, from its first message to the end of timewait, or of a SIDR
// request.
type Conn struct {
	// Owner belongs to the handler. A connection without an owner reports no events.
	Owner any

	share *int // how many connections the user has, nil if it is no user's

	agent    *Agent
	port     Port
	route    Route
	state    State
	active   bool // this side sent the REQ
	localID  uint32
	remoteID uint32
	guid     uint64 // CA GUID of the peer, 0 if unknown
	localQPN uint32
	peerQPN  uint32
	tid      uint64 // of the message that is sent or replied to

	life  uint8 // code of the packet lifetime, for timewait
	sends bool  // the reply to a duplicate is an MRA

	// The message that is retransmitted.
	mad      [MADSize]byte
	interval int64
	retries  int // retransmissions left
	limit    int // retransmissions of each message
	deadline int64
	timer    int // index in the agent's heap, -1 for none
}

// State returns the state of the connection.
func (c *Conn) State() State { return c.state }

// LocalID returns this side's communication ID.
func (c *Conn) LocalID() uint32 { return c.localID }

// Connect sends a REQ and sets its LocalID. The caller sets q.LocalQPN, Primary and the times.
func (a *Agent) Connect(now int64, p Port, r Route, q *REQ) (*Conn, error) {
	c, err := a.newConn(p, r)
	if err != nil {
		return nil, err
	}
	q.LocalID, q.LocalGUID = c.localID, p.GUID()
	c.active, c.state, c.localQPN = true, StateREQSent, q.LocalQPN
	c.life, c.limit, c.tid = q.Primary.ACKTimeout, int(q.MaxCMRetries), uint64(AttrREQ)<<32|uint64(c.localID)
	c.send(now, q, ib.TimeCode(q.RemoteResponseTime)+2*ib.TimeCode(PacketLife))
	return c, nil
}

// Accept replies to a REQ with a REP and sets its IDs.
func (c *Conn) Accept(now int64, p *REP) error {
	if c.state != StateREQReceived {
		return ErrState
	}
	p.LocalID, p.RemoteID, p.LocalGUID = c.localID, c.remoteID, c.port.GUID()
	c.state, c.localQPN, c.sends = StateREPSent, p.LocalQPN, false
	c.send(now, p, c.interval)
	return nil
}

// Ready replies to a REP with an RTU: the connection is established.
func (c *Conn) Ready() error {
	if c.state != StateREPReceived {
		return ErrState
	}
	c.state, c.sends = StateEstablished, false
	c.sendOnce(&RTU{LocalID: c.localID, RemoteID: c.remoteID})
	return nil
}

// Notify reports that the peer already uses the connection, though its RTU has not arrived.
func (c *Conn) Notify() error {
	if c.state != StateREPSent {
		return ErrState
	}
	c.established()
	return nil
}

// Reject rejects a REQ or REP and closes the connection. The REJ carries up to ARISize bytes of
// info and REJPrivate bytes of private data.
func (c *Conn) Reject(why Reason, info, private []byte) error {
	var about uint8
	switch c.state {
	case StateREQReceived:
		about = AboutREQ
	case StateREPReceived:
		about = AboutREP
	case StateREPSent, StateREQSent:
		about = AboutOther
	default:
		return ErrState
	}
	m := &REJ{LocalID: c.localID, RemoteID: c.remoteID, About: about, Reason: why, InfoLength: uint8(len(info))}
	if copy(m.Info[:], info) < len(info) || copy(m.Private[:], private) < len(private) {
		return ErrLong
	}
	c.sendOnce(m)
	c.remove()
	return nil
}

// Disconnect ends the connection: it sends a DREQ, or the DREP for the peer's.
func (c *Conn) Disconnect(now int64) error {
	switch c.state {
	case StateEstablished:
		c.state, c.tid = StateDREQSent, uint64(AttrDREQ)<<32|uint64(c.localID)
		c.retries = c.limit
		c.send(now, &DREQ{LocalID: c.localID, RemoteID: c.remoteID, RemoteQPN: c.peerQPN}, ib.TimeCode(c.life)+2*ib.TimeCode(PacketLife))
	case StateDREQReceived:
		c.sendOnce(&DREP{LocalID: c.localID, RemoteID: c.remoteID})
		c.timewait(now)
	default:
		return ErrState
	}
	return nil
}

// Close gives up the connection in any state and sends the message that the state requires. What
// the protocol requires after that happens without an owner.
func (c *Conn) Close(now int64) {
	c.Owner = nil
	switch c.state {
	case StateREQSent:
		// The peer finds the connection by this side's CA GUID and communication ID (12.6.7.2,
		// reason 4).
		guid := c.port.GUID()
		info := []byte{byte(guid >> 56), byte(guid >> 48), byte(guid >> 40), byte(guid >> 32), byte(guid >> 24), byte(guid >> 16), byte(guid >> 8), byte(guid)}
		c.Reject(RejectTimeout, info, nil)
	case StateREQReceived, StateREPReceived, StateREPSent:
		c.Reject(RejectConsumer, nil, nil)
	case StateEstablished, StateDREQReceived:
		c.Disconnect(now)
	case StateSIDRReceived:
		c.ReplySIDR(now, &SIDRREP{Status: SIDRReject})
	case StateSIDRSent:
		c.remove()
	}
}

// Drop forgets a REQ or SIDR_REQ that has no reply yet. If its sender repeats it, it is a new one.
func (c *Conn) Drop() {
	if c.state == StateREQReceived || c.state == StateSIDRReceived {
		c.remove()
	}
}

// GiveUp ends the wait for the RTU before its time: the handler has no room. The peer receives a
// REJ, and the owner a ConnUnreachable event.
func (c *Conn) GiveUp(now int64) {
	if c.state == StateREPSent {
		c.timedOut(now)
	}
}

// send sends a message, and retransmits it every interval, at most retries times, until a reply
// arrives.
func (c *Conn) send(now int64, m Message, interval int64) {
	modifier := uint32(0)
	switch m := m.(type) {
	case *REQ:
		modifier = m.Options
	case *REP:
		modifier = m.Options
	}
	Put(&c.mad, c.tid, modifier, m)
	c.interval, c.retries = interval, c.limit
	c.port.Send(&c.mad, &c.route)
	c.agent.timers.set(c, now+interval)
}

// sendOnce sends a message without retransmission and stops that of the previous one.
func (c *Conn) sendOnce(m Message) {
	Put(&c.mad, c.tid, 0, m)
	c.port.Send(&c.mad, &c.route)
	c.agent.timers.set(c, 0)
}

// resend sends the last message once more.
func (c *Conn) resend() { c.port.Send(&c.mad, &c.route) }

// expire handles the deadline of the connection.
func (c *Conn) expire(now int64) {
	switch c.state {
	case StateREQSent, StateREPSent, StateDREQSent, StateSIDRSent:
		if c.retries > 0 {
			c.retries--
			c.resend()
			c.agent.timers.set(c, now+c.interval)
			return
		}
		c.timedOut(now)
	case StateREQReceived, StateSIDRReceived:
		c.notify(&ConnEvent{Kind: ConnAbandoned})
	case StateTimewait:
		c.notify(&ConnEvent{Kind: ConnTimewaitExit})
		c.remove()
	case StateSIDRAnswered:
		c.remove()
	}
}

// timedOut ends a connection whose peer has not replied.
func (c *Conn) timedOut(now int64) {
	if c.state == StateDREQSent {
		c.timewait(now)
		c.notify(&ConnEvent{Kind: ConnDisconnected, Timeout: true})
		return
	}
	if c.state == StateREPSent { // the peer may be waiting too
		c.sendOnce(&REJ{LocalID: c.localID, RemoteID: c.remoteID, About: AboutOther, Reason: RejectTimeout})
	}
	c.remove()
	c.notify(&ConnEvent{Kind: ConnUnreachable})
}

// timewait keeps the connection's numbers until none of its packets can be in the network
// (12.9.8.4).
func (c *Conn) timewait(now int64) {
	c.state = StateTimewait
	wait := ib.TimeCode(c.life)
	if c.agent.Linger != nil {
		wait += c.agent.Linger(c)
	}
	c.agent.timers.set(c, now+wait)
}

// established ends the wait for an RTU.
func (c *Conn) established() {
	c.state = StateEstablished
	c.agent.timers.set(c, 0)
	c.notify(&ConnEvent{Kind: ConnEstablished})
}

// notify reports an event to the owner, if there is one.
func (c *Conn) notify(e *ConnEvent) {
	if c.Owner != nil {
		c.agent.handler.Event(c, e)
	}
}

// setPeer records the identity of the peer.
func (c *Conn) setPeer(id uint32, guid uint64, qpn uint32) {
	a := c.agent
	c.remoteID, c.guid, c.peerQPN = id, guid, qpn
	a.peers[c.peerID(id)] = c
	if qpn != 0 {
		a.peerQP[c.peerID(qpn)] = c
	}
}

// peerID returns the key of a number of the peer.
func (c *Conn) peerID(id uint32) peerID { return peerID{c.port, c.route.peer(), id} }

// remove removes the connection from all tables.
func (c *Conn) remove() {
	a := c.agent
	c.state = StateClosed
	if c.share != nil {
		*c.share--
		c.share = nil
	}
	a.timers.set(c, 0)
	if a.conns[c.localID] == c {
		delete(a.conns, c.localID)
	}
	if k := c.peerID(c.remoteID); a.peers[k] == c {
		delete(a.peers, k)
	}
	if k := c.peerID(c.remoteID); a.sidrRequests[k] == c {
		delete(a.sidrRequests, k)
	}
	if k := c.peerID(c.peerQPN); a.peerQP[k] == c {
		delete(a.peerQP, k)
	}
}
