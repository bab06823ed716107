package cm

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"softroce/packet"
)

// A NIC is a device that identifiers are bound to.
type NIC interface {
	Port

	Name() string
	Addresses() []Address // in the order of the GID table
	Up() bool
	MTU() uint8      // active path MTU, as a code
	ACKDelay() uint8 // code of the local CA ACK delay

	// PKey returns the P_Key for new connections, with the membership bit set: that of the default
	// partition, if the NIC is a member.
	PKey() uint16

	// PKeyIndex returns the index of a partition in the P_Key table, given the P_Key of a peer in
	// it.
	PKeyIndex(key uint16) (int, bool)

	// Owns reports whether the owner of a session may connect a queue pair.
	Owns(qpn uint32, owner Owner) bool

	// Resolve finds the next hop of a route. It later calls done, on the manager's goroutine, with
	// the completed route or an error.
	Resolve(r Route, timeout time.Duration, done func(Route, error))
}

// An Address is an entry of the GID table of a NIC. One address may exist in several VLANs.
type Address struct {
	netip.Prefix        // without a zone
	VLAN         uint16 // VLAN ID, 0 for none
	Netdev       string // network interface, "" for none
	GIDIndex     int    // of RoCE v2
	RoCEv1Index  int    // of RoCE v1, -1 if there is none

	// Network is that of the connections which programs request: RoCEv2, or RoCEv1 if there is a
	// GID of it.
	Network packet.Network

	// Egress has the service level of each Linux priority up to 7: in a VLAN, the priority in the
	// tag.
	Egress [8]uint8
}

// serviceLevel returns the service level of a type of service, as the kernel's connection manager
// maps it: to the priority of a socket with that type of service, and by the VLAN interface to that
// of a tag.
func (a *Address) serviceLevel(tos uint8) uint8 {
	// Bits 3 and 4 of the type of service select best effort, bulk, interactive, or interactive
	// bulk (linux/pkt_sched.h).
	priorities := [4]uint8{0, 2, 6, 4}
	return a.Egress[priorities[tos>>3&3]]
}

// findAddress returns the entry of a NIC for an address in a VLAN.
func findAddress(n NIC, s station) (Address, bool) {
	for _, a := range n.Addresses() {
		if a.Addr() == s.addr && a.VLAN == s.vlan {
			return a, true
		}
	}
	return Address{}, false
}

// An Owner is the user of a session.
type Owner struct {
	UID        uint32
	Privileged bool   // may bind to ports below 1024
	Client     uint32 // for operators, as the following
	PID        int
	Comm       string
}

// An Error is an errno with an explanation. It matches its syscall.Errno.
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

// Limits of a session.
const (
	MaxIDs       = 8192  // identifiers
	MaxChannels  = 1024  // event channels
	MaxEvents    = 32768 // queued
	MaxBacklog   = 1024  // queued connection requests of a listener
	maxResolving = 64    // outstanding resolutions
	maxGroups    = 64    // multicast groups of an identifier
)

// A Manager keeps the identifiers of all programs and the ports of all port spaces. Like the Agent
// below it, it is used by one goroutine.
type Manager struct {
	// Refuse, if it is set, is called for each valid request for a connection to a program. It
	// returns the reason with which the request is rejected, or 0.
	Refuse func(n NIC, listener Owner) Reason
	// Isolate, if it is set, is called for each valid request of a program for a connection. If it
	// returns true, the request is not sent, and the peer is unreachable.
	Isolate func(n NIC, requester Owner) bool
	// Linger, if it is set, returns by how many nanoseconds the timewait of a connection of a
	// program, which begins, is longer.
	Linger func(n NIC, o Owner) int64

	agent    *Agent
	nics     []NIC
	now      int64
	sessions map[*Session]struct{}
	ports    map[portKey][]*ID // bound to a port
	shares   map[uint32]*share // by user ID
	ids      int               // of all sessions
	events   int               // queued, of all sessions
	bound    map[PortSpace]int // ephemeral ports that are in use
	nextPort uint16
}

type portKey struct {
	ps   PortSpace
	port uint16
}

// The range of ephemeral ports, as in Linux.
const (
	firstPort = 32768
	lastPort  = 60999
)

