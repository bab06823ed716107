package cm

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// A NIC is a device that identifiers are bound to.
type NIC interface {
	Port

	Name() string
	Netdev() string // the interface below it, "" for none
	Addresses() []netip.Prefix
	Up() bool
	MTU() uint8      // active path MTU, as a code
	ACKDelay() uint8 // how long it may take to acknowledge: code

	// GIDIndex returns the place of an address in the GID table.
	GIDIndex(netip.Addr) (int, bool)

	// PKey returns the P_Key of connections that are asked for, as full members have it: of the default partition, if
	// the NIC is in that.
	PKey() uint16

	// PKeyIndex returns the place of a partition in the P_Key table, by the key of a peer that is in it.
	PKeyIndex(key uint16) (int, bool)

	// Owns reports whether a queue pair is one that the owner of a session may connect.
	Owns(qpn uint32, owner Owner) bool

	// Resolve finds the next hop of a route and has done called later, where the manager is
	// called, with the error or the route completed.
	Resolve(r Route, timeout time.Duration, done func(Route, error))
}

// An Owner is the user behind a session.
type Owner struct {
	UID        uint32
	Privileged bool // may have ports below 1024
	PID        int  // for show
	Comm       string
}

// An Error is a refusal: an errno, and why. It matches its syscall.Errno.
type Error struct {
	Errno syscall.Errno
	Text  string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Text, e.Errno) }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

func errnoError(no syscall.Errno, format string, a ...any) error {
	return &Error{no, fmt.Sprintf(format, a...)}
}

// What a session may hold.
const (
	MaxIDs       = 8192  // identifiers
	MaxChannels  = 1024  // event channels
	MaxEvents    = 32768 // that wait to be fetched: fewer than bytes in a pipe
	MaxBacklog   = 1024  // connection requests that wait at a listener
	maxResolving = 64    // resolutions under way
	maxGroups    = 64    // multicast groups of an identifier
)

// A Manager keeps the identifiers of all programs, and the ports of all port spaces. Like the Agent
// below it, it is called by one goroutine.
type Manager struct {
	agent    *Agent
	nics     []NIC
	now      int64
	sessions map[*Session]struct{}
	ports    map[portKey][]*ID // bound to a port
	nextPort uint16
}

type portKey struct {
	ps   PortSpace
	port uint16
}

// Ports that are given to those who do not ask for one: what Linux gives.
const (
	firstPort = 32768
	lastPort  = 60999
)

// NewManager returns a manager for some NICs. seed decides communication IDs, PSNs and ports.
func NewManager(nics []NIC, seed uint64) *Manager {
	m := &Manager{nics: nics, sessions: map[*Session]struct{}{}, ports: map[portKey][]*ID{}}
	m.agent = NewAgent(m, seed)
	m.nextPort = firstPort + uint16(m.agent.random.IntN(lastPort-firstPort))
	return m
}

// Advance makes it now, and does what is due. Everything until the next Advance happens now.
func (m *Manager) Advance(now int64) {
	m.now = now
	m.agent.Expire(now)
}

// NextDeadline says when Advance wants to be called, 0 for never.
func (m *Manager) NextDeadline() int64 { return m.agent.NextDeadline() }

// Receive handles a MAD that came to a NIC.
func (m *Manager) Receive(n NIC, back Route, mad []byte) { m.agent.Receive(m.now, n, back, mad) }

// Connections returns how many connections there are, those that end included.
func (m *Manager) Connections() int { return m.agent.Len() }

// A Session is a program: its identifiers and event channels.
type Session struct {
	manager   *Manager
	owner     Owner
	nics      []NIC // that it may use
	ids       map[uint32]*ID
	last      uint32
	channels  int
	events    int
	resolving int
	closed    bool
}

// Open begins a session. With the name of a device, it uses that one alone; the error is ENODEV.
func (m *Manager) Open(owner Owner, device string) (*Session, error) {
	s := &Session{manager: m, owner: owner, nics: m.nics, ids: map[uint32]*ID{}}
	if device != "" {
		s.nics = nil
		for _, n := range m.nics {
			if n.Name() == device {
				s.nics = []NIC{n}
			}
		}
		if s.nics == nil {
			return nil, errnoError(syscall.ENODEV, "there is no device %q", device)
		}
	}
	m.sessions[s] = struct{}{}
	return s, nil
}

// Close ends the session: each identifier is destroyed, and peers hear it.
func (s *Session) Close() {
	s.closed = true
	for _, h := range s.handles() {
		if id := s.ids[h]; id != nil {
			id.destroy()
		}
	}
	delete(s.manager.sessions, s)
}

// handles returns the identifiers' handles, oldest first.
func (s *Session) handles() []uint32 {
	l := make([]uint32, 0, len(s.ids))
	for h := range s.ids {
		l = append(l, h)
	}
	slices.Sort(l)
	return l
}

// ID returns the identifier behind a handle. The error is EINVAL.
func (s *Session) ID(handle uint32) (*ID, error) {
	if id := s.ids[handle]; id != nil {
		return id, nil
	}
	return nil, errnoError(syscall.EINVAL, "handle %d is no identifier", handle)
}

// Remove tells every identifier that is bound to a NIC that it goes away.
func (m *Manager) Remove(n NIC) {
	for s := range m.sessions {
		for _, h := range s.handles() {
			if id := s.ids[h]; id.nic == n {
				id.post(&Event{Type: EventDeviceRemoval})
			}
		}
	}
}

// AddressesChanged tells identifiers whose source address a NIC has lost: once, and again when it was there in between.
func (m *Manager) AddressesChanged(n NIC) {
	for s := range m.sessions {
		for _, h := range s.handles() {
			id := s.ids[h]
			if id.nic != n || !id.src.Addr().IsValid() || isWildcard(id.src.Addr()) {
				continue
			}
			_, ok := n.GIDIndex(id.src.Addr())
			if !ok && !id.moved && s.events < MaxEvents {
				id.post(&Event{Type: EventAddrChange})
			}
			id.moved = !ok
		}
	}
}

// IDInfo is an identifier as an operator sees it.
type IDInfo struct {
	PortSpace string         `json:"port_space"`
	State     string         `json:"state"`
	Device    string         `json:"device,omitempty"`
	Src       netip.AddrPort `json:"src"`
	Dst       netip.AddrPort `json:"dst"`
	QPN       uint32         `json:"qpn,omitempty"`
	Handle    uint32         `json:"handle"`
	PID       int            `json:"pid"`
	UID       uint32         `json:"uid"`
	Comm      string         `json:"comm"`
}

// IDs lists the identifiers of all sessions.
func (m *Manager) IDs() []IDInfo {
	var l []IDInfo
	for s := range m.sessions {
		for _, h := range s.handles() {
			id := s.ids[h]
			i := IDInfo{PortSpace: id.ps.String(), State: id.state.String(), Src: id.src, Dst: id.dst, QPN: id.qpn,
				Handle: h, PID: s.owner.PID, UID: s.owner.UID, Comm: s.owner.Comm}
			if id.nic != nil {
				i.Device = id.nic.Name()
			}
			if id.conn != nil {
				i.State = id.conn.State().String()
			}
			l = append(l, i)
		}
	}
	slices.SortFunc(l, func(a, b IDInfo) int { return cmp.Or(a.PID-b.PID, int(a.Handle)-int(b.Handle)) })
	return l
}
