package wire

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxNeighbors     = 1024 // that are remembered
	neighborLifetime = 30 * time.Second
	solicitInterval  = 300 * time.Millisecond
	solicitCount     = 10
)

// neighbors is the neighbor cache of a DgramLink. The engine, which receives, and callers of
// Resolve share it.
type neighbors struct {
	link    *DgramLink
	mu      sync.Mutex // also for link.fd
	known   map[Station]*neighbor
	onMoved []func(dst Station, mac [6]byte)
}

type neighbor struct {
	mac       [6]byte // zeros before the first reply
	confirmed time.Time
	probed    time.Time
	resolved  chan struct{} // closed when mac is set
	waiters   int           // goroutines that wait for resolved
}

func (n *neighbors) init(l *DgramLink) { n.link, n.known = l, map[Station]*neighbor{} }

// send writes a frame to the socket.
func (n *neighbors) send(frame []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link.fd >= 0 {
		unix.Write(n.link.fd, frame)
	}
}

// learn sets a station's MAC. An unknown station is added only if create is set.
func (n *neighbors) learn(a Station, mac [6]byte, create bool) {
	if mac[0]&1 != 0 || mac == [6]byte{} || a.Addr.IsUnspecified() || n.link.localStations[a] {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.known[a]
	if e == nil {
		if !create || len(n.known) >= maxNeighbors {
			return
		}
		e = n.add(a)
	}
	was := e.mac
	e.mac, e.confirmed = mac, time.Now()
	if was == [6]byte{} {
		close(e.resolved)
	} else if was != mac {
		for _, f := range n.onMoved {
			go f(a, mac) // on another goroutine: f may call the engine, which runs learn
		}
	}
}

func (n *neighbors) add(a Station) *neighbor {
	e := &neighbor{resolved: make(chan struct{})}
	n.known[a] = e
	return e
}

// solicit sends an ARP request or a neighbor solicitation for dst.
func (n *neighbors) solicit(src netip.Addr, dst Station) {
	n.send(n.link.appendSolicitation(nil, dst.VLAN, src, dst.Addr))
}

// Name implements Interface.
func (l *DgramLink) Name() string { return l.c.Name }

// MAC implements Interface.
func (l *DgramLink) MAC() [6]byte { return l.c.MAC }

// MTU implements Interface.
func (l *DgramLink) MTU() int { return l.c.MTU }

// Up implements Interface. The link is always up.
func (l *DgramLink) Up() bool { return true }

// Addresses implements Interface.
func (l *DgramLink) Addresses() []netip.Prefix { return l.c.Addrs }

// VLANAddresses implements Trunk.
func (l *DgramLink) VLANAddresses() []VLANAddress { return l.c.VLANs }

// OnChange implements Interface. The link never changes.
func (l *DgramLink) OnChange(func()) {}

// OnNeighbor implements Interface.
func (l *DgramLink) OnNeighbor(f func(dst Station, mac [6]byte)) {
	l.neighbors.mu.Lock()
	defer l.neighbors.mu.Unlock()
	l.neighbors.onMoved = append(l.neighbors.onMoved, f)
}

// Resolve implements Interface. Replies arrive through Receive, so the engine has to run. A
// neighbor that was last confirmed long ago is solicited again, without waiting.
func (l *DgramLink) Resolve(ctx context.Context, p *Path) error {
	if err := checkPath(l.c.Name, p); err != nil {
		return err
	}
	switch {
	case l.localStations[p.station()]:
		p.DstMAC = l.c.MAC
		return nil
	case p.Dst.IsMulticast():
		p.DstMAC = multicastMAC(p.Dst)
		return nil
	case !l.onLink(p.station()):
		return fmt.Errorf("%v through %s: %w: not in a prefix of the link", p.Dst, l.c.Name, ErrNoRoute)
	}
	src := l.source(p)
	mac, old := l.neighbors.lookup(p.station())
	if mac == [6]byte{} {
		if p.DstMAC != [6]byte{} {
			return nil
		}
		if mac = l.neighbors.wait(ctx, src, p.station()); mac == [6]byte{} {
			return fmt.Errorf("%v through %s: %w", p.Dst, l.c.Name, ErrUnreachable)
		}
	} else if old {
		l.neighbors.solicit(src, p.station())
	}
	p.DstMAC = mac
	return nil
}

// ProbeNeighbor implements Interface.
func (l *DgramLink) ProbeNeighbor(dst Station) {
	if l.neighbors.shouldProbe(dst) {
		l.neighbors.solicit(l.source(&Path{Dst: dst.Addr, VLAN: dst.VLAN}), dst)
	}
}

func (l *DgramLink) onLink(dst Station) bool {
	if dst.Addr.IsLinkLocalUnicast() && dst.Addr.Is6() {
		return true
	}
	for _, a := range l.prefixes(dst.VLAN) {
		if a.Contains(dst.Addr) {
			return true
		}
	}
	return false
}

// prefixes returns the prefixes in a VLAN.
func (l *DgramLink) prefixes(vlan uint16) (p []netip.Prefix) {
	if vlan == 0 {
		return l.c.Addrs
	}
	for _, a := range l.c.VLANs {
		if a.VLAN == vlan {
			p = append(p, a.Prefix)
		}
	}
	return p
}

// source returns the source address of a solicitation: the path's if it is the link's own, or else
// one of the link's.
func (l *DgramLink) source(p *Path) netip.Addr {
	if l.localStations[Station{p.Src, p.VLAN}] {
		return p.Src
	}
	for _, a := range l.prefixes(p.VLAN) {
		if a.Addr().Is4() == p.Dst.Is4() && a.Contains(p.Dst) {
			return a.Addr()
		}
	}
	return linkLocal(l.c.MAC)
}

// lookup returns the MAC of dst, or zeros, and whether its lifetime is over.
func (n *neighbors) lookup(dst Station) (mac [6]byte, old bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.known[dst]; e != nil {
		return e.mac, time.Since(e.confirmed) > neighborLifetime
	}
	return mac, true
}

// shouldProbe reports whether a known station was not probed within probeInterval, and notes a
// probe.
func (n *neighbors) shouldProbe(dst Station) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.known[dst]
	if e == nil || time.Since(e.probed) < probeInterval {
		return false
	}
	e.probed = time.Now()
	return true
}

