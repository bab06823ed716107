package network

import (
	"math/bits"

	"softroce/packet"
)

// A Port is an end of a cable: the queues of what is sent, and what is known of what arrives.
// Fields that each frame needs come first.
type Port struct {
	node   *node
	peer   *Port
	index  int32
	queued uint8 // a bit for each priority that has frames
	paused uint8 // a bit for each priority that the peer has paused
	Rate   int64 // b/s
	delay  int64 // ns, of the cable

	sending        *Frame
	freeAt         int64      // when the last frame has been sent, rounded up to ns
	early          int64      // by how many ps it was sent earlier
	flight         frameQueue // frames that have left and not arrived
	control        frameQueue // pause frames, which precede all others
	downBy, lossBy *failure   // of the cable
	tap            func(now int64, sent bool, f *Frame)

	bytes   int       // in queues
	peak    int       // the longest queue since Sample was called last
	counted int64     // until when the mean queue is counted
	area    float64   // queue times ns
	refused bool      // Room was false
	stats   PortStats // since the last Reset

	queues  [packet.Priorities]frameQueue
	ingress [packet.Priorities]ingress

	turn    int // the weighted priority that is served
	deficit [packet.Priorities]int
	since   int64     // since when some are paused, or when this was counted last
	sampled PortStats // when Sample was called last; differences count

	Name string // NODE:PEER, the name of a NIC for its only port
}

// An ingress is what a switch holds of the frames of one priority that arrived at a port.
type ingress struct {
	bytes    int
	headroom int  // how many of bytes are in the headroom, and not in the shared buffer
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
func (p *Port) pick(c *SwitchConfig) *Frame {
	if p.control.first != nil {
		return p.control.pop()
	}
	weighted := false
	for left := p.queued &^ p.paused; left != 0; {
		i := bits.Len8(left) - 1
		if c.Weights[i] == 0 {
			return p.take(i)
		}
		weighted = true
		left &^= 1 << i
	}
	if !weighted {
		return nil
	}
	for {
		i := p.turn
		if c.Weights[i] > 0 && p.sendable(i) && p.deficit[i] >= p.queues[i].first.Size {
			p.deficit[i] -= p.queues[i].first.Size
			return p.take(i)
		}
		if p.queues[i].first == nil {
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

func (p *Port) take(priority int) *Frame {
	q := &p.queues[priority]
	f := q.pop()
	p.bytes -= f.Size
	if q.first == nil {
		p.queued &^= 1 << priority
	}
	return f
}

// account counts the length of the queues until now, before it changes.
func (p *Port) account(now int64) {
	p.area += float64(p.bytes) * float64(now-p.counted)
	p.counted = now
}

// transmit starts to send a frame if the port is idle.
func (n *Network) transmit(p *Port) {
	if p.sending != nil {
		return
	}
	p.account(n.now)
	f := p.pick(&n.topology.Switch)
	if f == nil {
		return
	}
	n.mark(p, f)
	p.sending = f
	if p.freeAt < n.now { // the port was idle
		p.freeAt, p.early = n.now, 0
	}
	d := int64(f.Size+overhead)*8*1e12/p.Rate - p.early // ps
	ns := (d + 999) / 1000
	p.freeAt, p.early = p.freeAt+ns, ns*1000-d
	n.schedule(p.freeAt, p, sent)
}

// sentFrame ends the transmission of a frame.
func (n *Network) sentFrame(p *Port) {
	f := p.sending
	p.sending = nil
	if p.downBy == nil && f.lostTo == 0 {
		n.countSent(p, f)
	}
	if f.arrived != nil {
		n.leave(p.node, f)
	}
	if by := n.loser(p, f); by != nil {
		n.lose(p, f, by)
	} else {
		f.arrives = n.now + p.delay
		idle := p.flight.first == nil
		p.flight.push(f)
		if idle {
			n.schedule(f.arrives, p, arrived)
		}
	}
	if p.refused {
		p.refused = false
		n.ready(p.node)
	}
	n.transmit(p)
}

func (n *Network) countSent(p *Port, f *Frame) {
	if p.tap != nil {
		p.tap(n.now, true, f)
	}
	if f.Pause {
		p.stats.PausesSent += xoffs(f)
		return
	}
	p.stats.Frames++
	p.stats.Bytes += uint64(f.Size)
	n.hops++
}

func xoffs(f *Frame) uint64 {
	if f.XOff {
		return 1
	}
	return 0
}

// deliver takes the first frame off the cable that begins at p.
func (n *Network) deliver(p *Port) {
	f := p.flight.pop()
	if next := p.flight.first; next != nil {
		n.schedule(next.arrives, p, arrived)
	}
	if f.lostTo != 0 {
		n.lose(p, f, n.failures[f.lostTo-1])
		return
	}
	at := p.peer
	if at.tap != nil {
		at.tap(n.now, false, f)
	}
	switch {
	case f.Pause:
		n.pause(at, f)
		n.Release(f)
	case at.node.nic >= 0 && at.node.received.bytes > receiveQueue:
		n.drop(at, f)
	case at.node.nic >= 0:
		at.node.received.push(f)
		n.ready(at.node)
	default:
		n.admit(at, f)
	}
}

// pause handles a pause frame that arrived at p.
func (n *Network) pause(p *Port, f *Frame) {
	if p.isPaused(int(f.Priority)) == f.XOff {
		return
	}
	p.countPause(n.now)
	p.paused ^= 1 << f.Priority
	n.ready(p.node)
	if f.XOff {
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
		p.stats, p.area, p.counted, p.since = PortStats{MaxQueue: p.bytes}, 0, n.now, n.now
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
	s := PortSample{Bytes: d.Bytes, Marked: d.Marked, Dropped: d.Dropped, Lost: d.Lost, Queue: p.peak, Paused: d.Paused}
	p.sampled, p.peak = p.stats, p.bytes
	return s
}

// minus returns the differences of the counters that Sample has. They may wrap.
func (s *PortStats) minus(o *PortStats) PortStats {
	return PortStats{Bytes: s.Bytes - o.Bytes, Marked: s.Marked - o.Marked, Dropped: s.Dropped - o.Dropped, Lost: s.Lost - o.Lost, Paused: s.Paused - o.Paused}
}
