package network

import (
	"math/bits"

	"softroce/packet"
)

// A Port is an end of a cable: the queues of what is sent, and what is known of what arrives. What
// each frame needs is in the first three cache lines and that of its class.
type Port struct {
	node    *node
	peer    *Port
	tap     func(now int64, sent bool, f *Frame)
	fault   *fault // of the cable; nil: it never has one
	Rate    int64  // b/s
	delay   int64  // ns, of the cable
	index   int32
	room    int32 // of a NIC: how many bytes of a priority it queues before it has no room
	queued  uint8 // a bit for each priority that has frames
	paused  uint8 // a bit for each priority that the peer has paused
	refused uint8 // a bit for each priority of which Room was false
	urgent  bool  // control has frames

	sending entry // of size 0: the port is idle
	freeAt  int64 // when the last frame has been sent, rounded up to ns
	early   int64 // by how many ps it was sent earlier
	bytes   int   // in queues
	peak    int   // the longest queue since Sample or Reset was called last

	flight  queue     // frames that have left and not arrived
	counted int64     // until when the mean queue is counted
	area    float64   // queue times ns
	stats   PortStats // since the last Reset

	control queue // pause frames, which precede all others
	turn    int   // the weighted priority that is served
	deficit [packet.Priorities]int
	before  int       // the longest queue from when Sample was called last to a Reset
	since   int64     // since when some are paused, or when this was counted last
	sampled PortStats // when Sample was called last; differences count

	Name string // NODE:PEER, the name of a NIC for its only port

	// The size of a Port is an odd number of cache lines, so that the same fields of all ports use
	// all sets of a cache.
	_ [40 + 64]byte // the rest of a line, and another one

	classes [packet.Priorities]class // by priority
}

// A class is what a port has of a priority, in a cache line.
type class struct {
	queue queue // of what the port is to send
	bytes int   // in queue

	// What the switch holds of the frames that arrived at the port.
	held     int  // bytes
	headroom int  // how many of them are in the headroom, and not in the shared buffer
	xoff     bool // the peer has been paused
}

// PortStats are the statistics of a port since its network was made or the last Reset.
type PortStats struct {
	Frames         uint64  `json:"frames"` // sent, without pause frames
	Bytes          uint64  `json:"bytes"`
	Marked         uint64  `json:"marked"`      // frames with CE set here
	Dropped        uint64  `json:"dropped"`     // frames for which there was no room in the queue of the port, or at the NIC
	Lost           uint64  `json:"lost"`        // frames that a failure of the cable lost
	MaxQueue       int     `json:"max_queue"`   // bytes
	MeanQueue      float64 `json:"mean_queue"`  // bytes
	PausesSent     uint64  `json:"pauses_sent"` // XOFF frames
	PausesReceived uint64  `json:"pauses_received"`
	Paused         int64   `json:"paused_ns"` // during which some priority was paused by the peer
}

// pick removes the frame to send next from its queue: a pause frame, then those of priorities
// without a weight, the highest first, then those with weights, by deficit round robin.
func (p *Port) pick(c *SwitchConfig) (e entry, ok bool) {
	if p.urgent {
		e = p.control.pop()
		p.urgent = p.control.n > 0
		return e, true
	}
	weighted := false
	for left := p.queued &^ p.paused; left != 0; {
		i := bits.Len8(left) - 1
		if c.Weights[i] == 0 {
			return p.take(i), true
		}
		weighted = true
		left &^= 1 << i
	}
	if !weighted {
		return entry{}, false
	}
	for {
		i := p.turn
		if c.Weights[i] > 0 && p.sendable(i) && p.deficit[i] >= int(p.classes[i].queue.head().size) {
			e = p.take(i)
			p.deficit[i] -= int(e.size)
			return e, true
		}
		if p.classes[i].queue.n == 0 {
			p.deficit[i] = 0
		}
		p.turn = (i + 1) % packet.Priorities
		if c.Weights[p.turn] > 0 && p.sendable(p.turn) {
			p.deficit[p.turn] += c.Weights[p.turn] * quantum
		}
	}
}

// quantum is how many bytes a priority of weight 1 may send in its turn: a frame of any size.
const quantum = 10240

func (p *Port) sendable(priority int) bool { return (p.queued&^p.paused)>>priority&1 != 0 }

func (p *Port) isPaused(priority int) bool { return p.paused>>priority&1 != 0 }

func (p *Port) take(priority int) entry {
	k := &p.classes[priority]
	e := k.queue.pop()
	k.bytes -= int(e.size)
	p.bytes -= int(e.size)
	if k.queue.n == 0 {
		p.queued &^= 1 << priority
	}
	return e
}

// account counts the length of the queues until now, before it changes.
func (p *Port) account(now int64) {
	p.area += float64(p.bytes) * float64(now-p.counted)
	p.counted = now
}

