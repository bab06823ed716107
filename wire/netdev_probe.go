package wire

import (
	"time"

	"golang.org/x/sys/unix"
)

// The kernel finds out that a neighbour has moved when it sends to it itself. Frames of a packet socket do not
// count, so the kernel is made to look: by a datagram (prod), which has it ask within some seconds
// if it thinks that it is time, and by asking the neighbour in the kernel's name. The answer
// goes to the kernel, which tells the watcher.

// maxDoubts is how many doubts may wait; those beyond are forgotten, and come again.
const maxDoubts = 64

// openAsker makes the socket that asks; without privilege there is none.
func (n *Netdev) openAsker() {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		n.asker = fd
	}
}

// ProbeNeighbour implements Interface.
func (n *Netdev) ProbeNeighbour(dst Station) {
	select {
	case n.doubts <- dst:
	default:
	}
}

// verify asks the neighbours that are in doubt, until the watcher ends.
func (n *Netdev) verify() {
	defer close(n.sure)
	asked := make(map[Station]time.Time)
	for {
		select {
		case <-n.done:
			return
		case dst := <-n.doubts:
			n.mu.Lock()
			h, known := n.hops[dst]
			n.mu.Unlock()
			now, neighbour := time.Now(), Station{h.via, dst.VLAN}
			if !known || now.Sub(asked[neighbour]) < probeInterval {
				continue
			}
			if len(asked) >= maxHops {
				clear(asked)
			}
			asked[neighbour] = now
			n.where(h, dst.VLAN)
		}
	}
}

// where asks a neighbour for its MAC.
func (n *Netdev) where(h hop, vlan uint16) {
	s := n.state.Load().vlan(vlan)
	if s == nil || s.index == 0 {
		return
	}
	n.prod(s, h.via)
	if n.asker < 0 || h.src.Is4() != h.via.Is4() {
		return
	}
	to := unix.SockaddrLinklayer{Ifindex: s.index, Halen: 6}
	frame := ether(s.mac).question(nil, 0, h.src, h.via)
	copy(to.Addr[:6], frame)
	unix.Sendto(n.asker, frame, 0, &to)
}
