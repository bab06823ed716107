package wire

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"

	"softroce/internal/network"
	"softroce/packet"
)

// A fabricNetwork is what a fabric of switches has between its links: the network that simulations
// have, in real time. A link that sends or receives carries out what has happened since the last
// call.
//
// A frame takes these steps:
//
//  1. Send copies it to the queue of the NIC's port. It takes no frame for which that has no room.
//  2. The network sends, marks, pauses and drops, at the rates of its ports. NextDeadline of each
//     link is the time of the next event, so that no engine sleeps longer.
//  3. When the frame arrives, the link is woken if another owner has carried out the event, and
//     Receive returns the copy.
//
// Frames to a group are sent once for each of its links. Those to the sender itself do not reach
// the network.
type fabricNetwork struct {
	mu    sync.Mutex
	net   *network.Network
	links []*FabricLink // by the number of the NIC; nil: none
	spare []*rxCopy
	woken []*FabricLink

	next atomic.Int64 // when the next event is due; 0: there is none
}

// nicQueue is how much the port of a NIC queues, as the time in ns that it takes to send it: an
// engine may be as late without leaving the port idle.
const nicQueue = 200e3

// nicBytes is what the port of a NIC queues in any case.
const nicBytes = 32 << 10

// NewSwitchedFabric returns a fabric that is a network of switches. Its links must be plugged in.
func NewSwitchedFabric(t *network.Topology) (*Fabric, error) {
	own := *t
	own.NICQueue, own.NICBytes = nicQueue, nicBytes
	net, err := network.New(&own, rand.Uint64())
	if err != nil {
		return nil, err
	}
	return NewFabricOf(net), nil
}

// NewFabricOf is NewSwitchedFabric for a network at time 0 that the caller has made. The caller may
// read from it if it uses all links on the same goroutine.
func NewFabricOf(net *network.Network) *Fabric {
	f := NewFabric()
	n := &fabricNetwork{net: net, links: make([]*FabricLink, net.NICs())}
	net.OnDrop(func(f *network.Frame) { n.spare = append(n.spare, f.Tag.(*rxCopy)) })
	n.next.Store(net.Next())
	f.network = n
	return f
}

// Fail makes a failure occur in the fabric's network.
func (f *Fabric) Fail(e network.Failure) {
	n := f.network
	n.mu.Lock()
	n.net.Fail(e)
	n.unlock(nil)
}

