package cm

import (
	"errors"
	"math/rand/v2"
	"net/netip"
)

// Errors of Agent; match with errors.Is.
var (
	ErrState = errors.New("the connection's state does not allow it")
	ErrFull  = errors.New("too many connections")
	ErrLong  = errors.New("private data is too long")
)

// A Port is the general services interface of a NIC.
type Port interface {
	// Send sends a MAD to QP 1 of a peer. It does not block, and what it sends may be lost.
	Send(mad *[MADSize]byte, to *Route)

	GUID() uint64 // CA GUID
}

// A Route is where MADs go and how.
type Route struct {
	Src, Dst  netip.Addr
	DstMAC    [6]byte // of the next hop
	TClass    uint8
	HopLimit  uint8
	FlowLabel uint32
	PKey      uint16 // of the partition
}

// A Handler hears what happens to an agent's connections. It is called from within Receive and
// Expire, and may call the agent.
type Handler interface {
	// Request offers a new connection that a peer asks for. With a reason other than 0 it is
	// refused, with Ignore nothing is answered and the peer asks again; else the handler keeps c.
	Request(c *Conn, q *REQ) Reason

	// Lookup offers a SIDR request, which is answered at once with a status other than
	// SIDRSuccess, and else by c.Answer. With ignore nothing is answered.
	Lookup(c *Conn, q *SIDRREQ) (status SIDRStatus, ignore bool)

	// Event tells of something that happened to a connection that has an Owner.
	Event(c *Conn, e *ConnEvent)
}

// Ignore makes Request leave a REQ unanswered.
const NoReply Reason = 0xffff

// An EventKind is what happened to a connection.
type ConnEventType uint8

// Events.
const (
	ConnReplied      ConnEventType = iota + 1 // a REP came: Ready or Reject is next
	ConnEstablished                       // a RTU came
	ConnRejected                          // a REJ came
	ConnUnreachable                       // REQ, REP or SIDR_REQ was not answered
	ConnDisconnected                      // a DREQ came (Disconnect answers it), or the answer to one
	ConnTimewaitExit                      // nothing of the connection is under way any more
	ConnSIDRReply                          // a SIDR_REP came
)

// An Event is something that happened to a connection.
type ConnEvent struct {
	Kind    ConnEventType
	Reason  Reason   // Rejected
	REP     *REP     // Replied
	SIDR    *SIDRREP // LookedUp
	Private []byte   // of the message, all of it
	Timeout bool     // Disconnected: the DREQ was not answered
}

// Times are codes of 4.096 µs · 2^n, as messages have them.
const (
	// ResponseTime is how long a peer may take to answer, and we: 4.3 s, as the Linux CM says.
	ResponseTime = 20

	// PacketLife is how long a packet may be under way: 0.27 s, as the Linux CM says of Ethernet.
	PacketLife = 16

	// serviceTime is how long a program may take to accept: what an MRA asks for, 69 s.
	serviceTime = 24

	// MaxRetries is how often a message is sent again.
	MaxRetries = 15
)

// maxConns is how many connections an agent keeps, those in timewait included.
const maxConns = 1 << 17

// An Agent speaks the protocol of the connection manager on any number of ports. Its methods, and
// those of its connections, are called by one goroutine, with the time in nanoseconds.
type Agent struct {
	handler Handler
	random  *rand.Rand
	mask    uint32 // makes communication IDs that are hard to guess out of a counter
	lastID  uint32

	conns  map[uint32]*Conn // by local ID
	peers  map[peerID]*Conn // by the peer's ID: to tell duplicates
	peerQP map[peerID]*Conn // by the peer's queue pair: to tell stale connections
	sidrRequests  map[sidrKey]*Conn
	timers timers
}

// peerID is a communication ID or a QPN of a peer.
type peerID struct {
	guid uint64
	id   uint32
}

// askedID is a SIDR request of a peer.
type sidrKey struct {
	from netip.Addr
	id   uint32
}

// NewAgent returns an agent. seed decides communication IDs and PSNs.
func NewAgent(h Handler, seed uint64) *Agent {
	a := &Agent{handler: h, random: rand.New(rand.NewPCG(seed, 0xc0)), conns: map[uint32]*Conn{},
		peers: map[peerID]*Conn{}, peerQP: map[peerID]*Conn{}, sidrRequests: map[sidrKey]*Conn{}}
	a.mask = a.random.Uint32()
	return a
}

// Len returns how many connections there are, those that end included.
func (a *Agent) Len() int { return len(a.conns) + len(a.sidrRequests) }

// NextDeadline says when Expire wants to be called, 0 for never.
func (a *Agent) NextDeadline() int64 { return a.timers.next() }

// Expire does what is due.
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

// newConn makes a connection with a communication ID.
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

// Receive handles a MAD that came to a port's QP 1; back is the way to its sender.
func (a *Agent) Receive(now int64, p Port, back Route, mad []byte) {
	h, m, err := Parse(mad)
	if err != nil {
		var answer [MADSize]byte
		if UnsupportedReply(mad, &answer) {
			p.Send(&answer, &back)
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

// An incoming is a message that is being handled.
type incoming struct {
	agent  *Agent
	now    int64
	port   Port
	back   Route
	header Header
}

// find returns the connection that a message of a peer names by our ID and, where theirs is known, theirs.
func (in *incoming) find(ours, theirs uint32) *Conn {
	c := in.agent.conns[ours]
	if c == nil || c.port != in.port || c.route.Dst != in.back.Dst || c.remoteID != 0 && c.remoteID != theirs {
		return nil
	}
	return c
}

// answer sends a message of no connection.
func (in *incoming) reply(m Message) {
	var mad [MADSize]byte
	Put(&mad, in.header.TID, 0, m)
	in.port.Send(&mad, &in.back)
}

// refuse answers with a REJ.
func (in *incoming) reject(ours, theirs uint32, about uint8, why Reason) {
	in.reply(&REJ{LocalID: ours, RemoteID: theirs, About: about, Reason: why})
}
