package wire

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"softroce/packet"
)

// A udpDecoder is the rxDecoder of a socket of a UDPLink: it cuts the super-packets that the socket
// delivers into packets.
type udpDecoder struct {
	segments
	is4     bool
	a       packet.Addressing
	firstID uint16 // Identification of the first packet
}

// load implements rxDecoder.
func (d *udpDecoder) load(m rxMessage) (Drop, bool) {
	b, name := m.data, m.name
	d.rest = nil
	d.a = packet.Addressing{SrcPort: networkOrder(name.Port)} // both families have the port at the same offset
	if d.is4 {
		d.a.Src = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr)
	} else {
		d.a.Src = netip.AddrFrom16(name.Addr)
	}
	d.size = readControl(m.control, &d.a)
	if d.size <= 0 || d.size > len(b) {
		d.size = len(b)
	}
	if !d.a.Dst.IsValid() {
		return DropTruncated, false // the control messages did not fit
	}
	if len(b) < packet.BTHLen+packet.ICRCLen {
		return DropUDPLength, false
	}
	d.begin(b)
	d.firstID = 0
	return 0, true
}

// next implements rxDecoder. The socket hides the IPv4 Identification, which the ICRC covers:
// packet.RecoverID finds it.
func (d *udpDecoder) next(f *RxFrame) bool {
	b, i := d.cut()
	if b == nil {
		return false
	}
	n := len(b) - packet.ICRCLen
	a := &d.a
	id, good := d.icrcBase(a, n).RecoverID(d.firstID+uint16(i), b)
	if i == 0 {
		d.firstID = id
	}
	*f = RxFrame{
		Head: b[:n:n], Src: a.Src, Dst: a.Dst, SrcPort: a.SrcPort, TClass: a.TClass,
		HopLimit: a.HopLimit, FlowLabel: a.FlowLabel, ID: id,
		ICRC: binary.LittleEndian.Uint32(b[n:]), BadICRC: !good,
	}
	return true
}
