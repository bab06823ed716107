package wire

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A vlanPort is what a packet link has on a VLAN interface: sockets that hold RoCE's port, and are members of its
// groups there. Frames go through the link's own socket.
type vlanPort struct {
	index   int
	holders []int
}

func (v vlanPort) close() {
	for _, fd := range v.holders {
		unix.Close(fd)
	}
}

// serveVLANs follows the VLANs on the interface. The caller holds mu, or is alone.
func (l *PacketLink) serveVLANs() error {
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
		// Where another daemon's NIC stands on the VLAN itself, that holds the port.
		p.holders, _ = holdPort(v.name)
		l.vlans[v.name] = p
		for g := range l.groups {
			p.member(g, true)
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

// member joins a group on the VLAN, as far as that goes, or leaves it.
func (v vlanPort) member(group netip.Addr, join bool) {
	i := 1
	if group.Is4() {
		i = 0
	}
	if i < len(v.holders) {
		member(v.holders[i], v.index, group, join)
	}
}

// The control message of PACKET_AUXDATA: struct tpacket_auxdata behind its header.
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
