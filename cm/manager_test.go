package cm_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"softroce/cm"
	"softroce/internal/ib"
)

// A program that starts failing operations and does not get their events reaches the limit of
// queued events.
func TestQueuedEventsAreBounded(t *testing.T) {
	m := cm.NewManager(nil, 1) // without NICs, no address can be resolved
	s, err := m.Open(cm.Owner{}, "")
	if err != nil {
		t.Fatal(err)
	}
	signals := 0
	ch, err := s.NewChannel(func() { signals++ })
	if err != nil {
		t.Fatal(err)
	}
	id, err := s.NewID(ch, cm.PortSpaceTCP, ib.QPTypeRC)
	if err != nil {
		t.Fatal(err)
	}
	resolve := func() error {
		return id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.1:7"), time.Second)
	}
	for range cm.MaxEvents {
		if err := resolve(); err != nil {
			t.Fatal(err)
		}
	}
	if err := resolve(); !errors.Is(err, syscall.ENOMEM) || signals != cm.MaxEvents {
		t.Errorf("with %d queued events: %v", signals, err)
	}
	if n := ch.Next(); n == nil || n.Type != cm.EventAddrError || n.Status != -int(syscall.ENETUNREACH) {
		t.Errorf("the first event is %+v", n)
	}
	if err := resolve(); err != nil {
		t.Errorf("after one event was removed: %v", err)
	}
}

func TestIdentifiersAreListedInParts(t *testing.T) {
	m := cm.NewManager(nil, 1)
	var ids []*cm.ID
	const sessions, each = 3, 100
	for pid := range sessions {
		s, err := m.Open(cm.Owner{PID: sessions - pid}, "")
		if err != nil {
			t.Fatal(err)
		}
		ch, err := s.NewChannel(func() {})
		if err != nil {
			t.Fatal(err)
		}
		for range each {
			id, err := s.NewID(ch, cm.PortSpaceTCP, ib.QPTypeRC)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
	}
	var l cm.Listing
	parts := 1
	for ; !l.Add(m, 10); parts++ {
		if parts == 5 {
			ids[0].Destroy() // it may have been listed
		}
	}
	if parts < sessions*each/10 {
		t.Errorf("%d identifiers were listed in %d parts", sessions*each, parts)
	}
	list := l.IDs()
	if n := len(list); n != sessions*each && n != sessions*each-1 {
		t.Errorf("%d identifiers", n)
	}
	for i := 1; i < len(list); i++ {
		if a, b := list[i-1], list[i]; a.PID > b.PID || a.PID == b.PID && a.Handle >= b.Handle {
			t.Errorf("%+v is listed before %+v", a, b)
		}
	}
}

// A program discards as many signals of a channel as events are removed from it.
func TestRemovedEventsAreCounted(t *testing.T) {
	s, err := cm.NewManager(nil, 1).Open(cm.Owner{}, "")
	if err != nil {
		t.Fatal(err)
	}
	var signals [2]int
	var channels [2]*cm.Channel
	for i := range channels {
		if channels[i], err = s.NewChannel(func() { signals[i]++ }); err != nil {
			t.Fatal(err)
		}
	}
	id, err := s.NewID(channels[0], cm.PortSpaceTCP, ib.QPTypeRC)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // fails: there is no NIC
		if err := id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("192.0.2.1:7"), time.Second); err != nil {
			t.Fatal(err)
		}
	}
	moved, err := id.Migrate(channels[1])
	if err != nil {
		t.Fatal(err)
	}
	removed := id.Destroy()
	if moved != 3 || removed != 3 || signals != [2]int{3, 3} || channels[0].Next() != nil || channels[1].Next() != nil {
		t.Errorf("moved %d, removed %d, signals %v: want 3 each, and no event left", moved, removed, signals)
	}
}
