package cm

import (
	"cmp"
	"net/netip"
	"slices"
)

// IDInfo is an identifier as an operator sees it.
type IDInfo struct {
	Device    string         `json:"ifname,omitempty"`
	Port      int            `json:"port,omitempty"` // of the device
	Client    uint32         `json:"client"`
	PID       int            `json:"pid"`
	UID       uint32         `json:"uid"`
	Comm      string         `json:"comm"`
	Handle    uint32         `json:"cm_idn"` // unique among those of the client
	PortSpace string         `json:"port_space"`
	State     string         `json:"state"`
	Src       netip.AddrPort `json:"src"`
	Dst       netip.AddrPort `json:"dst"`
	QPN       uint32         `json:"lqpn,omitempty"`
}

// A Listing is a list of all identifiers that is being made. The manager's goroutine adds a bounded
// number at a time, so that connections do not wait. Identifiers that are created or destroyed in
// the meantime may be missing.
type Listing struct {
	list     []IDInfo
	started  bool
	sessions []*Session // that are left
	session  *Session   // that is being listed
	handles  []uint32   // what is left of it
}

// Add lists up to n more identifiers, and reports whether all are listed. It runs on the manager's
// goroutine.
func (l *Listing) Add(m *Manager, n int) (done bool) {
	if !l.started {
		l.started = true
		for s := range m.sessions {
			l.sessions = append(l.sessions, s)
		}
	}
	for n > 0 {
		switch {
		case len(l.handles) > 0:
			if id := l.session.ids[l.handles[0]]; id != nil {
				l.list = append(l.list, id.info(l.handles[0]))
			}
			l.handles = l.handles[1:]
			n--
		case len(l.sessions) > 0:
			l.session, l.sessions = l.sessions[0], l.sessions[1:]
			l.handles = l.session.handles()
			n -= 1 + len(l.handles)/handlesPerID
		default:
			return true
		}
	}
	return false
}

// handlesPerID is how many handles can be listed in the time that an identifier takes.
const handlesPerID = 8

// IDs returns the list, which must be complete. It may be called from any goroutine.
func (l *Listing) IDs() []IDInfo {
	slices.SortFunc(l.list, func(a, b IDInfo) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Handle, b.Handle))
	})
	return l.list
}

func (id *ID) info(handle uint32) IDInfo {
	owner := &id.session.owner
	i := IDInfo{PortSpace: id.ps.String(), State: id.state.String(), Src: id.src, Dst: id.dst, QPN: id.qpn,
		Handle: handle, Client: owner.Client, PID: owner.PID, UID: owner.UID, Comm: owner.Comm}
	if id.nic != nil {
		i.Device, i.Port = id.nic.Name(), 1
	}
	if id.conn != nil {
		i.State = id.conn.State().String()
	}
	return i
}
