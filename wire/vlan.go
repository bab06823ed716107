package wire

import "net/netip"

// A Station is an IP address in a VLAN. The same address in two VLANs is two stations.
type Station struct {
	Addr netip.Addr
	VLAN uint16 // VLAN ID; 0 means no tag, or a priority tag
}

// The parts of a tag's TCI (IEEE 802.1Q 9.6), and the range of VLAN IDs.
const (
	tciVLAN     = 0xfff
	tciPriority = 13 // bits below the priority
	maxPriority = 7

	MinVLAN = 1
	MaxVLAN = 4094
)

// A VLANAddress is an address of a VLAN interface on an interface.
type VLANAddress struct {
	netip.Prefix
	VLAN   uint16
	Netdev string // "" if the host has none
	Egress Egress
}

// An Egress has the priority in the tag, 0 to 7, of packets of each Linux priority up to 7: the
// egress-qos-map of a VLAN interface.
type Egress [8]uint8

// A Trunk is an Interface with VLANs on it. OnChange also reports changes of their addresses.
type Trunk interface {
	Interface

	// VLANAddresses returns the usable addresses of the VLANs. The slice is never modified.
	VLANAddresses() []VLANAddress
}

// VLANAddresses returns the VLAN addresses of an interface; none if it is not a Trunk.
func VLANAddresses(i Interface) []VLANAddress {
	if t, ok := i.(Trunk); ok {
		return t.VLANAddresses()
	}
	return nil
}

// Owns returns a function that reports whether a station is one of an interface's addresses, or the
// link-local address of its MAC, which every NIC has.
func Owns(i Interface) func(Station) bool {
	return func(s Station) bool {
		if s.VLAN != 0 {
			for _, a := range VLANAddresses(i) {
				if a.VLAN == s.VLAN && a.Addr() == s.Addr {
					return true
				}
			}
			return false
		}
		if s.Addr == linkLocal(i.MAC()) {
			return true
		}
		for _, p := range i.Addresses() {
			if p.Addr() == s.Addr {
				return true
			}
		}
		return false
	}
}

// station returns the destination of the path.
func (p *Path) station() Station { return Station{p.Dst, p.VLAN} }

// tci returns the TCI of the tag of the path's frames.
func (p *Path) tci() uint16 { return uint16(p.Priority&maxPriority)<<tciPriority | p.VLAN&tciVLAN }

// VLAN returns the VLAN ID of the frame's tag, or 0 if it has none.
func (f *RxFrame) VLAN() uint16 {
	if !f.Tagged {
		return 0
	}
	return f.TCI & tciVLAN
}

// Priority returns the priority in the frame's tag, or 0 if it has none.
func (f *RxFrame) Priority() uint8 {
	if !f.Tagged {
		return 0
	}
	return uint8(f.TCI >> tciPriority)
}

// tagAs gives f the tag of the frames of p.
func (f *RxFrame) tagAs(p *Path) {
	if p.VLAN != 0 {
		f.Tagged, f.TCI = true, p.tci()
	}
}
