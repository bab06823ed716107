package network

// A waiting is a priority that a port may not send.
type waiting struct {
	port     *Port
	priority int
}

// Deadlock returns the names of the ports that will be paused forever, in the order of the
// topology; none if each pause can end.
//
// A pause of port p ends when the switch at its other end has sent enough of what it holds from p.
// It cannot, if more than XOn of that waits at ports which are paused themselves and whose pauses
// cannot end. So Deadlock begins with all paused ports, and removes those whose pause can end until
// there is none.
func (n *Network) Deadlock() (ports []string) {
	if n.topology.Switch.PFC == nil {
		return nil
	}
	stuck := map[waiting]bool{}
	var order []waiting
	for _, p := range n.ports {
		for i, paused := range p.paused {
			if paused {
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
	for _, w := range order {
		if stuck[w] {
			ports = append(ports, w.port.Name)
		}
	}
	return ports
}

// held reports whether the pause of w cannot end while those of stuck do not.
func (n *Network) held(w waiting, stuck map[waiting]bool) bool {
	in, bytes := w.port.peer, 0
	for _, out := range in.node.ports {
		if !stuck[waiting{out, w.priority}] {
			continue
		}
		for f := out.queues[w.priority].first; f != nil; f = f.next {
			if f.arrived == in {
				bytes += f.Size
			}
		}
	}
	return bytes > n.topology.Switch.PFC.XOn
}
