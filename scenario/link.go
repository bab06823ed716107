package scenario

import (
	"fmt"

	"softroce/daemon"
	"softroce/wire"
)

// handMAC is the script's own on a cable whose end it is itself (dgram).
var handMAC = [6]byte{0x02, 0x73, 0x63, 0x65, 0x6e, 0x65}

// Live returns what makes a bench for Options: a NIC at the other end of a link, which is written as those of
// the daemon are (packet:IFACE, udp:IFACE, dgram:…), and its verbs program, which may be nil.
func Live(link string, program []string) (func(wire.FrameSink) (Bench, error), error) {
	n, err := daemon.ParseNIC("scenario=" + link)
	if err != nil {
		return nil, err
	}
	if n.Kind == daemon.Fabric {
		return nil, fmt.Errorf("link %q has no live peer", link)
	}
	return func(tap wire.FrameSink) (Bench, error) {
		if n.Kind == daemon.Dgram {
			mac := n.MAC
			if mac == ([6]byte{}) {
				mac = handMAC
			}
			l, err := wire.NewDgram(wire.DgramConfig{Local: n.Local, Remote: n.Remote, MAC: mac, MTU: n.MTU, Addrs: n.Addrs})
			if err != nil {
				return nil, err
			}
			return NewLive(l, l, program, tap)
		}
		return openInterface(n, program, tap)
	}, nil
}

func openInterface(n daemon.NIC, program []string, tap wire.FrameSink) (Bench, error) {
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
	b, err := NewLive(l, iface, program, tap)
	if err != nil {
		iface.Close()
		return nil, err
	}
	return &withInterface{b, iface}, nil
}

// withInterface closes the interface with the bench.
type withInterface struct {
	Bench
	iface *wire.Netdev
}

func (w *withInterface) Close() error {
	defer w.iface.Close()
	return w.Bench.Close()
}

// Program implements programmed.
func (w *withInterface) Program(command []string) error { return w.Bench.(programmed).Program(command) }
