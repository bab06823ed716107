package attach

import (
	"net/netip"

	"softroce/cm"
	"softroce/packet"
)

// refresh copies the device's properties that the connection manager needs.
func (n *cmNIC) refresh() {
	n.engine.Do(func() {
		a := n.Query()
		n.guid, n.delay = a.NodeGUID, uint8(a.LocalCAACKDelay)
		n.mtu = uint8(mtuCode(n.QueryPort().ActiveMTU))
		n.gids = n.GIDs()
	})
	// The GID table has addresses without their prefixes. It also has the link-local address of the
	// MAC, which the interface may lack.
	known := map[netip.Addr]netip.Prefix{}
	for _, p := range n.Interface().Addresses() {
		a := p.Addr().WithZone("")
		known[a] = netip.PrefixFrom(a, p.Bits())
	}
	n.addrs = nil
	for _, g := range n.gids {
		a := g.GID.Addr()
		p, ok := known[a]
		if !ok {
			p = netip.PrefixFrom(a, 64)
		}
		n.addrs = append(n.addrs, p)
	}
}

// addressesChanged follows a change of the interface.
func (n *cmNIC) addressesChanged() {
	n.refresh()
	n.service.manager.AddressesChanged(n)
}

// GUID implements cm.Port.
func (n *cmNIC) GUID() uint64 { return n.guid }

// Netdev implements cm.NIC.
func (n *cmNIC) Netdev() string {
	if len(n.gids) > 0 {
		return n.gids[0].Netdev
	}
	return ""
}

// Addresses implements cm.NIC.
func (n *cmNIC) Addresses() []netip.Prefix { return n.addrs }

// Up implements cm.NIC.
func (n *cmNIC) Up() bool { return n.Interface().Up() }

// MTU implements cm.NIC.
func (n *cmNIC) MTU() uint8 { return n.mtu }

// ACKDelay implements cm.NIC.
func (n *cmNIC) ACKDelay() uint8 { return n.delay }

// GIDIndex implements cm.NIC.
func (n *cmNIC) GIDIndex(a netip.Addr) (int, bool) {
	for _, g := range n.gids {
		if g.GID.Addr() == a {
			return g.Index, true
		}
	}
	return 0, false
}

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
