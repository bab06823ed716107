package network

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"

	"softroce/internal/eventqueue"
)

// A Network is a network of switches and the ports of NICs.
type Network struct {
	topology *Topology
	seed     uint64
	rnd      *rand.Rand // of marks and paths
	chance   *rand.Rand // of losses
	failures []*failure
	nodes    []*node
	nics     []*node
	exits    []exit // by NIC
	slab     []Port // all ports, in the order of the links of the topology
	ports    []*Port

	now     int64
	events  *eventqueue.Queue
	free    []*Frame
	readies []int
	hops    uint64
	resetAt int64
	onDrop  func(*Frame)

	pauseFrame Frame // of asFrame
}

// An exit is how frames reach a NIC.
type exit struct {
	at     int32 // index of the switch
	number int32 // of the switch
	port   *Port // of the switch
}

// A node is a switch or a NIC. What each frame needs comes first, for a NIC in a cache line.
type node struct {
	index int
	nic   int // number of the NIC; -1: a switch

	// A NIC.
	port          *Port
	received      queue
	receivedBytes int32
	isReady       bool

	// A switch.
	used       int        // bytes of the shared buffer
	ways       [][]*Port  // the different lists of next
	way        []uint16   // by the number of a switch: the index in ways of its list
	salt       uint32     // of the hash
	number     int32      // switches are numbered from 0
	next       [][]*Port  // by the index of a switch: the ports on the shortest paths to it
	intact     [][]*Port  // next without failures
	cutBy      []*failure // by the index of a switch: why there is no path to it
	unmarkedBy *failure   // why it does not mark

	name  string
	ports []*Port

	_ [8]byte // the size is a multiple of a cache line
}

// The events of port i have the numbers 2i and 2i+1, and those of failures follow.
const (
	sent    = iota // a frame has been sent
	arrived        // a frame has arrived at the other end
	events         // number of events of a port, and of a failure, which begins and ends
)

// New returns a network whose time is 0. NICs are numbered in the order of the topology.
func New(t *Topology, seed uint64) (*Network, error) {
	n := &Network{topology: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1))}
	nodes := make([]node, len(t.Nodes))
	for i, d := range t.Nodes {
		k := &nodes[i]
		*k = node{name: d.Name, index: i, nic: -1, number: int32(i - len(n.nics)), salt: n.rnd.Uint32()}
		if !d.Switch {
			k.nic = len(n.nics)
			n.nics = append(n.nics, k)
		}
		n.nodes = append(n.nodes, k)
	}
	n.slab = make([]Port, 0, 2*len(t.Links))
	for _, l := range t.Links {
		a, b := n.newPort(l, l.A, l.B), n.newPort(l, l.B, l.A)
		a.peer, b.peer = b, a
	}
	n.events = eventqueue.New(events * len(n.ports))
	n.findRoutes()
	for _, k := range n.nics {
		to := k.ports[0].peer
		n.exits = append(n.exits, exit{int32(to.node.index), to.node.number, to})
	}
	for _, s := range n.nodes {
		s.intact = s.next
		for _, to := range n.nodes {
			if s != to && s.nic < 0 && to.nic < 0 && len(s.next[to.index]) == 0 {
				return nil, fmt.Errorf("there is no path from %s to %s", s.name, to.name)
			}
		}
	}
	return n, nil
}

func (n *Network) newPort(l Link, at, to int) *Port {
	n.slab = append(n.slab, Port{Name: n.nodes[at].name + ":" + n.nodes[to].name, Rate: l.Rate, delay: l.Delay, node: n.nodes[at], index: int32(len(n.ports))})
	p := &n.slab[len(n.slab)-1]
	if p.node.nic >= 0 {
		p.Name, p.room = p.node.name, int32(max(sendQueue, int64(n.topology.NICBytes), n.topology.NICQueue*(p.Rate/8e6)/1000))
		p.node.port = p
	}
	n.ports, p.node.ports = append(n.ports, p), append(p.node.ports, p)
	return p
}

// findRoutes finds the shortest paths between switches. NICs do not forward.
func (n *Network) findRoutes() {
	for _, s := range n.nodes {
		if s.nic < 0 {
			s.next = make([][]*Port, len(n.nodes))
		}
	}
	distance := make([]int, len(n.nodes))
	for _, to := range n.nodes {
		if to.nic >= 0 {
			continue
		}
		for i := range distance {
			distance[i] = -1
		}
		distance[to.index] = 0
		for queue := []*node{to}; len(queue) > 0; queue = queue[1:] {
			for _, p := range queue[0].ports {
				from := p.peer.node
				if from.nic >= 0 || p.fault.isDown() {
					continue
				}
				if distance[from.index] < 0 {
					distance[from.index] = distance[queue[0].index] + 1
					queue = append(queue, from)
				}
				if distance[from.index] == distance[queue[0].index]+1 {
					from.next[to.index] = append(from.next[to.index], p.peer)
				}
			}
		}
	}
	for _, s := range n.nodes {
		if s.nic < 0 {
			s.findWays(n.nodes)
		}
	}
}

// findWays makes the lists of ways of a switch from those of next.
func (s *node) findWays(nodes []*node) {
	s.ways, s.way = nil, make([]uint16, len(nodes))
	for _, to := range nodes {
		if to.nic >= 0 {
			continue
		}
		l := s.next[to.index]
		i := slices.IndexFunc(s.ways, func(o []*Port) bool { return slices.Equal(o, l) })
		if i < 0 {
			i, s.ways = len(s.ways), append(s.ways, l)
		}
		s.way[to.number] = uint16(i)
	}
}

