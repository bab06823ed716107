package wire

import (
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// lookForVLANs reads the state of the VLAN interfaces on one. Those with a MAC of their own are left out: frames to
// them are not the interface's.
func (n *Netdev) lookForVLANs(s *netdevState) (vlans []*netdevState, err error) {
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
		// One whose parent is in another network namespace has that namespace's number for it.
		if !ok || a.ParentIndex != s.index || a.NetNsID >= 0 || v.VlanProtocol != netlink.VLAN_PROTOCOL_8021Q {
			continue
		}
		child, err := n.lookAt(l)
		if err != nil {
			continue // it has just gone, which is an event of its own
		}
		if child.id = uint16(v.VlanId); child.mac == s.mac && child.up {
			vlans = append(vlans, child)
		}
	}
	slices.SortFunc(vlans, func(a, b *netdevState) int { return int(a.id) - int(b.id) })
	return vlans, nil
}

// vlan returns the state of what frames of a VLAN go through, the interface itself for 0; nil if there
// is none.
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

// isOrHas reports whether an interface number is that of the interface or of a VLAN on it.
func (s *netdevState) isOrHas(index int) bool {
	return index == s.index || slices.ContainsFunc(s.vlans, func(v *netdevState) bool { return v.index == index })
}

// ids are the VLAN IDs in use.
func (s *netdevState) ids() (l []uint16) {
	for _, v := range s.vlans {
		l = append(l, v.id)
	}
	return l
}

// pktinfo4 and pktinfo6 are control messages that send a datagram through an interface.
func pktinfo(is4 bool, index int) []byte {
	if is4 {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(index)})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: uint32(index)})
}
