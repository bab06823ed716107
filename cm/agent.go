package cm

import (
	"errors"
	"math/rand/v2"
	"net/netip"

	"softroce/packet"
)

// Errors of Agent; match with errors.Is.
var (
	ErrState = errors.New("the state of the connection does not allow the operation")
	ErrFull  = errors.New("too many connections")
	ErrLong  = errors.New("private data is too long")
)

// A Port is the general services interface of a NIC.
type Port interface {
	// Send sends a MAD to QP 1 of a peer. It does not block, and the MAD may be lost.
	Send(mad *[MADSize]byte, to *Route)

	GUID() uint64 // CA GUID
}

// A Route is the destination of MADs and the path to it.
type Route struct {
	Network   packet.Network // RoCEv2 or RoCEv1. Replies go the way that the request came
	Src, Dst  netip.Addr
	VLAN      uint16  // VLAN ID, 0 for none
	DstMAC    [6]byte // MAC of the next hop; of a received MAD: its sender's, zeros if the link does not know it
	TClass    uint8
	SL        uint8 // service level
	HopLimit  uint8
	FlowLabel uint32
	PKey      uint16 // of the partition
}

// A station is an IP address in a VLAN.
type station struct {
	addr netip.Addr
	vlan uint16
}

// peer returns the station to which the route leads.
func (r *Route) peer() station { return station{r.Dst, r.VLAN} }

// A Handler receives the events of an agent's connections. Receive and Expire call it, and it may
// call the agent.
type Handler interface {
	// Request offers a new connection that a peer requests. A reason other than 0 rejects it; with
	// NoReply nothing is sent, and the peer repeats the REQ. Otherwise the handler keeps c.
	Request(c *Conn, q *REQ) Reason

	// Lookup offers a SIDR request. A status other than SIDRSuccess is sent at once; otherwise the
	// handler calls c.ReplySIDR. With ignore nothing is sent.
	Lookup(c *Conn, q *SIDRREQ) (status SIDRStatus, ignore bool)

	// Event reports an event of a connection that has an Owner.
	Event(c *Conn, e *ConnEvent)
}

// NoReply makes Request leave a REQ unanswered.
const NoReply Reason = 0xffff

// A ConnEventType is the type of a ConnEvent.
type ConnEventType uint8

// Types of events.
const (
	ConnReplied      ConnEventType = iota + 1 // a REP arrived: Ready or Reject is next
	ConnEstablished                           // an RTU arrived
	ConnRejected                              // a REJ arrived
	ConnUnreachable                           // there was no reply to a REQ, REP or SIDR_REQ
	ConnDisconnected                          // a DREQ (Disconnect replies to it) or a DREP arrived
	ConnTimewaitExit                          // timewait is over
	ConnSIDRReply                             // a SIDR_REP arrived
	ConnAbandoned                             // the sender of a REQ or SIDR_REQ has given up by now; the handler may Drop it
)

// A ConnEvent is an event of a connection.
type ConnEvent struct {
	Kind    ConnEventType
	Reason  Reason   // ConnRejected
	REP     *REP     // ConnReplied
	SIDR    *SIDRREP // ConnSIDRReply
	Private []byte   // private data of the message
	Timeout bool     // ConnDisconnected: the DREQ was not answered
}

// Times are codes of 4.096 µs · 2^n, as in messages.
const (
	// ResponseTime is the longest time to reply, of either side: 4.3 s, the value of the Linux CM.
	ResponseTime = 20

	// PacketLife is the packet lifetime: 0.27 s, the value of the Linux CM for Ethernet.
	PacketLife = 16

	// serviceTime is how long a program may take to accept, as an MRA states it: 69 s.
	serviceTime = 24

	// MaxRetries is how often a message is retransmitted.
	MaxRetries = 15
)

const (
	// maxConns bounds the connections of an agent, those in timewait included.
	maxConns = 1 << 17

	// maxSIDRAnswered bounds the SIDR requests that an agent remembers after its reply. The oldest
	// is forgotten first: if it is repeated, the program is asked again.
	maxSIDRAnswered = 1 << 12
)

// An Agent implements the protocol of the connection manager for any number of ports. One goroutine
// calls its methods and those of its connections, with the time in nanoseconds.
type Agent struct {
	// Linger, if it is set, returns by how many nanoseconds the timewait of a connection is longer.
	Linger func(c *Conn) int64

	handler Handler
	random  *rand.Rand
	mask    uint32 // turns a counter into communication IDs that are hard to guess
	lastID  uint32

	conns        map[uint32]*Conn // by local ID
	peers        map[peerID]*Conn // by the peer's ID: to detect duplicates
	peerQP       map[peerID]*Conn // by the peer's queue pair: to detect stale connections
	sidrRequests map[peerID]*Conn // by the peer's request ID
	sidrAnswered []*Conn          // oldest first; those that were removed are closed
	timers       timers
}