// wait solicits dst until it replies. It returns zeros if it does not.
func (n *neighbors) wait(ctx context.Context, src netip.Addr, dst Station) (mac [6]byte) {
	e := n.addWaiter(dst)
	defer func() { mac = n.removeWaiter(e, dst) }()
	tick := time.NewTicker(solicitInterval)
	defer tick.Stop()
	for range solicitCount {
		n.solicit(src, dst)
		select {
		case <-e.resolved:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	return
}

// addWaiter returns the entry of dst, which it creates if necessary, with one more waiter.
func (n *neighbors) addWaiter(dst Station) *neighbor {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.known[dst]
	if e == nil {
		if len(n.known) >= maxNeighbors {
			n.evictOldest()
		}
		e = n.add(dst)
	}
	e.waiters++
	return e
}

// removeWaiter removes a waiter and returns the MAC. It deletes an entry that no goroutine waits
// for and that got no reply.
func (n *neighbors) removeWaiter(e *neighbor, dst Station) [6]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.waiters--; e.waiters == 0 && e.mac == [6]byte{} {
		delete(n.known, dst)
	}
	return e.mac
}

// evictOldest deletes the entry that was confirmed the longest ago.
func (n *neighbors) evictOldest() {
	var oldest Station
	for a, e := range n.known {
		if e.waiters == 0 && (!oldest.Addr.IsValid() || e.confirmed.Before(n.known[oldest].confirmed)) {
			oldest = a
		}
	}
	delete(n.known, oldest)
}
