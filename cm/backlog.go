package cm

// maxHalfOpen is how many connections of a listener may wait for an RTU. It leaves half of a
// session's identifiers for established connections.
const maxHalfOpen = MaxIDs / 2

// A backlog is the connection requests of a listener in one stage: those that the program has not
// received yet, or those that it has accepted and whose peer has not replied. When it is full,
// a new request displaces one of the sender with the most, so that a flood of requests displaces
// itself and not the requests of others.
//
// A sender is a MAC, and an address in a VLAN at that MAC. Addresses are easily forged, and a flood
// from many of them usually comes from one machine or through one router. A link that does not know
// MACs reports them as zeros, which leaves the addresses.
type backlog struct {
	members  []*member // in no order
	stations map[station]*int
	macs     map[[6]byte]*int
	last     uint64
}

// A member is a request in a backlog.
type member struct {
	id      *ID
	of      *backlog
	index   int    // in members
	seq     uint64 // order of arrival
	station *int   // the number of members of its address
	mac     *int   // and of its MAC

	// The event with which the sender gave up, for a request that the program has not received.
	withdrawn *ConnEvent
}

func (b *backlog) len() int { return len(b.members) }

func counter[K comparable](m map[K]*int, k K) *int {
	n := m[k]
	if n == nil {
		n = new(int)
		m[k] = n
	}
	return n
}

// add adds a request. The identifier is in one backlog at a time.
func (b *backlog) add(id *ID) {
	if b.stations == nil {
		b.stations, b.macs = map[station]*int{}, map[[6]byte]*int{}
	}
	b.last++
	r := &id.route
	m := &member{id: id, of: b, index: len(b.members), seq: b.last, station: counter(b.stations, r.peer()), mac: counter(b.macs, r.DstMAC)}
	*m.station++
	*m.mac++
	b.members = append(b.members, m)
	id.member = m
}

// leaveBacklog removes the request from its backlog, if it is in one.
func (id *ID) leaveBacklog() {
	m := id.member
	if m == nil {
		return
	}
	id.member = nil
	b, r := m.of, &id.route
	last := len(b.members) - 1
	b.members[m.index] = b.members[last]
	b.members[m.index].index = m.index
	b.members[last] = nil
	b.members = b.members[:last]
	if *m.station--; *m.station == 0 {
		delete(b.stations, r.peer())
	}
	if *m.mac--; *m.mac == 0 {
		delete(b.macs, r.DstMAC)
	}
}

// largest returns a request whose sender gave up or else the oldest of the sender with the most,
// nil if there is none.
func (b *backlog) largest() *member {
	var most *member
	for _, m := range b.members {
		switch {
		case m.withdrawn != nil:
			return m
		case most == nil, *m.mac > *most.mac:
			most = m
		case *m.mac < *most.mac:
		case *m.station > *most.station, *m.station == *most.station && m.seq < most.seq:
			most = m
		}
	}
	return most
}

// displacedBy returns the request that makes room for one more along a route, nil if its sender has
// no fewer than the others.
func (b *backlog) displacedBy(r *Route) *ID {
	most := b.largest()
	if most == nil {
		return nil
	}
	var station, mac int
	if n := b.stations[r.peer()]; n != nil {
		station = *n
	}
	if n := b.macs[r.DstMAC]; n != nil {
		mac = *n
	}
	if most.withdrawn != nil || *most.mac > mac+1 || most.id.route.DstMAC == r.DstMAC && *most.station > station+1 {
		return most.id
	}
	return nil
}
