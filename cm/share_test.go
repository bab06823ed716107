package cm_test

import (
	"net/netip"
	"testing"
	"time"

	"softroce/cm"
	"softroce/internal/ib"
)

// A quietNIC is a fakeNIC that forgets what it sends.
type quietNIC struct{ fakeNIC }

func (n *quietNIC) Send(*[cm.MADSize]byte, *cm.Route) {}

// One user with any number of programs leaves identifiers, events, connections and ports to others,
// and gives back what it had.
func TestUserLeavesSomethingForOthers(t *testing.T) {
	newID := func(s *cm.Session, ch *cm.Channel) (*cm.ID, error) {
		return s.NewID(ch, cm.PortSpaceTCP, ib.QPTypeRC)
	}
	port := uint16(0)
	for _, c := range []struct {
		name string
		take func(s *cm.Session, ch *cm.Channel) error
	}{
		{"identifiers", func(s *cm.Session, ch *cm.Channel) error {
			_, err := newID(s, ch)
			return err
		}},
		{"events", func(s *cm.Session, ch *cm.Channel) error {
			id, err := s.ID(1)
			if err != nil {
				id, err = newID(s, ch)
			}
			if err == nil { // no device has a route, which is an event
				err = id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:7"), time.Second)
			}
			return err
		}},
		{"connections", func(s *cm.Session, ch *cm.Channel) error {
			id, err := newID(s, ch)
			if err == nil {
				err = id.SetOption(cm.OptionReuseAddr, 1)
			}
			if err == nil {
				port = (port + 1) % 20000
				err = id.ResolveAddr(netip.AddrPortFrom(serverAddr, 2000+port), netip.MustParseAddrPort("10.0.0.2:7"), time.Second)
			}
			if err == nil {
				err = id.ResolveRoute()
			}
			if err == nil {
				err = id.Connect(&cm.ConnParam{QPN: 5})
			}
			for ch.Next() != nil {
			}
			return err
		}},
		{"ephemeral ports", func(s *cm.Session, ch *cm.Channel) error {
			id, err := newID(s, ch)
			if err == nil {
				err = id.Bind(netip.AddrPortFrom(serverAddr, 0))
			}
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := cm.NewManager([]cm.NIC{&quietNIC{}}, 1)
			m.Advance(1)
			// most takes what a user can have, with one program after the other.
			most := func(uid uint32) (n int, sessions []*cm.Session) {
				for {
					s, err := m.Open(cm.Owner{UID: uid, Privileged: true}, "")
					if err != nil {
						t.Fatal(err)
					}
					sessions = append(sessions, s)
					ch, err := s.NewChannel(func() {})
					if err != nil {
						t.Fatal(err)
					}
					before := n
					for c.take(s, ch) == nil {
						n++
					}
					if n == before {
						return n, sessions
					}
				}
			}
			first, sessions := most(1)
			second, others := most(2)
			if second < first/2-10 || second > first/2+10 || first < 14000 {
				t.Errorf("the first user got %d, the second %d; want half as many", first, second)
			}
			for _, s := range append(sessions, others...) {
				s.Close()
			}
			if again, _ := most(3); again != first {
				t.Errorf("after all had closed, a user got %d, want %d", again, first)
			}
		})
	}
}
