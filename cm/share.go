package cm

import "syscall"

// What the users of a manager share, in identifiers and queued events of all sessions. The limit of
// connections is the agent's, that of ephemeral ports the range of a port space.
const (
	maxAllIDs    = 1 << 17
	maxAllEvents = 1 << 19
)

// A share is what the sessions of one user have. No user may have more than remains free: the first
// one gets at most half, and another always finds something left.
type share struct {
	uid      uint32
	sessions int
	ids      int
	events   int
	conns    int               // those in timewait included, which outlive their session
	ports    map[PortSpace]int // identifiers that are bound to an ephemeral port
}

// check returns ENOMEM unless the user, who has have, may have one more of total, of which used are
// in use.
func (s *share) check(what string, have, used, total int) error {
	if free := total - used; have+1 > free-1 {
		return errnoError(syscall.ENOMEM, "user %d has %d %s; %d of %d are free, and no user may have more than remain free",
			s.uid, have, what, free, total)
	}
	return nil
}

// shareOf returns the share of a user, for one more session.
func (m *Manager) shareOf(uid uint32) *share {
	s := m.shares[uid]
	if s == nil {
		s = &share{uid: uid, ports: map[PortSpace]int{}}
		m.shares[uid] = s
	}
	s.sessions++
	return s
}

// forgetShares removes the shares that nothing belongs to.
func (m *Manager) forgetShares() {
	for uid, s := range m.shares {
		if s.sessions == 0 && s.conns == 0 {
			delete(m.shares, uid)
		}
	}
}

// countEvents adds n to the number of queued events.
func (s *Session) countEvents(n int) {
	s.events += n
	s.share.events += n
	s.manager.events += n
}

// checkEvents returns ENOMEM if the session may not cause a further event before it has received
// some.
func (s *Session) checkEvents() error {
	if s.events >= MaxEvents {
		return errnoError(syscall.ENOMEM, "the program has the maximum of %d events to get", MaxEvents)
	}
	return s.share.check("events to get", s.share.events, s.manager.events, maxAllEvents)
}

// checkConn returns ENOMEM if the user may not have a further connection.
func (s *Session) checkConn() error {
	return s.share.check("connections", s.share.conns, s.manager.agent.Len(), maxConns)
}

// own makes a connection one of the session's user.
func (s *Session) own(c *Conn) {
	c.share = &s.share.conns
	*c.share++
}
