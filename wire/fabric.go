package wire

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Sizes of a fabric.
const (
	fabricMTU   = 9216 // bytes of an IP packet: path MTU 4096 and all headers fit
	fabricBatch = 128  // frames; larger batches do not fit the processor's cache
	fabricQueue = 1024 // frames that a link queues
)

// A Fabric is a switch inside the process, between the FabricLinks of emulated NICs, or a network
// of switches with queues and rates: see fabricNetwork. A frame goes to the link that has its
// destination address in its VLAN, and is dropped if there is none. A multicast frame goes to all
// links that joined the group and have an address in the VLAN.
//
// A frame takes these steps:
//
//  1. Send looks up the link that has the address, once for consecutive frames of one
//     Path.
//  2. If both links belong to one owner, the goroutine of an engine, the frame is put
//     in the receiver's ring: headers are copied, the payload is passed by reference,
//     and no lock is taken. The engine receives it at the beginning of its next step.
//     Until then the memory that the frame was sent from must stay mapped, and that of
//     a reliable service unchanged, unless CopyPayload is called. Frames of unreliable
//     services are copied, because their sends complete at once.
//  3. Otherwise the frame is copied to a buffer that the two links exchange, and the
//     batch is put in the receiver's inbox under one lock. An owner that may be asleep
//     is woken by the function that it passed to OnReady.
//
// A fabric is lossless: if a queue is full, Send takes fewer frames than it was offered. If all
// links are used by one goroutine, the fabric is deterministic.
type Fabric struct {
	mu    sync.Mutex
	ports []*FabricLink
	table atomic.Pointer[fabricTable] // replaced, never modified
	queue int

	network *fabricNetwork // of switches; nil: there is none
}

// A fabricTable maps stations to links. The links of a group are in the order of their creation.
type fabricTable struct {
	ports  map[Station]*FabricLink
	groups map[Station][]*FabricLink
}

// NewFabric returns a fabric without links.
func NewFabric() *Fabric {
	f := &Fabric{queue: fabricQueue}
	f.table.Store(&fabricTable{})
	return f
}

// NewLink adds a link with some addresses. Links of equal owners, which must be comparable, are
// used by one goroutine. A nil owner equals no other.
func (f *Fabric) NewLink(owner any, addrs ...netip.Addr) *FabricLink {
	p := &FabricLink{fabric: f, owner: owner, ring: frameRing{limit: f.queue}, arrivals: arrivals{inbox: inbox{limit: f.queue}},
		groups: map[netip.Addr]bool{}, nic: -1}
	f.mu.Lock()
	f.ports = append(f.ports, p)
	f.mu.Unlock()
	p.SetAddresses(addrs...)
	return p
}

// Split divides the NIC at the link's port into slices, each for another engine, and returns their
// links, p first. A frame goes to the slice that serves its destination queue pair. There may be no
// network of switches, and no link may be in use.
func (p *FabricLink) Split(owners ...any) []*FabricLink {
	all := []*FabricLink{p}
	for _, o := range owners {
		all = append(all, p.fabric.NewLink(o))
	}
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	for _, s := range all {
		s.slices = all
	}
	p.fabric.rebuild()
	return all
}

// rebuild replaces the table. If two links claim one address, the older has it.
func (f *Fabric) rebuild() {
	t := &fabricTable{ports: map[Station]*FabricLink{}, groups: map[Station][]*FabricLink{}}
	for _, p := range f.ports {
		for _, s := range p.stations {
			if _, taken := t.ports[s]; !taken {
				t.ports[s] = p
			}
		}
		for g := range p.groups {
			for _, v := range p.vlans() {
				s := Station{g, v}
				t.groups[s] = append(t.groups[s], p)
			}
		}
	}
	f.table.Store(t)
}

func (f *Fabric) remove(p *FabricLink) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.ports {
		if f.ports[i] == p {
			f.ports = append(f.ports[:i], f.ports[i+1:]...)
			break
		}
	}
	f.rebuild()
}

// A FabricLink is a NIC's link to a Fabric. It has no ICRC (Capabilities.ICRC): frames are never
// serialized, so that only a FaultLink can corrupt them.
type FabricLink struct {
	fabric   *Fabric
	owner    any
	stations []Station           // guarded by fabric.mu
	groups   map[netip.Addr]bool // joined; guarded by fabric.mu
	mac      atomic.Pointer[[6]byte]

	// The links of a NIC that several engines drive, by slice; nil: there is one engine. The first
	// has the addresses.
	slices []*FabricLink

	readiness // for frames of another owner, and room in a full link of another owner

	route route
	ring  frameRing
	now   int64 // time of the last call
	arrivals
	spareCopies copies
	inboxFirst  bool // the next Receive reads the inbox before the ring
	nextID      uint16
	counters    LinkCounters
	divider     runDivider
	closed      bool

	// On a fabric with a network: the number of the NIC, -1 before Plug, whether frames wait for
	// Receive, the priorities for which Paused is asked, and the pause frames for captures.
	nic     int
	arrived atomic.Bool
	blocked atomic.Uint32
	pauses  pauseLog
}

