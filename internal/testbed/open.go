package testbed

import (
	"fmt"
	"log/slog"

	"softroce/internal/nicspec"
	"softroce/wire"
)

// PeerMAC is the default MAC address of the peer on a link without a network interface (dgram).
var PeerMAC = [6]byte{0x02, 0x73, 0x63, 0x65, 0x6e, 0x65}

// OpenLiveLink opens a link, given in the form of the daemon's (packet:IFACE, udp:IFACE, dgram:…).
// program is as for NewLiveLink, and may be nil.
func OpenLiveLink(link string, program []string) (*LiveLink, error) {
	n, err := nicspec.Parse("scenario=" + link)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLink, err)
	}
	if option := ofNIC(n); option != "" {
		return nil, fmt.Errorf("%w: %q: a NIC has %s, a live link has none", ErrLink, link, option)
	}
	switch n.Kind {
	case nicspec.Fabric:
		return nil, fmt.Errorf("%w: %q has no live peer", ErrLink, link)
	case nicspec.Dgram:
		mac := n.MAC
		if mac == ([6]byte{}) {
			mac = PeerMAC
		}
		l, err := wire.NewDgramLink(wire.DgramConfig{Local: n.Local, Remote: n.Remote, MAC: mac, MTU: n.MTU, Addrs: n.Addrs})
		if err != nil {
			return nil, err
		}
		return NewLiveLink(link, l, l, program)
	}
	return openInterface(link, n, program)
}

// ofNIC names an option of n that only the daemon's NICs have, or returns "".
func ofNIC(n nicspec.NIC) string {
	for _, o := range []struct {
		set  bool
		name string
	}{
		{n.VLANs != nil, "addresses in VLANs"}, {n.PKeys != nil, "pkeys"}, {n.GUID != 0, "guid"}, {n.Persona != "", "persona"},
		{n.NUMANode != nil, "numa"}, {n.Shape.Rate != 0, "rate"}, {n.Shape.Delay != 0, "delay"}, {n.Engines > 1, "engines"},
	} {
		if o.set {
			return o.name
		}
	}
	return ""
}

func openInterface(name string, n nicspec.NIC, program []string) (*LiveLink, error) {
	links, iface, err := n.OpenInterface(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	c, err := NewLiveLink(name, links[0], iface, program)
	if err != nil {
		iface.Close()
		return nil, err
	}
	c.closer = func() error { iface.Close(); return nil }
	return c, nil
}
