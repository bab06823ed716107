package attach

import (
	"net/netip"

	"softroce/cm"
	"softroce/nic"
	"softroce/packet"
	"softroce/wire"
)

// refresh copies the device's properties that the connection manager needs.
func (n *cmNIC) refresh() {
	var gids []nic.GIDEntry
	n.engine.Do(func() {
		a := n.Query()
		n.guid, n.delay = a.NodeGUID, uint8(a.LocalCAACKDelay)
		n.mtu = uint8(mtuCode(n.QueryPort().ActiveMTU))
		gids = n.GIDs()
	})
	// The GID table has addresses without their prefixes. It also has the link-local address of the
	// MAC, which the interface may lack.
	bits := map[wire.Station]int{}
	egress := map[uint16]wire.Egress{}
	for _, p := range n.Interface().Addresses() {
		bits[wire.Station{Addr: p.Addr().WithZone("")}] = p.Bits()
	}
	for _, p := range wire.VLANAddresses(n.Interface()) {
		bits[wire.Station{Addr: p.Addr().WithZone(""), VLAN: p.VLAN}] = p.Bits()
		egress[p.VLAN] = p.Egress
	}
	roceV1 := map[wire.Station]int{}
	for _, g := range gids {
		if g.RoCEv1 {
			roceV1[wire.Station{Addr: g.GID.Addr(), VLAN: uint16(g.VLAN)}] = g.Index
		}
	}
	n.addrs = nil
	for _, g := range gids {
		if g.RoCEv1 {
			continue
		}
		a, vlan := g.GID.Addr(), uint16(g.VLAN)
		station := wire.Station{Addr: a, VLAN: vlan}
		b, ok := bits[station]
		if !ok {
			b = 64
		}
		address := cm.Address{Network: packet.RoCEv2, Prefix: netip.PrefixFrom(a, b), VLAN: vlan, Netdev: g.Netdev, GIDIndex: g.Index, RoCEv1Index: -1, Egress: egress[vlan]}
		if i, ok := roceV1[station]; ok {
			address.Network, address.RoCEv1Index = n.DefaultRoCEMode(), i
		}
		n.addrs = append(n.addrs, address)
	}
}

// addressesChanged follows a change of the interface.
func (n *cmNIC) addressesChanged() {
	n.refresh()
	n.service.manager.AddressesChanged(n)
}

// GUID implements cm.Port.
func (n *cmNIC) GUID() uint64 { return n.guid }

// Addresses implements cm.NIC.
func (n *cmNIC) Addresses() []cm.Address { return n.addrs }

// Up implements cm.NIC.
func (n *cmNIC) Up() bool { return n.Interface().Up() }

// MTU implements cm.NIC.
func (n *cmNIC) MTU() uint8 { return n.mtu }

// ACKDelay implements cm.NIC.
func (n *cmNIC) ACKDelay() uint8 { return n.delay }

// The parts of a P_Key, and the default partition.
const (
	partition        = 0x7fff
	fullMember       = 0x8000
	defaultPartition = packet.DefaultPKey & partition
)

// PKey implements cm.NIC.
func (n *cmNIC) PKey() (key uint16) {
	n.engine.Do(func() {
		for _, k := range n.PKeys() {
			switch {
			case k&partition == defaultPartition:
				key = packet.DefaultPKey
				return
			case k != 0 && key == 0:
				key = k | fullMember
			}
		}
	})
	return key
}

// PKeyIndex implements cm.NIC.
func (n *cmNIC) PKeyIndex(key uint16) (i int, ok bool) {
	n.engine.Do(func() { i, ok = n.device.PKeyIndex(key) })
	return i, ok
}

// Owns implements cm.NIC.
func (n *cmNIC) Owns(qpn uint32, owner cm.Owner) (ok bool) {
	n.engine.Do(func() {
		uid, there := n.QPOwner(qpn)
		ok = there && uid == owner.UID
	})
	return ok
}
