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
