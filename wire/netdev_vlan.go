package wire

import (
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// readVLANs reads the state of the VLAN interfaces on an interface. It leaves out those with
// another MAC, whose frames the interface does not accept.
func (n *Netdev) readVLANs(s *netdevState) (vlans []*netdevState, err error) {
	if s.noARP {
		return nil, nil
	}
	links, err := dump(n.handle.LinkList)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		v, ok := l.(*netlink.Vlan)
		a := l.Attrs()
		// If the parent is in another network namespace, ParentIndex is a number of that namespace.
		if !ok || a.ParentIndex != s.index || a.NetNsID >= 0 || v.VlanProtocol != netlink.VLAN_PROTOCOL_8021Q {
			continue
		}
		child, err := n.readLink(l)
		if err != nil {
			continue // deleted meanwhile, which is another event
		}
		for from, to := range v.EgressQosMap {
			if from < uint32(len(child.egress)) {
				child.egress[from] = uint8(to & maxPriority)
			}
		}
		if child.id = uint16(v.VlanId); child.mac == s.mac && child.up {
			vlans = append(vlans, child)
		}
	}
	slices.SortFunc(vlans, func(a, b *netdevState) int { return int(a.id) - int(b.id) })
	return vlans, nil
}

// vlan returns the state of the interface for frames of a VLAN: s itself for 0, nil if there is
// none.
func (s *netdevState) vlan(id uint16) *netdevState {
	if id == 0 {
		return s
	}
	for _, v := range s.vlans {
		if v.id == id {
			return v
		}
	}
	return nil
}

// hasIndex reports whether an index is that of the interface or of a VLAN on it.
func (s *netdevState) hasIndex(index int) bool {
	return index == s.index || slices.ContainsFunc(s.vlans, func(v *netdevState) bool { return v.index == index })
}

// ids returns the VLAN IDs on the interface.
func (s *netdevState) ids() (l []uint16) {
	for _, v := range s.vlans {
		l = append(l, v.id)
	}
	return l
}

// pktinfo returns the control message that sends a datagram through an interface.
func pktinfo(is4 bool, index int) []byte {
	if is4 {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(index)})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: uint32(index)})
}
