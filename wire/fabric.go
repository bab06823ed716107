package wire

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// What a fabric carries.
const (
	fabricMTU   = 9216 // bytes of an IP packet; path MTU 4096 and every header fit
	fabricBatch = 128  // frames; more would only leave the processor's cache
	fabricQueue = 1024 // frames that wait at a port
)

// A Fabric is a switch inside the process, between the ports of emulated NICs. A frame
// goes to the port that has its destination's IP address in its VLAN, and is dropped if none has; to a
// multicast address, to all ports that joined the group and have an address in the VLAN.
//
// The way of a frame:
//
//  1. Send looks up the port that has the address, once for frames of one Path.
//  2. If both ports belong to one owner, which is the goroutine of an engine, the frame
//     is put in the receiver's ring: headers copied, payload by reference, no lock. The
//     engine receives it at the beginning of its next step; until then memory that it
//     sent from must stay mapped, and that of a reliable service unchanged.
//     Frames of unreliable services are copied, for their senders complete at once.
//  3. If not, the frame is copied to a buffer that goes round between the two, and the
//     batch is put in the receiver's inbox under one lock. An owner that may be asleep is
//     called by the function that it gave OnReady.
//
// A queue that is full makes Send take fewer frames than it was offered: a fabric is
// lossless. In one goroutine, everything that happens on a fabric is a function of the
// order of calls.
type Fabric struct {
	mu    sync.Mutex
	ports []*FabricLink
	table atomic.Pointer[fabricTable] // replaced, never changed
	queue int
}

// A fabricTable says where addresses are. Of a group, the ports stand in the order in which they
// were made.
type fabricTable struct {
	ports  map[Station]*FabricLink
	groups map[Station][]*FabricLink
}

// NewFabric returns a fabric without ports.
func NewFabric() *Fabric {
	f := &Fabric{queue: fabricQueue}
	f.table.Store(&fabricTable{})
	return f
}

// NewLink adds a port with the addresses given. Ports of equal owners, which must be
// comparable, are driven by one goroutine; a nil owner is equal to none.
func (f *Fabric) NewLink(owner any, addrs ...netip.Addr) *FabricLink {
	p := &FabricLink{fabric: f, owner: owner, ring: refRing{limit: f.queue}, inbox: inbox{limit: f.queue},
		groups: map[netip.Addr]bool{}}
	f.mu.Lock()
	f.ports = append(f.ports, p)
	f.mu.Unlock()
	p.SetAddresses(addrs...)
	return p
}

// rebuild makes a new table; of two ports that claim one address the older has it.
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

// A FabricPort is a NIC's link to a Fabric. Capabilities.ICRC is false: what it carries
// was never bytes on a cable, so that nothing but Fault can damage it.
type FabricLink struct {
	fabric   *Fabric
	owner    any
	stations []Station           // under fabric.mu
	groups   map[netip.Addr]bool // joined; under fabric.mu
	mac      atomic.Pointer[[6]byte]

	route    route
	ring     refRing
	now      int64 // of the last call that concerned the port
	inbox    inbox
	taken    []*rxCopy // from inbox, for Receive to hand out
	handed   int       // how many of them it has
	spare    []*rxCopy // buffers to copy to
	waiters  []*FabricLink
	inFirst  bool // the next Receive looks at the inbox before the ring
	nextID   uint16
	counters LinkCounters
	onReady  atomic.Pointer[func()]
	closed   bool
}

// route remembers where the last Path led.
type route struct {
	path  *Path
	table *fabricTable
	to    *FabricLink
}

// SetAddresses replaces the addresses whose frames come to this port. It may be called
// from any goroutine.
func (p *FabricLink) SetAddresses(addrs ...netip.Addr) {
	var stations []Station
	for _, a := range addrs {
		stations = append(stations, Station{Addr: a})
	}
	p.SetStations(stations...)
}

// SetStations is SetAddresses where there are VLANs.
func (p *FabricLink) SetStations(stations ...Station) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	p.stations = slices.Clone(stations)
	p.fabric.rebuild()
}

// vlans are those that the port has a station in, and the absence of one.
func (p *FabricLink) vlans() []uint16 {
	l := []uint16{0}
	for _, s := range p.stations {
		if !slices.Contains(l, s.VLAN) {
			l = append(l, s.VLAN)
		}
	}
	return l
}

// Follow gives the port the MAC and the addresses that the interface has, and the
// link-local one that every NIC has by its MAC, now and whenever they change.
func (p *FabricLink) Follow(i Interface) {
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
}

// sourceMAC is what frames say they come from; only captures show it.
func (p *FabricLink) sourceMAC(src netip.Addr) [6]byte {
	if m := p.mac.Load(); m != nil {
		return *m
	}
	b := src.As16()
	return [6]byte{0x02, 0x00, b[12], b[13], b[14], b[15]}
}

