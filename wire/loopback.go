package wire

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

const loopbackQueue = 1024 // frames

// LoopbackLink is middleware that delivers frames between two QPs of one NIC. Frames to one of the
// NIC's own addresses do not reach the wrapped link. They are received with payload by reference,
// as on a Fabric, and the same rules for memory hold. Frames to a multicast group that the NIC
// joined are sent and looped back. All other frames are sent.
type LoopbackLink struct {
	inner     Link
	local     func(Station) bool
	mtu       int
	ring      frameRing
	own       LinkCounters
	total     LinkCounters
	now       int64
	nextID    uint16
	linkFirst bool // the next Receive reads the link before the ring
	lastPath  *Path
	lastRoute loopbackRoute
	groups    map[netip.Addr]bool // joined
	divider   runDivider

	*crossing // nil: one engine drives the NIC
}

// A loopbackRoute is where a LoopbackLink sends a frame.
type loopbackRoute uint8

const (
	routeLink loopbackRoute = iota // through the link
	routeSelf                      // to the NIC itself
	routeBoth                      // to a multicast group that the NIC has joined
)

// NewLoopbackLink wraps a link that does not deliver frames to their sender, as FabricLink does.
// local reports whether a station is currently the NIC's own; it is called once for each path of a
// batch, and once more for those that may have runs.
func NewLoopbackLink(inner Link, local func(Station) bool) *LoopbackLink {
	return &LoopbackLink{inner: inner, local: local, mtu: inner.Capabilities().MTU, ring: frameRing{limit: loopbackQueue},
		groups: map[netip.Addr]bool{}}
}

// Send implements Link.
func (l *LoopbackLink) Send(now int64, batch []TxFrame) (int, error) {
	l.now, l.lastPath = now, nil
	for i := 0; i < len(batch); {
		to := l.route(batch[i].Path)
		j := i + 1
		for j < len(batch) && l.route(batch[j].Path) == to {
			j++
		}
		n, err := 0, error(nil)
		switch to {
		case routeSelf:
			n = l.sendToSelf(batch[i:j])
		case routeBoth:
			clearDropped(batch[i:j])
			n, err = l.inner.Send(now, batch[i:j])
			l.copyToSelf(batch[i : i+n])
		default:
			n, err = l.sendThrough(now, batch[i:j])
		}
		if i += n; i < j || err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// sendThrough sends frames through the link. If the NIC has lost its address since CarriesRuns,
// runs to itself are among them, which the link may not know.
func (l *LoopbackLink) sendThrough(now int64, batch []TxFrame) (int, error) {
	if _, ok := l.inner.(RunCarrier); !ok && hasRuns(batch) {
		return l.divider.sendAll(now, batch, l.inner.Send)
	}
	return l.inner.Send(now, batch)
}

// route returns where the frames of a path go.
func (l *LoopbackLink) route(p *Path) loopbackRoute {
	if p != l.lastPath {
		l.lastPath, l.lastRoute = p, routeLink
		switch {
		case l.local(p.station()):
			l.lastRoute = routeSelf
		case l.groups[p.Dst] || l.crossing != nil && l.joinedByOthers(p.Dst):
			l.lastRoute = routeBoth
		}
	}
	return l.lastRoute
}

func clearDropped(batch []TxFrame) {
	for i := range batch {
		batch[i].Dropped = false
	}
}

// loopBack puts frames in the ring and returns how many it took.
func (l *LoopbackLink) loopBack(batch []TxFrame) int {
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
		l.nextID += uint16(f.Run.Packets())
		l.own.addTx(f)
	}
	return len(batch)
}

// CarriesRuns implements RunCarrier.
func (l *LoopbackLink) CarriesRuns(p *Path) bool {
	return l.crossing == nil && (l.route(p) == routeSelf || CarriesRuns(l.inner, p))
}

// Receive implements Link.
func (l *LoopbackLink) Receive(now int64, batch []RxFrame) (n int, err error) {
	return l.receive(now, batch, false)
}

// ReceiveRuns implements RunCarrier.
func (l *LoopbackLink) ReceiveRuns(now int64, batch []RxFrame) (n int, err error) {
	return l.receive(now, batch, true)
}

func (l *LoopbackLink) receive(now int64, batch []RxFrame, runs bool) (n int, err error) {
	l.now = now
	l.ring.release()
	if !l.linkFirst {
		n = l.receiveLooped(batch, runs)
	}
	m := 0
	if n < len(batch) {
		switch {
		case l.crossing != nil:
			m, err = l.receiveSteered(now, batch[n:])
		case runs:
			m, err = ReceiveRuns(l.inner, now, batch[n:])
		default:
			m, err = l.inner.Receive(now, batch[n:])
		}
		n += m
	}
	if l.linkFirst {
		n += l.receiveLooped(batch[n:], runs)
	}
	l.linkFirst = !l.linkFirst // so that neither starves the other
	return n, err
}

func (l *LoopbackLink) receiveLooped(batch []RxFrame, runs bool) int {
	n := l.ring.receive(batch, runs)
	l.own.addRxBatch(batch[:n])
	return n
}

// CopyPayload implements Link.
func (l *LoopbackLink) CopyPayload() {
	l.ring.copyPayload()
	l.inner.CopyPayload()
}

// NextDeadline implements Link. Looped-back frames are due at once.
func (l *LoopbackLink) NextDeadline() int64 {
	d := l.inner.NextDeadline()
	if l.ring.pending() > 0 || l.crossing != nil && l.arrivals.pending() {
		return earlier(d, max(1, l.now))
	}
	return d
}

// HoldsReferences implements Referrer.
func (l *LoopbackLink) HoldsReferences() bool {
	return l.ring.pending() > 0 || HoldsReferences(l.inner)
}

// earlier returns the earlier of two deadlines, where 0 means never.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// AppendFDs implements Link.
func (l *LoopbackLink) AppendFDs(fds []unix.PollFd) []unix.PollFd { return l.inner.AppendFDs(fds) }

// OnReady implements Link.
func (l *LoopbackLink) OnReady(f func()) {
	if l.crossing != nil {
		l.crossing.OnReady(f)
	}
	l.inner.OnReady(f)
}

// Capabilities implements Link. Looped-back frames have no ICRC even if the link's have. BadICRC is
// still set if a bit was flipped.
func (l *LoopbackLink) Capabilities() Capabilities { return l.inner.Capabilities() }

// Counters implements Counted.
func (l *LoopbackLink) Counters() *LinkCounters {
	l.total.setSum(linkCounters(l.inner), &l.own)
	return &l.total
}

// Close closes the link. Frames in the ring are lost.
func (l *LoopbackLink) Close() error {
	l.ring = frameRing{}
	if l.crossing != nil {
		l.arrivals.inbox.close()
	}
	return l.inner.Close()
}
