package scenario

import (
	"fmt"

	"softroce/daemon"
	"softroce/wire"
)

// handMAC is the script's own on a cable whose end it is itself (dgram).
var handMAC = [6]byte{0x02, 0x73, 0x63, 0x65, 0x6e, 0x65}

// OpenCable opens a link, which is written as those of the daemon are (packet:IFACE, udp:IFACE, dgram:…). program is
// as in NewCable, and may be nil.
func OpenCable(link string, program []string) (*Cable, error) {
	n, err := daemon.ParseNIC("scenario=" + link)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLink, err)
	}
	switch n.Kind {
	case daemon.Fabric:
		return nil, fmt.Errorf("%w: %q has no live peer", ErrLink, link)
	case daemon.Dgram:
		mac := n.MAC
		if mac == ([6]byte{}) {
			mac = handMAC
		}
		l, err := wire.NewDgram(wire.DgramConfig{Local: n.Local, Remote: n.Remote, MAC: mac, MTU: n.MTU, Addrs: n.Addrs})
		if err != nil {
			return nil, err
		}
		return NewCable(l, l, program)
	}
	return openInterface(n, program)
}

func openInterface(n daemon.NIC, program []string) (*Cable, error) {
	iface, err := wire.NetInterface(n.Interface)
	if err != nil {
		return nil, err
	}
	var l wire.Link
	if n.Kind == daemon.Packet {
		l, err = wire.NewPacket(iface)
	} else {
		l, err = wire.NewUDP(iface)
	}
	if err != nil {
		iface.Close()
		return nil, err
	}
	c, err := NewCable(l, iface, program)
	if err != nil {
		iface.Close()
		return nil, err
	}
	c.closer = func() error { iface.Close(); return nil }
	return c, nil
}