// A route caches the result of the last lookup.
type route struct {
	path  *Path
	table *fabricTable
	to    *FabricLink
}

// SetAddresses replaces the link's addresses. It may be called from any goroutine.
func (p *FabricLink) SetAddresses(addrs ...netip.Addr) {
	var stations []Station
	for _, a := range addrs {
		stations = append(stations, Station{Addr: a})
	}
	p.SetStations(stations...)
}

// SetStations is SetAddresses with VLANs.
func (p *FabricLink) SetStations(stations ...Station) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	p.stations = slices.Clone(stations)
	p.fabric.rebuild()
}

// vlans returns 0 and the VLANs of the link's stations.
func (p *FabricLink) vlans() []uint16 {
	l := []uint16{0}
	if p.slices != nil {
		p = p.slices[0]
	}
	for _, s := range p.stations {
		if !slices.Contains(l, s.VLAN) {
			l = append(l, s.VLAN)
		}
	}
	return l
}

// Follow sets the link's MAC and addresses to those of an interface, now and whenever they change.
// It adds the link-local address of the MAC, which every NIC has. It returns the interface as one
// that resolves the addresses of other links on the fabric to their MACs.
func (p *FabricLink) Follow(i Interface) Trunk {
	set := func() {
		mac := i.MAC()
		p.mac.Store(&mac)
		stations := []Station{{Addr: linkLocal(mac)}}
		for _, a := range i.Addresses() {
			stations = append(stations, Station{Addr: a.Addr()})
		}
		for _, a := range VLANAddresses(i) {
			stations = append(stations, Station{a.Addr(), a.VLAN})
		}
		p.SetStations(stations...)
	}
	i.OnChange(set)
	set()
	return &fabricInterface{i, p.fabric}
}

// A fabricInterface is the interface of a NIC on a fabric.
type fabricInterface struct {
	Interface
	fabric *Fabric
}

// VLANAddresses implements Trunk.
func (f *fabricInterface) VLANAddresses() []VLANAddress { return VLANAddresses(f.Interface) }

// Resolve implements Interface. Frames reach the link of the address, whatever the MAC: it is for
// captures.
func (f *fabricInterface) Resolve(ctx context.Context, p *Path) error {
	if err := f.Interface.Resolve(ctx, p); err != nil {
		return err
	}
	if to := f.fabric.table.Load().ports[p.station()]; to != nil {
		p.DstMAC = to.sourceMAC(p.Dst)
	}
	return nil
}

// sourceMAC returns the source MAC of frames from src, which only captures show.
func (p *FabricLink) sourceMAC(src netip.Addr) [6]byte {
	if p.slices != nil {
		p = p.slices[0]
	}
	if m := p.mac.Load(); m != nil {
		return *m
	}
	b := src.As16()
	return [6]byte{0x02, 0x00, b[12], b[13], b[14], b[15]}
}

// Send implements Link. It stops at the first frame whose receiver's queue is full.
func (p *FabricLink) Send(now int64, batch []TxFrame) (int, error) {
	if p.closed {
		return 0, ErrClosed
	}
	p.now = now
	for i := 0; i < len(batch); {
		if tooLong(&batch[i], fabricMTU) {
			p.counters.Drops[DropTooLong]++
			batch[i].Dropped = true
			i++
			continue
		}
		if dst := batch[i].Path.Dst; dst.IsMulticast() {
			p.sendToGroup(p.fabric.table.Load().groups[batch[i].Path.station()], batch[i:i+1])
			p.counters.addTx(&batch[i])
			i++
			continue
		}
		to := p.lookup(&batch[i])
		whole := p.refersTo(to)
		if batch[i].Run.Repeat > 0 && !whole {
			if done, err := p.divider.send(now, &batch[i], p.Send); !done || err != nil {
				return i, err
			}
			i++
			continue
		}
		j := i + 1
		for j < len(batch) && !tooLong(&batch[j], fabricMTU) && p.lookup(&batch[j]) == to &&
			(whole || batch[j].Run.Repeat == 0) && (to != nil || !batch[j].Path.Dst.IsMulticast()) {
			j++
		}
		n := p.sendTo(to, batch[i:j])
		if to != nil {
			p.counters.addTxBatch(batch[i : i+n])
		}
		if i += n; i < j {
			return i, nil
		}
	}
	return len(batch), nil
}

func tooLong(f *TxFrame, mtu int) bool { return f.IPLen() > mtu }

func (p *FabricLink) lookup(f *TxFrame) *FabricLink {
	to := p.lookupPath(f.Path)
	if to != nil && to.slices != nil {
		return to.slices[SliceOf(destQP(f.Head[:]), len(to.slices))]
	}
	return to
}

// lookupPath returns the link that has the destination address of a path, of several slices the
// first.
func (p *FabricLink) lookupPath(path *Path) *FabricLink {
	t := p.fabric.table.Load()
	if p.route.path != path || p.route.table != t {
		p.route = route{path, t, t.ports[path.station()]}
	}
	return p.route.to
}

