package nicspec

import (
	"errors"
	"fmt"
	"log/slog"

	"softroce/wire"
)

// OpenInterface opens the link of a NIC on a network interface, or those of its slices if several
// engines drive it. The caller closes the links and then the interface. The log says why Auto did
// not take a kind.
func (n NIC) OpenInterface(log *slog.Logger) ([]wire.Link, *wire.Netdev, error) {
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
		links, err := n.open(k, iface)
		if err == nil {
			return links, iface, nil
		}
		if n.Kind == Auto {
			log.Info("link not available", "nic", n.Name, "kind", k, "err", err)
		}
		refused = append(refused, err)
	}
	iface.Close()
	return nil, nil, errors.Join(refused...)
}

// open opens links of a kind. Auto takes zero-copy only: in the other modes xdp is not the better
// choice for every use.
func (n NIC) open(k Kind, iface *wire.Netdev) ([]wire.Link, error) {
	slices := max(n.Engines, 1)
	switch {
	case k == XDP && n.Kind == Auto:
		return all(wire.NewZeroCopyXDPSlices(iface, slices))
	case k == XDP && slices > 1:
		return all(wire.NewXDPSlices(iface, slices))
	case k == XDP:
		return one(wire.NewXDPLink(iface))
	case k == Packet && slices > 1:
		return all(wire.NewPacketSlices(iface, slices))
	case k == Packet:
		return one(wire.NewPacketLink(iface))
	case slices > 1:
		return all(wire.NewUDPSlices(iface, slices))
	}
	return one(wire.NewUDPLink(iface))
}

func one[L wire.Link](l L, err error) ([]wire.Link, error) {
	if err != nil {
		return nil, err
	}
	return []wire.Link{l}, nil
}

func all[L wire.Link](l []L, err error) (links []wire.Link, _ error) {
	for _, k := range l {
		links = append(links, k)
	}
	return links, err
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
