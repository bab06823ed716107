package wire

import "net/netip"

// A Station is an IP address in a VLAN: the same address in two VLANs is two stations.
type Station struct {
	Addr netip.Addr
	VLAN uint16 // VLAN ID; 0: frames have no tag, or one for priority alone
}

// The parts of a tag's TCI (IEEE 802.1Q 9.6), and the VLAN IDs that can be had.
const (
	tciVLAN     = 0xfff
	tciPriority = 13 // bits below the priority
	maxPriority = 7

	MinVLAN = 1
	MaxVLAN = 4094
)

// A VLANAddress is an address of a VLAN interface that stands on an interface.
type VLANAddress struct {
	netip.Prefix
	VLAN   uint16
	Netdev string // "" where there is none on the host
}

// A Trunk is an Interface with VLANs on it. Their addresses come and go like the interface's own, and
// OnChange tells of it.
type Trunk interface {
	Interface

	// VLANAddresses returns the usable addresses of the VLANs. The caller must not change the
	// slice; it is not changed by others either.
	VLANAddresses() []VLANAddress
}

// VLANAddresses returns those of an interface, none if it is no Trunk.
func VLANAddresses(i Interface) []VLANAddress {
	if t, ok := i.(Trunk); ok {
		return t.VLANAddresses()
	}
	return nil
}

// Owns returns the question whether a station is an interface's: one of its addresses, or the link-local one of
// its MAC, which every NIC has.
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

// station is where frames of the path go.
func (p *Path) station() Station { return Station{p.Dst, p.VLAN} }

// tci is what the tag of the path's frames holds, if they have one.
func (p *Path) tci() uint16 { return uint16(p.Priority&maxPriority)<<tciPriority | p.VLAN&tciVLAN }

// VLAN returns the ID of the VLAN that a frame came in, 0 for none.
func (f *RxFrame) VLAN() uint16 {
	if !f.Tagged {
		return 0
	}
	return f.TCI & tciVLAN
}

// Priority returns the priority in the frame's tag, 0 if it has none.
func (f *RxFrame) Priority() uint8 {
	if !f.Tagged {
		return 0
	}
	return uint8(f.TCI >> tciPriority)
}

// tagAs gives f the tag that a frame of p has.
func (f *RxFrame) tagAs(p *Path) {
	if p.VLAN != 0 {
		f.Tagged, f.TCI = true, p.tci()
	}
}