func (k portKey) ephemeral() bool { return k.port >= firstPort && k.port <= lastPort }

// NewManager returns a manager for NICs. seed determines communication IDs, PSNs and ports.
func NewManager(nics []NIC, seed uint64) *Manager {
	m := &Manager{nics: nics, sessions: map[*Session]struct{}{}, ports: map[portKey][]*ID{},
		shares: map[uint32]*share{}, bound: map[PortSpace]int{}}
	m.agent = NewAgent(m, seed)
	m.agent.Linger = m.linger
	m.nextPort = firstPort + uint16(m.agent.random.IntN(lastPort-firstPort))
	return m
}

func (m *Manager) linger(c *Conn) int64 {
	if id, _ := c.Owner.(*ID); id != nil && m.Linger != nil {
		return m.Linger(id.nic, id.session.owner)
	}
	return 0
}

// Advance sets the present time, which holds until the next Advance, and handles the deadlines that
// have passed.
func (m *Manager) Advance(now int64) {
	m.now = now
	m.agent.Expire(now)
}

// NextDeadline returns when Advance is due, 0 for never.
func (m *Manager) NextDeadline() int64 { return m.agent.NextDeadline() }

// Connections returns the number of connections and SIDR requests, those in timewait included.
func (m *Manager) Connections() int { return m.agent.Len() }

// RequesterMAC is Agent.RequesterMAC.
func (m *Manager) RequesterMAC(n NIC, from netip.Addr, vlan uint16, qpn uint32) ([6]byte, bool) {
	return m.agent.RequesterMAC(n, from, vlan, qpn)
}

// Receive handles a MAD that arrived at a NIC.
func (m *Manager) Receive(n NIC, back Route, mad []byte) { m.agent.Receive(m.now, n, back, mad) }

// A Session is a client program: its identifiers and event channels.
type Session struct {
	manager   *Manager
	owner     Owner
	share     *share
	nics      []NIC // that the session may use
	ids       map[uint32]*ID
	last      uint32
	channels  int
	events    int
	resolving int
	closed    bool
}

// Open begins a session. With the name of a device, the session uses that device only; the error is
// ENODEV.
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
			return nil, errnoError(syscall.ENODEV, "no device %q", device)
		}
	}
	s.share = m.shareOf(owner.UID)
	m.sessions[s] = struct{}{}
	return s, nil
}

// Close ends the session: it destroys each identifier, which ends its connection.
func (s *Session) Close() {
	s.closed = true
	for _, h := range s.handles() {
		if id := s.ids[h]; id != nil {
			id.Destroy()
		}
	}
	delete(s.manager.sessions, s)
	s.share.sessions--
	s.manager.forgetShares()
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

// ID returns the identifier with a handle. The error is EINVAL.
func (s *Session) ID(handle uint32) (*ID, error) {
	if id := s.ids[handle]; id != nil {
		return id, nil
	}
	return nil, errnoError(syscall.EINVAL, "no identifier has handle %d", handle)
}

// NICOf returns the NIC to which the identifier with a handle is bound, or the only one that the
// session may use; nil: neither is known.
func (s *Session) NICOf(handle uint32) NIC {
	if id := s.ids[handle]; id != nil && id.nic != nil {
		return id.nic
	}
	if len(s.nics) == 1 {
		return s.nics[0]
	}
	return nil
}

// Remove reports the removal of a NIC to the identifiers that are bound to it.
func (m *Manager) Remove(n NIC) {
	for s := range m.sessions {
		for _, h := range s.handles() {
			if id := s.ids[h]; id.nic == n {
				id.post(&Event{Type: EventDeviceRemoval})
			}
		}
	}
}

// AddressesChanged reports EventAddrChange to identifiers whose source address a NIC has lost: once
// for each loss.
func (m *Manager) AddressesChanged(n NIC) {
	for s := range m.sessions {
		for _, h := range s.handles() {
			id := s.ids[h]
			if id.nic != n || !id.src.Addr().IsValid() || isWildcard(id.src.Addr()) {
				continue
			}
			_, ok := findAddress(n, station{id.src.Addr(), id.local.VLAN})
			if !ok && !id.moved && s.checkEvents() == nil {
				id.post(&Event{Type: EventAddrChange})
			}
			id.moved = !ok
		}
	}
}