// peerID is a number of a peer: a communication ID, a QPN or a request ID. Two NICs may have one CA
// GUID, since it is made from the MAC, and number their objects alike; they differ in address.
type peerID struct {
	port Port
	from station
	id   uint32
}

// NewAgent returns an agent. seed determines communication IDs and PSNs.
func NewAgent(h Handler, seed uint64) *Agent {
	a := &Agent{handler: h, random: rand.New(rand.NewPCG(seed, 0xc0)), conns: map[uint32]*Conn{},
		peers: map[peerID]*Conn{}, peerQP: map[peerID]*Conn{}, sidrRequests: map[peerID]*Conn{}}
	a.mask = a.random.Uint32()
	return a
}

// Len returns the number of connections, those in timewait included.
func (a *Agent) Len() int { return len(a.conns) + len(a.sidrRequests) }

// NextDeadline returns when Expire is due, 0 for never.
func (a *Agent) NextDeadline() int64 { return a.timers.next() }

// Expire handles the deadlines that have passed.
func (a *Agent) Expire(now int64) {
	for {
		c := a.timers.pop(now)
		if c == nil {
			return
		}
		c.expire(now)
	}
}

// RequesterMAC returns the MAC from which the REQ for a queue pair of a peer came, zeros if the
// link does not know it. ok is false if no REQ named that queue pair.
func (a *Agent) RequesterMAC(p Port, from netip.Addr, vlan uint16, qpn uint32) (mac [6]byte, ok bool) {
	if c := a.peerQP[peerID{p, station{from, vlan}, qpn}]; c != nil && !c.active {
		return c.route.DstMAC, true
	}
	return mac, false
}

// StartingPSN returns a random PSN for a connection.
func (a *Agent) StartingPSN() uint32 { return a.random.Uint32() & 0xffffff }

// newConn creates a connection with a communication ID.
func (a *Agent) newConn(p Port, r Route) (*Conn, error) {
	if a.Len() >= maxConns {
		return nil, ErrFull
	}
	c := &Conn{agent: a, port: p, route: r, timer: -1}
	for {
		a.lastID++
		c.localID = a.lastID ^ a.mask
		if c.localID != 0 && a.conns[c.localID] == nil {
			break
		}
	}
	a.conns[c.localID] = c
	return c, nil
}

// Receive handles a MAD that arrived at QP 1 of a port; back is the route to its sender.
func (a *Agent) Receive(now int64, p Port, back Route, mad []byte) {
	h, m, err := Parse(mad)
	if err != nil {
		var reply [MADSize]byte
		if UnsupportedReply(mad, &reply) {
			p.Send(&reply, &back)
		}
		return
	}
	in := incoming{agent: a, now: now, port: p, back: back, header: h}
	switch m := m.(type) {
	case *REQ:
		m.Options = h.Modifier
		in.req(m)
	case *REP:
		m.Options = h.Modifier
		in.rep(m)
	case *RTU:
		in.rtu(m)
	case *MRA:
		in.mra(m)
	case *REJ:
		in.rej(m)
	case *DREQ:
		in.dreq(m)
	case *DREP:
		in.drep(m)
	case *SIDRREQ:
		in.sidrReq(m)
	case *SIDRREP:
		in.sidrRep(m)
	case *LAP:
		in.lap(m)
	}
}

// An incoming is a received message.
type incoming struct {
	agent  *Agent
	now    int64
	port   Port
	back   Route
	header Header
}

// find returns the connection with this side's communication ID and, if the connection knows it,
// the peer's.
func (in *incoming) find(ours, theirs uint32) *Conn {
	c := in.agent.conns[ours]
	if c == nil || !in.fromPeer(c) || c.remoteID != 0 && c.remoteID != theirs {
		return nil
	}
	return c
}

// fromPeer reports whether the message came from the peer of c, through the same NIC.
func (in *incoming) fromPeer(c *Conn) bool {
	return c.port == in.port && c.route.peer() == in.back.peer()
}

// sender returns the key of a number of the message's sender.
func (in *incoming) sender(id uint32) peerID { return peerID{in.port, in.back.peer(), id} }

// reply sends a message that belongs to no connection.
func (in *incoming) reply(m Message) {
	var mad [MADSize]byte
	Put(&mad, in.header.TID, 0, m)
	in.port.Send(&mad, &in.back)
}

// reject sends a REJ that belongs to no connection.
func (in *incoming) reject(ours, theirs uint32, about uint8, why Reason) {
	in.reply(&REJ{LocalID: ours, RemoteID: theirs, About: about, Reason: why})
}
