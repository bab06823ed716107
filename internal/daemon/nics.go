package daemon

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"

	"softroce/internal/nicspec"
	"softroce/nic"
	"softroce/packet"
	"softroce/wire"
	"softroce/wire/fault"
)

// builder creates links and devices. closers holds what no device closes.
type builder struct {
	fabric  *wire.Fabric
	faults  *fault.Program // may be nil
	tap     *tap
	log     *slog.Logger
	closers []io.Closer
}

// add opens the link of n, creates its device and assigns it to an engine, or to the first of a
// group if several drive it.
func (b *builder) add(engines []*nic.Engine, n nicspec.NIC) error {
	identity, limits, err := n.Identity()
	if err != nil {
		return fmt.Errorf("NIC %s: %w", n.Name, err)
	}
	name := func() string { return string(n.Kind) }
	links, iface, err := b.links(engines, n, &name)
	if err != nil {
		return fmt.Errorf("NIC %s: %w", n.Name, err)
	}
	closeLinks := func() {
		for _, l := range links {
			l.Close()
		}
	}
	rate := n.Shape.Rate
	if port, ok := links[0].(*wire.FabricLink); ok {
		portRate, err := port.Plug(n.Name)
		if err != nil {
			closeLinks()
			return fmt.Errorf("NIC %s: %w", n.Name, err)
		}
		rate = cmp.Or(rate, portRate)
	}
	for i := range links {
		links[i] = b.tap.add(n.Name, links[i], iface, n.Kind == nicspec.Fabric)
		if n.Shape != (wire.Shape{}) {
			links[i] = wire.NewShapedLink(links[i], n.Shape)
		}
	}
	var parts []nic.Slice
	for i, l := range links[1:] {
		parts = append(parts, nic.Slice{Engine: engines[1+i], Link: l})
	}
	d, err := engines[0].AddDevice(nic.DeviceConfig{Name: n.Name, Link: links[0], Slices: parts, Iface: iface, Limits: limits, Identity: identity, PKeys: n.PKeys, GUID: n.GUID, LinkName: name, Log: b.log,
		Congestion: n.Congestion, Rate: rate, DefaultRoCEMode: n.DefaultRoCEMode})
	if err != nil {
		closeLinks()
		return fmt.Errorf("NIC %s: %w", n.Name, err)
	}
	if b.faults != nil {
		d.AddFaults(b.faults)
	}
	return nil
}

// links opens the link of n, with its loopback, or those of its slices, one for each engine. It
// returns the interface too, and sets name if the link's name is not the kind of n.
func (b *builder) links(engines []*nic.Engine, n nicspec.NIC, name *func() string) ([]wire.Link, wire.Interface, error) {
	switch n.Kind {
	case nicspec.Fabric:
		iface := fabricInterface(n)
		port := b.fabric.NewLink(engines[0])
		links := []wire.Link{port}
		if len(engines) > 1 {
			var others []any
			for _, e := range engines[1:] {
				others = append(others, e)
			}
			for _, p := range port.Split(others...)[1:] {
				links = append(links, p)
			}
		}
		return links, port.Follow(iface), nil
	case nicspec.Packet, nicspec.UDP, nicspec.XDP, nicspec.Auto:
		return b.netLinks(n, name)
	case nicspec.Dgram:
		return b.dgramLink(n)
	}
	return nil, nil, fmt.Errorf("unknown link kind %q", n.Kind)
}

// netLinks opens links on a network interface.
func (b *builder) netLinks(n nicspec.NIC, name *func() string) (links []wire.Link, _ wire.Interface, _ error) {
	opened, iface, err := n.OpenInterface(b.log)
	if err != nil {
		return nil, nil, err
	}
	b.closers = append(b.closers, iface)
	*name = func() string { return n.LinkName(opened[0]) }
	var loops []*wire.LoopbackLink
	for _, l := range opened {
		loop := wire.NewLoopbackLink(l, wire.Owns(iface))
		loops, links = append(loops, loop), append(links, loop)
	}
	if len(loops) > 1 {
		wire.Slices(loops)
	}
	return links, iface, nil
}

// fabricInterface returns the interface of a fabric NIC. It has no name because the host has no
// such interface.
func fabricInterface(n nicspec.NIC) wire.Interface {
	mtu := n.MTU
	if mtu == 0 {
		mtu = nicspec.FabricMTU
	}
	return wire.StaticTrunk("", macOf(n), mtu, n.VLANs, n.Addrs...)
}

// macOf returns the configured MAC of n. Without one it derives a locally administered MAC that
// differs between NICs of different names and between the two ends of a dgram link.
func macOf(n nicspec.NIC) (mac [6]byte) {
	if n.MAC != mac {
		return n.MAC
	}
	// A change of these must not change the MAC.
	n.PKeys, n.GUID, n.Persona, n.NUMANode, n.Shape, n.Congestion, n.DefaultRoCEMode, n.Engines = nil, 0, "", nil, wire.Shape{}, nil, packet.RoCEv2, 0
	h := fnv.New64a()
	fmt.Fprint(h, n.String())
	copy(mac[:], h.Sum(nil))
	mac[0] = mac[0]&^0x03 | 0x02
	return mac
}

// dgramLink opens a link to a virtual machine's NIC. The link answers ARP and neighbor discovery
// for its addresses, so it is also the interface.
func (b *builder) dgramLink(n nicspec.NIC) ([]wire.Link, wire.Interface, error) {
	link, err := wire.NewDgramLink(wire.DgramConfig{
		Local: n.Local, Remote: n.Remote, MAC: macOf(n), MTU: n.MTU, Addrs: n.Addrs, VLANs: n.VLANs,
	})
	if err != nil {
		return nil, nil, err
	}
	return []wire.Link{wire.NewLoopbackLink(link, wire.Owns(link))}, link, nil
}