// NICs returns how many NICs the network has.
func (n *Network) NICs() int { return len(n.nics) }

// NICName returns the name of a NIC.
func (n *Network) NICName(nic int) string { return n.nics[nic].name }

// NICPort returns the port of a NIC.
func (n *Network) NICPort(nic int) *Port { return n.nics[nic].port }

// Ports returns all ports, in the order of the links of the topology.
func (n *Network) Ports() []*Port { return n.ports }

// NIC returns the number of the NIC whose port p is, -1 if it is the port of a switch.
func (p *Port) NIC() int { return p.node.nic }

// Peer returns the port at the other end of the cable.
func (p *Port) Peer() *Port { return p.peer }

// Tap calls f for each frame that a port has sent or received, pause frames included.
func (p *Port) Tap(f func(now int64, sent bool, frame *Frame)) { p.tap = f }

// OnDrop calls f for each frame that is dropped or lost, which f must not keep.
func (n *Network) OnDrop(f func(*Frame)) { n.onDrop = f }

// Hops returns how many frames have been sent, by all ports.
func (n *Network) Hops() uint64 { return n.hops }

// Queues of a NIC, in bytes.
const (
	sendQueue    = 16 << 10 // of what it sends of a priority, before it has no room, at least
	refill       = 8 << 10  // room that a NIC waits for when it has found none
	receiveQueue = 16 << 20 // of what has arrived; more is dropped
)

// Room reports whether the port of a NIC has room for a frame of a priority. If it has none, the
// NIC will be among Ready when it has room for several.
func (n *Network) Room(nic int, priority uint8) bool {
	p := n.nics[nic].port
	if p.hasRoom(int(priority)) {
		return true
	}
	p.refused |= 1 << priority
	return false
}

func (p *Port) hasRoom(priority int) bool { return p.classes[priority].bytes < int(p.room) }

// endRefusal makes a NIC ready that was refused frames of a priority, when there is room for
// several: as a MAC drains its FIFO and the NIC fills it in batches.
func (n *Network) endRefusal(p *Port, priority uint8) {
	if p.refused>>priority&1 != 0 && p.classes[priority].bytes <= int(p.room)-refill {
		p.refused &^= 1 << priority
		n.ready(p.node)
	}
}

// Blocked returns the priorities, a bit for each, that are paused at the port of a NIC and have no
// room. The NIC will be among Ready when the pause of one ends.
func (n *Network) Blocked(nic int) (blocked uint8) {
	p := n.nics[nic].port
	for left := p.paused; left != 0; left &= left - 1 {
		if i := bits.TrailingZeros8(left); !p.hasRoom(i) {
			blocked |= 1 << i
		}
	}
	return blocked
}

// PFC reports whether switches pause some priorities.
func (n *Network) PFC() bool { return n.topology.Switch.PFC != nil }

// Send takes a frame, for which there is Room, to the port of its source, at the time of the last
// Advance.
func (n *Network) Send(f *Frame) {
	e := newEntry(f)
	n.enqueue(n.nics[f.Src].port, &e)
}

// Receive returns the next frame that has arrived at a NIC, nil if there is none. The caller
// releases it.
func (n *Network) Receive(nic int) *Frame {
	k := n.nics[nic]
	if k.received.n == 0 {
		return nil
	}
	e := k.received.head()
	k.received.drop()
	k.receivedBytes -= int32(e.size)
	return n.asFrame(e)
}

// Pending reports whether Receive has a frame.
func (n *Network) Pending(nic int) bool { return n.nics[nic].received.n > 0 }

// Wake makes a NIC one of those of the next Ready.
func (n *Network) Wake(nic int) { n.ready(n.nics[nic]) }

func (n *Network) ready(k *node) {
	if !k.isReady && k.nic >= 0 {
		k.isReady = true
		n.readies = append(n.readies, k.nic)
	}
}

// Ready calls f for each NIC at which frames have arrived, or a pause has begun or ended, or which
// can send again, since the last call.
func (n *Network) Ready(f func(nic int)) {
	for _, i := range n.readies {
		n.nics[i].isReady = false
		f(i)
	}
	n.readies = n.readies[:0]
}

// Next returns the time of the next event, 0 if there is none.
func (n *Network) Next() int64 { return n.events.Next() }

// Advance carries out all events until a time, which becomes the network's.
func (n *Network) Advance(until int64) {
	for {
		e, ok := n.events.Pop(until)
		if !ok {
			break
		}
		n.now = max(n.now, n.events.Now())
		switch i := int(e) / events; {
		case i >= len(n.ports):
			n.change(n.failures[i-len(n.ports)], e%events == 0)
		case e%events == sent:
			n.sentFrame(&n.slab[i])
		default:
			n.deliver(&n.slab[i])
		}
	}
	n.now = max(n.now, until)
}

// schedule sets an event of a port.
func (n *Network) schedule(at int64, p *Port, kind int32) {
	n.events.Set(events*p.index+kind, at)
}

// Queue returns how many bytes the port queues.
func (p *Port) Queue() int { return p.bytes }

// Delay returns the delay of the port's cable in ns.
func (p *Port) Delay() int64 { return p.delay }

// Path returns the ports by which a frame with a hash gets from one NIC to another when there is no
// failure.
func (n *Network) Path(src, dst int, hash uint32) []*Port {
	last := n.NICPort(dst).peer
	path := []*Port{n.NICPort(src)}
	at := path[0].peer.node
	for at != last.node {
		p := at.choose(at.intact[last.node.index], hash)
		path, at = append(path, p), p.peer.node
	}
	return append(path, last)
}