// sendTo sends frames to one link and returns how many it took.
func (p *FabricLink) sendTo(to *FabricLink, batch []TxFrame) int {
	switch {
	case to == nil, p.fabric.network != nil && (p.nic < 0 || to.nic < 0):
		p.counters.Drops[DropUnreachable] += uint64(len(batch))
		for i := range batch {
			batch[i].Dropped = true
		}
		return len(batch)
	case p.fabric.network != nil && p != to:
		return p.fabric.network.send(p, to, batch)
	case p.refersTo(to):
		return p.sendByReference(to, batch)
	}
	return p.sendCopies(to, batch)
}

// refersTo reports whether frames to a link refer to their payload.
func (p *FabricLink) refersTo(to *FabricLink) bool {
	return to != nil && (p == to || p.owner != nil && p.owner == to.owner && p.fabric.network == nil)
}

// CarriesRuns implements RunCarrier. The slices of a NIC may belong to different owners.
func (p *FabricLink) CarriesRuns(path *Path) bool {
	to := p.lookupPath(path)
	return p.refersTo(to) && to.slices == nil
}

// sendByReference puts frames in the ring of a link of the same owner.
func (p *FabricLink) sendByReference(to *FabricLink, batch []TxFrame) int {
	mac := p.sourceMAC(batch[0].Path.Src)
	to.now = p.now
	for i := range batch {
		f := &batch[i]
		f.ID, f.ICRC = p.nextID, 0
		if !to.ring.push(f, mac) {
			return i
		}
		p.nextID += uint16(f.Run.Packets())
	}
	return len(batch)
}

// sendCopies copies frames to the inbox of a link of another owner.
func (p *FabricLink) sendCopies(to *FabricLink, batch []TxFrame) (taken int) {
	mac := p.sourceMAC(batch[0].Path.Src)
	for {
		rest := batch[taken:]
		n := min(len(rest), to.inbox.free())
		for i := range n {
			rest[i].ID, rest[i].ICRC = p.nextID+uint16(i), 0
			p.spareCopies.at(i).set(&rest[i], mac)
		}
		put, wake, waits := to.inbox.put(p, p.spareCopies[:n], n < len(rest))
		p.nextID += uint16(put)
		taken += put
		if wake {
			to.ready()
		}
		if waits || taken == len(batch) {
			return taken
		}
	}
}

// Receive implements Link.
func (p *FabricLink) Receive(now int64, batch []RxFrame) (int, error) {
	return p.receive(now, batch, false)
}

// ReceiveRuns implements RunCarrier.
func (p *FabricLink) ReceiveRuns(now int64, batch []RxFrame) (int, error) {
	return p.receive(now, batch, true)
}

func (p *FabricLink) receive(now int64, batch []RxFrame, runs bool) (int, error) {
	if p.closed {
		return 0, ErrClosed
	}
	p.now = now
	if n := p.fabric.network; n != nil {
		p.ring.release()
		k := p.ring.receive(batch, runs)
		k += n.receive(p, batch[k:])
		p.counters.addRxBatch(batch[:k])
		return k, nil
	}
	if p.ring.n == 0 && p.delivered == 0 && p.inbox.n.Load() == 0 {
		return 0, nil
	}
	p.ring.release()
	var n int
	if p.inboxFirst {
		n = p.arrivals.receive(batch)
		n += p.ring.receive(batch[n:], runs)
	} else {
		n = p.ring.receive(batch, runs)
		n += p.arrivals.receive(batch[n:])
	}
	p.inboxFirst = !p.inboxFirst // so that neither starves the other
	p.counters.addRxBatch(batch[:n])
	return n, nil
}

// CopyPayload implements Link.
func (p *FabricLink) CopyPayload() { p.ring.copyPayload() }

// AppendFDs implements Link: there are none.
func (p *FabricLink) AppendFDs(fds []unix.PollFd) []unix.PollFd { return fds }

// NextDeadline implements Link. Queued frames are due at once, because OnReady reports neither
// frames of the same owner nor those that the last Receive left.
func (p *FabricLink) NextDeadline() int64 {
	if p.ring.pending() > 0 || p.arrivals.pending() {
		return max(1, p.now)
	}
	if n := p.fabric.network; n != nil {
		return n.deadline(p)
	}
	return 0
}

// HoldsReferences implements Referrer.
func (p *FabricLink) HoldsReferences() bool { return p.ring.pending() > 0 }

// Capabilities implements Link.
func (p *FabricLink) Capabilities() Capabilities {
	n := p.fabric.network
	return Capabilities{MTU: fabricMTU, MaxBatch: fabricBatch, RoCEv1: true, PFC: n != nil && n.net.PFC()}
}

// Counters implements Counted.
func (p *FabricLink) Counters() *LinkCounters { return &p.counters }

// Close removes the link from the fabric. Queued frames are lost.
func (p *FabricLink) Close() error {
	if p.closed {
		return ErrClosed
	}
	p.closed = true
	p.fabric.remove(p)
	if n := p.fabric.network; n != nil {
		n.unplug(p)
	}
	p.inbox.close()
	p.ring = frameRing{}
	return nil
}
