package wire

import "net/netip"

const loopbackQueue = 1024 // frames

// LoopbackLink keeps traffic between two QPs of one NIC off the link: frames to one of the
// NIC's own addresses never enter it, and are received with payload by reference as on
// a Fabric, whose rules for memory hold here too. Frames to a multicast group that the NIC has
// joined go both ways. All other frames go through.
type LoopbackLink struct {
	inner    Link
	local    func(Station) bool
	mtu      int
	ring     refRing
	own      LinkCounters
	total    LinkCounters
	now      int64
	nextID   uint16
	inFirst  bool // the next Receive asks the link before the ring
	lastPath *Path
	lastWay  way
	groups   map[netip.Addr]bool // joined
}

// A way is where a Loopback sends a frame.
type way uint8

const (
	out  way = iota // through the link
	back            // to the NIC itself
	both            // to a multicast group that the NIC has joined
)

// NewLoopbackLink wraps a link that does not give back what it sent, as a FabricPort does. local says whether a station is the NIC's own at the
// moment; it is asked about once per path and batch.
func NewLoopbackLink(inner Link, local func(Station) bool) *LoopbackLink {
	return &LoopbackLink{inner: inner, local: local, mtu: inner.Capabilities().MTU, ring: refRing{limit: loopbackQueue},
		groups: map[netip.Addr]bool{}}
}

// Send implements Link.
func (l *LoopbackLink) Send(now int64, batch []TxFrame) (int, error) {
	l.now, l.lastPath = now, nil
	for i := 0; i < len(batch); {
		to := l.way(batch[i].Path)
		j := i + 1
		for j < len(batch) && l.way(batch[j].Path) == to {
			j++
		}
		n, err := 0, error(nil)
		switch to {
		case back:
			n = l.loop(batch[i:j])
		case both:
			clearDropped(batch[i:j])
			n, err = l.inner.Send(now, batch[i:j])
			l.echo(batch[i : i+n])
		default:
			n, err = l.inner.Send(now, batch[i:j])
		}
		if i += n; i < j || err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// way finds out where a path leads.
func (l *LoopbackLink) way(p *Path) way {
	if p != l.lastPath {
		l.lastPath, l.lastWay = p, out
		switch {
		case l.local(p.station()):
			l.lastWay = back
		case l.groups[p.Dst]:
			l.lastWay = both
		}
	}
	return l.lastWay
}

func clearDropped(batch []TxFrame) {
	for i := range batch {
		batch[i].Dropped = false
	}
}

// loop puts frames in the ring and returns how many were taken.
func (l *LoopbackLink) loop(batch []TxFrame) int {
	for i := range batch {
		f := &batch[i]
		if tooLong(f, l.mtu) {
			l.own.Drops[DropTooLong]++
			f.Dropped = true
			continue
		}
		f.ID, f.ICRC = l.nextID, 0
		if !l.ring.push(f, f.Path.DstMAC) {
			return i
		}
		l.nextID++
		l.own.sent(f)
	}
	return len(batch)
}

// Receive implements Link.
func (l *LoopbackLink) Receive(now int64, batch []RxFrame) (n int, err error) {
	l.now = now
	l.ring.release()
	if !l.inFirst {
		n = l.receiveLooped(batch)
	}
	m := 0
	if n < len(batch) {
		m, err = l.inner.Receive(now, batch[n:])
		n += m
	}
	if l.inFirst {
		n += l.receiveLooped(batch[n:])
	}
	l.inFirst = !l.inFirst // neither starves the other
	return n, err
}

func (l *LoopbackLink) receiveLooped(batch []RxFrame) int {
	n := l.ring.receive(batch)
	l.own.receivedAll(batch[:n])
	return n
}

// NextDeadline implements Link. Frames that were looped back are due at once.
func (l *LoopbackLink) NextDeadline() int64 {
	d := l.inner.NextDeadline()
	if l.ring.waiting() > 0 {
		return earlier(d, max(1, l.now))
	}
	return d
}

// earlier returns the earlier of two deadlines, of which 0 means never.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// FD implements Link.
func (l *LoopbackLink) FD() int { return l.inner.FD() }

// OnReady implements Link.
func (l *LoopbackLink) OnReady(f func()) { l.inner.OnReady(f) }

// Capabilities implements Link. Frames that were looped back have no ICRC, whatever
// the link says, but are marked as the link's are if it is to be wrong.
func (l *LoopbackLink) Capabilities() Capabilities { return l.inner.Capabilities() }

// Counters implements Counted.
func (l *LoopbackLink) Counters() *LinkCounters {
	l.total.sum(countersOf(l.inner), &l.own)
	return &l.total
}

// Close closes the link; frames that were on their way back are lost.
func (l *LoopbackLink) Close() error {
	l.ring = refRing{}
	return l.inner.Close()
}
