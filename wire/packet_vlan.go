package wire

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A vlanPort is the sockets of a packet link on a VLAN interface. They reserve the port there, and
// are members of its multicast groups. Frames go through the link's own socket.
type vlanPort struct {
	index       int
	portSockets []int
}

func (v vlanPort) close() {
	for _, fd := range v.portSockets {
		unix.Close(fd)
	}
}

// updateVLANs follows the VLANs on the interface. The caller holds mu, or is the only user of l.
func (l *PacketLink) updateVLANs() error {
	s := l.iface.state.Load()
	present := map[string]bool{}
	for _, v := range s.vlans {
		present[v.name] = true
		old, ok := l.vlans[v.name]
		if ok && old.index == v.index {
			continue
		}
		old.close()
		p := vlanPort{index: v.index}
		// If another daemon has a NIC on the VLAN interface, that reserves the port.
		p.portSockets, _ = reservePort(v.name)
		l.vlans[v.name] = p
		for g := range l.groups {
			p.setMembership(g, true)
		}
	}
	for name, p := range l.vlans {
		if !present[name] {
			p.close()
			delete(l.vlans, name)
		}
	}
	return attachFilter(l.fd, s.ids())
}

// setMembership joins or leaves a group on the VLAN. Errors are ignored.
func (v vlanPort) setMembership(group netip.Addr, join bool) {
	i := 1
	if group.Is4() {
		i = 0
	}
	if i < len(v.portSockets) {
		setMembership(v.portSockets[i], v.index, group, join)
	}
}

// Layout of the control message PACKET_AUXDATA: struct tpacket_auxdata behind its header.
const (
	auxdataStatus    = cmsgHeaderLen      // u32, TP_STATUS_…
	auxdataTCI       = cmsgHeaderLen + 16 // u16
	auxdataLen       = cmsgHeaderLen + 20
	packetControlLen = 64

	statusVLANValid = 1 << 4 // TP_STATUS_VLAN_VALID
)

// setTag sets the VLAN tag of the loaded frame, which the kernel took out of it.
func (d *packetDecoder) setTag(control []byte) {
	ne := binary.NativeEndian
	if len(control) < auxdataLen || ne.Uint32(control[8:]) != unix.SOL_PACKET || ne.Uint32(control[12:]) != unix.PACKET_AUXDATA {
		return
	}
	if ne.Uint32(control[auxdataStatus:])&statusVLANValid != 0 {
		d.frame.Tagged, d.frame.TCI = true, ne.Uint16(control[auxdataTCI:])
	}
}