// Plug connects the link, which no goroutine uses yet, to the port of the NIC that has a name in
// the fabric's network, and returns the rate of the port in b/s. A link that is not plugged in
// reaches no other. On a fabric that is no network it does nothing and returns 0.
func (p *FabricLink) Plug(name string) (rate int64, err error) {
	n := p.fabric.network
	if n == nil {
		return 0, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for i := range n.links {
		if n.net.NICName(i) == name && n.links[i] == nil {
			n.links[i], p.nic = p, i
			n.tap(p)
			return n.net.NICPort(i).Rate, nil
		}
		if n.links[i] == nil && len(names) < 16 {
			names = append(names, n.net.NICName(i))
		}
	}
	return 0, fmt.Errorf("the network of the fabric has no free NIC %s (have: %s)", name, strings.Join(names, ", "))
}

// A SwitchPort is a port of a fabric's network, NODE:PEER or the name of a NIC, and its statistics
// since the fabric was made.
type SwitchPort struct {
	Name  string `json:"switch_port"`
	Rate  int64  `json:"rate"`  // b/s
	Queue int    `json:"queue"` // bytes
	network.PortStats
}

// SwitchPorts returns the ports of the fabric's network. now is the time.
func (f *Fabric) SwitchPorts(now int64) (ports []SwitchPort) {
	n := f.network
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.unlock(nil)
	n.net.Advance(now)
	for _, p := range n.net.Ports() {
		ports = append(ports, SwitchPort{p.Name, p.Rate, p.Queue(), n.net.Stats(p)})
	}
	return ports
}

// unlock wakes the owners, other than that of p, of links at which something happened.
func (n *fabricNetwork) unlock(p *FabricLink) {
	if p != nil {
		n.setBlocked(p)
	}
	n.net.Ready(func(nic int) {
		to := n.links[nic]
		if to == nil { // it was closed
			for f := n.net.Receive(nic); f != nil; f = n.net.Receive(nic) {
				n.spare = append(n.spare, f.Tag.(*rxCopy))
				n.net.Release(f)
			}
			return
		}
		to.arrived.Store(n.net.Pending(nic))
		n.setBlocked(to)
		if p == nil || to.owner == nil || to.owner != p.owner {
			n.woken = append(n.woken, to)
		}
	})
	n.next.Store(n.net.Next())
	for _, to := range n.woken {
		to.ready()
	}
	clear(n.woken)
	n.woken = n.woken[:0]
	n.mu.Unlock()
}

func (n *fabricNetwork) setBlocked(p *FabricLink) {
	if n.net.PFC() && p.nic >= 0 {
		p.blocked.Store(uint32(n.net.Blocked(p.nic)))
	}
}

// Paused implements Pauser.
func (p *FabricLink) Paused() uint8 { return uint8(p.blocked.Load()) }

// send sends frames to one link and returns how many there was room for.
func (n *fabricNetwork) send(p, to *FabricLink, batch []TxFrame) int {
	mac := p.sourceMAC(batch[0].Path.Src)
	n.mu.Lock()
	defer n.unlock(p)
	n.net.Advance(p.now)
	for i := range batch {
		t := &batch[i]
		priority := t.Path.SwitchPriority()
		if !n.net.Room(p.nic, priority) {
			return i
		}
		t.ID, t.ICRC = p.nextID, 0
		p.nextID++
		c := n.copy()
		c.set(t, mac)
		f := n.net.Frame()
		f.Size, f.Tag = int32(frameLen(t)+network.FCSLen), c
		f.SetFlow(p.nic, to.nic, t.Path.SrcPort)
		f.Priority, f.ECT, f.CE = priority, t.Path.Network == packet.RoCEv2 && c.TClass&3 != 0, c.CE()
		n.net.Send(f)
	}
	return len(batch)
}

// copy returns a frame that is not in use.
func (n *fabricNetwork) copy() *rxCopy {
	k := len(n.spare)
	if k == 0 {
		return new(rxCopy)
	}
	c := n.spare[k-1]
	n.spare = n.spare[:k-1]
	return c
}

// receive fills batch with frames that have arrived at p. Those of the call before are no longer in
// use.
func (n *fabricNetwork) receive(p *FabricLink, batch []RxFrame) (k int) {
	if next := n.next.Load(); p.nic < 0 || !p.arrived.Load() && (next == 0 || next > p.now) {
		return 0
	}
	n.mu.Lock()
	defer n.unlock(p)
	n.spare = append(n.spare, p.taken...)
	p.taken = p.taken[:0]
	n.net.Advance(p.now)
	for ; k < len(batch); k++ {
		f := n.net.Receive(p.nic)
		if f == nil {
			break
		}
		c := f.Tag.(*rxCopy)
		if f.CE {
			c.TClass |= 3
		}
		batch[k] = c.RxFrame
		p.taken = append(p.taken, c)
		n.net.Release(f)
	}
	p.delivered = len(p.taken)
	p.arrived.Store(n.net.Pending(p.nic))
	return k
}

// deadline returns the time of the next event.
func (n *fabricNetwork) deadline(p *FabricLink) int64 {
	if p.arrived.Load() {
		return max(1, p.now)
	}
	return n.next.Load()
}

// unplug ends the use of p.
func (n *fabricNetwork) unplug(p *FabricLink) {
	if p.nic < 0 {
		return
	}
	n.mu.Lock()
	n.links[p.nic] = nil
	n.net.NICPort(p.nic).Tap(nil)
	n.net.Wake(p.nic) // what has arrived is released
	n.unlock(nil)
}
