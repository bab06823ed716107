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
	maxNeighbours = 1024 // that are remembered
	neighbourAge  = 30 * time.Second
	askEvery      = 300 * time.Millisecond
	askTimes      = 10
)

// neighbours is what a Dgram knows of the stations at the other end. It is shared by the
// engine, which receives, and those who resolve paths.
type neighbours struct {
	link    *DgramLink
	mu      sync.Mutex // for link.fd too
	known   map[Station]*neighbour
	onMoved []func(dst Station, mac [6]byte)
}

type neighbour struct {
	mac     [6]byte // zeros if it has not answered yet
	heard   time.Time
	doubted time.Time
	news    chan struct{} // closed when mac is set
	waiting int           // who wait for that
}

func (n *neighbours) init(l *DgramLink) { n.link, n.known = l, map[Station]*neighbour{} }

// send gives a frame to the socket.
func (n *neighbours) send(frame []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link.fd >= 0 {
		unix.Write(n.link.fd, frame)
	}
}

// learn notes a station's MAC. One that nobody asked for is only noted where create says so.
func (n *neighbours) learn(a Station, mac [6]byte, create bool) {
	if mac[0]&1 != 0 || mac == [6]byte{} || a.Addr.IsUnspecified() || n.link.own[a] {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.known[a]
	if e == nil {
		if !create || len(n.known) >= maxNeighbours {
			return
		}
		e = n.add(a)
	}
	was := e.mac
	e.mac, e.heard = mac, time.Now()
	if was == [6]byte{} {
		close(e.news)
	} else if was != mac {
		for _, f := range n.onMoved {
			go f(a, mac) // the caller is the engine, which f may call
		}
	}
}

func (n *neighbours) add(a Station) *neighbour {
	e := &neighbour{news: make(chan struct{})}
	n.known[a] = e
	return e
}

// ask sends a question for the MAC of dst.
func (n *neighbours) ask(src netip.Addr, dst Station) {
	n.send(n.link.question(nil, dst.VLAN, src, dst.Addr))
}

// Name implements Interface.
func (l *DgramLink) Name() string { return l.c.Name }

// MAC implements Interface.
func (l *DgramLink) MAC() [6]byte { return l.c.MAC }

// MTU implements Interface.
func (l *DgramLink) MTU() int { return l.c.MTU }

// Up implements Interface: the cable is always plugged in.
func (l *DgramLink) Up() bool { return true }

// Addresses implements Interface.
func (l *DgramLink) Addresses() []netip.Prefix { return l.c.Addrs }

// VLANAddresses implements Trunk.
func (l *DgramLink) VLANAddresses() []VLANAddress { return l.c.VLANs }

// OnChange implements Interface: nothing changes.
func (l *DgramLink) OnChange(func()) {}

// OnNeighbour implements Interface.
func (l *DgramLink) OnNeighbour(f func(dst Station, mac [6]byte)) {
	l.near.mu.Lock()
	defer l.near.mu.Unlock()
	l.near.onMoved = append(l.near.onMoved, f)
}

// Resolve implements Interface. The answer comes in by way of Receive, so the engine
// has to run. A station that was not heard of for long is asked again, without waiting.
func (l *DgramLink) Resolve(ctx context.Context, p *Path) error {
	if err := checkPath(l.c.Name, p); err != nil {
		return err
	}
	switch {
	case l.own[p.station()]:
		p.DstMAC = l.c.MAC
		return nil
	case p.Dst.IsMulticast():
		p.DstMAC = multicastMAC(p.Dst)
		return nil
	case !l.onLink(p.station()):
		return fmt.Errorf("%v through %s: %w: not in the prefix of one of its addresses", p.Dst, l.c.Name, ErrNoRoute)
	}
	src := l.source(p)
	mac, old := l.near.lookup(p.station())
	if mac == [6]byte{} {
		if mac = l.near.wait(ctx, src, p.station()); mac == [6]byte{} {
			return fmt.Errorf("%v through %s: %w", p.Dst, l.c.Name, ErrUnreachable)
		}
	} else if old {
		l.near.ask(src, p.station())
	}
	p.DstMAC = mac
	return nil
}

// ProbeNeighbour implements Interface.
func (l *DgramLink) ProbeNeighbour(dst Station) {
	if l.near.doubt(dst) {
		l.near.ask(l.source(&Path{Dst: dst.Addr, VLAN: dst.VLAN}), dst)
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

// prefixes are those of a VLAN.
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

// source is the address that asks: the path's, or if that is not the link's own, one
// that is.
func (l *DgramLink) source(p *Path) netip.Addr {
	if l.own[Station{p.Src, p.VLAN}] {
		return p.Src
	}
	for _, a := range l.prefixes(p.VLAN) {
		if a.Addr().Is4() == p.Dst.Is4() && a.Contains(p.Dst) {
			return a.Addr()
		}
	}
	return linkLocal(l.c.MAC)
}

// lookup returns the MAC of dst, zeros if it is not known, and whether that was long ago.
func (n *neighbours) lookup(dst Station) (mac [6]byte, old bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.known[dst]; e != nil {
		return e.mac, time.Since(e.heard) > neighbourAge
	}
	return mac, true
}

// doubt reports whether a station is to be asked again where it is.
func (n *neighbours) doubt(dst Station) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.known[dst]
	if e == nil || time.Since(e.doubted) < probeInterval {
		return false
	}
	e.doubted = time.Now()
	return true
}

// wait asks until there is an answer, and returns zeros if none comes.
func (n *neighbours) wait(ctx context.Context, src netip.Addr, dst Station) (mac [6]byte) {
	e := n.enter(dst)
	defer func() { mac = n.leave(e, dst) }()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for range askTimes {
		n.ask(src, dst)
		select {
		case <-e.news:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	return
}

// enter makes an entry for dst to wait at.
func (n *neighbours) enter(dst Station) *neighbour {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.known[dst]
	if e == nil {
		if len(n.known) >= maxNeighbours {
			n.forget()
		}
		e = n.add(dst)
	}
	e.waiting++
	return e
}

// leave ends the wait, and forgets who did not answer.
func (n *neighbours) leave(e *neighbour, dst Station) [6]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.waiting--; e.waiting == 0 && e.mac == [6]byte{} {
		delete(n.known, dst)
	}
	return e.mac
}

// forget removes the one that was not heard of for longest.
func (n *neighbours) forget() {
	var oldest Station
	for a, e := range n.known {
		if e.waiting == 0 && (!oldest.Addr.IsValid() || e.heard.Before(n.known[oldest].heard)) {
			oldest = a
		}
	}
	delete(n.known, oldest)
}
