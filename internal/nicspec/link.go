package nicspec

import (
	"errors"
	"fmt"
	"log/slog"

	"softroce/wire"
)

// OpenInterface opens the link of a NIC on a network interface. The caller closes the link and then
// the interface. The log says why Auto did not take a kind.
func (n NIC) OpenInterface(log *slog.Logger) (wire.Link, *wire.Netdev, error) {
	iface, err := wire.OpenNetdev(n.Interface)
	if err != nil {
		return nil, nil, err
	}
	kinds := []Kind{n.Kind}
	if n.Kind == Auto {
		kinds = []Kind{XDP, Packet, UDP}
	}
	var refused []error
	for _, k := range kinds {
		link, err := n.open(k, iface)
		if err == nil {
			return link, iface, nil
		}
		if n.Kind == Auto {
			log.Info("link not available", "nic", n.Name, "kind", k, "err", err)
		}
		refused = append(refused, err)
	}
	iface.Close()
	return nil, nil, errors.Join(refused...)
}

// open opens a link of a kind. Auto takes zero-copy only: in the other modes xdp is not the better
// choice for every use.
func (n NIC) open(k Kind, iface *wire.Netdev) (wire.Link, error) {
	switch k {
	case XDP:
		if n.Kind == Auto {
			return wire.NewZeroCopyXDPLink(iface)
		}
		return wire.NewXDPLink(iface)
	case Packet:
		return wire.NewPacketLink(iface)
	}
	return wire.NewUDPLink(iface)
}

// LinkName returns the name of the link that OpenInterface returned: its kind, which n of kind Auto
// does not say, the interface, and the mode of an xdp link.
func (n NIC) LinkName(l wire.Link) string {
	switch l := l.(type) {
	case *wire.XDPLink:
		name := "xdp:" + n.Interface
		if m := l.Mode(); m != "" {
			name += fmt.Sprintf(" (%s)", m)
		}
		return name
	case *wire.PacketLink:
		return "packet:" + n.Interface
	}
	return "udp:" + n.Interface
}
