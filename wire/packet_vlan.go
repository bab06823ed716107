package wire

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

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
