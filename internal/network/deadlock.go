package network

import (
	"slices"

	"softroce/packet"
)

// A waiting is a priority that a port may not send.
type waiting struct {
	port     *Port
	priority int
}

// A Deadlock is a set of ports that are paused forever, by their names.
type Deadlock struct {
	Cycle   []string `json:"cycle"`             // each waits for the next one, and the last one for the first
	Waiting []string `json:"waiting,omitempty"` // all others, in the order of the topology
}

// Deadlock returns the ports that will be paused forever, nil if each pause can end.
//
// A pause of port p ends when the switch at its other end has sent enough of what it holds from p.
// It cannot, if more than XOn of that, or what keeps headroom occupied, waits at ports which are
// paused themselves and whose pauses cannot end. So Deadlock begins with all paused ports, and
// removes those whose pause can end until there is none. What is left has a cycle, since each waits
// for another one.
func (n *Network) Deadlock() *Deadlock {
	if !slices.ContainsFunc(n.ports, func(p *Port) bool { return p.paused != 0 }) {
		return nil
	}
	stuck := map[waiting]bool{}
	var order []waiting
	for _, p := range n.ports {
		for i := range packet.Priorities {
			if p.isPaused(i) {
				order = append(order, waiting{p, i})
				stuck[waiting{p, i}] = true
			}
		}
	}
	for again := true; again; {
		again = false
		for _, w := range order {
			if stuck[w] && !n.held(w, stuck) {
				delete(stuck, w)
				again = true
			}
		}
	}
	order = slices.DeleteFunc(order, func(w waiting) bool { return !stuck[w] })
	if len(order) == 0 {
		return nil
	}
	d := &Deadlock{}
	for _, w := range cycle(order[0], stuck) {
		d.Cycle = append(d.Cycle, w.port.Name)
	}
	for _, w := range order {
		if name := w.port.Name; !slices.Contains(d.Cycle, name) && !slices.Contains(d.Waiting, name) {
			d.Waiting = append(d.Waiting, name)
		}
	}
	return d
}

// cycle returns a cycle to which w leads. It begins with the port that is first in the topology.
func cycle(w waiting, stuck map[waiting]bool) []waiting {
	var path []waiting
	for !slices.Contains(path, w) {
		path = append(path, w)
		for _, out := range w.port.peer.node.ports {
			if next := (waiting{out, w.priority}); stuck[next] && out.bytesFrom(w.port.peer, w.priority) > 0 {
				w = next
				break
			}
		}
	}
	path = path[slices.Index(path, w):]
	first := slices.IndexFunc(path, func(o waiting) bool {
		return !slices.ContainsFunc(path, func(p waiting) bool { return p.port.index < o.port.index })
	})
	return slices.Concat(path[first:], path[:first])
}

// held reports whether the pause of w cannot end while those of stuck do not.
func (n *Network) held(w waiting, stuck map[waiting]bool) bool {
	bytes := 0
	for _, out := range w.port.peer.node.ports {
		if stuck[waiting{out, w.priority}] {
			bytes += out.bytesFrom(w.port.peer, w.priority)
		}
	}
	in := &w.port.peer.classes[w.priority]
	return bytes > n.topology.Switch.PFC.XOn || in.headroom > in.held-bytes
}

// bytesFrom returns how much of what arrived at another port of the switch waits at p.
func (p *Port) bytesFrom(in *Port, priority int) (bytes int) {
	q := &p.classes[priority].queue
	for i := range q.n {
		if e := q.at(i); e.from == in.index {
			bytes += int(e.size)
		}
	}
	return bytes
}
