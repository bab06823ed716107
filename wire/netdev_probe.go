package wire

import (
	"time"

	"golang.org/x/sys/unix"
)

// The kernel notices that a neighbor has moved when it sends to it. Frames of a packet socket do
// not count. So a probe makes the kernel verify the neighbor, in two ways: triggerResolution sends
// a datagram, after which the kernel solicits a stale neighbor within some seconds; and probe
// sends a solicitation in the kernel's name. The kernel receives the reply and reports it to the
// watcher.

// maxProbes is the number of probes that may be queued. Further ones are dropped: the caller
// repeats them.
const maxProbes = 64

// openSolicitSocket creates the socket for solicitations, if the process has the privilege.
func (n *Netdev) openSolicitSocket() {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		n.solicitSocket = fd
	}
}

// ProbeNeighbor implements Interface.
func (n *Netdev) ProbeNeighbor(dst Station) {
	select {
	case n.probes <- dst:
	default:
	}
}

// runProber probes the queued neighbors until the watcher ends.
func (n *Netdev) runProber() {
	defer close(n.proberDone)
	probed := make(map[Station]time.Time)
	for {
		select {
		case <-n.done:
			return
		case dst := <-n.probes:
			n.mu.Lock()
			h, known := n.hops[dst]
			n.mu.Unlock()
			now, neighbor := time.Now(), Station{h.via, dst.VLAN}
			if !known || now.Sub(probed[neighbor]) < probeInterval {
				continue
			}
			if len(probed) >= maxHops {
				clear(probed)
			}
			probed[neighbor] = now
			n.probe(h, dst.VLAN)
		}
	}
}

// probe makes the kernel verify a neighbor.
func (n *Netdev) probe(h hop, vlan uint16) {
	s := n.state.Load().vlan(vlan)
	if s == nil || s.index == 0 {
		return
	}
	n.triggerResolution(s, h.via)
	if n.solicitSocket < 0 || h.src.Is4() != h.via.Is4() {
		return
	}
	to := unix.SockaddrLinklayer{Ifindex: s.index, Halen: 6}
	frame := stationMAC(s.mac).appendSolicitation(nil, 0, h.src, h.via)
	copy(to.Addr[:6], frame)
	unix.Sendto(n.solicitSocket, frame, 0, &to)
}
