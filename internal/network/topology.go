package network

import (
	"fmt"

	"softroce/packet"
)

// A Topology is what a network consists of.
type Topology struct {
	Nodes  []Node
	Links  []Link
	Switch SwitchConfig

	// NICQueue is how long the port of a NIC may take to send what it queues of a priority, in ns,
	// before it has no room. It queues NICBytes in any case, or 16 KiB if those are fewer.
	NICQueue int64
	NICBytes int
}

// A Node is a switch or a NIC.
type Node struct {
	Name   string
	Switch bool
}

// A Link is a cable between two nodes, which it names by their indices in Topology.Nodes.
type Link struct {
	A, B  int
	Rate  int64 // b/s, of both directions
	Delay int64 // ns
}

// AddNode adds a node and returns its index.
func (t *Topology) AddNode(name string, isSwitch bool) int {
	t.Nodes = append(t.Nodes, Node{name, isSwitch})
	return len(t.Nodes) - 1
}

// MaxSize is the size of the largest frame in bytes: an IP packet of 9216 bytes fits.
const MaxSize = 9216 + packet.EthernetLen + FCSLen

// Check returns what is wrong with t.
func (t *Topology) Check() error {
	names := map[string]bool{}
	for _, d := range t.Nodes {
		if names[d.Name] {
			return fmt.Errorf("two nodes have the name %s", d.Name)
		}
		names[d.Name] = true
	}
	links := make([]int, len(t.Nodes))
	pairs := map[[2]int]bool{}
	for i, l := range t.Links {
		a, b := t.Nodes[l.A], t.Nodes[l.B]
		if l.A == l.B || !a.Switch && !b.Switch {
			return &LinkError{i, fmt.Errorf("link from %s to %s: one end must be a switch, and the other another node", a.Name, b.Name)}
		}
		pair := [2]int{min(l.A, l.B), max(l.A, l.B)}
		if pairs[pair] {
			return &LinkError{i, fmt.Errorf("link from %s to %s: there is another one", a.Name, b.Name)}
		}
		pairs[pair] = true
		links[l.A]++
		links[l.B]++
	}
	for i, d := range t.Nodes {
		if !d.Switch && links[i] != 1 {
			return fmt.Errorf("NIC %s has %d links, want 1", d.Name, links[i])
		}
	}
	return t.Switch.check()
}

func (c *SwitchConfig) check() error {
	if c.Buffer < MaxSize || c.Queue < MaxSize {
		return fmt.Errorf("buffer and queue must have room for a frame of %d bytes", MaxSize)
	}
	if c.ECN != nil {
		if err := c.ECN.Check(); err != nil {
			return err
		}
	}
	if c.PFC != nil {
		return c.PFC.Check()
	}
	return nil
}

// Check returns what is wrong with the thresholds.
func (e *ECN) Check() error {
	if e.Kmin < 0 || e.Kmax < e.Kmin || !(e.Pmax >= 0 && e.Pmax <= 1) {
		return fmt.Errorf("ecn: kmin %d, kmax %d and pmax %v: want 0 <= kmin <= kmax and 0 <= pmax <= 1", e.Kmin, e.Kmax, e.Pmax)
	}
	return nil
}

// Check returns what is wrong with the thresholds.
func (p *PFC) Check() error {
	if p.XOn < 0 || p.XOff < p.XOn || p.Headroom < MaxSize {
		return fmt.Errorf("pfc: xon %d, xoff %d and headroom %d: want 0 <= xon <= xoff, and headroom for a frame of %d bytes", p.XOn, p.XOff, p.Headroom, MaxSize)
	}
	return nil
}

// A LinkError is what is wrong with a link of a topology.
type LinkError struct {
	Link int // its index
	Err  error
}

func (e *LinkError) Error() string { return e.Err.Error() }
func (e *LinkError) Unwrap() error { return e.Err }
