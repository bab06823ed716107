package wire

import (
	"net/netip"
	"slices"
)

// An InjectorLink is middleware with a second cable, on which whole Ethernet frames come to the NIC, whatever is in
// them. They go the way of a received frame of a dgram or a packet link, are checked and counted by the same
// code, and reach the NIC only if they pass. It is for simulations, whose links carry no bytes.
type InjectorLink struct {
	Link
	dgram   *DgramLink // without a socket
	packet  splitter   // of a packet link
	waiting []inletFrame
	now     int64
	own     LinkCounters // of what came the packet link's way
	total   LinkCounters
}

// An InletWay is the link whose way a frame goes.
type InjectAs uint8

// The ways differ in whom frames are for. That of a packet link is that of one whose interface is promiscuous, so
// that frames for other stations, addresses and groups reach the NIC; that of a dgram link ends there.
const (
	InjectAsPacket InjectAs = iota
	InjectAsDgram
)

type inletFrame struct {
	way   InjectAs
	frame []byte // behind a virtio-net header where it goes the way of a packet link
}

// NewInjectorLink wraps a link. The station is what the dgram link's way knows of the NIC.
func NewInjectorLink(link Link, station Interface) (*InjectorLink, error) {
	nowhere := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 1)
	d, err := newDgram(DgramConfig{Name: station.Name(), Local: nowhere, Remote: nowhere, MAC: station.MAC(), MTU: station.MTU(),
		Addrs: station.Addresses(), VLANs: VLANAddresses(station)})
	if err != nil {
		return nil, err
	}
	return &InjectorLink{Link: link, dgram: d}, nil
}

// Put puts a frame on the cable, from Ethernet header to ICRC. The next Receive finds it.
func (l *InjectorLink) Inject(way InjectAs, frame []byte) {
	if way == InjectAsPacket { // of all zeros: nothing is left to be done to the frame
		frame = append(make([]byte, virtioLen), frame...)
	}
	l.waiting = append(l.waiting, inletFrame{way, slices.Clone(frame)})
}

// Receive implements Link: what the link has, and then what was put.
func (l *InjectorLink) Receive(now int64, batch []RxFrame) (int, error) {
	l.now = now
	n, err := l.Link.Receive(now, batch)
	for n < len(batch) && len(l.waiting) > 0 {
		f := l.waiting[0]
		l.waiting = l.waiting[1:]
		if l.enter(f, &batch[n]) {
			n++
		}
	}
	return n, err
}

// enter takes a frame the way of its link and reports whether it is a packet for the NIC.
func (l *InjectorLink) enter(f inletFrame, rx *RxFrame) bool {
	if f.way == InjectAsDgram {
		return l.dgram.input(f.frame, rx)
	}
	if d, ok := l.packet.load(f.frame); !ok {
		l.own.Drops[d]++
		return false
	}
	if !l.packet.next(rx) {
		l.own.Drops[DropUDPLength] += l.packet.runts()
		return false
	}
	l.own.received(len(rx.Head), rx.Dst.Is4())
	return true
}

// NextDeadline implements Link. What was put is due at once.
func (l *InjectorLink) NextDeadline() int64 {
	d := l.Link.NextDeadline()
	if len(l.waiting) > 0 {
		return earlier(d, max(1, l.now))
	}
	return d
}

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

// Counters implements Counted: those of the link and of both ways.
func (l *InjectorLink) Counters() *LinkCounters {
	l.total.sum(countersOf(l.Link), &l.own)
	both := l.total
	l.total.sum(&both, &l.dgram.counters)
	return &l.total
}
