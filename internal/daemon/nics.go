package daemon

import (
	"fmt"
	"hash/fnv"
	"io"

	"softroce/nic"
	"softroce/wire"
)

// builder makes links and devices. What it opened and nobody else closes is in closers.
type builder struct {
	fabric  *wire.Fabric
	faults  *wire.FaultProgram // nil: none
	tap     *tap
	limits  nic.Limits
	closers []io.Closer
}

// add hangs a NIC on its link and gives it to an engine.
func (b *builder) add(e *nic.Engine, n NIC) error {
	link, iface, err := b.link(e, n)
	if err != nil {
		return fmt.Errorf("NIC %s: %w", n.Name, err)
	}
	link = b.tap.add(n.Name, link, iface, n.Kind == Fabric)
	if b.faults != nil {
		link = wire.NewFault(link, b.faults.For(n.Name))
	}
	if _, err := e.AddDevice(nic.DeviceConfig{Name: n.Name, Link: link, Iface: iface, Limits: b.limits, PKeys: n.PKeys}); err != nil {
		link.Close()
		return fmt.Errorf("NIC %s: %w", n.Name, err)
	}
	return nil
}

// link opens the link of n, with its loopback, and says what interface it stands on.
func (b *builder) link(e *nic.Engine, n NIC) (wire.Link, wire.Interface, error) {
	switch n.Kind {
	case Fabric:
		iface := n.static()
		port := b.fabric.Port(e)
		port.Follow(iface)
		return port, iface, nil
	case Packet, UDP:
		return b.netLink(n)
	case Dgram:
		return b.dgramLink(n)
	}
	return nil, nil, fmt.Errorf("link of kind %q", n.Kind)
}

// netLink opens a link on a network interface.
func (b *builder) netLink(n NIC) (wire.Link, wire.Interface, error) {
	iface, err := wire.NetInterface(n.Interface)
	if err != nil {
		return nil, nil, err
	}
	b.closers = append(b.closers, iface)
	var link wire.Link
	if n.Kind == Packet {
		link, err = wire.NewPacket(iface)
	} else {
		link, err = wire.NewUDP(iface)
	}
	if err != nil {
		return nil, nil, err
	}
	return wire.NewLoopback(link, wire.Owns(iface)), iface, nil
}

// static is the interface of a NIC on a fabric. It has no name: there is none on the host.
func (n NIC) static() wire.Interface {
	mtu := n.MTU
	if mtu == 0 {
		mtu = FabricMTU
	}
	return wire.StaticTrunk("", n.station(), mtu, n.VLANs, n.Addrs...)
}

// station is the MAC of a NIC: the one given, or a locally administered one that differs
// between NICs of different names and between the ends of one dgram cable.
func (n NIC) station() (mac [6]byte) {
	if n.MAC != mac {
		return n.MAC
	}
	n.PKeys = nil // partitions come and go, a NIC keeps its MAC
	h := fnv.New64a()
	fmt.Fprint(h, n.String())
	copy(mac[:], h.Sum(nil))
	mac[0] = mac[0]&^0x03 | 0x02
	return mac
}
