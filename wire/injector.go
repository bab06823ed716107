package wire

import (
	"net/netip"
	"slices"
)

// An InjectorLink is middleware that takes whole Ethernet frames, of any content, in addition to
// the link's. An injected frame passes the receive checks of a dgram or a packet link, and counts
// as there; it reaches the NIC only if it passes. It is for simulations, whose links carry no
// bytes.
type InjectorLink struct {
	Link
	dgram    *DgramLink // without a socket
	packet   packetDecoder
	injected []injectedFrame
	now      int64
	own      LinkCounters
	total    LinkCounters
}

// InjectAs is the kind of link whose receive checks a frame passes.
type InjectAs uint8

// The kinds differ in the destinations that they accept. A packet link is one on a promiscuous
// interface: frames for other stations, addresses and groups reach the NIC. A dgram link drops
// these.
const (
	InjectAsPacket InjectAs = iota
	InjectAsDgram
)

type injectedFrame struct {
	as    InjectAs
	frame []byte // with a virtio-net header in front for InjectAsPacket
}

// NewInjectorLink wraps a link. The station has the addresses that InjectAsDgram accepts.
func NewInjectorLink(link Link, station Interface) (*InjectorLink, error) {
	unused := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 1)
	d, err := newDgram(DgramConfig{Name: station.Name(), Local: unused, Remote: unused, MAC: station.MAC(), MTU: station.MTU(),
		Addrs: station.Addresses(), VLANs: VLANAddresses(station)})
	if err != nil {
		return nil, err
	}
	return &InjectorLink{Link: link, dgram: d}, nil
}

// Inject adds a frame, from Ethernet header to ICRC, for the next Receive.
func (l *InjectorLink) Inject(as InjectAs, frame []byte) {
	if as == InjectAsPacket { // a header of zeros: no offload
		frame = append(make([]byte, virtioLen), frame...)
	}
	l.injected = append(l.injected, injectedFrame{as, slices.Clone(frame)})
}

// Receive implements Link: the link's frames, then the injected ones.
func (l *InjectorLink) Receive(now int64, batch []RxFrame) (int, error) {
	l.now = now
	n, err := l.Link.Receive(now, batch)
	for n < len(batch) && len(l.injected) > 0 {
		f := l.injected[0]
		l.injected = l.injected[1:]
		if l.decode(f, &batch[n]) {
			n++
		}
	}
	return n, err
}

// decode sets rx to the packet in a frame and reports whether there is one for the NIC.
func (l *InjectorLink) decode(f injectedFrame, rx *RxFrame) bool {
	var d rxDecoder = &l.packet
	if f.as == InjectAsDgram {
		d = l.dgram
	}
	if reason, ok := d.load(rxMessage{data: f.frame}); !ok {
		l.own.Drops[reason]++
		return false
	}
	if !d.next(rx) {
		l.own.Drops[DropUDPLength] += d.runts()
		return false
	}
	l.own.addRx(rx)
	return true
}

// NextDeadline implements Link. Injected frames are due at once.
func (l *InjectorLink) NextDeadline() int64 {
	d := l.Link.NextDeadline()
	if len(l.injected) > 0 {
		return earlier(d, max(1, l.now))
	}
	return d
}

// HoldsReferences implements Referrer.
func (l *InjectorLink) HoldsReferences() bool { return HoldsReferences(l.Link) }

// Join implements Multicaster.
func (l *InjectorLink) Join(group netip.Addr) error {
	if err := Join(l.Link, group); err != nil {
		return err
	}
	return l.dgram.Join(group)
}

// Leave implements Multicaster.
func (l *InjectorLink) Leave(group netip.Addr) {
	Leave(l.Link, group)
	l.dgram.Leave(group)
}

// Counters implements Counted: those of the link and of injected frames.
func (l *InjectorLink) Counters() *LinkCounters {
	l.total.setSum(linkCounters(l.Link), &l.own)
	return &l.total
}
