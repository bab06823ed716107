package cm

import (
	"errors"
	"math/rand/v2"
	"net/netip"
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
	Src, Dst  netip.Addr
	DstMAC    [6]byte // MAC of the next hop
	TClass    uint8
	HopLimit  uint8
	FlowLabel uint32
	PKey      uint16 // of the partition
}

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

// maxConns bounds the connections of an agent, those in timewait included.
const maxConns = 1 << 17

// An Agent implements the protocol of the connection manager for any number of ports. One goroutine
// calls its methods and those of its connections, with the time in nanoseconds.
type Agent struct {
	handler Handler
	random  *rand.Rand
	mask    uint32 // turns a counter into communication IDs that are hard to guess
	lastID  uint32

	conns        map[uint32]*Conn // by local ID
	peers        map[peerID]*Conn // by the peer's ID: to detect duplicates
	peerQP       map[peerID]*Conn // by the peer's queue pair: to detect stale connections
	sidrRequests map[sidrKey]*Conn
	timers       timers
}

// peerID is a communication ID or a QPN of a peer.
type peerID struct {
	guid uint64
	id   uint32
}

// sidrKey identifies a SIDR request of a peer.
type sidrKey struct {
	from netip.Addr
	id   uint32
}

// NewAgent returns an agent. seed determines communication IDs and PSNs.
func NewAgent(h Handler, seed uint64) *Agent {
	a := &Agent{handler: h, random: rand.New(rand.NewPCG(seed, 0xc0)), conns: map[uint32]*Conn{},
		peers: map[peerID]*Conn{}, peerQP: map[peerID]*Conn{}, sidrRequests: map[sidrKey]*Conn{}}
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
	if c == nil || c.port != in.port || c.route.Dst != in.back.Dst || c.remoteID != 0 && c.remoteID != theirs {
		return nil
	}
	return c
}

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