// transmit starts to send a frame if the port is idle.
func (n *Network) transmit(p *Port) {
	if p.sending.size != 0 {
		return
	}
	p.account(n.now)
	e, ok := p.pick(&n.topology.Switch)
	if !ok {
		return
	}
	n.mark(p, &e)
	p.sending = e
	if p.freeAt < n.now { // the port was idle
		p.freeAt, p.early = n.now, 0
	}
	d := int64(int(e.size)+overhead)*8*1e12/p.Rate - p.early // ps
	ns := (d + 999) / 1000
	p.freeAt, p.early = p.freeAt+ns, ns*1000-d
	n.schedule(p.freeAt, p, sent)
}

// sentFrame ends the transmission of a frame.
func (n *Network) sentFrame(p *Port) {
	e := &p.sending
	if !p.fault.loses() {
		n.countSent(p, e)
	}
	if e.from != none {
		n.leave(p.node, e)
	}
	if by := n.loser(p, e); by != nil {
		n.lose(p, e, by)
	} else {
		e.arrives = n.now + p.delay
		if p.flight.n == 0 {
			n.schedule(e.arrives, p, arrived)
		}
		p.flight.push(e)
	}
	p.sending.size = 0
	if p.refused != 0 {
		n.endRefusal(p, e.priority)
	}
	n.transmit(p)
}

func (n *Network) countSent(p *Port, e *entry) {
	if p.tap != nil {
		p.tap(n.now, true, n.asFrame(e))
	}
	if e.is(flagPause) {
		p.stats.PausesSent += xoffs(e)
		return
	}
	p.stats.Frames++
	p.stats.Bytes += uint64(e.size)
	n.hops++
}

func xoffs(e *entry) uint64 {
	if e.is(flagXOff) {
		return 1
	}
	return 0
}

// deliver takes the first frame off the cable that begins at p. There is none if the cable was
// taken away.
func (n *Network) deliver(p *Port) {
	if p.flight.n == 0 {
		return
	}
	e := p.flight.pop()
	if p.flight.n > 0 {
		n.schedule(p.flight.head().arrives, p, arrived)
	}
	at := p.peer
	if at.tap != nil {
		at.tap(n.now, false, n.asFrame(&e))
	}
	switch k := at.node; {
	case e.is(flagPause):
		n.pause(at, &e)
	case k.nic < 0:
		n.admit(at, &e)
	case k.receivedBytes > receiveQueue:
		n.drop(at, &e)
	default:
		k.received.push(&e)
		k.receivedBytes += int32(e.size)
		n.ready(k)
	}
}

// pause handles a pause frame that arrived at p.
func (n *Network) pause(p *Port, e *entry) {
	if p.isPaused(int(e.priority)) == e.is(flagXOff) {
		return
	}
	p.countPause(n.now)
	p.paused ^= 1 << e.priority
	n.ready(p.node)
	if e.is(flagXOff) {
		p.stats.PausesReceived++
		return
	}
	n.transmit(p)
}

func (p *Port) countPause(now int64) {
	if p.paused != 0 {
		p.stats.Paused += now - p.since
	}
	p.since = now
}

// Stats returns the statistics of a port.
func (n *Network) Stats(p *Port) PortStats {
	p.account(n.now)
	p.countPause(n.now)
	s := p.stats
	s.MaxQueue = max(s.MaxQueue, p.peak)
	if t := n.now - n.resetAt; t > 0 {
		s.MeanQueue = p.area / float64(t)
	}
	return s
}

// Reset sets the statistics of all ports to zero.
func (n *Network) Reset() {
	for _, p := range n.ports {
		p.countPause(n.now)
		p.sampled = p.sampled.minus(&p.stats)
		p.stats, p.area, p.counted, p.since = PortStats{}, 0, n.now, n.now
		p.before, p.peak = max(p.before, p.peak), p.bytes
	}
	n.resetAt = n.now
}

// A PortSample is what a port has done since the last one.
type PortSample struct {
	Bytes, Marked, Dropped, Lost uint64
	Queue                        int   // the longest, in bytes
	Paused                       int64 // ns
}

// Sample returns what a port has done since it was called last, also before the last Reset.
func (n *Network) Sample(p *Port) PortSample {
	p.countPause(n.now)
	d := p.stats.minus(&p.sampled)
	s := PortSample{Bytes: d.Bytes, Marked: d.Marked, Dropped: d.Dropped, Lost: d.Lost, Queue: max(p.before, p.peak), Paused: d.Paused}
	p.stats.MaxQueue = max(p.stats.MaxQueue, p.peak)
	p.sampled, p.before, p.peak = p.stats, 0, p.bytes
	return s
}

// minus returns the differences of the counters that Sample has. They may wrap.
func (s *PortStats) minus(o *PortStats) PortStats {
	return PortStats{Bytes: s.Bytes - o.Bytes, Marked: s.Marked - o.Marked, Dropped: s.Dropped - o.Dropped, Lost: s.Lost - o.Lost, Paused: s.Paused - o.Paused}
}