// Send implements Link. It stops at the first frame whose receiver has no room.
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
			p.spread(p.fabric.table.Load().groups[batch[i].Path.station()], batch[i:i+1])
			p.counters.sent(&batch[i])
			i++
			continue
		}
		to := p.lookup(batch[i].Path)
		j := i + 1
		for j < len(batch) && !tooLong(&batch[j], fabricMTU) && p.lookup(batch[j].Path) == to &&
			(to != nil || !batch[j].Path.Dst.IsMulticast()) {
			j++
		}
		n := p.sendTo(to, batch[i:j])
		if to != nil {
			p.counters.sentAll(batch[i : i+n])
		}
		if i += n; i < j {
			return i, nil
		}
	}
	return len(batch), nil
}

func tooLong(f *TxFrame, mtu int) bool { return ipLen(f.Len, f.Path.Dst.Is4()) > mtu }

func (p *FabricLink) lookup(path *Path) *FabricLink {
	t := p.fabric.table.Load()
	if p.route.path != path || p.route.table != t {
		p.route = route{path, t, t.ports[path.station()]}
	}
	return p.route.to
}

// sendTo sends frames of one destination and returns how many were taken.
func (p *FabricLink) sendTo(to *FabricLink, batch []TxFrame) int {
	switch {
	case to == nil:
		p.counters.Drops[DropUnreachable] += uint64(len(batch))
		for i := range batch {
			batch[i].Dropped = true
		}
		return len(batch)
	case p.owner != nil && p.owner == to.owner:
		return p.pass(to, batch)
	}
	return p.copyTo(to, batch)
}

// pass puts frames in the ring of a port of the same owner.
func (p *FabricLink) pass(to *FabricLink, batch []TxFrame) int {
	mac := p.sourceMAC(batch[0].Path.Src)
	to.now = p.now
	for i := range batch {
		f := &batch[i]
		f.ID, f.ICRC = p.nextID, 0
		if !to.ring.push(f, mac) {
			return i
		}
		p.nextID++
	}
	return len(batch)
}

// copyTo copies frames to the inbox of a port of another owner.
func (p *FabricLink) copyTo(to *FabricLink, batch []TxFrame) (taken int) {
	mac := p.sourceMAC(batch[0].Path.Src)
	for {
		rest := batch[taken:]
		n := min(len(rest), to.inbox.room())
		for i := range n {
			rest[i].ID, rest[i].ICRC = p.nextID+uint16(i), 0
			p.buffer(i).set(&rest[i], mac)
		}
		put, wake, waits := to.inbox.put(p, p.spare[:n], n < len(rest))
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

// buffer returns the i-th buffer to copy to.
func (p *FabricLink) buffer(i int) *rxCopy {
	if i == len(p.spare) {
		p.spare = append(p.spare, nil)
	}
	if p.spare[i] == nil {
		p.spare[i] = new(rxCopy)
	}
	return p.spare[i]
}

func (p *FabricLink) ready() {
	if f := p.onReady.Load(); f != nil {
		(*f)()
	}
}

// Receive implements Link.
func (p *FabricLink) Receive(now int64, batch []RxFrame) (int, error) {
	if p.closed {
		return 0, ErrClosed
	}
	p.now = now
	p.ring.release()
	var n int
	if p.inFirst {
		n = p.receiveCopied(batch)
		n += p.ring.receive(batch[n:])
	} else {
		n = p.ring.receive(batch)
		n += p.receiveCopied(batch[n:])
	}
	p.inFirst = !p.inFirst // neither starves the other
	p.counters.receivedAll(batch[:n])
	return n, nil
}

// receiveCopied hands out frames of other owners. Those of the last call are only
// given back when all that were taken with them have been handed out.
func (p *FabricLink) receiveCopied(batch []RxFrame) int {
	if p.handed == len(p.taken) && (p.handed > 0 || p.inbox.n.Load() > 0) {
		p.taken, p.waiters = p.inbox.take(p.taken, p.waiters)
		p.handed = 0
	}
	n := min(len(batch), len(p.taken)-p.handed)
	for i := range n {
		batch[i] = p.taken[p.handed].RxFrame
		p.handed++
	}
	return n
}

// FD implements Link: there is none.
func (p *FabricLink) FD() int { return -1 }

// OnReady implements Link. f is called when frames of other owners come to an empty
// port, and when a port of another owner that was full has room again. It must not block.
func (p *FabricLink) OnReady(f func()) { p.onReady.Store(&f) }

// NextDeadline implements Link. Frames that wait are due at once: nobody calls the
// owner for those that it sent itself, nor for those that it left.
func (p *FabricLink) NextDeadline() int64 {
	if p.ring.waiting() > 0 || p.handed < len(p.taken) || p.inbox.n.Load() > 0 {
		return max(1, p.now)
	}
	return 0
}

// Capabilities implements Link.
func (p *FabricLink) Capabilities() Capabilities {
	return Capabilities{MTU: fabricMTU, MaxBatch: fabricBatch}
}

// Counters implements Counted.
func (p *FabricLink) Counters() *LinkCounters { return &p.counters }

// Close removes the port from the fabric; frames that wait there are lost.
func (p *FabricLink) Close() error {
	if p.closed {
		return ErrClosed
	}
	p.closed = true
	p.fabric.remove(p)
	p.inbox.close()
	p.ring = refRing{}
	return nil
}
